"""Sending: what is stored, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec

from longwatch.errors import InvalidParameterError, MailboxFullError, SerializationError
from longwatch.mailbox.backend import Limits
from longwatch.mailbox.bounds import LARGEST_BODY, LONGEST_DELAY, LONGEST_VISIBILITY, MOST_MESSAGES
from longwatch.testing.mailbox_suite.bench import (
    Bench,
    bodies,
    expect,
    expect_equal,
    expect_error,
    take,
)

PLAIN: list[Any] = [
    None,
    True,
    0,
    -5,
    2**53,
    0.5,
    "",
    "grün ☃ \u0000",
    [],
    [1, ["a", None]],
    {},
    {"a": {"b": [1, 2]}},
]


@dataclass
class Point:
    x: int
    label: str = ""


class Place(msgspec.Struct):
    name: str
    points: list[Point]


class Order(TypedDict):
    item: str
    count: int


def a_sent_message_is_received_as_it_was_sent(bench: Bench) -> None:
    mailbox = bench.open()
    sent = mailbox.send({"a": [1, None]})
    message = take(mailbox)
    expect_equal(sent, message.id, "the id that send() returns is the message's")
    expect_equal({"a": [1, None]}, message.body, "the body is what was sent")
    expect_equal(1, message.delivery_count, "the first delivery counts 1")
    expect_equal(0.0, message.enqueued_at.utcoffset().total_seconds(), "enqueued_at is in UTC")  # type: ignore[union-attr]
    expect_equal(None, message.reply_to, "reply_to is None unless it was given")
    expect(not message.is_finalized, "a new delivery is not finalized")


def messages_sent_together_arrive_in_order_each_with_its_id(bench: Bench) -> None:
    mailbox = bench.open()
    sent = mailbox.send_many(range(MOST_MESSAGES))
    messages = mailbox.receive(max_messages=MOST_MESSAGES)
    expect_equal(list(range(MOST_MESSAGES)), bodies(messages), "send_many() keeps the order")
    expect_equal(sent, [message.id for message in messages], "send_many() returns the ids in order")
    expect_equal(MOST_MESSAGES, len(set(sent)), "every message has an id of its own")
    expect_equal([], mailbox.send_many([]), "sending nothing is allowed")


def plain_bodies_come_back_as_they_were(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send_many(PLAIN)
    expect_equal(PLAIN, bodies(mailbox.receive(max_messages=len(PLAIN))), "JSON types survive")


def typed_bodies_come_back_as_their_type(bench: Bench) -> None:
    examples: list[tuple[Any, Any]] = [
        (Point, Point(1, "a")),
        (Place, Place("here", [Point(1), Point(2, "b")])),
        (Order, Order(item="tea", count=2)),
        (list[Point], [Point(3)]),
        (int, 7),
    ]
    for kind, body in examples:
        mailbox = bench.open("", kind)
        mailbox.send(body)
        message = take(mailbox)
        expect_equal(body, message.body, f"a body of type {kind} is decoded to that type")
        expect_equal(
            type(body), type(message.body), f"a body of type {kind} is decoded to that type"
        )


def a_batch_is_stored_whole_or_not_at_all(bench: Bench) -> None:
    mailbox = bench.open(limits=Limits(max_size=3))
    expect_error(
        SerializationError,
        lambda: mailbox.send_many([1, object()]),
        "a body that cannot be written is refused",
    )
    expect_error(
        InvalidParameterError,
        lambda: mailbox.send_many([1, "x" * LARGEST_BODY]),
        "a body that is too large is refused",
    )
    expect_error(
        MailboxFullError,
        lambda: mailbox.send_many([1, 2, 3, 4]),
        "a batch that does not fit is refused",
    )
    expect_equal(0, mailbox.approximate_count(), "of a batch that is refused nothing is stored")
    expect_error(
        InvalidParameterError,
        lambda: mailbox.send_many([1, 2], dedupe_keys=["a"]),
        "keys are one for each body",
    )


def a_full_mailbox_counts_what_is_leased_and_delayed(bench: Bench) -> None:
    mailbox = bench.open(limits=Limits(max_size=2))
    mailbox.send("held")
    held = take(mailbox)
    first = mailbox.send("later", delay_seconds=bench.unit, dedupe_key="k")
    expect_error(
        MailboxFullError, lambda: mailbox.send("more"), "max_size counts the leased and the delayed"
    )
    expect_equal(first, mailbox.send("again", dedupe_key="k"), "a repeated key needs no room")
    held.acknowledge()
    mailbox.send("more")


def what_has_expired_makes_room(bench: Bench) -> None:
    mailbox = bench.open(limits=Limits(max_size=1))
    mailbox.send("old", expires_in=bench.unit)
    bench.shift(mailbox, lease=1.5, wall=1.5)
    mailbox.send("new")
    expect_equal("new", take(mailbox).body, "a message that has expired takes no room")


def a_repeated_key_returns_the_first_id_while_it_is_queued_or_leased(bench: Bench) -> None:
    mailbox = bench.open()
    first = mailbox.send(1, dedupe_key="k")
    expect_equal(first, mailbox.send(2, dedupe_key="k"), "the key of a queued message gives its id")
    expect_equal(
        [first, first], mailbox.send_many([3, 4], dedupe_keys=["k", "k"]), "also in a batch"
    )
    message = take(mailbox)
    expect_equal(first, mailbox.send(5, dedupe_key="k"), "the key of a leased message gives its id")
    expect_equal([], mailbox.receive(), "nothing was stored for a repeated key")
    message.nack()
    expect_equal(
        first, mailbox.send(6, dedupe_key="k"), "the key holds when the message comes back"
    )
    other = mailbox.send(7, dedupe_key="other")
    expect(other != first, "another key is another message")
    take(mailbox).acknowledge()
    expect(mailbox.send(8, dedupe_key="k") != first, "the key is free once the message is settled")
    expect_equal(
        [7, 8], bodies(mailbox.receive(max_messages=10)), "what was sent with a free key is stored"
    )


def keys_in_one_batch_and_in_two_mailboxes(bench: Bench) -> None:
    mailbox, other = bench.open(), bench.open()
    one, two, three = mailbox.send_many([1, 2, 3], dedupe_keys=["k", "k", None])
    expect_equal(one, two, "a key repeated within a batch gives the first id")
    expect(three != one, "a message without a key is always new")
    expect(other.send(1, dedupe_key="k") != one, "keys are a mailbox's own")
    expect_equal([1, 3], bodies(mailbox.receive(max_messages=10)), "each key is stored once")


def a_key_is_free_when_its_message_is_cancelled_dead_or_expired(bench: Bench) -> None:
    mailbox = bench.open(limits=Limits(max_failures=1))
    cancelled = mailbox.send(1, dedupe_key="k")
    mailbox.cancel(cancelled)
    dead = mailbox.send(2, dedupe_key="k")
    take(mailbox).nack(reason="no")
    expect_equal([], mailbox.receive(), "a message that has failed too often is not handed out")
    expired = mailbox.send(3, dedupe_key="k", expires_in=bench.unit)
    bench.shift(mailbox, lease=1.5, wall=1.5)
    last = mailbox.send(4, dedupe_key="k")
    expect_equal(
        4, len({cancelled, dead, expired, last}), "a key is free after a cancel, a death, an expiry"
    )
    expect_equal(4, take(mailbox).body, "a message that has expired never stands for a new one")


def a_delayed_message_is_not_received_before_its_time(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send("later", delay_seconds=bench.unit)
    mailbox.send("now")
    expect_equal(
        ["now"], bodies(mailbox.receive(max_messages=10)), "a delayed message is not handed out"
    )
    expect_equal([], mailbox.receive(), "a delayed message is not handed out")
    due = mailbox.backend.next_due()
    expect(
        due is not None and 0 < due <= bench.unit, f"next_due() is the time until it is, not {due}"
    )
    bench.shift(mailbox, lease=1.5, wall=1.5)
    expect_equal(
        "later",
        take(mailbox, "a delayed message is handed out when its time has come").body,
        "the delayed one",
    )
    expect_equal(None, mailbox.backend.next_due(), "next_due() is None when nothing is delayed")


def values_outside_their_bounds_are_refused_by_name(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send(1)
    message = take(mailbox)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("visibility_timeout", lambda: mailbox.receive(visibility_timeout=LONGEST_VISIBILITY + 1)),
        ("visibility_timeout", lambda: mailbox.receive(visibility_timeout=-1)),
        ("visibility_timeout", lambda: message.nack(visibility_timeout=LONGEST_VISIBILITY + 1)),
        ("visibility_timeout", lambda: message.extend_visibility(float("nan"))),
        ("wait_time_seconds", lambda: mailbox.receive(wait_time_seconds=-0.1)),
        ("max_messages", lambda: mailbox.receive(max_messages=0)),
        ("max_messages", lambda: mailbox.receive(max_messages=MOST_MESSAGES + 1)),
        ("delay_seconds", lambda: mailbox.send(1, delay_seconds=LONGEST_DELAY + 1)),
        ("delay_seconds", lambda: mailbox.send(1, delay_seconds=-1)),
        ("expires_in", lambda: mailbox.send(1, expires_in=0)),
        ("expires_in", lambda: mailbox.send(1, expires_in=LONGEST_DELAY + 1)),
        (str(LARGEST_BODY), lambda: mailbox.send("x" * LARGEST_BODY)),
        ("name", lambda: mailbox.send(1, reply_to="no spaces")),
    ]
    for name, call in refused:
        error = expect_error(
            InvalidParameterError, call, f"a value of {name} outside its bounds is refused"
        )
        expect(name in str(error), f"the error names {name}: {error}")
    message.extend_visibility(LONGEST_VISIBILITY)
    expect_equal(1, mailbox.approximate_count(), "a call that is refused changes nothing")


def values_at_their_bounds_are_taken(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send("x" * (LARGEST_BODY - 2))
    mailbox.send(1, delay_seconds=LONGEST_DELAY, expires_in=LONGEST_DELAY)
    message = take(mailbox, visibility_timeout=LONGEST_VISIBILITY, wait_time_seconds=0)
    message.nack(visibility_timeout=LONGEST_VISIBILITY)
    expect_equal(2, mailbox.stats().delayed, "both are delayed")


CHECKS = (
    a_sent_message_is_received_as_it_was_sent,
    messages_sent_together_arrive_in_order_each_with_its_id,
    plain_bodies_come_back_as_they_were,
    typed_bodies_come_back_as_their_type,
    a_batch_is_stored_whole_or_not_at_all,
    a_repeated_key_returns_the_first_id_while_it_is_queued_or_leased,
    a_full_mailbox_counts_what_is_leased_and_delayed,
    what_has_expired_makes_room,
    keys_in_one_batch_and_in_two_mailboxes,
    a_key_is_free_when_its_message_is_cancelled_dead_or_expired,
    a_delayed_message_is_not_received_before_its_time,
    values_outside_their_bounds_are_refused_by_name,
    values_at_their_bounds_are_taken,
)
