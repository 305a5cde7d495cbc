"""Checks of dead letters, and of messages that expire before a claim."""

from __future__ import annotations

from typing import Any

from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.testing.mailbox_suite.harness import (
    MailboxHarness,
    bodies,
    claim_rows,
    expect,
    expect_equal,
    receive_one,
)

MANY_DEAD_LETTERS = 250
"""Enough dead letters for more than two pages of a listing."""


def dead_letters_are_listed_in_the_order_they_died(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    ids = _make_dead_letters(mailbox, MANY_DEAD_LETTERS)
    expect_equal(
        f"{mailbox.name}.dead",
        mailbox.dead_letters.name,
        "dead letters have their own name",
    )
    expect_equal(MANY_DEAD_LETTERS, len(mailbox.dead_letters), "len() counts dead letters")
    expect_equal(
        ids,
        [dead_letter.id for dead_letter in mailbox.dead_letters],
        "all dead letters are listed, oldest first",
    )
    listed = []
    for dead_letter in mailbox.dead_letters:
        listed.append(dead_letter.id)
        mailbox.dead_letters.drop(dead_letter.id, *ids[100:120])
    expect_equal(
        [*ids[:100], *ids[120:]],
        listed,
        "a listing shows each dead letter once while they are dropped",
    )
    expect_equal(0, len(mailbox.dead_letters), "dead letters can be dropped during a listing")


def one_dead_letter_is_shown_replayed_or_dropped(harness: MailboxHarness) -> None:
    mailbox, other = harness.open(), harness.open()
    first, second, third = _make_dead_letters(mailbox, 3)
    shown = mailbox.dead_letters.show(second)
    expect(
        shown is not None and (shown.id, shown.error) == (second, "no"),
        f"a dead letter is shown by its id, not {shown}",
    )
    expect_equal(None, mailbox.dead_letters.show("unknown"), "show() of an unknown id is None")
    expect_equal(None, other.dead_letters.show(second), "show() of another mailbox's id is None")
    expect_equal(
        [True, False],
        mailbox.dead_letters.drop(first, "unknown"),
        "drop() returns for each whether it existed",
    )
    expect_equal(
        [True, False],
        mailbox.dead_letters.replay(second, first),
        "replay() returns for each whether it existed",
    )
    expect_equal([False], other.dead_letters.drop(third), "another mailbox cannot drop it")
    expect_equal(
        [third], [dead_letter.id for dead_letter in mailbox.dead_letters], "the others stay dead"
    )
    expect_equal(
        [second],
        [message.id for message in mailbox.receive(max_messages=10)],
        "a replayed dead letter is a message again",
    )


def a_replayed_dead_letter_starts_anew_at_the_end_of_the_queue(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=2))
    dead = mailbox.send("again", reply_to="answers", expires_in=harness.unit * 5)
    for _ in range(2):
        receive_one(mailbox).nack(reason="no")
    mailbox.send("other")
    expect_equal(
        "other", receive_one(mailbox).body, "a message that spent its failures is not received"
    )
    mailbox.send("last")
    mailbox.dead_letters.replay(dead)
    harness.move_clocks(mailbox, lease=6, wall=6)
    received = mailbox.receive(max_messages=10)
    expect_equal(
        ["last", "again"], bodies(received), "a replayed message comes last and does not expire"
    )
    expect_equal(
        (dead, 1, "answers"),
        (received[1].id, received[1].delivery_count, received[1].reply_to),
        "a replayed message has its counters at zero",
    )
    received[1].nack(reason="once")
    expect_equal(
        2,
        receive_one(mailbox, "a replayed message has its whole budget again").delivery_count,
        "a replayed message counts its deliveries from 1",
    )


