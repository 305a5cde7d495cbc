from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from longwatch.core.clock import Wakeup
from longwatch.errors import (
    StoreBusyError,
    StoreClosedError,
    StoreFullError,
    StoreUnreachableError,
    UsageError,
)
from longwatch.host.background_thread import BackgroundThread
from longwatch.store.database import Transaction
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.store.sqlite.groupcommit import MAX_BATCH_JOBS, GroupCommit, Job
from polling import eventually

TIMEOUT = 30.0
Work = Callable[[Transaction], object]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    """With a table `t (x UNIQUE)`."""
    made = SqliteDatabase(tmp_path / "some.db")
    made.write(lambda tx: tx.execute("CREATE TABLE t (x UNIQUE)"))
    yield made
    made.close()


def insert(value: object) -> Work:
    return lambda tx: tx.execute("INSERT INTO t VALUES (:x)", {"x": value})


def values(database: SqliteDatabase) -> list[object]:
    return [x for (x,) in database.read(lambda tx: tx.rows("SELECT x FROM t ORDER BY rowid"))]


def raw(database: SqliteDatabase) -> sqlite3.Connection:
    assert database._handle is not None
    return database._handle._connection.raw


def together(database: SqliteDatabase, works: list[Work]) -> list[Future[Any]]:
    """Jobs that were all waiting when the writer came for them; settled when this returns."""
    with busy_writer(writer(database)):
        futures = [writer(database).submit(work) for work in works]
    for future in futures:
        future.exception(TIMEOUT)
    return futures


def writer(database: SqliteDatabase) -> GroupCommit:
    assert database._handle is not None
    return database._handle.writer


@contextmanager
def busy_writer(group: GroupCommit) -> Iterator[None]:
    """Within the block the thread is busy with a job."""
    go, begun = threading.Event(), threading.Event()

    def work(_: object) -> None:
        begun.set()
        go.wait(TIMEOUT)

    job = group.submit(work)
    assert begun.wait(TIMEOUT)
    yield
    go.set()
    job.result(TIMEOUT)


def settle(jobs: list[Job]) -> None:
    for work, future in jobs:
        future.set_result(work(None))


def failing(error: BaseException, *, after: object) -> Work:
    def work(tx: Transaction) -> None:
        insert(after)(tx)
        raise error

    return work


