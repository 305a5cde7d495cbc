"""Checks of losses, suspects, stored budgets, reported dead letters, owners that drain, and steps
of the store's clock.
"""

from __future__ import annotations

from typing import Any

from longwatch.engine.claim_source import GivenUp, RowOutcome, Settlement
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.store.claims import RowSelection
from longwatch.testing.mailbox_suite.harness import (
    FOREVER,
    MailboxHarness,
    claim_rows,
    expect,
    expect_equal,
    only_dead_letter,
    receive_one,
    row_bodies,
    unseen_process,
    wait_until,
)

NO_PAGE = "/nonexistent/page"
"""The path of a beat page that does not exist."""
SHORT_RENEWAL = 0.2
"""Real seconds between renewals."""


def a_message_that_is_lost_too_often_is_given_up_at_once(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_lost=2))
    mailbox.send("unlucky")
    for lost in range(2):
        expect_equal(lost, _lose(harness, mailbox), "every loss is counted")
    expect_equal((0, 1), (mailbox.stats().ready, mailbox.stats().dead), "the last loss is final")
    dead_letter = only_dead_letter(mailbox)
    expect_equal(
        ("lost", 2, 2, 0, 0),
        (
            dead_letter.reason,
            dead_letter.deliveries,
            dead_letter.lost,
            dead_letter.crashes,
            dead_letter.failures,
        ),
        "a loss counts as lost, not as a crash",
    )


def a_message_with_crashes_to_spare_runs_beside_others(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_crashes=3))
    mailbox.send_many([1, 2, 3])
    _crash(harness, mailbox)
    claimed = claim_rows(mailbox, _register(mailbox))
    expect_equal([b"1", b"2", b"3"], row_bodies(claimed), "one crash of three makes no suspect")
    expect_equal([False] * 3, [row.is_exclusive for row in claimed], "no row is exclusive")


def a_suspect_is_claimed_exclusively(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_crashes=2))
    mailbox.send_many([1, 2, 3])
    owner = _register(mailbox)
    [first] = claim_rows(mailbox, owner, want=1)
    _crash(harness, mailbox)
    mailbox.backend.settle([Settlement(first.claim, RowOutcome.RELEASED)])
    claims = [claim_rows(mailbox, owner) for _ in range(3)]
    expect_equal(
        [[b"1"], [b"2"], [b"3"]], [row_bodies(claimed) for claimed in claims], "it is claimed alone"
    )
    expect_equal(
        [False, True, False], [claimed[0].is_exclusive for claimed in claims], "it is exclusive"
    )


def suspects_are_claimed_by_their_selection_only(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_crashes=2))
    mailbox.send_many([1, 2, 3, 4])
    owner = _register(mailbox)
    for _ in range(2):
        _crash(harness, mailbox)
    ordinary = claim_rows(mailbox, owner, selection=RowSelection.ORDINARY)
    expect_equal([b"3", b"4"], row_bodies(ordinary), "ordinary claims skip suspects")
    expect_equal(
        [],
        claim_rows(mailbox, owner, selection=RowSelection.ORDINARY),
        "ordinary claims skip suspects even if there is no other message",
    )
    expect_equal(
        (2, [b"1", b"2"]),
        (mailbox.stats().ready, [record.body for record in mailbox.backend.peek(limit=9)]),
        "suspects are ready",
    )
    expect_equal(
        [1, 2, 2],
        [mailbox.backend.count_suspects(limit=limit) for limit in (1, 2, 3)],
        "suspects are counted up to the limit",
    )
    suspects = [claim_rows(mailbox, owner, selection=RowSelection.SUSPECTS) for _ in range(3)]
    expect_equal(
        [[b"1"], [b"2"], []], [row_bodies(each) for each in suspects], "each is claimed alone"
    )
    expect(all(row.is_exclusive for each in suspects for row in each), "suspects are exclusive")
    expect_equal(0, mailbox.backend.count_suspects(limit=9), "leased suspects are not counted")


def a_bare_receive_gets_suspects_too(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_crashes=2))
    mailbox.send("suspect")
    _crash(harness, mailbox)
    expect_equal("suspect", receive_one(mailbox).body, "receive() returns suspects too")


