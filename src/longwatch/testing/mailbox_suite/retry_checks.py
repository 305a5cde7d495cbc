"""Checks of failures, crashes and releases, of their budgets, and of messages that are given up."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import ClaimedRow
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.errors import PermanentError
from longwatch.host.beatpage import BeatPage
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.testing.mailbox_suite.harness import (
    MailboxHarness,
    bodies,
    claim_rows,
    expect,
    expect_equal,
    only_dead_letter,
    receive_one,
    unseen_process,
    wait_until,
)

FIRST_RETRY = (5.0, 15.0)
"""The first retry comes after 10 s plus or minus jitter."""


def a_message_given_back_without_a_reason_spends_nothing(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=2, max_crashes=2))
    mailbox.send("work")
    for _ in range(20):
        receive_one(mailbox, "a release spends nothing").nack()
    expect_equal(21, receive_one(mailbox).delivery_count, "every delivery is counted")
    expect_equal(0, len(mailbox.dead_letters), "releases dead-letter no message")


def a_message_that_fails_too_often_is_given_up_at_once(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=3))
    mailbox.send("work", reply_to="answers")
    for attempt in range(3):
        receive_one(mailbox, "a failure leaves the rest of the budget").nack(
            reason=f"ValueError: {attempt}", visibility_timeout=harness.unit * (attempt // 2)
        )
    expect_equal(
        (0, 0, 1),
        (mailbox.stats().ready, mailbox.stats().delayed, mailbox.stats().dead),
        "a message is dead-lettered with its last failure",
    )
    expect_equal([], mailbox.receive(), "a message that spent its failures is not received")
    dead_letter = only_dead_letter(mailbox)
    expect_equal(
        ("failed", "ValueError: 2"),
        (dead_letter.reason, dead_letter.error),
        "the dead letter has the reason and the last error",
    )
    expect_equal(
        (3, 3, 0, 0),
        (dead_letter.deliveries, dead_letter.failures, dead_letter.crashes, dead_letter.releases),
        "the dead letter has the counters",
    )
    expect_equal(
        (mailbox.name, "answers", b'"work"'),
        (dead_letter.mailbox, dead_letter.reply_to, dead_letter.body),
        "the dead letter has the mailbox, reply_to and the body",
    )
    expect(dead_letter.enqueued_at <= dead_letter.died_at, "it died after it was sent")
    expect_equal(0, mailbox.approximate_count(), "a dead letter is not in the queue")


def a_message_that_lapses_too_often_is_poison(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("poison")
    for _ in range(3):
        receive_one(
            mailbox, "a crash leaves the rest of the budget", visibility_timeout=harness.unit
        )
        harness.pass_time(mailbox, 1.5)
    expect_equal(
        (0, 1),
        (mailbox.stats().ready, mailbox.stats().dead),
        "the sweep that counts the last crash dead-letters it as poison",
    )
    expect_equal(
        [], mailbox.receive(), "a message that has crashed three processes is not received"
    )
    dead_letter = only_dead_letter(mailbox)
    expect_equal(
        ("poison", 3, 3, 0),
        (dead_letter.reason, dead_letter.deliveries, dead_letter.crashes, dead_letter.failures),
        "the reason is poison",
    )


def failures_crashes_and_releases_are_counted_apart(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=3, max_crashes=3))
    mailbox.send("work")
    for _ in range(2):
        receive_one(mailbox).nack(reason="failed")
        receive_one(mailbox, visibility_timeout=harness.unit)
        harness.pass_time(mailbox, 1.5)
        receive_one(mailbox).nack()
    receive_one(mailbox, "two failures and two crashes are not three of one").nack(
        reason="the last"
    )
    expect_equal([], mailbox.receive(), "three failures spend the budget")
    dead_letter = only_dead_letter(mailbox)
    expect_equal(
        (7, 3, 2, 2),
        (dead_letter.deliveries, dead_letter.failures, dead_letter.crashes, dead_letter.releases),
        "failures, crashes and releases have their own counters",
    )


def spent_messages_do_not_hold_up_the_rest(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=1))
    mailbox.send_many(["spent"] * 5 + ["good"])
    for message in mailbox.receive(max_messages=5):
        message.nack(reason="no")
    expect_equal(
        ["good"], bodies(mailbox.receive(max_messages=1)), "receive() skips spent messages"
    )
    expect_equal(5, len(mailbox.dead_letters), "all spent messages are dead-lettered")


def only_rows_that_had_started_are_blamed(harness: MailboxHarness) -> None:
    _expect_blame(
        harness, lambda page, leased: page.begin(1, leased[0].claim.seq, 0.0), crashes=[1, 0]
    )


def no_row_is_blamed_once_a_process_was_draining(harness: MailboxHarness) -> None:
    def drain(page: BeatPage, leased: list[ClaimedRow]) -> None:
        page.begin(0, leased[0].claim.seq, 0.0)
        page.start_draining()

    _expect_blame(harness, drain, crashes=[0, 0])


def every_row_is_lost_when_the_page_cannot_be_read(harness: MailboxHarness) -> None:
    def lose(page: BeatPage, leased: list[ClaimedRow]) -> None:
        page.begin(0, leased[0].claim.seq, 0.0)
        page.path.unlink()

    _expect_blame(harness, lose, crashes=[0, 0], lost=[1, 1])


def an_undecodable_body_is_dead_lettered_and_the_rest_goes_on(harness: MailboxHarness) -> None:
    mailbox = harness.open("", int)
    garbage = new_id()
    mailbox.backend.put([NewMessage(id=garbage, body=b"\xff{")])
    text = harness.open(mailbox.name).send("text", reply_to="answers")
    mailbox.send(7)
    expect_equal(
        [7],
        bodies(mailbox.receive(wait_time_seconds=1)),
        "a receive skips bodies that it cannot decode",
    )
    dead_letters = {dead_letter.id: dead_letter for dead_letter in mailbox.dead_letters}
    expect_equal({garbage, text}, set(dead_letters), "undecodable bodies are dead-lettered")
    expect_equal(
        (b"\xff{", b'"text"'),
        (dead_letters[garbage].body, dead_letters[text].body),
        "the dead letter has the original body",
    )
    expect_equal(
        {"undecodable"},
        {dead_letter.reason for dead_letter in dead_letters.values()},
        "the reason is undecodable",
    )
    expect(
        "int" in (dead_letters[text].error or ""),
        f"the error names the expected type: {dead_letters[text].error}",
    )
    expect_equal(
        (1, 0, "answers"),
        (dead_letters[text].deliveries, dead_letters[text].failures, dead_letters[text].reply_to),
        "the dead letter has the history of the message",
    )


def a_handler_that_raises_is_tried_again_after_the_backoff(harness: MailboxHarness) -> None:
    """Runs the engine, whose first retry comes after 10 s and some jitter, so only where clocks can
    be jumped.
    """
    if not harness.can_jump:
        return
    mailbox, outcomes, called = harness.open(), iter([ValueError("no"), None]), Wakeup()

    def handle(*_: Any) -> None:
        called.set()
        if error := next(outcomes):
            raise error

    mailbox.send("work")
    with Engine(mailbox.backend, MessageRunner(mailbox, handle), policy=EnginePolicy(slots=1)):
        wait_until(
            lambda: mailbox.stats().delayed == 1, "a message whose handler raised is delayed"
        )
        due = mailbox.backend.next_due()
        expect(
            due is not None and FIRST_RETRY[0] <= due <= FIRST_RETRY[1],
            f"the first retry comes after about 10 s, not {due}",
        )
        called.clear()
        harness.move_clocks(mailbox, wall=1)
        wait_until(
            lambda: called.is_set() and mailbox.approximate_count() == 0,
            "the message is retried and acknowledged",
        )
    expect_equal(0, len(mailbox.dead_letters), "one failure does not dead-letter a message")


def a_permanent_error_is_the_end(harness: MailboxHarness) -> None:
    mailbox = harness.open()

    def handle(*_: Any) -> None:
        raise PermanentError("never")

    mailbox.send("work")
    with Engine(mailbox.backend, MessageRunner(mailbox, handle), policy=EnginePolicy(slots=1)):
        wait_until(
            lambda: len(mailbox.dead_letters) == 1,
            "a message whose handler raised a permanent error is dead-lettered",
        )
    dead_letter = only_dead_letter(mailbox)
    expect_equal(
        ("permanent", 1), (dead_letter.reason, dead_letter.deliveries), "it is not retried"
    )
    expect("never" in (dead_letter.error or ""), f"the error is kept: {dead_letter.error}")


def _expect_blame(
    harness: MailboxHarness,
    die: Callable[[BeatPage, list[ClaimedRow]], None],
    *,
    crashes: list[int],
    lost: Sequence[int] = (0, 0),
) -> None:
    """Lease two rows to an owner with a beat page, end its process and let its leases lapse. Expect
    these crashes and losses of each row.
    """
    mailbox = harness.open()
    mailbox.send_many([1, 2])
    with tempfile.TemporaryDirectory() as directory:
        page = BeatPage(Path(directory) / "page", slots=2)
        owner = mailbox.backend.register_owner(unseen_process(), page=str(page.path))
        leased = claim_rows(mailbox, owner, duration=harness.unit)
        die(page, leased)
        harness.pass_time(mailbox, 1.5)
        page.close()
    found = sorted((each.item for each in claim_rows(mailbox, owner)), key=lambda item: item.body)
    expect_equal(
        (crashes, list(lost)),
        ([item.crashes for item in found], [item.lost for item in found]),
        "only rows that had started when their process died are blamed",
    )


CHECKS = (
    a_message_given_back_without_a_reason_spends_nothing,
    a_message_that_fails_too_often_is_given_up_at_once,
    a_message_that_lapses_too_often_is_poison,
    failures_crashes_and_releases_are_counted_apart,
    spent_messages_do_not_hold_up_the_rest,
    only_rows_that_had_started_are_blamed,
    no_row_is_blamed_once_a_process_was_draining,
    every_row_is_lost_when_the_page_cannot_be_read,
    an_undecodable_body_is_dead_lettered_and_the_rest_goes_on,
    a_handler_that_raises_is_tried_again_after_the_backoff,
    a_permanent_error_is_the_end,
)
