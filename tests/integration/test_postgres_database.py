"""The PostgreSQL engine: transactions, connections, time limits, forks, the schema."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import psycopg
import pytest

from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.errors import (
    SchemaTooNewError,
    SchemaTooOldError,
    StoreAuthenticationError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreLocationError,
    StoreReadOnlyError,
    StoreUnreachableError,
    UnsafeSettingsWarning,
    UsageError,
)
from longwatch.mailbox import open_mailbox
from longwatch.store.database import Transaction
from longwatch.store.migrations import load_migrations, schema_status
from longwatch.store.postgres import pool
from longwatch.store.postgres.connector import (
    ServerAddress,
    ServerUnreachableError,
    TooManyConnectionsError,
)
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.postgres.errors import CallTimeoutError
from longwatch.store.postgres.pool import ConnectionPool
from polling import eventually
from postgres_server import PostgresServer, shared_server
from snippet import run_snippet


@pytest.fixture
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with server.database() as made:
        yield made


@pytest.fixture
def database(url: str) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(url) as opened:
        opened.write(lambda tx: tx.execute("CREATE TABLE things (name text PRIMARY KEY)"))
        yield opened


def add(tx: Any, name: str) -> None:
    tx.execute("INSERT INTO things VALUES (:name)", {"name": name})


def names(database: PostgresDatabase) -> list[str]:
    return [
        name
        for (name,) in database.read(lambda tx: tx.rows("SELECT name FROM things ORDER BY name"))
    ]


def connections(server: PostgresServer, url: str, condition: str = "true") -> int:
    name = url.rpartition("/")[2]
    sql = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND {condition}"
    return int(server.sql(sql)[0][0])


def backend(database: PostgresDatabase) -> int:
    """The process of the server that a connection leads to."""
    return int(database.read(lambda tx: tx.rows("SELECT pg_backend_pid()"))[0][0])


@contextmanager
def encoded(server: PostgresServer, encoding: str) -> Iterator[str]:
    """The URL of a database of that encoding."""
    name = f"test_{os.urandom(6).hex()}"
    server.sql(f"CREATE DATABASE {name} ENCODING {encoding} LOCALE 'C' TEMPLATE template0")
    try:
        yield server.url(name)
    finally:
        server.sql(f"DROP DATABASE {name} WITH (FORCE)")


NAMES = "INSERT INTO things SELECT unnest(:name::text[])"


class OopsError(Exception):
    pass


class TestATransaction:
    def test_is_there_for_others_when_write_returns(
        self, database: PostgresDatabase, url: str
    ) -> None:
        database.write(lambda tx: add(tx, "a"))
        with PostgresDatabase(url) as other:
            assert ["a"] == names(other)

    def test_that_raises_never_was_and_its_error_comes_out(
        self, database: PostgresDatabase
    ) -> None:
        def work(tx: Any) -> None:
            add(tx, "a")
            raise OopsError

        with pytest.raises(OopsError):
            database.write(work)
        assert [] == names(database)

    def test_whose_sql_is_wrong_raises_what_the_server_said(
        self, database: PostgresDatabase
    ) -> None:
        with pytest.raises(psycopg.errors.UndefinedTable):
            database.write(lambda tx: tx.execute("INSERT INTO nowhere VALUES (1)"))
        database.write(lambda tx: add(tx, "a"))
        assert ["a"] == names(database)

    def test_that_passes_over_an_error_of_the_server_is_told_that_nothing_was_written(
        self, database: PostgresDatabase
    ) -> None:
        def work(tx: Any) -> None:
            add(tx, "a")
            with pytest.raises(psycopg.errors.UniqueViolation):
                add(tx, "a")

        with pytest.raises(StoreError, match="nothing was written"):
            database.write(work)
        assert [] == names(database)

    def test_sends_what_was_posted_with_its_next_statement(
        self, database: PostgresDatabase
    ) -> None:
        def work(tx: Any) -> list[Any]:
            tx.defer_many(NAMES, [{"name": "a"}, {"name": "b"}])
            tx.defer_many(NAMES, [{"name": "c"}])
            return [
                *tx.rows("SELECT count(*) FROM things"),
                tx.execute("DELETE FROM things WHERE name = 'a'"),
            ]

        assert [(3,), 1] == database.write(work)
        assert ["b", "c"] == names(database)

    def test_raises_at_its_end_what_was_wrong_with_what_it_posted_and_nothing_is_written(
        self, database: PostgresDatabase
    ) -> None:
        def work(tx: Any) -> None:
            add(tx, "a")
            tx.defer_many(NAMES, [{"name": "a"}])

        with pytest.raises(psycopg.errors.UniqueViolation):
            database.write(work)
        assert [] == names(database)

    @pytest.mark.parametrize("posted", ["a", "there"])
    def test_that_raises_after_it_posted_something_never_was_and_its_connection_is_used_on(
        self, database: PostgresDatabase, posted: str
    ) -> None:
        def work(tx: Any) -> None:
            tx.defer_many(NAMES, [{"name": posted}])
            raise OopsError

        database.write(lambda tx: add(tx, "there"))
        before = backend(database)
        for _ in range(3):
            with pytest.raises(OopsError):
                database.write(work)
        assert (["there"], before) == (names(database), backend(database))

    def test_cannot_be_used_after_its_end(self, database: PostgresDatabase) -> None:
        kept = database.write(lambda tx: tx)
        with pytest.raises(UsageError, match="has ended"):
            kept.rows("SELECT 1")

    def test_inside_another_is_refused(self, database: PostgresDatabase) -> None:
        with pytest.raises(UsageError, match="tx="):
            database.write(lambda _: database.write(lambda tx: add(tx, "a")))
        database.write(lambda tx: add(tx, "b"))
        assert ["b"] == names(database)

    def test_calls_back_when_it_is_committed_and_only_then(
        self, database: PostgresDatabase
    ) -> None:
        called: list[str] = []

        def work(tx: Any, name: str) -> None:
            tx.after_commit(lambda: called.append(name))
            add(tx, name)

        database.write(lambda tx: work(tx, "a"))
        with pytest.raises(psycopg.errors.UniqueViolation):
            database.write(lambda tx: work(tx, "a"))
        assert ["a"] == called

    def test_of_a_user_has_the_plans_that_its_statements_need(
        self, database: PostgresDatabase
    ) -> None:
        setting = "SELECT current_setting('enable_seqscan'), current_setting('plan_cache_mode')"
        assert [("on", "auto")] == database.transact(lambda tx: tx.rows(setting))
        assert [("off", "force_generic_plan")] == database.write(lambda tx: tx.rows(setting))


class TestARead:
    def test_sees_one_state_whatever_others_commit_meanwhile(
        self, database: PostgresDatabase
    ) -> None:
        def look(tx: Any) -> list[int]:
            first = tx.rows("SELECT count(*) FROM things")[0][0]
            database.write(lambda other: add(other, "meanwhile"))
            return [first, tx.rows("SELECT count(*) FROM things")[0][0]]

        assert [0, 0] == database.read(look)
        assert ["meanwhile"] == names(database)

    def test_cannot_write(self, database: PostgresDatabase) -> None:
        with pytest.raises(UsageError, match="a read cannot write"):
            database.read(lambda tx: add(tx, "a"))
        assert [] == names(database)


class TestTheConnections:
    def test_are_made_when_they_are_needed_and_kept(self, server: PostgresServer, url: str) -> None:
        with PostgresDatabase(url) as database:
            assert 0 == connections(server, url)
            for _ in range(5):
                database.read(lambda tx: tx.rows("SELECT 1"))
            assert 1 == connections(server, url)
        assert eventually(lambda: connections(server, url) == 0)

    def test_keep_no_setting_when_a_transaction_has_ended(self, database: PostgresDatabase) -> None:
        """Behind a pooler other applications use the session next."""
        names = (
            "statement_timeout",
            "idle_in_transaction_session_timeout",
            "jit",
            "plan_cache_mode",
            "enable_seqscan",
            "enable_bitmapscan",
        )
        settings = f"SELECT {', '.join(f'current_setting({name!r})' for name in names)}".encode()
        deadline = Deadline.after(30.0, SystemClock())
        changed = database.write(lambda tx: tx.rows(settings.decode()))
        with database._open()._pool.connection(deadline) as connection:
            after = connection.query(settings, (), deadline)
        assert [("30s", "1min", "off", "force_generic_plan", "off", "off")] == changed
        assert [("0", "0", "on", "auto", "on", "on")] == after

    def test_are_bounded_and_who_finds_none_free_in_its_time_is_told(self, url: str) -> None:
        with PostgresDatabase(url, size=2) as database, ExitStack() as ends:
            database.read(lambda tx: tx.rows("SELECT 1"))
            inside, leave = threading.Semaphore(0), threading.Event()

            def hold(tx: Any) -> None:
                tx.rows("SELECT 1")
                inside.release()
                leave.wait()

            holders = [threading.Thread(target=lambda: database.read(hold)) for _ in range(2)]
            ends.callback(leave.set)
            for holder in holders:
                holder.start()
                inside.acquire()
            with pytest.raises(StoreBusyError, match="all 2 connections"):
                database.read(lambda tx: tx.rows("SELECT 1"), timeout=0.05)
            leave.set()
            for holder in holders:
                holder.join()
            assert [(1,)] == database.read(lambda tx: tx.rows("SELECT 1"))

    def test_that_are_idle_are_closed_but_one(
        self, server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pool, "IDLE_SECONDS", 0.05)
        with PostgresDatabase(url) as database:
            for _ in range(2):
                barrier = threading.Barrier(4)

                def wait(_: Any, barrier: threading.Barrier = barrier) -> None:
                    barrier.wait(30.0)

                readers = [threading.Thread(target=database.read, args=(wait,)) for _ in range(4)]
                for reader in readers:
                    reader.start()
                for reader in readers:
                    reader.join()
                assert eventually(lambda: connections(server, url) == 1)
            kept = database.read(lambda tx: tx.rows("SELECT pg_backend_pid()"))
            assert kept == database.read(lambda tx: tx.rows("SELECT pg_backend_pid()"))

    def test_that_the_server_ended_are_made_again_within_the_call(
        self, server: PostgresServer, database: PostgresDatabase
    ) -> None:
        ended = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
            "'longwatch'"
        )
        for name in ("a", "b", "c"):
            server.sql(ended)
            database.write(lambda tx, name=name: add(tx, name))  # type: ignore[misc]
        assert ["a", "b", "c"] == names(database)

    def test_lost_in_the_middle_of_the_work_have_it_run_again(
        self, server: PostgresServer, database: PostgresDatabase
    ) -> None:
        tries: list[int] = []

        def work(tx: Any) -> None:
            add(tx, "a")
            [(pid,)] = tx.rows("SELECT pg_backend_pid()")
            tries.append(pid)
            if len(tries) == 1:
                server.sql(f"SELECT pg_terminate_backend({pid})")
            add(tx, "b")

        database.write(work)
        assert (2, ["a", "b"]) == (len(set(tries)), names(database))

    def test_lost_and_made_again_may_lead_to_another_state_so_what_was_learnt_is_asked_again(
        self, server: PostgresServer, database: PostgresDatabase
    ) -> None:
        before = database.generation
        self.test_lost_in_the_middle_of_the_work_have_it_run_again(server, database)
        assert before < database.generation

    def test_of_a_closed_database_are_refused(self, database: PostgresDatabase) -> None:
        database.close()
        database.close()
        with pytest.raises(StoreClosedError):
            database.read(lambda tx: tx.rows("SELECT 1"))


class TestADeadlock:
    def test_is_tried_again_until_both_are_through(self, database: PostgresDatabase) -> None:
        for name in ("a", "b"):
            database.write(lambda tx, name=name: add(tx, name))  # type: ignore[misc]
        meet = threading.Barrier(2, timeout=30)
        met: list[str] = []

        def touch(tx: Any, first: str, second: str) -> None:
            tx.execute("UPDATE things SET name = name WHERE name = :name", {"name": first})
            if len(met) < 2:
                met.append(first)
                meet.wait()
            tx.execute("UPDATE things SET name = name WHERE name = :name", {"name": second})

        other = threading.Thread(target=lambda: database.write(lambda tx: touch(tx, "b", "a")))
        other.start()
        database.write(lambda tx: touch(tx, "a", "b"))
        other.join()
        assert ["a", "b"] == names(database)


class TestWhatTheServerDoesNotDo:
    def test_because_it_answers_no_more_ends_with_the_time_of_the_call(
        self, server: PostgresServer, database: PostgresDatabase
    ) -> None:
        with server.frozen():
            for call in (database.read, database.write):
                with pytest.raises(StoreError):
                    call(lambda tx: tx.rows("SELECT 1"), timeout=0.2)
        assert [(1,)] == database.read(lambda tx: tx.rows("SELECT 1"))

    def test_because_a_row_is_locked_ends_with_the_time_of_the_call(
        self, database: PostgresDatabase, url: str
    ) -> None:
        database.write(lambda tx: add(tx, "a"))
        with psycopg.connect(url) as other:
            other.execute("SELECT * FROM things FOR UPDATE")
            with pytest.raises(StoreBusyError):
                database.write(lambda tx: tx.execute("DELETE FROM things"), timeout=0.2)
        assert ["a"] == names(database)

    def test_because_a_statement_takes_too_long_is_said_so(
        self, database: PostgresDatabase
    ) -> None:
        def work(tx: Any) -> None:
            tx.execute("SET LOCAL statement_timeout = 10")
            tx.rows("SELECT pg_sleep(10)")

        with pytest.raises(StoreBusyError, match="did not finish a statement in time"):
            database.write(work)

    def test_because_it_is_read_only_is_said_with_the_cure(
        self, server: PostgresServer, database: PostgresDatabase
    ) -> None:
        name = database.url.rpartition("/")[2]
        server.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with (
            PostgresDatabase(database.url) as other,
            pytest.raises(StoreReadOnlyError, match="target_session_attrs=read-write"),
        ):
            other.write(lambda tx: add(tx, "a"))

    def test_because_this_user_may_not_is_said_with_the_cure(
        self, server: PostgresServer, database: PostgresDatabase
    ) -> None:
        mailbox = open_mailbox(database, "work")
        mailbox.send(1)
        role = f"guest_{os.urandom(4).hex()}"
        server.sql(f"CREATE ROLE {role} LOGIN")
        try:
            with PostgresDatabase(database.url.replace("postgres@", f"{role}:secret@")) as guest:
                with pytest.raises(StoreReadOnlyError, match="GRANT SELECT, INSERT") as refused:
                    guest.read(lambda tx: tx.rows("SELECT * FROM longwatch_messages"))
                assert "secret" not in str(refused.value)
        finally:
            server.sql(f"DROP ROLE {role}")

    def test_because_the_disk_is_full_is_said(self, database: PostgresDatabase) -> None:
        raising = "DO $$ BEGIN RAISE SQLSTATE '53100'; END $$"
        with pytest.raises(StoreError, match="disk is full"):
            database.write(lambda tx: tx.execute(raising))


class TestAServerThatCannotBeReached:
    def test_because_nobody_is_there_is_told_at_once_and_without_the_password(self) -> None:
        with PostgresDatabase("postgresql://me:hidden@127.0.0.1:1/x") as database:
            with pytest.raises(StoreUnreachableError, match="check host and port") as refused:
                database.read(lambda tx: tx.rows("SELECT 1"))
            assert "?" not in str(refused.value)
            assert "hidden" not in str(refused.value)

    def test_because_the_database_does_not_exist_is_told(self, server: PostgresServer) -> None:
        with (
            PostgresDatabase(server.url("nowhere")) as database,
            pytest.raises(StoreLocationError, match="does not exist"),
        ):
            database.read(lambda tx: tx.rows("SELECT 1"))

    @pytest.mark.parametrize("name", ["recovery", "starting up", "too many clients"])
    def test_is_judged_by_what_the_server_said_not_by_names_in_it(
        self, server: PostgresServer, name: str
    ) -> None:
        refused = pytest.raises(
            StoreLocationError, match="names no database that accepts connections"
        )
        with PostgresDatabase(server.url(name.replace(" ", "%20"))) as database, refused:
            database.stored_schema()

    def test_because_it_does_not_know_the_user_is_told_as_a_refused_login(self, url: str) -> None:
        refused = pytest.raises(
            StoreAuthenticationError, match=r"check user, password and pg_hba\.conf"
        )
        with PostgresDatabase(f"{url}?user=nobody_of_that_name") as database, refused as error:
            database.stored_schema()
        assert 2 == error.value.exit_code

    def test_because_its_encoding_has_no_place_for_some_texts_is_told_with_the_cure(
        self, server: PostgresServer
    ) -> None:
        refused = pytest.raises(
            StoreLocationError, match=r"encoding LATIN1.*createdb --encoding=UTF8"
        )
        with encoded(server, "LATIN1") as url, PostgresDatabase(url) as database, refused:
            database.stored_schema()

    def test_though_its_encoding_takes_every_text_is_not_told(self, server: PostgresServer) -> None:
        with encoded(server, "SQL_ASCII") as url, PostgresDatabase(url) as database:
            mailbox = open_mailbox(database, "work")
            assert 1 == len({mailbox.send("x", dedupe_key="日本") for _ in range(2)})

    @pytest.mark.parametrize("setting", ["sslmode=foo", "sslmode=require", "options=-cfoo%3Dbar"])
    def test_because_of_what_its_url_says_is_not_tried_again(self, url: str, setting: str) -> None:
        with (
            PostgresDatabase(f"{url}?{setting}") as database,
            pytest.raises(StoreLocationError, match="check"),
        ):
            database.stored_schema()

    def test_because_its_host_is_not_found_is_told_as_that_and_may_pass(self) -> None:
        refused = pytest.raises(ServerUnreachableError, match="host that was not found")
        with (
            PostgresDatabase("postgresql://me@certificate.invalid/x") as database,
            refused as error,
        ):
            database.stored_schema()
        assert 75 == error.value.exit_code

    @pytest.mark.parametrize("password", ["se/cret", "se@cret", "se%zzcret", "12/cret", "se/cr@et"])
    def test_because_its_password_is_not_encoded_is_told_without_any_of_it(
        self, password: str
    ) -> None:
        with pytest.raises(UsageError, match="percent-encoded") as refused:
            PostgresDatabase(f"postgresql://me:{password}@127.0.0.1:1/x")
        assert "postgresql://***" == str(refused.value).partition(" cannot be read")[0]
        assert "cret" not in str(refused.value)

    @pytest.mark.parametrize("port", ["abc", "0", "70000"])
    def test_because_its_port_is_none_is_wrong_use(self, port: str) -> None:
        with pytest.raises(UsageError, match="from 1 to 65535"):
            PostgresDatabase(f"postgresql://me@127.0.0.1:{port}/x")

    def test_because_its_hosts_do_not_fit_its_ports_is_wrong_use(self) -> None:
        with pytest.raises(UsageError, match="one port for all hosts, or one for each"):
            PostgresDatabase("postgresql://me@127.0.0.1,127.0.0.1/x?port=1,2,3")

    def test_because_its_url_is_none_is_wrong_use(self) -> None:
        with pytest.raises(UsageError, match="postgresql://user@host") as refused:
            PostgresDatabase("postgresql://me:hidden@[host/x")
        assert "hidden" not in str(refused.value)

    def test_at_the_first_of_its_hosts_is_looked_for_at_the_next(
        self, server: PostgresServer, url: str
    ) -> None:
        both = url.replace("127.0.0.1:", "127.0.0.1:1,127.0.0.1:")
        with PostgresDatabase(both) as database:
            assert [(1,)] == database.read(lambda tx: tx.rows("SELECT 1"))

    def test_because_all_its_connections_are_taken_is_reached_when_one_is_free(
        self, server: PostgresServer, url: str
    ) -> None:
        name = url.rpartition("/")[2]
        role = f"narrow_{os.urandom(4).hex()}"
        server.sql(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1")
        try:
            narrow = server.url(name, user=role)
            with (
                PostgresDatabase(narrow, auto_migrate=False) as database,
                psycopg.connect(narrow) as only,
            ):
                with pytest.raises(StoreBusyError, match="no free connection"):
                    database.stored_schema(timeout=1.0)
                threading.Timer(0.1, only.close).start()
                assert 0 == database.stored_schema().version
        finally:
            server.sql(f"DROP ROLE {role}")

    def test_is_told_as_it_was_heard_though_the_last_try_had_no_time_to_hear_it(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = iter(
            [
                TooManyConnectionsError("has no free connection"),
                CallTimeoutError("did not answer in time"),
            ]
        )

        def answer(_address: ServerAddress, _deadline: Deadline) -> NoReturn:
            raise next(answers)

        monkeypatch.setattr(ServerAddress, "connect", answer)
        with (
            PostgresDatabase(url) as database,
            pytest.raises(TooManyConnectionsError, match="no free connection"),
        ):
            database.stored_schema()


class InterruptedPool(ConnectionPool):
    """Ctrl+C comes when a place was just taken."""

    def _check_out(self, checkout: Any, deadline: Deadline) -> None:
        super()._check_out(checkout, deadline)
        raise KeyboardInterrupt


def test_a_place_among_the_connections_is_not_lost_to_an_interrupt() -> None:
    pool = InterruptedPool(lambda _: pytest.fail("nobody gets that far"), size=1)
    for _ in range(2):
        soon = Deadline.after(0.01, SystemClock())
        with pytest.raises(KeyboardInterrupt), pool.connection(soon):
            pass


class TestTheSchema:
    def test_is_made_by_who_comes_first_and_its_status_is_told_without_making_it(
        self, url: str
    ) -> None:
        with PostgresDatabase(url) as database:
            before = schema_status(database)
            database.write(lambda _: None)
            after = schema_status(database)
        assert before is not None
        assert after is not None
        pending = [
            "0004_initial",
            "0005_blame",
            "0006_runner",
            "0007_settled_executions",
            "0008_complete_flow",
            "0009_headers",
            "0010_min_reader",
            "0011_storage",
            "0012_sweep_turns",
        ]
        assert (0, pending) == (before.version, before.pending)
        assert (12, 10, []) == (after.version, after.min_reader, after.pending)

    @pytest.mark.parametrize("auto_migrate", [False, True])
    def test_of_version_3_is_refused_with_the_cure_and_not_touched(
        self, server: PostgresServer, url: str, *, auto_migrate: bool
    ) -> None:
        name = url.rpartition("/")[2]
        server.sql(
            "CREATE TABLE longwatch_schema (version integer, name text, applied_at text)", name
        )
        server.sql("INSERT INTO longwatch_schema VALUES (3, 'flow', '')", name)
        cure = (
            r"was made by an older Longwatch \(schema 3\), which cannot be migrated; empty its "
            r"mailboxes with the old version, then name a new file or an empty database$"
        )
        with PostgresDatabase(url, auto_migrate=auto_migrate) as database:
            for _ in range(2):
                with pytest.raises(SchemaTooOldError, match=cure):
                    database.write(lambda _: None)
            assert 3 == database.stored_schema().version
        assert [("longwatch_schema",)] == server.sql(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'", name
        )

    def test_is_left_alone_where_that_was_asked_for(self, url: str) -> None:
        with PostgresDatabase(url, auto_migrate=False) as database:
            with pytest.raises(StoreLocationError, match="longwatch db migrate"):
                database.write(lambda _: None)
            assert 0 == database.stored_schema().version

    def test_finds_a_place_beside_tables_of_others_that_have_the_same_names(
        self, server: PostgresServer, url: str
    ) -> None:
        name = url.rpartition("/")[2]
        server.sql("CREATE TABLE longwatch_messages (theirs text)", name)
        with (
            PostgresDatabase(url) as database,
            pytest.raises(UsageError, match="CREATE SCHEMA longwatch"),
        ):
            database.write(lambda _: None)
        with PostgresDatabase(url + "?options=-csearch_path%3Dlongwatch") as database:
            with pytest.raises(UsageError, match="CREATE SCHEMA longwatch"):
                database.write(lambda _: None)
            server.sql("CREATE SCHEMA longwatch", name)
            mailbox = open_mailbox(database, "work")
            mailbox.send("here")
            assert ["here"] == [message.body for message in mailbox.receive()]

    def test_of_a_newer_longwatch_is_refused(self, database: PostgresDatabase) -> None:
        database.write(
            lambda tx: tx.execute(
                "INSERT INTO longwatch_schema (version, name, applied_at) "
                "VALUES (9999, 'later', 'then')"
            )
        )
        with (
            PostgresDatabase(database.url) as other,
            pytest.raises(SchemaTooNewError, match="upgrade"),
        ):
            other.read(lambda tx: tx.rows("SELECT 1"))

    def test_of_a_newer_longwatch_is_refused_also_to_who_may_not_change_it(
        self, server: PostgresServer, database: PostgresDatabase
    ) -> None:
        role, name = f"guest_{os.urandom(4).hex()}", database.url.rpartition("/")[2]
        database.write(
            lambda tx: tx.execute(
                "INSERT INTO longwatch_schema (version, name, applied_at) "
                "VALUES (9999, 'later', 'then')"
            )
        )
        server.sql(f"CREATE ROLE {role} LOGIN")
        try:
            server.sql(
                f"REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT SELECT ON "
                f"longwatch_schema TO {role}",
                name,
            )
            with (
                PostgresDatabase(server.url(name, user=role)) as guest,
                pytest.raises(SchemaTooNewError, match="upgrade"),
            ):
                guest.write(lambda _: None)
        finally:
            server.sql(f"DROP OWNED BY {role}", name)
            server.sql(f"DROP ROLE {role}")

    def test_of_version_8_keeps_its_messages_which_have_no_headers(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps = [step for step in load_migrations("postgresql") if step.version < 9]
        with monkeypatch.context() as patch:
            patch.setattr("longwatch.store.postgres.client.load_migrations", lambda _: steps)
            with PostgresDatabase(url, auto_migrate=True) as database:
                database.write(insert_version_8_rows)
                assert 8 == database.stored_schema().version
        with PostgresDatabase(url, auto_migrate=True) as database:
            mailbox = open_mailbox(database, "jobs")
            [message] = mailbox.receive()
            assert ("kept", 1, "answers", {}) == (
                message.id,
                message.body,
                message.reply_to,
                message.headers,
            )
            [dead] = mailbox.dead_letters
            assert ("dead", b"2", {}) == (dead.id, dead.body, dead.headers)
            sent = mailbox.send(3, headers={"tenant": "acme"})
            assert (sent, {"tenant": "acme"}) == (
                (received := mailbox.receive()[0]).id,
                received.headers,
            )

    def test_is_made_once_by_processes_that_start_at_the_same_time(self, url: str) -> None:
        starter = f"""
            from longwatch.store.postgres.database import PostgresDatabase
            print("ready")
            input()
            PostgresDatabase({url!r}).write(lambda _: None)
            print("done")
        """
        with ExitStack() as ends:
            children = [ends.enter_context(run_snippet(starter)) for _ in range(4)]
            assert ["ready"] * 4 == [child.read_line() for child in children]
            for child in children:
                child.send_line()
            assert [(0, "")] * 4 == [child.wait() for child in children]
        with PostgresDatabase(url) as database:
            assert [(step.version,) for step in load_migrations("postgresql")] == database.read(
                lambda tx: tx.rows("SELECT version FROM longwatch_schema ORDER BY version")
            )


def insert_version_8_rows(tx: Transaction) -> None:
    """Insert a message and a dead letter as version 8 did."""
    tx.execute("INSERT INTO longwatch_mailboxes (queue, name) VALUES (1, 'jobs')")
    tx.execute(
        "INSERT INTO longwatch_messages (queue, id, enqueued_at, reply_to, body)"
        " VALUES (1, 'kept', 1.0, 'answers', '1')"
    )
    tx.execute(
        "INSERT INTO longwatch_dead_letters (queue, id, reason, died_at, enqueued_at, deliveries,"
        " failures, crashes, releases, body) VALUES (1, 'dead', 'failed', 2.0, 1.0, 5, 5, 0, 0,"
        " '2')"
    )


class TestUnsafeSettings:
    def test_are_warned_of_once(self, server: PostgresServer, url: str) -> None:
        server.sql(f"ALTER DATABASE {url.rpartition('/')[2]} SET synchronous_commit = off")
        with PostgresDatabase(url) as database:
            with pytest.warns(UnsafeSettingsWarning, match="synchronous_commit is off") as warned:
                database.read(lambda tx: tx.rows("SELECT 1"))
            assert 1 == len(warned)
            database.listen("x", threading.Event())  # type: ignore[arg-type]


class TestTheClocks:
    @pytest.mark.parametrize("jump", [0.0, 3600.0, -3600.0])
    def test_are_the_server_s_whatever_this_process_believes(
        self, database: PostgresDatabase, jump: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database.jump.lease, database.jump.wall = jump, 2 * jump
        monkeypatch.setattr("time.time", lambda: 0.0)
        sql = (
            "SELECT round((:lease_now - now)::numeric, 3), round((:wall_now - now)::numeric, 3) "
            "FROM (SELECT {}) AS clock (now)"
        )
        [(lease, wall)] = database.read(
            lambda tx: tx.rows(sql.format("extract(epoch from statement_timestamp())::float8"))
        )
        assert (jump, 2 * jump) == (float(lease), float(wall))


FORKING = """
    import os
    from longwatch.store.postgres.database import PostgresDatabase
    from longwatch.core.clock import Wakeup

    database = PostgresDatabase({url!r})
    sql = "SELECT pg_backend_pid()"
    mine = database.read(lambda tx: tx.rows(sql))
    database.listen("x", Wakeup())

    def fork_inside(tx):
        tx.rows(sql)
        child = os.fork()
        if child == 0:
            try:
                tx.rows(sql)
            except Exception as error:
                print("refused:", "forked" in str(error), flush=True)
            assert database.read(lambda tx: tx.rows(sql)) != mine
            database.close()
            print("child done", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        return tx.rows(sql)

    print("same:", database.write(fork_inside) == mine)
    print("same:", database.read(lambda tx: tx.rows(sql)) == mine)
    database.close()
"""


def test_a_forked_child_makes_its_own_connections_and_leaves_the_parent_s_alone(url: str) -> None:
    with run_snippet(FORKING.format(url=url)) as child:
        assert ["refused: True", "child done", "same: True", "same: True"] == [
            child.read_line() for _ in range(4)
        ]
        assert (0, "") == child.wait()


ORPHANING = """
    import os, signal
    from longwatch.store.postgres.database import PostgresDatabase

    database = PostgresDatabase({url!r})

    def hold(tx):
        tx.rows("SELECT * FROM things FOR UPDATE")
        if os.fork() == 0:
            print("child", flush=True)
            os.read(0, 1)
            os._exit(0)
        signal.pause()

    database.write(hold)
"""


def test_the_locks_of_a_killed_parent_end_though_its_child_lives(
    server: PostgresServer, database: PostgresDatabase, url: str
) -> None:
    database.write(lambda tx: add(tx, "a"))
    with run_snippet(ORPHANING.format(url=url)) as parent:
        assert "child" == parent.read_line()
        parent._child.kill()
        database.write(lambda tx: tx.execute("DELETE FROM things"))
        parent.send_line()
    assert [] == names(database)


class FakeWire:
    """A connection that nothing is behind."""

    is_idle = True
    used_at = 0.0

    def is_alive(self) -> bool:
        return True

    def close(self, reason: str = "") -> None:
        self.is_idle = False


def test_connections_that_were_lent_when_another_failed_are_not_used_again() -> None:
    """They were made in the same time: to a server that was demoted since, say."""
    pool = ConnectionPool(lambda _: FakeWire())  # type: ignore[arg-type, return-value]
    never = Deadline.never(SystemClock())
    with pool.connection(never) as lent, pool.connection(never) as failing:
        failing.close("it is read-only")
    with pool.connection(never) as later:
        assert later is not lent
    with pool.connection(never) as again:
        assert again is later


def test_an_error_of_the_work_itself_is_never_retried(database: PostgresDatabase) -> None:
    """Not even one that looks like a conflict on the server: it may come from another driver."""

    class OtherDriverError(Exception):
        sqlstate = "40001"

    calls: list[None] = []

    def work(_: object) -> None:
        calls.append(None)
        raise OtherDriverError

    with pytest.raises(OtherDriverError):
        database.write(work)
    assert 1 == len(calls)
