"""Checks of leases: fencing, the clock that ends them, and the order of released messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import ReceiptHandleExpiredError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message import Message, SettleResult
from longwatch.store.claims import Claim
from longwatch.testing.mailbox_suite.harness import (
    FOREVER,
    MailboxHarness,
    bodies,
    claim_rows,
    expect,
    expect_equal,
    expect_error,
    receive_one,
)


def a_lapsed_message_is_delivered_again(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    sent = mailbox.send("work")
    receive_one(mailbox, visibility_timeout=harness.unit)
    expect_equal([], mailbox.receive(), "a leased message is not received")
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    again = receive_one(mailbox, "receive() itself finds a lease that has ended")
    expect_equal(
        (sent, 2),
        (again.id, again.delivery_count),
        "a message whose lease has ended is delivered again",
    )


def a_stale_receipt_is_refused_and_changes_nothing(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("work")
    stale, fresh = _redelivered(harness, mailbox)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("acknowledge()", stale.acknowledge),
        ("nack()", stale.nack),
        ("nack(reason=…)", lambda: stale.nack(reason="late")),
        ("extend_visibility()", lambda: stale.extend_visibility(FOREVER)),
    ]
    for name, call in calls:
        expect_error(ReceiptHandleExpiredError, call, f"{name} with a stale receipt is refused")
    expect(not stale.is_finalized, "a refused call finalizes nothing")
    expect_equal(
        [SettleResult.EXPIRED],
        mailbox.acknowledge_many([stale]),
        "acknowledge_many() of a stale receipt is expired",
    )
    expect_equal(1, mailbox.stats().leased, "the new holder still has it")
    fresh.extend_visibility(FOREVER)
    harness.pass_time(mailbox, 1.5)
    expect_equal([], mailbox.receive(), "the new holder could extend its lease")
    fresh.acknowledge()
    expect_equal(0, mailbox.approximate_count(), "the new holder could acknowledge")


def the_new_holder_can_give_back_what_the_old_one_could_not(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("work")
    stale, fresh = _redelivered(harness, mailbox)
    expect_error(ReceiptHandleExpiredError, stale.nack, "nack() with a stale receipt is refused")
    fresh.nack()
    expect_equal(3, receive_one(mailbox).delivery_count, "the new holder could give it back")


def a_receipt_is_row_owner_and_term(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("work")
    message = receive_one(mailbox)
    seq, owner, term = message.receipt
    stranger = mailbox.backend.register_owner(Incarnation.current())
    forged = [
        Claim(seq, stranger, term),
        Claim(seq, owner, term + 1),
        Claim(seq, owner, term - 1),
        Claim(seq + 1, owner, term),
    ]
    for claim in forged:
        for outcome in RowOutcome:
            settled = mailbox.backend.settle([Settlement(claim=claim, outcome=outcome)])
            expect_equal(
                [False], settled, f"{outcome} by {claim} is refused where {message.receipt} holds"
            )
        expect(
            not mailbox.backend.renew_one(claim, lease_seconds=FOREVER),
            f"extending by {claim} is refused",
        )
    expect_equal(0, mailbox.stats().dead, "a refused settlement dead-letters nothing")
    message.acknowledge()


def settlements_are_made_once(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("work")
    done = Settlement(claim=receive_one(mailbox).receipt, outcome=RowOutcome.DONE)
    owner = mailbox.backend.register_owner(Incarnation.current())
    exchange = mailbox.backend.exchange([done, done], owner=owner, limit=1, lease_seconds=FOREVER)
    expect_equal([True, False], exchange.settled, "a repeated settlement is refused")
    expect_equal([False], mailbox.backend.settle([done]), "a repeated settlement is refused later")


def an_exchange_settles_before_it_claims(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("work")
    owner = mailbox.backend.register_owner(Incarnation.current())
    [leased] = claim_rows(mailbox, owner)
    back = Settlement(claim=leased.claim, outcome=RowOutcome.RELEASED)
    exchange = mailbox.backend.exchange([back], owner=owner, limit=10, lease_seconds=FOREVER)
    expect_equal([True], exchange.settled, "an exchange settles")
    expect_equal(
        [leased.item.id],
        [each.item.id for each in exchange.claimed],
        "an exchange claims a message that it has just released",
    )
    expect(exchange.claimed[0].claim.term > leased.claim.term, "every claim raises the term")
    nothing = mailbox.backend.exchange(
        [Settlement(claim=exchange.claimed[0].claim, outcome=RowOutcome.RELEASED)],
        owner=owner,
        limit=0,
        lease_seconds=1,
    )
    expect_equal(
        ([True], []),
        (nothing.settled, nothing.claimed),
        "an exchange with limit 0 claims nothing",
    )


def extending_prolongs_and_never_shortens(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("work")
    message = receive_one(mailbox, visibility_timeout=harness.unit)
    message.extend_visibility(3 * harness.unit)
    message.extend_visibility(0)
    harness.pass_time(mailbox, 2)
    expect_equal(
        [],
        mailbox.receive(),
        "an extended lease lasts, and a shorter extension does not shorten it",
    )
    harness.pass_time(mailbox, 1.5)
    expect_equal(
        2, receive_one(mailbox, "an extended lease ends").delivery_count, "it is delivered again"
    )


def renewing_prolongs_every_lease_of_one_owner(harness: MailboxHarness) -> None:
    mailbox, other = harness.open(), harness.open()
    mailbox.send_many([1, 2, 3])
    other.send(4)
    keeper, loser = (mailbox.backend.register_owner(Incarnation.current()) for _ in range(2))
    kept = claim_rows(mailbox, keeper, want=2, duration=harness.unit) + claim_rows(
        other, keeper, duration=harness.unit
    )
    claim_rows(mailbox, loser, duration=harness.unit)
    expect_equal(
        {each.claim for each in kept},
        set(mailbox.backend.held(owner=keeper)),
        "held() returns the leases of one owner",
    )
    expect_equal(
        3,
        mailbox.backend.renew(owner=keeper, lease_seconds=3 * harness.unit),
        "renew() extends the leases of an owner in any mailbox",
    )
    mailbox.backend.renew(owner=keeper, lease_seconds=0)
    harness.pass_time(mailbox, 1.5)
    expect_equal(
        [3],
        bodies(mailbox.receive(max_messages=10)),
        "renew() shortens no lease and extends no lease of another owner",
    )
    settled = mailbox.backend.settle(
        [Settlement(claim=each.claim, outcome=RowOutcome.DONE) for each in kept]
    )
    expect_equal([True] * 3, settled, "a renewed lease holds")


def skipped_leases_lapse(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many([1, 2, 3])
    owner = mailbox.backend.register_owner(Incarnation.current())
    leased = claim_rows(mailbox, owner, duration=harness.unit)
    renewed = mailbox.backend.renew(
        owner=owner, lease_seconds=3 * harness.unit, skip=[leased[1].claim]
    )
    expect_equal(2, renewed, "renew() extends all leases but the skipped ones")
    harness.pass_time(mailbox, 1.5)
    expect_equal(
        [2], bodies(mailbox.receive(max_messages=10)), "skipped leases lapse, the others do not"
    )


def a_jump_of_the_wall_clock_does_not_touch_leases(harness: MailboxHarness) -> None:
    if not harness.can_jump:
        return
    mailbox = harness.open()
    mailbox.send("work")
    message = receive_one(mailbox, visibility_timeout=harness.unit)
    harness.move_clocks(mailbox, wall=36)
    expect_equal(0, mailbox.backend.sweep(), "a wall clock that jumps forward ends no lease")
    expect_equal([], mailbox.receive(), "a wall clock that jumps forward ends no lease")
    harness.move_clocks(mailbox, wall=-72)
    message.extend_visibility(harness.unit)
    harness.pass_time(mailbox, 1.5)
    expect_equal(
        2,
        receive_one(mailbox, "a wall clock that jumps back extends no lease").delivery_count,
        "it is delivered again",
    )


def only_the_wall_clock_makes_delays_pass(harness: MailboxHarness) -> None:
    if not harness.can_jump:
        return
    mailbox = harness.open()
    mailbox.send("later", delay_seconds=harness.unit, expires_in=9 * harness.unit)
    harness.move_clocks(mailbox, lease=20)
    expect_equal([], mailbox.receive(), "the lease clock ends no delay")
    harness.move_clocks(mailbox, wall=1.5)
    expect_equal(
        "later", receive_one(mailbox, "the wall clock ends a delay").body, "it is the delayed one"
    )


def what_comes_back_keeps_its_place(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send_many(["given back", "lapsed", "failed", "fourth"])
    mailbox.send("fifth", delay_seconds=harness.unit)
    mailbox.send("sixth")
    receive_one(mailbox).nack()
    first = receive_one(mailbox)
    receive_one(mailbox, visibility_timeout=harness.unit)
    receive_one(mailbox).nack(reason="no", visibility_timeout=harness.unit)
    first.nack()
    harness.pass_time(mailbox, 1.5)
    received = [message.body for _ in range(6) for message in mailbox.receive(max_messages=10)]
    expected = ["given back", "lapsed", "failed", "fourth", "fifth", "sixth"]
    expect_equal(
        expected,
        received,
        "nacked, lapsed and delayed messages keep their place in the order of age",
    )


def a_busy_queue_does_not_hide_what_has_lapsed(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    mailbox.send("lapsed")
    receive_one(mailbox, visibility_timeout=harness.unit)
    mailbox.send_many(range(MANY))
    harness.move_clocks(mailbox, lease=1.5, wall=1.5)
    handle, clock = harness.frozen(mailbox)
    for _ in range(MANY):
        if receive_one(handle).body == "lapsed":
            return
        clock.advance(0.01)
    raise AssertionError("rule broken: a lapsed message is received while others are queued")


def _redelivered(
    harness: MailboxHarness, mailbox: Mailbox[Any]
) -> tuple[Message[Any], Message[Any]]:
    """Return two deliveries of one message, of which the first has lost its lease."""
    stale = receive_one(mailbox, visibility_timeout=harness.unit)
    harness.pass_time(mailbox, 1.5)
    return stale, receive_one(
        mailbox, "a lapsed message is delivered again", visibility_timeout=harness.unit
    )


MANY = 100

CHECKS = (
    a_lapsed_message_is_delivered_again,
    a_stale_receipt_is_refused_and_changes_nothing,
    the_new_holder_can_give_back_what_the_old_one_could_not,
    a_receipt_is_row_owner_and_term,
    settlements_are_made_once,
    an_exchange_settles_before_it_claims,
    extending_prolongs_and_never_shortens,
    renewing_prolongs_every_lease_of_one_owner,
    skipped_leases_lapse,
    a_jump_of_the_wall_clock_does_not_touch_leases,
    only_the_wall_clock_makes_delays_pass,
    what_comes_back_keeps_its_place,
    a_busy_queue_does_not_hide_what_has_lapsed,
)
