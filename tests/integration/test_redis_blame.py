"""Blame on Redis: which counter rises when a lease ends, and which budget that spends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from longwatch.engine.claim_source import GivenUp, RowOutcome, Settlement
from longwatch.errors import SchemaTooOldError
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.redis.backend import RedisBackend
from longwatch.mailbox.redis.store import MAILBOXES_KEY, SCHEMA_FIELD, RedisStore
from longwatch.testing import FakeClock
from redis_rig import (
    FOREVER,
    LEASE,
    claim,
    counters,
    crash,
    dead_process,
    elsewhere,
    enter,
    fresh_store,
    lose,
    new_messages,
    settled,
)
from redis_server import RedisServer, running_server
from snippet import run_snippet

OWNERS_KEY = "longwatch:{work}:owners"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_server() as started:
        yield started


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    with fresh_store(server) as opened:
        yield opened


@pytest.fixture
def backend(store: RedisStore) -> RedisBackend:
    return store.backend("work")


def reasons(backend: RedisBackend) -> dict[str, str]:
    return {letter.id: letter.reason for letter in backend.dead_letters()}


# --- which counter rises ---


OWNER = """
    from pathlib import Path
    from longwatch.host.beatpage import BeatPage
    from longwatch.host.incarnation import Incarnation
    from longwatch.mailbox.redis.store import RedisStore

    backend = RedisStore({url!r}).backend("work")
    page = BeatPage(Path({page!r}), 2)
    owner = backend.register_owner(
        Incarnation.current(), page={page!r}, parent={parent!r}, renew_seconds=20.0
    )
    rows = backend.exchange((), owner=owner, limit=2, lease_seconds=600.0).claimed
    page.begin(0, rows[0].claim.seq, 1.0)
    if {draining}:
        backend.report_draining(owner=owner)
    print("ready", flush=True)
    input()
