"""Dead letters, and messages that nobody took in their time."""

from __future__ import annotations

from typing import Any

from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import Limits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.testing.mailbox_suite.bench import (
    Bench,
    bodies,
    claim_rows,
    expect,
    expect_equal,
    take,
)
from longwatch.work.source import Outcome, Settlement

PAGES = 250
"""Dead letters enough for more than two pages of a listing."""


def dead_letters_are_listed_in_the_order_they_died(bench: Bench) -> None:
    mailbox = bench.open()
    ids = _dead(mailbox, PAGES)
    expect_equal(
        f"{mailbox.name}.dead",
        mailbox.dead.name,
        "dead letters have a mailbox of their own by name",
    )
    expect_equal(PAGES, len(mailbox.dead), "their number is known")
    expect_equal(
        ids, [letter.id for letter in mailbox.dead], "all of them are listed, oldest first"
    )
    listed = []
    for letter in mailbox.dead:
        listed.append(letter.id)
        mailbox.dead.drop(letter.id, *ids[100:120])
    expect_equal(
        [*ids[:100], *ids[120:]],
        listed,
        "a listing goes on, and tells none twice, while they are dropped",
    )
    expect_equal(0, len(mailbox.dead), "they can be dropped while they are listed")


def one_dead_letter_is_shown_replayed_or_dropped(bench: Bench) -> None:
    mailbox, other = bench.open(), bench.open()
    first, second, third = _dead(mailbox, 3)
    shown = mailbox.dead.show(second)
    expect(
        shown is not None and (shown.id, shown.error) == (second, "no"),
        f"a dead letter is shown by its id, not {shown}",
    )
    expect_equal(None, mailbox.dead.show("unknown"), "one that is not there is not shown")
    expect_equal(None, other.dead.show(second), "nor one of another mailbox")
    expect_equal(
        [True, False],
        mailbox.dead.drop(first, "unknown"),
        "drop() says for each whether it was there",
    )
    expect_equal(
        [True, False],
        mailbox.dead.replay(second, first),
        "replay() says for each whether it was there",
    )
    expect_equal([False], other.dead.drop(third), "another mailbox cannot drop it")
    expect_equal([third], [letter.id for letter in mailbox.dead], "the others stay dead")
    expect_equal(
        [second],
        [message.id for message in mailbox.receive(max_messages=10)],
        "a replayed letter is a message again",
    )


def a_replayed_letter_starts_anew_at_the_end_of_the_line(bench: Bench) -> None:
    mailbox = bench.open(limits=Limits(max_failures=2))
    dead = mailbox.send("again", reply_to="answers", expires_in=bench.unit * 5)
    for _ in range(2):
        take(mailbox).nack(reason="no")
    mailbox.send("other")
    expect_equal(
        "other", take(mailbox).body, "a message whose failures are spent is not handed out"
    )
    mailbox.send("last")
    mailbox.dead.replay(dead)
    bench.shift(mailbox, lease=6, wall=6)
    received = mailbox.receive(max_messages=10)
    expect_equal(
        ["last", "again"], bodies(received), "a replayed letter comes last, and does not expire"
    )
    expect_equal(
        (dead, 1, "answers"),
        (received[1].id, received[1].delivery_count, received[1].reply_to),
        "with clean counters",
    )
    received[1].nack(reason="once")
    expect_equal(
        2, take(mailbox, "it has its whole budget again").delivery_count, "the second delivery"
    )


def all_dead_letters_are_replayed_or_dropped(bench: Bench) -> None:
    mailbox = bench.open()
    _dead(mailbox, PAGES)
    expect_equal(PAGES, mailbox.dead.replay_all(), "replay_all() says how many")
    expect_equal((PAGES, 0), (mailbox.stats().ready, mailbox.stats().dead), "all are back in line")
    mailbox.purge()
    _dead(mailbox, PAGES)
    expect_equal(PAGES, mailbox.dead.drop_all(), "drop_all() says how many")
    expect_equal((0, 0), (mailbox.approximate_count(), len(mailbox.dead)), "all are gone")


