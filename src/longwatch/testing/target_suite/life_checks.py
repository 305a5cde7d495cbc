"""Checks of one life of a target: its start, its output, its end."""

from __future__ import annotations

import asyncio
import json
import signal

from longwatch.core.end_cause import EndCause
from longwatch.errors import SpawnError, TargetRefusedError
from longwatch.host.process import KILL_NOW, StopPolicy
from longwatch.supervisor.target import LiveTarget
from longwatch.testing.target_suite.harness import PRINTED_LINES, TargetBehaviour
from longwatch.testing.target_suite.kit import (
    KILL_CODE,
    LONG,
    SHORT,
    TOLERANCE,
    Subject,
    TargetKit,
    expect,
    expect_equal,
    expect_error,
    stays,
    turn_loop,
    within,
)

_CANCEL_TURNS = (0, 1, 2, 3, 5, 8, 13, 40)
"""Numbers of loop turns after which a start is cancelled."""
_SETTLE_SECONDS = 5.0


async def start_returns_once_it_runs(kit: TargetKit) -> None:
    subject = await kit.make(TargetBehaviour.RUNS)
    await subject.expect_processes(0, "nothing of it runs before its start")
    before = kit.harness.clock.monotonic()
    live = await within(subject.target.start(), "start() returns once it runs")
    expect(live.is_running, "it is running after start()")
    expect(not live.is_paused, "it is not paused after start()")
    expect(await subject.processes() >= 1, "there is a process of it after start()")
    expect(live.pid is None or live.pid > 0, "its pid is a number above 0, or None")
    now = kit.harness.clock.monotonic()
    expect(
        before - 1.0 <= live.started_at <= now + TOLERANCE,
        f"started_at is when it started: between {before} and {now}, not {live.started_at}",
    )


async def wait_does_not_return_while_it_runs(kit: TargetKit) -> None:
    _, live = await kit.start(TargetBehaviour.RUNS)
    waiting = asyncio.ensure_future(live.wait())
    try:
        await stays(lambda: not waiting.done(), "wait() does not return while it runs")
        expect(live.is_running, "it is running until it ends")
    finally:
        waiting.cancel()


async def an_exit_code_is_the_cause_of_the_end(kit: TargetKit) -> None:
    subject = await kit.make(TargetBehaviour.EXITS)
    before = kit.harness.clock.monotonic()
    live = await within(subject.target.start(), "start() of a target that ends at once returns")
    end = await within(live.wait(), "wait() returns once it has ended")
    lasted_at_most = kit.harness.clock.monotonic() - before + TOLERANCE
    expect_equal(EndCause.exit(3), end.cause, "an exit code is the cause")
    expect(not live.is_running, "it is not running after its end")
    expect(
        0.0 <= end.lasted <= lasted_at_most,
        f"it lasted from 0 to {lasted_at_most} s, not {end.lasted}",
    )
    expect(not (end.detached or end.stopped_elsewhere), "it ended by itself")
    await subject.expect_processes(0, "nothing of it runs after wait()")


async def a_kill_from_outside_is_the_cause_of_the_end(kit: TargetKit) -> None:
    """The cause is signal 9, or exit 137 for a kind that only has exit codes."""
    subject, live = await kit.start(TargetBehaviour.RUNS)
    await subject.kill()
    end = await within(live.wait(), "wait() returns once it was killed from outside")
    expect_equal(KILL_CODE, end.cause.exit_code, "SIGKILL is the cause")
    expect(not (end.detached or end.stopped_elsewhere), "no operator stopped it")
    expect(not live.is_running, "it is not running after its end")
    await subject.expect_processes(0, "nothing of it runs after wait()")


