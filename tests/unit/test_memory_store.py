from __future__ import annotations

import random

import pytest

from longwatch.mailbox import Mailbox, memory_queue, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.mailbox.memory_queue import MAX_REMOVED, MemoryQueue
from longwatch.mailbox.message import SettleResult
from snippet import run_snippet


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def mailbox(store: MemoryStore) -> Mailbox[object]:
    return open_mailbox(store, "jobs")


@pytest.fixture
def queue(store: MemoryStore) -> MemoryQueue:
    return store.contents().queue("jobs")


def row_count(queue: MemoryQueue) -> int:
    """How many rows are kept in the orders of a lane, those that are gone too."""
    return len(queue._new) + len(queue._returned) + len(queue._delayed) + len(queue._expiring)


def test_the_receipt_of_one_store_settles_nothing_in_another(mailbox: Mailbox[object]) -> None:
    other: Mailbox[object] = open_mailbox(MemoryStore(), "jobs")
    mailbox.send("mine"), other.send("its")
    [mine], [its] = mailbox.receive(), other.receive()
    assert [SettleResult.EXPIRED] == mailbox.acknowledge_many([its])
    mine.acknowledge()


def test_the_receipt_of_a_parent_settles_nothing_of_its_forked_child() -> None:
    code = """
        import os
        from longwatch.errors import ReceiptHandleExpiredError
        from longwatch.mailbox import open_mailbox

        mailbox = open_mailbox("memory://", "jobs")
        mailbox.send("the parent's")
        [message] = mailbox.receive()
        child = os.fork()
        if child == 0:
            mailbox.send("the child's")
            mailbox.receive()
            try:
                message.acknowledge()
            except ReceiptHandleExpiredError:
                os._exit(7)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        message.acknowledge()
    """
    with run_snippet(code) as snippet:
        assert "7" == snippet.read_line()
        assert (0, "") == snippet.wait()


def test_a_message_that_is_done_is_let_go_of_long_before_it_would_have_expired(
    mailbox: Mailbox[object], queue: MemoryQueue
) -> None:
    for _ in range(5):
        mailbox.send_many(range(MAX_REMOVED), expires_in=86_400)
        mailbox.acknowledge_many(mailbox.receive(max_messages=MAX_REMOVED))
    assert row_count(queue) <= MAX_REMOVED


@pytest.mark.parametrize("delay", [0.0, 86_400.0])
def test_a_message_that_is_cancelled_is_let_go_of_long_before_it_would_have_come_up(
    mailbox: Mailbox[object], queue: MemoryQueue, delay: float
) -> None:
    for _ in range(5 * MAX_REMOVED):
        mailbox.cancel(mailbox.send(1, delay_seconds=delay))
    assert row_count(queue) <= MAX_REMOVED


def test_what_is_purged_is_let_go_of(mailbox: Mailbox[object], queue: MemoryQueue) -> None:
    mailbox.send_many(range(5 * MAX_REMOVED), expires_in=86_400)
    mailbox.purge()
    assert row_count(queue) <= 2 * MAX_REMOVED


def test_no_body_is_kept_of_what_is_gone(mailbox: Mailbox[object], queue: MemoryQueue) -> None:
    mailbox.send("long", expires_in=86_400)
    mailbox.acknowledge_many(mailbox.receive())
    mailbox.cancel(mailbox.send("long", delay_seconds=86_400))
    assert [b"", b""] == [entry[2].body for entry in (*queue._expiring, *queue._delayed)]


def test_a_dead_letter_keeps_its_body(mailbox: Mailbox[object], store: MemoryStore) -> None:
    mailbox.send("rejected")
    [message] = mailbox.receive()
    message.reject("never")
    mailbox.send("expired", expires_in=1, keep_expired=True)
    store.jump.wall += 2
    assert [] == mailbox.receive()
    assert [b'"rejected"', b'"expired"'] == [letter.body for letter in mailbox.dead_letters]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_keeps_its_order_and_its_times_when_the_gone_are_cleared_out(
    mailbox: Mailbox[object], store: MemoryStore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_queue, "MAX_REMOVED", 0)
    chance = random.Random(seed)
    sent = [
        (number, chance.choice([0, 10, 100]), chance.choice([None, 50, 1000]))
        for number in range(200)
    ]
    ids = [
        mailbox.send(number, delay_seconds=delay, expires_in=expires)
        for number, delay, expires in sent
    ]
    cancelled = set(chance.sample(range(200), 150))
    for message in mailbox.receive(max_messages=20):
        message.nack()
    for number in cancelled:
        assert mailbox.cancel(ids[number])
    left = [each for each in sent if each[0] not in cancelled]
    assert [number for number, delay, _ in left if delay == 0] == bodies(mailbox)
    store.jump.wall += 60
    assert [number for number, delay, expires in left if delay == 10 and expires != 50] == bodies(
        mailbox
    )
    store.jump.wall += 60
    assert [number for number, delay, expires in left if delay == 100 and expires != 50] == bodies(
        mailbox
    )
    assert 0 == mailbox.approximate_count()


def bodies(mailbox: Mailbox[object]) -> list[object]:
    messages = mailbox.receive(max_messages=1000)
    mailbox.acknowledge_many(messages)
    return [message.body for message in messages]
