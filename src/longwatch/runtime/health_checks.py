"""The health checks of a group: live, ready, started, and which loops do not beat."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import LoopDegraded, LoopRecovered
from longwatch.core.health import Aspect, Health, HealthCheck, HealthReason, HealthReport
from longwatch.engine.engine_loop import EngineLoop, Gauge
from longwatch.errors import MailboxError, StoreError
from longwatch.host.timed_reads import SCRAPE_READ_SECONDS, TimedReads
from longwatch.host.watchdog import BeatAge
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.records import MailboxStats
from longwatch.runtime.loop_runner import LoopRunner
from longwatch.runtime.store_gauges import StoreGauges, read_gauges

_READINESS = frozenset({Aspect.READY})


class GroupHealth:
    """The health checks of a group. A loop silent for `stale_after` is not ready. A loop silent for
    `not_live_after` is not live: the watchdog has failed. None: never.
    """

    def __init__(  # noqa: PLR0913 - the loops and their limits, each by name
        self,
        runners: Sequence[LoopRunner],
        *,
        is_draining: Callable[[], bool],
        stale_after: float | None,
        not_live_after: float | None,
        clock: Clock,
        events: Events,
    ) -> None:
        self.runners = runners
        self._is_draining = is_draining
        self._stale_after = stale_after
        self._not_live_after = not_live_after
        self._events = events
        self._degraded: set[str] = set()
        self._store_gauges = StoreGauges(self._loops_with_store, clock)
        self._store_reads: TimedReads[list[Gauge]] = TimedReads(
            name="group-store-gauges", timeout=SCRAPE_READ_SECONDS, clock=clock
        )
        self._quick_health = Health((check for check in self.checks() if check.quick), clock)

    def checks(self) -> Iterator[HealthCheck]:
        yield HealthCheck("draining", self._check_draining, _READINESS, quick=True)
        for runner in self.runners:
            yield HealthCheck(
                f"loop {runner.name}", partial(self._check_loop, runner), _READINESS, quick=True
            )
        yield HealthCheck("watchdog", self._check_watchdog, frozenset({Aspect.LIVE}), quick=True)
        yield HealthCheck("started", self._check_started, frozenset({Aspect.STARTED}), quick=True)
        for number, loop in enumerate(self._loop_per_store(), 1):
            yield HealthCheck(f"store {number}", partial(_check_store, loop), _READINESS)

    def readiness(self) -> HealthReport:
        """The readiness report, without the checks that ask a store."""
        return self._quick_health.report(Aspect.READY)

    def beat_ages(self) -> list[BeatAge]:
        """The seconds since the last beat of each running loop."""
        return [
            BeatAge(runner.name, age)
            for runner in self.runners
            if (age := runner.elapsed()) is not None
        ]

    def all_beating(self) -> bool:
        """Whether every running loop beats."""
        return self._stale_after is None or all(
            age <= self._stale_after for _, age in self.beat_ages()
        )

    def emit_changes(self) -> None:
        """Emit an event for each loop that became stale, and for each that beats again."""
        if self._stale_after is None:
            return
        stale = {name: age for name, age in self.beat_ages() if age > self._stale_after}
        for name in stale.keys() - self._degraded:
            self._events.emit(
                LoopDegraded(loop=name, elapsed=stale[name], threshold=self._stale_after)
            )
        for name in self._degraded - stale.keys():
            self._events.emit(LoopRecovered(loop=name))
        self._degraded = set(stale)

    def gauges(self) -> list[Gauge]:
        """The gauges that a parent cannot read itself: the state of the loops, and the last sample
        of their stores. Does not wait for a store.
        """
        return [*self._loop_gauges(), *self._store_gauges.latest()]

    def _loop_gauges(self) -> list[Gauge]:
        found: list[Gauge] = []
        for runner in self.runners:
            age = runner.elapsed()
            found.append(("longwatch_loop_running", (runner.name,), float(runner.is_running)))
            found.append(("longwatch_leases_held", (runner.name,), float(runner.held_count)))
            if age is not None:
                found.append(("longwatch_heartbeat_age_seconds", (runner.name,), age))
        return found

    def all_gauges(self) -> list[Gauge]:
        """All gauges: also whether everything is ready, and the state of mailboxes and graphs.
        Blocks on their stores for a few seconds at most. A store that does not answer has none.
        """
        return [
            ("longwatch_health_ready", (), float(self.readiness().ok)),
            *self._loop_gauges(),
            *chain.from_iterable(self._store_reads.results(self._reads_by_store())),
        ]

    def _reads_by_store(self) -> dict[Hashable, Callable[[], list[Gauge]]]:
        """The calls that read the gauges of mailboxes and graphs, one for each store."""
        reads: dict[Hashable, list[Callable[[], list[Gauge]]]] = {}
        for loop in self._store_gauges.loops_to_ask():
            reads.setdefault(loop.store_identity, []).append(loop.store_gauges)
        for runner in self.runners:
            requests = getattr(runner.loop, "requests", None)
            if isinstance(requests, Mailbox) and isinstance(runner.loop, EngineLoop):
                read = partial(_read_mailbox, requests)
                reads.setdefault(runner.loop.store_identity, []).append(read)
        return {store: partial(read_gauges, found) for store, found in reads.items()}

    # --- the checks ---

    def _check_draining(self) -> HealthReason:
        return HealthReason.DRAINING if self._is_draining() else HealthReason.OK

    def _check_loop(self, runner: LoopRunner) -> HealthReason:
        if not runner.is_running:
            return HealthReason.NOT_RUNNING if runner.has_started else HealthReason.NOT_STARTED
        if not getattr(runner.loop, "has_reached_store", True):
            return HealthReason.UNREACHABLE
        age = runner.elapsed()
        is_stale = self._stale_after is not None and age is not None and age > self._stale_after
        return HealthReason.STALE if is_stale else HealthReason.OK

    def _check_watchdog(self) -> HealthReason:
        not_live_after = self._not_live_after
        return (
            HealthReason.STALE
            if not_live_after is not None
            and any(age > not_live_after for _, age in self.beat_ages())
            else HealthReason.OK
        )

    def _check_started(self) -> HealthReason:
        return (
            HealthReason.OK
            if all(runner.has_started for runner in self.runners)
            else HealthReason.NOT_STARTED
        )

    def _loops_with_store(self) -> list[EngineLoop]:
        """The loops that have reached their store in this run."""
        found = (runner.loop for runner in self.runners if runner.is_running)
        return [loop for loop in found if isinstance(loop, EngineLoop) and loop.has_reached_store]

    def _loop_per_store(self) -> list[EngineLoop]:
        """One loop for each store."""
        found = (runner.loop for runner in self.runners)
        return list(
            {loop.store_identity: loop for loop in found if isinstance(loop, EngineLoop)}.values()
        )


def mailbox_gauges(name: str, stats: MailboxStats) -> list[Gauge]:
    """The gauges of a mailbox."""
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


def _read_mailbox(mailbox: Mailbox[Any]) -> list[Gauge]:
    return mailbox_gauges(mailbox.name, mailbox.stats())


def _check_store(loop: EngineLoop) -> HealthReason:
    try:
        loop.check_store()
    except (MailboxError, StoreError):
        return HealthReason.UNREACHABLE
    return HealthReason.OK