def all_dead_letters_are_replayed_or_dropped(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    _make_dead_letters(mailbox, MANY_DEAD_LETTERS)
    expect_equal(MANY_DEAD_LETTERS, mailbox.dead_letters.replay_all(), "replay_all() counts them")
    expect_equal(
        (MANY_DEAD_LETTERS, 0),
        (mailbox.stats().ready, mailbox.stats().dead),
        "all replayed messages are in the queue",
    )
    mailbox.purge()
    _make_dead_letters(mailbox, MANY_DEAD_LETTERS)
    expect_equal(MANY_DEAD_LETTERS, mailbox.dead_letters.drop_all(), "drop_all() counts them")
    expect_equal((0, 0), (mailbox.approximate_count(), len(mailbox.dead_letters)), "all are gone")


def dead_lettering_and_settling_are_one(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("work")
    message = receive_one(mailbox)
    dead = Settlement(
        claim=message.receipt, outcome=RowOutcome.DEAD, reason="failed", error="Fatal: no"
    )
    expect_equal(
        [True, False], mailbox.backend.settle([dead, dead]), "a message is dead-lettered once"
    )
    expect_equal(
        (0, 1),
        (mailbox.approximate_count(), len(mailbox.dead_letters)),
        "a dead letter is not in the queue",
    )
    dead_letter = next(iter(mailbox.dead_letters))
    expect_equal(
        ("failed", "Fatal: no", 1),
        (dead_letter.reason, dead_letter.error, dead_letter.deliveries),
        "with its history",
    )


def dead_letters_go_when_their_retention_is_over(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(dead_retention=2 * harness.unit))
    _make_dead_letters(mailbox, 2)
    harness.pass_time(mailbox, 1)
    [young] = _make_dead_letters(mailbox, 1)
    expect_equal(3, len(mailbox.dead_letters), "dead letters are kept for their retention")
    harness.pass_time(mailbox, 1.5)
    expect_equal(
        [young],
        [dead_letter.id for dead_letter in mailbox.dead_letters],
        "a sweep deletes older dead letters",
    )


def a_message_without_expiry_outlasts_everything(harness: MailboxHarness) -> None:
    if not harness.can_jump:
        return
    mailbox = harness.open()
    _make_dead_letters(mailbox, 1)
    mailbox.send("old")
    harness.pass_time(mailbox, 400 * 86_400 / harness.unit)
    expect_equal(1, len(mailbox.dead_letters), "dead letters without a retention are kept")
    expect_equal(
        1,
        receive_one(mailbox, "a message without expires_in never expires").delivery_count,
        "this is its first delivery",
    )


def an_expired_message_is_not_received_and_is_counted(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("old", expires_in=harness.unit)
    mailbox.send("good", expires_in=9 * harness.unit)
    owner = mailbox.backend.register_owner(Incarnation.current())
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    leased = claim_rows(mailbox, owner)
    expect_equal(
        [b'"good"'],
        [each.item.body for each in leased],
        "a claim skips expired messages, swept or not",
    )
    expect_equal(
        (1, 0),
        (mailbox.stats().expired, len(mailbox.dead_letters)),
        "an expired message is counted, and kept only with keep_expired",
    )


def a_sweep_removes_what_has_expired_and_counts_it(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many(["a", "b"], expires_in=harness.unit)
    mailbox.send("delayed", delay_seconds=harness.unit * 1.2, expires_in=harness.unit)
    mailbox.send("good")
    harness.pass_time(mailbox, 1.1)
    stats = mailbox.stats()
    expect_equal(
        (1, 0, 3, 0),
        (stats.ready, stats.delayed, stats.expired, stats.dead),
        "a sweep removes and counts expired messages",
    )


def an_expired_message_is_kept_among_the_dead_if_asked_for(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    swept = mailbox.send_many(["swept"], expires_in=harness.unit, keep_expired=True)
    harness.pass_time(mailbox, 1.5)
    received = mailbox.send_many(
        ["received"], expires_in=harness.unit, keep_expired=True, reply_to="answers"
    )
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    expect_equal(
        [],
        claim_rows(mailbox, mailbox.backend.register_owner(Incarnation.current())),
        "a claim skips expired messages",
    )
    dead_letters = list(mailbox.dead_letters)
    expect_equal(
        swept + received,
        [dead_letter.id for dead_letter in dead_letters],
        "expired messages are kept by a sweep and by a receive",
    )
    expect_equal(
        {("expired", 0)},
        {(dead_letter.reason, dead_letter.deliveries) for dead_letter in dead_letters},
        "the dead letter has the reason `expired`",
    )
    expect_equal(
        (b'"received"', "answers"),
        (dead_letters[1].body, dead_letters[1].reply_to),
        "the dead letter has the history of the message",
    )
    expect_equal(2, mailbox.stats().expired, "expired messages that are kept are counted")


def a_message_does_not_expire_while_it_is_held(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many(["done", "back"], expires_in=harness.unit)
    done, back = mailbox.receive(max_messages=2, visibility_timeout=9 * harness.unit)
    harness.pass_time(mailbox, 1.5)
    expect_equal(
        (2, 0),
        (mailbox.stats().leased, mailbox.stats().expired),
        "a sweep leaves leased messages alone",
    )
    done.acknowledge()
    back.nack()
    mailbox.backend.sweep()
    expect_equal([], mailbox.receive(), "a message released after its expiry is not received")
    expect_equal((0, 1), (mailbox.approximate_count(), mailbox.stats().expired), "it has expired")


def _make_dead_letters(mailbox: Mailbox[Any], count: int) -> list[str]:
    """Make this many dead letters. Return their ids, oldest first."""
    mailbox.send_many(range(count))
    messages = mailbox.receive(max_messages=count)
    outcomes = [
        Settlement(claim=each.receipt, outcome=RowOutcome.DEAD, reason="failed", error="no")
        for each in messages
    ]
    expect_equal(
        [True] * count, mailbox.backend.settle(outcomes), "a leased message can be dead-lettered"
    )
    return [message.id for message in messages]


CHECKS = (
    dead_letters_are_listed_in_the_order_they_died,
    one_dead_letter_is_shown_replayed_or_dropped,
    a_replayed_dead_letter_starts_anew_at_the_end_of_the_queue,
    all_dead_letters_are_replayed_or_dropped,
    dead_lettering_and_settling_are_one,
    dead_letters_go_when_their_retention_is_over,
    a_message_without_expiry_outlasts_everything,
    an_expired_message_is_not_received_and_is_counted,
    a_sweep_removes_what_has_expired_and_counts_it,
    an_expired_message_is_kept_among_the_dead_if_asked_for,
    a_message_does_not_expire_while_it_is_held,
)
