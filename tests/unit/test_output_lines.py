"""The lines of programs on a console: tagged for a terminal, JSON records elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.observe.event_log import timestamp
from longwatch.observe.output_lines import OutputRecords, tag_lines
from longwatch.testing import FakeClock

OWN = '{"ts":"2031-05-06T12:00:00.000Z","level":"info","event":"loop_started","pid":7}'


def records_of(block: bytes) -> list[dict[str, Any]]:
    lines = OutputRecords("web-1", clock=FakeClock())(block).split(b"\n")
    assert b"" == lines.pop()
    return [json.loads(line) for line in lines]


def test_a_tag_stands_before_each_line() -> None:
    assert b"a | one\na | \na | two\n" == tag_lines("a | ")(b"one\n\ntwo\n")
    assert b"one\n" == tag_lines("")(b"one\n")


def test_each_line_is_a_record_that_names_its_program() -> None:
    clock = FakeClock()
    [first, second] = OutputRecords("web-1", clock=clock)(b'one\n{"a": 1}\n').splitlines()
    record = json.loads(first)
    assert record["pid"] == record["managerPid"]
    assert {
        "ts": timestamp(clock.wall()),
        "level": "info",
        "event": "output_written",
        "program": "web-1",
        "text": "one",
    } == {key: value for key, value in record.items() if key not in {"pid", "managerPid"}}
    assert '{"a": 1}' == json.loads(second)["text"]


def test_a_record_of_a_worker_process_stays_one_and_gets_the_name() -> None:
    assert [{**json.loads(OWN), "program": "web-1"}] == records_of(OWN.encode() + b"\n")


def test_a_record_that_names_a_program_keeps_that_name() -> None:
    named = OWN.replace("}", ',"program":"other"}')
    assert [json.loads(named)] == records_of(named.encode() + b"\n")


def test_text_without_a_newline_before_a_record_is_a_record_of_its_own() -> None:
    text, own = records_of(b"no newline" + OWN.encode() + b"\n")
    assert ("no newline", "loop_started") == (text["text"], own["event"])


@pytest.mark.parametrize(
    "line", ['{"ts":"now"}', '{"ts":"', OWN[:-1], OWN + "x", '{"ts":"","a":' + "[" * 60_000]
)
def test_a_line_that_only_begins_like_a_record_is_text(line: str) -> None:
    assert [line] == [record["text"] for record in records_of(line.encode() + b"\n")]


@given(st.lists(st.binary().filter(lambda line: b"\n" not in line), min_size=1))
def test_any_bytes_become_one_record_a_line(lines: list[bytes]) -> None:
    found = records_of(b"".join(line + b"\n" for line in lines))
    assert [line.decode("utf-8", "backslashreplace") for line in lines] == [
        record["text"] for record in found
    ]
