from __future__ import annotations

import dataclasses
import json
import logging
import os
import pkgutil
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core import events
from longwatch.core.end_cause import EndCause
from longwatch.core.events.base import Event, Events, Level
from longwatch.core.events.engine import WorkFailed
from longwatch.core.events.programs import ProgramEnded, ProgramStarted, RestartScheduled
from longwatch.core.events.supervisor import SettingsLoaded, SupervisorStarted
from longwatch.core.fake_clock import FakeClock
from longwatch.core.traceback_text import MAX_TRACEBACK_BYTES
from longwatch.engine.event_logging import log_event
from longwatch.observe.event_log import (
    EventLog,
    JsonFormatter,
    LogSink,
    PrettyFormatter,
    dropped_lines_record,
    event_record,
    redirect_logging,
)
from longwatch.observe.log_format import MAX_RECORD_CHARS, to_json, to_pretty, wants_colour

NASTY = 'a\n{"event":"forged"}\r\x1b[2J\u2028\u2029\x85\x00\udcff\U0001f600"\\'
any_text = st.text(st.characters(), max_size=200) | st.just(NASTY)  # surrogates included


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd(Event):
    default_level: ClassVar[Level] = Level.WARNING

    value: object


class Lines:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> bool:
        self.data += data
        return True

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data.splitlines()]


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def logged(event: Event) -> dict[str, Any]:
    lines = Lines()
    EventLog([LogSink(writer=lines, level=Level.DEBUG)], clock=FakeClock(), manager_pid=7)(event)
    (record,) = lines.records
    return record


def started(**changes: Any) -> ProgramStarted:
    return dataclasses.replace(
        ProgramStarted(program="web", pid=42, command=("serve",), start_number=1), **changes
    )


def test_a_record_has_time_level_name_and_pids_first_and_then_the_events_fields() -> None:
    record = logged(started())

    assert {
        "ts": "2027-01-15T08:00:00.000Z", "level": "info", "event": "program_started",
        "pid": 42, "managerPid": 7, "program": "web", "command": ["serve"], "start_number": 1,
    } == record  # fmt: skip
    assert ["ts", "level", "event", "pid", "managerPid"] == list(record)[:5]


def test_an_event_about_no_process_carries_our_own_pid() -> None:
    assert (
        os.getpid()
        == logged(RestartScheduled(program="web", delay=1, failures=1, restarts_in_window=1))["pid"]
    )


def test_an_end_is_written_in_its_one_spelling_and_durations_to_the_millisecond() -> None:
    ended = ProgramEnded(
        program="web",
        pid=None,
        verdict="clean_exit",
        cause=EndCause.signal(9),
        lasted=1.23456,
        restart=True,
    )
    record = logged(ended)

    assert ("clean_exit", "signal 9", 1.235, os.getpid()) == (
        record["event"],
        record["cause"],
        record["lasted"],
        record["pid"],
    )


def test_secrets_in_commands_and_settings_are_masked() -> None:
    record = logged(started(command=("serve", "--token", "s3cret")))
    settings = logged(
        SettingsLoaded(settings={"env": {"API_KEY": "s3cret"}, "url": "a://u:s3cret@h"})
    )

    assert "s3cret" not in json.dumps([record, settings])


def test_no_field_of_an_event_can_take_the_place_of_the_head() -> None:
    head = {"ts", "level", "event", "managerPid"}
    classes = [
        value
        for found in pkgutil.iter_modules(events.__path__, f"{events.__name__}.")
        for value in vars(import_module(found.name)).values()
        if isinstance(value, type) and issubclass(value, Event)
    ]

    assert len(classes) > 50
    assert [] == [
        kind for kind in classes if head & {field.name for field in dataclasses.fields(kind)}
    ]


@given(text=any_text)
def test_any_text_in_any_event_round_trips_as_one_json_line_of_plain_ascii(text: str) -> None:
    lines = Lines()
    EventLog([LogSink(writer=lines)], clock=FakeClock())(Odd(value=[text, {"key": text}]))
    (record,) = lines.records

    assert lines.data.isascii()
    assert lines.data.endswith(b"\n")
    assert 1 == len(lines.data.decode().splitlines())
    readable = text.encode(errors="backslashreplace").decode()
    assert "@" in text or "=" in text or "-" in text or readable == record["value"][0]


