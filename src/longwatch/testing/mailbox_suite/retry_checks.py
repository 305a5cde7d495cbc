"""Whose fault it was: the four counters, what they spend, and when a message is given up."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longwatch.core.clock import SystemClock, Wakeup
from longwatch.engine.claim_source import ClaimedRow
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.errors import PermanentError
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.mailbox.records import DeadLetter, NewMessage, new_id
from longwatch.testing.mailbox_suite.harness import (
    TIMEOUT,
    MailboxHarness,
    bodies,
    claim_rows,
    expect,
    expect_equal,
    receive_one,
)

FIRST_RETRY = (5.0, 15.0)
"""The first retry comes after 10 s, more or less."""


def a_message_given_back_without_a_reason_spends_nothing(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=2, max_crashes=2))
    mailbox.send("work")
    for _ in range(20):
        receive_one(mailbox, "a release spends nothing").nack()
    expect_equal(21, receive_one(mailbox).delivery_count, "every delivery is counted")
    expect_equal(0, len(mailbox.dead_letters), "nothing was given up")


def a_message_that_fails_too_often_is_given_up_when_it_would_be_handed_out(
    harness: MailboxHarness,
) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=3))
    mailbox.send("work", reply_to="answers")
    for attempt in range(3):
        receive_one(mailbox, "a failure leaves the rest of the budget").nack(
            reason=f"ValueError: {attempt}"
        )
    expect_equal(
        (1, 0),
        (mailbox.stats().ready, mailbox.stats().dead),
        "it is given up on receive, not before",
    )
    expect_equal([], mailbox.receive(), "a message whose failures are spent is not handed out")
    dead_letter = _only_dead_letter(mailbox)
    expect_equal(
        ("failed", "ValueError: 2"),
        (dead_letter.reason, dead_letter.error),
        "the dead letter tells the reason and the last error",
    )
    expect_equal(
        (3, 3, 0, 0),
        (dead_letter.deliveries, dead_letter.failures, dead_letter.crashes, dead_letter.releases),
        "and the counters",
    )
    expect_equal(
        (mailbox.name, "answers", b'"work"'),
        (dead_letter.mailbox, dead_letter.reply_to, dead_letter.body),
        "and what it was",
    )
    expect(dead_letter.enqueued_at <= dead_letter.died_at, "and when")
    expect_equal(0, mailbox.approximate_count(), "a dead letter is not in the line any more")


def a_message_that_lapses_too_often_is_poison(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("poison")
    for _ in range(3):
        receive_one(
            mailbox, "a crash leaves the rest of the budget", visibility_timeout=harness.unit
        )
        harness.pass_time(mailbox, 1.5)
    expect_equal(
        (1, 0),
        (mailbox.stats().ready, mailbox.stats().dead),
        "it is given up on receive, not before",
    )
    expect_equal(
        [], mailbox.receive(), "a message that has crashed three processes is not handed out"
    )
    dead_letter = _only_dead_letter(mailbox)
    expect_equal(
        ("poison", 3, 3, 0),
        (dead_letter.reason, dead_letter.deliveries, dead_letter.crashes, dead_letter.failures),
        "it is poison",
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
    expect_equal([], mailbox.receive(), "three failures are")
    dead_letter = _only_dead_letter(mailbox)
    expect_equal(
        (7, 3, 2, 2),
        (dead_letter.deliveries, dead_letter.failures, dead_letter.crashes, dead_letter.releases),
        "each has its counter",
    )


def spent_messages_do_not_hold_up_the_rest(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=1))
    mailbox.send_many(["spent"] * 5 + ["good"])
    for message in mailbox.receive(max_messages=5):
        message.nack(reason="no")
    expect_equal(
        ["good"], bodies(mailbox.receive(max_messages=1)), "receive() goes on past what it gives up"
    )
    expect_equal(5, len(mailbox.dead_letters), "all of the spent are dead")


def a_message_that_has_crashed_is_claimed_exclusively(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many([1, 2, 3])
    owner = mailbox.backend.register_owner(Incarnation.current())
    receive_one(mailbox).nack()
    [first] = mailbox.receive(visibility_timeout=harness.unit * 9)
    receive_one(mailbox, visibility_timeout=harness.unit)
    first.nack()
    harness.pass_time(mailbox, 1.5)
    claims = [claim_rows(mailbox, owner) for _ in range(3)]
    expect_equal(
        [[b"1"], [b"2"], [b"3"]],
        [_bodies(leased) for leased in claims],
        "one that has crashed comes alone",
    )
    expect_equal(
        [False, True, False], [leased[0].is_exclusive for leased in claims], "and is marked so"
    )


def only_rows_that_had_started_are_blamed(harness: MailboxHarness) -> None:
    _expect_blame(
        harness, lambda page, leased: page.begin(1, leased[0].claim.seq, 0.0), crashes=[1, 0]
    )


def no_row_is_blamed_once_a_process_was_draining(harness: MailboxHarness) -> None:
    def drain(page: BeatPage, leased: list[ClaimedRow]) -> None:
        page.begin(0, leased[0].claim.seq, 0.0)
        page.start_draining()

    _expect_blame(harness, drain, crashes=[0, 0])


def no_row_is_blamed_when_the_page_is_lost(harness: MailboxHarness) -> None:
    def lose(page: BeatPage, leased: list[ClaimedRow]) -> None:
        page.begin(0, leased[0].claim.seq, 0.0)
        page.path.unlink()

    _expect_blame(harness, lose, crashes=[0, 0])


def an_undecodable_body_is_dead_lettered_and_the_rest_goes_on(harness: MailboxHarness) -> None:
    mailbox = harness.open("", int)
    garbage = new_id()
    mailbox.backend.put([NewMessage(id=garbage, body=b"\xff{")])
    text = harness.open(mailbox.name).send("text", reply_to="answers")
    mailbox.send(7)
    expect_equal(
        [7],
        bodies(mailbox.receive(wait_time_seconds=1)),
        "a receive goes on past what it cannot read",
    )
    dead_letters = {dead_letter.id: dead_letter for dead_letter in mailbox.dead_letters}
    expect_equal({garbage, text}, set(dead_letters), "what cannot be read is dead")
    expect_equal(
        (b"\xff{", b'"text"'),
        (dead_letters[garbage].body, dead_letters[text].body),
        "with its body as it was",
    )
    expect_equal(
        {"undecodable"},
        {dead_letter.reason for dead_letter in dead_letters.values()},
        "with the reason",
    )
    expect(
        "int" in (dead_letters[text].error or ""),
        f"the error says what was expected: {dead_letters[text].error}",
    )
    expect_equal(
        (1, 0, "answers"),
        (dead_letters[text].deliveries, dead_letters[text].failures, dead_letters[text].reply_to),
        "and its history",
    )


def a_handler_that_raises_is_tried_again_after_the_backoff(harness: MailboxHarness) -> None:
    """With the engine, whose first retry comes after 10 s and some jitter: only where clocks can
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
        _wait_until(
            lambda: mailbox.stats().delayed == 1, "a message whose handler raised is delayed"
        )
        due = mailbox.backend.next_due()
        expect(
            due is not None and FIRST_RETRY[0] <= due <= FIRST_RETRY[1],
            f"the first retry comes after about 10 s, not {due}",
        )
        called.clear()
        harness.move_clocks(mailbox, wall=1)
        _wait_until(
            lambda: called.is_set() and mailbox.approximate_count() == 0,
            "it is tried again, and acknowledged",
        )
    expect_equal(0, len(mailbox.dead_letters), "one failure is not the end")


