"""Checks of receive and the end of its wait, of acknowledge, nack and replies, and of close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longwatch.core.cancel import CancelToken
from longwatch.errors import (
    InvalidParameterError,
    MailboxClosedError,
    MessageFinalizedError,
    ReplyNotAvailableError,
    UnsupportedError,
)
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.mailbox.message import Message, SettleResult
from longwatch.testing.mailbox_suite.harness import (
    FOREVER,
    MailboxHarness,
    await_thread,
    bodies,
    expect,
    expect_equal,
    expect_error,
    receive_one,
    start_thread,
)


def an_empty_mailbox_gives_nothing_after_the_wait(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    expect_equal([], mailbox.receive(), "receive() from an empty mailbox is empty")
    expect_equal([], mailbox.receive(wait_time_seconds=0.05), "receive() is empty after its wait")


def a_receive_never_waits_to_fill_a_batch(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many([1, 2, 3])
    received = mailbox.receive(max_messages=10, wait_time_seconds=FOREVER)
    expect_equal([1, 2, 3], bodies(received), "receive() returns the messages that are ready")
    mailbox.send_many([4, 5])
    expect_equal(
        [4], bodies(mailbox.receive(max_messages=1)), "receive() leases no more than max_messages"
    )


def an_arrival_wakes_a_receive_at_once(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    expect_equal(
        ["news"],
        bodies(_woken_by(harness, mailbox, lambda: mailbox.send("news"))),
        "an arrival wakes a receive",
    )


def a_message_given_back_wakes_a_receive_at_once(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("back")
    held = receive_one(mailbox)
    expect_equal(["back"], bodies(_woken_by(harness, mailbox, held.nack)), "a nack wakes a receive")


def closing_wakes_a_receive_at_once(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    handle, clock = harness.frozen(mailbox)
    received: list[Message[Any]] = []
    waiting = [
        start_thread(lambda: received.extend(handle.receive(wait_time_seconds=FOREVER)))
        for _ in range(3)
    ]
    clock.await_parked(3)
    handle.close()
    for thread in waiting:
        await_thread(thread, "close() wakes every receive that waits")
    expect_equal([], received, "a receive that close() ended returns nothing")


def a_cancel_token_wakes_a_receive_at_once(harness: MailboxHarness) -> None:
    mailbox, token = harness.open(), CancelToken()
    expect_equal(
        [],
        _woken_by(harness, mailbox, token.cancel, cancel=token),
        "a cancelled receive returns nothing",
    )
    mailbox.send("kept")
    expect_equal(
        [],
        mailbox.receive(cancel=token, wait_time_seconds=FOREVER),
        "a receive with a cancelled token leases nothing",
    )
    expect_equal(
        "kept", receive_one(mailbox).body, "a cancelled receive leaves the messages to others"
    )


def a_resumed_mailbox_wakes_a_receive_at_once(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.pause()
    mailbox.send("paused")
    expect_equal(
        ["paused"], bodies(_woken_by(harness, mailbox, mailbox.resume)), "resume() wakes a receive"
    )


def a_replayed_dead_letter_wakes_a_receive_at_once(harness: MailboxHarness) -> None:
    mailbox = harness.open("", int)
    text = harness.open(mailbox.name)
    dead = text.send("no number")
    expect_equal([], mailbox.receive(), "a body that cannot be decoded is not received")
    expect_equal(
        ["no number"],
        bodies(_woken_by(harness, text, lambda: mailbox.dead_letters.replay(dead))),
        "replay() wakes a receive",
    )


def an_acknowledged_message_is_gone_and_final(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send(1, reply_to=mailbox)
    message = receive_one(mailbox)
    message.acknowledge()
    expect(message.is_finalized, "an acknowledged message is finalized")
    expect_equal(0, mailbox.approximate_count(), "an acknowledged message is removed")
    _expect_final(message)


def a_message_given_back_comes_again_and_its_first_delivery_is_final(
    harness: MailboxHarness,
) -> None:
    mailbox = harness.open()
    sent = mailbox.send("again", reply_to=mailbox)
    first = receive_one(mailbox)
    first.nack()
    _expect_final(first)
    second = receive_one(mailbox)
    expect_equal(
        (sent, "again", 2),
        (second.id, second.body, second.delivery_count),
        "a nacked message is delivered again",
    )
    expect(first.receipt != second.receipt, "every delivery has its own receipt")
    expect_equal(first.enqueued_at, second.enqueued_at, "a message keeps the time it was sent")


def a_message_given_back_with_a_timeout_waits_for_it(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("later")
    receive_one(mailbox).nack(visibility_timeout=harness.unit, reason="not now")
    expect_equal(
        [], mailbox.receive(), "a message nacked with a timeout is not delivered before its end"
    )
    expect_equal(1, mailbox.stats().delayed, "it is delayed")
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    expect_equal(
        2,
        receive_one(
            mailbox, "a message nacked with a timeout is delivered after its end"
        ).delivery_count,
        "this is its second delivery",
    )


def acknowledging_many_says_for_each_how_it_went(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many(range(4))
    messages = mailbox.receive(max_messages=4)
    messages[1].acknowledge()
    messages[2].nack()
    verdicts = mailbox.acknowledge_many(messages)
    expected = [
        SettleResult.SETTLED,
        SettleResult.EXPIRED,
        SettleResult.EXPIRED,
        SettleResult.SETTLED,
    ]
    expect_equal(expected, verdicts, "acknowledge_many() returns a result for each, in order")
    expect(all(message.is_finalized for message in messages), "all messages are finalized")
    expect_equal([2], bodies(mailbox.receive(max_messages=4)), "only the released message is left")
    expect_equal([], mailbox.acknowledge_many([]), "acknowledging nothing is allowed")


def a_reply_goes_where_the_message_says(harness: MailboxHarness) -> None:
    requests, answers = harness.open(), harness.open()
    requests.send("by object", reply_to=answers)
    requests.send("by name", reply_to=answers.name)
    for message in requests.receive(max_messages=2):
        expect_equal(answers.name, message.reply_to, "reply_to is the mailbox's name")
        sent = message.reply(f"answer {message.body}")
        answer = receive_one(answers)
        expect_equal((sent, f"answer {message.body}"), (answer.id, answer.body), "a reply arrives")
        message.acknowledge()


def a_reply_without_an_address_is_refused(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("no reply")
    expect_error(
        ReplyNotAvailableError,
        lambda: receive_one(mailbox).reply(1),
        "reply() to a message without reply_to is refused",
    )
    elsewhere: Mailbox[Any] = Mailbox("elsewhere", MemoryStore().backend("elsewhere"))
    expect_error(
        UnsupportedError,
        lambda: mailbox.send(1, reply_to=elsewhere),
        "a reply_to of another store is refused",
    )
    expect_error(
        InvalidParameterError, lambda: mailbox.send(1, reply_to=""), "empty reply_to is refused"
    )
    expect_equal(1, mailbox.approximate_count(), "a refused send stores nothing")


def a_closed_mailbox_takes_no_more_but_loses_nothing(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many(["held", "kept"])
    held = receive_one(mailbox)
    expect(not mailbox.closed, "a new mailbox is open")
    mailbox.close()
    mailbox.close()
    expect(mailbox.closed, "closed is True after close()")
    expect_error(MailboxClosedError, lambda: mailbox.send(1), "send() after close() is refused")
    expect_error(
        MailboxClosedError, lambda: mailbox.send_many([1]), "send_many() after close() is refused"
    )
    expect_error(MailboxClosedError, mailbox.receive, "receive() after close() is refused")
    held.acknowledge()
    again = harness.open(mailbox.name)
    expect_equal(
        ["kept"],
        bodies(again.receive(max_messages=10)),
        "the messages of a closed mailbox stay, without the settled ones",
    )


def _woken_by(
    harness: MailboxHarness,
    mailbox: Mailbox[Any],
    act: Callable[[], object],
    *,
    cancel: CancelToken | None = None,
) -> list[Message[Any]]:
    """Call `act` while a receive waits, and return what it receives. Its clock stands still, so
    that only a wakeup ends the wait.
    """
    handle, clock = harness.frozen(mailbox)
    received: list[Message[Any]] = []
    waiting = start_thread(
        lambda: received.extend(handle.receive(wait_time_seconds=FOREVER, cancel=cancel))
    )
    clock.await_parked(1)
    act()
    await_thread(waiting, "a receive that waits is woken")
    return received


def _expect_final(message: Message[Any]) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("acknowledge()", message.acknowledge),
        ("nack()", message.nack),
        ("extend_visibility()", lambda: message.extend_visibility(1)),
        ("reply()", lambda: message.reply(1)),
    ]
    for name, call in calls:
        expect_error(MessageFinalizedError, call, f"{name} of a finalized message is refused")


CHECKS = (
    an_empty_mailbox_gives_nothing_after_the_wait,
    a_receive_never_waits_to_fill_a_batch,
    an_arrival_wakes_a_receive_at_once,
    a_message_given_back_wakes_a_receive_at_once,
    closing_wakes_a_receive_at_once,
    a_cancel_token_wakes_a_receive_at_once,
    a_resumed_mailbox_wakes_a_receive_at_once,
    a_replayed_dead_letter_wakes_a_receive_at_once,
    an_acknowledged_message_is_gone_and_final,
    a_message_given_back_comes_again_and_its_first_delivery_is_final,
    a_message_given_back_with_a_timeout_waits_for_it,
    acknowledging_many_says_for_each_how_it_went,
    a_reply_goes_where_the_message_says,
    a_reply_without_an_address_is_refused,
    a_closed_mailbox_takes_no_more_but_loses_nothing,
)
