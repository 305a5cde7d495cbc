from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_rig import (
    IDLE_THREADS,
    QUIET_POLICY,
    TIMEOUT,
    EngineRig,
    FakeRow,
    FakeSource,
    GatedRunner,
    fake_rows,
    running_engine,
)
from longwatch.core.events.engine import (
    ClaimSourceFailed,
    ClaimSourceRecovered,
    LeaseLost,
    SettlementRefused,
)
from longwatch.core.lease import LeasePolicy
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.errors import StoreError
from longwatch.host.beatpage import read_page
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import Mailbox, Message, open_mailbox
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.store.claims import Claim

DONE, BACK = RowOutcome.DONE, RowOutcome.RELEASED
LEASE = QUIET_POLICY.lease.lease_seconds
TRUST = LEASE * QUIET_POLICY.lease.trust


def raise_unreachable() -> None:
    raise StoreError("down")


def lose_store(rig: EngineRig) -> None:
    for call in ("exchange", "renew", "held", "next_due"):
        rig.source.faults[call] = raise_unreachable


def test_every_lease_is_renewed_by_one_call_each_third_of_the_lease() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2)) as rig:
        gate.next_started(), gate.next_started()
        rig.pass_time(10 * LEASE)
        rig.source.wait_until(lambda: len(rig.source.renewals) >= 30)
        assert {(2, ())} == set(rig.source.renewals)
        assert len(rig.source.renewals) <= 40
        assert [] == rig.observer.of(LeaseLost)
        gate.open(1, 2)


def test_an_engine_that_holds_nothing_renews_nothing() -> None:
    with running_engine(lambda leased, context: Settlement(leased.claim, DONE), FakeRow(1)) as rig:
        rig.source.wait_for_settlements((1, DONE))
        rig.pass_time(10 * LEASE)
        assert [] == rig.source.renewals


def test_an_idle_engine_gives_back_a_lease_that_it_never_had() -> None:
    """As after an older state of the store was restored."""
    gate = GatedRunner()
    with running_engine(gate) as rig:
        rig.wait_idle()
        rig.source.rows.append(FakeRow(7, deliveries=1, claim=Claim(7, 1, 1)))
        rig.pass_time(LEASE / 3)
        assert 7 == gate.next_started()
        assert [(7, BACK)] == rig.source.outcomes()
        gate.open(7)


def test_a_lease_that_it_never_had_is_found_though_one_that_it_had_is_gone_so_that_they_count_the_same() -> (  # noqa: E501 - one name
    None
):
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.source.reclaim(1)
        rig.source.rows.append(FakeRow(7, deliveries=1, claim=Claim(7, 1, 1)))
        rig.pass_time(LEASE / 3)
        assert 7 == gate.next_started()
        assert [(7, BACK)] == rig.source.outcomes()
        rig.pass_time(LEASE)
        assert ("message-1",) == rig.observer.wait_for(LeaseLost).message_ids
        gate.open(1, 7)


def test_what_is_done_and_could_not_be_settled_yet_is_kept_too() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.source.faults["exchange"] = raise_unreachable
        gate.open(1)
        rig.observer.wait_for(ClaimSourceFailed)
        rig.pass_time(2 * LEASE)
        rig.source.wait_until(lambda: len(rig.source.renewals) >= 5)


def test_a_renewal_that_fails_is_retried_quickly_and_nothing_is_lost_while_trust_lasts() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.source.faults["renew"] = raise_unreachable
        rig.pass_time(LEASE / 3 + 5)
        rig.source.wait_for_calls("renew", 5)
        assert (False, False) == (gate.contexts[1].cancelled, gate.contexts[1].lease_lost)
        del rig.source.faults["renew"]
        rig.pass_time(2.5)
        rig.observer.wait_for(ClaimSourceRecovered)
        rig.wait_idle()
        rig.pass_time(LEASE)
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))
        assert [] == rig.observer.of(LeaseLost)


