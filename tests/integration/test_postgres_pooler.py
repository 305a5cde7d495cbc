"""PostgreSQL behind a real PgBouncer that lends a connection for one transaction."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from longwatch.core.clock import Wakeup
from longwatch.core.masking import mask_text
from longwatch.errors import UsageError
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.mailbox import Mailbox
from longwatch.store.notify.listener import warn_of_polling
from longwatch.store.postgres.connector import ServerAddress
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.postgres.listener import PostgresListener
from longwatch.testing import check_mailbox
from pgbouncer_server import pgbouncer, through
from polling import eventually
from postgres_server import PostgresServer, shared_server

TIMEOUT = 30.0


@pytest.fixture(scope="module")
def pooler() -> Iterator[int]:
    with pgbouncer(shared_server()) as port:
        yield port


@pytest.fixture
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def direct_url(server: PostgresServer) -> Iterator[str]:
    with server.database() as made:
        yield made


@pytest.fixture
def url(direct_url: str, pooler: int) -> str:
    return through(direct_url, pooler)


def jump(mailbox: Mailbox[Any], lease: float, wall: float) -> None:
    database = mailbox.backend.database  # type: ignore[attr-defined]
    database.jump.lease += lease
    database.jump.wall += wall


def notify(database: PostgresDatabase, channel: str) -> None:
    def work(tx: Any) -> None:
        tx.execute("UPDATE longwatch_schema SET name = name")
        tx.notify(channel)

    database.write(work)


def test_a_mailbox_keeps_the_contract_through_it(url: str) -> None:
    with PostgresDatabase(url) as database:
        check_mailbox(
            partial(open_mailbox, database),
            jump=jump,
            reopen=partial(open_mailbox, url),
            transact=database.transact,
        )


def test_nothing_is_left_in_the_session_that_others_use_next(direct_url: str) -> None:
    with (
        pgbouncer(shared_server(), size=1) as port,
        PostgresDatabase(through(direct_url, port)) as database,
    ):
        mailbox = open_mailbox(database, "work", int)
        database.listen("x", Wakeup())
        for number in range(10):
            mailbox.send(number)
        assert 10 == len(mailbox.receive(max_messages=10))
        with psycopg.connect(through(direct_url, port)) as other:
            found = other.execute(
                "SELECT current_setting('enable_seqscan'), current_setting('statement_timeout'), "
                "(SELECT count(*) FROM pg_prepared_statements), "
                "(SELECT count(*) FROM pg_listening_channels())"
            ).fetchone()
    assert ("on", "0", 0, 0) == found


def test_statements_that_get_lost_are_no_longer_prepared_and_no_message_is(
    direct_url: str,
) -> None:
    """`pooled=false` is wrong here, so the pooler gives prepared statements to others."""
    with pgbouncer(shared_server(), size=2) as port, ExitStack() as ends:
        url = f"{through(direct_url, port)}?pooled=false"
        databases = [ends.enter_context(PostgresDatabase(url)) for _ in range(2)]
        mailboxes = [open_mailbox(database, "work", int) for database in databases]

        def send(mailbox: Mailbox[int]) -> None:
            for number in range(50):
                mailbox.send(number)

        rounds = 0

        def send_at_once() -> None:
            senders = [threading.Thread(target=send, args=(mailbox,)) for mailbox in mailboxes * 2]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()

        def was_noticed() -> bool:
            """Each connection may get the same connection of the server again and again."""
            nonlocal rounds
            rounds += 1
            send_at_once()
            return all(database._open()._is_pooled for database in databases)

        assert eventually(was_noticed)
        assert 200 * rounds == mailboxes[0].approximate_count()


@pytest.fixture
def never_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PostgresListener.__init__.__kwdefaults__ or {}, "wake_interval", 1000.0)


@pytest.mark.usefixtures("never_polling")
def test_a_listener_at_the_server_itself_is_notified_by_senders_behind_the_pooler(
    url: str, direct_url: str
) -> None:
    with (
        PostgresDatabase(f"{url}?listen_url={quote(direct_url, safe='')}") as here,
        PostgresDatabase(url) as there,
    ):
        wakeup = Wakeup()
        here.read(lambda tx: tx.rows("SELECT 1"))
        here.listen("x", wakeup)
        assert wakeup.block(TIMEOUT)
        wakeup.clear()
        notify(there, "x")
        assert wakeup.block(TIMEOUT)


def test_without_a_listener_messages_are_found_by_polling(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_polling.cache_clear()
    with PostgresDatabase(url) as here, PostgresDatabase(url) as there:
        receiving, sending = open_mailbox(here, "work", int), open_mailbox(there, "work", int)
        sending.send(0)
        [first] = receiving.receive()
        first.acknowledge()
        timer = threading.Timer(0.1, sending.send, [1])
        timer.start()
        [message] = receiving.receive(wait_time_seconds=TIMEOUT)
        timer.join()
        assert 1 == message.body
        assert here._open()._is_pooled
        assert eventually(lambda: "add listen_url=" in caplog.text)


@pytest.mark.usefixtures("never_polling")
def test_a_pooler_of_whole_sessions_may_be_named_as_such_and_be_listened_on(
    direct_url: str,
) -> None:
    with pgbouncer(shared_server(), mode="session", size=10) as port:
        url = f"{through(direct_url, port)}?pooled=false"
        with PostgresDatabase(url) as here, PostgresDatabase(url) as there:
            wakeup = Wakeup()
            here.read(lambda tx: tx.rows("SELECT 1"))
            here.listen("x", wakeup)
            assert wakeup.block(TIMEOUT)
            wakeup.clear()
            notify(there, "x")
            assert wakeup.block(TIMEOUT)


def test_the_parameters_of_longwatch_are_not_passed_to_libpq() -> None:
    listener = quote("postgresql://shop:p%40ss@db/shop", safe="")
    url = f"postgresql://shop@pooler/shop?sslmode=require&pooled=true&listen_url={listener}"
    address = ServerAddress(url)
    [conninfo] = address.conninfos()
    assert address.pooled is True
    assert "pooled" not in conninfo
    assert "listen_url" not in conninfo
    assert "sslmode=require" in conninfo
    assert address.listener is not None
    assert "host=db" in address.listener.conninfos()[0]
    assert "ss" not in mask_text(url).partition("listen_url=")[2]


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(UsageError, match="expected pooled=true or pooled=false"):
        ServerAddress("postgresql://db/shop?pooled=maybe")