class TestJobsThatWaitTogether:
    def test_share_one_commit(self, database: SqliteDatabase) -> None:
        commits: list[str] = []
        raw(database).set_trace_callback(
            lambda sql: commits.append(sql) if sql == "COMMIT" else None
        )
        together(database, [insert(number) for number in range(100)])
        raw(database).set_trace_callback(None)
        assert 2 == len(commits)
        assert list(range(100)) == values(database)

    def test_come_from_many_threads_and_each_gets_its_own_answer(
        self, database: SqliteDatabase
    ) -> None:
        commits: list[str] = []
        raw(database).set_trace_callback(
            lambda sql: commits.append(sql) if sql == "COMMIT" else None
        )
        answers: dict[int, int] = {}

        def work(number: int) -> None:
            for each in range(20):
                key = number * 100 + each
                answers[key] = database.write(lambda tx, key=key: (insert(key)(tx), key)[1])  # type: ignore[misc]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        raw(database).set_trace_callback(None)
        assert {key: key for key in answers} == answers
        assert 160 == len(values(database))
        assert len(commits) < 160

    def test_are_no_more_than_the_most_in_one_transaction(self, database: SqliteDatabase) -> None:
        begins: list[str] = []
        raw(database).set_trace_callback(
            lambda sql: begins.append(sql) if sql.startswith("BEGIN") else None
        )
        together(database, [insert(number) for number in range(MAX_BATCH_JOBS + 1)])
        raw(database).set_trace_callback(None)
        assert 3 == len(begins)

    @pytest.mark.parametrize(
        "error",
        [ValueError("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()],
        ids=lambda error: type(error).__name__,
    )
    def test_one_that_fails_harms_no_other(
        self, database: SqliteDatabase, error: BaseException
    ) -> None:
        before, bad, after = together(
            database, [insert("before"), failing(error, after="half"), insert("after")]
        )
        assert error is bad.exception()
        assert (1, 1) == (before.result(), after.result())
        assert ["before", "after"] == values(database)

    def test_a_broken_constraint_harms_no_other(self, database: SqliteDatabase) -> None:
        _, bad, _ = together(database, [insert("same"), insert("same"), insert("other")])
        assert isinstance(bad.exception(), sqlite3.IntegrityError)
        assert ["same", "other"] == values(database)

    def test_one_that_leaves_a_savepoint_open_harms_no_other(
        self, database: SqliteDatabase
    ) -> None:
        together(database, [lambda tx: (tx.execute("SAVEPOINT mine"), insert(1)(tx)), insert(2)])
        assert [1, 2] == values(database)

    def test_one_whose_caller_gave_up_is_left_out(self, database: SqliteDatabase) -> None:
        with busy_writer(writer(database)):
            given_up, wanted = (
                writer(database).submit(insert(name)) for name in ("given up", "wanted")
            )
            assert given_up.cancel()
        wanted.result(TIMEOUT)
        assert ["wanted"] == values(database)


class TestATransactionThatFails:
    def test_at_its_commit_tells_everybody_that_nothing_was_written(
        self, database: SqliteDatabase
    ) -> None:
        """A deferred constraint fails at the commit, as a full disk does."""
        database.write(
            lambda tx: tx.execute(
                "CREATE TABLE child (x REFERENCES t (x) DEFERRABLE INITIALLY DEFERRED)"
            )
        )
        orphan = lambda tx: tx.execute("INSERT INTO child VALUES ('orphan')")  # noqa: E731 - one of three works
        futures = together(database, [insert(1), orphan, insert(2)])
        assert [sqlite3.IntegrityError] * 3 == [type(future.exception()) for future in futures]
        assert [] == values(database)
        database.write(insert(3))
        assert [3] == values(database)

    def test_because_the_disk_is_full_in_the_middle_fails_the_whole_group(
        self, database: SqliteDatabase
    ) -> None:
        """`max_page_count` fails a statement the way a full disk does: with SQLITE_FULL, before
        the commit.
        """
        [(pages,)] = raw(database).execute("PRAGMA page_count").fetchall()
        raw(database).execute(f"PRAGMA max_page_count = {pages + 2}")
        futures = together(database, [insert("small"), insert("x" * 100_000), insert("small too")])
        errors = [future.exception() for future in futures]
        assert [StoreFullError] * 3 == [type(error) for error in errors]
        expected = (
            f"{database.path} cannot grow: the disk is full; nothing was written, free some space"
        )
        assert {expected} == {str(error) for error in errors}
        assert [] == values(database)
        raw(database).execute("PRAGMA max_page_count = 100000")
        assert [None] == [
            future.exception() for future in together(database, [insert("x" * 100_000)])
        ]

    def test_because_the_disk_is_bad_fails_the_whole_group(self, database: SqliteDatabase) -> None:
        bad_disk = sqlite3.OperationalError("disk I/O error")
        bad_disk.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
        futures = together(database, [insert(1), failing(bad_disk, after=2), insert(3)])
        assert [StoreUnreachableError] * 3 == [type(future.exception()) for future in futures]
        assert [] == values(database)

    def test_because_a_job_ended_it_fails_that_job_alone(self, database: SqliteDatabase) -> None:
        database.write(lambda tx: tx.execute("CREATE TABLE one (x PRIMARY KEY)"))
        ending = lambda tx: [tx.execute("INSERT OR ROLLBACK INTO one VALUES (1)") for _ in range(2)]  # noqa: E731 - one of three
        futures = together(database, [insert(1), ending, insert(2)])
        assert [type(None), sqlite3.IntegrityError, type(None)] == [
            type(future.exception()) for future in futures
        ]
        assert [1, 2] == values(database)

    @pytest.mark.parametrize(
        "sql", ["COMMIT", " rollback", "-- now\nEND", "/* a */ BEGIN IMMEDIATE", ";commit"]
    )
    def test_cannot_be_asked_for_by_a_job(self, database: SqliteDatabase, sql: str) -> None:
        futures = together(database, [insert(1), lambda tx: tx.execute(sql), insert(2)])
        assert [type(None), UsageError, type(None)] == [
            type(future.exception()) for future in futures
        ]
        assert [1, 2] == values(database)

    def test_announces_nothing(self, database: SqliteDatabase) -> None:
        wakeup = Wakeup()
        database.listen("channel", wakeup)
        with pytest.raises(ValueError, match="no"):
            database.write(
                lambda tx: (tx.notify("channel"), failing(ValueError("no"), after=1)(tx))
            )
        database.write(lambda tx: tx.notify("another"))
        assert not wakeup.is_set()
        database.write(lambda tx: tx.notify("channel"))
        assert eventually(wakeup.is_set)


class TestTheThread:
    def test_survives_whatever_the_commit_raises_and_shows_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown: list[BaseException | None] = []
        monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))
        broken = [True]
        error = MemoryError("no more")

        def commit(jobs: list[Job]) -> None:
            if broken[0]:
                raise error
            for _, future in jobs:
                future.set_result("done")

        group = GroupCommit(commit, name="group")
        with pytest.raises(MemoryError, match="no more"):
            group.submit(lambda _: None).result(TIMEOUT)
        broken[0] = False
        assert "done" == group.submit(lambda _: None).result(TIMEOUT)
        group.close()
        assert [error] == shown

    def test_that_cannot_be_had_is_a_clear_error_and_the_next_try_works(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: BackgroundThread, **__: object) -> None:
            raise RuntimeError("can't start new thread")

        group = GroupCommit(settle, name="group")
        with monkeypatch.context() as patch:
            patch.setattr(BackgroundThread, "start", refuse)
            with pytest.raises(
                StoreBusyError,
                match=r"^the writer thread cannot start \(can't start new thread\); nothing was",
            ):
                group.submit(lambda _: None)
        assert 1 == group.submit(lambda _: 1).result(TIMEOUT)
        group.close()

    def test_keeps_nothing_of_a_batch_while_it_waits(self) -> None:
        class Body:
            def __call__(self, _: object) -> None: ...

        group, body = GroupCommit(settle, name="group"), Body()
        watch = weakref.ref(body)
        group.submit(body).result(TIMEOUT)
        del body
        assert eventually(lambda: watch() is None)
        group.close()

    def test_calls_the_end_once_after_the_last_job(self) -> None:
        done: list[str] = []
        group = GroupCommit(settle, name="group", on_close=lambda: done.append("end"))
        group.submit(lambda _: done.append("job")).result(TIMEOUT)
        group.close()
        group.close()
        assert ["job", "end"] == done

    def test_that_never_began_still_has_its_end(self) -> None:
        done: list[str] = []
        group = GroupCommit(lambda _: None, name="group", on_close=lambda: done.append("end"))
        group.close()
        group.close()
        assert ["end"] == done
        with pytest.raises(StoreClosedError, match="open it again"):
            group.submit(lambda _: None)

    def test_may_close_itself(self, database: SqliteDatabase) -> None:
        database.write(lambda _: database.close())
        with pytest.raises(StoreClosedError):
            database.write(insert(1))