def the_last_failure_is_known_before_it_happens(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=2))
    mailbox.send("work")
    owner = _register(mailbox)
    for left in (2, 1):
        [row] = claim_rows(mailbox, owner)
        expect_equal(left, row.failures_left, "failures_left is the rest of the budget")
        mailbox.backend.settle([Settlement(row.claim, RowOutcome.FAILED, error="no")])
    expect_equal("failed", only_dead_letter(mailbox).reason, "the last failure is final")


def a_worker_that_reports_crashes_spends_their_budget(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_crashes=2))
    mailbox.send("work")
    owner = _register(mailbox)
    for is_suspect in (False, True):
        [row] = claim_rows(mailbox, owner)
        expect_equal(is_suspect, row.is_exclusive, "it is a suspect one crash before the budget")
        mailbox.backend.settle([Settlement(row.claim, RowOutcome.CRASHED, error="no")])
    dead_letter = only_dead_letter(mailbox)
    expect_equal(
        ("poison", 2, 0, 0, "no"),
        (
            dead_letter.reason,
            dead_letter.crashes,
            dead_letter.failures,
            dead_letter.releases,
            dead_letter.error,
        ),
        "the last crash is final",
    )


def a_worker_that_gives_up_after_a_failure_counts_it(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many(["failed", "unanswered", "permanent"])
    rows = claim_rows(mailbox, _register(mailbox))
    mailbox.backend.settle(
        [
            Settlement(row.claim, RowOutcome.DEAD, reason=reason, error="no", traceback="where")
            for row, reason in zip(rows, ("failed", "unanswered", "permanent"), strict=True)
        ]
    )
    expect_equal(
        [("failed", 1, "where"), ("unanswered", 1, "where"), ("permanent", 0, "where")],
        [(letter.reason, letter.failures, letter.traceback) for letter in mailbox.dead_letters],
        "a dead letter counts the failure that ended it, and has its traceback",
    )


def a_traceback_is_kept_with_the_last_failure(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=2))
    message_id = mailbox.send("work")
    owner = _register(mailbox)
    for traceback in ("first", "second"):
        [row] = claim_rows(mailbox, owner)
        failed = Settlement(row.claim, RowOutcome.FAILED, error="no", traceback=traceback)
        mailbox.backend.settle([failed])
    expect_equal("second", only_dead_letter(mailbox).traceback, "the last traceback is kept")
    mailbox.dead_letters.replay(message_id)
    receive_one(mailbox).reject("never")
    dead_letter = only_dead_letter(mailbox)
    expect_equal(
        (None, 0, 0),
        (dead_letter.traceback, dead_letter.failures, dead_letter.lost),
        "a replayed message has no history",
    )


def budgets_belong_to_the_mailbox(harness: MailboxHarness) -> None:
    """A process that opens it without limits uses those that another process has set."""
    strict = harness.open(limits=MailboxLimits(max_failures=1, max_crashes=1, max_lost=1))
    strict.send_many(["fails", "crashes", "is lost"])
    other = harness.open(strict.name)
    receive_one(other).nack(reason="no")
    _crash(harness, other)
    _lose(harness, other)
    expect_equal(
        ["failed", "poison", "lost"],
        [letter.reason for letter in other.dead_letters],
        "limits are stored with the mailbox",
    )


def a_sweep_applies_the_budgets_of_every_mailbox(harness: MailboxHarness) -> None:
    strict = harness.open(limits=MailboxLimits(max_crashes=1))
    lenient = harness.open(limits=MailboxLimits(max_crashes=9))
    for mailbox in (strict, lenient):
        mailbox.send("work")
        receive_one(mailbox, visibility_timeout=harness.unit)
    harness.pass_time(lenient, 1.5)
    strict.backend.sweep()
    expect_equal((1, 0), (strict.stats().dead, lenient.stats().dead), "each has its own budgets")


def limits_that_are_left_out_change_no_budget(harness: MailboxHarness) -> None:
    """A sender that limits the size of a mailbox does not change the budgets of its workers."""
    worker = harness.open(limits=MailboxLimits(max_failures=1))
    worker.send("first")
    sender = harness.open(worker.name, limits=MailboxLimits(max_size=100))
    sender.send("second")
    for mailbox in (sender, harness.open(worker.name)):
        receive_one(mailbox).nack(reason="no")
    expect_equal(2, len(worker.dead_letters), "a limit that is left out stays unchanged")


