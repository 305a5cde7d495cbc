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
from longwatch.flow.advancing import advance
from longwatch.flow.explaining import survey
from longwatch.flow.gates import Gate
from longwatch.flow.standing import LEASED, Attempt, Cause, Standing, State, Stored

FREE = 0
Values = dict[str, Any]


@dataclass
class World:
    """One execution as a store keeps it: transactions load a Standing, and write back what it
    says.
    """

    graph: Graph
    nodes: dict[str, Stored] = field(default_factory=dict)
    open: dict[str, Attempt] = field(default_factory=dict)
    over: dict[int, tuple[State, Cause]] = field(default_factory=dict)
    delays: dict[int, float] = field(default_factory=dict)
    revision: int = 0
    cancelled: bool = False
    runs: Counter[str] = field(default_factory=Counter)
    taken: dict[int, Values] = field(default_factory=dict)
    seq: int = 0

    def loaded(self) -> Standing:
        standing = Standing(1, "e", revision=self.revision, cancelled=self.cancelled)
        standing.nodes = {name: replace(stored) for name, stored in self.nodes.items()}
        standing.open = dict(self.open)
        return standing

    def change(self, *works: Callable[[Standing], None]) -> Standing:
        """One transaction."""
        standing = self.loaded()
        for work in works:
            work(standing)
        advance(self.graph, standing, dict.fromkeys(self.graph.nodes, 7))
        self._save(standing)
        return standing

    def _save(self, standing: Standing) -> None:
        self.revision = standing.revision
        for name in standing.changed:
            self.nodes[name] = standing.nodes[name]
        for closing in standing.closings:
            [node] = [name for name, attempt in self.open.items() if attempt.seq == closing.seq]
            del self.open[node]
            self.taken.pop(closing.seq, None)
            self.over[closing.seq] = closing.state, closing.cause
        for node, opening in standing.openings.items():
            assert node not in self.open, f"two attempts of {node} are open"
            self.seq += 1
            self.delays[self.seq] = opening.delay
            self.open[node] = Attempt(
                self.seq, node, FREE, opening.computed_with, opening.number, opening.terms
            )

    # --- what users do ---

    def set(self, values: Mapping[str, Any] | None = None, **named: Any) -> Standing:
        given = {**(values or {}), **named}
        return self.change(
            *(partial(_put, name, json.dumps(value)) for name, value in given.items())
        )

    def unset(self, *names: str) -> Standing:
        return self.change(*(partial(_unset, name) for name in names))

    # --- what workers do ---

    def take(self, node: str) -> Values:
        """Claim it: its inputs are read from the store, as they are then."""
        self.open[node] = self.open[node]._replace(held=LEASED)
        upstream = msgspec.json.decode(self.open[node].computed_with)
        captured = {name: value for name, value in self.values.items() if name in upstream}
        self.taken[self.open[node].seq] = captured
        self.runs[node] += 1
        return captured

    def finish(self, *nodes: str) -> Standing:
        """Their results, in one transaction."""

        def conclude(standing: Standing) -> None:
            for node in nodes:
                attempt = self.open[node]
                standing.succeed(attempt, json.dumps(self._function(node)(self.taken[attempt.seq])))

        return self.change(conclude)

    def fail(
        self, node: str, cause: Cause = Cause.RAISED, *, error: str = "broken", delay: float = 0.0
    ) -> Standing:
        return self.change(
            lambda standing: standing.end(self.open[node], cause, error=error, delay=delay)
        )

    def run(self, *nodes: str) -> None:
        for node in nodes:
            self.take(node)
            self.finish(node)

    def run_all(self) -> Counter[str]:
        """Compute whatever is ready until nothing is; how often each node was."""
        self.runs.clear()
        while self.open:
            node = next(iter(self.open))
            if self.open[node].held != LEASED:
                self.take(node)
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


def _put(node: str, value: str, standing: Standing) -> None:
    standing.put(node, value)


def _unset(node: str, standing: Standing) -> None:
    standing.unset(node)


