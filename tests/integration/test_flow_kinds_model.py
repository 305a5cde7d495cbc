"""Random graphs of all kinds of nodes under random requests, crashes and failures: at rest, every
value is what a plain evaluation of the present inputs gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flow_rig import KINDS
from flow_stores import opened_store
from longwatch.core.backoff import BackoffPolicy
from longwatch.errors import UsageError
from longwatch.flow import (
    Execution,
    Graph,
    SavedValue,
    archive,
    compute,
    historian,
    input,  # noqa: A004 - the contract's word
    map,  # noqa: A004 - the contract's word
    mutate,
    not_,
    or_,
    tick_once,
    tick_recurring,
    when,
)
from longwatch.flow.gates import GateLike
from longwatch.flow.nodes import Node, NodeKind
from longwatch.flow.schedules import MIN_SPACING
from longwatch.store.database import Database
from longwatch.testing import GraphRun, Step, run_graph

SETTLE_SECONDS = 1200.0
"""Longer than a missed heartbeat and all delays of a graph, one after the other."""
OPTIONS: dict[str, Any] = {"retry": BackoffPolicy(initial=1.0, cap=1.0)}
OBSERVED = {NodeKind.HISTORIAN, NodeKind.ARCHIVE, NodeKind.TICK_ONCE, NodeKind.TICK_RECURRING}
"""Nodes whose values depend on time or on the past."""
SPENDING_STEPS = {Step.BEGUN, Step.RENEWED, Step.COMPUTED}

Values = dict[str, Any]


@dataclass
class Faults:
    """The calls of functions that are going to raise."""

    left: int = 0
    raised: int = 0

    def maybe_raise(self) -> None:
        if self.left:
            self.left, self.raised = self.left - 1, self.raised + 1
            raise OSError("broken")


FAULTS = Faults()


# --- functions of nodes ---


def number(value: Any) -> int:
    if isinstance(value, list):
        return len(value)
    return int(value) % 1000 if isinstance(value, int | float) else 0


def is_even(value: Any) -> bool:
    return number(value) % 2 == 0


def weigh(values: Values) -> int:
    return sum(
        index * (number(value) + 1) for index, (_, value) in enumerate(sorted(values.items()), 2)
    )


def weighed(**values: Any) -> int:
    FAULTS.maybe_raise()
    return weigh(values)


def listed(**values: Any) -> list[int | None]:
    FAULTS.maybe_raise()
    return [None, 1, 1, weigh(values)][: weigh(values) % 5]


def weighed_element(element: Any, **values: Any) -> int:
    FAULTS.maybe_raise()
    return 10 * number(element) + weigh(values)


def in_half_a_minute() -> float:
    FAULTS.maybe_raise()
    return 30.0


# --- graphs ---


DRAFT_KINDS = ("map", "again", "mutate", "compute", "list", "wait", "ask", "log", "map", "archive")


class GraphDraft:
    """A graph while its nodes are drawn."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.nodes: list[Node] = [*map_names(input, ["items", "b", "c", "close", "noted"])]
        self.lists = ["items"]
        self.sources = ["items", "b", "c"]

    def add_node(self, kind: str) -> None:
        name = f"n{len(self.nodes)}"
        self.nodes.append(self._make(kind, name))
        self.sources += [name] if kind != "archive" else []
        self.lists += [name] if kind in {"list", "map"} else []
        if kind == "mutate" and "with a new revision" in self.nodes[-1].definition:
            self.sources.append("noted")

    def _make(self, kind: str, name: str) -> Node:
        if kind in {"compute", "list"}:
            return compute(name, self._gate(), weighed if kind == "compute" else listed, **OPTIONS)
        if kind == "map":
            over, after = self.draw(st.sampled_from(self.lists)), self._names(0)
            in_flight = self.draw(st.sampled_from([1, 2, 1000]))
            return map(name, over, weighed_element, after, max_in_flight=in_flight, **OPTIONS)
        if kind == "mutate":
            is_new, gate = self.draw(st.booleans()), self._gate()
            return mutate(name, gate, weighed, writes="noted", new_revision=is_new, **OPTIONS)
        if kind == "log":
            return historian(name, self._names(1), max_entries=1000)
        return archive(name, [when("close", bool)]) if kind == "archive" else self._tick(kind, name)

    def _tick(self, kind: str, name: str) -> Node:
        if kind == "wait":
            return tick_once(name, self._gate(), delay=self.draw(st.sampled_from([0, 30, 100])))
        if kind == "ask":
            return tick_once(name, self._gate(), in_half_a_minute, **OPTIONS)
        return tick_recurring(name, self._names(0), every=self.draw(st.sampled_from([60, 300])))

    def _names(self, least: int) -> list[str]:
        names = st.sampled_from(self.sources)
        return self.draw(st.lists(names, min_size=least, max_size=2, unique=True))

    def _gate(self) -> list[GateLike]:
        first, *others = self._names(1)
        shape = self.draw(st.sampled_from(["plain", "even", "without", "either"]))
        if shape == "even":
            return [when(first, is_even), *others]
        if shape == "without":
            return [not_(first), "b", *others]
        return [or_(first, *others, "c")] if shape == "either" else [first, *others]


