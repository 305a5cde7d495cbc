"""What the status page reads of sources and runs, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flow_stores import KINDS, opened_store
from longwatch.errors import UsageError
from longwatch.page.readers.runs import (
    RunFilter,
    cancel_run,
    read_run,
    read_runs,
    read_sources,
    retry_run,
    running_runs,
)
from longwatch.page.view import NotFoundError
from longwatch.store.database import Database
from page_stores import RunnerQueue, add_source


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with opened_store(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def queue(database: Database) -> RunnerQueue:
    add_source(database, "alpha")
    return RunnerQueue(database, "alpha")


def test_sources_have_their_state_and_their_dead_letters(
    database: Database, queue: RunnerQueue, tmp_path: Path
) -> None:
    queue.put(n=1)
    queue.fail(*queue.begin(tmp_path), error="no")
    queue.put(n=2)
    [source] = read_sources(database)
    assert ("alpha", "stopped", 1, 0, 1) == (
        source.name,
        source.state,
        source.queued,
        source.running,
        source.dead,
    )


def test_only_a_held_source_that_cannot_connect_is_down(database: Database) -> None:
    for name, state, error in (
        ("fine", "connected", ""),
        ("lost", "waiting", "refused"),
        ("new", "connecting", ""),
        ("again", "connecting", "refused"),
        ("over", "ended", ""),
        ("orphan", "waiting", "refused"),
    ):
        add_source(database, name, state=state, error=error)
    hold = (
        "UPDATE longwatch_runner_sources SET lease_state = 2, lease_until = :lease_now + 600 "
        "WHERE name <> 'orphan'"
    )
    database.write(lambda tx: tx.execute(hold))
    assert ["again", "lost"] == [each.name for each in read_sources(database) if each.is_down]
    assert ["again", "lost"] == [each.name for each in read_sources(database)][:2]


def test_runs_come_in_pages_and_by_status(
    database: Database, queue: RunnerQueue, tmp_path: Path
) -> None:
    ids = []
    for number in range(5):
        queue.put(n=number)
        run_id, row = queue.begin(tmp_path)
        ids.append(run_id)
        if number < 4:
            queue.fail(run_id, row, error="no")
    first = read_runs(database, RunFilter(), limit=2)
    second = read_runs(database, RunFilter(before=first.next), limit=2)
    last = read_runs(database, RunFilter(before=second.next), limit=2)
    pages = [[each.id for each in page.found] for page in (first, second, last)]
    assert [ids[4:2:-1], ids[2:0:-1], ids[:1]] == pages
    assert not last.next
    assert 4 == len(read_runs(database, RunFilter(status="failure")).found)
    assert 0 == len(read_runs(database, RunFilter(source="beta")).found)
    assert [ids[4]] == [each.id for each in running_runs(database)]


def test_a_run_is_shown_with_its_event(
    database: Database, queue: RunnerQueue, tmp_path: Path
) -> None:
    queue.put(pod="<b>", password="hunter2")
    run_id, row = queue.begin(tmp_path)
    queue.fail(run_id, row, error="token=abc no", output="the end")
    found = read_run(database, run_id)
    assert ("failure", "exit 3", "token=*** no") == (
        found.row.status,
        found.row.cause,
        found.row.error,
    )
    assert found.data is not None
    assert found.output is not None
    assert '{\n  "pod": "<b>",\n  "password": "***"\n}' == found.data.text
    assert ("the end", True) == (found.output.text, found.can_retry)


def test_a_retried_event_is_queued_again(
    database: Database, queue: RunnerQueue, tmp_path: Path
) -> None:
    event = queue.put(n=1)
    run_id, row = queue.begin(tmp_path)
    queue.fail(run_id, row, error="no")
    assert event == retry_run(database, run_id)
    assert not read_run(database, run_id).can_retry
    with pytest.raises(UsageError, match="is queued or runs already"):
        retry_run(database, run_id)
    again, _ = queue.begin(tmp_path)
    assert [run_id] == [each.id for each in read_run(database, again).other_runs]


def test_a_running_run_is_cancelled(database: Database, queue: RunnerQueue, tmp_path: Path) -> None:
    queue.put(n=1)
    run_id, row = queue.begin(tmp_path)
    assert cancel_run(database, run_id)
    assert read_run(database, run_id).row.is_cancel_requested
    queue.fail(run_id, row, error="no")
    assert not cancel_run(database, run_id)


def test_an_unknown_run_is_not_found(database: Database) -> None:
    for read in (read_run, retry_run, cancel_run):
        with pytest.raises(NotFoundError, match="there is no run gone"):
            read(database, "gone")