def held_back(work: Work, begun: threading.Event, go: threading.Event) -> Work:
    """The same, in the middle of which a test may do something."""

    def held(tx: Transaction) -> object:
        begun.set()
        go.wait(TIMEOUT)
        return work(tx)

    return held


class TestAJobThatMayBeWrittenHere:
    @pytest.fixture(name="quiet")
    def quiet_fixture(self, database: SqliteDatabase) -> SqliteDatabase:
        """Nobody has shared a commit for a while."""
        for number in range(10):
            database.write(insert(f"before {number}"))
        return database

    def test_is_by_the_thread_that_asks(self, quiet: SqliteDatabase) -> None:
        assert threading.get_ident() == quiet.write_inline(
            lambda tx: (insert(1)(tx), threading.get_ident())[1]
        )
        assert 1 in values(quiet)

    def test_is_not_while_somebody_writes(self, quiet: SqliteDatabase) -> None:
        with busy_writer(writer(quiet)):
            job = writer(quiet).submit(lambda _: threading.get_ident(), inline=True)
        assert threading.get_ident() != job.result(TIMEOUT)

    def test_is_not_where_commits_are_shared(self, quiet: SqliteDatabase) -> None:
        together(quiet, [insert(number) for number in range(3)])
        assert threading.get_ident() != quiet.write_inline(lambda _: threading.get_ident())

    def test_that_fails_has_written_nothing(self, quiet: SqliteDatabase) -> None:
        with pytest.raises(ValueError, match="no"):
            quiet.write_inline(failing(ValueError("no"), after="half"))
        assert "half" not in values(quiet)
        quiet.write_inline(insert("whole"))
        assert "whole" in values(quiet)

    def test_refuses_a_write_within(self, quiet: SqliteDatabase) -> None:
        with pytest.raises(UsageError, match="a write inside a write"):
            quiet.write_inline(lambda _: quiet.write(insert(1)))
        with pytest.raises(UsageError, match="a write inside a write"):
            quiet.write_inline(lambda _: quiet.write_inline(insert(1)))

    def test_keeps_others_waiting_no_longer_than_it_takes(self, quiet: SqliteDatabase) -> None:
        begun, go = threading.Event(), threading.Event()
        here = threading.Thread(
            target=lambda: quiet.write_inline(held_back(insert("here"), begun, go))
        )
        here.start()
        assert begun.wait(TIMEOUT)
        other = writer(quiet).submit(insert("other"))
        go.set()
        other.result(TIMEOUT)
        here.join(TIMEOUT)
        assert ["here", "other"] == values(quiet)[-2:]

    def test_may_end_the_store_afterwards(self, quiet: SqliteDatabase) -> None:
        """It does not wait for itself."""
        ended = threading.Event()

        def close() -> None:
            quiet.close()
            ended.set()

        quiet.write_inline(lambda tx: tx.after_commit(close))
        assert ended.is_set()
        with pytest.raises(StoreClosedError):
            quiet.write(insert("later"))

    def test_is_finished_before_the_end(self, quiet: SqliteDatabase) -> None:
        begun, go, answers = threading.Event(), threading.Event(), list[object]()

        def write() -> None:
            answers.append(quiet.write_inline(held_back(insert("last"), begun, go)))

        here, closing = threading.Thread(target=write), threading.Thread(target=quiet.close)
        here.start()
        assert begun.wait(TIMEOUT)
        closing.start()
        go.set()
        for thread in (here, closing):
            thread.join(TIMEOUT)
        assert [1] == answers
        with SqliteDatabase(quiet.path) as again:
            assert "last" in values(again)
        with pytest.raises(StoreClosedError):
            quiet.write_inline(insert("later"))
