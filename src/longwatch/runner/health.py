"""The health checks of a runner, for the health server of the product.

| check | aspect | fails when |
|---|---|---|
| sse_connections | ready | no connection to an event source is established |
| circuit_breaker | ready | the work breaker is open, if that is to count |
| queue | ready | the queue of a source is full |
| draining | ready | a stop was requested |
| loop | live | the event loop has not turned for `max_beat_age` seconds |
| threads, tasks, memory | live | there are more than a configured limit |
| started | started | the runner has not begun to connect |

A runner that drains is live, with the text `Shutting down`: a 503 would make Kubernetes kill a pod
that finishes its work. Capacity is not checked: events that wait for a free agent are no fault.

Every check only reads memory and is quick, because a report runs all of them.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from longwatch.core.clock import Clock
from longwatch.core.health import Aspect, HealthAnswer, HealthCheck, HealthReason, Probe
from longwatch.core.heartbeat import Heartbeat
from longwatch.runner.policy import MEBIBYTE

MAX_BEAT_AGE = 30.0
_BEAT_INTERVAL = 1.0
_OK = HealthReason.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """The limits of a live process; None: no limit."""

    threads: int | None = None
    tasks: int | None = None
    rss_mb: int | None = None
    """Mebibytes of resident memory."""


class LoopBeat:
    """Beats once a second on the event loop, and counts the tasks of that loop."""

    def __init__(self, clock: Clock) -> None:
        self.heartbeat = Heartbeat(clock)
        self.tasks = 0
        self._clock = clock

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.heartbeat.beat()
            self.tasks = len(asyncio.all_tasks())
            await self._clock.sleep(_BEAT_INTERVAL)


class QueueDepths:
    """The last depth that was read of each source's queue. Thread-safe."""

    def __init__(self, read: Callable[[], Mapping[str, int]], *, max_depth: int) -> None:
        self._read = read
        self._max_depth = max_depth
        self._last: Mapping[str, int] = {}
        self._is_known = False

    def refresh(self) -> Mapping[str, int]:
        """Read the depths. Blocks on the store, and raises its errors."""
        try:
            self._last = self._read()
        except BaseException:
            self._is_known = False
            raise
        self._is_known = True
        return self._last

    def latest(self) -> Mapping[str, int]:
        """The last depths, without asking the store. Raises LookupError if it did not answer."""
        if not self._is_known:
            raise LookupError("the store has not answered")
        return self._last

    def full(self) -> list[str]:
        """The sources whose queue was full."""
        return [name for name, depth in self._last.items() if depth >= self._max_depth]


class RunnerHealth:
    """Makes the checks of one runner. The given functions must be thread-safe."""

    def __init__(  # noqa: PLR0913 - the functions that the checks call, each by name
        self,
        *,
        beat: LoopBeat,
        active_connections: Callable[[], int],
        is_breaker_open: Callable[[], bool],
        full_queues: Callable[[], list[str]],
        is_draining: Callable[[], bool],
        has_started: Callable[[], bool] = lambda: True,
        breaker_affects_readiness: bool = True,
        limits: ProcessLimits | None = None,
        max_beat_age: float = MAX_BEAT_AGE,
    ) -> None:
        self._beat = beat
        self._active_connections = active_connections
        self._is_breaker_open = is_breaker_open
        self._full_queues = full_queues
        self._is_draining = is_draining
        self._has_started = has_started
        self._breaker_affects_readiness = breaker_affects_readiness
        self._limits = limits or ProcessLimits()
        self._max_beat_age = max_beat_age

    def checks(self) -> Iterator[HealthCheck]:
        """The checks for a `HealthServer`."""
        yield _check("sse_connections", self._check_connections, Aspect.READY)
        if self._breaker_affects_readiness:
            yield _check("circuit_breaker", self._check_breaker, Aspect.READY)
        yield _check("queue", self._check_queues, Aspect.READY)
        yield _check("draining", self._check_draining, Aspect.READY)
        yield _check("started", self._check_started, Aspect.STARTED)
        yield _check("loop", self._check_loop, Aspect.LIVE)
        limits = self._limits
        for name, limit, count in (
            ("threads", limits.threads, threading.active_count),
            ("tasks", limits.tasks, lambda: self._beat.tasks),
            ("memory", limits.rss_mb, lambda: resident_bytes() // MEBIBYTE),
        ):
            if limit is not None:
                yield _check(name, partial(_check_limit, name, limit, count), Aspect.LIVE)

    def unready_reason(self) -> str:
        """Why it is not ready now: each failing check with its reason; empty if it is ready."""
        reasons = []
        for check in self.checks():
            if Aspect.READY in check.aspects and (answer := check.probe()) is not _OK:
                said = (
                    (answer.text or answer.reason) if isinstance(answer, HealthAnswer) else answer
                )
                reasons.append(f"{check.name}: {said}")
        return ", ".join(reasons)

    def _check_connections(self) -> HealthReason | HealthAnswer:
        if self._active_connections() > 0:
            return _OK
        return HealthAnswer(HealthReason.FAILED, "no active SSE connections")

    def _check_breaker(self) -> HealthReason | HealthAnswer:
        if not self._is_breaker_open():
            return _OK
        return HealthAnswer(HealthReason.FAILED, "circuit breaker is open")

    def _check_queues(self) -> HealthReason | HealthAnswer:
        full = sorted(self._full_queues())
        if not full:
            return _OK
        return HealthAnswer(HealthReason.FAILED, ", ".join(f"{name} is full" for name in full))

    def _check_draining(self) -> HealthReason:
        return HealthReason.DRAINING if self._is_draining() else _OK

    def _check_started(self) -> HealthReason:
        return _OK if self._has_started() else HealthReason.NOT_STARTED

    def _check_loop(self) -> HealthReason | HealthAnswer:
        if self._beat.heartbeat.elapsed() > self._max_beat_age:
            return HealthReason.STALE
        return HealthAnswer(_OK, "Shutting down") if self._is_draining() else _OK


def resident_bytes() -> int:
    """Return the resident memory of this process; its peak where /proc is missing."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _check(name: str, probe: Probe, aspect: Aspect) -> HealthCheck:
    return HealthCheck(name, probe, frozenset({aspect}), quick=True)


def _check_limit(name: str, limit: int, count: Callable[[], int]) -> HealthReason | HealthAnswer:
    found = count()
    if found <= limit:
        return _OK
    unit = " MiB" if name == "memory" else ""
    return HealthAnswer(HealthReason.FAILED, f"{found}{unit} of at most {limit}{unit}")
