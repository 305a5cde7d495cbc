"""A mailbox stays in one slot, so that a Cluster can keep it; the others may be anywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from redis.crc import key_slot

from longwatch.core.clock import SystemClock, Wakeup
from longwatch.engine.claim_source import ignore_given_up
from longwatch.errors import StoreBusyError, StoreUnreachableError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.redis import client as redis_client
from longwatch.mailbox.redis.store import MAILBOXES_KEY, RedisStore
from longwatch.store.claims import RowSelection
from longwatch.testing.mailbox_suite import (
    admin_checks,
    dead_letter_checks,
    lease_checks,
    receive_checks,
    retry_checks,
    send_checks,
)
from longwatch.testing.mailbox_suite.harness import MailboxHarness
from redis_server import RedisServer, running_cluster, wait_until

SUITES = (send_checks, receive_checks, admin_checks, lease_checks, retry_checks, dead_letter_checks)
MOVING = "moved"
NAMES = ("a", "b", "c", "d/1", "e:2", "f")


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[RedisServer, RedisServer]]:
    with running_cluster() as started:
        yield started


@pytest.fixture
def store(nodes: tuple[RedisServer, RedisServer]) -> Iterator[RedisStore]:
    opened = RedisStore(nodes[0].url)
    yield opened
    opened.close()
    for node in nodes:
        with node.client() as client:
            client.flushall()


def jump(mailbox: Mailbox[Any], lease: float, wall: float) -> None:
    store = mailbox.backend.store  # type: ignore[attr-defined]
    store.jump.lease += lease
    store.jump.wall += wall


def keys_of(nodes: tuple[RedisServer, RedisServer]) -> set[bytes]:
    found: set[bytes] = set()
    for node in nodes:
        with node.client() as client:
            found.update(client.keys())
    return found


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.__name__.rpartition(".")[2])
def test_the_contract_holds_over_two_nodes_and_every_mailbox_is_in_one_slot(
    nodes: tuple[RedisServer, RedisServer], store: RedisStore, suite: Any
) -> None:
    for check in suite.CHECKS:
        check(MailboxHarness(partial(open_mailbox, store), jump=jump, reopen=None, transact=None))
    slots: dict[bytes, set[int]] = {}
    for key in keys_of(nodes) - {MAILBOXES_KEY.encode()}:
        slots.setdefault(key.partition(b"{")[2].partition(b"}")[0], set()).add(key_slot(key))
    assert slots
    assert {name: {key_slot(name)} for name in slots} == slots


def test_one_engine_sweeps_each_mailbox_on_whichever_node_it_is(store: RedisStore) -> None:
    for name in NAMES:
        backend = store.backend(name)
        engines = [
            backend.sweeper_for(Incarnation.current(), selection=RowSelection.ANY) for _ in range(2)
        ]
        assert [True, False] == [each.sweep(ignore_given_up).leads for each in engines]
        engines[0].close()


def test_mailboxes_are_found_on_whichever_node_has_them(
    nodes: tuple[RedisServer, RedisServer], store: RedisStore
) -> None:
    for name in NAMES:
        store.backend(name).put([NewMessage(id=new_id(), body=name.encode())])
    assert {True, False} == {key_slot(name.encode()) < 8192 for name in NAMES}
    other = RedisStore(nodes[1].url)
    assert sorted(NAMES) == other.mailbox_names()
    assert [[name.encode()] for name in NAMES] == [
        [delivery.body for delivery in other.backend(name).peek(limit=2)] for name in NAMES
    ]
    other.close()


class SlotMove:
    """Moves the slot of a mailbox from the first node to the second, step by step."""

    def __init__(self, nodes: tuple[RedisServer, RedisServer], name: str) -> None:
        self._slot = key_slot(name.encode())
        self._keys = f"longwatch:{{{name}}}*"
        self._source, self._target = nodes

    def begin(self) -> None:
        ids = [self._run(node, "MYID").decode() for node in (self._source, self._target)]
        self._run(self._target, "SETSLOT", self._slot, "IMPORTING", ids[0])
        self._run(self._source, "SETSLOT", self._slot, "MIGRATING", ids[1])

    def move_keys(self, limit: int | None = None) -> None:
        with self._source.client() as client:
            for key in sorted(client.keys(self._keys))[:limit]:
                client.execute_command("MIGRATE", "127.0.0.1", self._target.port, key, 0, 5000)

    def end(self) -> None:
        target = self._run(self._target, "MYID").decode()
        for node in (self._target, self._source):
            self._run(node, "SETSLOT", self._slot, "NODE", target)

    def _run(self, node: RedisServer, *words: Any) -> Any:
        with node.client() as client:
            return client.execute_command("CLUSTER", *words)


@pytest.fixture
def move(nodes: tuple[RedisServer, RedisServer]) -> Iterator[SlotMove]:
    """Of the slot of the mailbox MOVING, which is on the first node before and after the test."""
    assert key_slot(MOVING.encode()) < 8192
    yield SlotMove(nodes, MOVING)
    back = SlotMove((nodes[1], nodes[0]), MOVING)
    back.begin()
    back.move_keys()
    back.end()


@pytest.mark.parametrize("moved_keys", [0, 1, 3, None])
def test_a_call_waits_while_its_mailbox_moves_and_finds_every_message(
    store: RedisStore, move: SlotMove, moved_keys: int | None
) -> None:
    """Whatever part of its keys has moved: sends, claims and settlements go on at the new node."""
    opening: Any = open_mailbox
    mailbox: Mailbox[Any] = opening(store, MOVING)
    sent = [mailbox.send(number) for number in range(5)]
    leased = mailbox.receive(max_messages=2)
    move.begin()
    if moved_keys != 0:
        move.move_keys(moved_keys)
    paused, done = threading.Event(), list[Any]()
    store.resources().client._clock = WaitingClock(paused)

    def call() -> None:
        done.append(mailbox.send("late"))
        done.append(mailbox.acknowledge_many(leased))

    caller = threading.Thread(target=call)
    caller.start()
    assert paused.wait(20.0)
    assert [] == done
    move.move_keys()
    move.end()
    caller.join()
    assert ["settled", "settled"] == done[1]
    received = mailbox.receive(max_messages=10)
    assert [*sent[2:], done[0]] == [message.id for message in received]
    assert {"settled"} == set(mailbox.acknowledge_many(received))


def test_a_move_that_does_not_end_is_an_error_after_which_nothing_was_written(
    store: RedisStore, move: SlotMove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "SLOT_MOVE_TIMEOUT", 0.1)
    backend = store.backend(MOVING)
    [first] = backend.put([NewMessage(id=new_id(), body=b"1")])
    move.begin()
    for _ in range(2):
        with pytest.raises(StoreBusyError, match="moving this mailbox"):
            backend.put([NewMessage(id=new_id(), body=b"2")])
    move.move_keys()
    move.end()
    assert [first] == [found.id for found in backend.peek(limit=5)]


class WaitingClock(SystemClock):
    """Reports that a call waits."""

    def __init__(self, paused: threading.Event) -> None:
        self._paused = paused

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        self._paused.set()
        return super().wait(wakeup, timeout)


def test_a_hint_reaches_who_listens_at_another_node(
    nodes: tuple[RedisServer, RedisServer], store: RedisStore
) -> None:
    away = next(name for name in NAMES if key_slot(name.encode()) >= 8192)
    harness = MailboxHarness(partial(open_mailbox, store), jump=jump, reopen=None, transact=None)
    sender = RedisStore(nodes[1].url)
    elsewhere: Mailbox[Any] = partial(open_mailbox, sender)(away)
    received = receive_checks._woken_by(harness, harness.open(away), lambda: elsewhere.send("news"))
    assert ["news"] == [message.body for message in received]
    sender.close()
    harness.clean_up()


def test_a_node_that_fails_takes_only_its_own_mailboxes_with_it() -> None:
    """Also the node in the URL: the process knows the other one by then. A call there times out, so
    that the next one has to find the mailbox again.
    """
    with running_cluster() as (first, second):
        away = next(name for name in NAMES if key_slot(name.encode()) >= 8192)
        near = next(name for name in NAMES if key_slot(name.encode()) < 8192)
        store = RedisStore(f"{first.url}?socket_timeout=0.5")
        backend, lost = store.backend(away), store.backend(near)
        sent = backend.put([NewMessage(id=new_id(), body=b"1")])
        lost.put([NewMessage(id=new_id(), body=b"1")])
        with second.client() as client:
            client.config_set("cluster-require-full-coverage", "no")
            first.kill()
            second.freeze()
            with pytest.raises(StoreBusyError):
                backend.peek(limit=5)
            second.thaw()
            sent += backend.put([NewMessage(id=new_id(), body=b"2")])
            assert sent == [found.id for found in backend.peek(limit=5)]
            end = backend.listen(Wakeup())
            wait_until(lambda: client.pubsub_numsub(backend.key)[0][1] == 1, "it listens there")
            end()
        with pytest.raises(StoreUnreachableError, match="cannot be reached"):
            lost.peek(limit=5)
        store.close()


def test_a_process_that_uses_one_node_finds_the_node_that_takes_its_place() -> None:
    """As a replica does. It learns the other nodes from the list that each of them has."""
    with running_cluster() as nodes:
        is_first = key_slot(MAILBOXES_KEY.encode()) < 8192
        used, other = nodes if is_first else nodes[::-1]
        name = next(each for each in NAMES if (key_slot(each.encode()) < 8192) is is_first)
        with RedisStore(used.url) as store, other.client() as client:
            backend = store.backend(name)
            backend.put([NewMessage(id=new_id(), body=b"1")])
            used.kill()
            with pytest.raises(StoreUnreachableError, match="cannot be reached"):
                backend.peek(limit=5)
            client.config_set("cluster-require-full-coverage", "no")
            own = client.execute_command("CLUSTER", "MYID").decode()
            client.execute_command("CLUSTER", "SETSLOT", key_slot(name.encode()), "NODE", own)
            sent = backend.put([NewMessage(id=new_id(), body=b"2")])
            assert sent == [found.id for found in backend.peek(limit=5)]
