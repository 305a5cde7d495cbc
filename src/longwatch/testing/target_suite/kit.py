"""The tools of a target check: its own targets, their output and assertions."""

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

TIMEOUT = 60.0
"""Real seconds after which a call counts as hanging."""
LONG = 300.0
"""A grace that no check waits for."""
SHORT = 0.5
TOLERANCE = 0.05
"""Seconds by which a measured time may be below the requested one."""
_POLL_SECONDS = 0.02

KILL_CODE = 137
TERM_CODE = 143


class RecordedLines:
    """A sink that records every line."""

    congested = False

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, data: bytes) -> bool:
        self.lines += data.decode().splitlines()
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        """Do nothing: this sink never blocks."""

    async def wait_for(self, line: str) -> None:
        """Wait until the line was printed."""
        await wait_until(lambda: line in self.lines, f"{line!r} is in its output")


class Subject:
    """One target under test, its output, and the harness's actions on it."""

    def __init__(self, harness: TargetHarness, target: Target, output: RecordedLines) -> None:
        self.harness = harness
        self.target = target
        self.output = output

    async def start(self) -> LiveTarget:
        """Start the target, and return once it has printed `ready`."""
        live = await within(self.target.start(), "start() returns once it runs")
        await self.output.wait_for("ready")
        return live

    async def remake(self) -> Subject:
        """Return a subject for the same target, as the next supervisor sees it."""
        output = RecordedLines()
        return Subject(self.harness, await self.harness.remake(self.target, output), output)

    async def kill(self) -> None:
        """Kill the target with SIGKILL from outside."""
        await self.harness.kill(self.target)

    async def processes(self) -> int:
        return await self.harness.count_processes(self.target)

    async def expect_processes(self, count: int, rule: str, *, within_seconds: float = 0.0) -> None:
        """Expect this many processes of the target now, or within `within_seconds`."""
        clock = SystemClock()
        end = clock.monotonic() + within_seconds
        while (found := await self.processes()) != count and clock.monotonic() < end:
            await clock.sleep(_POLL_SECONDS)
        expect_equal(count, found, rule)

    async def time_stop(self, live: LiveTarget, *policies: StopPolicy) -> tuple[ProcessEnd, float]:
        """Begin these stops in order. Return how the target ended, and after how long."""
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
        """Return a subject that runs and is ready."""
        subject = await self.make(behaviour)
        return subject, await subject.start()


def expect(condition: object, rule: str) -> None:
    """Raise AssertionError with the rule unless the condition holds, also under -O."""
    if not condition:
        raise AssertionError(f"rule broken: {rule}")


def expect_equal(expected: object, actual: object, rule: str) -> None:
    if expected != actual:
        raise AssertionError(f"rule broken: {rule}; expected {expected!r}, got {actual!r}")


async def expect_error(
    kinds: type[ErrorT] | tuple[type[ErrorT], ...], work: Awaitable[object], rule: str
) -> ErrorT:
    """Return the error that the call raises. Raises AssertionError if it is of another kind."""
    try:
        result = await within(work, rule)
    except kinds as error:
        return error
    except Exception as error:
        raise AssertionError(
            f"rule broken: {rule}; it raises {type(error).__name__}: {error}"
        ) from error
    raise AssertionError(f"rule broken: {rule}; it returns {result!r}")


async def within(work: Awaitable[T], rule: str) -> T:
    """Return the result of the call. Raises AssertionError if it takes longer than TIMEOUT."""
    try:
        async with asyncio.timeout(TIMEOUT):
            return await work
    except TimeoutError:
        raise AssertionError(f"rule broken: {rule}; it took longer than {TIMEOUT:g} s") from None


async def wait_until(condition: Callable[[], object], rule: str) -> None:
    clock = SystemClock()
    end = clock.monotonic() + TIMEOUT
    while not condition():
        expect(clock.monotonic() < end, rule)
        await clock.sleep(_POLL_SECONDS)


async def turn_loop(turns: int) -> None:
    """Yield to the event loop this many times."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def stays(condition: Callable[[], object], rule: str, *, seconds: float = SHORT) -> None:
    """Expect the condition to hold now and for this many seconds."""
    clock = SystemClock()
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        expect(condition(), rule)
        await clock.sleep(_POLL_SECONDS)
