"""Sends and settlements that commit with the caller's own work, or are refused where there are
no transactions.
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
    expect_equal(0, mailbox.approximate_count(), "what is refused is not sent")


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
        RolledBackError, lambda: transact(fail), "what the caller raises comes out of transact()"
    )
    stats = mailbox.stats()
    expect_equal(
        (0, 1),
        (stats.ready, stats.leased),
        "of a transaction that failed nothing is sent and nothing settled",
    )
    expect_equal(
        False,
        message.is_finalized,
        "a message that was settled in a transaction that failed can still be settled",
    )
    harness.pass_time(mailbox, 1.5)
    expect_equal(
        "work",
        receive_one(mailbox).body,
        "a message that was settled in a transaction that failed comes back",
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
    expect_equal([SettleResult.SETTLED], verdicts, "settling in a transaction gives verdicts")
    expect_equal(
        True,
        message.is_finalized,
        "a message that was settled in a transaction is finalized once it is committed",
    )
    expect_equal(
        0,
        mailbox.approximate_count(),
        "what was settled in a transaction is gone once it is committed",
    )
    expect_equal(
        "next",
        receive_one(other).body,
        "what was sent in a transaction is there once it is committed",
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
    expect_equal(["news"], bodies(received), "the receive returns what was committed")


class RolledBackError(Exception):
    """What the caller's own code raises."""


CHECKS = (
    what_is_no_transaction_of_the_store_is_refused,
    what_is_rolled_back_was_never_sent_nor_settled,
    what_is_committed_is_sent_and_settled_together,
    a_commit_wakes_a_receive_that_waits,
)
