"""What follows from a change in an execution, held against a direct evaluation of its graph. No
store, no threads.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longwatch.flow import Graph, and_, compute, input, not_, or_, when  # noqa: A004 - the contract's word
from longwatch.flow.attempt import LEASED, Attempt, AttemptEndCause, AttemptState
from longwatch.flow.execution_state import ExecutionState, ExecutionStatus, GraphId, Progress
from longwatch.flow.explanation import node_statuses
from longwatch.flow.gates import Gate
from longwatch.flow.node_record import GiveUpReason, NodeRecord
from longwatch.flow.propagation import propagate

FREE = 0
Values = dict[str, Any]


@dataclass
class FakeExecution:
    """One execution as a store keeps it: transactions load an ExecutionState, and write back
    its changes.
    """

    graph: Graph
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    open: dict[str, Attempt] = field(default_factory=dict)
    ended: dict[int, tuple[AttemptState, AttemptEndCause]] = field(default_factory=dict)
    delays: dict[int, float] = field(default_factory=dict)
    revision: int = 0
    cancelled: bool = False
    runs: Counter[str] = field(default_factory=Counter)
    claimed: dict[int, Values] = field(default_factory=dict)
    seq: int = 0
    progress: Progress = field(default_factory=Progress)
    now: float = 0.0

    def load(self) -> ExecutionState:
        state = ExecutionState(
            1,
            "e",
            GraphId(self.graph.name, self.graph.version),
            revision=self.revision,
            cancelled=self.cancelled,
            progress=self.progress,
        )
        state.nodes = {name: replace(stored) for name, stored in self.nodes.items()}
        state.open_attempts = dict(self.open)
        return state

    def change(self, *works: Callable[[ExecutionState], None]) -> ExecutionState:
        """One transaction."""
        state = self.load()
        for work in works:
            work(state)
        propagate(self.graph, state, dict.fromkeys(self.graph.nodes, 7), now=self.now)
        self._save(state)
        return state

    def _save(self, state: ExecutionState) -> None:
        self.revision, self.progress = state.revision, state.progress
        for name in state.changed_nodes:
            self.nodes[name] = state.nodes[name]
        for closing in state.attempt_ends:
            [node] = [name for name, attempt in self.open.items() if attempt.seq == closing.seq]
            del self.open[node]
            self.claimed.pop(closing.seq, None)
            self.ended[closing.seq] = closing.state, closing.cause
        for node, opening in state.new_attempts.items():
            assert node not in self.open, f"two attempts of {node} are open"
            self.seq += 1
            self.delays[self.seq] = opening.delay
            self.open[node] = Attempt(
                self.seq, node, FREE, opening.computed_with, opening.number, opening.spec
            )

    # --- what users do ---

    def set(self, values: Mapping[str, Any] | None = None, **named: Any) -> ExecutionState:
        given = {**(values or {}), **named}
        return self.change(
            *(partial(_put, name, json.dumps(value)) for name, value in given.items())
        )

    def unset(self, *names: str) -> ExecutionState:
        return self.change(*(partial(_unset, name) for name in names))

    # --- what workers do ---

    def claim(self, node: str) -> Values:
        """Claim it: its inputs are read from the store, as they are then."""
        self.open[node] = self.open[node]._replace(lease_state=LEASED)
        upstream = msgspec.json.decode(self.open[node].computed_with)
        captured = {name: value for name, value in self.values.items() if name in upstream}
        self.claimed[self.open[node].seq] = captured
        self.runs[node] += 1
        return captured

    def finish(self, *nodes: str) -> ExecutionState:
        """Their results, in one transaction."""

        def conclude(state: ExecutionState) -> None:
            for node in nodes:
                attempt = self.open[node]
                state.succeed(attempt, json.dumps(self._function(node)(self.claimed[attempt.seq])))

        return self.change(conclude)

    def fail(
        self,
        node: str,
        cause: AttemptEndCause = AttemptEndCause.RAISED,
        *,
        error: str = "broken",
        traceback: str | None = None,
        delay: float = 0.0,
    ) -> ExecutionState:
        return self.change(
            lambda state: state.fail(
                self.open[node], cause, error=error, traceback=traceback, delay=delay
            )
        )

    def run(self, *nodes: str) -> None:
        for node in nodes:
            self.claim(node)
            self.finish(node)

    def run_all(self) -> Counter[str]:
        """Compute whatever is ready until nothing is; how often each node was."""
        self.runs.clear()
        while self.open:
            node = next(iter(self.open))
            if self.open[node].lease_state != LEASED:
                self.claim(node)
            self.finish(node)
        return Counter(self.runs)

    # --- how it is ---

    @property
    def values(self) -> Values:
        return {
            name: json.loads(stored.value or "null")
            for name, stored in self.nodes.items()
            if stored.is_set
        }

    def _function(self, node: str) -> Callable[[Values], Any]:
        function = self.graph.nodes[node].function
        assert function is not None
        return lambda values: function(**values)


def _put(node: str, value: str, state: ExecutionState) -> None:
    state.set_value(node, value)


def _unset(node: str, state: ExecutionState) -> None:
    state.unset_value(node)


class PlainValues:
    """A view over plain values."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def is_set(self, node: str) -> bool:
        return node in self._values

    def value(self, node: str) -> Any:
        return self._values[node]


