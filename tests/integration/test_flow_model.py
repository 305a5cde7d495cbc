"""Executions in a real store, held against a direct evaluation of their graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flow_rig import KINDS, ManualWorker, manual_worker_for
from longwatch.flow import Execution, Graph, compute, input, not_, or_, when  # noqa: A004 - the contract's word

INPUTS = ("a", "b")
Values = dict[str, Any]


def number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def even(value: Any) -> bool:
    return number(value) % 2 == 0


def weighed(**values: Any) -> int:
    return sum(
        index * (number(value) + 1) for index, (_, value) in enumerate(sorted(values.items()), 2)
    )


def parity(**values: Any) -> int:
    return weighed(**values) % 2


GRAPH = Graph(
    "model",
    version="1",
    nodes=[
        *map(input, INPUTS),
        compute("left", "a", weighed),
        compute("right", "a", parity),
        compute("joined", ["left", "right"], weighed),
        compute("gated", [when("right", even), "b"], weighed),
        compute("either", or_("gated", "b"), weighed),
        compute("without", ["a", not_("b")], weighed),
        compute("last", ["joined", "either"], parity),
    ],
)


class PlainValues:
    """A view over plain values."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def is_set(self, node: str) -> bool:
        return node in self._values

    def value(self, node: str) -> Any:
        return self._values[node]


def evaluate(inputs: Values) -> Values:
    values = dict(inputs)
    for node in GRAPH.computed_nodes:
        if node.gate.is_met(PlainValues(values)):
            assert node.function is not None
            values[node.name] = node.function(
                **{name: values[name] for name in node.upstream if name in values}
            )
    return values


SETTING = st.tuples(
    st.just("set"),
    st.dictionaries(st.sampled_from(INPUTS), st.none() | st.integers(0, 3), min_size=1),
)
UNSETTING = st.tuples(st.just("unset"), st.sampled_from(INPUTS))
WORKING = st.tuples(
    st.sampled_from(["compute", "fail", "lose", "hand back", "rest"]), st.integers(0, 3)
)
ACTIONS = st.lists(st.one_of(SETTING, UNSETTING, WORKING), max_size=12)


class ExecutionScript:
    """One execution, and attempts at it that are under way."""

    def __init__(self, worker: ManualWorker) -> None:
        self.worker = worker
        self.execution: Execution = worker.flow.start("model")
        self.inputs: Values = {}

    def apply(self, act: str, what: Any) -> None:
        if act == "set":
            self.execution.set(what)
            self.inputs.update(what)
        elif act == "unset":
            self.execution.unset(what)
            self.inputs.pop(what, None)
        elif act == "rest":
            self.rest()
        else:
            self.work(act, what)

    def work(self, act: str, count: int) -> None:
        taken = self.worker.claim(count + 1)
        if act == "compute":
            self.worker.run(taken)
        elif act == "fail":
            assert [True] * len(taken) == [self.worker.fail(leased) for leased in taken]
        elif act == "hand back":
            assert [True] * len(taken) == [self.worker.release(leased) for leased in taken]
        else:
            self.worker.database.jump.lease += 1000.0
            assert len(taken) == self.worker.flow.sweep()

    def rest(self) -> None:
        self.worker.run_all()
        for facts in self.execution.explain().nodes:
            if facts.state == "failed":
                self.execution.retry(facts.node)
                self.worker.run_all()
        assert evaluate(self.inputs) == self.execution.values()
        assert {} == self.worker.run_all()
        assert 0 == self.worker.flow.sweep()


@pytest.fixture(scope="module", params=KINDS)
def worker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManualWorker]:
    folder: Path = tmp_path_factory.mktemp("model")
    with manual_worker_for(request.param, folder, GRAPH) as made:
        yield made


@given(acts=ACTIONS)
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_happened_at_rest_everything_is_as_computed_directly(
    worker: ManualWorker, acts: list[tuple[str, Any]]
) -> None:
    story = ExecutionScript(worker)
    for act, what in acts:
        story.apply(act, what)
    story.rest()
    story.execution.cancel()
