"""Is a program healthy? One question at a time, answered within its timeout, counted per start.

`HealthChecker` asks in the way the policy says: HTTP, TCP, a command, or whether it has beaten.
`watch_health` decides when to ask, counts, and returns when the program has to go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol

from longwatch.core.clock import Clock
from longwatch.core.error_text import describe_error
from longwatch.core.sanitize import MAX_LINE_CHARS, printable
from longwatch.host.loop import wait_until_done
from longwatch.host.periodic import Cadence, run_every
from longwatch.host.process import ProcessSpec
from longwatch.supervisor.probers import ExecProber, HttpProber, ProcessSpawner, TcpProber
from longwatch.supervisor.probes import ExecProbe, HealthPolicy, HeartbeatProbe, HttpProbe, TcpProbe

OnHealthResult = Callable[[str | None, int], None]
"""Gets each answer, None for healthy, and the failures in a row so far."""


class Prober(Protocol):
    """One way to ask."""

    async def probe(self) -> str | None:
        """None if it is healthy, else why not. It may take for ever: cancelling it ends it, with
        all it has begun.
        """

    def timeout_reason(self, seconds: float) -> str:
        """What to say when there was no answer in so many seconds."""


class HealthChecker:
    """Asks one start of a program for its health, as the policy says. Used on the loop; make a
    new one for each start.
    """

    def __init__(
        self, policy: HealthPolicy, *, guardian: ProcessSpawner, process: ProcessSpec, clock: Clock
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._heartbeat = _HeartbeatProber(clock)
        self._prober = self._make_prober(guardian, process)
        self._startup_until = -inf

    async def check(self) -> str | None:
        """None if it is healthy, else why not; never raises.

        It takes no longer than the timeout, and for a command the moment until its killed tree is
        gone.
        """
        probing = asyncio.ensure_future(self._probe())
        try:
            await wait_until_done(probing, self.policy.timeout, self._clock)
        finally:
            probing.cancel()
            await asyncio.wait({probing})
        return (
            self._prober.timeout_reason(self.policy.timeout)
            if probing.cancelled()
            else probing.result()
        )

    def beat(self) -> None:
        """It has said `WATCHDOG=1`."""
        self._heartbeat.beat()

    def extend_startup(self, seconds: float) -> None:
        """Its start may take at least so long from now; nothing once it is over."""
        self._startup_until = max(self._startup_until, self._clock.monotonic() + seconds)

    def end_extension(self) -> None:
        """It has started: more time that it asked for is not needed any more."""
        self._startup_until = -inf

    def startup_left(self, started_at: float) -> float:
        """Seconds that one which began then has left for its start."""
        return (
            max(started_at + _startup_seconds(self.policy), self._startup_until)
            - self._clock.monotonic()
        )

    def _make_prober(self, guardian: ProcessSpawner, process: ProcessSpec) -> Prober:
        match self.policy.probe:
            case HttpProbe() as probe:
                return HttpProber(probe)
            case TcpProbe() as probe:
                return TcpProber(probe)
            case ExecProbe() as probe:
                return ExecProber(probe, guardian=guardian, process=process)
            case HeartbeatProbe():
                return self._heartbeat

    async def _probe(self) -> str | None:
        try:
            return await self._prober.probe()
        except Exception as error:  # noqa: BLE001 - a check that raises is a failed check, and is counted as one
            return printable(
                f"the check itself failed: {describe_error(error)}", max_chars=MAX_LINE_CHARS
            )


class _HeartbeatProber:
    """Has it beaten since it was last looked at?"""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_beat: float | None = None
        self._beat_since_probe = False

    def beat(self) -> None:
        self._last_beat = self._clock.monotonic()
        self._beat_since_probe = True

    async def probe(self) -> str | None:
        beaten, self._beat_since_probe = self._beat_since_probe, False
        if beaten:
            return None
        if self._last_beat is None:
            return "no WATCHDOG=1 yet"
        return (
            f"the last WATCHDOG=1 was {round(self._clock.monotonic() - self._last_beat, 1):g} s ago"
        )

    def timeout_reason(self, seconds: float) -> str:
        return f"not looked at in {seconds:g} s"


def _startup_seconds(policy: HealthPolicy) -> float:
    """How long a start may take by itself. One that beats as often as it is told to has not
    beaten before an interval is over.
    """
    if policy.startup is not None:
        return policy.startup
    return (
        max(policy.start_grace, policy.interval)
        if isinstance(policy.probe, HeartbeatProbe)
        else policy.start_grace
    )


async def watch_health(checker: HealthChecker, clock: Clock, on_result: OnHealthResult) -> str:
    """Ask for as long as it may stay, and return why it has to go.

    With a start grace the first question comes after it. With a startup probe it is asked at once
    and often: `on_result` then gets 0 failures whatever the answer, until it was healthy once. The
    counter belongs to this watch, so a restarted program starts at zero; questions never overlap.
    """
    return await _HealthWatch(checker, clock, on_result).run()


class _HealthWatch:
    """One watch: its counter, and what was last heard."""

    def __init__(self, checker: HealthChecker, clock: Clock, on_result: OnHealthResult) -> None:
        self._checker = checker
        self._policy = checker.policy
        self._clock = clock
        self._on_result = on_result
        self._started_at = clock.monotonic()
        self._failures = 0
        self._reason: str | None = "no answer yet"

    async def run(self) -> str:
        if self._policy.startup is None:
            await self._wait_start_grace()
        elif not await self._becomes_healthy():
            return (
                f"not healthy {round(self._clock.monotonic() - self._started_at, 1):g} s after its "
                f"start: {self._reason}"
            )
        # A startup probe has just asked.
        cadence = Cadence(interval=self._policy.interval, immediately=self._policy.startup is None)
        await run_every(cadence, self._check, name="health check", clock=self._clock)
        return (
            f"{self._failures} failed health check{'s in a row' if self._failures > 1 else ''}: "
            f"{self._reason}"
        )

    async def _wait_start_grace(self) -> None:
        while (left := self._checker.startup_left(self._started_at)) > 0:
            await self._clock.sleep(left)

    async def _becomes_healthy(self) -> bool:
        """Whether it was healthy once before its time to start was over."""
        cadence = Cadence(interval=self._policy.startup_interval)
        asking = asyncio.ensure_future(
            run_every(cadence, self._check_startup, name="startup probe", clock=self._clock)
        )
        try:
            while not asking.done() and (left := self._checker.startup_left(self._started_at)) > 0:
                await wait_until_done(asking, left, self._clock)
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        return not asking.cancelled()

    async def _check_startup(self) -> bool:
        self._reason = await self._checker.check()
        self._on_result(self._reason, 0)
        return self._reason is not None

    async def _check(self) -> bool:
        self._reason = await self._checker.check()
        self._failures = 0 if self._reason is None else self._failures + 1
        self._on_result(self._reason, self._failures)
        return self._failures < self._policy.failures
