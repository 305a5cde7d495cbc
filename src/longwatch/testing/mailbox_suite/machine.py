"""The state machine that drives a mailbox and its model; it imports hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from longwatch.testing.mailbox_suite.bench import Bench
from longwatch.testing.mailbox_suite.model import STEP, Pair

Act = Callable[[Pair], None]

LEASES = st.sampled_from([0.5 * STEP, 1.5 * STEP, 3.5 * STEP])
DELAYS = st.sampled_from([0.0, 0.0, 0.0, 0.5 * STEP, 1.5 * STEP])
EXPIRIES = st.sampled_from([None, None, None, 1.5 * STEP, 3.5 * STEP])
KEYS = st.sampled_from([None, None, "k", "q"])
REASONS = st.sampled_from([None, "failed"])
INDEXES = st.integers(0, 7)
STEPS = st.sampled_from([0.0, STEP, 2 * STEP])


def act(method: Callable[..., None], **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Act]:
    """A call of one method with arguments drawn; it shows as what it is when a run that failed
    is printed.
    """
    return st.builds(partial, st.just(method), **arguments)


WEIGHTS: list[tuple[int, st.SearchStrategy[Act]]] = [
    (
        4,
        act(
            Pair.send,
            count=st.integers(1, 3),
            delay=DELAYS,
            expires_in=EXPIRIES,
            keep=st.booleans(),
            key=KEYS,
        ),
    ),
    (6, act(Pair.receive, count=st.integers(1, 4), lease=LEASES)),
    (2, act(Pair.acknowledge, index=INDEXES)),
    (4, act(Pair.nack, index=INDEXES, delay=DELAYS, reason=REASONS)),
    (3, act(Pair.extend, index=INDEXES, lease=LEASES)),
    (5, act(Pair.jump, lease=STEPS, wall=STEPS)),
    (2, act(Pair.replay, index=INDEXES)),
    (1, act(Pair.drop, index=INDEXES)),
    (1, act(Pair.cancel, index=INDEXES)),
    (1, act(Pair.pause)),
    (2, act(Pair.resume)),
    (1, act(Pair.purge)),
]
ACTS: st.SearchStrategy[Act] = st.sampled_from(
    [each for weight, each in WEIGHTS for _ in range(weight)]
).flatmap(lambda each: each)


def run_machine(bench: Bench, *, runs: settings | None = None) -> None:
    """By default fewer runs than the profile in force gives a test, because each is many calls."""
    few = settings(max_examples=max(settings().max_examples // 4, 1), stateful_step_count=40)

    class Machine(MailboxMachine):
        def __init__(self) -> None:
            super().__init__(bench)

    run_state_machine_as_test(Machine, settings=runs or few)


class MailboxMachine(RuleBasedStateMachine):
    """One rule for every act, so that each comes as often as its weight says."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.pair = Pair(bench)

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        self.pair.send(count, delay=0.0, expires_in=None, keep=False, key=None)

    @rule(act=ACTS)
    def do(self, act: Act) -> None:
        act(self.pair)

    @invariant()
    def they_stand_alike(self) -> None:
        self.pair.compare()

    def teardown(self) -> None:
        self.pair.finish()
