"""Suspects on Redis: which claims take them, in which order, that every other call knows them, and
by which limits a message is one; and the ids of rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from longwatch.engine.claim_source import GivenUp, RowOutcome
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.redis.backend import RedisBackend
from longwatch.mailbox.redis.store import RedisStore
from longwatch.store.claims import RowSelection
from redis_rig import FOREVER, LEASE, claim, crash, enter, fresh_store, lose, new_messages, settled
from redis_server import RedisServer, running_server

SUSPECTS_KEY = "longwatch:{work}:suspects"
ANY, ORDINARY, SUSPECTS = RowSelection.ANY, RowSelection.ORDINARY, RowSelection.SUSPECTS


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


def test_budgets_are_written_only_if_they_are_set_and_differ(
    server: RedisServer, store: RedisStore
) -> None:
    limits = MailboxLimits(max_failures=7)
    store.backend("work", limits=limits).put(new_messages(1))
    with server.client() as client:
        client.hset("longwatch:{work}", "max_failures", "7.0")  # the same number, other text
        store.backend("work", limits=limits).put(new_messages(1))
        assert b"7.0" == client.hget("longwatch:{work}", "max_failures")
        for limits in (MailboxLimits(max_failures=8), MailboxLimits(max_lost=2, max_size=9)):
            store.backend("work", limits=limits).put(new_messages(1))
        stored = client.hmget("longwatch:{work}", "max_failures", "max_crashes", "max_lost")
    assert [b"8", None, b"2"] == stored


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
