"""Checks of targets that survive their supervisor, and of targets that cannot."""

from __future__ import annotations

import asyncio
import signal

from longwatch.core.end_cause import EndCause
from longwatch.host.process import StopPolicy
from longwatch.supervisor.target import LiveTarget
from longwatch.testing.target_suite.harness import EXIT_COMMAND, TargetBehaviour
from longwatch.testing.target_suite.kit import (
    KILL_CODE,
    LONG,
    TERM_CODE,
    RecordedLines,
    Subject,
    TargetKit,
    expect,
    expect_equal,
    turn_loop,
    within,
)

_CLOCK_TOLERANCE = 1.0
"""Seconds by which the times of an adopted target may be wrong."""


async def there_is_nothing_to_adopt_before_a_start_and_after_an_end(kit: TargetKit) -> None:
    subject = await kit.make(TargetBehaviour.RUNS)
    expect_equal(None, await _adopt_any(subject), "adopt() before a start is None")
    await subject.expect_processes(0, "adopt() starts nothing")
    live = await subject.start()
    await subject.kill()
    await within(live.wait(), "wait() returns once it was killed from outside")
    following = await subject.remake()
    expect_equal(None, await _adopt_any(following), "adopt() after the end is None")
    await following.expect_processes(0, "adopt() starts nothing")


async def a_life_that_cannot_go_on_alone_is_neither_adopted_nor_detached(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    expect_equal(False, live.detach(), "detach() is False if it cannot outlive its supervisor")
    expect(live.is_running, "it runs on")
    expect_equal(None, await _adopt_any(subject), "adopt() is None if it cannot outlive it")
    end, _ = await subject.time_stop(live, StopPolicy(grace=LONG))
    expect_equal(TERM_CODE, end.cause.exit_code, "it can still be stopped")
    expect(not end.detached, "it was not detached")


async def the_next_supervisor_adopts_the_same_life(kit: TargetKit) -> None:
    subject, first = await kit.start(TargetBehaviour.RUNS)
    before = await subject.processes()
    following = await subject.remake()
    adopted = await _adopt(following)
    expect(adopted.is_running, "an adopted life runs")
    expect_equal(first.pid, adopted.pid, "an adopted life has the same pid")
    expect(
        abs(adopted.started_at - first.started_at) <= _CLOCK_TOLERANCE,
        f"an adopted life started when it did, at {first.started_at}, not {adopted.started_at}",
    )
    await following.expect_processes(before, "adopt() starts nothing and ends nothing")
    await following.kill()
    end = await within(adopted.wait(), "wait() of an adopted life returns at its end")
    age = kit.harness.clock.monotonic() - first.started_at
    expect_equal(KILL_CODE, end.cause.exit_code, "SIGKILL is the cause")
    expect(abs(age - end.lasted) <= _CLOCK_TOLERANCE, f"it lasted {age} s, not {end.lasted}")


async def adopting_twice_gives_the_same_life_twice(kit: TargetKit) -> None:
    subject, _ = await kit.start(TargetBehaviour.RUNS)
    following = await subject.remake()
    lives = [await _adopt(following), await _adopt(following)]
    await following.kill()
    ends = [await within(live.wait(), "every adopted life ends") for live in lives]
    expect_equal(ends[0].cause, ends[1].cause, "both have the same end")


async def an_adopted_life_can_be_stopped(kit: TargetKit) -> None:
    subject, _ = await kit.start(TargetBehaviour.RUNS)
    following = await subject.remake()
    adopted = await _adopt(following)
    end, _ = await following.time_stop(adopted, StopPolicy(grace=LONG))
    expect_equal(TERM_CODE, end.cause.exit_code, "SIGTERM is the cause")
    await following.expect_processes(0, "nothing of it runs after wait()")


async def an_adopted_life_prints_to_the_sink_of_its_new_target(kit: TargetKit) -> None:
    subject, _ = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    following = await subject.remake()
    adopted = await _adopt(following)
    adopted.signal(signal.SIGHUP)
    await following.output.wait_for("signal 1")
    expect_equal(["signal 1"], following.output.lines, "lines from before do not come again")


async def a_command_runs_in_an_adopted_life(kit: TargetKit) -> None:
    subject, _ = await kit.start(TargetBehaviour.RUNS)
    adopted = await _adopt(await subject.remake())
    cause = await within(
        adopted.exec(EXIT_COMMAND, output=RecordedLines(), in_scripts=False, timeout=LONG),
        "exec() in an adopted life returns",
    )
    expect_equal(EndCause.exit(3), cause, "exec() gives the exit code")


async def detach_leaves_it_running_and_ends_every_wait(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    before = await subject.processes()
    waiting = asyncio.ensure_future(live.wait())
    await turn_loop(3)
    expect_equal(True, live.detach(), "detach() is True if it can outlive its supervisor")
    end = await within(waiting, "wait() returns after detach()")
    expect(end.detached, "the end says that it was detached")
    late = await within(live.wait(), "a late wait() returns at once")
    expect_equal(end, late, "every wait() gives the same end")
    await subject.expect_processes(before, "a detached target runs on")
    following = await subject.remake()
    adopted = await _adopt(following)
    end, _ = await following.time_stop(adopted, StopPolicy(grace=LONG))
    expect_equal(TERM_CODE, end.cause.exit_code, "a supervisor that adopts it can stop it")


async def _adopt_any(subject: Subject) -> LiveTarget | None:
    return await within(subject.target.adopt(), "adopt() returns")


async def _adopt(subject: Subject) -> LiveTarget:
    adopted = await _adopt_any(subject)
    if adopted is None:
        raise AssertionError("rule broken: adopt() finds a target that an earlier supervisor left")
    return adopted


CHECKS = (there_is_nothing_to_adopt_before_a_start_and_after_an_end,)
LIVES_ON_CHECKS = (
    the_next_supervisor_adopts_the_same_life,
    adopting_twice_gives_the_same_life_twice,
    an_adopted_life_can_be_stopped,
    an_adopted_life_prints_to_the_sink_of_its_new_target,
    a_command_runs_in_an_adopted_life,
    detach_leaves_it_running_and_ends_every_wait,
)
DIES_WITH_US_CHECKS = (a_life_that_cannot_go_on_alone_is_neither_adopted_nor_detached,)
