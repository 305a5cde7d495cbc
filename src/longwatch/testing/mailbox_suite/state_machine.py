"""The hypothesis state machine that drives a mailbox and its model."""

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

from longwatch.testing.mailbox_suite.harness import MailboxHarness
from longwatch.testing.mailbox_suite.model_checks import STEP, MailboxWithModel

ModelCall = Callable[[MailboxWithModel], None]

LEASES = st.sampled_from([0.5 * STEP, 1.5 * STEP, 3.5 * STEP])
DELAYS = st.sampled_from([0.0, 0.0, 0.0, 0.5 * STEP, 1.5 * STEP])
EXPIRIES = st.sampled_from([None, None, None, 1.5 * STEP, 3.5 * STEP])
KEYS = st.sampled_from([None, None, "k", "q"])
REASONS = st.sampled_from([None, "failed"])
INDEXES = st.integers(0, 7)
STEPS = st.sampled_from([0.0, STEP, 2 * STEP])


def call(
    method: Callable[..., None], **arguments: st.SearchStrategy[Any]
) -> st.SearchStrategy[ModelCall]:
    """Draw a call of one method with its arguments, which a failed run prints."""
    return st.builds(partial, st.just(method), **arguments)


WEIGHTS: list[tuple[int, st.SearchStrategy[ModelCall]]] = [
    (
        4,
        call(
            MailboxWithModel.send,
            count=st.integers(1, 3),
            delay=DELAYS,
            expires_in=EXPIRIES,
            keep=st.booleans(),
            key=KEYS,
        ),
    ),
    (6, call(MailboxWithModel.receive, count=st.integers(1, 4), lease=LEASES)),
    (2, call(MailboxWithModel.acknowledge, index=INDEXES)),
    (4, call(MailboxWithModel.nack, index=INDEXES, delay=DELAYS, reason=REASONS)),
    (3, call(MailboxWithModel.extend, index=INDEXES, lease=LEASES)),
    (5, call(MailboxWithModel.jump, lease=STEPS, wall=STEPS)),
    (2, call(MailboxWithModel.replay, index=INDEXES)),
    (1, call(MailboxWithModel.drop, index=INDEXES)),
    (1, call(MailboxWithModel.cancel, index=INDEXES)),
    (1, call(MailboxWithModel.pause)),
    (2, call(MailboxWithModel.resume)),
    (1, call(MailboxWithModel.purge)),
]
MODEL_CALLS: st.SearchStrategy[ModelCall] = st.sampled_from(
    [each for weight, each in WEIGHTS for _ in range(weight)]
).flatmap(lambda each: each)


def run_state_machine(harness: MailboxHarness, *, runs: settings | None = None) -> None:
    """Run the state machine. The default is fewer runs than the hypothesis profile sets, because
    each run is many calls.
    """
    few = settings(max_examples=max(settings().max_examples // 4, 1), stateful_step_count=40)

    class Machine(MailboxStateMachine):
        def __init__(self) -> None:
            super().__init__(harness)

    run_state_machine_as_test(Machine, settings=runs or few)


class MailboxStateMachine(RuleBasedStateMachine):
    """Has one rule for all calls, so that each is drawn as often as its weight says."""

    def __init__(self, harness: MailboxHarness) -> None:
        super().__init__()
        self.pair = MailboxWithModel(harness)

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        self.pair.send(count, delay=0.0, expires_in=None, keep=False, key=None)

    @rule(act=MODEL_CALLS)
    def do(self, act: ModelCall) -> None:
        act(self.pair)

    @invariant()
    def they_agree(self) -> None:
        self.pair.compare()

    def teardown(self) -> None:
        self.pair.finish()
