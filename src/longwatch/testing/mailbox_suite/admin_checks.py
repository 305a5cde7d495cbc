"""Checks of counts, cancel, pause, purge and peek."""

from __future__ import annotations

from longwatch.testing.mailbox_suite.harness import (
    MailboxHarness,
    bodies,
    expect,
    expect_equal,
    receive_one,
)


def stats_count_messages_by_state(harness: MailboxHarness) -> None:
    mailbox = harness.open("", int)
    expect_equal((0, 0, 0, 0, None, False, 0), tuple(mailbox.stats()), "a new mailbox is empty")
    harness.open(mailbox.name).send("dead")
    mailbox.send_many([1, 2, 3])
    mailbox.send(4, delay_seconds=harness.unit)
    receive_one(mailbox)
    stats = mailbox.stats()
    expect_equal(
        (2, 1, 1, 1),
        (stats.ready, stats.delayed, stats.leased, stats.dead),
        "stats() counts ready, delayed, leased, dead",
    )
    expect_equal(
        4, mailbox.approximate_count(), "approximate_count() counts ready, delayed and leased"
    )


def the_oldest_age_is_that_of_what_is_ready(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("old")
    harness.move_clocks(mailbox, lease=1, wall=1)
    mailbox.send("new")
    age = mailbox.stats().oldest_age
    expect(
        age is not None and age >= harness.unit,
        f"oldest_age is the time since the oldest message was sent, not {age}",
    )
    receive_one(mailbox)
    age = mailbox.stats().oldest_age
    expect(
        age is not None and age < harness.unit,
        f"oldest_age ignores leased messages, but it is {age}",
    )
    receive_one(mailbox)
    expect_equal(None, mailbox.stats().oldest_age, "oldest_age is None when nothing is ready")


def a_queued_message_is_cancelled_by_its_id(harness: MailboxHarness) -> None:
    mailbox, other = harness.open(), harness.open()
    leased, queued, kept = mailbox.send_many(["leased", "queued", "kept"])
    delayed = mailbox.send("delayed", delay_seconds=harness.unit)
    held = receive_one(mailbox)
    expect(not other.cancel(queued), "cancel() finds only messages of its own mailbox")
    expect(mailbox.cancel(queued), "a queued message can be cancelled")
    expect(mailbox.cancel(delayed), "a delayed message can be cancelled")
    expect(not mailbox.cancel(queued), "a message is cancelled once")
    expect(not mailbox.cancel(leased), "a leased message cannot be cancelled")
    held.acknowledge()
    harness.pass_time(mailbox, 1.5)
    received = mailbox.receive(max_messages=10)
    expect_equal([kept], [message.id for message in received], "no cancelled message is received")


def a_paused_mailbox_hands_nothing_out_through_any_handle(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    other = harness.open(mailbox.name)
    mailbox.send_many([1, 2])
    held = receive_one(mailbox)
    other.pause()
    expect(mailbox.stats().paused, "stats() says that it is paused")
    expect_equal([], mailbox.receive(), "receive() from a paused mailbox is empty")
    expect_equal([], mailbox.receive(wait_time_seconds=0.02), "it is empty after a wait too")
    held.acknowledge()
    mailbox.send(3)
    mailbox.resume()
    expect(not other.stats().paused, "resume() ends the pause for every handle")
    expect_equal(
        [2, 3], bodies(other.receive(max_messages=10)), "messages of a paused mailbox stay"
    )


def a_purge_takes_all_but_what_is_leased(harness: MailboxHarness) -> None:
    mailbox, other = harness.open(), harness.open()
    other.send("other")
    mailbox.send_many([1, 2, 3])
    mailbox.send(4, delay_seconds=harness.unit)
    held = receive_one(mailbox)
    expect_equal(3, mailbox.purge(), "purge() returns how many it removed")
    expect_equal(1, mailbox.approximate_count(), "a leased message stays")
    held.nack()
    expect_equal(
        [1], bodies(mailbox.receive(max_messages=10)), "a message leased in a purge survives it"
    )
    expect_equal(0, mailbox.purge(), "purge() of an empty mailbox removes nothing")
    expect_equal("other", receive_one(other).body, "purge() leaves other mailboxes alone")


def a_peek_shows_what_comes_next_and_takes_nothing(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("leased")
    ids = mailbox.send_many([1, 2, 3])
    mailbox.send("later", delay_seconds=harness.unit * 9)
    mailbox.send("old", expires_in=harness.unit)
    receive_one(mailbox)
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    expect_equal(
        ids[:2],
        [delivery.id for delivery in mailbox.backend.peek(limit=2)],
        "peek() shows the next messages, oldest first",
    )
    seen = mailbox.backend.peek(limit=100)
    expect_equal(
        [(each, 0) for each in ids],
        [(delivery.id, delivery.deliveries) for delivery in seen],
        "peek() shows only ready messages",
    )
    expect_equal(1, receive_one(mailbox).delivery_count, "peek() leases nothing")


CHECKS = (
    stats_count_messages_by_state,
    the_oldest_age_is_that_of_what_is_ready,
    a_queued_message_is_cancelled_by_its_id,
    a_paused_mailbox_hands_nothing_out_through_any_handle,
    a_purge_takes_all_but_what_is_leased,
    a_peek_shows_what_comes_next_and_takes_nothing,
)
