"""What a group knows about its own health: is it live, is it ready, has it started, and which
loop does not beat?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.events import Events, LoopDegraded, LoopRecovered
from longwatch.core.health import Aspect, Check, Health, Reason, Report
from longwatch.errors import MailboxError, StoreError
from longwatch.host.watchdog import Stall
from longwatch.mailbox.letters import Stats
from longwatch.mailbox.mailbox import Mailbox
from longwatch.runtime.member import Member
from longwatch.work.engine_loop import EngineLoop

Gauge = tuple[str, tuple[str, ...], float]
"""The name of a metric, the values of its labels, and its number."""
_READY = frozenset({Aspect.READY})


class Vitals:
    """The checks of a group. `stale_after` is when a loop is not ready any more, `dead_after` when
    it is not even live: then the watchdog has failed, too. None: never.
    """

    def __init__(  # noqa: PLR0913 - the members and what is asked of them, each by name
        self,
        members: Sequence[Member],
        *,
        is_leaving: Callable[[], bool],
        stale_after: float | None,
        dead_after: float | None,
        clock: Clock,
        events: Events,
    ) -> None:
        self.members = members
        self._is_leaving = is_leaving
        self._stale_after = stale_after
        self._dead_after = dead_after
        self._events = events
        self._degraded: set[str] = set()
        self._at_hand = Health((check for check in self.checks() if check.quick), clock)

    def checks(self) -> Iterator[Check]:
        yield Check("draining", self._draining, _READY, quick=True)
        for member in self.members:
            yield Check(f"loop {member.name}", partial(self._loop, member), _READY, quick=True)
        yield Check("watchdog", self._watched, frozenset({Aspect.LIVE}), quick=True)
        yield Check("started", self._started, frozenset({Aspect.STARTED}), quick=True)
        for number, loop in enumerate(self._by_store(), 1):
            yield Check(f"store {number}", partial(_reached, loop), _READY)

    def readiness(self) -> Report:
        """What can be said without asking a store."""
        return self._at_hand.report(Aspect.READY)

    def ages(self) -> list[Stall]:
        """How long each loop that runs has given no beat."""
        return [
            Stall(member.name, age)
            for member in self.members
            if (age := member.elapsed()) is not None
        ]

    def is_fresh(self) -> bool:
        """Whether every loop that runs beats."""
        return self._stale_after is None or all(age <= self._stale_after for _, age in self.ages())

    def notice(self) -> None:
        """Tell of the loops that have become stale, and of those that are not any more."""
        if self._stale_after is None:
            return
        stale = {name: age for name, age in self.ages() if age > self._stale_after}
        for name in stale.keys() - self._degraded:
            self._events.emit(
                LoopDegraded(loop=name, elapsed=stale[name], threshold=self._stale_after)
            )
        for name in self._degraded - stale.keys():
            self._events.emit(LoopRecovered(loop=name))
        self._degraded = set(stale)

    def gauges(self) -> list[Gauge]:
        """What can be said without asking a store."""
        found: list[Gauge] = []
        for member in self.members:
            age = member.elapsed()
            found.append(("longwatch_loop_running", (member.name,), float(member.armed)))
            found.append(("longwatch_leases_held", (member.name,), float(member.holding)))
            if age is not None:
                found.append(("longwatch_heartbeat_age_seconds", (member.name,), age))
        return found

    def all_gauges(self) -> list[Gauge]:
        """And whether all are ready, and how the mailboxes stand."""
        found: list[Gauge] = [
            ("longwatch_health_ready", (), float(self.readiness().ok)),
            *self.gauges(),
        ]
        for mailbox in self._mailboxes():
            with suppress(
                MailboxError, StoreError
            ):  # one that cannot be asked has no gauges, the others have theirs
                found += mailbox_gauges(mailbox.name, mailbox.stats())
        return found

    # --- the checks ---

    def _draining(self) -> Reason:
        return Reason.DRAINING if self._is_leaving() else Reason.OK

    def _loop(self, member: Member) -> Reason:
        if not member.armed:
            return Reason.NOT_RUNNING if member.begun else Reason.NOT_STARTED
        if not getattr(member.loop, "entered", True):
            return Reason.UNREACHABLE
        age = member.elapsed()
        is_stale = self._stale_after is not None and age is not None and age > self._stale_after
        return Reason.STALE if is_stale else Reason.OK

    def _watched(self) -> Reason:
        dead_after = self._dead_after
        return (
            Reason.STALE
            if dead_after is not None and any(age > dead_after for _, age in self.ages())
            else Reason.OK
        )

    def _started(self) -> Reason:
        return Reason.OK if all(member.begun for member in self.members) else Reason.NOT_STARTED

    def _mailboxes(self) -> list[Mailbox[Any]]:
        """Those that the loops take from."""
        found = (getattr(member.loop, "requests", None) for member in self.members)
        return [requests for requests in found if isinstance(requests, Mailbox)]

    def _by_store(self) -> list[EngineLoop]:
        """One loop for each store."""
        found = (member.loop for member in self.members)
        return list({loop.home: loop for loop in found if isinstance(loop, EngineLoop)}.values())


def mailbox_gauges(name: str, stats: Stats) -> list[Gauge]:
    """How a mailbox stands."""
    shown = {
        "ready": stats.ready,
        "delayed": stats.delayed,
        "leased": stats.leased,
        "dead": stats.dead,
    }
    oldest = {"oldest_age_seconds": stats.oldest_age or 0.0}
    return [
        (f"longwatch_mailbox_{what}", (name,), float(number))
        for what, number in (shown | oldest).items()
    ]


def _reached(loop: EngineLoop) -> Reason:
    try:
        loop.reach()
    except (MailboxError, StoreError):
        return Reason.UNREACHABLE
    return Reason.OK
