"""Checks of commands that run inside the target, and of probe scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from longwatch.core.end_cause import EndCause
from longwatch.errors import SpawnError
from longwatch.host.process import KILL_NOW, StopPolicy
from longwatch.supervisor.target import LiveTarget
from longwatch.testing.target_suite.harness import (
    EXIT_COMMAND,
    HANGING_COMMAND,
    KILLED_COMMAND,
    MISSING_COMMAND,
    PRINT_COMMAND,
    SCRIPT_COMMAND,
    SCRIPT_NAME,
    TargetBehaviour,
)
from longwatch.testing.target_suite.kit import (
    KILL_CODE,
    LONG,
    RecordedLines,
    Subject,
    TargetKit,
    expect,
    expect_equal,
    turn_loop,
    within,
)

_NOT_FOUND_CODES = {126, 127}
_TIMEOUT = 1.0
"""The timeout of `exec`, after which a kind that cannot be reached kills the command itself."""
_CANCEL_TURNS = (0, 1, 2, 3, 5, 8)


async def a_command_ends_with_its_exit_code(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    before = await subject.processes()
    cause, _ = await _exec(live, EXIT_COMMAND)
    expect_equal(EndCause.exit(3), cause, "exec() gives the exit code")
    cause, _ = await _exec(live, KILLED_COMMAND)
    expect_equal(KILL_CODE, cause.exit_code, "exec() gives the signal, as such or as 128 + n")
    expect(live.is_running, "the target runs on")
    await subject.expect_processes(before, "a command that has ended leaves no process")


async def the_output_of_a_command_goes_to_its_own_sink(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    cause, output = await _exec(live, PRINT_COMMAND)
    expect_equal(EndCause.exit(0), cause, "exec() gives the exit code")
    expect_equal(["error", "one", "two"], sorted(output.lines), "exec() returns after all lines")
    expect(output.lines.index("one") < output.lines.index("two"), "the lines are in order")
    expect_equal(["ready"], subject.output.lines, "the lines are no output of the target")


async def a_command_that_does_not_exist_is_told_apart(kit: TargetKit) -> None:
    """exec() raises SpawnError or returns exit 126 or 127, as a kind does that runs commands
    through a runtime or under `timeout`.
    """
    subject, live = await kit.start(TargetBehaviour.RUNS)
    before = await subject.processes()
    try:
        cause, _ = await _exec(live, MISSING_COMMAND)
    except SpawnError as error:
        expect(str(error), "the error says why")
    else:
        expect(cause.exit_code in _NOT_FOUND_CODES, f"it ends with 126 or 127, not {cause}")
    expect(live.is_running, "the target runs on")
    await subject.expect_processes(before, "a command that does not exist leaves no process")


async def a_cancelled_command_leaves_no_process(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    before = await subject.processes()
    hanging, output = _begin_exec(live, HANGING_COMMAND)
    await output.wait_for("hanging")
    expect(await subject.processes() > before, "a command that runs is seen")
    hanging.cancel()
    await within(asyncio.wait({hanging}), "exec() ends when it is cancelled")
    expect(hanging.cancelled(), "a cancelled exec() raises CancelledError")
    await _expect_no_more(subject, before, "a cancelled exec() leaves no process")
    expect(live.is_running, "the target runs on")


async def a_command_cancelled_as_it_starts_leaves_no_process(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    before = await subject.processes()
    for turns in _CANCEL_TURNS:
        hanging, _ = _begin_exec(live, HANGING_COMMAND)
        await turn_loop(turns)
        hanging.cancel()
        await within(asyncio.wait({hanging}), "exec() ends when it is cancelled")
    await _expect_no_more(subject, before, "exec() cancelled as it starts leaves no process")


async def a_command_runs_while_the_target_is_being_stopped(kit: TargetKit) -> None:
    """exec() returns the exit code, or raises SpawnError. It neither hangs nor ends the stop."""
    subject, live = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    live.begin_stop(StopPolicy(grace=LONG))
    await subject.output.wait_for("signal 15")
    try:
        cause, _ = await _exec(live, EXIT_COMMAND)
    except SpawnError as error:
        expect(str(error), "the error says why")
    else:
        expect_equal(EndCause.exit(3), cause, "exec() gives the exit code")
    expect(live.is_running, "the stop goes on")
    end, _ = await subject.time_stop(live, KILL_NOW)
    expect_equal(KILL_CODE, end.cause.exit_code, "SIGKILL is the cause")


async def the_end_of_the_target_leaves_no_command(kit: TargetKit) -> None:
    """A command of a target that has ended either ends with it or goes on until it is cancelled."""
    subject, live = await kit.start(TargetBehaviour.RUNS)
    hanging, output = _begin_exec(live, HANGING_COMMAND)
    await output.wait_for("hanging")
    await subject.kill()
    await within(live.wait(), "wait() returns though a command still runs")
    hanging.cancel()
    await within(asyncio.wait({hanging}), "exec() ends when it is cancelled")
    await _expect_no_more(subject, 0, "nothing runs after the end of the target")


async def a_command_after_the_end_is_answered(kit: TargetKit) -> None:
    """exec() returns how the command ended, or raises SpawnError."""
    subject, live = await kit.start(TargetBehaviour.RUNS)
    await subject.kill()
    await within(live.wait(), "wait() returns once it was killed from outside")
    try:
        await _exec(live, EXIT_COMMAND)
    except SpawnError as error:
        expect(str(error), "the error says why")
    await subject.expect_processes(0, "a command after the end leaves no process")


async def a_probe_script_runs_in_its_directory(kit: TargetKit) -> None:
    _, live = await kit.start(TargetBehaviour.RUNS)
    cause, output = await _exec(live, SCRIPT_COMMAND, in_scripts=True)
    expect_equal(EndCause.exit(7), cause, "a probe script gives its exit code")
    expect_equal(["from the script"], output.lines, "its output goes to its own sink")


async def a_missing_probe_script_has_a_fault_and_a_present_one_has_none(kit: TargetKit) -> None:
    _, live = await kit.start(TargetBehaviour.RUNS)
    fault = await within(live.script_fault(SCRIPT_NAME), "script_fault() returns")
    expect_equal(None, fault, "a script that is there has no fault")
    fault = await within(live.script_fault(f"no-{SCRIPT_NAME}"), "script_fault() returns")
    expect(fault and f"no-{SCRIPT_NAME}" in fault, f"a missing script is named, not {fault!r}")


async def _exec(
    live: LiveTarget, argv: Sequence[str], *, in_scripts: bool = False
) -> tuple[EndCause, RecordedLines]:
    running, output = _begin_exec(live, argv, in_scripts=in_scripts)
    return await within(running, f"exec() of {argv} returns"), output


def _begin_exec(
    live: LiveTarget, argv: Sequence[str], *, in_scripts: bool = False
) -> tuple[asyncio.Task[EndCause], RecordedLines]:
    output = RecordedLines()
    work = live.exec(argv, output=output, in_scripts=in_scripts, timeout=_TIMEOUT)
    return asyncio.ensure_future(work), output


async def _expect_no_more(subject: Subject, count: int, rule: str) -> None:
    """Expect this many processes at once, or when the kind must have killed the command itself."""
    outlives = subject.harness.exec_outlives
    await subject.expect_processes(
        count, rule, within_seconds=_TIMEOUT + outlives if outlives else 0.0
    )


CHECKS = (
    a_command_ends_with_its_exit_code,
    the_output_of_a_command_goes_to_its_own_sink,
    a_command_that_does_not_exist_is_told_apart,
    a_cancelled_command_leaves_no_process,
    a_command_cancelled_as_it_starts_leaves_no_process,
    a_command_runs_while_the_target_is_being_stopped,
    the_end_of_the_target_leaves_no_command,
    a_command_after_the_end_is_answered,
    a_probe_script_runs_in_its_directory,
    a_missing_probe_script_has_a_fault_and_a_present_one_has_none,
)
