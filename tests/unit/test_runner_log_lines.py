"""The log lines of a runner: the sentence of an event beside its name, and floods of one event."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from longwatch.core.events.base import Event
from longwatch.core.events.runner import (
    AgentRunInterrupted,
    AgentRunTimedOut,
    QueuedEventExpired,
    SseConnectionClosed,
    SseConnectionEstablished,
    SseConnectionFailed,
    WorkBreakerClosed,
)
from longwatch.core.fake_clock import FakeClock
from longwatch.engine.event_logging import log_event
from longwatch.observe.event_log import EventLog, LogSink
from longwatch.observe.log_format import to_pretty

HEAD = {"ts", "level", "event", "pid", "managerPid"}
EXPIRED = QueuedEventExpired(cluster="prod", event_id="e1", age=601.0)


class LogRecords:
    """A log whose records can be read back; its clock stands still."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._data = b""
        self.log = EventLog([LogSink(writer=self)], clock=self.clock)

    def write(self, data: bytes) -> bool:
        self._data += data
        return True

    def read(self) -> list[dict[str, Any]]:
        data, self._data = self._data, b""
        return [json.loads(line) for line in data.splitlines()]


def logged(event: Event) -> dict[str, Any]:
    records = LogRecords()
    records.log(event)
    [record] = records.read()
    return record


LINES: list[tuple[Event, str, dict[str, object]]] = [
    (
        SseConnectionFailed(
            cluster="prod", error="refused", reason="network_error", retry_in=1.5, attempt=2
        ),
        "warning SSE connection failed, retrying",
        {
            "cluster": "prod",
            "error": "refused",
            "reason": "network_error",
            "retry_in": 1.5,
            "attempt": 2,
        },
    ),
    (
        SseConnectionEstablished(cluster="prod", downtime=3.5),
        "info SSE connection established",
        {"cluster": "prod", "downtime": 3.5},
    ),
    (
        SseConnectionClosed(cluster="prod", error="", duration_seconds=60.0),
        "info SSE connection closed",
        {"cluster": "prod", "error": "", "duration_seconds": 60.0},
    ),
    (
        EXPIRED,
        "warning Expired queued event",
        {"cluster": "prod", "event_id": "e1", "age": 601.0, "count": 1},
    ),
    (
        AgentRunTimedOut(cluster="prod", run_id="r1", duration=300.1, timeout=300.0),
        "warning Agent timed out",
        {"cluster": "prod", "run_id": "r1", "duration": 300.1, "timeout": 300.0},
    ),
]


@pytest.mark.parametrize(("event", "line", "fields"), LINES, ids=[line for _, line, _ in LINES])
def test_a_line_has_its_level_its_sentence_and_its_named_fields(
    event: Event, line: str, fields: dict[str, object]
) -> None:
    record = logged(event)
    assert (line, event.name) == (f"{record['level']} {record.pop('message')}", record["event"])
    assert fields == {name: value for name, value in record.items() if name not in HEAD}


def test_the_sentence_follows_the_name_in_the_pretty_form() -> None:
    record = logged(SseConnectionEstablished(cluster="prod", downtime=0.0))
    assert to_pretty(record).endswith(
        'sse_connection_established message="SSE connection established" cluster=prod downtime=0.0'
    )


def test_the_sentence_is_in_the_standard_librarys_logging_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "longwatch.runtime"):
        log_event(SseConnectionEstablished(cluster="prod", downtime=0.0))
    assert "sse_connection_established message='SSE connection established'" in caplog.text


def test_an_event_without_a_sentence_has_no_message() -> None:
    assert "message" not in logged(WorkBreakerClosed(open_for=1.0))


def test_an_interrupted_run_is_a_warning_with_run_cluster_and_pid() -> None:
    record = logged(AgentRunInterrupted(run_id="r1", cluster="prod", pid=4711))
    assert ("warning", "r1", "prod", 4711) == tuple(
        record[name] for name in ("level", "run_id", "cluster", "pid")
    )


# --- floods ---


def test_of_a_flood_of_expired_events_a_few_lines_a_second_are_logged() -> None:
    """The next line that passes says how many were left out."""
    records = LogRecords()
    limit = EXPIRED.max_logged_per_second
    assert limit is not None
    for second in range(3):
        for _ in range(1000):
            records.log(EXPIRED)
        shown = records.read()
        assert limit == len(shown)
        suppressed = [record.get("suppressed") for record in shown]
        assert [1000 - limit if second else None, *[None] * (limit - 1)] == suppressed
        records.clock.advance(1.0)


def test_a_flood_of_one_event_leaves_out_no_other() -> None:
    records = LogRecords()
    for _ in range(20):
        records.log(EXPIRED)
        records.log(SseConnectionEstablished(cluster="prod", downtime=0.0))
    names = [record["event"] for record in records.read()]
    assert 20 == names.count("sse_connection_established")
