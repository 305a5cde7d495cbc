"""What once brought graphs into trouble."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from flow_stores import KINDS, opened_database, store_url
from longwatch.core.events.base import Events
from longwatch.core.events.engine import ClaimSourceFailed
from longwatch.engine.reservations import Reservation
from longwatch.errors import ComputationFailedError, GraphError, SerializationError
from longwatch.flow import Execution, Flow, Graph, when
from longwatch.flow.eager_lease.leaser import EagerWrite
from longwatch.store.database import Database
from longwatch.testing import RecordingObserver
from polling import eventually

TIMEOUT = 30.0
on_each_store = pytest.mark.parametrize("kind", KINDS)
MEBIBYTE = 1 << 20


def plain_graph(name: str = "plain") -> Graph:
    graph = Graph(name, version="1")
    graph.input("x")
    graph.compute(after="x", name="y")(lambda x: x)
    return graph


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with opened_database(f"sqlite:///{tmp_path}/flow.db") as database:
        yield database


@on_each_store
def test_several_caps_do_not_lock_each_other_out(kind: str, tmp_path: Path) -> None:
    graph = Graph("capped", version="1")
    graph.input("x")
    names = [f"node{number}" for number in range(5)]
    for name in names:
        graph.compute(after="x", name=name, max_running=2)(lambda x: x)
    observer = RecordingObserver()
    with store_url(kind, tmp_path) as url, opened_database(url) as database:
        flow = Flow(database, [graph])
        with flow.worker(events=Events(observer)), flow.worker(events=Events(observer)):
            executions = [flow.start("capped", x=number) for number in range(40)]
            for execution in executions:
                assert [execution.get(name, timeout=TIMEOUT) for name in names] == [
                    execution.get("x")
                ] * len(names)
    assert [] == observer.of(ClaimSourceFailed)


def test_a_predicate_that_exits_is_not_met_and_stops_nobody(sqlite: Database) -> None:
    graph = Graph("exits", version="1")
    graph.input("x")
    graph.compute(after="x", name="y")(lambda x: x)
    graph.compute(after=when("y", lambda _: sys.exit(3)), name="z")(lambda y: y)
    flow = Flow(sqlite, [graph, plain_graph()])
    with flow.worker():
        execution = flow.start("exits", x=1)
        assert 1 == execution.get("y", timeout=TIMEOUT)
        assert 2 == flow.start("plain", x=2).get("y", timeout=TIMEOUT)
        assert "SystemExit" in str(execution.explain())


def test_a_graph_that_a_flow_has_stays_as_it_is(sqlite: Database) -> None:
    graph = plain_graph()
    Flow(sqlite, [graph])
    with pytest.raises(GraphError, match="was given to a Flow"):
        graph.input("late")


def test_values_too_deep_to_be_compared_hold_up_nobody(sqlite: Database) -> None:
    def deep(x: str) -> Any:
        value: Any = x
        for _ in range(982):
            value = [value]
        return value

    graph = Graph("deep", version="1")
    graph.input("x")
    graph.compute(after="x", name="y")(deep)
    flow = Flow(sqlite, [graph, plain_graph()])
    with flow.worker(concurrency=2):
        execution = flow.start("deep", x="a")
        wait_for_state(execution, ["success"])
        execution.set(x="b")
        wait_for_state(execution, ["success", "success"])
        assert 2 == flow.start("plain", x=2).get("y", timeout=TIMEOUT)


def wait_for_state(execution: Execution, states: list[str]) -> None:
    assert eventually(lambda: states == [each.state for each in execution.computations()])


def test_a_value_too_deep_to_be_looked_through_is_refused(sqlite: Database) -> None:
    value: Any = None
    for _ in range(3000):
        value = [value]
    with pytest.raises(SerializationError):
        Flow(sqlite, [plain_graph()]).start("plain", x=value)


def test_inputs_that_are_too_large_together_spend_their_own_node_alone(sqlite: Database) -> None:
    graph = Graph("wide", version="1")
    inputs = [f"part{number}" for number in range(5)]
    for name in inputs:
        graph.input(name)
    graph.compute(after=inputs, name="whole")(lambda **parts: len(parts))
    flow = Flow(sqlite, [graph, plain_graph()])
    with flow.worker():
        execution = flow.start("wide", dict.fromkeys(inputs, "x" * (14 * MEBIBYTE)))
        assert 2 == flow.start("plain", x=2).get("y", timeout=TIMEOUT)
        with pytest.raises(ComputationFailedError, match="too large together"):
            execution.get("whole", timeout=TIMEOUT)


@on_each_store
def test_an_attempt_whose_inputs_were_changed_by_an_older_release_is_begun_anew(
    kind: str, tmp_path: Path
) -> None:
    newer = Graph("grows", version="1")
    older = Graph("grows", version="1")
    for graph in (newer, older):
        graph.input("x")
        graph.compute(after="x", name="y")(lambda x: x)
    newer.compute(after=["x", "y"], name="z")(lambda x, y: [x, y])
    with store_url(kind, tmp_path) as url, opened_database(url) as database:
        new, old = Flow(database, [newer]), Flow(database, [older])
        execution = new.start("grows", x=1)
        with old.worker():
            execution.get("y", timeout=TIMEOUT)
        new.sweep()
        assert "not_set" == last_state(execution, "z")
        old.execution(execution.id).set(x=2)
        assert "not_set" == last_state(execution, "z")  # who does not know it leaves it as it is
        with old.worker():
            assert 2 == old.execution(execution.id).get("y", timeout=TIMEOUT)
        with new.worker():
            assert [2, 2] == execution.get("z", timeout=TIMEOUT)
        attempts = [each.state for each in execution.computations() if "z" == each.node]
    assert ["cancelled", "success"] == attempts


def last_state(execution: Execution, node: str) -> str:
    return [each.state for each in execution.computations() if each.node == node][-1]


class Reopened:
    """An offer that was closed, and is not closed again."""

    def __init__(self, offer: Reservation) -> None:
        self._offer = offer
        self.in_doubt = False

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._offer, name)


def reserve(flow: Flow) -> EagerWrite:
    """Reserve slots in the worker, which frees those of an attempt shortly after its result."""
    found: list[EagerWrite] = []
    graph_id = next(iter(flow.registry.graphs))

    def is_reserved() -> bool:
        found.extend(filter(None, [flow.local_workers.reserve(graph_id)]))
        return bool(found)

    assert eventually(is_reserved)
    return found[0]


def test_what_is_committed_after_its_starter_has_given_up_is_leased_to_nobody(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a busy store may give up, the worker may end, and then it is written."""
    flow = Flow(sqlite, [plain_graph()])
    with flow.worker():
        flow.start("plain", x=0).get("y", timeout=TIMEOUT)
        eager_write = reserve(flow)
        eager_write.reservation.close()
        eager_write.reservation = cast("Reservation", Reopened(eager_write.reservation))
        monkeypatch.setattr(flow.local_workers, "reserve", lambda _: eager_write)
        execution = flow.start("plain", x=1)
        assert 1 == execution.get("y", timeout=TIMEOUT)
    assert [] == [each for each in execution.computations() if "computing" == each.state]