"""


def kill_an_owner_of_two_rows(
    backend: RedisBackend, page: Path, *, is_draining: bool = False, parent: str | None = None
) -> None:
    """A process that has started one of its two rows is killed."""
    code = OWNER.format(url=backend.store.url, page=str(page), draining=is_draining, parent=parent)
    with run_snippet(code) as child:
        assert "ready" == child.read_line()
        child.signal(signal.SIGKILL)
        child.wait()


def test_the_row_that_a_killed_process_ran_has_crashed_and_its_other_row_is_released(
    backend: RedisBackend, tmp_path: Path
) -> None:
    backend.put(new_messages(2))
    kill_an_owner_of_two_rows(backend, tmp_path / "page")
    assert 2 == backend.sweep()
    assert [(1, 0, 0), (0, 0, 1)] == counters(backend)


def test_the_rows_of_a_killed_process_whose_page_is_gone_are_lost(
    backend: RedisBackend, tmp_path: Path
) -> None:
    backend.put(new_messages(2))
    kill_an_owner_of_two_rows(backend, tmp_path / "page")
    (tmp_path / "page").unlink()
    assert 2 == backend.sweep()
    assert [(0, 1, 0), (0, 1, 0)] == counters(backend)


def test_a_row_whose_process_died_together_with_its_parent_is_lost(
    backend: RedisBackend, tmp_path: Path
) -> None:
    backend.put(new_messages(2))
    kill_an_owner_of_two_rows(backend, tmp_path / "page", parent=str(dead_process()))
    assert 2 == backend.sweep()
    assert [(0, 1, 0), (0, 0, 1)] == counters(backend)


def test_the_end_of_an_owner_that_reported_that_it_drains_blames_no_row(
    backend: RedisBackend, tmp_path: Path
) -> None:
    """Also when its page went with its pod."""
    backend.put(new_messages(2))
    kill_an_owner_of_two_rows(backend, tmp_path / "page", is_draining=True)
    (tmp_path / "page").unlink()
    assert 2 == backend.sweep()
    assert [(0, 0, 1), (0, 0, 1)] == counters(backend)


def test_an_owner_that_claims_again_after_a_drain_is_blamed_again(backend: RedisBackend) -> None:
    backend.put(new_messages(1))
    owner = enter(backend, elsewhere(), "/nowhere/page")
    backend.report_draining(owner=owner)
    backend.report_draining(owner=owner, is_draining=False)
    claim(backend, owner, duration=LEASE)
    backend.store.jump.lease += 2 * LEASE
    backend.sweep()
    assert [(0, 1, 0)] == counters(backend)


def test_a_drain_that_is_reported_after_the_owner_was_deleted_registers_it_again(
    server: RedisServer, backend: RedisBackend
) -> None:
    """Reported twice, as after a lost response, and in every mailbox in which the owner claimed."""
    other = backend.store.backend("other")
    for mailbox in (backend, other):
        mailbox.put(new_messages(1))
    owner = enter(backend, elsewhere(), "/nowhere/page", renew_seconds=20.0)
    claim(other, owner, duration=LEASE)
    with server.client() as client:
        client.delete(OWNERS_KEY, "longwatch:{other}:owners")
        backend.report_draining(owner=owner)
        backend.report_draining(owner=owner)
        assert 1 == client.hlen(OWNERS_KEY) == client.hlen("longwatch:{other}:owners")
    claim(backend, owner, duration=LEASE)
    backend.store.jump.lease += 2 * LEASE
    assert (1, 1) == (backend.sweep(), other.sweep())
    assert [(0, 0, 1)] == counters(backend) == counters(other)


def test_a_drain_of_an_owner_of_another_process_changes_its_record_only(
    server: RedisServer, backend: RedisBackend
) -> None:
    with RedisStore(server.url) as others:
        theirs = others.backend("work")
        theirs.put(new_messages(1))
        owner = enter(theirs, elsewhere(), "/nowhere/page")
        claim(theirs, owner, duration=LEASE)
    backend.report_draining(owner=owner)
    backend.report_draining(owner=owner + 1)
    with server.client() as client:
        assert 1 == client.hlen(OWNERS_KEY)
    backend.store.jump.lease += 2 * LEASE
    backend.sweep()
    assert [(0, 0, 1)] == counters(backend)


def test_an_owner_with_a_parent_and_a_renewal_interval_keeps_its_page(
    backend: RedisBackend, tmp_path: Path
) -> None:
    """A sweep reads the page for blame, and removes it with the dead owner."""
    page = BeatPage(tmp_path / "page", slots=1)
    parent = str(Incarnation.current())
    owner = enter(backend, dead_process(), str(page.path), parent=parent, renew_seconds=20.0)
    backend.put(new_messages(1))
    [row] = claim(backend, owner)
    page.begin(0, row.claim.seq, 0.0)
    assert (1, [(1, 0, 0)]) == (backend.sweep(), counters(backend))
    assert (0, False) == (backend.sweep(), page.path.exists())


# --- budgets ---


def test_the_failure_that_spends_the_budget_makes_the_dead_letter(backend: RedisBackend) -> None:
    """It does not wait until the retry would be due, and the exchange reports it."""
    [sent] = backend.put(new_messages(1))
    owner = enter(backend)
    for left in (5, 4, 3, 2, 1):
        [row] = claim(backend, owner)
        assert left == row.failures_left
        failed = Settlement(row.claim, RowOutcome.FAILED, error=f"E{left}", traceback=f"at {left}")
        result = backend.exchange([failed], owner=owner, limit=0, lease_seconds=LEASE)
        assert [True] == result.settled
        assert ([GivenUp(sent, "work", "failed")] if left == 1 else []) == list(result.given_up)
    [letter] = backend.dead_letters()
    assert ("failed", "E1", "at 1", 5, 5) == (
        letter.reason,
        letter.error,
        letter.traceback,
        letter.failures,
        letter.deliveries,
    )
    assert (0, 0, 0, 1) == backend.stats()[:4]


def test_a_delayed_failure_that_spends_the_budget_is_not_delayed(store: RedisStore) -> None:
    backend = store.backend("work", limits=MailboxLimits(max_failures=1))
    [sent] = backend.put(new_messages(1, dedupe_key="once"))
    settled(
        backend,
        *(row.claim for row in claim(backend, enter(backend))),
        delay=300.0,
        outcome=RowOutcome.FAILED,
    )
    assert ({sent: "failed"}, 0) == (reasons(backend), backend.stats().delayed)
    assert [sent] != backend.put(new_messages(1, dedupe_key="once"))


@pytest.mark.parametrize(
    ("reason", "failures"), [("failed", 1), ("unanswered", 1), ("permanent", 0), ("undecodable", 0)]
)
def test_a_dead_letter_that_failed_or_stayed_unanswered_counts_that_failure(
    backend: RedisBackend, reason: str, failures: int
) -> None:
    backend.put(new_messages(1))
    [row] = claim(backend, enter(backend))
    assert [True] == settled(
        backend, row.claim, outcome=RowOutcome.DEAD, reason=reason, error="no", traceback="there"
    )
    [letter] = backend.dead_letters()
    assert (reason, "no", "there", failures, 1) == (
        letter.reason,
        letter.error,
        letter.traceback,
        letter.failures,
        letter.deliveries,
    )


def test_the_crash_that_spends_the_budget_makes_the_dead_letter_in_the_sweep(
    backend: RedisBackend,
) -> None:
    [sent] = backend.put(new_messages(1))
    assert [] == crash(backend, 2)
    assert [GivenUp(sent, "work", "poison")] == crash(backend)
    [letter] = backend.dead_letters()
    assert ("poison", 3, 3) == (letter.reason, letter.crashes, letter.deliveries)
    assert (0, 0, 0, 1) == backend.stats()[:4]


def test_a_message_whose_owners_vanish_without_a_trace_is_lost_the_fifth_time(
    backend: RedisBackend,
) -> None:
    """Containers that take their pages with them: no crash is ever proven."""
    [sent] = backend.put(new_messages(1))
    assert [] == lose(backend, 4)
    [row] = claim(backend, enter(backend))
    assert (4, 0, True) == (row.item.lost, row.item.crashes, row.is_exclusive)
    settled(backend, row.claim, outcome=RowOutcome.RELEASED)
    assert [GivenUp(sent, "work", "lost")] == lose(backend)
    [letter] = backend.dead_letters()
    assert ("lost", 5, 0, 1, 6) == (
        letter.reason,
        letter.lost,
        letter.crashes,
        letter.releases,
        letter.deliveries,
    )


def test_releases_spend_no_budget(backend: RedisBackend) -> None:
    backend.put(new_messages(1))
    owner = enter(backend)
    for _ in range(20):
        [row] = claim(backend, owner)
        assert [True] == settled(backend, row.claim, outcome=RowOutcome.RELEASED)
    [row] = claim(backend, owner)
    assert (20, 21, False) == (row.item.releases, row.item.deliveries, row.is_exclusive)


def test_crashes_come_before_losses_and_these_before_failures_and_expiry(
    store: RedisStore,
) -> None:
    """The claim judges by the limits of now: they were lowered after the events."""
    store.backend("work", limits=MailboxLimits(max_failures=9, max_crashes=9, max_lost=9)).sweep()
    backend = store.backend("work")
    sent = backend.put(new_messages(4, expires_in=1000.0, keep_expired=True))
    owner = enter(backend)
    events = [("crash", "lose", "fail"), ("lose", "fail"), ("fail",), ()]
    for index, kinds in enumerate(events):
        others = [row.claim for row in claim(backend, owner, 4) if row.item.id != sent[index]]
        held = backend.held(owner=owner)
        settled(
            backend,
            *(each for each in held if each not in others),
            outcome=RowOutcome.RELEASED,
        )
        for kind in kinds:
            if kind == "fail":
                [row] = claim(backend, enter(backend))
                settled(backend, row.claim, outcome=RowOutcome.FAILED)
            else:
                {"crash": crash, "lose": lose}[kind](backend)
        settled(backend, *others, outcome=RowOutcome.RELEASED)
    store.jump.wall += 2000.0
    limited = store.backend("work", limits=MailboxLimits(max_failures=1, max_crashes=1, max_lost=1))
    result = limited.exchange((), owner=owner, limit=10, lease_seconds=LEASE)
    expected = dict(zip(sent, ("poison", "lost", "failed", "expired"), strict=True))
    assert ([], expected) == (result.claimed, reasons(backend))
    assert expected == {each.message_id: each.reason for each in result.given_up}


def test_an_expired_message_is_reported_only_if_it_is_kept(backend: RedisBackend) -> None:
    kept = backend.put(new_messages(2, expires_in=10.0, keep_expired=True))
    backend.put(new_messages(2, expires_in=10.0))
    backend.store.jump.wall += 20.0
    result = backend.exchange((), owner=enter(backend), limit=1, lease_seconds=LEASE)
    assert [GivenUp(sent, "work", "expired") for sent in kept] == list(result.given_up)
    again = backend.put(new_messages(1, expires_in=10.0, keep_expired=True))
    backend.store.jump.wall += 20.0
    swept: list[GivenUp] = []
    assert 1 == backend.sweep(swept.append)
    assert [GivenUp(sent, "work", "expired") for sent in again] == swept
    assert {"expired"} == set(reasons(backend).values())
    assert (3, 5) == (backend.stats().dead, backend.stats().expired)


def test_an_exchange_reports_dead_letters_of_another_mailbox_too(store: RedisStore) -> None:
    one = store.backend("one")
    two = store.backend("two", limits=MailboxLimits(max_failures=1))
    one.put(new_messages(1))
    [sent] = two.put(new_messages(1))
    owner = enter(one)
    [row] = claim(two, owner)
    result = one.exchange(
        [Settlement(row.claim, RowOutcome.FAILED)], owner=owner, limit=1, lease_seconds=LEASE
    )
    assert ([True], [GivenUp(sent, "two", "failed")]) == (result.settled, list(result.given_up))
    assert 1 == len(result.claimed)


def test_every_dead_letter_of_a_long_row_of_them_is_reported(backend: RedisBackend) -> None:
    sent = backend.put(new_messages(4500, expires_in=10.0, keep_expired=True))
    backend.store.jump.wall += 20.0
    result = backend.exchange((), owner=enter(backend), limit=1, lease_seconds=LEASE)
    assert sent == [each.message_id for each in result.given_up]


def test_a_traceback_stays_with_its_error_through_releases_and_any_text(
    server: RedisServer, backend: RedisBackend
) -> None:
    backend.put(new_messages(1))
    owner = enter(backend)
    [row] = claim(backend, owner)
    trace = "Traceback:\n  line \udc80 \x00 ß" * 400
    settled(backend, row.claim, outcome=RowOutcome.FAILED, error="", traceback=trace)
    crash(backend, 3)
    [letter] = backend.dead_letters()
    assert ("poison", "", trace.replace("\udc80", "\\udc80")) == (
        letter.reason,
        letter.error,
        letter.traceback,
    )
    assert letter == backend.find_dead_letter(letter.id)._replace(position=letter.position)  # type: ignore[union-attr]
    with server.client() as client:
        assert 0 == client.exists("longwatch:{work}:history", "longwatch:{work}:tracebacks")
    assert [True] == backend.replay([letter.id])
    [row] = claim(backend, owner)
    assert (b"1", 1, 0, 0, 0, 0) == (
        row.item.body,
        row.item.deliveries,
        row.item.failures,
        row.item.crashes,
        row.item.lost,
        row.item.releases,
    )


# --- the layout ---


def test_mailboxes_of_the_layout_before_are_refused_with_the_cure(
    server: RedisServer, store: RedisStore
) -> None:
    with server.client() as client:
        client.hset(MAILBOXES_KEY, mapping={SCHEMA_FIELD: "4", "7": "work"})
    with pytest.raises(SchemaTooOldError, match=r"empty them .* and delete the keys longwatch:\*"):
        store.backend("work").put(new_messages(1))


# --- a step of the server's clock ---


def renewing_owners(backend: RedisBackend, count: int) -> list[int]:
    """Owners on other hosts that renew, each with a lease of one message."""
    backend.put(new_messages(count))
    owners = [
        enter(backend, elsewhere(), "/nowhere/page", renew_seconds=20.0) for _ in range(count)
    ]
    assert all(claim(backend, owner, duration=LEASE) for owner in owners)
    return owners


@pytest.fixture
def clock(store: RedisStore) -> FakeClock:
    store.clock = clock = FakeClock()
    return clock


def test_owners_that_lapse_together_keep_their_leases_for_one_renewal_interval(
    backend: RedisBackend, clock: FakeClock
) -> None:
    """The server's clock jumps ahead; two owners renew in time, the third is gone."""
    owners = renewing_owners(backend, 3)
    backend.store.jump.lease += 1000.0
    assert (0, 3) == (backend.sweep(), backend.stats().leased)
    clock.advance(10.0)
    for owner in owners[:2]:
        assert 1 == backend.renew(owner=owner, lease_seconds=LEASE)
    assert 0 == backend.sweep()
    clock.advance(10.0)
    assert 1 == backend.sweep()
    assert [(0, 1, 0)] == counters(backend)
    assert [1, 1, 0] == [len(backend.held(owner=owner)) for owner in owners]


