"""Blame in mailboxes of SQL stores: sweeps that block no sender, stored budgets, suspects."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longwatch.engine.claim_source import GivenUp, RowOutcome, Settlement
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.claims import RowSelection
from longwatch.store.database import Database
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.sqlite.database import SqliteDatabase
from polling import eventually
from postgres_server import shared_server

LEASE = 60.0


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        with SqliteDatabase(tmp_path / "some.db") as sqlite:
            yield sqlite
    else:
        with shared_server().database() as url, PostgresDatabase(url) as postgres:
            yield postgres


def dead_process() -> Incarnation:
    mine = Incarnation.current()
    return replace(mine, start=mine.start + 1)


def unseen_process() -> Incarnation:
    return replace(Incarnation.current(), namespace=1)


def put(backend: SqlBackend, count: int = 1) -> list[str]:
    return backend.put([NewMessage(id=new_id(), body=b"1") for _ in range(count)])


def claim(backend: SqlBackend, owner: int, *settlements: Settlement, **options: Any) -> list[Any]:
    limits = {"limit": 10, "lease_seconds": LEASE, **options}
    return backend.exchange(settlements, owner=owner, **limits).claimed


class Writes:
    """How many write transactions a database makes from now on."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        write = database.write

        def counted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return write(*arguments, **options)

        monkeypatch.setattr(database, "write", counted)


class TestASweep:
    def test_that_reads_a_page_which_is_a_fifo_stops_no_sender(
        self, database: Database, tmp_path: Path
    ) -> None:
        """The path of a page comes from the store; opening it may block for ever."""
        backend, fifo = SqlBackend(database, "work"), tmp_path / "fifo"
        os.mkfifo(fifo)
        put(backend)
        assert claim(backend, backend.register_owner(dead_process(), page=str(fifo)))
        sweep = threading.Thread(target=backend.sweep)
        sweep.start()
        try:
            put(backend, 3)
            assert 3 == len(claim(backend, backend.register_owner(Incarnation.current()), limit=3))
        finally:
            assert eventually(lambda: unblock(fifo, sweep))
        assert 1 == backend.stats().ready

    def test_gives_up_a_message_that_ends_one_container_after_another(
        self, database: Database
    ) -> None:
        """Each takes its beat page with it, so none of them leaves a proof."""
        backend = SqlBackend(database, "work")
        [poison] = put(backend)
        reported: list[GivenUp] = []
        for _ in range(8):
            owner = backend.register_owner(unseen_process(), page="/nonexistent/page")
            claim(backend, owner)
            database.jump.lease += 2 * LEASE
            backend.sweep(reported.append)
        [letter] = backend.dead_letters()
        assert ("lost", 5, 5, 0) == (
            letter.reason,
            letter.lost,
            letter.deliveries,
            letter.crashes,
        )
        assert [GivenUp(poison, "work", "lost")] == reported

    def test_blames_nothing_when_pods_are_killed_after_their_grace(
        self, database: Database
    ) -> None:
        """A rolling deploy, five times and more: no dead letter."""
        backend = SqlBackend(database, "work")
        put(backend)
        for _ in range(8):
            owner = backend.register_owner(unseen_process(), page="/nonexistent/page")
            assert claim(backend, owner)
            backend.report_draining(owner=owner)
            database.jump.lease += 2 * LEASE
            backend.sweep()
        [record] = backend.peek(limit=9)
        assert (8, 0, 0) == (record.releases, record.lost, record.crashes)

    def test_that_is_retried_reports_each_dead_letter_once(self, database: Database) -> None:
        backend = SqlBackend(database, "work", limits=MailboxLimits(max_crashes=1))
        ids = put(backend, 3)
        claim(backend, backend.register_owner(dead_process()))
        reported: list[GivenUp] = []
        backend.sweep(reported.append)
        backend.sweep(reported.append)
        assert sorted(ids) == sorted(each.message_id for each in reported)


def unblock(fifo: Path, thread: threading.Thread) -> bool:
    """Let a reader of the pipe go; whether the thread has ended."""
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        thread.join(0.01)
    return not thread.is_alive()


