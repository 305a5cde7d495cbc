"""Is a program healthy? One question at a time, answered within its timeout, counted per start.

`Checker` asks in the way the policy says: HTTP, TCP, a command, or whether it has beaten. `watch`
decides when to ask, counts, and returns when the program has to go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol

from longwatch.core.clock import Clock
from longwatch.host.patience import settled_within
from longwatch.host.periodic import Cadence, every
from longwatch.host.process import ProcessSpec
from longwatch.supervisor.connection_checks import HttpCheck, TcpCheck
from longwatch.supervisor.exec_check import ExecCheck, Spawner
from longwatch.supervisor.one_line import one_line
from longwatch.supervisor.probes import ExecProbe, HealthPolicy, HeartbeatProbe, HttpProbe, TcpProbe

Heard = Callable[[str | None, int], None]
"""Gets each answer, None for healthy, and the failures in a row so far."""


class Check(Protocol):
    """One way to ask."""

    async def ask(self) -> str | None:
        """None if it is healthy, else why not. It may take for ever: cancelling it ends it, with
        all it has begun.
        """

    def overran(self, seconds: float) -> str:
        """What to say when there was no answer in so many seconds."""


class Checker:
    """Asks one start of a program for its health, as the policy says. Used on the loop; make a
    new one for each start.
    """

    def __init__(
        self, policy: HealthPolicy, *, guardian: Spawner, process: ProcessSpec, clock: Clock
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._beats = _Beats(clock)
        self._check = self._made(guardian, process)
        self._extended_to = -inf

    async def ask(self) -> str | None:
        """None if it is healthy, else why not; never raises.

        It takes no longer than the timeout, and for a command the moment until its killed tree is
        gone.
        """
        asking = asyncio.ensure_future(self._answer())
        try:
            await settled_within(asking, self.policy.timeout, self._clock)
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        return self._check.overran(self.policy.timeout) if asking.cancelled() else asking.result()

    def beat(self) -> None:
        """It has said `WATCHDOG=1`."""
        self._beats.beat()

    def extend_startup(self, seconds: float) -> None:
        """Its start may take at least so long from now; nothing once it is over."""
        self._extended_to = max(self._extended_to, self._clock.monotonic() + seconds)

    def end_extension(self) -> None:
        """It has started: more time that it asked for is not needed any more."""
        self._extended_to = -inf

    def startup_left(self, began: float) -> float:
        """Seconds that one which began then has left for its start."""
        return max(began + _startup(self.policy), self._extended_to) - self._clock.monotonic()

    def _made(self, guardian: Spawner, process: ProcessSpec) -> Check:
        match self.policy.probe:
            case HttpProbe() as probe:
                return HttpCheck(probe)
            case TcpProbe() as probe:
                return TcpCheck(probe)
            case ExecProbe() as probe:
                return ExecCheck(probe, guardian=guardian, process=process)
            case HeartbeatProbe():
                return self._beats

    async def _answer(self) -> str | None:
        try:
            return await self._check.ask()
        except Exception as error:  # noqa: BLE001 - a check that raises is a failed check, and is counted as one
            return one_line(f"the check itself failed: {type(error).__name__}: {error}")


class _Beats:
    """Has it beaten since it was last looked at?"""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: float | None = None
        self._fresh = False

    def beat(self) -> None:
        self._last = self._clock.monotonic()
        self._fresh = True

    async def ask(self) -> str | None:
        fresh, self._fresh = self._fresh, False
        if fresh:
            return None
        if self._last is None:
            return "no WATCHDOG=1 yet"
        return f"the last WATCHDOG=1 was {round(self._clock.monotonic() - self._last, 1):g} s ago"

    def overran(self, seconds: float) -> str:
        return f"not looked at in {seconds:g} s"


def _startup(policy: HealthPolicy) -> float:
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


async def watch(checker: Checker, clock: Clock, heard: Heard) -> str:
    """Ask for as long as it may stay, and return why it has to go.

    With a start grace the first question comes after it. With a startup probe it is asked at once
    and often: `heard` then gets 0 failures whatever the answer, until it was healthy once. The
    counter belongs to this watch, so a restarted program starts at zero; questions never overlap.
    """
    return await _Watch(checker, clock, heard).to_its_end()


class _Watch:
    """One watch: its counter, and what was last heard."""

    def __init__(self, checker: Checker, clock: Clock, heard: Heard) -> None:
        self._checker = checker
        self._policy = checker.policy
        self._clock = clock
        self._heard = heard
        self._began = clock.monotonic()
        self._failures = 0
        self._reason: str | None = "no answer yet"

    async def to_its_end(self) -> str:
        if self._policy.startup is None:
            await self._grace()
        elif not await self._starts_up():
            return (
                f"not healthy {round(self._clock.monotonic() - self._began, 1):g} s after its "
                f"start: {self._reason}"
            )
        # A startup probe has just asked.
        cadence = Cadence(interval=self._policy.interval, immediately=self._policy.startup is None)
        await every(cadence, self._ask, name="health check", clock=self._clock)
        return (
            f"{self._failures} failed health check{'s in a row' if self._failures > 1 else ''}: "
            f"{self._reason}"
        )

    async def _grace(self) -> None:
        while (left := self._checker.startup_left(self._began)) > 0:
            await self._clock.sleep(left)

    async def _starts_up(self) -> bool:
        """Whether it was healthy once before its time to start was over."""
        cadence = Cadence(interval=self._policy.startup_interval)
        asking = asyncio.ensure_future(
            every(cadence, self._ask_starting, name="startup probe", clock=self._clock)
        )
        try:
            while not asking.done() and (left := self._checker.startup_left(self._began)) > 0:
                await settled_within(asking, left, self._clock)
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        return not asking.cancelled()

    async def _ask_starting(self) -> bool:
        self._reason = await self._checker.ask()
        self._heard(self._reason, 0)
        return self._reason is not None

    async def _ask(self) -> bool:
        self._reason = await self._checker.ask()
        self._failures = 0 if self._reason is None else self._failures + 1
        self._heard(self._reason, self._failures)
        return self._failures < self._policy.failures
