"""Commits whose answer is lost: resolved with the server, never guessed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Any

import psycopg
import pytest

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.errors import StoreError
from longwatch.store.postgres import commit_marker
from longwatch.store.postgres.connection import PostgresConnection
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.postgres.errors import CallTimeoutError, ConnectionLostError
from longwatch.store.postgres.pool import ConnectionPool
from longwatch.store.postgres.transaction import PostgresTransaction
from polling import eventually
from postgres_server import PostgresServer, destroy_server, make_server, shared_server

Commit = Callable[..., None]
ROW = "INSERT INTO things VALUES (:name)"


@pytest.fixture
def database() -> Iterator[PostgresDatabase]:
    with shared_server().database() as url, PostgresDatabase(url) as opened:
        opened.write(lambda tx: tx.execute("CREATE TABLE things (name text)"))
        yield opened


def names(database: PostgresDatabase) -> list[str]:
    return [
        name
        for (name,) in database.read(lambda tx: tx.rows("SELECT name FROM things ORDER BY name"))
    ]


class LostCommit:
    """Replaces the first commit by something that loses its answer; later ones are made as
    always.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, first: Callable[[PostgresTransaction, Commit], None]
    ) -> None:
        self.commits = 0
        real = PostgresTransaction.commit

        def commit(transaction: PostgresTransaction, marker_statement: Any, **options: Any) -> None:
            self.commits += 1
            self.marker_statement = marker_statement
            if self.commits == 1:
                first(transaction, lambda: real(transaction, marker_statement, **options))
            else:
                real(transaction, marker_statement, **options)

        monkeypatch.setattr(PostgresTransaction, "commit", commit)