SPECIAL_KEYS = {"ts", "level", "event", "traceback"}
"""Keys whose values are not shown as `key=value`."""


@given(text=any_text.filter(lambda text: text not in SPECIAL_KEYS), colour=st.booleans())
def test_any_text_is_one_printable_line_in_the_pretty_form(text: str, colour: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    line = to_pretty(
        {
            "ts": text,
            "level": "info",
            "event": text,
            text: text,
            "list": [text],
            "map": {text: text},
        },
        colour=colour,
    )

    assert line.replace("\x1b[32m", "", 1).replace("\x1b[0m", "", 1).isprintable()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | any_text,
        lambda inner: st.lists(inner) | st.dictionaries(any_text, inner),
    )
)
def test_any_value_becomes_a_line_that_parses_strictly(value: object) -> None:
    lines = Lines()
    EventLog([LogSink(writer=lines)], clock=FakeClock())(Odd(value=value))

    assert "odd" == json.loads(lines.data, parse_constant=pytest.fail)["event"]


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10_000_000,
        ["x" * 5000] * 5000,
        {str(n): "é" * 999 for n in range(999)},
        "\U0001f600" * 20_000,
    ],
    ids=["text", "list", "mapping", "astral"],
)
def test_a_huge_record_is_cut_to_its_limit_and_says_so(value: object) -> None:
    line = to_json({"ts": "t", "event": "odd", "value": value})

    assert len(line) <= MAX_RECORD_CHARS
    assert "more" in json.loads(line)["value"] or "more" in line


def test_a_record_that_cannot_be_cut_down_keeps_its_head() -> None:
    record = {"ts": "t", "event": "odd", **{f"field{n}": "x" * 200 for n in range(10_000)}}

    assert {"ts": "t", "event": "odd", "truncated": True} == json.loads(to_json(record))


def test_a_value_nested_without_end_is_cut() -> None:
    endless: list[object] = []
    endless.append(endless)

    assert "…" in str(logged(Odd(value=endless))["value"])


@pytest.mark.parametrize(
    "value", [Unspeakable(), {"key": [Unspeakable()]}, 10**5000], ids=["object", "deep", "number"]
)
def test_a_record_that_cannot_be_made_becomes_one_that_says_so(value: object) -> None:
    record = logged(Odd(value=value))

    assert ("log_record_failed", "error", "Odd") == (
        record["event"],
        record["level"],
        record["source"],
    )


def test_a_writer_that_fails_keeps_no_line_from_the_others() -> None:
    class Broken:
        def write(self, data: bytes) -> bool:
            raise OSError

    lines = Lines()
    fan = Events(EventLog([LogSink(writer=Broken()), LogSink(writer=lines)], clock=FakeClock()))
    fan.emit(started())

    assert ("program_started", 0) == (lines.records[0]["event"], fan.failures)


@pytest.mark.parametrize(
    ("level", "names"),
    [(Level.DEBUG, ["program_started", "odd"]), (Level.WARNING, ["odd"]), (Level.ERROR, [])],
)
def test_each_sink_gets_only_what_is_loud_enough_for_it(level: Level, names: list[str]) -> None:
    lines = Lines()
    log = EventLog(
        [LogSink(writer=lines, level=level), LogSink(writer=Lines(), level=Level.DEBUG)],
        clock=FakeClock(),
    )
    log(started())
    log(Odd(value=1))

    assert names == [record["event"] for record in lines.records]


def test_the_pretty_form_reads_as_time_level_event_and_fields() -> None:
    record = {
        "ts": "2027-01-15T08:00:00.000Z",
        "level": "warning",
        "event": "odd",
        "pid": 7,
        "managerPid": 7,
        "n": 1,
        "text": "a b",
        "list": [1],
    }
    when, line = to_pretty(record).split(" ", 1)

    assert ":00:00.000" == when[2:]
    assert 'warning  odd n=1 text="a b" list=[1]' == line


