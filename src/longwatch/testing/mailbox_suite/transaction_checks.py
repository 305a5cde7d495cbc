"""Checks of sends and settlements that commit with the caller's own work, or are refused in stores
without transactions.
"""

from __future__ import annotations

from typing import Any

from longwatch.errors import UnsupportedError
from longwatch.mailbox.message import Message, SettleResult
from longwatch.testing.mailbox_suite.harness import (
    FOREVER,
    MailboxHarness,
    await_thread,
    bodies,
    expect_equal,
    expect_error,
    receive_one,
    start_thread,
)


def what_is_no_transaction_of_the_store_is_refused(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    expect_error(UnsupportedError, lambda: mailbox.send(1, tx=object()), "send(tx=) is refused")
    expect_error(
        UnsupportedError, lambda: mailbox.send_many([1], tx=object()), "send_many(tx=) is refused"
    )
    expect_error(
        UnsupportedError,
        lambda: mailbox.acknowledge_many([], tx=object()),
        "acknowledge_many(tx=) is refused",
    )
    expect_equal(0, mailbox.approximate_count(), "a refused send stores nothing")


def what_is_rolled_back_was_never_sent_nor_settled(harness: MailboxHarness) -> None:
    transact, mailbox = harness.transact, harness.open()
    if transact is None:
        return
    mailbox.send("work")
    message = receive_one(mailbox, visibility_timeout=harness.unit)

    def fail(tx: Any) -> None:
        mailbox.send_many([1, 2], tx=tx)
        mailbox.acknowledge_many([message], tx=tx)
        raise RolledBackError

    expect_error(
        RolledBackError, lambda: transact(fail), "transact() raises the error of the caller"
    )
    stats = mailbox.stats()
    expect_equal(
        (0, 1),
        (stats.ready, stats.leased),
        "a failed transaction sends and settles nothing",
    )
    expect_equal(
        False,
        message.is_finalized,
        "a message that was settled in a failed transaction can still be settled",
    )
    harness.pass_time(mailbox, 1.5)
    expect_equal(
        "work",
        receive_one(mailbox).body,
        "a message that was settled in a failed transaction is delivered again",
    )


def what_is_committed_is_sent_and_settled_together(harness: MailboxHarness) -> None:
    transact, mailbox, other = harness.transact, harness.open(), harness.open()
    if transact is None:
        return
    mailbox.send("work")
    message = receive_one(mailbox)
    verdicts: list[SettleResult] = []

    def follow_up(tx: Any) -> None:
        other.send("next", tx=tx)
        verdicts.extend(mailbox.acknowledge_many([message], tx=tx))

    transact(follow_up)
    expect_equal([SettleResult.SETTLED], verdicts, "settling in a transaction returns results")
    expect_equal(
        True,
        message.is_finalized,
        "a message that was settled in a transaction is finalized by its commit",
    )
    expect_equal(
        0,
        mailbox.approximate_count(),
        "a message that was settled in a transaction is removed by its commit",
    )
    expect_equal(
        "next",
        receive_one(other).body,
        "a message that was sent in a transaction is received after its commit",
    )


def a_commit_wakes_a_receive_that_waits(harness: MailboxHarness) -> None:
    transact, mailbox = harness.transact, harness.open()
    if transact is None:
        return
    handle, clock = harness.frozen(mailbox)
    received: list[Message[Any]] = []
    waiting = start_thread(lambda: received.extend(handle.receive(wait_time_seconds=FOREVER)))
    clock.await_parked(1)
    transact(lambda tx: mailbox.send("news", tx=tx))
    await_thread(waiting, "a commit wakes a receive that waits")
    expect_equal(["news"], bodies(received), "the receive returns the committed message")


class RolledBackError(Exception):
    """Raised by the caller's own code inside a transaction."""


CHECKS = (
    what_is_no_transaction_of_the_store_is_refused,
    what_is_rolled_back_was_never_sent_nor_settled,
    what_is_committed_is_sent_and_settled_together,
    a_commit_wakes_a_receive_that_waits,
)