def test_after_a_commit_that_could_not_be_looked_up_the_next_call_succeeds(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has become read-only, so the lookup fails in its transaction."""

    def answer_lost(transaction: PostgresTransaction, _: Commit) -> None:
        set_read_only(database, "SET default_transaction_read_only = on")
        transaction._live_connection().close("gone")
        raise ConnectionLostError("gone")

    LostCommit(monkeypatch, answer_lost)
    with pytest.raises(StoreError, match="read-only"):
        database.write(lambda tx: tx.execute(ROW, {"name": "a"}))
    assert [] == names(database)
    set_read_only(database, "RESET default_transaction_read_only")
    database.write(lambda tx: tx.execute(ROW, {"name": "b"}))
    assert ["b"] == names(database)


def set_read_only(database: PostgresDatabase, change: str) -> None:
    with psycopg.connect(database.url, autocommit=True) as admin:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(f"ALTER DATABASE {admin.info.dbname} {change}".encode())


def test_a_commit_that_was_made_is_not_made_again(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer_lost(_: PostgresTransaction, commit: Commit) -> None:
        commit()
        raise ConnectionLostError("gone")

    called: list[int] = []

    def work(tx: Any) -> str:
        tx.execute(ROW, {"name": "a"})
        tx.after_commit(lambda: called.append(1))
        return "result"

    losing = LostCommit(monkeypatch, answer_lost)
    assert "result" == database.write(work)
    assert (1, ["a"], [1]) == (losing.commits, names(database), called)


def test_what_was_deferred_and_committed_is_not_sent_again(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer_lost(_: PostgresTransaction, commit: Commit) -> None:
        commit()
        raise ConnectionLostError("gone")

    losing = LostCommit(monkeypatch, answer_lost)
    database.write(
        lambda tx: tx.defer_many("INSERT INTO things SELECT unnest(:name::text[])", [{"name": "a"}])
    )
    assert (1, ["a"]) == (losing.commits, names(database))


def test_work_whose_commit_was_not_made_is_run_again(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost_before(transaction: PostgresTransaction, _: Commit) -> None:
        transaction._live_connection().close()
        raise ConnectionLostError("gone")

    losing = LostCommit(monkeypatch, lost_before)
    database.write(lambda tx: tx.execute(ROW, {"name": "a"}))
    assert (2, ["a"]) == (losing.commits, names(database))


def test_a_commit_that_is_still_on_its_way_when_its_work_is_run_again_is_not_made(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delayed(transaction: PostgresTransaction, commit: Commit) -> None:
        monkeypatch.setattr(ConnectionPool, "_check_in", keeping(transaction._live_connection()))
        monkeypatch.setattr(PostgresTransaction, "roll_back", lambda _: None)
        monkeypatch.setattr(PostgresTransaction, "end", lambda _: None)
        commits.append(commit)
        raise ConnectionLostError("gone")

    commits: list[Commit] = []
    losing = LostCommit(monkeypatch, delayed)
    database.write(lambda tx: tx.execute(ROW, {"name": "a"}))
    assert (2, ["a"]) == (losing.commits, names(database))
    with pytest.raises(psycopg.errors.DivisionByZero):
        commits[0]()
    assert ["a"] == names(database)


def test_a_commit_that_is_being_made_is_waited_for(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer waits on the server until the other transaction has ended."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE "
        "'%INTO longwatch_commits%'"
    )

    def slow(transaction: PostgresTransaction, commit: Commit) -> None:
        connection = transaction._live_connection()
        monkeypatch.setattr(ConnectionPool, "_check_in", keeping(connection))
        monkeypatch.setattr(PostgresTransaction, "roll_back", lambda _: None)
        marker_statement = losing.marker_statement
        connection.send(*marker_statement)
        connection.sync(_soon())
        threading.Thread(target=finish, args=(connection,)).start()
        raise ConnectionLostError("gone")

    def finish(connection: PostgresConnection) -> None:
        assert eventually(lambda: shared_server().sql(waiting) == [(1,)])
        connection.send(b"COMMIT")
        connection.sync(_soon())
        connection.close()

    losing = LostCommit(monkeypatch, slow)
    database.write(lambda tx: tx.execute(ROW, {"name": "a"}))
    assert (1, ["a"]) == (losing.commits, names(database))


def keeping(kept: PostgresConnection) -> Any:
    """A pool that forgets this connection instead of lending it again."""
    real = ConnectionPool._check_in

    def check_in(pool: ConnectionPool, checkout: Any) -> None:
        checkout.connection = None if checkout.connection is kept else checkout.connection
        real(pool, checkout)

    return check_in


def test_a_commit_that_cannot_be_asked_about_in_time_is_told_to_be_unknown(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_time_left(_: PostgresTransaction, commit: Commit) -> None:
        commit()
        raise CallTimeoutError("too late")

    never = BackoffPolicy(initial=1e9, cap=1e9)
    monkeypatch.setattr("longwatch.store.postgres.database.RETRY_BACKOFF", never)
    LostCommit(monkeypatch, no_time_left)
    with pytest.raises(StoreError, match="whether it was written is unknown"):
        database.write(lambda tx: tx.execute(ROW, {"name": "a"}))


def test_the_lost_answer_to_a_commit_that_wrote_nothing_is_missed_by_nobody(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: PostgresTransaction, __: Commit) -> None:
        raise ConnectionLostError("gone")

    losing = LostCommit(monkeypatch, lost)
    assert [(1,)] == database.write(lambda tx: tx.rows("SELECT 1"))
    assert 1 == losing.commits


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    server = make_server()
    server.start()
    yield server
    destroy_server(server)


def _soon() -> Deadline:
    return Deadline.after(30.0, SystemClock())


def test_a_series_of_commits_ends_and_old_ones_are_removed(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_marker, "MAX_SERIES_COMMITS", 3)
    database.write(lambda tx: tx.execute("INSERT INTO longwatch_commits VALUES (1, 5, 0, 0)"))
    with PostgresDatabase(database.url) as other:
        for number in range(7):
            other.write(lambda tx, number=number: tx.execute(ROW, {"name": str(number)}))  # type: ignore[misc]
        series = other.read(
            lambda tx: tx.rows(
                "SELECT number, closed FROM longwatch_commits WHERE updated_at > 0 "
                "ORDER BY updated_at"
            )
        )
        assert [(3, 0), (3, 0), (1, 0)] == series[-3:]
        assert [(0,)] == other.read(
            lambda tx: tx.rows("SELECT count(*) FROM longwatch_commits WHERE updated_at = 0")
        )


@pytest.mark.chaos
def test_whatever_is_answered_is_true_though_the_server_crashes_again_and_again(
    own_server: PostgresServer, chaos: Any
) -> None:
    """Written exactly once if write returned, not at all if it raised something else than
    unknown.
    """
    with PostgresDatabase(own_server.url()) as database:
        database.write(lambda tx: tx.execute("CREATE TABLE things (name text)"))
        stop, written, refused, unknown = threading.Event(), list[str](), list[str](), list[str]()

        def write(crew: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                name = f"{crew}-{number}"
                try:
                    database.write(lambda tx, name=name: tx.execute(ROW, {"name": name}))  # type: ignore[misc]
                    written.append(name)
                except StoreError as error:
                    (unknown if "unknown" in str(error) else refused).append(name)

        crew = [threading.Thread(target=write, args=(each,)) for each in range(4)]
        for thread in crew:
            thread.start()
        crashes = max(int(chaos.seconds / 2), 1)
        for _ in range(crashes):
            before = len(written)
            assert eventually(partial(reached, written, before + 200))
            own_server.kill()
            own_server.start()
        stop.set()
        for thread in crew:
            thread.join()
        found = names(database)
    assert sorted(set(found)) == found, "nothing is there twice"
    assert set(written) <= set(found), "nothing that was written is lost"
    assert not set(refused) & set(found), "nothing that was refused is there"
    assert len(unknown) <= 4 * crashes


def reached(things: Sized, count: int) -> bool:
    return len(things) > count