class Plain:
    """A view over plain values."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def is_set(self, node: str) -> bool:
        return node in self._values

    def value(self, node: str) -> Any:
        return self._values[node]


def evaluated(graph: Graph, inputs: Values) -> Values:
    """The graph, evaluated directly."""
    values = dict(inputs)
    for node in graph.order:
        if node.gate.met(Plain(values)):
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


def made(*nodes: Any, **computed: Any) -> World:
    """A graph of inputs by name, and of what is computed from them: after=, or (after,
    function).
    """
    listed = [input(name) for name in nodes]
    for name, after in computed.items():
        function = total
        if isinstance(after, tuple):
            after, function = after  # noqa: PLW2901 - the same thing said at length
        listed.append(compute(name, after, function, max_attempts=3))
    return World(Graph("g", version="1", nodes=listed))


class TestChanges:
    def test_a_change_is_computed_through(self) -> None:
        world = made("a", b="a", c="b")
        world.set(a=1)
        assert Counter(b=1, c=1) == world.run_all()
        assert evaluated(world.graph, {"a": 1}) == world.values

    def test_several_inputs_set_together_are_one_revision(self) -> None:
        world = made("a", "b", c=["a", "b"])
        world.set(a=1, b=2)
        assert [1, 1, 1] == [world.revision, world.nodes["a"].revision, world.nodes["b"].revision]
        assert Counter(c=1) == world.run_all()

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
        world = made("a", b="a")
        world.set(a=old)
        standing = world.set(a=new)
        assert not standing.is_touched
        assert 1 == world.revision

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
        world = made("a", b="a")
        world.set(a=old)
        world.set(a=new)
        assert 2 == world.revision

    def test_none_is_a_value(self) -> None:
        world = made("a", b=("a", lambda a: a), c="b")
        world.set(a=None)
        world.run_all()
        assert {"a": None, "b": None, "c": evaluated(world.graph, {"a": None})["c"]} == world.values
        assert {} == world.run_all()

    def test_an_unchanged_result_stops_the_wave(self) -> None:
        world = made("a", b=("a", parity), c="b", d="c")
        world.set(a=1)
        world.run_all()
        before = world.revision, world.nodes["b"].revision
        world.set(a=3)
        assert Counter(b=1) == world.run_all()
        assert (before[0] + 1, before[1]) == (world.revision, world.nodes["b"].revision)

    def test_unsetting_cascades_in_one_revision(self) -> None:
        world = made("a", "x", b="a", c="b", d="x")
        world.set(a=1, x=1)
        world.run_all()
        before = world.revision
        world.unset("a")
        assert before + 1 == world.revision
        assert {"x", "d"} == set(world.values)
        assert {} == world.run_all()

    def test_what_was_unset_is_computed_again_when_it_is_back(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.run_all()
        world.unset("a")
        world.set(a=1)
        assert Counter(b=1) == world.run_all()
        assert evaluated(world.graph, {"a": 1}) == world.values

    def test_unsetting_what_is_not_set_is_nothing(self) -> None:
        world = made("a", b="a")
        assert not world.unset("a").is_touched

    def test_a_false_gate_clears_what_is_behind_it(self) -> None:
        world = made("a", b=(when("a", even), total), c="b")
        world.set(a=2)
        world.run_all()
        world.set(a=3)
        assert {"a": 3} == world.values
        world.set(a=4)
        world.run_all()
        assert evaluated(world.graph, {"a": 4}) == world.values

    def test_a_node_may_wait_for_another_not_to_be_set(self) -> None:
        world = made("a", "stop", b=(["a", not_("stop")], total))
        world.set(a=1)
        assert Counter(b=1) == world.run_all()
        world.set(stop=1)
        assert {"a": 1, "stop": 1} == world.values
        world.unset("stop")
        assert Counter(b=1) == world.run_all()

    def test_any_of_two_is_enough_and_the_other_is_taken_in_when_it_comes(self) -> None:
        world = made("a", "b", c=(or_("a", "b"), total))
        world.set(a=1)
        assert Counter(c=1) == world.run_all()
        world.set(b=1)
        assert Counter(c=1) == world.run_all()
        assert evaluated(world.graph, {"a": 1, "b": 1}) == world.values


class TestAttempts:
    def test_one_with_old_inputs_is_called_off_and_another_is_opened(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.take("b")
        standing = world.set(a=2)
        assert {1: (State.CANCELLED, Cause.SUPERSEDED)} == world.over
        assert standing.calls_off_running
        assert ('{"a":2}', FREE) == (world.open["b"].computed_with, world.open["b"].held)

    def test_one_that_nobody_has_taken_is_called_off_without_a_word(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        assert not world.set(a=2).calls_off_running

    def test_one_behind_a_closed_gate_is_called_off(self) -> None:
        world = made("a", b=(when("a", even), total))
        world.set(a=2)
        world.set(a=3)
        assert ({1: (State.CANCELLED, Cause.GATE)}, {}) == (world.over, world.open)

    def test_one_of_another_node_goes_on(self) -> None:
        world = made("a", "x", b="a", y="x")
        world.set(a=1, x=1)
        before = world.open["y"]
        world.set(a=2)
        assert before == world.open["y"]

    def test_all_are_called_off_when_the_execution_is(self) -> None:
        world = made("a", b="a", c="a")
        world.set(a=1)
        world.take("b")
        world.cancelled = True
        world.change()
        assert [(State.CANCELLED, Cause.EXECUTION)] * 2 == list(world.over.values())
        assert {} == world.open

    def test_a_failure_is_tried_again_after_its_delay_and_then_given_up(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        for number in (1, 2, 3):
            assert number == world.open["b"].number
            world.fail("b", delay=5.0 * number)
        assert {} == world.open
        assert [0.0, 5.0, 10.0] == list(world.delays.values())
        assert [(State.FAILED, Cause.RAISED)] * 3 == list(world.over.values())
        assert (True, 3, "broken") == (
            world.nodes["b"].failed,
            world.nodes["b"].spent,
            world.nodes["b"].error,
        )

    @pytest.mark.parametrize(
        "cause",
        [
            Cause.DEADLINE,
            Cause.HEARTBEAT,
            Cause.CRASH,
            Cause.STALLED,
            Cause.MEMORY,
            Cause.KILLED,
            Cause.ASKED,
        ],
    )
    def test_what_was_abandoned_spends_the_same_budget(self, cause: Cause) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.fail("b")
        world.fail("b", cause)
        assert (State.ABANDONED, cause) == world.over[2]
        world.fail("b", cause)
        assert {} == world.open
        assert cause is not Cause.CRASH or 2 == world.nodes["b"].crashes

    def test_a_permanent_error_is_the_end_at_once(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.fail("b", Cause.PERMANENT)
        assert ({}, True, 1) == (world.open, world.nodes["b"].failed, world.nodes["b"].spent)

    def test_nothing_brings_a_node_back_that_was_given_up_but_new_inputs(self) -> None:
        world = made("a", "x", b="a", y="x")
        world.set(a=1, x=1)
        world.fail("b", Cause.PERMANENT)
        world.set(x=2)
        assert {"y"} == set(world.open)
        world.set(a=2)
        assert 1 == world.open["b"].number
        world.fail("b")
        world.fail("b")
        assert 3 == world.open["b"].number

    def test_a_success_makes_the_budget_whole(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.fail("b")
        world.run("b")
        stored = world.nodes["b"]
        assert (0, False, None) == (stored.spent, stored.failed, stored.error)

    def test_inputs_that_changed_and_changed_back_are_new(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.fail("b", Cause.PERMANENT)
        world.set(a=2)
        world.set(a=1)
        assert 1 == world.open["b"].number

    def test_a_node_is_not_given_up_any_more_once_its_gate_is_closed(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.fail("b", Cause.PERMANENT)
        world.unset("a")
        assert not world.nodes["b"].failed

    def test_what_comes_after_a_node_that_was_given_up_keeps_its_value(self) -> None:
        world = made("a", b="a", c="b")
        world.set(a=1)
        world.run_all()
        before = world.values
        world.set(a=2)
        world.fail("b", Cause.PERMANENT)
        assert {**before, "a": 2} == world.values
        assert {} == world.open

    def test_a_late_error_is_kept_short(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.fail("b", error="x" * 100_000 + "\x00")
        error = world.nodes["b"].error
        assert error is not None
        assert len(error) <= 4000
        assert "\x00" not in error


class TestNoMixture:
    """A node is never computed from an old value of one node and a new one of another."""

    def test_of_two_ways_to_a_node_both_are_waited_for(self) -> None:
        world = made("a", b="a", c="a", d=["b", "c"])
        world.set(a=1)
        world.run_all()
        world.set(a=2)
        world.run("b")
        assert {"c"} == set(world.open)
        world.run("c")
        assert {"d"} == set(world.open)

    def test_the_short_way_waits_for_the_long_one(self) -> None:
        world = made("a", b="a", c="b", d=["a", "c"])
        world.set(a=1)
        world.run_all()
        world.set(a=2)
        assert {"b"} == set(world.open)
        assert Counter(b=1, c=1, d=1) == world.run_all()

    def test_a_retry_is_not_opened_with_inputs_that_have_changed_in_the_same_transaction(
        self,
    ) -> None:
        world = made("a", b="a", c="a", d=["b", "c"])
        world.set(a=1)
        world.run("b", "c")
        world.take("d")
        world.set(a=2)
        world.take("b")
        b, d = world.open["b"], world.open["d"]
        world.change(
            lambda standing: standing.succeed(b, "99"),
            lambda standing: standing.end(d, Cause.RAISED),
        )
        assert {"c"} == set(world.open)

    def test_a_retry_is_opened_with_the_inputs_that_have_changed_in_the_same_transaction(
        self,
    ) -> None:
        world = made("a", b="a", d=["b"])
        world.set(a=1)
        world.run("b")
        world.take("d")
        world.set(a=2)
        world.take("b")
        b, d = world.open["b"], world.open["d"]
        world.change(
            lambda standing: standing.succeed(b, "99"),
            lambda standing: standing.end(d, Cause.RAISED, delay=60.0),
        )
        opened = world.open["d"]
        assert ('{"b":' + str(world.nodes["b"].revision) + "}", 1, 0.0) == (
            opened.computed_with,
            opened.number,
            world.delays[opened.seq],
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
    world = World(graph)
    inputs: Values = {}
    for _ in range(4):
        before = world.values
        change = data.draw(changes(graph))
        world.set(change)
        inputs.update(change)
        ran = world.run_all()
        after = evaluated(graph, inputs)
        assert after == world.values
        expected = {
            node.name: 1
            for node in graph.order
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
        self.world = World(data.draw(graphs(self.kinds)))
        self.inputs: Values = {}
        self.history: list[Values] = [{}]

    def note(self) -> None:
        self.history.append(evaluated(self.world.graph, self.inputs))

    @rule(data=st.data())
    def set(self, data: st.DataObject) -> None:
        change = data.draw(changes(self.world.graph))
        before = self.world.revision
        same = all(
            name in self.inputs and self.inputs[name] == value for name, value in change.items()
        )
        self.world.set(change)
        self.inputs.update(change)
        self.note()
        assert before + (not same) == self.world.revision

    @rule(data=st.data())
    def unset(self, data: st.DataObject) -> None:
        names = [node.name for node in self.world.graph.nodes.values() if node.is_input]
        name = data.draw(st.sampled_from(names))
        self.world.unset(name)
        self.inputs.pop(name, None)
        self.note()

    @precondition(lambda self: any(attempt.held != LEASED for attempt in self.world.open.values()))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        free = sorted(node for node, attempt in self.world.open.items() if attempt.held != LEASED)
        self.seen(self.world.take(data.draw(st.sampled_from(free))))

    def seen(self, captured: Values) -> None:
        """What a node is computed from."""

    @precondition(lambda self: self.world.taken)
    @rule(data=st.data())
    def conclude(self, data: st.DataObject) -> None:
        """Several in one transaction: some succeed, some raise."""
        taken = sorted(node for node, attempt in self.world.open.items() if attempt.held == LEASED)
        chosen = data.draw(st.lists(st.sampled_from(taken), min_size=1, max_size=3, unique=True))
        works = [self.ending(node, fails=data.draw(st.booleans())) for node in chosen]
        self.world.change(*works)

    def ending(self, node: str, *, fails: bool) -> Callable[[Standing], None]:
        attempt = self.world.open[node]
        if fails:
            return lambda standing: standing.end(attempt, Cause.RAISED)
        result = json.dumps(self.world._function(node)(self.world.taken[attempt.seq]))
        return lambda standing: standing.succeed(attempt, result)

    @rule()
    def come_to_rest(self) -> None:
        """Whatever was given up is tried again; then everything is as if it had been computed
        directly.
        """
        self.world.run_all()
        while given_up := [name for name, stored in self.world.nodes.items() if stored.failed]:
            for name in given_up:
                self.world.nodes[name].start_over(None)
            self.world.change()
            self.world.run_all()
        assert evaluated(self.world.graph, self.inputs) == self.world.values

    @invariant()
    def what_is_open_is_of_the_present_inputs(self) -> None:
        standing = self.world.loaded()
        for node, attempt in self.world.open.items():
            now = {
                name: standing.revision_of(name) for name in self.world.graph.nodes[node].upstream
            }
            assert now == msgspec.json.decode(attempt.computed_with)

    @invariant()
    def attempts_are_within_their_budget(self) -> None:
        assert all(1 <= attempt.number <= 2 for attempt in self.world.open.values())

    @invariant()
    def advancing_again_changes_nothing(self) -> None:
        assert not self.world.change().is_touched

    @invariant()
    def what_is_up_with_each_node_agrees_with_what_is_open(self) -> None:
        up = survey(self.world.graph, self.world.loaded())
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