@pytest.mark.usefixtures("clock")
def test_a_minority_that_lapses_and_bare_receivers_are_reclaimed_at_once(
    backend: RedisBackend,
) -> None:
    owners = renewing_owners(backend, 3)
    backend.put(new_messages(1))
    assert claim(backend, enter(backend), duration=LEASE)
    for owner in owners[:2]:
        backend.renew(owner=owner, lease_seconds=FOREVER)
    backend.store.jump.lease += 1000.0
    assert (2, 2) == (backend.sweep(), backend.stats().leased)


def test_an_owner_with_many_lapsed_leases_hides_no_other(
    backend: RedisBackend, clock: FakeClock
) -> None:
    """The leases of the first owner alone fill the batch of a sweep; a bare lease is reclaimed
    though leases that wait are older.
    """
    backend.put(new_messages(1200))
    busy = enter(backend, elsewhere(), "/nowhere/page", renew_seconds=20.0)
    assert 1200 == len(claim(backend, busy, 1200, duration=LEASE / 2))
    renewing_owners(backend, 1)
    backend.put(new_messages(1))
    assert claim(backend, enter(backend), duration=LEASE)
    backend.store.jump.lease += 1000.0
    assert [1, 0] == [backend.sweep(), backend.sweep()]
    clock.advance(20.0)
    assert [500, 500, 201, 0] == [backend.sweep() for _ in range(4)]


def test_a_live_process_whose_lease_lapsed_gets_time_for_one_renewal(
    backend: RedisBackend, clock: FakeClock, tmp_path: Path
) -> None:
    """It is the only owner, and this process sees that it lives: its row is released, not
    blamed.
    """
    page = BeatPage(tmp_path / "page", slots=1)
    backend.put(new_messages(1))
    owner = enter(backend, page=str(page.path), renew_seconds=20.0)
    [row] = claim(backend, owner, duration=LEASE)
    page.begin(0, row.claim.seq, 0.0)
    backend.store.jump.lease += 1000.0
    assert 0 == backend.sweep()
    clock.advance(20.0)
    assert (1, [(0, 0, 1)]) == (backend.sweep(), counters(backend))
    page.close()