def test_at_the_end_of_trust_what_runs_is_cancelled_and_its_result_does_not_count() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.source.faults["renew"] = raise_unreachable
        rig.pass_time(TRUST - 0.1)
        assert not gate.contexts[1].lease_lost
        rig.pass_time(0.1)
        assert (True, True) == (gate.contexts[1].lease_lost, gate.contexts[1].cancelled)
        lost = rig.observer.wait_for(LeaseLost)
        assert (("message-1",), "untrusted") == (lost.message_ids, lost.reason)
        gate.open(1)
        rig.source.wait_for_settlements((1, BACK))


def test_a_store_that_does_not_answer_at_all_does_not_hide_the_end_of_trust() -> None:
    gate, answer = GatedRunner(), threading.Event()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.source.faults["renew"] = lambda: answer.wait(TIMEOUT)
        rig.clock.advance(TRUST)
        rig.observer.wait_for(LeaseLost)
        assert gate.contexts[1].lease_lost
        rig.source.wait_for_calls("renew", 1)
        assert 1 == rig.source.calls.count("renew")
        answer.set()
        gate.open(1)


def test_at_the_end_of_trust_the_blame_ends_too() -> None:
    """The process did not die, the store did: whoever sweeps these rows finds nobody to blame on
    the page.
    """
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        lose_store(rig)
        rig.pass_time(TRUST)
        rig.observer.wait_for(LeaseLost)
        reading = read_page(rig.source.pages[0])
        assert reading is not None
        assert frozenset() == reading.running_rows
        gate.open(1)


def test_rows_that_wait_are_not_begun_once_trust_has_ended() -> None:
    gate = GatedRunner()
    with running_engine(
        gate, *fake_rows(1, 2), policy=dataclasses.replace(QUIET_POLICY, slots=1)
    ) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.fetcher._prefetch.limit = 1
        rig.source.notify()
        rig.source.wait_until(lambda: len(rig.fetcher.held) == 2)
        rig.wait_idle()
        rig.engine._current_run._lease_renewer._end_trust(0.0)  # type: ignore[union-attr]
        rig.source.wait_for_settlements((2, BACK))
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE), (2, BACK))
        assert gate.started.empty()


def test_the_engine_recovers_by_itself_when_the_store_is_back() -> None:
    gate = GatedRunner()
    with running_engine(
        gate, *fake_rows(1, 2), policy=dataclasses.replace(QUIET_POLICY, slots=1)
    ) as rig:
        gate.next_started()
        rig.wait_idle()
        lose_store(rig)
        rig.pass_time(10 * LEASE)
        rig.observer.wait_for(LeaseLost)
        gate.open(1)
        rig.source.faults.clear()
        rig.pass_time(5.0)
        rig.source.wait_until(lambda: (1, BACK) in rig.source.outcomes())
        assert 1 == gate.next_started()
        assert (False, 2) == (gate.contexts[1].lease_lost, gate.contexts[1].attempt)
        gate.open(1)
        assert 2 == gate.next_started()
        gate.open(2)
        rig.source.wait_for_settlements((1, BACK), (1, DONE), (2, DONE))
        assert 1 == len(rig.observer.of(LeaseLost))


def test_an_idle_engine_whose_store_was_gone_for_long_takes_work_again() -> None:
    gate = GatedRunner()
    with running_engine(gate) as rig:
        rig.wait_idle()
        lose_store(rig)
        rig.pass_time(10 * LEASE)
        rig.source.faults.clear()
        rig.source.put(FakeRow(1))
        rig.pass_time(5.0)
        assert 1 == gate.next_started()
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))


