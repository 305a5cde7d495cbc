"""`tx=` on a psycopg connection of the user's: messages commit with their own work, or not at
all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from longwatch.errors import MailboxConnectionError, MailboxFullError, UnsupportedError
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message import SettleResult
from longwatch.mailbox.records import NewMessage
from longwatch.mailbox.sql import SqlBackend
from longwatch.mailbox.sql_queue import SqlQueue
from longwatch.store.database import Transaction
from longwatch.store.postgres.database import PostgresDatabase
from postgres_server import shared_server


@pytest.fixture
def url() -> Iterator[str]:
    with shared_server().database() as made:
        yield made


@pytest.fixture
def mailbox(url: str) -> Iterator[Mailbox[Any]]:
    with PostgresDatabase(url) as database:
        mailbox = open_mailbox(database, "work")
        mailbox.send("first")
        yield mailbox


def bodies(mailbox: Mailbox[Any]) -> list[Any]:
    return [message.body for message in mailbox.receive(max_messages=100)]


def test_what_they_commit_is_sent_and_settled_with_their_own_rows(
    mailbox: Mailbox[Any], url: str
) -> None:
    [message] = mailbox.receive()
    with psycopg.connect(url, row_factory=dict_row) as connection:
        connection.execute("CREATE TABLE orders (name text)")
        connection.execute("INSERT INTO orders VALUES ('one')")
        mailbox.send_many(["a", "b"], tx=connection)
        mailbox.send("c", dedupe_key="k", expires_in=60, delay_seconds=0, tx=connection)
        assert [SettleResult.SETTLED] == mailbox.acknowledge_many([message], tx=connection)
        assert [] == mailbox.receive(), "nothing is there before the commit"
    assert ["a", "b", "c"] == bodies(mailbox)
    assert 3 == mailbox.approximate_count()


def test_what_they_roll_back_was_never_sent_nor_settled(mailbox: Mailbox[Any], url: str) -> None:
    [message] = mailbox.receive()
    with psycopg.connect(url) as connection:
        mailbox.send("never", tx=connection)
        mailbox.acknowledge_many([message], tx=connection)
        connection.rollback()
    stats = mailbox.stats()
    assert (0, 1) == (stats.ready, stats.leased)


def test_a_new_mailbox_can_be_sent_to_and_is_gone_with_a_rollback(
    mailbox: Mailbox[Any], url: str
) -> None:
    fresh = open_mailbox(mailbox.backend.database, "fresh")  # type: ignore[attr-defined]
    with psycopg.connect(url) as connection:
        fresh.send("never", tx=connection)
        connection.rollback()
    assert [] == fresh.receive()
    fresh.send("later")
    assert ["later"] == bodies(fresh)


def test_a_send_keeps_the_budgets_of_a_mailbox_that_is_made_meanwhile(
    mailbox: Mailbox[Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker stores its budget after the sender has found no mailbox, and before it inserts
    one.
    """
    database = mailbox.backend.database  # type: ignore[attr-defined]
    sender = SqlBackend(database, "fresh", limits=MailboxLimits(max_failures=2))
    worker = SqlBackend(database, "fresh", limits=MailboxLimits(max_failures=3))
    find = sender._finder._find_in

    def find_too_early(tx: Transaction) -> SqlQueue | None:
        found = find(tx)
        worker.queue()
        return found

    monkeypatch.setattr(sender._finder, "_find_in", find_too_early)
    with psycopg.connect(url) as connection:
        sender.put([NewMessage(id="one", body=b"1")], tx=connection)
    assert 3 == SqlBackend(database, "fresh").queue().max_failures
    assert 1 == worker.stats().ready


def test_a_transaction_block_on_a_connection_in_autocommit_will_do(
    mailbox: Mailbox[Any], url: str
) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(UnsupportedError, match=r"with connection.transaction\(\)"):
            mailbox.send("never", tx=connection)
        with connection.transaction():
            mailbox.send("second", tx=connection)
    assert ["first", "second"] == bodies(mailbox)


def test_two_transactions_send_to_one_mailbox_without_waiting_for_each_other(
    mailbox: Mailbox[Any], url: str
) -> None:
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        second.execute("SET statement_timeout = '5s'")
        open_mailbox(url, "work").send("a", tx=first)
        open_mailbox(url, "work").send("b", tx=second)
        second.commit()
        first.commit()
    assert ["first", "a", "b"] == sorted(bodies(mailbox), key=lambda body: (body != "first", body))


