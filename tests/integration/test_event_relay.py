"""Events of a worker process on their way to its parent."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from longwatch.core.events.base import Events
from longwatch.core.events.engine import RowsClaimed, WorkFailed
from longwatch.core.events.runtime import LoopDegraded
from longwatch.errors import TryAgainError
from longwatch.host.parent_channel import ParentChannel
from longwatch.testing import FakeClock
from longwatch.workers.event_relay import EventRelay, relayed_records
from parent_rig import Parent

TIMEOUT = 30.0


@pytest.fixture
def parent() -> Iterator[Parent]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = Parent(Path(folder) / "line")
        yield made
        made.close()


class SlowChannel(ParentChannel):
    """A parent that reads nothing until the test lets it."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.may_read = threading.Event()
        self.is_asked = threading.Event()
        self.messages: list[dict[str, object]] = []

    def send(self, about: str, **facts: object) -> None:
        self.is_asked.set()
        if not self.may_read.wait(TIMEOUT):
            raise TryAgainError(about)
        self.messages.append({"about": about, **facts})


def degraded(number: int) -> LoopDegraded:
    return LoopDegraded(loop=f"loop-{number}", elapsed=1.0, threshold=2.0)


def test_events_arrive_in_order_with_the_program_and_the_pid_of_the_worker(parent: Parent) -> None:
    relay = EventRelay(ParentChannel(parent.address), clock=FakeClock())
    events = Events(relay.log)
    for number in range(100):
        events.emit(degraded(number))
    assert relay.close(TIMEOUT)
    records: list[dict[str, object]] = []
    while len(records) < 100:
        records += relayed_records(parent.receive_about("events"), program="jobs-1")
    assert [f"loop-{number}" for number in range(100)] == [each["loop"] for each in records]
    assert ["ts", "level", "event", "pid", "managerPid", "program"] == list(records[0])[:6]
    assert ("loop_degraded", "jobs-1", os.getpid()) == (
        records[0]["event"],
        records[0]["program"],
        records[0]["pid"],
    )


def test_events_of_level_debug_stay_in_the_worker() -> None:
    channel = SlowChannel()
    channel.may_read.set()
    relay = EventRelay(channel, clock=FakeClock())
    events = Events(relay.log)
    events.emit(RowsClaimed(engine="jobs", rows=1, held=1))
    events.emit(degraded(1))
    assert relay.close(TIMEOUT)
    [message] = channel.messages
    assert ["loop_degraded"] == [
        each["event"] for each in relayed_records(message, program="jobs-1")
    ]


def test_a_parent_that_reads_nothing_costs_the_oldest_events_and_gets_their_number() -> None:
    channel = SlowChannel()
    relay = EventRelay(channel, clock=FakeClock(), capacity=2_000)
    events = Events(relay.log)
    events.emit(degraded(0))
    assert channel.is_asked.wait(TIMEOUT)
    for number in range(1, 100):
        events.emit(degraded(number))
    channel.may_read.set()
    assert relay.close(TIMEOUT)
    loops = [
        each["loop"]
        for message in channel.messages
        for each in relayed_records(message, program="jobs-1")
    ]
    dropped = sum(int(str(message["dropped"])) for message in channel.messages)
    assert 0 < dropped < 100
    assert ["loop-0", *(f"loop-{number}" for number in range(1 + dropped, 100))] == loops


def test_events_that_could_not_be_sent_are_counted_in_the_next_message(parent: Parent) -> None:
    address, lost = parent.address, Path(parent.address).with_name("lost")
    Path(address).rename(lost)
    relay = EventRelay(ParentChannel(address), clock=FakeClock())
    events = Events(relay.log)
    for number in range(3):
        events.emit(degraded(number))
        assert relay._writer.flush(TIMEOUT)
    lost.rename(address)
    events.emit(degraded(3))
    assert relay.close(TIMEOUT)
    message = parent.receive_about("events")
    assert 3 == message["dropped"]
    assert ["loop-3"] == [each["loop"] for each in relayed_records(message, program="jobs-1")]


def test_secrets_are_masked_before_they_leave_the_worker() -> None:
    channel = SlowChannel()
    channel.may_read.set()
    relay = EventRelay(channel, clock=FakeClock())
    Events(relay.log).emit(
        WorkFailed(
            engine="jobs", message_id="1", attempt=1, error="password=hunter2", retry_in=None
        )
    )
    assert relay.close(TIMEOUT)
    assert "hunter2" not in str(channel.messages)
    assert "work_failed" in str(channel.messages)


def test_lines_that_are_no_records_are_left_out() -> None:
    fine = {"ts": "0", "level": "info", "event": "fine", "program": "another"}
    lines = ["{", "5", '{"event": 5}', "", json.dumps(fine)]
    [record] = relayed_records({"lines": "\n".join(lines)}, program="jobs-1")
    assert ("fine", "jobs-1") == (record["event"], record["program"])


@pytest.mark.parametrize("field", ["ts", "level", "event"])
@pytest.mark.parametrize("value", [None, 1, ["error"]])
def test_a_record_without_a_time_a_level_or_a_name_is_left_out(field: str, value: object) -> None:
    """`longwatch events` and the status page read the log that has it."""
    record = {"ts": "2026-01-01T00:00:00Z", "level": "info", "event": "x", field: value}

    assert not list(relayed_records({"lines": json.dumps(record)}, program="jobs-1"))