class TestBudgetsOfAMailbox:
    def test_are_written_once_and_by_no_process_that_finds_them_stored(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = MailboxLimits(max_failures=2, max_lost=3)
        SqlBackend(database, "work", limits=limits).stats()
        stored = "SELECT max_failures, max_crashes, max_lost FROM longwatch_mailboxes"
        assert [(2, None, 3)] == database.read(lambda tx: tx.rows(stored))
        writes = Writes(database, monkeypatch)
        for equal in (limits, None, MailboxLimits(max_size=10), MailboxLimits(max_lost=3)):
            SqlBackend(database, "work", limits=equal).stats()
        assert 0 == writes.count
        SqlBackend(database, "work", limits=MailboxLimits(max_crashes=4)).stats()
        assert 1 == writes.count
        assert [(2, 4, 3)] == database.read(lambda tx: tx.rows(stored))

    def test_are_stored_again_after_the_store_was_emptied(self, database: Database) -> None:
        backend = SqlBackend(database, "work", limits=MailboxLimits(max_failures=1))
        put(backend)
        database.write(lambda tx: tx.execute("DELETE FROM longwatch_messages"))
        database.write(lambda tx: tx.execute("DELETE FROM longwatch_mailboxes"))
        assert 0 == backend.stats().ready
        put(backend)
        other = open_mailbox(database, "work")
        [message] = other.receive()
        message.nack(reason="no")
        assert ["failed"] == [letter.reason for letter in other.dead_letters]

    def test_of_the_last_process_that_sets_them_hold_in_a_sweep_by_any_other(
        self, database: Database
    ) -> None:
        strict = SqlBackend(database, "strict", limits=MailboxLimits(max_crashes=1))
        sweeper = SqlBackend(database, "another", limits=MailboxLimits(max_crashes=100))
        put(strict)
        claim(strict, strict.register_owner(dead_process()))
        sweeper.sweep()
        assert ["poison"] == [letter.reason for letter in strict.dead_letters()]


class TestAnEngineOfOrdinaryRows:
    def test_does_not_write_while_only_suspects_are_ready(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On SQLite a claim reads first, because writers wait for each other."""
        with SqliteDatabase(tmp_path / "some.db") as database:
            backend = SqlBackend(database, "work", limits=MailboxLimits(max_crashes=2))
            put(backend)
            claim(backend, backend.register_owner(dead_process()))
            backend.sweep()
            owner = backend.register_owner(Incarnation.current())
            writes = Writes(database, monkeypatch)
            assert [] == claim(backend, owner, selection=RowSelection.ORDINARY)
            assert (0, 1) == (writes.count, backend.count_suspects(limit=9))
            [row] = claim(backend, owner, selection=RowSelection.SUSPECTS)
            assert (1, True) == (writes.count, row.is_exclusive)

    def test_frees_a_suspect_that_is_due_once_and_waits_then(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with SqliteDatabase(tmp_path / "some.db") as database:
            backend = SqlBackend(database, "work", limits=MailboxLimits(max_crashes=2))
            put(backend)
            claim(backend, backend.register_owner(dead_process()))
            backend.sweep()
            owner = backend.register_owner(Incarnation.current())
            [row] = claim(backend, owner)
            backend.settle([Settlement(row.claim, RowOutcome.FAILED, delay=5.0)])
            database.jump.wall = 6.0
            assert 0 == backend.next_due()
            writes = Writes(database, monkeypatch)
            for _ in range(3):
                assert [] == claim(backend, owner, selection=RowSelection.ORDINARY)
            assert (1, None, 1) == (
                writes.count,
                backend.next_due(),
                backend.count_suspects(limit=9),
            )


def test_a_failure_that_spends_the_budget_in_an_exchange_is_reported(database: Database) -> None:
    """An engine that does not know which failure is the last settles it like any other."""
    backend = SqlBackend(database, "work", limits=MailboxLimits(max_failures=1))
    [message_id] = put(backend)
    owner = backend.register_owner(Incarnation.current())
    [row] = claim(backend, owner)
    failed = Settlement(row.claim, RowOutcome.FAILED, delay=60.0, error="no", traceback="where")
    result = backend.exchange([failed, failed], owner=owner, limit=10, lease_seconds=LEASE)
    assert ([True, False], []) == (result.settled, result.claimed)
    assert [GivenUp(message_id, "work", "failed")] == list(result.given_up)
    [letter] = backend.dead_letters()
    assert ("failed", 1, "no", "where") == (
        letter.reason,
        letter.failures,
        letter.error,
        letter.traceback,
    )
