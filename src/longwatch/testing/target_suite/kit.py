"""What a check of a target works with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from longwatch.core.clock import SystemClock
from longwatch.host.process import ProcessEnd, StopPolicy
from longwatch.supervisor.target import LiveTarget, Target
from longwatch.testing.target_suite.harness import TargetBehaviour, TargetHarness

T = TypeVar("T")
ErrorT = TypeVar("ErrorT", bound=BaseException)

TIMEOUT = 20.0
"""Real seconds after which something that should have happened counts as hanging."""
LONG = 60.0
"""A grace that no check waits for."""
SHORT = 0.5
TOLERANCE = 0.05
"""Seconds that a measured time may be below the one that was asked for."""
_POLL_SECONDS = 0.02

KILL_CODE = 137
TERM_CODE = 143


class RecordedLines:
    """A sink that keeps every line."""

    congested = False

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, data: bytes) -> bool:
        self.lines += data.decode().splitlines()
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        """Nothing ever holds it up."""

    async def wait_for(self, line: str) -> None:
        """Return once the line was printed."""
        await wait_until(lambda: line in self.lines, f"{line!r} is in its output")


class Subject:
    """One target under test, its output, and what the harness can do to it."""

    def __init__(self, harness: TargetHarness, target: Target, output: RecordedLines) -> None:
        self.harness = harness
        self.target = target
        self.output = output

    async def start(self) -> LiveTarget:
        """Start it, and return once it has printed `ready`."""
        live = await within(self.target.start(), "start() returns once it runs")
        await self.output.wait_for("ready")
        return live

    async def remake(self) -> Subject:
        """The same thing, as the next supervisor sees it."""
        output = RecordedLines()
        return Subject(self.harness, await self.harness.remake(self.target, output), output)

    async def kill(self) -> None:
        """SIGKILL from outside."""
        await self.harness.kill(self.target)

    async def processes(self) -> int:
        return await self.harness.count_processes(self.target)

    async def expect_processes(self, count: int, rule: str, *, within_seconds: float = 0.0) -> None:
        """There are so many processes of it now, or within so many seconds."""
        clock = SystemClock()
        end = clock.monotonic() + within_seconds
        while (found := await self.processes()) != count and clock.monotonic() < end:
            await clock.sleep(_POLL_SECONDS)
        expect_equal(count, found, rule)

    async def time_stop(self, live: LiveTarget, *policies: StopPolicy) -> tuple[ProcessEnd, float]:
        """Begin these stops one after the other; how it ended, and how long that took."""
        began = self.harness.clock.monotonic()
        for policy in policies:
            live.begin_stop(policy)
        end = await within(live.wait(), "wait() returns once a stop is over")
        return end, self.harness.clock.monotonic() - began


class TargetKit:
    """The subjects of one check."""

    def __init__(self, harness: TargetHarness) -> None:
        self.harness = harness

    async def make(self, behaviour: TargetBehaviour) -> Subject:
        output = RecordedLines()
        return Subject(self.harness, await self.harness.make(behaviour, output), output)

    async def start(self, behaviour: TargetBehaviour) -> tuple[Subject, LiveTarget]:
        """A subject that runs and is ready."""
        subject = await self.make(behaviour)
        return subject, await subject.start()


def expect(condition: object, rule: str) -> None:
    """An assert that also holds under -O."""
    if not condition:
        raise AssertionError(f"not so: {rule}")


def expect_equal(expected: object, actual: object, rule: str) -> None:
    if expected != actual:
        raise AssertionError(f"not so: {rule}; expected {expected!r}, got {actual!r}")


async def expect_error(
    kinds: type[ErrorT] | tuple[type[ErrorT], ...], work: Awaitable[object], rule: str
) -> ErrorT:
    """The error that the call raises, which is of such a kind."""
    try:
        result = await within(work, rule)
    except kinds as error:
        return error
    except Exception as error:
        raise AssertionError(
            f"not so: {rule}; it raises {type(error).__name__}: {error}"
        ) from error
    raise AssertionError(f"not so: {rule}; it returns {result!r}")


async def within(work: Awaitable[T], rule: str) -> T:
    """The result of the call, which comes in time."""
    try:
        async with asyncio.timeout(TIMEOUT):
            return await work
    except TimeoutError:
        raise AssertionError(f"not so: {rule}; it has not within {TIMEOUT:g} s") from None


async def wait_until(condition: Callable[[], object], rule: str) -> None:
    clock = SystemClock()
    end = clock.monotonic() + TIMEOUT
    while not condition():
        expect(clock.monotonic() < end, rule)
        await clock.sleep(_POLL_SECONDS)


async def turn_loop(turns: int) -> None:
    """Let everything else on the loop go on for so many turns."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def stays(condition: Callable[[], object], rule: str, *, seconds: float = SHORT) -> None:
    """It holds now and for so long."""
    clock = SystemClock()
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        expect(condition(), rule)
        await clock.sleep(_POLL_SECONDS)