def a_sweep_reports_what_it_gives_up(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_crashes=1))
    mailbox.send("removed", expires_in=harness.unit)
    kept = mailbox.send("kept", expires_in=harness.unit, keep_expired=True)
    poison = mailbox.send("poison")
    mailbox.cancel(mailbox.send("cancelled"))
    owner = _register(mailbox)
    rows = claim_rows(mailbox, owner, duration=harness.unit)
    mailbox.backend.settle([Settlement(row.claim, RowOutcome.RELEASED) for row in rows[:2]])
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    reported: list[GivenUp] = []
    mailbox.backend.sweep(reported.append)
    expect_equal(
        {(kept, mailbox.name, "expired"), (poison, mailbox.name, "poison")},
        set(reported),
        "every dead letter of a sweep is reported",
    )
    expect_equal(2, len(reported), "once")
    mailbox.backend.sweep(reported.append)
    expect_equal(2, len(reported), "no dead letter is reported again")


def a_claim_reports_what_it_gives_up(harness: MailboxHarness) -> None:
    mailbox = harness.open(limits=MailboxLimits(max_failures=9))
    failed = mailbox.send("failed")
    receive_one(mailbox).nack(reason="no")
    kept = mailbox.send("kept", expires_in=harness.unit, keep_expired=True)
    mailbox.send("removed", expires_in=harness.unit)
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    lowered = harness.open(mailbox.name, limits=MailboxLimits(max_failures=1))
    exchanged = lowered.backend.exchange(
        (), owner=_register(lowered), limit=9, lease_seconds=FOREVER
    )
    expect_equal([], exchanged.claimed, "no message is left to claim")
    expect_equal(
        {(failed, mailbox.name, "failed"), (kept, mailbox.name, "expired")},
        set(exchanged.given_up),
        "every dead letter of a claim is reported",
    )


