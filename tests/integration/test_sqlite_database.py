from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest

from leaks import no_leaks
from longwatch.core.clock import Wakeup
from longwatch.errors import StoreBusyError, StoreClosedError, StoreError, UsageError
from longwatch.mailbox import open_mailbox
from longwatch.store.database import Transaction
from longwatch.store.sqlite.database import SqliteDatabase, _wait_for_result
from polling import eventually
from snippet import run_snippet

TIMEOUT = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.db"


@pytest.fixture
def database(path: Path) -> Iterator[SqliteDatabase]:
    """With a table `t (x)`."""
    made = SqliteDatabase(path)
    made.write(lambda tx: tx.execute("CREATE TABLE t (x)"))
    yield made
    made.close()


def insert(value: object) -> Callable[[Transaction], int]:
    return lambda tx: tx.execute("INSERT INTO t VALUES (:x)", {"x": value})


def values(tx: Transaction) -> list[object]:
    return [x for (x,) in tx.rows("SELECT x FROM t ORDER BY rowid")]


def start(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


class BusyWriter:
    """The writer, kept busy by a job that ends when told."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._go, self._begun = threading.Event(), threading.Event()
        self._thread = start(lambda: database.write(self._work))
        assert self._begun.wait(TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def _work(self, tx: Transaction) -> None:
        self._begun.set()
        insert("busy")(tx)
        self._go.wait(TIMEOUT)

    def end(self) -> None:
        self._go.set()
        self._thread.join(TIMEOUT)

    def __exit__(self, *_: object) -> None:
        self.end()


class TestTheFile:
    def test_is_not_there_before_the_first_use(self, path: Path) -> None:
        with_nothing = SqliteDatabase(path)
        assert not path.exists()
        with_nothing.close()
        assert not path.exists()

    def test_is_its_owner_s_alone_with_all_its_companions(
        self, database: SqliteDatabase, path: Path
    ) -> None:
        files = sorted(path.parent.iterdir())
        assert ["some.db", "some.db-shm", "some.db-wal"] == [file.name for file in files]
        assert {0o600} == {stat.S_IMODE(file.stat().st_mode) for file in files}

    def test_is_its_owner_s_alone_before_sqlite_opens_it(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []
        connect = sqlite3.connect

        def look(place: Path, **options: object) -> sqlite3.Connection:
            seen.append(stat.S_IMODE(place.stat().st_mode))
            return connect(place, **options)  # type: ignore[call-overload, no-any-return]

        monkeypatch.setattr(sqlite3, "connect", look)
        old = os.umask(0)
        database = SqliteDatabase(path)
        database.read(lambda tx: tx.rows("SELECT 1"))
        os.umask(old)
        database.close()
        assert {0o600} == set(seen)

    def test_that_is_there_keeps_its_permissions(self, path: Path) -> None:
        path.touch(0o640)
        path.chmod(0o640)
        database = SqliteDatabase(path)
        database.write(lambda _: None)
        database.close()
        assert 0o640 == stat.S_IMODE(path.stat().st_mode)

    def test_is_the_same_one_after_a_change_of_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        database = SqliteDatabase(Path("relative.db"))
        monkeypatch.chdir(tmp_path / "elsewhere")
        database.write(lambda tx: tx.execute("CREATE TABLE t (x)"))
        assert [] == database.read(values)
        database.close()
        assert [tmp_path / "relative.db"] == list(tmp_path.rglob("*.db"))

    def test_keeps_its_locks_when_another_database_of_this_process_opens_it(
        self, database: SqliteDatabase, path: Path
    ) -> None:
        """Closing any descriptor of a file drops every lock of the process on it; the next to
        leave would remove the log.
        """
        second = SqliteDatabase(path)
        second.read(values)
        leave = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM "
            "t').fetchall(); c.close()"
        )
        subprocess.run([sys.executable, "-c", leave, str(path)], check=True)
        database.write(insert(1))
        second.close()
        outside = sqlite3.connect(path)
        assert [(1,)] == outside.execute("SELECT x FROM t").fetchall()
        outside.close()


class TestWriting:
    def test_returns_what_the_work_returned_and_others_see_it(
        self, database: SqliteDatabase, path: Path
    ) -> None:
        assert 1 == database.write(insert("here"))
        outside = sqlite3.connect(path)
        assert [("here",)] == outside.execute("SELECT x FROM t").fetchall()
        outside.close()

    def test_an_error_of_the_work_comes_out_and_nothing_of_it_happened(
        self, database: SqliteDatabase
    ) -> None:
        def half(tx: Transaction) -> None:
            insert(1)(tx)
            raise LookupError("in the middle")

        with pytest.raises(LookupError, match="in the middle"):
            database.write(half)
        assert [] == database.read(values)
        assert 1 == database.write(insert(2))

    def test_an_error_in_the_sql_comes_out_as_it_is(self, database: SqliteDatabase) -> None:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            database.write(lambda tx: tx.execute("INSERT INTO nowhere VALUES (1)"))

    def test_a_timeout_raised_by_the_work_itself_is_the_work_s(
        self, database: SqliteDatabase
    ) -> None:
        def late(_: Transaction) -> None:
            raise TimeoutError("mine")

        with pytest.raises(TimeoutError, match="mine"):
            database.write(late)

    def test_inside_a_write_is_refused_with_the_cure(self, database: SqliteDatabase) -> None:
        with pytest.raises(
            UsageError,
            match=(
                r"^a write inside a write would wait for itself; "
                r"pass the transaction on with tx=$"
            ),
        ):
            database.write(lambda _: database.write(insert(1)))

    def test_a_send_without_the_transaction_inside_one_is_refused_with_the_cure(
        self, database: SqliteDatabase
    ) -> None:
        mailbox = open_mailbox(database, "letters")
        mailbox.send("before")
        with pytest.raises(UsageError, match="pass the transaction on with tx="):
            database.transact(lambda _: mailbox.send("inside"))
        database.transact(lambda tx: mailbox.send("with it", tx=tx))
        assert 2 == mailbox.stats().ready

    def test_a_transaction_that_has_ended_refuses(self, database: SqliteDatabase) -> None:
        for ended in (database.write(lambda tx: tx), database.read(lambda tx: tx)):
            with pytest.raises(UsageError, match="this transaction has ended"):
                insert(1)(ended)
            with pytest.raises(UsageError, match="this transaction has ended"):
                ended.execute_many("INSERT INTO t VALUES (:x)", [{"x": 1}])
        assert [] == database.read(values)


class TestReading:
    def test_is_one_consistent_view(self, database: SqliteDatabase) -> None:
        def twice(tx: Transaction) -> tuple[list[object], list[object]]:
            first = values(tx)
            database.write(insert("meanwhile"))
            return first, values(tx)

        assert ([], []) == database.read(twice)
        assert ["meanwhile"] == database.read(values)

    def test_does_not_wait_for_the_writer(self, database: SqliteDatabase) -> None:
        with BusyWriter(database):
            assert [] == database.read(values)
        assert ["busy"] == database.read(values)

    def test_nor_does_the_first_one_of_a_process_wait_for_another_program_that_writes(
        self, database: SqliteDatabase
    ) -> None:
        other = sqlite3.connect(database.path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        second = SqliteDatabase(database.path, busy_timeout=0.0)
        assert [] == second.read(values)
        second.close()
        other.close()

    def test_inside_a_read_is_allowed(self, database: SqliteDatabase) -> None:
        database.write(insert(1))
        assert [1] == database.read(lambda _: database.read(values))

    def test_cannot_write_and_says_what_can(self, database: SqliteDatabase) -> None:
        with pytest.raises(
            UsageError, match=r"^a read cannot write; use write\(\), or transact\(\)$"
        ):
            database.read(insert(1))

    def test_by_threads_that_come_and_go_leaves_nothing_open(
        self, database: SqliteDatabase
    ) -> None:
        database.read(values)
        with no_leaks():
            for _ in range(10):
                start(lambda: database.read(values)).join()


class TestATimeout:
    def test_of_a_job_that_was_not_begun_says_that_nothing_was_written_and_that_is_true(
        self, database: SqliteDatabase
    ) -> None:
        with BusyWriter(database) as busy:
            with pytest.raises(StoreBusyError) as caught:
                database.write(insert("late"), timeout=0.01)
            busy.end()
        assert "the store was busy for 0.01 s; nothing was written, try again" == str(caught.value)
        database.write(insert("after"))
        assert ["busy", "after"] == database.read(values)

    def test_of_a_job_that_runs_says_that_the_outcome_is_unknown(
        self, database: SqliteDatabase
    ) -> None:
        go = threading.Event()
        with pytest.raises(StoreError) as caught:
            database.write(lambda tx: (insert("slow")(tx), go.wait(TIMEOUT)), timeout=0.05)
        go.set()
        assert "no reply from the store within 0.05 s; whether it was written is unknown" == str(
            caught.value
        )
        database.write(insert("after"))
        assert ["slow", "after"] == database.read(values)

    def test_that_comes_just_as_the_answer_does_gives_the_answer(self) -> None:
        class JustNow(Future[str]):
            def result(self, timeout: float | None = None) -> str:
                if timeout is not None:
                    self.set_result("answer")
                    raise TimeoutError
                return super().result()

        future = JustNow()
        future.set_running_or_notify_cancel()
        assert "answer" == _wait_for_result(future, 1.0)


class TestClosing:
    def test_can_be_done_twice_and_without_having_opened(self, path: Path) -> None:
        database = SqliteDatabase(path)
        database.close()
        database.close()

    def test_leaves_no_thread_and_no_descriptor(self, path: Path) -> None:
        with no_leaks():
            database = SqliteDatabase(path)
            database.listen("channel", Wakeup())
            database.write(lambda _: None)
            database.read(lambda _: None)
            database.close()

    def test_finishes_what_waits(self, database: SqliteDatabase, path: Path) -> None:
        with BusyWriter(database) as busy:
            job = start(lambda: database.write(insert("waiting")))
            assert eventually(lambda: len(database._handle.writer._jobs) == 1)  # type: ignore[union-attr]
            closing = start(database.close)
            assert eventually(lambda: database._closed)
            busy.end()
        job.join(TIMEOUT)
        closing.join(TIMEOUT)
        outside = sqlite3.connect(path)
        assert [("busy",), ("waiting",)] == outside.execute("SELECT x FROM t").fetchall()
        outside.close()

    def test_refuses_work_from_then_on(self, database: SqliteDatabase) -> None:
        database.close()
        refusals = (
            lambda: database.write(insert(1)),
            lambda: database.read(values),
            lambda: database.listen("channel", Wakeup()),
        )
        for refused in refusals:
            with pytest.raises(StoreClosedError, match=r"some\.db was closed; open it again$"):
                refused()

    def test_does_not_disturb_somebody_who_reads(self, database: SqliteDatabase) -> None:
        def read(tx: Transaction) -> list[object]:
            database.close()
            return values(tx)

        assert [] == database.read(read)

    def test_happens_by_itself_when_nobody_knows_it_any_more(self, path: Path) -> None:
        with no_leaks():
            database = SqliteDatabase(path)
            database.write(lambda _: None)
            del database

    def test_happens_by_itself_when_the_interpreter_exits(self, path: Path, tmp_path: Path) -> None:
        code = f"""
            from pathlib import Path
            from longwatch.core.clock import Wakeup
            from longwatch.store.sqlite.database import SqliteDatabase
            database = SqliteDatabase(Path({str(path)!r}))
            database.write(lambda tx: tx.execute("CREATE TABLE t (x)"))
            database.listen("channel", Wakeup())
            print(database._handle.notifier.socket_path)
        """
        with run_snippet(code) as child:
            place = Path(child.read_line())
            assert (0, "") == child.wait()
        assert not place.exists()
        assert [path] == list(tmp_path.iterdir())


class TestAfterAFork:
    def test_the_child_opens_it_anew_though_the_writer_was_busy(self, path: Path) -> None:
        code = f"""
            import os, threading
            from pathlib import Path
            from longwatch.store.sqlite.database import SqliteDatabase

            database = SqliteDatabase(Path({str(path)!r}), busy_timeout=2.0)
            database.write(lambda tx: tx.execute("CREATE TABLE t (x)"))
            stop = threading.Event()

            def work():
                while not stop.is_set():
                    database.write(lambda tx: tx.execute("INSERT INTO t VALUES ('parent')"))
                    database.read(lambda tx: tx.rows("SELECT count(*) FROM t"))

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            codes = []
            for _ in range(15):
                pid = os.fork()
                if pid == 0:
                    database.write(lambda tx: tx.execute("INSERT INTO t VALUES ('child')"))
                    database.read(lambda tx: tx.rows("SELECT count(*) FROM t"))
                    os._exit(0)
                codes.append(os.waitpid(pid, 0)[1])
            stop.set()
            for thread in threads:
                thread.join()
            print(
                codes == [0] * 15,
                database.read(lambda tx: tx.rows("SELECT count(*) FROM t WHERE x = 'child'"))
            )
        """
        with run_snippet(code) as child:
            assert "True [(15,)]" == child.read_line()
            assert 0 == child.wait()[0]

    def test_the_parent_keeps_its_locks_and_its_log_when_the_child_ends(self, path: Path) -> None:
        code = f"""
            import os, sqlite3
            from pathlib import Path
            from longwatch.store.sqlite.database import SqliteDatabase

            database = SqliteDatabase(Path({str(path)!r}))
            database.write(lambda tx: tx.execute("CREATE TABLE t (x)"))
            if (pid := os.fork()) == 0:
                database.write(lambda tx: tx.execute("INSERT INTO t VALUES ('child')"))
                database.close()
                os._exit(0)
            os.waitpid(pid, 0)
            database.write(lambda tx: tx.execute("INSERT INTO t VALUES ('parent')"))
            outside = sqlite3.connect({str(path)!r})
            print(
                outside.execute("SELECT x FROM t").fetchall(), Path({str(path)!r} + "-wal").exists()
            )
        """
        with run_snippet(code) as child:
            assert "[('child',), ('parent',)] True" == child.read_line()
            assert 0 == child.wait()[0]

    def test_the_child_has_none_of_the_parent_s_descriptors(self, path: Path) -> None:
        code = f"""
            import os
            from pathlib import Path
            from longwatch.core.clock import Wakeup
            from longwatch.store.sqlite.database import SqliteDatabase

            def count():
                return len(os.listdir("/proc/self/fd"))

            before = count()
            database = SqliteDatabase(Path({str(path)!r}))
            database.write(lambda tx: None)
            database.read(lambda tx: None)
            database.listen("channel", Wakeup())
            if (pid := os.fork()) == 0:
                print(count() - before, flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
        """
        with run_snippet(code) as child:
            assert "0" == child.read_line()
            assert 0 == child.wait()[0]

    def test_a_mailbox_works_in_parent_and_child(self, path: Path) -> None:
        code = f"""
            import os
            from longwatch.mailbox import open_mailbox
            mailbox = open_mailbox("sqlite:///{path}", "letters")
            mailbox.send("one")
            if (pid := os.fork()) == 0:
                [message] = mailbox.receive()
                message.acknowledge()
                mailbox.send("from the child")
                os._exit(0)
            os.waitpid(pid, 0)
            print([message.body for message in mailbox.receive(max_messages=10)])
        """
        with run_snippet(code) as child:
            assert "['from the child']" == child.read_line()
            assert 0 == child.wait()[0]


class TestKilled:
    def test_between_commit_and_answer_what_was_committed_is_there(self, path: Path) -> None:
        code = f"""
            import os, signal
            from concurrent.futures import Future
            from pathlib import Path
            from longwatch.store.sqlite.database import SqliteDatabase

            database = SqliteDatabase(Path({str(path)!r}))
            database.write(lambda tx: tx.execute("CREATE TABLE t (x)"))
            Future.set_result = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            database.write(lambda tx: tx.execute("INSERT INTO t VALUES (1)"))
        """
        with run_snippet(code) as child:
            assert -signal.SIGKILL == child.wait()[0]
        database = SqliteDatabase(path)
        assert [1] == database.read(values)
        database.close()

    def test_in_the_middle_of_a_transaction_nothing_of_it_is_there(self, path: Path) -> None:
        code = f"""
            import os, signal
            from pathlib import Path
            from longwatch.store.sqlite.database import SqliteDatabase

            database = SqliteDatabase(Path({str(path)!r}))
            database.write(lambda tx: tx.execute("CREATE TABLE t (x)"))
            database.write(
                lambda tx: (
                    tx.execute("INSERT INTO t VALUES (1)"), os.kill(os.getpid(), signal.SIGKILL)
                )
            )
        """
        with run_snippet(code) as child:
            assert -signal.SIGKILL == child.wait()[0]
        database = SqliteDatabase(path)
        assert [] == database.read(values)
        assert 1 == database.write(insert(2))
        database.close()


@pytest.mark.parametrize("jump", [0.0, 3600.0, -3600.0])
def test_the_lease_clock_is_the_time_since_boot_whatever_the_wall_clock_does(
    database: SqliteDatabase, jump: float
) -> None:
    database.jump.wall = jump
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = database.read(lambda tx: tx.rows("SELECT :lease_now"))[0][0]
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_opening_a_new_file_waits_for_who_else_is_opening_it(tmp_path: Path) -> None:
    """Changing to WAL fails at once while another connection has the file locked; opening waits
    for it all the same.
    """
    other = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE theirs (x)")
    with (
        SqliteDatabase(tmp_path / "new.db", busy_timeout=30) as database,
        ThreadPoolExecutor(1) as pool,
    ):
        opening = pool.submit(database.write, insert(1))
        with pytest.raises(TimeoutError):
            opening.exception(0.3)
        other.execute("COMMIT")
        other.close()
        assert isinstance(opening.exception(30), sqlite3.OperationalError), (
            "there is no table t in this file: it was opened"
        )