def evaluate(graph: Graph, inputs: Values) -> Values:
    """The graph, evaluated directly."""
    values = dict(inputs)
    for node in graph.computed_nodes:
        if node.gate.is_met(PlainValues(values)):
            assert node.function is not None
            values[node.name] = node.function(
                **{name: values[name] for name in node.upstream if name in values}
            )
    return values


def total(**values: Any) -> int:
    """Another result for other inputs, and one that is no number for none."""
    return sum(
        (index + 2) * (int(value or 0) + 1)
        for index, (_, value) in enumerate(sorted(values.items()))
    )


def parity(**values: Any) -> int:
    """Often the same for other inputs."""
    return total(**values) % 2


def even(value: Any) -> bool:
    return value is not None and value % 2 == 0


def graph_of(*nodes: Any, **computed: Any) -> FakeExecution:
    """A graph of inputs by name, and of what is computed from them: after=, or (after,
    function).
    """
    listed = [input(name) for name in nodes]
    for name, after in computed.items():
        function = total
        if isinstance(after, tuple):
            after, function = after  # noqa: PLW2901 - the same thing said at length
        listed.append(compute(name, after, function, max_attempts=3))
    return FakeExecution(Graph("g", version="1", nodes=listed))


class TestChanges:
    def test_a_change_is_computed_through(self) -> None:
        execution = graph_of("a", b="a", c="b")
        execution.set(a=1)
        assert Counter(b=1, c=1) == execution.run_all()
        assert evaluate(execution.graph, {"a": 1}) == execution.values

    def test_several_inputs_set_together_are_one_revision(self) -> None:
        execution = graph_of("a", "b", c=["a", "b"])
        execution.set(a=1, b=2)
        assert [1, 1, 1] == [
            execution.revision,
            execution.nodes["a"].revision,
            execution.nodes["b"].revision,
        ]
        assert Counter(c=1) == execution.run_all()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (1, 1),
            (None, None),
            ({"x": 1, "y": [1]}, {"y": [1], "x": 1}),
            ([{"x": 1, "y": 2}], [{"y": 2, "x": 1}]),
        ],
    )
    def test_setting_the_same_value_is_nothing(self, old: Any, new: Any) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=old)
        state = execution.set(a=new)
        assert not state.needs_write
        assert 1 == execution.revision

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (1, 2),
            (1, True),
            (1, 1.0),
            ([1, 2], [2, 1]),
            (None, 0),
            ("a", "b"),
            ({"x": 1}, {"y": 1}),
        ],
    )
    def test_setting_another_value_is_a_revision(self, old: Any, new: Any) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=old)
        execution.set(a=new)
        assert 2 == execution.revision

    def test_none_is_a_value(self) -> None:
        execution = graph_of("a", b=("a", lambda a: a), c="b")
        execution.set(a=None)
        execution.run_all()
        assert {
            "a": None,
            "b": None,
            "c": evaluate(execution.graph, {"a": None})["c"],
        } == execution.values
        assert {} == execution.run_all()

    def test_an_unchanged_result_stops_the_wave(self) -> None:
        execution = graph_of("a", b=("a", parity), c="b", d="c")
        execution.set(a=1)
        execution.run_all()
        before = execution.revision, execution.nodes["b"].revision
        execution.set(a=3)
        assert Counter(b=1) == execution.run_all()
        assert (before[0] + 1, before[1]) == (execution.revision, execution.nodes["b"].revision)

    def test_unsetting_cascades_in_one_revision(self) -> None:
        execution = graph_of("a", "x", b="a", c="b", d="x")
        execution.set(a=1, x=1)
        execution.run_all()
        before = execution.revision
        execution.unset("a")
        assert before + 1 == execution.revision
        assert {"x", "d"} == set(execution.values)
        assert {} == execution.run_all()

    def test_what_was_unset_is_computed_again_when_it_is_back(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.run_all()
        execution.unset("a")
        execution.set(a=1)
        assert Counter(b=1) == execution.run_all()
        assert evaluate(execution.graph, {"a": 1}) == execution.values

    def test_unsetting_what_is_not_set_is_nothing(self) -> None:
        execution = graph_of("a", b="a")
        assert not execution.unset("a").has_changes

    def test_a_false_gate_clears_what_is_behind_it(self) -> None:
        execution = graph_of("a", b=(when("a", even), total), c="b")
        execution.set(a=2)
        execution.run_all()
        execution.set(a=3)
        assert {"a": 3} == execution.values
        execution.set(a=4)
        execution.run_all()
        assert evaluate(execution.graph, {"a": 4}) == execution.values

    def test_a_node_may_wait_for_another_not_to_be_set(self) -> None:
        execution = graph_of("a", "stop", b=(["a", not_("stop")], total))
        execution.set(a=1)
        assert Counter(b=1) == execution.run_all()
        execution.set(stop=1)
        assert {"a": 1, "stop": 1} == execution.values
        execution.unset("stop")
        assert Counter(b=1) == execution.run_all()

    def test_any_of_two_is_enough_and_the_other_is_taken_in_when_it_comes(self) -> None:
        execution = graph_of("a", "b", c=(or_("a", "b"), total))
        execution.set(a=1)
        assert Counter(c=1) == execution.run_all()
        execution.set(b=1)
        assert Counter(c=1) == execution.run_all()
        assert evaluate(execution.graph, {"a": 1, "b": 1}) == execution.values


class TestAttempts:
    def test_one_with_old_inputs_is_called_off_and_another_is_opened(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.claim("b")
        state = execution.set(a=2)
        assert {1: (AttemptState.CANCELLED, AttemptEndCause.SUPERSEDED)} == execution.ended
        assert state.cancels_running
        assert ('{"a":2}', FREE) == (
            execution.open["b"].computed_with,
            execution.open["b"].lease_state,
        )

    def test_one_that_nobody_has_taken_is_called_off_without_a_word(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        assert not execution.set(a=2).cancels_running

    def test_one_behind_a_closed_gate_is_called_off(self) -> None:
        execution = graph_of("a", b=(when("a", even), total))
        execution.set(a=2)
        execution.set(a=3)
        assert ({1: (AttemptState.CANCELLED, AttemptEndCause.GATE)}, {}) == (
            execution.ended,
            execution.open,
        )

    def test_one_of_another_node_goes_on(self) -> None:
        execution = graph_of("a", "x", b="a", y="x")
        execution.set(a=1, x=1)
        before = execution.open["y"]
        execution.set(a=2)
        assert before == execution.open["y"]

    def test_all_are_called_off_when_the_execution_is(self) -> None:
        execution = graph_of("a", b="a", c="a")
        execution.set(a=1)
        execution.claim("b")
        execution.cancelled = True
        execution.change()
        assert [(AttemptState.CANCELLED, AttemptEndCause.EXECUTION)] * 2 == list(
            execution.ended.values()
        )
        assert {} == execution.open

    def test_a_failure_is_tried_again_after_its_delay_and_then_given_up(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        for number in (1, 2, 3):
            assert number == execution.open["b"].number
            execution.fail("b", delay=5.0 * number)
        assert {} == execution.open
        assert [0.0, 5.0, 10.0] == list(execution.delays.values())
        assert [(AttemptState.FAILED, AttemptEndCause.RAISED)] * 3 == list(execution.ended.values())
        assert (True, 3, "broken") == (
            execution.nodes["b"].failed,
            execution.nodes["b"].failed_attempts,
            execution.nodes["b"].error,
        )

    @pytest.mark.parametrize(
        "cause",
        [
            AttemptEndCause.DEADLINE,
            AttemptEndCause.HEARTBEAT,
            AttemptEndCause.STALLED,
            AttemptEndCause.MEMORY,
            AttemptEndCause.KILLED,
            AttemptEndCause.ASKED,
        ],
    )
    def test_what_was_abandoned_spends_the_same_budget(self, cause: AttemptEndCause) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b")
        execution.fail("b", cause)
        assert (AttemptState.ABANDONED, cause) == execution.ended[2]
        execution.fail("b", cause)
        assert ({}, 3) == (execution.open, execution.nodes["b"].failed_attempts)

    @pytest.mark.parametrize(
        ("cause", "budget", "reason"),
        [
            (AttemptEndCause.CRASH, 3, GiveUpReason.POISON),
            (AttemptEndCause.LOST, 5, GiveUpReason.LOST),
        ],
    )
    def test_crashes_and_losses_have_budgets_of_their_own(
        self, cause: AttemptEndCause, budget: int, reason: GiveUpReason
    ) -> None:
        """Every attempt raises the number; a failure in between changes neither count."""
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b")
        for spent in range(budget):
            assert (spent + 2, None) == (
                execution.open["b"].number,
                execution.nodes["b"].give_up_reason,
            )
            execution.fail("b", cause)
            assert (AttemptState.ABANDONED, cause) == execution.ended[spent + 2]
        stored = execution.nodes["b"]
        assert ({}, reason, f"{reason}: broken") == (
            execution.open,
            stored.give_up_reason,
            stored.error,
        )
        assert (1, budget) == (stored.failed_attempts, stored.crashes + stored.lost)

    def test_the_first_crash_is_not_final_though_one_attempt_is_allowed(self) -> None:
        nodes = [input("a"), compute("b", "a", total, max_attempts=1)]
        execution = FakeExecution(Graph("g", version="1", nodes=nodes))
        execution.set(a=1)
        execution.fail("b", AttemptEndCause.CRASH)
        assert 2 == execution.open["b"].number
        execution.fail("b")
        assert ({}, GiveUpReason.FAILED) == (execution.open, execution.nodes["b"].give_up_reason)

    def test_new_inputs_clear_crashes_losses_and_the_traceback(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b", traceback="line 1\0")
        execution.fail("b", AttemptEndCause.CRASH)
        execution.fail("b", AttemptEndCause.LOST)
        assert "line 1\\x00" == execution.nodes["b"].traceback
        execution.set(a=2)
        execution.fail("b")
        stored = execution.nodes["b"]
        assert (1, 0, 0, None) == (
            stored.failed_attempts,
            stored.crashes,
            stored.lost,
            stored.traceback,
        )

    def test_a_permanent_error_is_the_end_at_once(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b", AttemptEndCause.PERMANENT)
        assert ({}, True, 1) == (
            execution.open,
            execution.nodes["b"].failed,
            execution.nodes["b"].failed_attempts,
        )

    def test_nothing_brings_a_node_back_that_was_given_up_but_new_inputs(self) -> None:
        execution = graph_of("a", "x", b="a", y="x")
        execution.set(a=1, x=1)
        execution.fail("b", AttemptEndCause.PERMANENT)
        execution.set(x=2)
        assert {"y"} == set(execution.open)
        execution.set(a=2)
        assert 1 == execution.open["b"].number
        execution.fail("b")
        execution.fail("b")
        assert 3 == execution.open["b"].number

    def test_a_success_makes_the_budget_whole(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b")
        execution.run("b")
        stored = execution.nodes["b"]
        assert (0, False, None) == (stored.failed_attempts, stored.failed, stored.error)

    def test_inputs_that_changed_and_changed_back_are_new(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b", AttemptEndCause.PERMANENT)
        execution.set(a=2)
        execution.set(a=1)
        assert 1 == execution.open["b"].number

    def test_a_node_is_not_given_up_any_more_once_its_gate_is_closed(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b", AttemptEndCause.PERMANENT)
        execution.unset("a")
        assert not execution.nodes["b"].failed

    def test_what_comes_after_a_node_that_was_given_up_keeps_its_value(self) -> None:
        execution = graph_of("a", b="a", c="b")
        execution.set(a=1)
        execution.run_all()
        before = execution.values
        execution.set(a=2)
        execution.fail("b", AttemptEndCause.PERMANENT)
        assert {**before, "a": 2} == execution.values
        assert {} == execution.open

    def test_a_late_error_is_kept_short(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b", error="x" * 100_000 + "\x00")
        error = execution.nodes["b"].error
        assert error is not None
        assert len(error) <= 4000
        assert "\x00" not in error


class TestNoMixture:
    """A node is never computed from an old value of one node and a new one of another."""

    def test_of_two_ways_to_a_node_both_are_waited_for(self) -> None:
        execution = graph_of("a", b="a", c="a", d=["b", "c"])
        execution.set(a=1)
        execution.run_all()
        execution.set(a=2)
        execution.run("b")
        assert {"c"} == set(execution.open)
        execution.run("c")
        assert {"d"} == set(execution.open)

    def test_the_short_way_waits_for_the_long_one(self) -> None:
        execution = graph_of("a", b="a", c="b", d=["a", "c"])
        execution.set(a=1)
        execution.run_all()
        execution.set(a=2)
        assert {"b"} == set(execution.open)
        assert Counter(b=1, c=1, d=1) == execution.run_all()

    def test_a_retry_is_not_opened_with_inputs_that_have_changed_in_the_same_transaction(
        self,
    ) -> None:
        execution = graph_of("a", b="a", c="a", d=["b", "c"])
        execution.set(a=1)
        execution.run("b", "c")
        execution.claim("d")
        execution.set(a=2)
        execution.claim("b")
        b, d = execution.open["b"], execution.open["d"]
        execution.change(
            lambda state: state.succeed(b, "99"),
            lambda state: state.fail(d, AttemptEndCause.RAISED),
        )
        assert {"c"} == set(execution.open)

    def test_a_retry_is_opened_with_the_inputs_that_have_changed_in_the_same_transaction(
        self,
    ) -> None:
        execution = graph_of("a", b="a", d=["b"])
        execution.set(a=1)
        execution.run("b")
        execution.claim("d")
        execution.set(a=2)
        execution.claim("b")
        b, d = execution.open["b"], execution.open["d"]
        execution.change(
            lambda state: state.succeed(b, "99"),
            lambda state: state.fail(d, AttemptEndCause.RAISED, delay=60.0),
        )
        opened = execution.open["d"]
        assert ('{"b":' + str(execution.nodes["b"].revision) + "}", 1, 0.0) == (
            opened.computed_with,
            opened.number,
            execution.delays[opened.seq],
        )


CONJUNCTIONS = ("needs", "when", "both")
GATES = (*CONJUNCTIONS, "any", "not")


def gate_for(kind: str, above: list[str]) -> Gate:
    """A gate over exactly these."""
    first, *rest = above
    if kind == "when":
        return and_(when(first, even), *rest)
    if kind == "any":
        return or_(when(first, even), *rest)
    if kind == "not" and rest:
        return and_(first, *(not_(when(name, even)) for name in rest))
    return and_(*above)


@st.composite
def graphs(draw: st.DrawFn, kinds: tuple[str, ...] = GATES) -> Graph:
    inputs = [f"i{n}" for n in range(draw(st.integers(1, 3)))]
    nodes, names = [input(name) for name in inputs], list(inputs)
    for number in range(draw(st.integers(1, 6))):
        above = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        gate = gate_for(draw(st.sampled_from(kinds)), above)
        nodes.append(
            compute(f"n{number}", gate, draw(st.sampled_from([total, parity])), max_attempts=2)
        )
        names.append(f"n{number}")
    return Graph("g", version="1", nodes=nodes)


def changes(graph: Graph) -> st.SearchStrategy[dict[str, int | None]]:
    """Values to be set."""
    inputs = [node.name for node in graph.nodes.values() if node.is_input]
    return st.dictionaries(
        st.sampled_from(inputs), st.one_of(st.none(), st.integers(0, 3)), min_size=1
    )


@given(graphs(CONJUNCTIONS), st.data())
def test_a_change_computes_exactly_what_depends_on_it_once_each(
    graph: Graph, data: st.DataObject
) -> None:
    execution = FakeExecution(graph)
    inputs: Values = {}
    for _ in range(4):
        before = execution.values
        change = data.draw(changes(graph))
        execution.set(change)
        inputs.update(change)
        ran = execution.run_all()
        after = evaluate(graph, inputs)
        assert after == execution.values
        expected = {
            node.name: 1
            for node in graph.computed_nodes
            if node.name in after
            and (
                node.name not in before
                or any(before.get(up, "") != after.get(up, "") for up in node.upstream)
            )
        }
        assert expected == dict(ran)


class Executions(RuleBasedStateMachine):
    """Random changes while attempts are under way, succeed and fail, on random graphs."""

    kinds: tuple[str, ...] = GATES

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.execution = FakeExecution(data.draw(graphs(self.kinds)))
        self.inputs: Values = {}
        self.history: list[Values] = [{}]

    def note(self) -> None:
        self.history.append(evaluate(self.execution.graph, self.inputs))

    @rule(data=st.data())
    def set(self, data: st.DataObject) -> None:
        change = data.draw(changes(self.execution.graph))
        before = self.execution.revision
        same = all(
            name in self.inputs and self.inputs[name] == value for name, value in change.items()
        )
        self.execution.set(change)
        self.inputs.update(change)
        self.note()
        assert before + (not same) == self.execution.revision

    @rule(data=st.data())
    def unset(self, data: st.DataObject) -> None:
        names = [node.name for node in self.execution.graph.nodes.values() if node.is_input]
        name = data.draw(st.sampled_from(names))
        self.execution.unset(name)
        self.inputs.pop(name, None)
        self.note()

    @precondition(
        lambda self: any(attempt.lease_state != LEASED for attempt in self.execution.open.values())
    )
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        free = sorted(
            node for node, attempt in self.execution.open.items() if attempt.lease_state != LEASED
        )
        self.seen(self.execution.claim(data.draw(st.sampled_from(free))))

    def seen(self, captured: Values) -> None:
        """What a node is computed from."""

    @precondition(lambda self: self.execution.claimed)
    @rule(data=st.data())
    def conclude(self, data: st.DataObject) -> None:
        """Several in one transaction: some succeed, some raise."""
        taken = sorted(
            node for node, attempt in self.execution.open.items() if attempt.lease_state == LEASED
        )
        chosen = data.draw(st.lists(st.sampled_from(taken), min_size=1, max_size=3, unique=True))
        works = [self.ending(node, fails=data.draw(st.booleans())) for node in chosen]
        self.execution.change(*works)

    def ending(self, node: str, *, fails: bool) -> Callable[[ExecutionState], None]:
        attempt = self.execution.open[node]
        if fails:
            return lambda state: state.fail(attempt, AttemptEndCause.RAISED)
        result = json.dumps(self.execution._function(node)(self.execution.claimed[attempt.seq]))
        return lambda state: state.succeed(attempt, result)

    @rule()
    def come_to_rest(self) -> None:
        """Whatever was given up is tried again; then everything is as if it had been computed
        directly.
        """
        self.execution.run_all()
        while given_up := [name for name, stored in self.execution.nodes.items() if stored.failed]:
            for name in given_up:
                self.execution.nodes[name].reset_attempts(None)
            self.execution.change()
            self.execution.run_all()
        assert evaluate(self.execution.graph, self.inputs) == self.execution.values

    @invariant()
    def what_is_open_is_of_the_present_inputs(self) -> None:
        state = self.execution.load()
        for node, attempt in self.execution.open.items():
            now = {
                name: state.revision_of(name) for name in self.execution.graph.nodes[node].upstream
            }
            assert now == msgspec.json.decode(attempt.computed_with)

    @invariant()
    def attempts_are_within_their_budget(self) -> None:
        assert all(1 <= attempt.number <= 2 for attempt in self.execution.open.values())

    @invariant()
    def advancing_again_changes_nothing(self) -> None:
        assert not self.execution.change().has_changes

    @invariant()
    def what_is_up_with_each_node_agrees_with_what_is_open(self) -> None:
        up = node_statuses(self.execution.graph, self.execution.load())
        assert "due" not in {str(each) for each in up.values()}


class ExecutionsWithoutMixture(Executions):
    """With gates that need all of their nodes, whatever a node is computed from was all true at
    the same time, once.
    """

    kinds = CONJUNCTIONS

    def seen(self, captured: Values) -> None:
        assert any(
            all(name in then and then[name] == value for name, value in captured.items())
            for then in self.history
        )


Executions.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
ExecutionsWithoutMixture.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestExecutions = Executions.TestCase
TestExecutionsWithoutMixture = ExecutionsWithoutMixture.TestCase


class TestProgress:
    """What a propagation leaves for sweeps and lists."""

    def test_of_an_execution_with_nothing_left_to_compute_is_done(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        assert Progress(1, 0, ExecutionStatus.ACTIVE) == execution.progress
        execution.run_all()
        assert Progress(1, 1, ExecutionStatus.DONE) == execution.progress

    def test_of_one_that_lacks_an_input_is_settled_and_not_done(self) -> None:
        execution = graph_of("a", "approved", b="a", c=["b", "approved"])
        execution.set(a=1)
        execution.run_all()
        assert Progress(2, 2, ExecutionStatus.IDLE) == execution.progress
        execution.set(approved=True)
        execution.run_all()
        assert ExecutionStatus.DONE is execution.progress.status

    def test_of_one_with_a_branch_that_was_not_taken_is_done(self) -> None:
        execution = graph_of(
            "a", b=when("a", lambda a: a > 1), c="b", d=when("a", lambda a: a <= 1)
        )
        execution.set(a=1)
        execution.run_all()
        assert {"a", "d"} == set(execution.values)
        assert ExecutionStatus.DONE is execution.progress.status

    def test_of_one_whose_gate_raises_is_not_done(self) -> None:
        execution = graph_of("a", b=when("a", lambda a: a["missing"]))
        execution.set(a=1)
        assert Progress(1, 1, ExecutionStatus.IDLE) == execution.progress

    def test_of_one_with_a_node_that_was_given_up_is_settled_and_not_done(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b", AttemptEndCause.PERMANENT)
        assert Progress(1, 1, ExecutionStatus.FAILED) == execution.progress
