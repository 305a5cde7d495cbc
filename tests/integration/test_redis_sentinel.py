"""Mailboxes behind Sentinels: the master is found by its name, and found again after a failover."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import EngineSweeper, ignore_given_up
from longwatch.errors import (
    LongwatchError,
    MailboxConnectionError,
    StoreBusyError,
    StoreError,
    StoreUnreachableError,
    UsageError,
)
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.redis.store import RedisStore
from longwatch.mailbox.redis.transport import RedisNode
from longwatch.store.claims import RowSelection
from loopback import free_port
from polling import eventually
from redis_sentinel import Replication, running_replication
from redis_server import DebianRedisServer, RedisServer
from requires import require_tool

LEASE = 300.0


@pytest.fixture(scope="module", params=[RedisServer, DebianRedisServer])
def replication(request: pytest.FixtureRequest) -> Iterator[Replication]:
    if request.param is DebianRedisServer:
        require_tool("redis-server")
    with running_replication(request.param) as started:
        yield started


def new_message(body: bytes = b"1") -> NewMessage:
    return NewMessage(id=new_id(), body=body)


class Traffic:
    """One thread sends and one consumes, through a store of their own; both try again after every
    error. Between calls they can be held.
    """

    def __init__(self, url: str) -> None:
        self.sent: list[str] = []
        self.unknown = 0
        self.done: Counter[str] = Counter()
        self.held = threading.Lock()
        self._stopped = threading.Event()
        self._store = RedisStore(url)
        opening: Any = open_mailbox
        self._mailbox: Mailbox[Any] = opening(self._store, "traffic")
        self._threads = [threading.Thread(target=each) for each in (self._send, self._consume)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def drain(self) -> None:
        """Consume what is left, also what a lost answer left leased."""
        while self._settle() or self._mailbox.stats().leased:
            self._store.jump.lease += 2 * LEASE
            self._mailbox.backend.sweep()
        self._store.close()

    def _send(self) -> None:
        while not self._stopped.is_set():
            with self.held:
                try:
                    self.sent.append(self._mailbox.send(len(self.sent)))
                except MailboxConnectionError as error:
                    self.unknown += "unknown" in str(error)
            self._stopped.wait(0.002)

    def _consume(self) -> None:
        while not self._stopped.is_set():
            with self.held, suppress(MailboxConnectionError):
                self._settle()
            self._stopped.wait(0.002)

    def _settle(self) -> int:
        received = self._mailbox.receive(max_messages=5, visibility_timeout=LEASE)
        results = self._mailbox.acknowledge_many(received)
        for message, result in zip(received, results, strict=True):
            self.done[message.id] += result == "settled"
        return len(received)


def test_a_master_that_is_killed_costs_no_message_that_its_replica_has() -> None:
    """Messages are sent, leased and settled before, during and after the failover, and a listener
    is woken again after it.
    """
    with running_replication() as replication:
        traffic, heard, wakeup = Traffic(replication.url), RedisStore(replication.url), Wakeup()
        heard.resources().listener.wake_interval = 1000.0
        heard.backend("heard").listen(wakeup)
        traffic.start()
        try:
            assert wakeup.block(20.0), "it is subscribed"
            wakeup.clear()
            assert eventually(lambda: len(traffic.sent) > 50)
            before = replication.master
            with traffic.held:
                replication.wait_for_replica()
                before.kill()
            replication.wait_for_new_master(before)
            reached = len(traffic.sent)
            assert eventually(lambda: len(traffic.sent) > reached + 50)
        finally:
            traffic.stop()
        traffic.drain()
        assert wakeup.block(20.0), "it is subscribed to the new master"
        wakeup.clear()
        heard.backend("heard").put([new_message()])
        assert wakeup.block(20.0)
        heard.close()
    assert [] == [sent for sent in traffic.sent if not traffic.done[sent]]
    assert [] == [done for done, times in traffic.done.items() if times > 1]
    assert len(traffic.done) <= len(traffic.sent) + traffic.unknown


def test_the_turn_to_sweep_survives_a_failover() -> None:
    """The holder goes on, or another engine takes the turn when it has ended."""
    with running_replication() as replication, RedisStore(replication.url) as store:
        engines = [
            store.backend("work").sweeper_for(Incarnation.current(), selection=RowSelection.ANY)
            for _ in range(2)
        ]
        assert [True, False] == [each.sweep(ignore_given_up).leads for each in engines]
        before = replication.master
        replication.wait_for_replica()
        before.kill()
        replication.wait_for_new_master(before)
        assert eventually(lambda: 1 == sum(map(_leads, engines)))


def _leads(engine: EngineSweeper) -> bool:
    with suppress(StoreError):
        return engine.sweep(ignore_given_up).leads
    return False


def _put(store: RedisStore) -> bool:
    try:
        store.backend("heard").put([new_message()])
    except (StoreBusyError, StoreUnreachableError):
        return False
    return True


def test_a_master_that_became_a_replica_refuses_and_the_next_call_finds_the_new_one(
    replication: Replication,
) -> None:
    """The connection outlives the change, as when the Sentinels have not closed it yet."""
    store = RedisStore(replication.url)
    backend = store.backend("demoted")
    backend.put([new_message()])
    master = replication.master
    with master.client() as client:
        client.replicaof("127.0.0.1", str(free_port()))
        with pytest.raises(StoreBusyError, match="has a new master"):
            backend.put([new_message()])
        client.replicaof("NO", "ONE")
    assert eventually(lambda: _put(store))
    assert 1 == backend.stats().ready
    store.close()


def test_sentinels_that_do_not_know_the_service_are_named_with_the_cure(
    replication: Replication,
) -> None:
    store = RedisStore(replication.url.replace("/jobs/", "/other/"))
    with pytest.raises(StoreUnreachableError, match="names a master") as raised:
        store.backend("work").stats()
    assert "the name of the service" in str(raised.value)
    store.close()


def test_one_sentinel_that_answers_is_enough(replication: Replication) -> None:
    url = replication.url.replace("//", f"//127.0.0.1:{free_port()},")
    store = RedisStore(url)
    assert 0 == store.backend("answered").stats().ready
    store.close()


def test_a_sentinel_url_gives_the_options_of_the_master_and_of_the_sentinels() -> None:
    url = (
        "redis+sentinel://ann:p%2Fw@one,two:77,[::1]:78/jobs/2?sentinel_password=s&socket_timeout=3"
    )
    node = RedisNode(url).validate()
    sentinels = [each.connection_pool.connection_kwargs for each in _sentinels(node)]
    assert ("ann", "p/w", 2, 3.0) == tuple(
        node.options[name] for name in ("username", "password", "db", "socket_timeout")
    )
    assert [("one", 26379, "s"), ("two", 77, "s"), ("::1", 78, "s")] == [
        (each["host"], each["port"], each["password"]) for each in sentinels
    ]
    assert {None} == {each["username"] for each in sentinels}


def _sentinels(node: RedisNode) -> list[Any]:
    pool: Any = node._pool
    return list(pool.sentinel_manager.sentinels)


def test_two_urls_of_one_service_are_one_store() -> None:
    one, two = (
        RedisStore(f"redis+sentinel://{hosts}/jobs/1").identity for hosts in ("a,b:77", "b:77,a")
    )
    other = RedisStore("redis+sentinel://a,b:77/jobs/2").identity
    assert (True, False) == (one == two, one == other)


@pytest.mark.parametrize(
    "rest", ["host", "host/", "host/jobs/x", "host:port/jobs", ",host/jobs", ":a/b@host/jobs"]
)
def test_a_sentinel_url_that_cannot_be_is_refused_with_its_form(rest: str) -> None:
    with pytest.raises(LongwatchError, match="HOST:26379/SERVICE/DATABASE") as raised:
        RedisStore(f"redis+sentinel://{rest}")
    assert UsageError is type(raised.value)
