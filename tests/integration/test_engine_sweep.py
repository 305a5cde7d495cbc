from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

from engine_rig import (
    QUIET_POLICY,
    EngineRig,
    FakeRow,
    FakeSource,
    GatedRunner,
    fake_rows,
    running_engine,
    stop_advancing_clock,
)
from longwatch.core.events.engine import ClaimSourceFailed, LeaseLost
from longwatch.core.fake_clock import FakeClock
from longwatch.engine.claim_source import RowOutcome
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine
from longwatch.errors import StoreError
from longwatch.mailbox import Mailbox, Message, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.mailbox.message_runner import MessageRunner

DONE = RowOutcome.DONE
LEASE = QUIET_POLICY.lease.lease_seconds
TRUST = LEASE * QUIET_POLICY.lease.trust
SWEEPING = dataclasses.replace(QUIET_POLICY, sweep_interval=1.0)


def raise_unreachable() -> None:
    raise StoreError("down")


def lose_store(source: FakeSource) -> None:
    for call in ("exchange", "renew", "held", "next_due"):
        source.faults[call] = raise_unreachable


def sweeps_within(rig: EngineRig, seconds: float) -> int:
    before = rig.source.calls.count("sweep")
    rig.pass_time(seconds)
    return rig.source.calls.count("sweep") - before


def test_an_engine_whose_leases_are_trusted_sweeps() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1), policy=SWEEPING) as rig:
        gate.next_started()
        assert sweeps_within(rig, 3 * LEASE) >= 3 * LEASE - 1


def test_an_engine_that_holds_nothing_sweeps_however_long_it_has_claimed_nothing() -> None:
    with running_engine(GatedRunner(), policy=SWEEPING) as rig:
        assert sweeps_within(rig, 3 * LEASE) >= 3 * LEASE - 1


def test_an_engine_that_cannot_renew_its_leases_does_not_sweep_until_it_can() -> None:
    """Its own would be the first that it takes: before they are renewed, and before what is done
    is settled.
    """
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1), policy=SWEEPING) as rig:
        gate.next_started()
        rig.wait_idle()
        lose_store(rig.source)
        gate.open(1)
        rig.observer.wait_for(ClaimSourceFailed)
        assert sweeps_within(rig, TRUST - 1.0) > 0
        rig.pass_time(2.0)
        assert 0 == sweeps_within(rig, 10 * LEASE)
        rig.source.faults.clear()
        rig.pass_time(5.0)
        rig.source.wait_for_settlements((1, DONE))
        assert sweeps_within(rig, LEASE) >= LEASE - 1


def test_it_sweeps_again_while_its_work_goes_on_once_the_leases_are_renewed() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1), policy=SWEEPING) as rig:
        gate.next_started()
        rig.wait_idle()
        lose_store(rig.source)
        rig.pass_time(TRUST)
        rig.observer.wait_for(LeaseLost)
        rig.source.faults.clear()
        rig.pass_time(5.0)
        assert sweeps_within(rig, LEASE) >= LEASE - 1
        assert {1} == {claim.seq for claim in rig.fetcher.held}


def test_a_claim_does_not_vouch_for_older_leases_that_are_not_settled_yet() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2, 3)) as rig:
        gate.next_started(), gate.next_started()
        rig.wait_idle()
        granted_at = rig.engine._current_run._lease_trust.lease.granted_at  # type: ignore[union-attr]
        rig.source.faults["exchange"] = raise_unreachable
        gate.open(1, 2)
        rig.observer.wait_for(ClaimSourceFailed)
        rig.pass_time(3.0)
        rig.source.faults.clear()
        rig.pass_time(2.5)
        assert 3 == gate.next_started()
        assert granted_at == rig.engine._current_run._lease_trust.lease.granted_at  # type: ignore[union-attr]


class FlakySource:
    """A real source that can be out, on a clock that moves its store's clock too."""

    is_shared = False

    def __init__(self, source: object) -> None:
        self.is_down = False
        self._source = source

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            if self.is_down:
                raise_unreachable()
            return getattr(self._source, name)(*words, **options)

        return call


def test_what_was_done_while_the_store_was_out_for_longer_than_the_lease_is_not_done_again() -> (
    None
):
    store, clock, ran = MemoryStore(), FakeClock(), Counter[int]()
    mailbox: Mailbox[int] = open_mailbox(store, "jobs")
    source: Any = FlakySource(mailbox.backend)
    gate = GatedRunner()

    def handle(message: Message[int], context: RowContext) -> None:
        ran[message.body] += 1
        gate(context.claimed, context)

    mailbox.send_many([1, 2])
    engine = Engine(source, MessageRunner(mailbox, handle), policy=SWEEPING, clock=clock)
    with engine:
        rig = EngineRig(FakeSource(), clock, None, engine)  # type: ignore[arg-type] # only to pass time
        gate.next_started(), gate.next_started()
        rig.wait_idle()
        source.out = True
        gate.open_all()
        for _ in range(2 * int(LEASE)):
            rig.pass_time(1.0)
            store.jump.lease += 1.0
        source.out = False
        rig.pass_time(10.0)
        stop_advancing_clock(engine, clock)
    assert ({1: 1, 2: 1}, 0) == (ran, mailbox.approximate_count())