def map_names(make: Any, names: list[str]) -> Iterator[Node]:
    return (make(name) for name in names)


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    draft = GraphDraft(draw)
    for kind in draw(st.permutations(DRAFT_KINDS))[: draw(st.integers(4, len(DRAFT_KINDS)))]:
        draft.add_node(kind)
    return draft.nodes


# --- requests ---

SMALL = st.none() | st.integers(0, 3)
INPUT_VALUES = {
    "items": st.lists(SMALL, max_size=4),
    "b": SMALL,
    "c": SMALL,
    "close": st.booleans(),
}
REQUESTS = st.one_of(
    st.tuples(st.just("set"), st.fixed_dictionaries({}, optional=INPUT_VALUES)),
    st.tuples(st.just("unset"), st.sampled_from(sorted(INPUT_VALUES))),
    st.tuples(st.sampled_from(["archive", "unarchive", "pause", "resume", "retry"]), st.none()),
    st.tuples(st.just("advance"), st.sampled_from([1.0, 45.0, 400.0])),
)
CRASHES = st.tuples(
    st.just("crash"), st.tuples(st.sampled_from(list(Step)), st.integers(0, 9), st.booleans())
)
FAILURES = st.tuples(st.just("fail"), st.integers(1, 4))
RESTING = st.tuples(st.just("rest"), st.none())
DURING = st.tuples(st.just("during"), st.tuples(st.sampled_from(list(Step)), REQUESTS))
ACTIONS = st.lists(st.one_of(REQUESTS, DURING, CRASHES, FAILURES, RESTING), max_size=15)
STARTS = st.fixed_dictionaries({"items": INPUT_VALUES["items"], "b": SMALL, "c": SMALL})