def test_a_full_mailbox_refuses_and_their_transaction_goes_on(
    mailbox: Mailbox[Any], url: str
) -> None:
    narrow = open_mailbox(mailbox.backend.database, "narrow", limits=MailboxLimits(max_size=1))  # type: ignore[attr-defined]
    with psycopg.connect(url) as connection:
        narrow.send("a", tx=connection)
        with pytest.raises(MailboxFullError):
            narrow.send("b", tx=connection)
    assert ["a"] == bodies(narrow)


def test_what_is_no_open_connection_is_refused_with_the_cure(
    mailbox: Mailbox[Any], url: str
) -> None:
    closed = psycopg.connect(url)
    closed.close()
    with pytest.raises(UnsupportedError, match="closed connection"):
        mailbox.send("x", tx=closed)
    with pytest.raises(UnsupportedError, match=r"must be a psycopg.Connection.* not object"):
        mailbox.send("x", tx=object())

    async def with_async() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            with pytest.raises(UnsupportedError, match="AsyncConnection"):
                mailbox.send("x", tx=connection)

    asyncio.run(with_async())
    assert ["first"] == bodies(mailbox)


def test_a_connection_in_pipeline_mode_is_refused(mailbox: Mailbox[Any], url: str) -> None:
    with psycopg.connect(url) as connection:
        with (
            connection.pipeline(),
            pytest.raises(UnsupportedError, match="leave the pipeline first"),
        ):
            mailbox.send("x", tx=connection)
        mailbox.send("second", tx=connection)
    assert ["first", "second"] == bodies(mailbox)


@pytest.mark.parametrize("is_made", [True, False])
def test_a_connection_to_another_database_is_refused(
    mailbox: Mailbox[Any], *, is_made: bool
) -> None:
    with shared_server().database() as elsewhere:
        if is_made:
            with PostgresDatabase(elsewhere) as other:
                open_mailbox(other, "work").send("theirs")
        with (
            psycopg.connect(elsewhere) as connection,
            pytest.raises(UnsupportedError, match=r"another database than .*/test_"),
        ):
            mailbox.send("x", tx=connection)
    assert ["first"] == bodies(mailbox)


def test_a_connection_to_a_copy_of_the_database_is_refused(mailbox: Mailbox[Any], url: str) -> None:
    mailbox.backend.database.close()  # type: ignore[attr-defined]
    server, name = shared_server(), url.rpartition("/")[2]
    server.sql(f"CREATE DATABASE {name}_copy TEMPLATE {name}")
    try:
        refused = pytest.raises(UnsupportedError, match="another database")
        with (
            PostgresDatabase(url) as database,
            psycopg.connect(url + "_copy") as connection,
            refused,
        ):
            open_mailbox(database, "work").send("x", tx=connection)
    finally:
        server.sql(f"DROP DATABASE {name}_copy WITH (FORCE)")


def test_a_connection_that_does_not_find_our_tables_is_refused(
    mailbox: Mailbox[Any], url: str
) -> None:
    with psycopg.connect(url, options="-csearch_path=nowhere") as connection:
        with pytest.raises(UnsupportedError, match="the same search_path"):
            mailbox.send("x", tx=connection)
        connection.execute("SELECT 1")


def test_a_connection_to_the_same_database_by_another_name_will_do(
    mailbox: Mailbox[Any], url: str
) -> None:
    server = shared_server()
    with psycopg.connect(
        dbname=url.rpartition("/")[2], user="postgres", host=str(server.folder), port=server.port
    ) as connection:
        mailbox.send("second", tx=connection)
    assert ["first", "second"] == bodies(mailbox)


def test_a_connection_to_a_database_that_is_not_migrated_is_refused_with_the_cure(url: str) -> None:
    refused = pytest.raises(MailboxConnectionError, match="longwatch db migrate")
    with (
        PostgresDatabase(url, auto_migrate=False) as database,
        psycopg.connect(url) as connection,
        refused as error,
    ):
        open_mailbox(database, "work").send("x", tx=connection)
    assert 2 == error.value.exit_code


def test_a_transaction_of_another_store_is_refused(mailbox: Mailbox[Any]) -> None:
    refused = pytest.raises(UnsupportedError, match="another store")
    with shared_server().database() as elsewhere, PostgresDatabase(elsewhere) as other, refused:
        other.transact(lambda tx: mailbox.send("x", tx=tx))
