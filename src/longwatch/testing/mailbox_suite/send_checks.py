"""Checks of send and send_many: stored messages and refused ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import msgspec

from longwatch.errors import InvalidParameterError, MailboxFullError, SerializationError
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.validation import (
    MAX_BODY_BYTES,
    MAX_DELAY_SECONDS,
    MAX_MESSAGES,
    MAX_VISIBILITY_SECONDS,
)
from longwatch.testing.mailbox_suite.harness import (
    MailboxHarness,
    bodies,
    expect,
    expect_equal,
    expect_error,
    receive_one,
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


class Site(msgspec.Struct):
    name: str
    points: list[Point]


class PurchaseOrder(TypedDict):
    item: str
    count: int


def a_sent_message_is_received_as_it_was_sent(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    sent = mailbox.send({"a": [1, None]})
    message = receive_one(mailbox)
    expect_equal(sent, message.id, "send() returns the id of the message")
    expect_equal({"a": [1, None]}, message.body, "the body is received as it was sent")
    expect_equal(1, message.delivery_count, "the first delivery counts 1")
    expect_equal(0.0, message.enqueued_at.utcoffset().total_seconds(), "enqueued_at is in UTC")  # type: ignore[union-attr]
    expect_equal(None, message.reply_to, "reply_to is None unless it was given")
    expect(not message.is_finalized, "a new delivery is not finalized")


def messages_sent_together_arrive_in_order_each_with_its_id(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    sent = mailbox.send_many(range(MAX_MESSAGES))
    messages = mailbox.receive(max_messages=MAX_MESSAGES)
    expect_equal(list(range(MAX_MESSAGES)), bodies(messages), "send_many() keeps the order")
    expect_equal(sent, [message.id for message in messages], "send_many() returns the ids in order")
    expect_equal(MAX_MESSAGES, len(set(sent)), "every message has its own id")
    expect_equal([], mailbox.send_many([]), "send_many() of no bodies is allowed")


def plain_bodies_come_back_as_they_were(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many(PLAIN)
    expect_equal(PLAIN, bodies(mailbox.receive(max_messages=len(PLAIN))), "JSON types survive")


def typed_bodies_come_back_as_their_type(harness: MailboxHarness) -> None:
    examples: list[tuple[Any, Any]] = [
        (Point, Point(1, "a")),
        (Site, Site("here", [Point(1), Point(2, "b")])),
        (PurchaseOrder, PurchaseOrder(item="tea", count=2)),
        (list[Point], [Point(3)]),
        (int, 7),
    ]
    for kind, body in examples:
        mailbox = harness.open("", kind)
        mailbox.send(body)
        message = receive_one(mailbox)
        expect_equal(body, message.body, f"a body of type {kind} is decoded to that type")
        expect_equal(
            type(body), type(message.body), f"a body of type {kind} is decoded to that type"
        )


def a_field_of_another_type_is_refused_at_send(harness: MailboxHarness) -> None:
    wrong: Any = Point("x")  # type: ignore[arg-type] # the mistake that is checked for
    for mailbox in (harness.open("", Point), harness.open()):
        expect_error(SerializationError, partial(mailbox.send, wrong), "send checks the fields")
        expect_error(
            SerializationError,
            partial(mailbox.send_many, [Point(1), wrong]),
            "send_many checks the fields",
        )
        expect_equal(0, mailbox.approximate_count(), "nothing of a refused batch is stored")


def a_batch_is_stored_whole_or_not_at_all(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_size=3))
    expect_error(
        SerializationError,
        lambda: mailbox.send_many([1, object()]),
        "a body that cannot be encoded is refused",
    )
    expect_error(
        InvalidParameterError,
        lambda: mailbox.send_many([1, "x" * MAX_BODY_BYTES]),
        "a body that is too large is refused",
    )
    expect_error(
        MailboxFullError,
        lambda: mailbox.send_many([1, 2, 3, 4]),
        "a batch that does not fit is refused",
    )
    expect_equal(0, mailbox.approximate_count(), "a refused batch stores nothing")
    expect_error(
        InvalidParameterError,
        lambda: mailbox.send_many([1, 2], dedupe_keys=["a"]),
        "there must be one key for each body",
    )


def a_full_mailbox_counts_what_is_leased_and_delayed(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_size=2))
    mailbox.send("held")
    held = receive_one(mailbox)
    first = mailbox.send("later", delay_seconds=harness.unit, dedupe_key="k")
    expect_error(
        MailboxFullError, lambda: mailbox.send("more"), "max_size counts leased and delayed ones"
    )
    expect_equal(first, mailbox.send("again", dedupe_key="k"), "a repeated key needs no room")
    held.acknowledge()
    mailbox.send("more")


def what_has_expired_makes_room(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_size=1))
    mailbox.send("old", expires_in=harness.unit)
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    mailbox.send("new")
    expect_equal("new", receive_one(mailbox).body, "an expired message takes no room")


def a_repeated_key_returns_the_first_id_while_it_is_queued_or_leased(
    harness: MailboxHarness,
) -> None:
    mailbox = harness.open()
    first = mailbox.send(1, dedupe_key="k")
    expect_equal(first, mailbox.send(2, dedupe_key="k"), "the key of a queued message gives its id")
    expect_equal(
        [first, first],
        mailbox.send_many([3, 4], dedupe_keys=["k", "k"]),
        "keys of queued messages give their id in a batch too",
    )
    message = receive_one(mailbox)
    expect_equal(first, mailbox.send(5, dedupe_key="k"), "the key of a leased message gives its id")
    expect_equal([], mailbox.receive(), "nothing was stored for a repeated key")
    message.nack()
    expect_equal(
        first, mailbox.send(6, dedupe_key="k"), "the key holds after the message is released"
    )
    other = mailbox.send(7, dedupe_key="other")
    expect(other != first, "another key stores another message")
    receive_one(mailbox).acknowledge()
    expect(mailbox.send(8, dedupe_key="k") != first, "the key is free once the message is settled")
    expect_equal(
        [7, 8], bodies(mailbox.receive(max_messages=10)), "a message with a free key is stored"
    )


def keys_in_one_batch_and_in_two_mailboxes(harness: MailboxHarness) -> None:
    mailbox, other = harness.open(), harness.open()
    one, two, three = mailbox.send_many([1, 2, 3], dedupe_keys=["k", "k", None])
    expect_equal(one, two, "a key repeated within a batch gives the first id")
    expect(three != one, "a message without a key is always new")
    expect(other.send(1, dedupe_key="k") != one, "each mailbox has its own keys")
    expect_equal([1, 3], bodies(mailbox.receive(max_messages=10)), "each key is stored once")


def a_key_is_free_when_its_message_is_cancelled_dead_or_expired(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=1))
    cancelled = mailbox.send(1, dedupe_key="k")
    mailbox.cancel(cancelled)
    dead = mailbox.send(2, dedupe_key="k")
    receive_one(mailbox).nack(reason="no")
    expect_equal([], mailbox.receive(), "a message that spent its failures is not received")
    expired = mailbox.send(3, dedupe_key="k", expires_in=harness.unit)
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    last = mailbox.send(4, dedupe_key="k")
    expect_equal(
        4, len({cancelled, dead, expired, last}), "a cancel, a dead letter, an expiry free the key"
    )
    expect_equal(4, receive_one(mailbox).body, "an expired message does not replace a new one")


def a_delayed_message_is_not_received_before_its_time(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("later", delay_seconds=harness.unit)
    mailbox.send("now")
    expect_equal(
        ["now"], bodies(mailbox.receive(max_messages=10)), "a delayed message is not received"
    )
    expect_equal([], mailbox.receive(), "a delayed message is not received before its time")
    due = mailbox.backend.next_due()
    expect(
        due is not None and 0 < due <= harness.unit,
        f"next_due() is the time until a message is due, not {due}",
    )
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    expect_equal(
        "later",
        receive_one(mailbox, "a delayed message is received when it is due").body,
        "it is the delayed message",
    )
    expect_equal(None, mailbox.backend.next_due(), "next_due() is None when nothing is delayed")


def values_outside_their_bounds_are_refused_by_name(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send(1)
    message = receive_one(mailbox)
    refused: list[tuple[str, Callable[[], object]]] = [
        (
            "visibility_timeout",
            lambda: mailbox.receive(visibility_timeout=MAX_VISIBILITY_SECONDS + 1),
        ),
        ("visibility_timeout", lambda: mailbox.receive(visibility_timeout=-1)),
        ("visibility_timeout", lambda: message.nack(visibility_timeout=MAX_VISIBILITY_SECONDS + 1)),
        ("visibility_timeout", lambda: message.extend_visibility(float("nan"))),
        ("wait_time_seconds", lambda: mailbox.receive(wait_time_seconds=-0.1)),
        ("max_messages", lambda: mailbox.receive(max_messages=0)),
        ("max_messages", lambda: mailbox.receive(max_messages=MAX_MESSAGES + 1)),
        ("delay_seconds", lambda: mailbox.send(1, delay_seconds=MAX_DELAY_SECONDS + 1)),
        ("delay_seconds", lambda: mailbox.send(1, delay_seconds=-1)),
        ("expires_in", lambda: mailbox.send(1, expires_in=0)),
        ("expires_in", lambda: mailbox.send(1, expires_in=MAX_DELAY_SECONDS + 1)),
        (str(MAX_BODY_BYTES), lambda: mailbox.send("x" * MAX_BODY_BYTES)),
        ("name", lambda: mailbox.send(1, reply_to="no spaces")),
    ]
    for name, call in refused:
        error = expect_error(
            InvalidParameterError, call, f"a value of {name} outside its bounds is refused"
        )
        expect(name in str(error), f"the error names {name}: {error}")
    message.extend_visibility(MAX_VISIBILITY_SECONDS)
    expect_equal(1, mailbox.approximate_count(), "a refused call changes nothing")


def values_at_their_bounds_are_taken(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("x" * (MAX_BODY_BYTES - 2))
    mailbox.send(1, delay_seconds=MAX_DELAY_SECONDS, expires_in=MAX_DELAY_SECONDS)
    message = receive_one(mailbox, visibility_timeout=MAX_VISIBILITY_SECONDS, wait_time_seconds=0)
    message.nack(visibility_timeout=MAX_VISIBILITY_SECONDS)
    expect_equal(2, mailbox.stats().delayed, "both messages are delayed")


CHECKS = (
    a_sent_message_is_received_as_it_was_sent,
    messages_sent_together_arrive_in_order_each_with_its_id,
    plain_bodies_come_back_as_they_were,
    typed_bodies_come_back_as_their_type,
    a_field_of_another_type_is_refused_at_send,
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
