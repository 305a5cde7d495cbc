"""What the databases of one process share when they are opened by one URL."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from leaks import no_leaks
from longwatch.core.clock import Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.fake_clock import FakeClock
from longwatch.errors import StoreClosedError, StoreLocationError
from longwatch.mailbox import open_mailbox
from longwatch.store.database import Database
from longwatch.store.postgres.client import PostgresClient
from longwatch.store.postgres.connector import ServerAddress
from longwatch.store.postgres.shared_clients import SHARED_CLIENTS, SharedClients
from longwatch.store.url import open_database
from polling import eventually
from postgres_server import shared_server

TIMEOUT = 30.0


@pytest.fixture
def url() -> Iterator[str]:
    with shared_server().database() as made, no_leaks():
        yield made
    assert made not in SHARED_CLIENTS._by_url


def opened(url: str, *, auto_migrate: bool = True) -> Database:
    made = open_database(url, auto_migrate=auto_migrate)
    assert made is not None
    return made


def listen_on(database: Database, channel: str) -> Wakeup:
    wakeup = Wakeup()
    database.listen(channel, wakeup)
    assert wakeup.block(TIMEOUT)
    wakeup.clear()
    return wakeup


def connections(url: str) -> int:
    [(count,)] = shared_server().sql(
        f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{url.rpartition('/')[2]}'"
    )
    return int(count)


def listeners() -> int:
    return [each.name for each in threading.enumerate()].count("longwatch-postgres-listener")


def use(database: Database) -> None:
    database.write(lambda tx: tx.execute("UPDATE longwatch_schema SET name = name"))


def test_databases_of_one_url_share_one_connection_and_one_listener(url: str) -> None:
    with opened(url) as first, opened(url) as second, opened(url) as third:
        for each in (first, second, third):
            use(each)
            listen_on(each, "x")
        assert 2 == connections(url)
        assert 1 == listeners()


def test_a_mailbox_and_its_replies_opened_by_url_share_them_too(url: str) -> None:
    with opened(url) as database:
        use(database)
        requests, replies = open_mailbox(url, "requests", int), open_mailbox(url, "replies", int)
        requests.send(1, reply_to=replies)
        [request] = requests.receive()
        request.reply(2)
        request.acknowledge()
        [reply] = replies.receive(wait_time_seconds=TIMEOUT)
        assert 2 == reply.body
        assert 1 == listeners()
        del request, reply, requests, replies
        gc.collect()


def test_a_commit_of_one_wakes_the_listeners_of_another_before_it_returns(url: str) -> None:
    with opened(url) as first, opened(url) as second:
        use(second)
        wakeup = listen_on(first, "x")
        second.notify("x")
        assert wakeup.is_set()


def test_closing_one_leaves_the_others_open(url: str) -> None:
    with opened(url) as first:
        second = opened(url)
        use(second)
        wakeup = listen_on(first, "x")
        second.close()
        second.close()
        with pytest.raises(StoreClosedError):
            use(second)
        use(first)
        first.notify("x")
        assert wakeup.is_set()
    assert eventually(lambda: connections(url) == 0)


def test_one_that_is_collected_without_close_releases_its_share(url: str) -> None:
    database = opened(url)
    use(database)
    del database
    gc.collect()
    assert eventually(lambda: connections(url) == 0)


def test_each_keeps_its_own_clock_offsets(url: str) -> None:
    with opened(url) as first, opened(url) as second:
        first.jump.wall += 1e6
        [(ahead,)] = first.read(lambda tx: tx.rows("SELECT :wall_now"))
        [(present,)] = second.read(lambda tx: tx.rows("SELECT :wall_now"))
    assert ahead - present > 9e5


def test_one_that_may_migrate_makes_the_schema_for_one_that_may_not(url: str) -> None:
    with opened(url, auto_migrate=False) as reader, opened(url) as migrating:
        with pytest.raises(StoreLocationError, match="db migrate"):
            use(reader)
        use(migrating)
        use(reader)


def test_a_forked_child_makes_connections_of_its_own(url: str) -> None:
    with opened(url) as first, opened(url) as second:
        use(first)
        listen_on(second, "x")
        if (pid := os.fork()) == 0:
            code = 1
            try:
                use(first)
                use(second)
                code = 0 if connections(url) == 3 else 2
            finally:
                os._exit(code)
        assert 0 == os.waitpid(pid, 0)[1]
        use(first)
        use(second)
        first.notify("x")


def test_each_adds_its_places_to_the_pool_until_it_is_closed(url: str) -> None:
    """Calls of one database never wait because of another."""
    clients, address = SharedClients(), ServerAddress(url)
    client, release = clients.acquire(url, 2, lambda: PostgresClient(address, size=0))
    same, release_second = clients.acquire(url, 3, lambda: PostgresClient(address, size=0))
    assert (client, 5) == (same, client._pool._size)
    release_second()
    assert 2 == client._pool._size
    deadline = Deadline.after(TIMEOUT, FakeClock())
    assert client.read(lambda _: "open", deadline, jump=opened(url).jump) == "open"
    release()
    assert {} == clients._by_url


def test_a_client_that_is_closed_while_it_is_acquired_is_not_used(url: str) -> None:
    """Garbage collection may run the last release in the middle of `acquire`."""
    clients, address = SharedClients(), ServerAddress(url)
    first, release = clients.acquire(url, 1, lambda: PostgresClient(address, size=0))

    class Collecting(dict[str, object]):
        """Runs the release once, after a lookup has found the client."""

        def get(self, key: str, default: object = None) -> object:
            found = super().get(key, default)
            if released := pending[:]:
                pending.clear()
                released[0]()
            return found

    pending = [release]
    clients._by_url = Collecting(clients._by_url)  # type: ignore[assignment]
    second, release_second = clients.acquire(url, 1, lambda: PostgresClient(address, size=0))
    assert (True, False) == (first._pool._closed, second._pool._closed)
    release_second()
