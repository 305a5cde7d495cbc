"""The lease keeper: renews everything the engine holds, and says when it is not trusted any more.

It only waits and decides; the call to the store is made in a thread of its own, because a store
that does not answer must not keep the keeper from noticing that trust has ended. One renewal is
under way at a time. Its waits end at moments that it computes anew each time (`host.periodic` keeps
one interval), so it turns a loop of its own.
"""

from __future__ import annotations

from math import inf

from longwatch.core.chance import fraction
from longwatch.core.clock import Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.events import LeaseLost, LeasesRenewed
from longwatch.host.errand import Errand
from longwatch.store.claims import Claim
from longwatch.work.calls import SourceCall
from longwatch.work.context import WorkContext
from longwatch.work.feeder import Feeder
from longwatch.work.policy import Surroundings
from longwatch.work.slots import Crew
from longwatch.work.source import Source
from longwatch.work.tenure import Tenure

_PATIENT = 0.9
"""Of the time that leases are trusted, what a parent that renews them is waited for."""


class Keeper:
    """Keeps the leases of one engine while its feeder holds any.

    Each round it makes the feeder compare with the store, also when nothing is held here: a store
    that was set back to an older state knows leases that this side never had, or has had, and as
    many of them as it takes to count the same.
    """

    def __init__(
        self, source: Source, tenure: Tenure, crew: Crew, feeder: Feeder, around: Surroundings
    ) -> None:
        self._source = source
        self._tenure = tenure
        self._crew = crew
        self._holding = feeder.holding
        self._doubt = feeder.doubt
        self._policy = around.policy
        self._name = around.name
        self._clock = around.clock
        self._events = around.events
        self._whole = SourceCall("keep", around)
        self._call = SourceCall("renew", around)
        self._renewal: Errand | None = None
        self._not_before = 0.0
        self._unkept: dict[Claim, float] = {}
        self._news = Wakeup()
        self._ending = False
        self.errand = Errand(self._turn, name=f"{around.name}-keeper", loud=True)

    @property
    def inside(self) -> bool:
        return self.errand.inside

    def stop(self, deadline: Deadline) -> bool:
        """End it; False if it is not gone in time."""
        self._ending = True
        self._news.set()
        return self.errand.wait(self._clock, deadline) and self._renewal_is_over(deadline)

    def _turn(self) -> None:
        while not self._ending:
            self._whole.make(self._once)
            if self._whole.retry_in:
                self._clock.wait(self._news, self._whole.retry_in)

    def _once(self) -> None:
        self._clock.wait(self._news, self._patience(self._clock.monotonic()))
        self._news.clear()
        self._look(self._clock.monotonic())

    def _patience(self, now: float) -> float:
        """Until the next thing to decide. With nothing to keep, a look each round is in time for
        whatever is claimed by then.
        """
        lease = self._tenure.lease
        if not self._holding() and not self._tenure.broken:
            return self._round()
        ask_at = max(lease.granted_at + self._round(), self._not_before)
        moments = [*self._unkept.values()]
        if not self._asking():
            moments.append(ask_at)
        if self._tenure.broken:
            moments += [self._trusted_until(context) for context in self._trusted()]
        else:
            moments.append(self._tenure.trusted_until)
        return max(min(moments, default=now + self._round()) - now, 0.0)

    def _round(self) -> float:
        """When the renewal is due, a little less each time, so that many engines do not renew at
        the same moment.
        """
        return self._due_after() * (0.8 + 0.2 * fraction())

    def _due_after(self) -> float:
        """A third of the lease; where a parent renews, not before that has missed two of its
        turns.
        """
        lease = self._policy.lease
        return lease.duration * (lease.trust * _PATIENT if self._tenure.kept else lease.renew_at)

    def _look(self, now: float) -> None:
        if self._ending:
            return
        self._tenure.refresh()
        if not (self._holding() or self._tenure.broken):
            self._doubt()
            return
        if self._tenure.has_ended(now):
            self._step_down()
        if self._tenure.broken:
            self._lose_the_untrusted(now)
        self._lose_the_stale(now)
        due = (
            self._tenure.broken
            or now + self._slack() >= self._tenure.lease.granted_at + self._due_after()
        )
        if due and now >= self._not_before and not self._asking():
            self._ask(now)

    def _slack(self) -> float:
        """What the rounds may be early."""
        return self._due_after() * 0.2

    # --- asking ---

    def _asking(self) -> bool:
        return self._renewal is not None and not self._renewal.over.is_set()

    def _ask(self, now: float) -> None:
        skip = self._stale()
        renewal = Errand(lambda: self._renew(skip, now), name=f"{self._name}-renewal", loud=True)
        renewal.over.listen(self._news.set)
        self._renewal = renewal
        renewal.start(here_if_no_thread=True)

    def _renew(self, skip: list[Claim], asked: float) -> None:
        duration = self._policy.lease.duration
        count = self._call.make(lambda: self._renewed(duration, skip))
        self._not_before = self._clock.monotonic() + self._call.retry_in if count is None else 0.0
        if count is not None:
            self._tenure.granted(asked)
            self._doubt()
            self._events.emit(LeasesRenewed(engine=self._name, rows=count))

    def _renewed(self, duration: float, skip: list[Claim]) -> int:
        if not skip:
            return self._source.renew(owner=self._tenure.owner, duration=duration)
        return self._source.renew(owner=self._tenure.owner, duration=duration, skip=skip)

    def _renewal_is_over(self, deadline: Deadline) -> bool:
        return self._renewal is None or self._renewal.wait(self._clock, deadline)

    # --- losing ---

    def _step_down(self) -> None:
        """Trust has ended: nothing is begun any more, and what waits is handed back when the
        store can be told.
        """
        self._tenure.end()
        self._crew.drop_waiting()

    def _lose_the_untrusted(self, now: float) -> None:
        """What runs is cancelled and will not count; what has a longer lease than others goes on
        until that is not trusted.
        """
        lost = [context for context in self._trusted() if now >= self._trusted_until(context)]
        for context in lost:
            self._crew.lose(context, blameless=True)
        if lost:
            self._tell(tuple(context.leased.claim.seq for context in lost), "untrusted")

    def _trusted(self) -> list[WorkContext]:
        return [
            context
            for context in self._crew.running()
            if not (context.settled or context.lease_lost)
        ]

    def _trusted_until(self, context: WorkContext) -> float:
        lease = self._tenure.lease
        return (
            lease.granted_at
            + max(context.leased.lasts or 0.0, lease.policy.duration) * lease.policy.trust
        )

    def _stale(self) -> list[Claim]:
        """The rows that are not renewed, because their code gives no sign of life; from now on
        their trust runs out by itself.
        """
        if self._policy.stale_after is None:
            return []
        stale = {context.leased.claim for context in self._crew.stale(self._policy.stale_after)}
        until = self._tenure.trusted_until
        self._unkept = {claim: self._unkept.get(claim, until) for claim in stale}
        return list(stale)

    def _lose_the_stale(self, now: float) -> None:
        ended = {claim for claim, until in self._unkept.items() if now >= until}
        for context in self._crew.running():
            if context.leased.claim in ended and not context.lease_lost:
                self._crew.lose(context, blameless=False)
                self._tell((context.leased.claim.seq,), "stale")
        for claim in ended:
            self._unkept[claim] = inf

    def _tell(self, rows: tuple[int, ...], reason: str) -> None:
        self._events.emit(LeaseLost(engine=self._name, rows=rows, reason=reason))
