"""The feeder: settles what is done and claims what comes next, in one exchange with the source.

It has a thread, which waits for a reason to deal and deals. Where there is little to do, waking
threads takes longer than anything else: so while it rests, a slot that has finished the only thing
that ran deals in its place, and goes on with what it got; and who gives rows hands them to the
slots. The baton sees to it that there is one who deals at a time; everything that changes is
changed with it in hand.
"""

from __future__ import annotations

import threading
from collections import deque

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.clock import Wakeup
from longwatch.core.events import SettlementRefused
from longwatch.host.beatpage import BeatPage
from longwatch.host.errand import Errand
from longwatch.store.claims import Claim
from longwatch.work.ahead import STUCK_AFTER, WITHIN, LeaseAhead
from longwatch.work.alone import Alone
from longwatch.work.calls import SourceCall
from longwatch.work.doubts import Doubts
from longwatch.work.drain import ENDING, Course, Drain
from longwatch.work.ledger import Ledger
from longwatch.work.offers import Offer, Offers
from longwatch.work.policy import MOST_AT_ONCE, Surroundings
from longwatch.work.polling import Polling
from longwatch.work.slots import Crew, Finished
from longwatch.work.solitude import Seat
from longwatch.work.source import Exchange, Leased, Outcome, Settlement, Source
from longwatch.work.tenure import Tenure

_QUICK = 64
"""Slots of an engine in which one that has finished looks whether any other runs."""


