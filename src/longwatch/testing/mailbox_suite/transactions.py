"""Sends and settlements that commit with the caller's own work, or are refused where there are
no transactions.
"""

from __future__ import annotations

from typing import Any

from longwatch.errors import UnsupportedError
from longwatch.mailbox.message import Message, Verdict
from longwatch.testing.mailbox_suite.bench import (
    FOREVER,
    Bench,
    await_errand,
    bodies,
    expect_equal,
    expect_error,
    in_thread,
    take,
)


def what_is_no_transaction_of_the_store_is_refused(bench: Bench) -> None:
    mailbox = bench.open()
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


def what_is_rolled_back_was_never_sent_nor_settled(bench: Bench) -> None:
    transact, mailbox = bench.transact, bench.open()
    if transact is None:
        return
    mailbox.send("work")
    message = take(mailbox, visibility_timeout=bench.unit)

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
    bench.lapse(mailbox, 1.5)
    expect_equal(
        "work",
        take(mailbox).body,
        "a message that was settled in a transaction that failed comes back",
    )


def what_is_committed_is_sent_and_settled_together(bench: Bench) -> None:
    transact, mailbox, other = bench.transact, bench.open(), bench.open()
    if transact is None:
        return
    mailbox.send("work")
    message = take(mailbox)
    verdicts: list[Verdict] = []

    def follow_up(tx: Any) -> None:
        other.send("next", tx=tx)
        verdicts.extend(mailbox.acknowledge_many([message], tx=tx))

    transact(follow_up)
    expect_equal([Verdict.SETTLED], verdicts, "settling in a transaction gives verdicts")
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
        "next", take(other).body, "what was sent in a transaction is there once it is committed"
    )


def a_commit_wakes_who_waits_for_what_it_sent(bench: Bench) -> None:
    transact, mailbox = bench.transact, bench.open()
    if transact is None:
        return
    handle, clock = bench.frozen(mailbox)
    received: list[Message[Any]] = []
    waiting = in_thread(lambda: received.extend(handle.receive(wait_time_seconds=FOREVER)))
    clock.await_parked(1)
    transact(lambda tx: mailbox.send("news", tx=tx))
    await_errand(waiting, "a commit wakes a receive that waits")
    expect_equal(["news"], bodies(received), "the receive returns what was committed")


class RolledBackError(Exception):
    """What the caller's own code raises."""


CHECKS = (
    what_is_no_transaction_of_the_store_is_refused,
    what_is_rolled_back_was_never_sent_nor_settled,
    what_is_committed_is_sent_and_settled_together,
    a_commit_wakes_who_waits_for_what_it_sent,
)
