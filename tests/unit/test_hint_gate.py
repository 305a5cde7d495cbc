"""Which hints an idle engine answers, and what that costs a fleet: a simulation."""

from __future__ import annotations

import random

import pytest

from longwatch.engine.hint_gate import MIN_PROBABILITY, HintGate


def gate_with(*fractions: float) -> HintGate:
    """A gate that draws these fractions, then 0."""
    drawn = iter(fractions)
    return HintGate(is_shared=True, fraction=lambda: next(drawn, 0.0))


def miss(gate: HintGate, times: int) -> None:
    for _ in range(times):
        gate.hint()
        gate.record_claim(has_found=False)


def is_woken(gate: HintGate) -> bool:
    woken = gate.is_set()
    gate.clear()
    return woken


def test_a_new_engine_answers_every_hint() -> None:
    gate = HintGate(is_shared=True, fraction=lambda: 0.999)
    gate.hint()
    assert gate.is_set()


def gate_that_has_found() -> HintGate:
    gate = gate_with()
    gate.record_claim(has_found=True)
    return gate


def test_each_miss_before_the_first_hit_halves_the_probability_down_to_a_64th() -> None:
    gate, seen = gate_with(), []
    for misses in (1, 1, 4, 2, 1):
        miss(gate, misses)
        seen.append(gate.probability)
    assert [1 / 2, 1 / 4, 1 / 64, 1 / 64, 1 / 128] == seen


def test_three_misses_in_a_row_halve_the_probability_and_a_hit_doubles_it() -> None:
    gate, seen = gate_that_has_found(), []
    for misses in (2, 1, 2):
        miss(gate, misses)
        seen.append(gate.probability)
    gate.record_claim(has_found=True)
    seen.append(gate.probability)
    miss(gate, 2)
    seen.append(gate.probability)
    assert [1.0, 0.5, 0.5, 1.0, 1.0] == seen


def test_the_probability_stays_between_its_bounds() -> None:
    gate = gate_with()
    miss(gate, 100)
    assert gate.probability == MIN_PROBABILITY
    for _ in range(20):
        gate.record_claim(has_found=True)
    assert gate.probability == 1.0


def test_a_claim_that_answered_no_hint_and_found_nothing_changes_nothing() -> None:
    """An engine polls by itself, and no message was missed then."""
    gate = gate_with()
    for _ in range(30):
        gate.record_claim(has_found=False)
    assert gate.probability == 1.0


def test_a_gate_with_half_the_probability_answers_hints_below_it_only() -> None:
    gate = gate_with(0.0, 0.49, 0.5)
    miss(gate, 1)
    gate.clear()
    woken = []
    for _ in range(2):
        gate.hint()
        woken.append(is_woken(gate))
    assert [True, False] == woken


def test_work_of_its_own_process_always_wakes_and_an_interval_never() -> None:
    gate = HintGate(is_shared=True, fraction=lambda: 1.0)
    gate.poll()
    assert not is_woken(gate)
    gate.set()
    assert is_woken(gate)


def test_in_a_store_of_one_machine_every_hint_and_every_interval_wakes() -> None:
    gate = HintGate(is_shared=False, fraction=lambda: 1.0)
    miss(gate, 30)
    gate.clear()
    gate.poll()
    assert is_woken(gate)
    gate.hint()
    assert is_woken(gate)


def simulate(engines: int, messages: int, rng: random.Random) -> tuple[float, float]:
    """Hint messages one by one to idle engines. Returns the claims a message, and the fraction of
    the messages whose hint no engine answered. The holder of the sweep turn claims those. At first
    every engine answers.
    """
    gates = [HintGate(is_shared=True, fraction=rng.random) for _ in range(engines)]
    claims = waiting = 0
    for _ in range(messages):
        for gate in gates:
            gate.hint()
        woken = [gate for gate in gates if is_woken(gate)]
        claims += len(woken)
        if not woken:
            waiting += 1
            rng.choice(gates).record_claim(has_found=True)
        else:
            winner = rng.choice(woken)
            for gate in woken:
                gate.record_claim(has_found=gate is winner)
    return claims / messages, waiting / messages


@pytest.mark.parametrize(
    ("engines", "most_claims", "most_waiting"),
    [(1, 1.0, 0.0), (2, 2.0, 0.001), (8, 3.0, 0.005), (100, 5.0, 0.01), (400, 7.0, 0.01)],
)
def test_claims_a_message_hardly_grow_with_the_engines_and_few_messages_wait(
    engines: int, most_claims: float, most_waiting: float
) -> None:
    claims, waiting = simulate(engines, 3000, random.Random(7))
    assert claims <= most_claims
    assert waiting <= most_waiting


def test_a_fleet_that_has_just_started_adapts_within_some_messages() -> None:
    """Without the faster start, a message of these costs 45 claims."""
    claims, waiting = simulate(100, 20, random.Random(7))
    assert claims < 30
    assert waiting == 0