class Feeder:
    """Feeds the slots of one engine.

    `held` are the rows that wait or run here, `unsettled` what is to be told to the source.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - it stands between the source, the slots and the engine
        self,
        source: Source,
        tenure: Tenure,
        crew: Crew,
        course: Course,
        seat: Seat,
        news: Wakeup,
        page: BeatPage,
        around: Surroundings,
    ) -> None:
        policy = around.policy
        self.exhausted = Wakeup()
        """Set when it has taken rows as often as it may, and all of them are settled."""
        self.held: set[Claim] = set()
        self.unsettled: list[Settlement] = []
        self.hurry = Wakeup()
        self.errand = Errand(self._turn, name=f"{around.name}-feeder", loud=True)
        self._source = source
        self._tenure = tenure
        self._crew = crew
        self._course = course
        self._seat = seat
        self._news = news
        self._policy = policy
        self._name = around.name
        self._clock = around.clock
        self._events = around.events
        self._ahead = LeaseAhead(policy.slots, most=policy.most_ahead)
        self._joined = Wakeup()
        self._alone = Alone(seat, around.clock, within=policy.alone_within)
        self._again: float | None = 0.0
        self._was_given = False
        self.offers = Offers(self._offer_is_over)
        self._doubts = Doubts(source, tenure, crew, self.offers, around)
        self._baton = threading.Lock()
        self._helps = SourceCall("feed", around)
        self._helper: deque[Leased] | None = None
        self._is_quick = policy.polls is None and policy.slots <= _QUICK
        self._batch = MOST_AT_ONCE
        self._tried: set[Claim] = set()
        self._has_failed = False
        self._whole = SourceCall("feed", around)
        self._exchange = SourceCall("exchange", around)
        self._heartbeat = around.heartbeat
        self._page = page
        self._polling = Polling(policy, around.clock)
        self._ledger = Ledger(around)
        self._look = SourceCall("next_due", around)
        self._eager = Backoff(BackoffPolicy(initial=min(0.001, policy.poll), cap=policy.poll))

    def holding(self) -> int:
        """How many leases the engine has, as far as it knows."""
        return len(self.held) + len(self.unsettled)

    def doubt(self, *, called_off: bool = False) -> None:
        """The store may know of other leases than we do: ask it. `called_off`: somebody has said
        so.
        """
        self._doubts.arise(called_off=called_off)
        self._news.set()

    def offer(self, most: int) -> Offer | None:
        """Room for up to so many rows; None if there is none. From any thread."""
        return self.offers.make(
            lambda: 0 if self._policy.polls is not None else min(self._room(), most),
            owner=self._tenure.owner,
        )

    def _offer_is_over(self, in_doubt: bool) -> None:  # noqa: FBT001 - a callback
        if in_doubt:
            self._doubts.arise()
        if (
            in_doubt
            or self._course.state is not Drain.RUNNING
            or (self.offers.given and not self._take_given())
        ):
            self._news.set()

    def _turn(self) -> None:
        while not self._is_over():
            self._whole.make(self._once)
            if self._whole.retry_in:
                self._clock.wait(self.hurry, self._whole.retry_in)
        self._seat.leave()

    def _once(self) -> None:
        self._rest()
        with self._baton:
            self._deal()

    def _deal(self) -> None:
        self._beat()
        self._collect()
        self._trade()
        if self._polling.is_over and not self.holding():
            self.exhausted.set()

    def _beat(self) -> None:
        self._heartbeat.beat()
        self._page.beat_engine(self._clock.monotonic())

    def _is_over(self) -> bool:
        with (
            self._baton,
            self.offers.lock,
        ):  # an offer that is made now is made before this, or not at all
            is_empty = not (self.held or self.unsettled or self.offers.given or self.offers.open)
            return self._course.state in ENDING and is_empty

    # --- dealt by others ---

    def _help(self) -> Leased | None:
        """A slot deals in place of the feeder's thread, which rests; what the slot is to go on
        with.
        """
        if not self._baton.acquire(blocking=False):
            self._news.set()
            return None
        mine: deque[Leased] = deque()
        self._helper = mine
        try:
            self._helps.make(self._deal)
        finally:
            self._helper = None
            self._baton.release()
        if not self._is_at_rest():
            self._news.set()
        return mine.popleft() if mine else None

    def _take_given(self) -> bool:
        """Hand what was given to the slots while the feeder's thread rests; False if that is
        left to it.
        """
        if self._crew.helper is None or not self._baton.acquire(blocking=False):
            return False
        try:
            while self.offers.given:
                self._accept(*self.offers.given.popleft())
            return self._is_at_rest()
        finally:
            self._baton.release()

    def _is_at_rest(self) -> bool:
        """Whether it may go on resting as it does: there is nothing that it has to do, or to do
        at another time.
        """
        waits = self._again is not None or self._exchange.retry_in or self._helps.retry_in
        is_asked = (
            self.unsettled
            or self._alone.is_waited_for
            or self._doubts.are_there
            or self._has_failed
        )
        is_crowded = len(self.held) > self._policy.slots
        return self._course.state is Drain.RUNNING and not (waits or is_asked or is_crowded)

    # --- resting ---

    def _rest(self) -> None:
        """Wait for a reason to trade. Everything is looked at afterwards, so the news is old
        then.
        """
        if self._exchange.retry_in:
            self._clock.wait(self.hurry, self._exchange.retry_in)
        elif not self._is_something_done():
            self._await_work()
        if self._is_something_done() and not self._exchange.retry_in:
            self._join()
        self.hurry.clear()
        self._news.clear()

    def _await_work(self) -> None:
        """Until something is done, or may be there to claim."""
        if self._again is None or not self._room():
            self._listen(self._patience())
        elif self._again:
            self._listen(self._again)

    def _is_something_done(self) -> bool:
        return bool(self._crew.finished or self.unsettled or self.offers.given)

    def _join(self) -> None:
        """Something is done: give more of it a moment to be settled with it, unless the slots
        have nothing left to do.
        """
        crew = self._crew
        crew.enough, crew.bell = self._policy.settle_batch - len(self.unsettled), self._joined
        if len(crew.finished) < crew.enough and not crew.line.empty() and not self.offers.given:
            self._clock.wait(self._joined, self._policy.settle_within)
        crew.bell = None
        self._joined.clear()

    def _listen(self, patience: float) -> None:
        """Wait for the first that is finished, or for other news."""
        crew = self._crew
        crew.enough, crew.bell = 1, self._news
        crew.helper = self._help if self._is_quick else None
        if not crew.finished:
            self._clock.wait(self._news, patience)
        crew.bell = crew.helper = None

    def _patience(self) -> float:
        waits = [self._policy.poll]
        if not self._crew.line.empty():
            waits.append(WITHIN)
        if self._alone.is_waited_for:
            waits.append(self._alone.patience())
        if self._room():
            waits += [self._until_due(), self._polling.patience()]
        return min(waits)

    def _until_due(self) -> float:
        """Until a delayed row is ready. One that is and was not given to us (paused, taken) is
        looked for less and less often.
        """
        due = self._look.make(self._source.next_due)
        if due is None or due > 0:
            self._eager.succeeded()
            return self._policy.poll if due is None else due
        return self._eager.failed(lasted=0.0)

    def _room(self) -> int:
        """How many rows may be claimed."""
        if (
            self._course.state is not Drain.RUNNING
            or self._tenure.broken
            or self._alone.is_any
            or self._seat.hushed
        ):
            return 0
        return self._polling.bounded(
            max(self._policy.slots + self._ahead.ahead - len(self.held), 0), held=len(self.held)
        )

    # --- collecting ---

    def _collect(self) -> None:
        """Take over what the slots finished, what others have leased for us, and what the slots
        should not hold any more.
        """
        while self.offers.given:  # before what is finished: it may be among that
            self._accept(*self.offers.given.popleft())
            self._was_given = True
        self._take_over()
        if self._course.state is not Drain.RUNNING or self._seat.hushed:
            self._crew.drop_waiting()
            self._hand_back_alone()
        elif not self._crew.line.empty():
            self._drop_surplus()
        self._take_over()
        if not self.held:
            self._seat.vacate()

    def _accept(self, leased: list[Leased], asked: float) -> None:
        """Rows that are ours already; where another has to run alone, they go back."""
        if self._seat.occupy():
            self._hand_out(leased, asked)
        else:
            self.unsettled += [Settlement(each.claim, Outcome.BACK) for each in leased]

    def _take_over(self) -> None:
        finished = self._crew.finished
        while finished:
            self._note(finished.popleft())

    def _drop_surplus(self) -> None:
        """Rows that wait behind work that takes long are given to whoever has time."""
        surplus = self._ahead.surplus(len(self.held))
        if surplus:
            self._crew.drop_waiting(keep=max(self._crew.line.qsize() - surplus, 0))
        elif self._crew.is_stuck(STUCK_AFTER):
            self._ahead.stuck()
            self._crew.drop_waiting()

    def _note(self, done: Finished) -> None:
        self.held.discard(done.leased.claim)
        if done.lasted is not None:
            self._ahead.ran(done.lasted)
            self._ledger.ran(done.lasted)
        if isinstance(done.answer, Settlement):
            self.unsettled.append(done.answer)
        elif done.answer is not None:
            self._ledger.settled(done.answer.outcome)
        self._alone.over(done.leased)

    # --- trading ---

    def _trade(self) -> None:
        """Settle and claim, in one exchange."""
        if self._doubts.are_there:
            known = self.held.union(settlement.claim for settlement in self.unsettled)
            self.unsettled += [
                Settlement(claim, Outcome.BACK) for claim in self._doubts.settle(known, self.held)
            ]
        self._run_alone()
        want = min(self._room(), MOST_AT_ONCE)
        was_given, self._was_given = self._was_given, False
        if was_given or (
            want and not self._seat.occupy()
        ):  # the first of it may be done in a moment
            want = 0
        batch = self.unsettled[: self._batch]
        if batch or want:
            self._swap(batch, want)
        else:
            self._ledger.tell()
        if was_given:
            self._again = self._policy.settle_within

    def _swap(self, batch: list[Settlement], want: int) -> None:
        asked = self._clock.monotonic()
        owner, duration = self._tenure.owner, self._policy.lease.duration
        exchange = self._exchange.make(
            lambda: self._source.exchange(batch, owner=owner, want=want, duration=duration)
        )
        if exchange is None:
            self._not_swapped(batch, want)
            return
        self._batch = MOST_AT_ONCE
        del self.unsettled[: len(batch)]
        self._check(batch, exchange)
        self._has_failed = any(settlement.outcome is not Outcome.DONE for settlement in batch)
        self._again = None if exchange.is_all else self._look_again_in(want, len(exchange.leased))
        if want:
            self._polling.polled(len(exchange.leased))
        self._hand_out(exchange.leased, asked)
        self._ledger.traded(batch, exchange, held=len(self.held))

    def _look_again_in(self, want: int, got: int) -> float | None:
        """At once where there was all we wanted. Where there was some of it, no more is left as a
        rule, and the first of it may be done in a moment: one exchange does for both. Where there
        was nothing, when somebody tells (None).
        """
        if want and got >= want:
            return 0.0
        return self._policy.settle_within if got else None

    def _not_swapped(self, batch: list[Settlement], want: int) -> None:
        """Nobody knows what happened. The settlements stay in line; half as many next time, so that
        one that cannot be made does not keep the others for ever.
        """
        if want:
            self._doubts.arise()
        self._tried.update(settlement.claim for settlement in batch)
        if len(batch) == 1:
            self.unsettled.append(self.unsettled.pop(0))
        if batch:
            self._batch = max(len(batch) // 2, 1)

    def _check(self, batch: list[Settlement], exchange: Exchange) -> None:
        """Tell of those that were not ours any more. What was tried before may be gone because
        that try counted.
        """
        if not all(exchange.settled):
            for settlement, settled in zip(batch, exchange.settled, strict=True):
                if not settled and settlement.outcome is not Outcome.BACK:
                    self._refused(settlement)
        if self._tried:
            self._tried.difference_update(settlement.claim for settlement in batch)

    def _refused(self, settlement: Settlement) -> None:
        row, unknown = settlement.claim.seq, settlement.claim in self._tried
        self._events.emit(
            SettlementRefused(
                engine=self._name, row=row, outcome=settlement.outcome, unknown=unknown
            )
        )

    def _hand_out(self, leased: list[Leased], asked: float) -> None:
        if leased and not self.holding():
            self._tenure.granted(asked)
        for each in leased:
            self.held.add(each.claim)
            if each.alone:
                self._alone.add(each)
            elif self._helper is not None and not self._helper:
                self._helper.append(each)
            else:
                self._crew.line.put(each)
        self._run_alone()

    # --- rows that run alone ---

    def _run_alone(self) -> None:
        """Start the next of them if nothing else runs, here or in another engine of this
        process.
        """
        if (leased := self._alone.next(len(self.held))) is not None:
            self._crew.line.put(leased)
        elif self._alone.is_late:
            self._hand_back_alone(delay=self._policy.alone_within)

    def _hand_back_alone(self, *, delay: float = 0.0) -> None:
        for leased in self._alone.drop():
            self.held.discard(leased.claim)
            self.unsettled.append(Settlement(leased.claim, Outcome.BACK, delay=delay))
