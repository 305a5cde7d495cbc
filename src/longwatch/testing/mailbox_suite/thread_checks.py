"""Many threads at once: every message is settled exactly once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from longwatch.errors import MailboxClosedError
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message import Message, SettleResult
from longwatch.testing.mailbox_suite.harness import (
    FOREVER,
    MailboxHarness,
    await_thread,
    expect_equal,
    start_thread,
)

SENDERS, RECEIVERS, EACH = 4, 4, 60
TOTAL = SENDERS * EACH


class SettledCounter:
    """Which messages were settled, and a close of the mailbox when all were."""

    def __init__(self, mailbox: Mailbox[Any]) -> None:
        self.settled: Counter[Any] = Counter()
        self._mailbox = mailbox
        self._lock = threading.Lock()

    def count(self, message: Message[Any]) -> None:
        with self._lock:
            self.settled[message.body] += 1
            if len(self.settled) == TOTAL:
                self._mailbox.close()


def threads_that_send_and_receive_settle_every_message_once(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    receiving = harness.open(mailbox.name)
    counter = SettledCounter(receiving)
    crowd = [start_thread(_sender(mailbox, number)) for number in range(SENDERS)]
    crowd += [start_thread(_receiver(receiving, counter, number)) for number in range(RECEIVERS)]
    for thread in crowd:
        await_thread(thread, "threads that send and receive come to an end")
    expect_equal({1}, set(counter.settled.values()), "no message is settled twice")
    expect_equal(TOTAL, len(counter.settled), "no message is lost")
    expect_equal(
        (0, 0),
        (mailbox.approximate_count(), len(mailbox.dead_letters)),
        "nothing is left, nobody is dead",
    )


def one_of_several_settlements_of_a_delivery_succeeds(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    other = harness.open(mailbox.name)
    mailbox.send_many(range(EACH))
    messages = mailbox.receive(max_messages=EACH, visibility_timeout=FOREVER)
    verdicts: list[list[SettleResult]] = []

    def settle(handle: Mailbox[Any]) -> None:
        verdicts.append(handle.acknowledge_many(messages))

    crowd = [start_thread(partial(settle, handle)) for handle in (mailbox, other, mailbox, other)]
    for thread in crowd:
        await_thread(thread, "threads that settle come to an end")
    won = [verdict.count(SettleResult.SETTLED) for verdict in zip(*verdicts, strict=True)]
    expect_equal([1] * EACH, won, "of several that settle one delivery exactly one succeeds")


def a_key_sent_by_many_at_once_is_stored_once(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    ids: list[str] = []
    crowd = [
        start_thread(lambda: ids.append(mailbox.send("once", dedupe_key="k")))
        for _ in range(SENDERS * 2)
    ]
    for thread in crowd:
        await_thread(thread, "threads that send come to an end")
    expect_equal(1, len(set(ids)), "all who send with one key get one id")
    expect_equal(1, mailbox.approximate_count(), "and one message is stored")


def _sender(mailbox: Mailbox[Any], number: int) -> Callable[[], None]:
    """Half of it one by one, half in batches."""

    def send() -> None:
        bodies = [f"{number}-{each}" for each in range(EACH)]
        for body in bodies[: EACH // 2]:
            mailbox.send(body)
        for start in range(EACH // 2, EACH, 10):
            mailbox.send_many(bodies[start : start + 10])

    return send


def _receiver(mailbox: Mailbox[Any], counter: SettledCounter, number: int) -> Callable[[], None]:
    """Gives some back, and acknowledges the others one by one or together."""

    def receive() -> None:
        while not mailbox.closed:
            messages = _nack_some(
                mailbox.receive(max_messages=1 + 3 * number, wait_time_seconds=FOREVER)
            )
            if number % 2:
                expect_equal(
                    {SettleResult.SETTLED},
                    {*mailbox.acknowledge_many(messages), SettleResult.SETTLED},
                    "a holder may settle",
                )
            for message in messages:
                if not message.is_finalized:
                    message.acknowledge()
                counter.count(message)

    def ends_with_the_mailbox() -> None:
        with suppress(MailboxClosedError):
            receive()

    return ends_with_the_mailbox


def _nack_some(messages: list[Message[Any]]) -> list[Message[Any]]:
    """All but every third that comes for the first time; those are given back."""
    for message in messages:
        if message.delivery_count == 1 and int(message.id, 16) % 3 == 0:
            message.nack()
    return [message for message in messages if not message.is_finalized]


CHECKS = (
    threads_that_send_and_receive_settle_every_message_once,
    one_of_several_settlements_of_a_delivery_succeeds,
    a_key_sent_by_many_at_once_is_stored_once,
)
