"""The events of the simulator, their history and journal, and the reconciliation."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from longwatch.errors import UsageError
from longwatch.runner.simulated_events import FaultGenerator, History, Journal, read_journal
from longwatch.runner.simulated_events import SentEvent as Sent
from longwatch.runner.simulation_check import compare, hash_data
from longwatch.sse import EventStreamParser, ServerSentEvent


def generator(source: str = "a", seed: int = 1) -> FaultGenerator:
    return FaultGenerator(source, seed=seed, now=lambda: datetime(2031, 5, 6, tzinfo=UTC))


def test_a_seed_always_gives_the_same_faults() -> None:
    faults = [generator().data(number) for number in range(1, 50)]
    assert faults == [generator().data(number) for number in range(1, 50)]
    assert faults != [generator(seed=2).data(number) for number in range(1, 50)]
    assert 49 == len({json.loads(fault)["faultId"] for fault in faults})


def test_a_fault_has_the_fields_of_a_stream_event() -> None:
    fault = json.loads(generator().data(3))
    assert {
        "cluster",
        "severity",
        "resource",
        "faultId",
        "faultType",
        "context",
        "timestamp",
    } == set(fault)
    assert "2031-05-06T00:00:00.000Z" == fault["timestamp"]


@pytest.mark.parametrize("data", ["{}", "two\nlines", "", "bad \ufffd bytes"])
def test_a_client_reads_the_data_that_the_journal_has(data: str) -> None:
    """Bad bytes too: they are in the journal as a client decodes them."""
    wire = Sent("a", 7, data).encode()
    assert ("\ufffd" in data) == (b"\xff" in wire)
    assert [ServerSentEvent(data, "fault", "7")] == EventStreamParser().feed(wire)


def test_history_gives_what_comes_after_a_number() -> None:
    history = History("a", limit=3, journal=None)
    for number in range(1, 6):
        history.add(f"data {number}")
    assert [5] == [event.number for event in history.after(4)]
    assert [] == history.after(5)
    assert [3, 4, 5] == [event.number for event in history.after(1)]
    assert [3, 4, 5] == [event.number for event in history.after(99)]


def test_a_journal_replays_what_memory_no_longer_has_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    first = History("a", limit=2, journal=journal)
    other = History("b", limit=2, journal=journal)
    for _ in range(5):
        first.add("x")
        other.add("y")
    assert [2, 3, 4, 5] == [event.number for event in first.after(1)]
    journal.close()
    again = Journal(path)
    restarted = History("a", limit=2, journal=again)
    assert 6 == restarted.add("z").number
    assert [Sent("a", number, "x") for number in (3, 4, 5)] + [
        Sent("a", 6, "z")
    ] == restarted.after(2)
    again.close()
    assert 11 == len(list(read_journal(path)))


def test_an_unfinished_last_line_is_cut_off(tmp_path: Path) -> None:
    """A simulator that was killed while it wrote has sent that event to no client."""
    path = tmp_path / "journal"
    journal = Journal(path)
    history = History("a", limit=2, journal=journal)
    history.add("x")
    journal.close()
    with path.open("a") as file:
        file.write('{"source": "a", "id": "2", "da')
    assert [Sent("a", 1, "x")] == list(read_journal(path))
    again = Journal(path)
    assert 2 == History("a", limit=2, journal=again).add("y").number
    again.close()
    assert [Sent("a", 1, "x"), Sent("a", 2, "y")] == list(read_journal(path))


@pytest.mark.parametrize("line", [b"no\n", b"[]\n", b'{"source": "a"}\n'])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(line)
    with pytest.raises(UsageError, match=r"line 1 of .* expected a journal"):
        list(read_journal(path))


SENT = [Sent("a", 1, "x"), Sent("a", 2, "y")]
X, Y = hash_data("x"), hash_data("y")


def test_one_row_with_an_outcome_for_each_event_is_right() -> None:
    found = compare("a", SENT, [("1", X, "run"), ("2", Y, "filtered")])
    assert found.is_right
    assert (2, 1, 1) == (found.sent, found.outcomes["run"], found.outcomes["filtered"])


def test_an_event_without_a_row_is_missing() -> None:
    found = compare("a", SENT, [("1", X, "run")])
    assert (1, ("2",), False) == (found.missing, found.examples, found.is_right)


def test_an_event_with_two_rows_is_wrong_for_good() -> None:
    found = compare("a", SENT, [("1", X, "run"), ("1", X, "run"), ("2", Y, "run")])
    assert (1, True, False) == (found.twice, found.is_settled, found.is_right)


def test_an_event_without_an_outcome_is_open() -> None:
    found = compare("a", SENT, [("1", X, "run"), ("2", Y, None)])
    assert (1, False, False) == (found.open, found.is_settled, found.is_right)


def test_a_row_that_was_never_sent_is_wrong() -> None:
    """The same id with other data is another event."""
    found = compare("a", SENT, [("1", X, "run"), ("2", Y, "run"), ("2", X, "run")])
    assert (1, False) == (found.unsent, found.is_right)


def test_a_run_that_has_not_ended_is_waited_for() -> None:
    found = compare("a", SENT, [("1", X, "run"), ("2", Y, "run")], running=1)
    assert (False, False) == (found.is_settled, found.is_right)