def dying_and_settling_are_one(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send("work")
    message = take(mailbox)
    dead = Settlement(
        claim=message.receipt, outcome=Outcome.DEAD, reason="failed", error="Fatal: no"
    )
    expect_equal([True, False], mailbox.backend.settle([dead, dead]), "a message dies once")
    expect_equal(
        (0, 1),
        (mailbox.approximate_count(), len(mailbox.dead)),
        "it is dead and not in line any more",
    )
    letter = next(iter(mailbox.dead))
    expect_equal(
        ("failed", "Fatal: no", 1),
        (letter.reason, letter.error, letter.deliveries),
        "with its history",
    )


def dead_letters_go_when_their_retention_is_over(bench: Bench) -> None:
    mailbox = bench.open(limits=Limits(dead_retention=2 * bench.unit))
    _dead(mailbox, 2)
    bench.lapse(mailbox, 1)
    [young] = _dead(mailbox, 1)
    expect_equal(3, len(mailbox.dead), "dead letters are kept for their retention")
    bench.lapse(mailbox, 1.5)
    expect_equal(
        [young], [letter.id for letter in mailbox.dead], "a sweep removes those that are older"
    )


def a_message_without_expiry_outlasts_everything(bench: Bench) -> None:
    if not bench.jumps:
        return
    mailbox = bench.open()
    _dead(mailbox, 1)
    mailbox.send("old")
    bench.lapse(mailbox, 400 * 86_400 / bench.unit)
    expect_equal(1, len(mailbox.dead), "dead letters without a retention are kept")
    expect_equal(
        1,
        take(mailbox, "a message without expires_in is never dropped").delivery_count,
        "its first delivery",
    )


def an_expired_message_is_not_received_and_is_counted(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send("old", expires_in=bench.unit)
    mailbox.send("good", expires_in=9 * bench.unit)
    owner = mailbox.backend.enter(Incarnation.mine())
    bench.shift(mailbox, lease=1.5, wall=1.5)
    leased = claim_rows(mailbox, owner)
    expect_equal(
        [b'"good"'],
        [each.item.body for each in leased],
        "a claim passes over what has expired, swept or not",
    )
    expect_equal(
        (1, 0),
        (mailbox.stats().expired, len(mailbox.dead)),
        "it is counted, and kept only if that was asked for",
    )


def a_sweep_removes_what_has_expired_and_counts_it(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send_many(["a", "b"], expires_in=bench.unit)
    mailbox.send("delayed", delay_seconds=bench.unit * 1.2, expires_in=bench.unit)
    mailbox.send("good")
    bench.lapse(mailbox, 1.1)
    stats = mailbox.stats()
    expect_equal(
        (1, 0, 3, 0),
        (stats.ready, stats.delayed, stats.expired, stats.dead),
        "a sweep removes and counts the expired",
    )


def an_expired_message_is_kept_among_the_dead_if_asked_for(bench: Bench) -> None:
    mailbox = bench.open()
    swept = mailbox.send_many(["swept"], expires_in=bench.unit, keep_expired=True)
    bench.lapse(mailbox, 1.5)
    received = mailbox.send_many(
        ["received"], expires_in=bench.unit, keep_expired=True, reply_to="answers"
    )
    bench.shift(mailbox, lease=1.5, wall=1.5)
    expect_equal(
        [],
        claim_rows(mailbox, mailbox.backend.enter(Incarnation.mine())),
        "a claim passes over what has expired",
    )
    letters = list(mailbox.dead)
    expect_equal(
        swept + received,
        [letter.id for letter in letters],
        "what has expired is kept, at sweep and at receive",
    )
    expect_equal(
        {("expired", 0)},
        {(letter.reason, letter.deliveries) for letter in letters},
        "with the reason",
    )
    expect_equal(
        (b'"received"', "answers"), (letters[1].body, letters[1].reply_to), "and its history"
    )
    expect_equal(2, mailbox.stats().expired, "and counted")


def a_message_does_not_expire_while_it_is_held(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send_many(["done", "back"], expires_in=bench.unit)
    done, back = mailbox.receive(max_messages=2, visibility_timeout=9 * bench.unit)
    bench.lapse(mailbox, 1.5)
    expect_equal(
        (2, 0),
        (mailbox.stats().leased, mailbox.stats().expired),
        "a sweep leaves alone what is leased",
    )
    done.acknowledge()
    back.nack()
    mailbox.backend.sweep()
    expect_equal([], mailbox.receive(), "one that is given back after its time is not handed out")
    expect_equal((0, 1), (mailbox.approximate_count(), mailbox.stats().expired), "it has expired")


def _dead(mailbox: Mailbox[Any], count: int) -> list[str]:
    """So many letters that died, in that order."""
    mailbox.send_many(range(count))
    messages = mailbox.receive(max_messages=count)
    outcomes = [
        Settlement(claim=each.receipt, outcome=Outcome.DEAD, reason="failed", error="no")
        for each in messages
    ]
    expect_equal(
        [True] * count, mailbox.backend.settle(outcomes), "a message that is held can be given up"
    )
    return [message.id for message in messages]


CHECKS = (
    dead_letters_are_listed_in_the_order_they_died,
    one_dead_letter_is_shown_replayed_or_dropped,
    a_replayed_letter_starts_anew_at_the_end_of_the_line,
    all_dead_letters_are_replayed_or_dropped,
    dying_and_settling_are_one,
    dead_letters_go_when_their_retention_is_over,
    a_message_without_expiry_outlasts_everything,
    an_expired_message_is_not_received_and_is_counted,
    a_sweep_removes_what_has_expired_and_counts_it,
    an_expired_message_is_kept_among_the_dead_if_asked_for,
    a_message_does_not_expire_while_it_is_held,
)
