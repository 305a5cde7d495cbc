"""Looking at a mailbox, and managing it."""

from __future__ import annotations

from longwatch.testing.mailbox_suite.bench import Bench, bodies, expect, expect_equal, take


def the_counts_tell_how_it_stands(bench: Bench) -> None:
    mailbox = bench.open("", int)
    expect_equal((0, 0, 0, 0, None, False, 0), tuple(mailbox.stats()), "a new mailbox is empty")
    bench.open(mailbox.name).send("dead")
    mailbox.send_many([1, 2, 3])
    mailbox.send(4, delay_seconds=bench.unit)
    take(mailbox)
    stats = mailbox.stats()
    expect_equal(
        (2, 1, 1, 1),
        (stats.ready, stats.delayed, stats.leased, stats.dead),
        "stats() counts ready, delayed, leased, dead",
    )
    expect_equal(
        4, mailbox.approximate_count(), "approximate_count() is what is ready, delayed or leased"
    )


def the_oldest_age_is_that_of_what_is_ready(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send("old")
    bench.shift(mailbox, lease=1, wall=1)
    mailbox.send("new")
    age = mailbox.stats().oldest_age
    expect(
        age is not None and age >= bench.unit,
        f"oldest_age is the time since the oldest was sent, not {age}",
    )
    take(mailbox)
    age = mailbox.stats().oldest_age
    expect(
        age is not None and age < bench.unit,
        f"oldest_age does not count what is leased, but it is {age}",
    )
    take(mailbox)
    expect_equal(None, mailbox.stats().oldest_age, "oldest_age is None when nothing is ready")


def a_queued_message_is_cancelled_by_its_id(bench: Bench) -> None:
    mailbox, other = bench.open(), bench.open()
    leased, queued, kept = mailbox.send_many(["leased", "queued", "kept"])
    delayed = mailbox.send("delayed", delay_seconds=bench.unit)
    held = take(mailbox)
    expect(not other.cancel(queued), "cancel() finds only messages of its own mailbox")
    expect(mailbox.cancel(queued), "a queued message can be cancelled")
    expect(mailbox.cancel(delayed), "a delayed message can be cancelled")
    expect(not mailbox.cancel(queued), "a message is cancelled once")
    expect(not mailbox.cancel(leased), "a leased message cannot be cancelled")
    held.acknowledge()
    bench.lapse(mailbox, 1.5)
    received = mailbox.receive(max_messages=10)
    expect_equal([kept], [message.id for message in received], "a cancelled message never comes")


def a_paused_mailbox_hands_nothing_out_through_any_handle(bench: Bench) -> None:
    mailbox = bench.open()
    other = bench.open(mailbox.name)
    mailbox.send_many([1, 2])
    held = take(mailbox)
    other.pause()
    expect(mailbox.stats().paused, "stats() says that it is paused")
    expect_equal([], mailbox.receive(), "a paused mailbox hands nothing out")
    expect_equal([], mailbox.receive(wait_time_seconds=0.02), "not after a wait either")
    held.acknowledge()
    mailbox.send(3)
    mailbox.resume()
    expect(not other.stats().paused, "resume() ends the pause for all")
    expect_equal(
        [2, 3], bodies(other.receive(max_messages=10)), "what waited in a pause is there after it"
    )


def a_purge_takes_all_but_what_is_leased(bench: Bench) -> None:
    mailbox, other = bench.open(), bench.open()
    other.send("other")
    mailbox.send_many([1, 2, 3])
    mailbox.send(4, delay_seconds=bench.unit)
    held = take(mailbox)
    expect_equal(3, mailbox.purge(), "purge() says how many it removed")
    expect_equal(1, mailbox.approximate_count(), "what is leased stays")
    held.nack()
    expect_equal(
        [1], bodies(mailbox.receive(max_messages=10)), "what was leased in a purge goes on living"
    )
    expect_equal(0, mailbox.purge(), "purge() of nothing removes nothing")
    expect_equal("other", take(other).body, "another mailbox is not touched")


def a_peek_shows_what_comes_next_and_takes_nothing(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send("leased")
    ids = mailbox.send_many([1, 2, 3])
    mailbox.send("later", delay_seconds=bench.unit * 9)
    mailbox.send("old", expires_in=bench.unit)
    take(mailbox)
    bench.shift(mailbox, lease=1.5, wall=1.5)
    expect_equal(
        ids[:2],
        [delivery.id for delivery in mailbox.backend.peek(limit=2)],
        "peek() shows the next, oldest first",
    )
    seen = mailbox.backend.peek(limit=100)
    expect_equal(
        [(each, 0) for each in ids],
        [(delivery.id, delivery.deliveries) for delivery in seen],
        "and only what is ready",
    )
    expect_equal(1, take(mailbox).delivery_count, "peek() takes nothing")


CHECKS = (
    the_counts_tell_how_it_stands,
    the_oldest_age_is_that_of_what_is_ready,
    a_queued_message_is_cancelled_by_its_id,
    a_paused_mailbox_hands_nothing_out_through_any_handle,
    a_purge_takes_all_but_what_is_leased,
    a_peek_shows_what_comes_next_and_takes_nothing,
)
