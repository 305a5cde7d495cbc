"""Whose fault it was: the four counters, what they spend, and when a message is given up."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longwatch.core.clock import SystemClock, Wakeup
from longwatch.errors import PermanentError
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import Limits
from longwatch.mailbox.letters import DeadLetter, Letter, new_id
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.runner import MessageRunner
from longwatch.testing.mailbox_suite.bench import (
    PATIENCE,
    Bench,
    bodies,
    claim_rows,
    expect,
    expect_equal,
    take,
)
from longwatch.work.engine import Engine, EnginePolicy
from longwatch.work.source import Leased

FIRST_RETRY = (5.0, 15.0)
"""The first retry comes after 10 s, more or less."""


def a_message_given_back_without_a_reason_spends_nothing(bench: Bench) -> None:
    mailbox = bench.open(limits=Limits(max_failures=2, max_crashes=2))
    mailbox.send("work")
    for _ in range(20):
        take(mailbox, "a release spends nothing").nack()
    expect_equal(21, take(mailbox).delivery_count, "every delivery is counted")
    expect_equal(0, len(mailbox.dead), "nothing was given up")


def a_message_that_fails_too_often_is_given_up_when_it_would_be_handed_out(bench: Bench) -> None:
    mailbox = bench.open(limits=Limits(max_failures=3))
    mailbox.send("work", reply_to="answers")
    for attempt in range(3):
        take(mailbox, "a failure leaves the rest of the budget").nack(
            reason=f"ValueError: {attempt}"
        )
    expect_equal(
        (1, 0),
        (mailbox.stats().ready, mailbox.stats().dead),
        "it is given up on receive, not before",
    )
    expect_equal([], mailbox.receive(), "a message whose failures are spent is not handed out")
    letter = _the_dead(mailbox)
    expect_equal(
        ("failed", "ValueError: 2"),
        (letter.reason, letter.error),
        "the dead letter tells the reason and the last error",
    )
    expect_equal(
        (3, 3, 0, 0),
        (letter.deliveries, letter.failures, letter.crashes, letter.releases),
        "and the counters",
    )
    expect_equal(
        (mailbox.name, "answers", b'"work"'),
        (letter.mailbox, letter.reply_to, letter.body),
        "and what it was",
    )
    expect(letter.enqueued_at <= letter.died_at, "and when")
    expect_equal(0, mailbox.approximate_count(), "a dead letter is not in the line any more")


def a_message_that_lapses_too_often_is_poison(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send("poison")
    for _ in range(3):
        take(mailbox, "a crash leaves the rest of the budget", visibility_timeout=bench.unit)
        bench.lapse(mailbox, 1.5)
    expect_equal(
        (1, 0),
        (mailbox.stats().ready, mailbox.stats().dead),
        "it is given up on receive, not before",
    )
    expect_equal(
        [], mailbox.receive(), "a message that has crashed three processes is not handed out"
    )
    letter = _the_dead(mailbox)
    expect_equal(
        ("poison", 3, 3, 0),
        (letter.reason, letter.deliveries, letter.crashes, letter.failures),
        "it is poison",
    )


def failures_crashes_and_releases_are_counted_apart(bench: Bench) -> None:
    mailbox = bench.open(limits=Limits(max_failures=3, max_crashes=3))
    mailbox.send("work")
    for _ in range(2):
        take(mailbox).nack(reason="failed")
        take(mailbox, visibility_timeout=bench.unit)
        bench.lapse(mailbox, 1.5)
        take(mailbox).nack()
    take(mailbox, "two failures and two crashes are not three of one").nack(reason="the last")
    expect_equal([], mailbox.receive(), "three failures are")
    letter = _the_dead(mailbox)
    expect_equal(
        (7, 3, 2, 2),
        (letter.deliveries, letter.failures, letter.crashes, letter.releases),
        "each has its counter",
    )


def the_spent_do_not_hold_up_the_rest(bench: Bench) -> None:
    mailbox = bench.open(limits=Limits(max_failures=1))
    mailbox.send_many(["spent"] * 5 + ["good"])
    for message in mailbox.receive(max_messages=5):
        message.nack(reason="no")
    expect_equal(
        ["good"], bodies(mailbox.receive(max_messages=1)), "receive() goes on past what it gives up"
    )
    expect_equal(5, len(mailbox.dead), "all of the spent are dead")


def a_message_that_has_crashed_is_claimed_alone(bench: Bench) -> None:
    mailbox = bench.open()
    mailbox.send_many([1, 2, 3])
    owner = mailbox.backend.enter(Incarnation.mine())
    take(mailbox).nack()
    [first] = mailbox.receive(visibility_timeout=bench.unit * 9)
    take(mailbox, visibility_timeout=bench.unit)
    first.nack()
    bench.lapse(mailbox, 1.5)
    claims = [claim_rows(mailbox, owner) for _ in range(3)]
    expect_equal(
        [[b"1"], [b"2"], [b"3"]],
        [_bodies(leased) for leased in claims],
        "one that has crashed comes alone",
    )
    expect_equal([False, True, False], [leased[0].alone for leased in claims], "and is marked so")


def a_page_tells_who_had_started(bench: Bench) -> None:
    _blamed(bench, lambda page, leased: page.begin(1, leased[0].claim.seq, 0.0), crashes=[1, 0])


def nobody_is_blamed_once_a_process_was_draining(bench: Bench) -> None:
    def drain(page: BeatPage, leased: list[Leased]) -> None:
        page.begin(0, leased[0].claim.seq, 0.0)
        page.start_draining()

    _blamed(bench, drain, crashes=[0, 0])


def nobody_is_blamed_when_the_page_is_lost(bench: Bench) -> None:
    def lose(page: BeatPage, leased: list[Leased]) -> None:
        page.begin(0, leased[0].claim.seq, 0.0)
        page.path.unlink()

    _blamed(bench, lose, crashes=[0, 0])


def a_body_that_cannot_be_read_goes_to_the_dead_and_the_rest_goes_on(bench: Bench) -> None:
    mailbox = bench.open("", int)
    garbage = new_id()
    mailbox.backend.put([Letter(id=garbage, body=b"\xff{")])
    text = bench.open(mailbox.name).send("text", reply_to="answers")
    mailbox.send(7)
    expect_equal(
        [7],
        bodies(mailbox.receive(wait_time_seconds=1)),
        "a receive goes on past what it cannot read",
    )
    letters = {letter.id: letter for letter in mailbox.dead}
    expect_equal({garbage, text}, set(letters), "what cannot be read is dead")
    expect_equal(
        (b"\xff{", b'"text"'),
        (letters[garbage].body, letters[text].body),
        "with its body as it was",
    )
    expect_equal({"undecodable"}, {letter.reason for letter in letters.values()}, "with the reason")
    expect(
        "int" in (letters[text].error or ""),
        f"the error says what was expected: {letters[text].error}",
    )
    expect_equal(
        (1, 0, "answers"),
        (letters[text].deliveries, letters[text].failures, letters[text].reply_to),
        "and its history",
    )


def a_handler_that_raises_is_tried_again_after_the_backoff(bench: Bench) -> None:
    """With the engine, whose first retry comes after 10 s and some jitter: only where clocks can
    be jumped.
    """
    if not bench.jumps:
        return
    mailbox, outcomes, called = bench.open(), iter([ValueError("no"), None]), Wakeup()

    def handle(*_: Any) -> None:
        called.set()
        if error := next(outcomes):
            raise error

    mailbox.send("work")
    with Engine(mailbox.backend, MessageRunner(mailbox, handle), policy=EnginePolicy(slots=1)):
        _until(lambda: mailbox.stats().delayed == 1, "a message whose handler raised is delayed")
        due = mailbox.backend.next_due()
        expect(
            due is not None and FIRST_RETRY[0] <= due <= FIRST_RETRY[1],
            f"the first retry comes after about 10 s, not {due}",
        )
        called.clear()
        bench.shift(mailbox, wall=1)
        _until(
            lambda: called.is_set() and mailbox.approximate_count() == 0,
            "it is tried again, and acknowledged",
        )
    expect_equal(0, len(mailbox.dead), "one failure is not the end")


def a_permanent_error_is_the_end(bench: Bench) -> None:
    mailbox = bench.open()

    def handle(*_: Any) -> None:
        raise PermanentError("never")

    mailbox.send("work")
    with Engine(mailbox.backend, MessageRunner(mailbox, handle), policy=EnginePolicy(slots=1)):
        _until(
            lambda: len(mailbox.dead) == 1,
            "a message whose handler raised a permanent error is dead",
        )
    letter = _the_dead(mailbox)
    expect_equal(("permanent", 1), (letter.reason, letter.deliveries), "it is not tried again")
    expect("never" in (letter.error or ""), f"the error is kept: {letter.error}")


def _blamed(
    bench: Bench, die: Callable[[BeatPage, list[Leased]], None], *, crashes: list[int]
) -> None:
    """Two rows are leased by an owner with a page; it dies, its leases lapse; how often has each
    row crashed?
    """
    mailbox = bench.open()
    mailbox.send_many([1, 2])
    with tempfile.TemporaryDirectory() as directory:
        page = BeatPage(Path(directory) / "page", slots=2)
        owner = mailbox.backend.enter(Incarnation.mine(), page=str(page.path))
        leased = claim_rows(mailbox, owner, duration=bench.unit)
        die(page, leased)
        bench.lapse(mailbox, 1.5)
        page.close()
    found = [each.item for _ in range(2) for each in claim_rows(mailbox, owner)]
    counted = [delivery.crashes for delivery in sorted(found, key=lambda delivery: delivery.body)]
    expect_equal(crashes, counted, "only what had started when its process died is blamed")


def _the_dead(mailbox: Mailbox[Any]) -> DeadLetter:
    letters = list(mailbox.dead)
    expect(len(letters) == 1, f"there is one dead letter, not {len(letters)}")
    return letters[0]


def _bodies(leased: list[Leased]) -> list[bytes]:
    return [each.item.body for each in leased]


def _until(holds: Callable[[], bool], claim: str) -> None:
    clock = SystemClock()
    end = clock.monotonic() + PATIENCE / 2
    while not holds():
        expect(clock.monotonic() < end, claim)
        clock.wait(Wakeup(), 0.02)


CHECKS = (
    a_message_given_back_without_a_reason_spends_nothing,
    a_message_that_fails_too_often_is_given_up_when_it_would_be_handed_out,
    a_message_that_lapses_too_often_is_poison,
    failures_crashes_and_releases_are_counted_apart,
    the_spent_do_not_hold_up_the_rest,
    a_message_that_has_crashed_is_claimed_alone,
    a_page_tells_who_had_started,
    nobody_is_blamed_once_a_process_was_draining,
    nobody_is_blamed_when_the_page_is_lost,
    a_body_that_cannot_be_read_goes_to_the_dead_and_the_rest_goes_on,
    a_handler_that_raises_is_tried_again_after_the_backoff,
    a_permanent_error_is_the_end,
)