@pytest.mark.parametrize("event", ["supervisor_started", "runner_started"])
def test_the_pretty_form_of_a_start_names_the_pid_that_a_signal_goes_to(event: str) -> None:
    record = {"ts": "", "level": "info", "event": event, "pid": 7, "managerPid": 7}
    assert f"info     {event} pid=7" == to_pretty(record).strip()


def test_colours_are_for_terminals_only_and_only_if_nobody_asked_for_none() -> None:
    reader, terminal = pty.openpty()
    pipe_reader, pipe = os.pipe()
    try:
        asked = [
            wants_colour(fd, env)
            for fd in (terminal, pipe)
            for env in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": ""})
        ]
    finally:
        for fd in (reader, terminal, pipe_reader, pipe):
            os.close(fd)

    assert [True, False, False, True, False, False, False, False] == asked
    assert not wants_colour(terminal, {})  # closed by now


@contextmanager
def taken_over() -> Iterator[Lines]:
    """Everything logged through stdlib logging meanwhile."""
    kept = Lines()
    put_back = redirect_logging(
        EventLog([LogSink(writer=kept, level=Level.DEBUG)], clock=FakeClock(), manager_pid=7)
    )
    try:
        yield kept
    finally:
        put_back()


def test_stdlib_log_calls_become_records_with_their_extra_values() -> None:
    with taken_over() as lines:
        logging.getLogger("some.library").warning(
            "slow %s", "disk", extra={"seconds": 3, "token": "s3cret", "event": "forged"}
        )
    (record,) = lines.records

    expected = {
        "level": "warning",
        "event": "log",
        "pid": os.getpid(),
        "managerPid": 7,
        "logger": "some.library",
        "message": "slow disk",
    }
    assert expected | {"seconds": 3, "token": "***"} == {
        key: value for key, value in record.items() if key != "ts"
    }


def test_an_exception_is_logged_with_its_traceback_on_the_same_line() -> None:
    with taken_over() as lines:
        try:
            int(NASTY)
        except ValueError:
            logging.getLogger("x").exception("failed")

    assert ["Traceback", "failed"] == [
        lines.records[0]["traceback"][:9],
        lines.records[0]["message"],
    ]
    assert 1 == len(lines.records)


def test_a_log_call_with_wrong_arguments_is_reported_and_raises_nothing() -> None:
    with taken_over() as lines:
        logging.getLogger("x").error("%d apples", "many")

    assert "log_record_failed" == lines.records[0]["event"]


def test_taking_over_logging_is_undone_completely() -> None:
    before = (logging.getLogger().handlers[:], logging.getLogger().level)
    redirect_logging(EventLog([], clock=FakeClock()), level=Level.DEBUG)()

    assert before == (logging.getLogger().handlers[:], logging.getLogger().level)


@pytest.mark.parametrize(
    "formatter", [JsonFormatter(), PrettyFormatter(), PrettyFormatter(colour=True)]
)
@pytest.mark.parametrize(
    "args", [(NASTY,), (), (Unspeakable(),)], ids=["nasty", "none", "unspeakable"]
)
def test_the_formatters_make_one_line_of_any_stdlib_record(
    formatter: logging.Formatter, args: tuple[object, ...]
) -> None:
    record = logging.LogRecord("x", logging.INFO, "file", 1, "said %s", args, None)

    assert 1 == len(formatter.format(record).splitlines())


def test_the_notice_of_dropped_lines_is_a_record_like_any_other() -> None:
    record = json.loads(dropped_lines_record(clock=FakeClock(), manager_pid=7)(12))

    assert ("log_lines_dropped", 12, 7) == (record["event"], record["lines"], record["managerPid"])


def test_importing_the_log_configures_nothing() -> None:
    assert "longwatch.observe.event_log" in sys.modules
    assert [] == logging.getLogger("longwatch").handlers


