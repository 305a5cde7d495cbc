from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

from engine_rig import QUIET, FakeSource, Gate, Item, Rig, numbered, rigged, stop_by_moving
from longwatch.core.events import LeaseLost, SourceFailed
from longwatch.core.fake_clock import FakeClock
from longwatch.errors import StoreError
from longwatch.mailbox import Mailbox, Message, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.mailbox.runner import MessageRunner
from longwatch.work.context import WorkContext
from longwatch.work.engine import Engine
from longwatch.work.source import Outcome

DONE = Outcome.DONE
LEASE = QUIET.lease.duration
TRUST = LEASE * QUIET.lease.trust
SWEEPING = dataclasses.replace(QUIET, sweep_every=1.0)


def down() -> None:
    raise StoreError("down")


def lose_store(source: FakeSource) -> None:
    for call in ("exchange", "renew", "held", "next_due"):
        source.faults[call] = down


def sweeps_within(rig: Rig, seconds: float) -> int:
    before = rig.source.calls.count("sweep")
    rig.pass_time(seconds)
    return rig.source.calls.count("sweep") - before


def test_an_engine_whose_leases_are_trusted_sweeps() -> None:
    gate = Gate()
    with rigged(gate, Item(1), policy=SWEEPING) as rig:
        gate.next()
        assert sweeps_within(rig, 3 * LEASE) >= 3 * LEASE - 1


def test_an_engine_that_holds_nothing_sweeps_however_long_it_has_claimed_nothing() -> None:
    with rigged(Gate(), policy=SWEEPING) as rig:
        assert sweeps_within(rig, 3 * LEASE) >= 3 * LEASE - 1


def test_an_engine_that_cannot_renew_its_leases_does_not_sweep_until_it_can() -> None:
    """Its own would be the first that it takes: before they are renewed, and before what is done
    is settled.
    """
    gate = Gate()
    with rigged(gate, Item(1), policy=SWEEPING) as rig:
        gate.next()
        rig.settle_down()
        lose_store(rig.source)
        gate.open(1)
        rig.observer.wait_for(SourceFailed)
        assert sweeps_within(rig, TRUST - 1.0) > 0
        rig.pass_time(2.0)
        assert 0 == sweeps_within(rig, 10 * LEASE)
        rig.source.faults.clear()
        rig.pass_time(5.0)
        rig.source.await_settled((1, DONE))
        assert sweeps_within(rig, LEASE) >= LEASE - 1


def test_it_sweeps_again_while_its_work_goes_on_once_the_leases_are_renewed() -> None:
    gate = Gate()
    with rigged(gate, Item(1), policy=SWEEPING) as rig:
        gate.next()
        rig.settle_down()
        lose_store(rig.source)
        rig.pass_time(TRUST)
        rig.observer.wait_for(LeaseLost)
        rig.source.faults.clear()
        rig.pass_time(5.0)
        assert sweeps_within(rig, LEASE) >= LEASE - 1
        assert {1} == {claim.seq for claim in rig.feeder.held}


def test_a_claim_does_not_vouch_for_older_leases_that_are_not_settled_yet() -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2, 3)) as rig:
        gate.next(), gate.next()
        rig.settle_down()
        granted_at = rig.engine._shift._tenure.lease.granted_at  # type: ignore[union-attr]
        rig.source.faults["exchange"] = down
        gate.open(1, 2)
        rig.observer.wait_for(SourceFailed)
        rig.pass_time(3.0)
        rig.source.faults.clear()
        rig.pass_time(2.5)
        assert 3 == gate.next()
        assert granted_at == rig.engine._shift._tenure.lease.granted_at  # type: ignore[union-attr]


class Flaky:
    """A real source that can be out, on a clock that moves its store's clock too."""

    def __init__(self, source: object) -> None:
        self.out = False
        self._source = source

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            if self.out:
                down()
            return getattr(self._source, name)(*words, **options)

        return call


def test_what_was_done_while_the_store_was_out_for_longer_than_the_lease_is_not_done_again() -> (
    None
):
    store, clock, ran = MemoryStore(), FakeClock(), Counter[int]()
    mailbox: Mailbox[int] = open_mailbox(store, "jobs")
    source: Any = Flaky(mailbox.backend)
    gate = Gate()

    def handle(message: Message[int], context: WorkContext) -> None:
        ran[message.body] += 1
        gate(context.leased, context)

    mailbox.send_many([1, 2])
    engine = Engine(source, MessageRunner(mailbox, handle), policy=SWEEPING, clock=clock)
    with engine:
        rig = Rig(FakeSource(), clock, None, engine)  # type: ignore[arg-type] # only to pass time
        gate.next(), gate.next()
        rig.settle_down()
        source.out = True
        gate.open_for_all()
        for _ in range(2 * int(LEASE)):
            rig.pass_time(1.0)
            store.jump.lease += 1.0
        source.out = False
        rig.pass_time(10.0)
        stop_by_moving(engine, clock)
    assert ({1: 1, 2: 1}, 0) == (ran, mailbox.approximate_count())