@dataclass
class Script:
    """One execution, which requests, crashes and failures disturb."""

    run: GraphRun
    execution: Execution
    saved: list[SavedValue]
    inputs: Values = field(default_factory=dict)

    def apply(self, act: str, what: Any) -> None:
        if act == "rest":
            self.rest()
        elif act == "crash":
            self.crash_at(*what)
        elif act == "fail":
            FAULTS.left = what
        elif act == "during":
            self.request_during(*what)
        elif act == "advance":
            self.run.advance(what)
        else:
            self.request(act, what)

    def crash_at(self, step: Step, index: int, on_other_host: bool) -> None:  # noqa: FBT001 - drawn
        """Kill a worker at a step of one of the nodes, or of any."""
        names = dict(enumerate(node.name for node in self.run.graph.computed_nodes))
        self.run.crash_at(step, node=names.get(index), on_other_host=on_other_host)

    def request_during(self, step: Step, request: tuple[str, Any]) -> None:
        """Make a request when an attempt has come to this step."""

        def on_step(reached: Step, _: str) -> None:
            if reached is step and request[0] != "advance":
                self.run.on_step = lambda _step, _node: None
                self.request(*request)

        self.run.on_step = on_step
        self.run.run_ready()
        self.run.on_step = lambda _step, _node: None

    def request(self, act: str, what: Any) -> None:
        try:
            self.make_request(act, what)
        except UsageError as error:
            assert "is archived" in str(error)  # noqa: PT017 - refused requests

    def make_request(self, act: str, what: Any) -> None:
        if act == "set":
            self.execution.set(what)
            self.inputs.update(what)
        elif act == "unset":
            self.execution.unset(what)
            self.inputs.pop(what, None)
        elif act in {"archive", "unarchive"}:
            getattr(self.execution, act)()
        else:
            for node in self.run.graph.computed_nodes:
                if act == "retry" or node.kind is NodeKind.TICK_RECURRING:
                    self.request_of_node(act, node.name)

    def request_of_node(self, act: str, name: str) -> None:
        try:
            getattr(self.execution, act)(name)
        except UsageError as error:
            assert "is archived" in str(error) or act == "retry"  # noqa: PT017 - refused requests

    # --- at rest ---

    def rest(self) -> None:
        """Let everything end: recurring ticks are paused, failed nodes tried again."""
        self.settle()
        while failed := [
            each.node for each in self.execution.explain().nodes if each.state == "failed"
        ]:
            for node in failed:
                self.request_of_node("retry", node)
            self.settle()
        values = self.execution.values()
        assert [] == [each for each in self.execution.computations() if each.ended_at is None]
        assert self.evaluate(values) == values, str(self.execution.explain())
        self.check_attempts()
        self.check_histories(values)
        self.check_saved()
        self.request("resume", None)

    def settle(self) -> None:
        self.execution.unarchive()
        self.request("pause", None)
        self.run.advance(SETTLE_SECONDS)
        self.execution.unarchive()  # an archive node may have archived it meanwhile
        self.request("pause", None)
        self.run.advance(SETTLE_SECONDS)

    def evaluate(self, found: Values) -> Values:
        """The values that follow from the inputs, and from the values that nodes of time and of the
        past were found to have.
        """
        values = dict(self.inputs)
        writers = [
            each.name for each in self.run.graph.computed_nodes if each.kind is NodeKind.MUTATE
        ]
        if "noted" in found:
            values["noted"] = found["noted"]
        for node in self.run.graph.computed_nodes:
            if node.kind is NodeKind.HISTORIAN:
                values |= {node.name: found[node.name]} if node.name in found else {}
            elif node.gate.is_met(PlainValues(values)):
                value = expected_value(node, values, found)
                values |= {} if value is ABSENT else {node.name: value}
        written = [("noted", values[name]) for name in writers if name in values]
        return values | dict(written)

    def check_attempts(self) -> None:
        """What was spent is what has raised, or was begun by a worker that died."""
        attempts = self.execution.computations()
        failed = [each.end_cause for each in attempts if each.state == "failed"]
        assert {"raised", "permanent"} >= set(failed)  # a map fails for good with its elements
        assert FAULTS.raised >= failed.count("raised")
        crashes = {crash.claim.seq: crash for crash in self.run.crashes}
        for each in attempts:
            if each.state == "abandoned":
                crash = crashes[each.number]
                assert crash.step in SPENDING_STEPS or crash.on_other_host
                assert not crash.is_firing

    def check_histories(self, values: Values) -> None:
        for node in self.run.graph.computed_nodes:
            if node.kind is NodeKind.HISTORIAN:
                self.check_history(node, values, values.get(node.name, []))

    def check_history(self, node: Node, values: Values, entries: list[Values]) -> None:
        for name in node.upstream:
            own = [each for each in entries if each["node"] == name]
            newest = own[0] if own else {"unset": True}
            assert (name in values) is not newest.get("unset", False)
            assert values.get(name) == newest.get("value")
            changes = [(each["revision"], each.get("unset"), str(each["value"])) for each in own]
            assert len(set(changes)) == len(changes)
            assert sorted(changes, key=lambda each: -each[0]) == changes

    def check_saved(self) -> None:
        """No value is saved twice, and a tick fires later each time."""
        revisions = [(each.node, each.revision) for each in self.saved]
        assert len(set(revisions)) == len(revisions)
        for node in self.run.graph.computed_nodes:
            if node.kind is NodeKind.TICK_RECURRING:
                fired = [each.value for each in self.saved if each.node == node.name]
                assert all(later - earlier >= MIN_SPACING for earlier, later in pairwise(fired))


ABSENT = object()


def expected_value(node: Node, values: Values, found: Values) -> Any:
    """The value of a node whose gate is met; ABSENT for a recurring tick that has not fired."""
    if node.kind in OBSERVED:
        assert node.kind is NodeKind.TICK_RECURRING or node.name in found, node.name
        return found.get(node.name, ABSENT)
    given = {name: values[name] for name in node.upstream if name in values}
    if node.kind is NodeKind.MAP:
        assert node.over is not None
        elements = values[node.over]
        own = {name: value for name, value in given.items() if name != node.over}
        return [10 * number(each) + weigh(own) for each in elements]
    if node.function is listed:
        return [None, 1, 1, weigh(given)][: weigh(given) % 5]
    return weigh(given)


class PlainValues:
    """A view over plain values."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def is_set(self, node: str) -> bool:
        return node in self._values

    def value(self, node: str) -> Any:
        return self._values[node]


@pytest.fixture(scope="module", params=KINDS, name="database")
def database_fixture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    folder: Path = tmp_path_factory.mktemp("kinds")
    with opened_store(request.param, folder) as database:
        yield database


VERSIONS = iter(range(10**9))


@given(nodes=graphs(), inputs=STARTS, acts=ACTIONS)
@settings(
    max_examples=max(settings().max_examples // 10, 10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_at_rest_every_kind_of_node_is_as_computed_directly(
    database: Database, nodes: list[Node], inputs: Values, acts: list[tuple[str, Any]]
) -> None:
    saved: list[SavedValue] = []
    graph = Graph("kinds", version=str(next(VERSIONS)), nodes=nodes, on_save=saved.append)
    FAULTS.left = FAULTS.raised = 0
    with run_graph(graph, database) as run:
        script = Script(run, run.start(inputs), saved, dict(inputs))
        for act, what in acts:
            script.apply(act, what)
        script.rest()
        script.execution.cancel()
