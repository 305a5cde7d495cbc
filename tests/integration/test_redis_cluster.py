"""A mailbox stays in one slot, so that a Cluster can keep it; the others may be anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from redis.crc import key_slot

from longwatch.mailbox import open_mailbox
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.redis.store import MAILBOXES_KEY, RedisStore
from longwatch.testing.mailbox_suite import (
    admin_checks,
    dead_letter_checks,
    lease_checks,
    receive_checks,
    retry_checks,
    send_checks,
)
from longwatch.testing.mailbox_suite.harness import MailboxHarness
from redis_server import RedisServer, running_cluster

SUITES = (send_checks, receive_checks, admin_checks, lease_checks, retry_checks, dead_letter_checks)
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
