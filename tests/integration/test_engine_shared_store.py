"""How rarely an idle engine calls a store that many machines share."""

from __future__ import annotations

import dataclasses

import pytest

from engine_rig import QUIET_POLICY, EngineRig, FakeRow, FakeSource, GatedRunner, running_engine

POLICY = dataclasses.replace(QUIET_POLICY, shared_poll_interval=10.0)


def calls_within(rig: EngineRig, seconds: float, *names: str) -> list[int]:
    before = list(map(rig.source.calls.count, names))
    rig.pass_time(seconds)
    return [rig.source.calls.count(name) - first for name, first in zip(names, before, strict=True)]


def test_an_idle_engine_polls_a_shared_store_at_its_own_interval_and_asks_nothing_else() -> None:
    source = FakeSource(is_shared=True)
    with running_engine(GatedRunner(), policy=POLICY, source=source) as rig:
        rig.wait_idle()
        claims, due = calls_within(rig, 100.0, "exchange", "next_due")
    assert 10 <= claims <= 13
    assert 0 == due


def test_the_wake_interval_of_the_listener_makes_no_poll() -> None:
    source = FakeSource(is_shared=True)
    with running_engine(GatedRunner(), policy=POLICY, source=source) as rig:
        rig.wait_idle()
        before = source.calls.count("exchange")
        for wakeup in source._listeners:
            wakeup.poll()
        rig.wait_idle()
        assert before == source.calls.count("exchange")


def test_an_engine_that_holds_rows_compares_them_with_the_store_when_some_may_be_revoked() -> None:
    source, gate = FakeSource(is_shared=True), GatedRunner()
    with running_engine(gate, policy=POLICY, source=source) as rig:
        rig.wait_idle()
        rig.engine.check_revoked()
        rig.wait_idle()
        assert 0 == source.calls.count("held")
        source.rows.append(FakeRow(1))
        rig.pass_time(10.0)
        assert 1 == gate.next_started()
        rig.engine.check_revoked()
        source.wait_for_calls("held", 1)


@pytest.mark.parametrize("call", ["set", "hint"])
def test_an_engine_that_is_woken_learns_when_a_row_is_due_and_claims_it_then(
    call: str,
) -> None:
    source, gate = FakeSource(is_shared=True), GatedRunner()
    with running_engine(gate, policy=POLICY, source=source) as rig:
        rig.wait_idle()
        source.due = 3.0
        for wakeup in source._listeners:
            getattr(wakeup, call)()
        source.wait_for_calls("next_due", 2)
        rig.wait_idle()
        rig.pass_time(2.9)
        source.due = None
        source.rows.append(FakeRow(1))
        assert gate.started.empty()
        rig.pass_time(0.1)
        assert 1 == gate.next_started()


def test_an_engine_that_claimed_a_row_asks_when_the_next_one_is_due() -> None:
    source, gate = FakeSource(is_shared=True), GatedRunner()
    with running_engine(gate, policy=POLICY, source=source) as rig:
        rig.wait_idle()
        source.rows.append(FakeRow(1))
        rig.pass_time(10.0)
        assert 1 == gate.next_started()
        source.wait_for_calls("next_due", 2)


def test_a_due_row_that_it_cannot_claim_is_left_to_the_sweeper() -> None:
    source = FakeSource(is_shared=True, due=0.0, is_paused=True)
    with running_engine(GatedRunner(), policy=POLICY, source=source) as rig:
        rig.wait_idle()
        claims, due = calls_within(rig, 20.0, "exchange", "next_due")
    assert claims <= 3
    assert 0 == due


def test_a_claim_that_failed_is_made_again_before_the_next_poll() -> None:
    source, gate = FakeSource(is_shared=True), GatedRunner()

    def fail_once() -> None:
        del source.faults["exchange"]
        raise OSError("the store is away")

    with running_engine(gate, policy=POLICY, source=source) as rig:
        rig.wait_idle()
        source.faults["exchange"] = fail_once
        before = source.calls.count("exchange")
        source.put(FakeRow(1))
        source.wait_for_calls("exchange", before + 1)
        rig.pass_time(1.0)
        assert 1 == gate.next_started()


def test_an_engine_claims_less_often_on_hints_that_find_nothing() -> None:
    source = FakeSource(is_shared=True)
    with running_engine(GatedRunner(), policy=POLICY, source=source) as rig:
        rig.wait_idle()
        before = source.calls.count("exchange")
        for _ in range(200):
            for wakeup in source._listeners:
                wakeup.hint()
            rig.wait_idle()
        assert source.calls.count("exchange") - before < 60