def a_permanent_error_is_the_end(harness: MailboxHarness) -> None:
    mailbox = harness.open()

    def handle(*_: Any) -> None:
        raise PermanentError("never")

    mailbox.send("work")
    with Engine(mailbox.backend, MessageRunner(mailbox, handle), policy=EnginePolicy(slots=1)):
        _wait_until(
            lambda: len(mailbox.dead_letters) == 1,
            "a message whose handler raised a permanent error is dead",
        )
    dead_letter = _only_dead_letter(mailbox)
    expect_equal(
        ("permanent", 1), (dead_letter.reason, dead_letter.deliveries), "it is not tried again"
    )
    expect("never" in (dead_letter.error or ""), f"the error is kept: {dead_letter.error}")


def _expect_blame(
    harness: MailboxHarness,
    die: Callable[[BeatPage, list[ClaimedRow]], None],
    *,
    crashes: list[int],
) -> None:
    """Two rows are leased by an owner with a page; it dies, its leases lapse; how often has each
    row crashed?
    """
    mailbox = harness.open()
    mailbox.send_many([1, 2])
    with tempfile.TemporaryDirectory() as directory:
        page = BeatPage(Path(directory) / "page", slots=2)
        owner = mailbox.backend.register_owner(Incarnation.current(), page=str(page.path))
        leased = claim_rows(mailbox, owner, duration=harness.unit)
        die(page, leased)
        harness.pass_time(mailbox, 1.5)
        page.close()
    found = [each.item for _ in range(2) for each in claim_rows(mailbox, owner)]
    counted = [delivery.crashes for delivery in sorted(found, key=lambda delivery: delivery.body)]
    expect_equal(crashes, counted, "only what had started when its process died is blamed")


def _only_dead_letter(mailbox: Mailbox[Any]) -> DeadLetter:
    dead_letters = list(mailbox.dead_letters)
    expect(len(dead_letters) == 1, f"there is one dead letter, not {len(dead_letters)}")
    return dead_letters[0]


def _bodies(leased: list[ClaimedRow]) -> list[bytes]:
    return [each.item.body for each in leased]


def _wait_until(condition: Callable[[], bool], rule: str) -> None:
    clock = SystemClock()
    end = clock.monotonic() + TIMEOUT / 2
    while not condition():
        expect(clock.monotonic() < end, rule)
        clock.wait(Wakeup(), 0.02)


CHECKS = (
    a_message_given_back_without_a_reason_spends_nothing,
    a_message_that_fails_too_often_is_given_up_when_it_would_be_handed_out,
    a_message_that_lapses_too_often_is_poison,
    failures_crashes_and_releases_are_counted_apart,
    spent_messages_do_not_hold_up_the_rest,
    a_message_that_has_crashed_is_claimed_exclusively,
    only_rows_that_had_started_are_blamed,
    no_row_is_blamed_once_a_process_was_draining,
    no_row_is_blamed_when_the_page_is_lost,
    an_undecodable_body_is_dead_lettered_and_the_rest_goes_on,
    a_handler_that_raises_is_tried_again_after_the_backoff,
    a_permanent_error_is_the_end,
)