def test_nothing_is_claimed_while_the_leases_are_not_trusted() -> None:
    gate = GatedRunner()
    with running_engine(
        gate, *fake_rows(1, 2), policy=dataclasses.replace(QUIET_POLICY, slots=2)
    ) as rig:
        gate.next_started(), gate.next_started()
        rig.wait_idle()
        rig.source.faults["renew"] = raise_unreachable
        rig.pass_time(TRUST)
        rig.observer.wait_for(LeaseLost)
        rig.source.put(FakeRow(3))
        gate.open(1)
        rig.source.wait_until(lambda: (1, BACK) in rig.source.outcomes())
        rig.wait_idle()
        assert gate.started.empty()
        del rig.source.faults["renew"]
        rig.pass_time(5.0)
        assert 1 == gate.next_started()
        gate.open(1, 2, 3)


def test_a_row_that_the_store_gave_away_is_lost_and_the_others_are_not() -> None:
    gate = GatedRunner()
    with running_engine(
        gate, *fake_rows(1, 2), policy=dataclasses.replace(QUIET_POLICY, poll_interval=1.0)
    ) as rig:
        gate.next_started(), gate.next_started()
        rig.wait_idle()
        rig.source.reclaim(2)
        rig.pass_time(LEASE)
        lost = rig.observer.wait_for(LeaseLost)
        assert (("message-2",), "taken") == (lost.message_ids, lost.reason)
        assert (False, True) == (gate.contexts[1].lease_lost, gate.contexts[2].lease_lost)
        gate.open(1, 2)
        rig.source.wait_for_settlements((1, DONE))
        assert [] == rig.observer.of(SettlementRefused)


def test_code_that_has_settled_its_row_is_not_told_that_the_lease_is_lost() -> None:
    mailbox: Mailbox[int] = open_mailbox("memory://early", "jobs")
    acknowledged, go_on = threading.Event(), threading.Event()
    contexts: list[RowContext] = []

    def handle(message: Message[int], context: RowContext) -> None:
        contexts.append(context)
        message.acknowledge()
        acknowledged.set()
        assert go_on.wait(TIMEOUT)

    mailbox.send(1)
    source: Any = CountingSource(mailbox.backend)
    policy = EnginePolicy(lease=LeasePolicy(0.3), poll_interval=0.02)
    with Engine(source, MessageRunner(mailbox, handle), policy=policy):
        assert acknowledged.wait(TIMEOUT)
        source.wait_for_calls("held", 5)
        go_on.set()
    assert (False, False) == (contexts[0].lease_lost, contexts[0].cancelled)


class CountingSource:
    """Any source, with its calls counted."""

    is_shared = False

    def __init__(self, source: object) -> None:
        self._source = source
        self._changed = threading.Condition()
        self._calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            with self._changed:
                self._calls[name] = self._calls.get(name, 0) + 1
                self._changed.notify_all()
            return getattr(self._source, name)(*words, **options)

        return call

    def wait_for_calls(self, name: str, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._calls.get(name, 0) >= count, TIMEOUT)


def test_leases_that_nobody_here_knows_of_are_given_back() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.source.faults["exchange"] = raise_unreachable
        rig.source._claim(1, 0)
        stranger = FakeRow(9, deliveries=1)
        rig.source.rows.append(stranger)
        stranger.claim = rig.source.rows[0].claim._replace(seq=9)  # type: ignore[union-attr]
        rig.source.faults.clear()
        rig.pass_time(LEASE)
        assert 9 == gate.next_started()
        assert (9, BACK) in rig.source.outcomes()
        gate.open(1, 9)


def test_a_row_that_gives_no_beat_is_not_kept_and_the_others_are() -> None:
    gate = GatedRunner()
    with running_engine(
        gate, *fake_rows(1, 2), policy=dataclasses.replace(QUIET_POLICY, stale_after=15.0)
    ) as rig:
        gate.next_started(), gate.next_started()
        for _ in range(6):
            rig.pass_time(5.0)
            gate.contexts[1].beat()
        rig.source.wait_until(lambda: (1, (2,)) in rig.source.renewals)
        assert not gate.contexts[2].lease_lost
        for _ in range(4):
            rig.pass_time(5.0)
            gate.contexts[1].beat()
        lost = rig.observer.wait_for(LeaseLost)
        assert (("message-2",), "stale") == (lost.message_ids, lost.reason)
        assert (False, True) == (gate.contexts[1].lease_lost, gate.contexts[2].lease_lost)
        reading = read_page(rig.source.pages[0])
        assert reading is not None
        assert 2 in reading.running_rows  # it has stalled: the blame is its own
        assert frozenset({2}) == reading.silent_rows
        gate.open(1, 2)
        rig.source.wait_for_settlements((1, DONE), (2, BACK))