async def every_caller_of_wait_gets_the_same_end(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    waiting = [asyncio.ensure_future(live.wait()) for _ in range(3)]
    await turn_loop(3)
    waiting[0].cancel()
    await turn_loop(3)
    expect(not any(task.done() for task in waiting[1:]), "cancelling one wait() ends no other")
    await subject.kill()
    ends = [await within(task, "every wait() returns") for task in waiting[1:]]
    late = await within(live.wait(), "a late wait() returns at once")
    expect(ends[0] == ends[1] == late, f"every wait() gives the same end, not {ends} and {late}")


async def a_next_start_is_a_new_life_and_the_former_end_stays(kit: TargetKit) -> None:
    subject, first = await kit.start(TargetBehaviour.RUNS)
    await subject.kill()
    end = await within(first.wait(), "wait() returns once it was killed from outside")
    subject.output.lines.clear()
    second = await subject.start()
    expect(second.is_running, "it runs after a second start()")
    expect(not first.is_running, "its first life does not run again")
    expect_equal(end, await within(first.wait(), "a late wait() returns"), "its first end stays")
    expect(
        second.started_at >= first.started_at + end.lasted - TOLERANCE,
        "its second life starts after the end of the first",
    )


async def lines_reach_the_sink_live_and_in_order(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.PRINTS)
    expect(live.is_running, "its lines reach the sink while it runs")
    expect_equal([*PRINTED_LINES, "ready"], subject.output.lines, "its lines come in order")


async def the_last_words_reach_the_sink(kit: TargetKit) -> None:
    subject = await kit.make(TargetBehaviour.EXITS)
    live = await within(subject.target.start(), "start() of a target that ends at once returns")
    await within(live.wait(), "wait() returns once it has ended")
    await subject.output.wait_for("last words")


async def a_second_life_does_not_repeat_the_lines_of_the_first(kit: TargetKit) -> None:
    subject, first = await kit.start(TargetBehaviour.PRINTS)
    await subject.kill()
    await within(first.wait(), "wait() returns once it was killed from outside")
    subject.output.lines.clear()
    await subject.start()
    expect_equal([*PRINTED_LINES, "ready"], subject.output.lines, "each line comes once")


async def a_start_that_fails_can_be_tried_again(kit: TargetKit) -> None:
    subject = await kit.make(TargetBehaviour.CANNOT_START)
    for _ in range(2):
        error = await expect_error(
            SpawnError, subject.target.start(), "start() raises SpawnError if it cannot start"
        )
        expect(not isinstance(error, TargetRefusedError), "a retryable start is not refused")
        expect(str(error), "the error says why")
    await subject.expect_processes(0, "a start that failed leaves nothing running")
    expect(await subject.target.adopt() is None, "a start that failed leaves nothing to adopt")
    await kit.harness.repair(subject.target)
    live = await subject.start()
    expect(live.is_running, "a later start works")


async def a_target_that_is_refused_for_good_says_so(kit: TargetKit) -> None:
    if not kit.harness.can_refuse:
        return
    subject = await kit.make(TargetBehaviour.REFUSED)
    error = await expect_error(
        TargetRefusedError,
        subject.target.start(),
        "start() raises TargetRefusedError if no retry would succeed",
    )
    expect(str(error), "the error says why")


async def a_cancelled_start_leaves_nothing_that_adopt_does_not_find(kit: TargetKit) -> None:
    """A start that is cancelled may raise CancelledError or still return the life."""
    for turns in _CANCEL_TURNS:
        subject = await kit.make(TargetBehaviour.RUNS)
        starting = asyncio.ensure_future(subject.target.start())
        await turn_loop(turns)
        starting.cancel()
        await within(asyncio.wait({starting}), "a start that is cancelled ends")
        live = await _life_after(subject, starting)
        live.begin_stop(KILL_NOW)
        await within(live.wait(), "wait() returns once it was killed")
        await subject.expect_processes(
            0,
            f"a start cancelled after {turns} turns leaves only processes that adopt() finds",
            within_seconds=_SETTLE_SECONDS,
        )


async def _life_after(subject: Subject, starting: asyncio.Task[LiveTarget]) -> LiveTarget:
    """Return the life that a supervisor has next: the started, else an adopted, else a new one."""
    if not starting.cancelled():
        return starting.result()
    adopted = await within(subject.target.adopt(), "adopt() returns")
    if adopted is not None:
        return adopted
    return await within(subject.target.start(), "start() after a cancelled one returns")


async def facts_are_plain_json(kit: TargetKit) -> None:
    _, live = await kit.start(TargetBehaviour.RUNS)
    facts = live.facts()
    expect_equal(facts, json.loads(json.dumps(facts)), "facts() are plain JSON types")


async def a_port_has_an_address_or_none_for_a_reason(kit: TargetKit) -> None:
    _, live = await kit.start(TargetBehaviour.RUNS)
    try:
        host, port = await within(live.probe_address(8080), "probe_address() returns")
    except SpawnError as error:
        expect(str(error), "the error says why the port cannot be reached")
    else:
        expect(host and port > 0, f"a port is reached at an address, not {host}:{port}")


async def everything_may_be_called_after_its_end(kit: TargetKit) -> None:
    subject, live = await kit.start(TargetBehaviour.RUNS)
    await subject.kill()
    end = await within(live.wait(), "wait() returns once it was killed from outside")
    live.signal(signal.SIGTERM)
    live.begin_stop(StopPolicy(grace=LONG))
    live.extend_stop(SHORT)
    live.begin_stop(KILL_NOW)
    live.facts()
    expect(not live.is_running, "it is not running after its end")
    expect_equal(end, await within(live.wait(), "wait() returns at once"), "its end stays")
    await turn_loop(20)
    await subject.expect_processes(0, "nothing runs after all that")


CHECKS = (
    start_returns_once_it_runs,
    wait_does_not_return_while_it_runs,
    an_exit_code_is_the_cause_of_the_end,
    a_kill_from_outside_is_the_cause_of_the_end,
    every_caller_of_wait_gets_the_same_end,
    a_next_start_is_a_new_life_and_the_former_end_stays,
    lines_reach_the_sink_live_and_in_order,
    the_last_words_reach_the_sink,
    a_second_life_does_not_repeat_the_lines_of_the_first,
    a_start_that_fails_can_be_tried_again,
    a_target_that_is_refused_for_good_says_so,
    a_cancelled_start_leaves_nothing_that_adopt_does_not_find,
    facts_are_plain_json,
    a_port_has_an_address_or_none_for_a_reason,
    everything_may_be_called_after_its_end,
)
