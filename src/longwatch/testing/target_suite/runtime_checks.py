"""Checks of targets whose runtime does not answer: their state is unknown, and none has ended."""

from __future__ import annotations

import asyncio

from longwatch.errors import RuntimeUnreachableError, SpawnError
from longwatch.host.process import StopPolicy
from longwatch.testing.target_suite.harness import EXIT_COMMAND, TargetBehaviour
from longwatch.testing.target_suite.kit import (
    KILL_CODE,
    LONG,
    TERM_CODE,
    RecordedLines,
    TargetKit,
    expect,
    expect_equal,
    expect_error,
    stays,
    turn_loop,
    within,
)

_CUT_OFF_TURNS = (1, 2, 3, 5, 8, 13, 21)


async def a_target_does_not_end_because_its_runtime_does_not_answer(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    waiting = asyncio.ensure_future(live.wait())
    await kit.harness.cut_off()
    await stays(lambda: not waiting.done(), "wait() does not return while nothing is known")
    await kit.harness.reconnect()
    await stays(lambda: not waiting.done(), "wait() does not return for a target that ran on")
    expect(live.is_running, "it still runs")
    await subject.kill()
    end = await within(waiting, "wait() returns at its end")
    expect_equal(KILL_CODE, end.cause.exit_code, "SIGKILL is the cause")


async def an_end_while_the_runtime_does_not_answer_is_found_later(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    waiting = asyncio.ensure_future(live.wait())
    await kit.harness.cut_off()
    await subject.kill()
    await stays(lambda: not waiting.done(), "wait() does not return while nothing is known")
    await kit.harness.reconnect()
    end = await within(waiting, "wait() returns once the runtime answers again")
    expect_equal(KILL_CODE, end.cause.exit_code, "SIGKILL is the cause")


async def a_start_waits_for_the_runtime(kit: TargetKit) -> None:
    subject = await kit.make(TargetBehaviour.RUNS)
    await kit.harness.cut_off()
    starting = asyncio.ensure_future(subject.target.start())
    await stays(lambda: not starting.done(), "start() waits for a runtime that does not answer")
    await kit.harness.reconnect()
    live = await within(starting, "start() returns once the runtime answers")
    expect(live.is_running, "it runs after start()")


async def a_start_that_waits_for_the_runtime_can_be_cancelled(kit: TargetKit) -> None:
    subject = await kit.make(TargetBehaviour.RUNS)
    await kit.harness.cut_off()
    starting = asyncio.ensure_future(subject.target.start())
    await stays(lambda: not starting.done(), "start() waits for a runtime that does not answer")
    starting.cancel()
    await within(asyncio.wait({starting}), "a start that waits for the runtime can be cancelled")
    await kit.harness.reconnect()
    live = await subject.start()
    expect(live.is_running, "a later start works")


async def a_start_can_be_cancelled_wherever_the_runtime_stops_answering(kit: TargetKit) -> None:
    """Otherwise a supervisor could not stop while its runtime is gone."""
    for turns in _CUT_OFF_TURNS:
        subject = await kit.make(TargetBehaviour.RUNS)
        starting = asyncio.ensure_future(subject.target.start())
        await turn_loop(turns)
        await kit.harness.cut_off()
        await turn_loop(3)
        starting.cancel()
        await within(
            asyncio.wait({starting}),
            f"a start that is cut off after {turns} turns can be cancelled",
        )
        await kit.harness.reconnect()


async def a_stop_goes_on_once_the_runtime_answers(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    waiting = asyncio.ensure_future(live.wait())
    await kit.harness.cut_off()
    live.begin_stop(StopPolicy(grace=LONG))
    await stays(lambda: not waiting.done(), "wait() does not return while nothing is known")
    await kit.harness.reconnect()
    end = await within(waiting, "wait() returns once the runtime has stopped it")
    expect_equal(TERM_CODE, end.cause.exit_code, "SIGTERM is the cause")
    await subject.expect_processes(0, "nothing of it runs after wait()")


async def a_probe_is_neither_passed_nor_failed_while_the_runtime_does_not_answer(
    kit: TargetKit,
) -> None:
    """`exec` raises RuntimeUnreachableError, which a prober ignores, or SpawnError."""
    _, live = await kit.start(TargetBehaviour.RUNS)
    await kit.harness.cut_off()
    fault = await within(live.script_fault("no-such-script.sh"), "script_fault() returns")
    expect_equal(None, fault, "script_fault() is None while the script cannot be looked up")
    await expect_error(
        (RuntimeUnreachableError, SpawnError),
        live.exec(EXIT_COMMAND, output=RecordedLines(), in_scripts=False, timeout=1.0),
        "exec() raises while the runtime does not answer",
    )
    await kit.harness.reconnect()
    await stays(lambda: live.is_running, "it runs on")


CHECKS = (
    a_target_does_not_end_because_its_runtime_does_not_answer,
    an_end_while_the_runtime_does_not_answer_is_found_later,
    a_start_waits_for_the_runtime,
    a_start_that_waits_for_the_runtime_can_be_cancelled,
    a_start_can_be_cancelled_wherever_the_runtime_stops_answering,
    a_stop_goes_on_once_the_runtime_answers,
    a_probe_is_neither_passed_nor_failed_while_the_runtime_does_not_answer,
)