TRACEBACK = 'Traceback (most recent call last):\n  File "app.py", line 3\nValueError: \x1bno'


def test_the_pretty_form_has_a_traceback_as_indented_lines_below_the_record() -> None:
    """No line of it can look like a record, and none reaches the terminal as a command."""
    record = {"level": "warning", "event": "work_failed", "traceback": TRACEBACK, "retry_in": 3}
    head, *lines = to_pretty(record).split("\n")
    assert head.endswith(" work_failed retry_in=3")
    assert [
        "    Traceback (most recent call last):",
        '      File "app.py", line 3',
        "    ValueError: \\x1bno",
    ] == lines


def test_a_traceback_of_full_length_is_not_cut_in_any_form() -> None:
    text = "\n".join(["é" * 100] * (MAX_TRACEBACK_BYTES // 201))
    record = {"level": "warning", "event": "work_failed", "traceback": text}
    assert text == json.loads(to_json(record))["traceback"]
    assert len(text.split("\n")) + 1 == len(to_pretty(record).split("\n"))


def test_optional_fields_of_an_event_that_are_empty_are_left_out() -> None:
    event = WorkFailed(engine="mail", message_id="m1", attempt=1, error="no", retry_in=None)
    record = logged(event)
    assert {
        "engine": "mail",
        "message_id": "m1",
        "attempt": 1,
        "error": "no",
        "retry_in": None,
    } == {
        key: value
        for key, value in record.items()
        if key not in {"ts", "level", "event", "pid", "managerPid"}
    }


def test_the_traceback_of_a_stdlib_record_is_masked_bounded_and_has_its_cause() -> None:
    with taken_over() as lines:
        try:
            try:
                int("token=hunter2 " + "x" * 100_000)
            except ValueError as error:
                raise KeyError("missing") from error
        except KeyError:
            logging.getLogger("x").exception("failed")
    [record] = lines.records
    assert "hunter2" not in record["traceback"]
    assert "direct cause" in record["traceback"]
    assert len(record["traceback"].encode()) <= MAX_TRACEBACK_BYTES


@pytest.mark.parametrize("formatter", [logging.Formatter(), JsonFormatter(), PrettyFormatter()])
def test_an_event_in_stdlib_logging_has_its_traceback_where_formatters_have_that_of_exceptions(
    formatter: logging.Formatter, caplog: pytest.LogCaptureFixture
) -> None:
    """One line of fields, then the traceback; the event itself is on the record."""
    event = WorkFailed(
        engine="mail", message_id="m1", attempt=1, error="no", retry_in=1.0, traceback=TRACEBACK
    )
    with caplog.at_level(logging.WARNING, "longwatch.runtime"):
        log_event(event)
    [record] = caplog.records
    message = "work_failed engine='mail' message_id='m1' attempt=1 error='no' retry_in=1.0"
    assert (message, event) == (record.getMessage(), vars(record)["longwatch_event"])
    shown = formatter.format(record)
    assert 1 == shown.count("most recent call last")
    assert message.split(" ", maxsplit=1)[0] in shown


def test_the_pretty_form_shows_the_pid_of_the_supervisor_when_it_starts() -> None:
    """A person who wants to signal it reads the pid there; other events are not about it."""
    started = event_record(
        SupervisorStarted(version="1", programs=("web",)), wall=0.0, manager_pid=os.getpid()
    )
    other = event_record(SettingsLoaded(settings={}), wall=0.0, manager_pid=os.getpid())
    assert f" supervisor_started pid={os.getpid()} version=1" in to_pretty(started)
    assert "pid=" not in to_pretty(other)


@pytest.mark.parametrize("level", [["error"], None, "\x1b[2J"])
@pytest.mark.parametrize("ts", ["0001-01-01T00:00:00+14:00", None, ["x"]])
def test_a_damaged_record_is_shown_as_it_is_on_one_line(level: object, ts: object) -> None:
    shown = to_pretty({"ts": ts, "level": level, "event": "odd"})

    assert shown.isprintable()
    assert shown.endswith(" odd")