def test_a_row_that_beats_again_in_time_is_kept_again() -> None:
    gate = GatedRunner()
    with running_engine(
        gate, FakeRow(1), policy=dataclasses.replace(QUIET_POLICY, stale_after=5.0)
    ) as rig:
        gate.next_started()
        rig.pass_time(LEASE / 3)
        rig.source.wait_until(lambda: (0, (1,)) in rig.source.renewals)
        for _ in range(20):
            gate.contexts[1].beat()
            rig.pass_time(4.0)
        assert not gate.contexts[1].lease_lost
        assert [] == rig.observer.of(LeaseLost)
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))


def test_without_a_limit_a_row_is_kept_however_long_it_gives_no_beat() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.pass_time(20 * LEASE)
        assert not gate.contexts[1].lease_lost
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))


def test_a_claim_whose_answer_came_too_late_is_not_begun() -> None:
    """Its lease counts from when it was asked for; what the store says after the trust has run
    out is not worth much.
    """
    held, asked, answer = GatedRunner(), threading.Event(), threading.Event()
    source = FakeSource(fake_rows(1))

    def slow() -> None:
        asked.set()
        assert answer.wait(TIMEOUT)

    source.faults["exchange"] = slow
    with running_engine(held, source=source) as rig:
        assert asked.wait(TIMEOUT)
        rig.clock.await_parked(IDLE_THREADS - 1)
        rig.clock.advance(TRUST + 1, parked=IDLE_THREADS - 1)
        del source.faults["exchange"]
        answer.set()
        source.wait_until(lambda: (1, BACK) in source.outcomes())
        held.open(1)


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_what_a_real_store_is_told_to_skip_it_does_not_renew_and_it_tells_what_is_held(
    scheme: str, tmp_path: Path
) -> None:
    mailbox: Mailbox[int] = open_mailbox(f"{scheme}:///{tmp_path}/m.db", "jobs")
    backend: Any = mailbox.backend
    store = backend.database if scheme == "sqlite" else backend.store
    mailbox.send_many([1, 2])
    owner = backend.register_owner(Incarnation.current())
    first, second = (
        row.claim for row in backend.exchange((), owner=owner, limit=2, lease_seconds=10.0).claimed
    )
    assert 1 == backend.renew(owner=owner, lease_seconds=100.0, skip=[first])
    assert {first, second} == set(backend.held(owner=owner))
    store.jump.lease += 50.0
    assert 1 == backend.sweep()
    assert [second] == backend.held(owner=owner)
    assert 1 == backend.renew(owner=owner, lease_seconds=100.0)
    store.close()


def test_a_short_lease_outlives_many_times_its_length_while_the_work_goes_on() -> None:
    """In real time, on a real store with a sweeper that takes what has ended."""
    mailbox: Mailbox[int] = open_mailbox("memory://short", "jobs")
    ran: list[int] = []
    renewed = threading.Event()

    def handle(message: Message[int], context: RowContext) -> None:
        ran.append(message.delivery_count)
        assert renewed.wait(TIMEOUT)

    mailbox.send(1)
    source: Any = CountingSource(mailbox.backend)
    policy = EnginePolicy(slots=2, lease=LeasePolicy(0.5), sweep_interval=0.02)
    with Engine(source, MessageRunner(mailbox, handle), policy=policy):
        source.wait_for_calls("renew", 8)
        renewed.set()
    assert [1] == ran
    assert 0 == mailbox.approximate_count()
