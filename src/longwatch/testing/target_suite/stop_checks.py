"""Checks of signals and stops: one signal, a grace, a kill."""

from __future__ import annotations

import signal

from longwatch.host.process import KILL_NOW, ProcessEnd, StopPolicy
from longwatch.supervisor.target import LiveTarget
from longwatch.testing.target_suite.harness import TargetBehaviour
from longwatch.testing.target_suite.kit import (
    KILL_CODE,
    LONG,
    SHORT,
    TERM_CODE,
    TOLERANCE,
    Subject,
    TargetKit,
    expect,
    expect_equal,
    within,
)

_SHORT_STOP = StopPolicy(grace=SHORT)
_LONG_STOP = StopPolicy(grace=LONG)
_EXTENSION = 3 * SHORT
_TERM_LINE = "signal 15"


async def a_stop_ends_it_by_its_signal(kit: TargetKit) -> None:
    """The cause is signal 15, or exit 143 for a target that handles it."""
    subject, live = await kit.start(TargetBehaviour.RUNS)
    end, seconds = await subject.time_stop(live, _LONG_STOP)
    expect_equal(TERM_CODE, end.cause.exit_code, "SIGTERM is the cause")
    expect(seconds < LONG / 2, f"a stop is over with its end, not after {seconds} s")
    expect(not (end.detached or end.stopped_elsewhere), "the stop of the supervisor is the cause")
    await subject.expect_processes(0, "nothing of it runs after wait()")


async def a_stop_is_one_signal_and_a_kill_after_the_grace(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    end, seconds = await subject.time_stop(live, _SHORT_STOP)
    _expect_killed(end)
    _expect_lasted(SHORT, seconds)
    expect_equal(1, subject.output.lines.count(_TERM_LINE), "a stop sends its signal once")
    await subject.expect_processes(0, "nothing of it runs after wait()")


async def a_stop_signal_can_be_another_one(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    end, _ = await subject.time_stop(live, StopPolicy(signal=signal.SIGUSR1, grace=SHORT))
    _expect_killed(end)
    expect_equal(["ready", "signal 10"], subject.output.lines, "only the stop signal is sent")


async def a_kill_sends_no_other_signal_and_waits_for_nothing(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    end, _ = await subject.time_stop(live, KILL_NOW)
    _expect_killed(end)
    expect_equal(["ready"], subject.output.lines, "a kill sends SIGKILL alone")
    await subject.expect_processes(0, "nothing of it runs after wait()")


async def a_second_stop_brings_the_kill_forward_and_sends_no_signal(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    await _begin_stop(subject, live, _LONG_STOP)
    end, seconds = await subject.time_stop(live, _SHORT_STOP)
    _expect_killed(end)
    _expect_lasted(SHORT, seconds)
    expect_equal(1, subject.output.lines.count(_TERM_LINE), "a second stop sends no signal")


async def a_second_stop_does_not_put_the_kill_off(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    end, seconds = await subject.time_stop(live, _SHORT_STOP, _LONG_STOP)
    _expect_killed(end)
    _expect_lasted(SHORT, seconds)
    expect_equal(1, subject.output.lines.count(_TERM_LINE), "a second stop sends no signal")


async def a_kill_ends_a_stop_at_once(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    await _begin_stop(subject, live, _LONG_STOP)
    end, seconds = await subject.time_stop(live, KILL_NOW)
    _expect_killed(end)
    expect(seconds < LONG / 2, f"a kill waits for no grace, but took {seconds} s")
    await subject.expect_processes(0, "nothing of it runs after wait()")


async def a_stop_can_be_extended(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    began = kit.harness.clock.monotonic()
    await _begin_stop(subject, live, StopPolicy(grace=2 * SHORT))
    live.extend_stop(_EXTENSION)
    live.extend_stop(0.0)
    end = await within(live.wait(), "wait() returns once the extended grace is over")
    _expect_killed(end)
    _expect_lasted(_EXTENSION, kit.harness.clock.monotonic() - began)


async def an_extension_changes_nothing_before_a_stop(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    live.extend_stop(LONG)
    end, seconds = await subject.time_stop(live, _SHORT_STOP)
    _expect_killed(end)
    _expect_lasted(SHORT, seconds)


async def a_signal_is_passed_on_and_it_runs_on(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.REPORTS_SIGNALS)
    for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):
        live.signal(signum)
        await subject.output.wait_for(f"signal {signum.value}")
    expect(live.is_running, "it runs on after signals that it handles")
    end, _ = await subject.time_stop(live, KILL_NOW)
    _expect_killed(end)


async def a_signal_that_ends_it_is_the_cause(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    live.signal(signal.SIGTERM)
    end = await within(live.wait(), "wait() returns once a signal has ended it")
    expect_equal(TERM_CODE, end.cause.exit_code, "SIGTERM is the cause")
    expect(not end.stopped_elsewhere, "a signal of the supervisor is no stop by an operator")
    await subject.expect_processes(0, "nothing of it runs after wait()")


async def a_stop_of_one_that_has_just_ended_gives_its_end(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    await subject.kill()
    end, seconds = await subject.time_stop(live, _LONG_STOP)
    _expect_killed(end)
    expect(seconds < LONG / 2, f"a stop after the end returns at once, not after {seconds} s")


async def _begin_stop(subject: Subject, live: LiveTarget, policy: StopPolicy) -> None:
    """Begin a stop, and return once its signal has arrived."""
    live.begin_stop(policy)
    await subject.output.wait_for(_TERM_LINE)


def _expect_killed(end: ProcessEnd) -> None:
    expect_equal(KILL_CODE, end.cause.exit_code, "SIGKILL is the cause")
    expect_equal(0, end.survivors, "SIGKILL leaves no survivors")


def _expect_lasted(grace: float, seconds: float) -> None:
    expect(
        grace - TOLERANCE <= seconds < LONG / 2,
        f"the kill comes after the grace of {grace} s, not after {seconds} s",
    )


CHECKS = (
    a_stop_ends_it_by_its_signal,
    a_stop_is_one_signal_and_a_kill_after_the_grace,
    a_stop_signal_can_be_another_one,
    a_kill_sends_no_other_signal_and_waits_for_nothing,
    a_second_stop_brings_the_kill_forward_and_sends_no_signal,
    a_second_stop_does_not_put_the_kill_off,
    a_kill_ends_a_stop_at_once,
    a_stop_can_be_extended,
    an_extension_changes_nothing_before_a_stop,
    a_signal_is_passed_on_and_it_runs_on,
    a_signal_that_ends_it_is_the_cause,
    a_stop_of_one_that_has_just_ended_gives_its_end,
)
