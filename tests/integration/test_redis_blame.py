"""Blame on Redis: which counter rises when a lease ends, which budget that spends, and how suspects
are claimed.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longwatch.engine.claim_source import GivenUp, RowOutcome, Settlement
from longwatch.errors import SchemaTooOldError
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.redis.backend import RedisBackend
from longwatch.mailbox.redis.store import MAILBOXES_KEY, SCHEMA_FIELD, RedisStore
from longwatch.store.claims import RowSelection
from redis_rig import FOREVER, claim, dead_process, elsewhere, enter, new_messages, settled
from redis_server import RedisServer, running_server
from snippet import run_snippet

LEASE = 60.0
OWNERS_KEY, SUSPECTS_KEY = "longwatch:{work}:owners", "longwatch:{work}:suspects"
ANY, ORDINARY, SUSPECTS = RowSelection.ANY, RowSelection.ORDINARY, RowSelection.SUSPECTS


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_server() as started:
        yield started


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    opened = RedisStore(server.url)
    yield opened
    opened.close()
    with server.client() as client:
        client.flushall()


@pytest.fixture
def backend(store: RedisStore) -> RedisBackend:
    return store.backend("work")


def crash(backend: RedisBackend, times: int = 1, **options: Any) -> list[GivenUp]:
    """The next message crashes: a bare lease of it lapses; the messages that the sweeps gave up."""
    given_up: list[GivenUp] = []
    for _ in range(times):
        assert claim(backend, enter(backend), duration=LEASE, **options)
        backend.store.jump.lease += 2 * LEASE
        backend.sweep(given_up.append)
    return given_up


def lose(backend: RedisBackend, times: int = 1) -> list[GivenUp]:
    """The next message is lost with its host: its owner lapses, and its page cannot be read."""
    given_up: list[GivenUp] = []
    for _ in range(times):
        assert claim(backend, enter(backend, elsewhere(), "/nowhere/page"), duration=LEASE)
        backend.store.jump.lease += 2 * LEASE
        backend.sweep(given_up.append)
    return given_up


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


def counters(backend: RedisBackend) -> list[tuple[int, int, int]]:
    """Crashes, lost and releases of every message."""
    return [(found.crashes, found.lost, found.releases) for found in backend.peek(limit=100)]


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
    backend: RedisBackend,
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


# --- limits ---


def test_a_process_that_opens_without_limits_uses_those_of_the_last_that_gave_some(
    server: RedisServer, store: RedisStore
) -> None:
    limits = MailboxLimits(max_failures=2, max_crashes=1, max_lost=1)
    store.backend("work", limits=limits).put(new_messages(3))
    with RedisStore(server.url) as other:
        backend = other.backend("work")
        owner = enter(backend)
        [row] = claim(backend, owner)
        assert 2 == row.failures_left
        settled(backend, row.claim, outcome=RowOutcome.FAILED, delay=FOREVER)
        assert ["poison"] == [each.reason for each in crash(backend)]
        assert ["lost"] == [each.reason for each in lose(backend)]


def test_a_mailbox_without_limits_has_the_defaults(backend: RedisBackend) -> None:
    """Those in the script are those of `MailboxLimits`."""
    defaults = MailboxLimits()
    backend.put(new_messages(1))
    [row] = claim(backend, enter(backend))
    assert defaults.max_failures == row.failures_left
    settled(backend, row.claim)
    backend.put(new_messages(1))
    assert [] == crash(backend, defaults.max_crashes - 1)
    assert ["poison"] == [each.reason for each in crash(backend)]
    backend.put(new_messages(1))
    assert [] == lose(backend, defaults.max_lost - 1)
    assert ["lost"] == [each.reason for each in lose(backend)]


def test_limits_are_written_only_if_they_differ(server: RedisServer, store: RedisStore) -> None:
    limits = MailboxLimits(max_failures=7)
    store.backend("work", limits=limits).put(new_messages(1))
    with server.client() as client:
        client.hset("longwatch:{work}", "max_failures", "7.0")  # the same number, other text
        store.backend("work", limits=limits).put(new_messages(1))
        assert b"7.0" == client.hget("longwatch:{work}", "max_failures")
        store.backend("work", limits=MailboxLimits(max_failures=8)).put(new_messages(1))
        stored = client.hmget("longwatch:{work}", "max_failures", "max_crashes", "max_lost")
    assert [b"8", b"3", b"5"] == stored


def test_suspects_are_judged_anew_when_the_limits_change(store: RedisStore) -> None:
    """Raised, a suspect is an ordinary message; lowered, a claim of ordinary messages passes over
    it, and puts it where suspects are.
    """
    backend = store.backend("work")
    sent = backend.put(new_messages(2))
    crash(backend, 2)
    assert 1 == backend.count_suspects(limit=10)
    store.backend("work", limits=MailboxLimits(max_crashes=4)).sweep()
    assert 0 == backend.count_suspects(limit=10)
    owner = enter(backend)
    rows = claim(backend, owner, 10, selection=ORDINARY)
    assert [(each, False) for each in sent] == [(row.item.id, row.is_exclusive) for row in rows]
    settled(backend, *(row.claim for row in rows), outcome=RowOutcome.RELEASED)
    store.backend("work", limits=MailboxLimits(max_crashes=3)).sweep()
    assert sent[1:] == [row.item.id for row in claim(backend, owner, 10, selection=ORDINARY)]
    assert 1 == backend.count_suspects(limit=10)
    assert sent[:1] == [row.item.id for row in claim(backend, owner, 10, selection=SUSPECTS)]


def test_lowered_limits_let_any_claim_take_a_suspect_by_itself(store: RedisStore) -> None:
    backend = store.backend("work")
    sent = backend.put(new_messages(3))
    crash(backend)
    store.backend("work", limits=MailboxLimits(max_crashes=2)).sweep()
    owner = enter(backend)
    first, second = claim(backend, owner, 10), claim(backend, owner, 10)
    assert [(sent[0], True)] == [(row.item.id, row.is_exclusive) for row in first]
    assert [(each, False) for each in sent[1:]] == [
        (row.item.id, row.is_exclusive) for row in second
    ]


# --- suspects ---


@pytest.fixture
def with_suspects(backend: RedisBackend) -> list[str]:
    """Six messages, of which the third and the fifth are suspects; their ids."""
    sent = backend.put(new_messages(6))
    owner = enter(backend)
    rows = claim(backend, owner, 6)
    for index in (2, 4):
        settled(backend, rows[index].claim, outcome=RowOutcome.RELEASED)
        crash(backend, 2)
        [suspect] = claim(backend, owner)
        rows[index] = suspect
    settled(backend, *(row.claim for row in rows), outcome=RowOutcome.RELEASED)
    return sent


def drained(backend: RedisBackend, selection: RowSelection) -> list[tuple[list[str], bool]]:
    """Claim until nothing is left: the ids of each claim, and whether it was exclusive."""
    owner, found = enter(backend), []
    while rows := claim(backend, owner, 10, selection=selection):
        assert 1 == len({row.is_exclusive for row in rows})
        found.append(([row.item.id for row in rows], rows[0].is_exclusive))
    return found


def test_any_row_is_claimed_in_the_order_of_its_number_and_a_suspect_by_itself(
    backend: RedisBackend, with_suspects: list[str]
) -> None:
    one, two, three, four, five, six = with_suspects
    assert [
        ([one, two], False),
        ([three], True),
        ([four], False),
        ([five], True),
        ([six], False),
    ] == drained(backend, ANY)


def test_ordinary_claims_take_no_suspects(backend: RedisBackend, with_suspects: list[str]) -> None:
    one, two, three, four, five, six = with_suspects
    assert 2 == backend.count_suspects(limit=10)
    assert [([one, two, four, six], False)] == drained(backend, ORDINARY)
    assert (2, 1) == (backend.count_suspects(limit=10), backend.count_suspects(limit=1))
    assert [([three], True), ([five], True)] == drained(backend, SUSPECTS)
    assert 0 == backend.count_suspects(limit=10)


def test_claims_of_suspects_take_no_other_row(
    backend: RedisBackend, with_suspects: list[str]
) -> None:
    assert [([with_suspects[2]], True), ([with_suspects[4]], True)] == drained(backend, SUSPECTS)
    assert 4 == backend.stats().ready


def test_a_paused_mailbox_has_no_suspects_to_claim(
    backend: RedisBackend, with_suspects: list[str]
) -> None:
    """Otherwise a parent would start processes that find nothing."""
    assert with_suspects
    backend.pause(paused=True)
    assert (0, []) == (backend.count_suspects(limit=10), drained(backend, SUSPECTS))
    backend.pause(paused=False)
    assert 2 == backend.count_suspects(limit=10)


def test_a_message_that_crashed_once_runs_beside_others(backend: RedisBackend) -> None:
    sent = backend.put(new_messages(3))
    crash(backend)
    assert [(sent, False)] == drained(backend, ANY)


def test_a_budget_of_one_has_no_suspects(store: RedisStore) -> None:
    backend = store.backend("work", limits=MailboxLimits(max_crashes=1, max_lost=1))
    backend.put(new_messages(2))
    assert 0 == backend.count_suspects(limit=10)
    assert ["poison"] == [each.reason for each in crash(backend)]


def test_a_delayed_suspect_becomes_a_ready_suspect(backend: RedisBackend) -> None:
    sent = backend.put(new_messages(2))
    crash(backend, 2)
    owner = enter(backend)
    [row] = claim(backend, owner, 2)
    settled(backend, row.claim, outcome=RowOutcome.FAILED, delay=30.0)
    assert (1, 0) == (backend.stats().delayed, backend.count_suspects(limit=10))
    backend.store.jump.wall += 60.0
    assert 1 == backend.sweep()
    assert 1 == backend.count_suspects(limit=10)
    assert [([sent[0]], True), ([sent[1]], False)] == drained(backend, ANY)


def test_suspects_are_counted_shown_cancelled_and_purged_like_other_messages(
    server: RedisServer, backend: RedisBackend, with_suspects: list[str]
) -> None:
    assert 6 == backend.stats().ready
    assert with_suspects == [found.id for found in backend.peek(limit=10)]
    assert with_suspects[:3] == [found.id for found in backend.peek(limit=3)]
    assert (True, False) == (backend.cancel(with_suspects[2]), backend.cancel(with_suspects[2]))
    assert (5, 5, 0) == (backend.stats().ready, backend.purge(), backend.stats().ready)
    with server.client() as client:
        assert 0 == client.exists(SUSPECTS_KEY, "longwatch:{work}:history")


def test_the_oldest_ready_message_may_be_a_suspect(backend: RedisBackend) -> None:
    backend.put(new_messages(1))
    crash(backend, 2)
    backend.store.jump.wall += 100.0
    backend.put(new_messages(1))
    oldest = backend.stats().oldest_age
    assert oldest is not None
    assert oldest >= 100.0
    assert [True] == [row.is_exclusive for row in claim(backend, enter(backend))]
    newest = backend.stats().oldest_age
    assert newest is not None
    assert newest < 100.0


@pytest.mark.parametrize("selection", [ANY, SUSPECTS])
def test_an_expired_suspect_is_given_up_when_it_would_be_claimed(
    backend: RedisBackend, selection: RowSelection
) -> None:
    [expired] = backend.put(new_messages(1, expires_in=1000.0, keep_expired=True))
    crash(backend, 2)
    backend.store.jump.wall += 2000.0
    result = backend.exchange(
        (), owner=enter(backend), limit=10, lease_seconds=LEASE, selection=selection
    )
    assert ([], [GivenUp(expired, "work", "expired")]) == (result.claimed, list(result.given_up))
    assert (0, 0) == (backend.stats().ready, backend.count_suspects(limit=10))


def test_a_sweep_expires_suspects_too(backend: RedisBackend) -> None:
    backend.put(new_messages(1, expires_in=1000.0))
    crash(backend, 2)
    backend.store.jump.wall += 2000.0
    assert (1, 0) == (backend.sweep(), backend.stats().ready)


def test_a_suspect_that_crashes_is_given_up_and_its_neighbours_are_not(
    backend: RedisBackend, with_suspects: list[str]
) -> None:
    assert [with_suspects[2]] == [each.message_id for each in crash(backend, selection=SUSPECTS)]
    assert (1, 5) == (backend.stats().dead, backend.stats().ready)


# --- names of rows ---


def test_the_ids_of_rows_are_found_while_they_are_leased_or_ready(store: RedisStore) -> None:
    one, two = store.backend("one"), store.backend("two")
    first, second = one.put(new_messages(2))
    [third] = two.put(new_messages(1))
    owner = enter(one)
    rows = [*claim(one, owner, 1), *claim(one, enter(one), 1), *claim(two, owner, 1)]
    seqs = [row.claim.seq for row in rows]
    found = dict(zip(seqs, (first, second, third), strict=True))
    assert found == one.row_ids([*seqs, seqs[1] + 1, 1]) == two.row_ids(seqs)
    settled(one, rows[0].claim, outcome=RowOutcome.RELEASED)
    settled(one, rows[1].claim)
    assert {seqs[0]: first, seqs[2]: third} == one.row_ids(seqs)
    assert {} == one.row_ids([])
    with RedisStore(store.url) as parents:
        assert {seqs[0]: first} == parents.backend("one").row_ids(seqs)


def test_the_ids_of_many_rows_are_found(backend: RedisBackend) -> None:
    sent = backend.put(new_messages(2500))
    rows = claim(backend, enter(backend), 2500)
    assert sent == list(backend.row_ids([row.claim.seq for row in rows]).values())


# --- the layout ---


def test_mailboxes_of_the_layout_before_are_refused_with_the_cure(
    server: RedisServer, store: RedisStore
) -> None:
    with server.client() as client:
        client.hset(MAILBOXES_KEY, mapping={SCHEMA_FIELD: "4", "7": "work"})
    with pytest.raises(SchemaTooOldError, match=r"empty them .* and delete the keys longwatch:\*"):
        store.backend("work").put(new_messages(1))
