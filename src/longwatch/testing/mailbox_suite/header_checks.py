"""Checks of headers: they stay with their message through all that may happen to it."""

from __future__ import annotations

from functools import partial
from typing import Any

from longwatch.errors import InvalidParameterError
from longwatch.mailbox.headers import MAX_HEADERS_BYTES
from longwatch.testing.mailbox_suite.harness import (
    MailboxHarness,
    expect_equal,
    expect_error,
    only_dead_letter,
    receive_one,
)

HEADERS = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tenant": "grün ☃ '\"\\", "empty": ""}


def a_message_has_the_headers_it_was_sent_with(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    sends: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"headers": HEADERS}, HEADERS),
        ({}, {}),
        ({"headers": {}}, {}),
        ({"headers": HEADERS, "reply_to": "answers"}, HEADERS),
        ({"headers": HEADERS, "dedupe_key": "k"}, HEADERS),
    ]
    for options, expected in sends:
        mailbox.send(["body"], **options)
        message = receive_one(mailbox)
        expect_equal(expected, message.headers, "headers are received as they were sent")
        expect_equal(["body"], message.body, "headers do not change the body")
        expect_equal(options.get("reply_to"), message.reply_to, "headers do not change reply_to")
        message.acknowledge()


def messages_sent_together_have_the_same_headers(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many([1, 2], headers=HEADERS)
    received = mailbox.receive(max_messages=2)
    expect_equal(
        [HEADERS, HEADERS], [each.headers for each in received], "send_many() takes headers"
    )


def headers_survive_retries_dead_letters_and_replay(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("work", headers=HEADERS, reply_to="answers")
    receive_one(mailbox).nack(reason="failed")
    message = receive_one(mailbox)
    expect_equal(HEADERS, message.headers, "a message that failed keeps its headers")
    message.reject("cannot succeed")
    expect_equal(HEADERS, dict(only_dead_letter(mailbox).headers), "a dead letter has its headers")
    mailbox.dead_letters.replay(message.id)
    again = receive_one(mailbox)
    expect_equal(HEADERS, again.headers, "a replayed message has its headers")
    expect_equal("answers", again.reply_to, "a replayed message has its reply_to")


def headers_survive_expiry_before_a_claim(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("work", headers=HEADERS, expires_in=harness.unit, keep_expired=True)
    harness.pass_time(mailbox, 2)
    mailbox.backend.sweep()
    expect_equal(
        HEADERS, dict(only_dead_letter(mailbox).headers), "an expired message keeps its headers"
    )


def peek_shows_headers(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send(1, headers={"tenant": "acme"})
    mailbox.send(2)
    expect_equal(
        ['{"tenant":"acme"}', None],
        [each.headers for each in mailbox.backend.peek(limit=2)],
        "peek() returns headers",
    )


def headers_of_8_kib_are_stored_and_larger_ones_refused(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    largest = {"a": "x" * (MAX_HEADERS_BYTES - len('{"a":""}'))}
    mailbox.send("work", headers=largest)
    expect_equal(largest, receive_one(mailbox).headers, "headers of 8 KiB are stored")
    refused: list[Any] = [{"a": largest["a"] + "x"}, {"A": "1"}, {"": "1"}, {"a": 1}, {"a": "\0"}]
    for headers in refused:
        send = partial(mailbox.send, "work", headers=headers)
        expect_error(InvalidParameterError, send, "headers that cannot be stored are refused")


def headers_are_sent_with_a_transaction(harness: MailboxHarness) -> None:
    transact, mailbox = harness.transact, harness.open()
    if transact is None:
        return
    transact(lambda tx: mailbox.send("work", headers=HEADERS, tx=tx))
    expect_equal(HEADERS, receive_one(mailbox).headers, "send(tx=) stores headers")


CHECKS = (
    a_message_has_the_headers_it_was_sent_with,
    messages_sent_together_have_the_same_headers,
    headers_survive_retries_dead_letters_and_replay,
    headers_survive_expiry_before_a_claim,
    peek_shows_headers,
    headers_of_8_kib_are_stored_and_larger_ones_refused,
    headers_are_sent_with_a_transaction,
)