def the_end_of_an_owner_that_drains_blames_no_row(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("work")
    expect_equal((0, 0), _counts(harness, mailbox, is_draining=True), "a new row has no blame")
    expect_equal((0, 0), _counts(harness, mailbox, is_draining=False), "draining blames no row")
    expect_equal(
        (0, 1), _counts(harness, mailbox, is_draining=True), "after draining ended it is blamed"
    )


def a_step_of_the_clock_takes_no_lease_from_owners_that_renew(harness: MailboxHarness) -> None:
    """Runs only where clocks can be jumped."""
    if not harness.can_jump:
        return
    mailbox = harness.open()
    mailbox.send_many(range(3))
    owners = [_register_renewing(mailbox, FOREVER) for _ in range(3)]
    for owner in owners:
        claim_rows(mailbox, owner, want=1, duration=harness.unit)
    harness.pass_time(mailbox, 50)
    expect_equal(3, mailbox.stats().leased, "owners that lapse together keep their leases")
    for owner in owners[:2]:
        mailbox.backend.renew(owner=owner, lease_seconds=harness.unit)
    mailbox.backend.sweep()
    expect_equal(3, mailbox.stats().leased, "the last owner to renew keeps its lease too")
    for owner in owners:
        mailbox.backend.renew(owner=owner, lease_seconds=FOREVER)
    mailbox.backend.sweep()
    held = [len(mailbox.backend.held(owner=owner)) for owner in owners]
    expect_equal([1, 1, 1], held, "every owner has its lease")
    _settle_all(mailbox, owners)


def one_owner_of_several_that_is_gone_loses_its_leases_at_once(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many(range(3))
    owners = [_register_renewing(mailbox, FOREVER) for _ in range(3)]
    for owner in owners:
        claim_rows(mailbox, owner, want=1, duration=harness.unit)
    for owner in owners[:2]:
        mailbox.backend.renew(owner=owner, lease_seconds=FOREVER)
    harness.pass_time(mailbox, 1.5)
    expect_equal((1, 2), (mailbox.stats().ready, mailbox.stats().leased), "the others renew")
    _settle_all(mailbox, owners[:2])


def owners_that_are_all_gone_lose_their_leases_after_one_renewal(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many(range(3))
    for _ in range(3):
        claim_rows(
            mailbox, _register_renewing(mailbox, SHORT_RENEWAL), want=1, duration=harness.unit
        )
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)

    def are_all_ready() -> bool:
        mailbox.backend.sweep()
        return mailbox.stats().ready == len(range(3))

    wait_until(are_all_ready, "the leases of owners that stopped renewing end")


def rows_are_known_by_their_message_ids(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    ids = mailbox.send_many(["a", "b"])
    rows = claim_rows(mailbox, _register(mailbox))
    seqs = [row.claim.seq for row in rows]
    expect_equal(
        dict(zip(seqs, ids, strict=True)),
        mailbox.backend.row_ids([*seqs, max(seqs) + 1000]),
        "row_ids() returns the ids of existing messages",
    )
    mailbox.backend.settle([Settlement(row.claim, RowOutcome.DONE) for row in rows])
    expect_equal({}, mailbox.backend.row_ids(seqs), "row_ids() leaves out settled messages")


def _register(mailbox: Mailbox[Any]) -> int:
    return mailbox.backend.register_owner(Incarnation.current())


def _register_renewing(mailbox: Mailbox[Any], renew_seconds: float) -> int:
    return mailbox.backend.register_owner(
        unseen_process(), page=NO_PAGE, renew_seconds=renew_seconds
    )


def _crash(harness: MailboxHarness, mailbox: Mailbox[Any]) -> None:
    """Count a crash for the oldest ordinary message: its process ends and had no beat page."""
    owner = mailbox.backend.register_owner(unseen_process())
    claim_rows(mailbox, owner, want=1, duration=harness.unit, selection=RowSelection.ORDINARY)
    harness.pass_time(mailbox, 1.5)


def _lose(harness: MailboxHarness, mailbox: Mailbox[Any]) -> int:
    """Count a loss for the oldest message. Return how often it was lost before."""
    owner = mailbox.backend.register_owner(unseen_process(), page=NO_PAGE)
    [row] = claim_rows(mailbox, owner, want=1, duration=harness.unit)
    harness.pass_time(mailbox, 1.5)
    lost: int = row.item.lost
    return lost


def _counts(
    harness: MailboxHarness, mailbox: Mailbox[Any], *, is_draining: bool
) -> tuple[int, int]:
    """Claim a message for an owner that drains and then vanishes. Return the crashes and losses
    that the message had when it was claimed.
    """
    owner = mailbox.backend.register_owner(unseen_process(), page=NO_PAGE)
    [row] = claim_rows(mailbox, owner, duration=harness.unit)
    mailbox.backend.report_draining(owner=owner)
    mailbox.backend.report_draining(owner=owner, is_draining=is_draining)
    harness.pass_time(mailbox, 1.5)
    return row.item.crashes, row.item.lost


def _settle_all(mailbox: Mailbox[Any], owners: list[int]) -> None:
    """Settle every leased message of these owners."""
    for owner in owners:
        held = mailbox.backend.held(owner=owner)
        mailbox.backend.settle([Settlement(claim, RowOutcome.DONE) for claim in held])


CHECKS = (
    a_message_that_is_lost_too_often_is_given_up_at_once,
    a_message_with_crashes_to_spare_runs_beside_others,
    a_suspect_is_claimed_exclusively,
    suspects_are_claimed_by_their_selection_only,
    a_bare_receive_gets_suspects_too,
    the_last_failure_is_known_before_it_happens,
    a_worker_that_reports_crashes_spends_their_budget,
    a_worker_that_gives_up_after_a_failure_counts_it,
    a_traceback_is_kept_with_the_last_failure,
    budgets_belong_to_the_mailbox,
    a_sweep_applies_the_budgets_of_every_mailbox,
    limits_that_are_left_out_change_no_budget,
    a_sweep_reports_what_it_gives_up,
    a_claim_reports_what_it_gives_up,
    the_end_of_an_owner_that_drains_blames_no_row,
    a_step_of_the_clock_takes_no_lease_from_owners_that_renew,
    one_owner_of_several_that_is_gone_loses_its_leases_at_once,
    owners_that_are_all_gone_lose_their_leases_after_one_renewal,
    rows_are_known_by_their_message_ids,
)
