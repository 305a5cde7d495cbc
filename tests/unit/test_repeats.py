"""Faults that repeat are shown three times on a console for people, then counted."""

from __future__ import annotations

import pytest

from longwatch.core.end_cause import EndCause
from longwatch.core.events.engine import WorkFailed
from longwatch.core.events.programs import (
    CircuitBreakerTripped,
    HealthCheckFailed,
    ProgramEnded,
    RestartScheduled,
)
from longwatch.core.fake_clock import FakeClock
from longwatch.observe.event_log import EventLog, LogSink, event_record
from longwatch.observe.log_format import to_json, to_pretty
from longwatch.observe.repeats import MAX_KINDS, QUIET_SECONDS, RepeatFilter, RepeatStream


class ConsoleLines:
    """A console, the filter in front of it, and a log of JSON lines beside it."""

    def __init__(self, *, colour: bool = False) -> None:
        self.clock = FakeClock()
        self.timers = 0
        self.repeats = RepeatFilter(clock=self.clock, on_counting=self._count_timer)
        self.lines: list[str] = []
        self.json: list[str] = []
        self._colour = colour
        self.log = EventLog(
            [
                LogSink(
                    writer=self.repeats.stream(self.write),
                    format_record=lambda record: to_pretty(record, colour=colour),
                ),
                LogSink(writer=self, format_record=to_json),
            ],
            clock=self.clock,
        )

    def write(self, data: bytes) -> bool:
        lines = data.decode().splitlines()
        (self.json if data.startswith(b"{") else self.lines).extend(lines)
        return True

    def summaries(self, seconds: float) -> list[str]:
        """The lines that are written by then, after those there are."""
        before = len(self.lines)
        self.clock.advance(seconds)
        self.repeats.write_summaries()
        return self.lines[before:]

    def _count_timer(self) -> None:
        self.timers += 1


@pytest.fixture
def console() -> ConsoleLines:
    return ConsoleLines()


def failed(number: int, error: str = "ValueError: no page", engine: str = "jobs") -> WorkFailed:
    return WorkFailed(
        engine=engine,
        message_id=f"m{number}",
        attempt=number,
        error=error,
        retry_in=number / 10,
        traceback=f"Traceback of m{number}\n  File x\n{error}",
    )


@pytest.mark.parametrize("colour", [False, True])
def test_the_first_three_are_shown_with_their_tracebacks_then_they_are_counted(
    colour: bool,  # noqa: FBT001
) -> None:
    console = ConsoleLines(colour=colour)
    for number in range(20):
        console.log(failed(number))
    assert [0, 1, 2] == [
        number for number in range(20) if f"message_id=m{number} " in "".join(console.lines)
    ]
    assert 3 * 4 == len(console.lines)
    [summary] = console.summaries(10)
    assert 'work_failed … and 17 more like this error="ValueError: no page"' in summary
    assert "warning" in summary


def test_the_log_in_json_has_every_line(console: ConsoleLines) -> None:
    for number in range(20):
        console.log(failed(number))
    assert 20 == len(console.json)


def test_another_reason_place_or_event_is_another_kind(console: ConsoleLines) -> None:
    for number in range(10):
        console.log(failed(number))
    shown = len(console.lines)
    other = (
        failed(1, error="KeyError: 'x'"),
        failed(1, engine="mails"),
        HealthCheckFailed(program="web", pid=1, reason="no answer", failures=1, threshold=3),
        HealthCheckFailed(program="api", pid=2, reason="no answer", failures=1, threshold=3),
    )
    for event in other:
        console.log(event)
    assert 4 + 4 + 1 + 1 == len(console.lines) - shown


def test_what_the_processes_of_a_worker_have_in_common_is_one_kind(console: ConsoleLines) -> None:
    for number in range(1, 9):
        console.log(
            HealthCheckFailed(
                program=f"jobs-{number}", pid=number, reason="stalled", failures=1, threshold=3
            )
        )
    assert 3 == len(console.lines)


def test_what_is_no_fault_and_what_needs_a_person_is_always_shown(console: ConsoleLines) -> None:
    for number in range(10):
        console.log(RestartScheduled(program="web", delay=1.0, failures=1, restarts_in_window=1))
        console.log(
            CircuitBreakerTripped(program="web", restarts=number, window=60.0, reason="exit 1")
        )
    assert 20 == len(console.lines)


def test_every_end_of_a_program_is_shown_at_once(console: ConsoleLines) -> None:
    """Backoff and breaker limit them, and each decides about a restart."""
    for _ in range(6):
        console.log(
            ProgramEnded(
                program="web",
                pid=7,
                verdict="unexpected_exit",
                cause=EndCause.exit(1),
                lasted=1.0,
                restart=True,
                killed=0,
                survivors=0,
            )
        )
    assert 6 == len(console.lines)


def test_summaries_become_rarer_and_stop_with_the_fault(console: ConsoleLines) -> None:
    for number in range(5):
        console.log(failed(number))
    assert 10 == console.repeats.next_delay()
    assert 1 == len(console.summaries(10))
    assert console.repeats.next_delay() is None
    console.log(failed(5))
    assert (2, 20) == (console.timers, console.repeats.next_delay())
    assert [] == console.summaries(19)
    assert "and 1 more like this" in console.summaries(1)[0]


def test_a_fault_that_was_quiet_for_long_is_shown_again(console: ConsoleLines) -> None:
    for number in range(5):
        console.log(failed(number))
    console.summaries(QUIET_SECONDS)
    before = len(console.lines)
    console.log(failed(6))
    assert len(console.lines) > before


def test_at_the_end_every_count_is_written(console: ConsoleLines) -> None:
    for number in range(4):
        console.log(failed(number))
    console.repeats.write_summaries(everything=True)
    assert "and 1 more like this" in console.lines[-1]


def test_lines_of_a_program_pass_as_they_are_between_faults() -> None:
    """Output that is no record in the pretty form is nothing that repeats."""
    console = ConsoleLines()
    stream: RepeatStream = console.repeats.stream(console.write)
    text = b"same\nsame\nsame\nsame\nsame\n" + b'{"level":"error","event":"x"}\n' * 5
    assert text == stream.reduce(text)


def test_a_traceback_in_a_later_block_is_left_out_with_its_record() -> None:
    console = ConsoleLines()
    stream = console.repeats.stream(console.write)
    line = to_pretty(event_record(failed(1), wall=0.0, manager_pid=1)).encode() + b"\n"
    head, _, rest = line.partition(b"\n")
    for _ in range(3):
        assert line == stream.reduce(line)
    assert b"" == stream.reduce(head + b"\n")
    assert b"next\n" == stream.reduce(rest + b"next\n")


def test_the_number_of_kinds_in_memory_is_bounded(console: ConsoleLines) -> None:
    for number in range(MAX_KINDS + 10):
        console.log(failed(1, error=f"ValueError: {number}"))
    assert MAX_KINDS == len(console.repeats._kinds)
