"""Functions that are called after the commit of a computed value."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    TIMEOUT,
    ManualWorker,
    database_fixture,
    url_fixture,
)
from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Event, Events
from longwatch.core.events.flow import SaveCallbackDropped, SaveCallbackFailed
from longwatch.flow import Flow, Graph, GraphError, SavedValue, compute, input  # noqa: A004 - the contract's word
from longwatch.flow.save_callbacks import MAX_QUEUED, SaveCallbacks
from longwatch.store.database import Database
from longwatch.testing import run_graph


def doubling(graph_on_save: Any = None, **options: Any) -> Graph:
    """number → doubled → parity."""
    return Graph(
        "doubling",
        version="1",
        nodes=[
            input("number"),
            compute("doubled", ["number"], lambda number: number * 2, **options),
            compute("parity", ["doubled"], lambda doubled: doubled % 2),
        ],
        on_save=graph_on_save,
    )


class Recorder:
    """Keeps what it is called with. `release` lets blocked calls go on."""

    def __init__(self, *, blocks: bool = False) -> None:
        self.saved: list[SavedValue] = []
        self.threads: set[int] = set()
        self.entered = threading.Event()
        self.release = threading.Event()
        if not blocks:
            self.release.set()

    def __call__(self, saved: SavedValue) -> None:
        self.entered.set()
        assert self.release.wait(TIMEOUT)
        self.threads.add(threading.get_ident())
        self.saved.append(saved)

    @property
    def values(self) -> list[tuple[str, Any, int]]:
        return [(each.node, each.value, each.revision) for each in self.saved]


@contextmanager
def released(recorder: Recorder) -> Iterator[None]:
    try:
        yield
    finally:
        recorder.release.set()


def flush(worker: ManualWorker) -> None:
    assert worker.flow.save_callbacks.flush(TIMEOUT)


class TestCalls:
    def test_of_a_graph_get_every_computed_value_in_order_and_no_input(
        self, database: Database
    ) -> None:
        recorder = Recorder()
        worker = ManualWorker(database, doubling(recorder))
        execution = worker.flow.start("doubling", number=4)
        worker.run_all()
        flush(worker)
        assert [
            SavedValue(execution.id, "doubling", "1", "doubled", 8, 2),
            SavedValue(execution.id, "doubling", "1", "parity", 0, 3),
        ] == recorder.saved
        assert threading.get_ident() not in recorder.threads

    def test_of_a_node_get_its_values_only(self, database: Database) -> None:
        recorder = Recorder()
        worker = ManualWorker(database, doubling(on_save=recorder))
        worker.flow.start("doubling", number=4)
        worker.run_all()
        flush(worker)
        assert [("doubled", 8, 2)] == recorder.values

    def test_of_a_node_come_before_those_of_its_graph(self, database: Database) -> None:
        names: list[str] = []
        graph = doubling(lambda _: names.append("graph"), on_save=lambda _: names.append("node"))
        worker = ManualWorker(database, graph)
        worker.flow.start("doubling", number=4)
        worker.succeed(worker.claim_one(), 8)
        flush(worker)
        assert ["node", "graph"] == names

    def test_see_the_committed_value(self, database: Database) -> None:
        seen: list[Any] = []

        def read_values(saved: SavedValue) -> None:
            seen.append(worker.flow.execution(saved.execution).values())

        worker = ManualWorker(database, doubling(on_save=read_values))
        worker.flow.start("doubling", number=4)
        worker.succeed(worker.claim_one(), 8)
        flush(worker)
        assert [{"number": 4, "doubled": 8}] == seen

    def test_are_not_made_for_an_unchanged_result(self, database: Database) -> None:
        recorder = Recorder()
        worker = ManualWorker(database, doubling(recorder))
        execution = worker.flow.start("doubling", number=4)
        worker.run_all()
        execution.set(number=5)
        worker.run_all()
        flush(worker)
        assert [("doubled", 8, 2), ("parity", 0, 3), ("doubled", 10, 5)] == recorder.values

    def test_are_not_made_for_failures_and_late_results(self, database: Database) -> None:
        recorder = Recorder()
        worker = ManualWorker(database, doubling(recorder))
        execution = worker.flow.start("doubling", number=4)
        assert worker.fail(worker.claim_one())
        late = worker.claim_one()
        execution.set(number=5)
        assert not worker.succeed(late, 8)
        flush(worker)
        assert [] == recorder.saved

    def test_are_not_made_if_the_transaction_fails(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder = Recorder()
        worker = ManualWorker(database, doubling(recorder))
        worker.flow.start("doubling", number=4)
        leased = worker.claim_one()
        save = worker.source.records.save

        def save_and_fail(*arguments: Any) -> Any:
            save(*arguments)
            raise RuntimeError("no commit")

        monkeypatch.setattr(worker.source.records, "save", save_and_fail)
        with pytest.raises(RuntimeError, match="no commit"):
            worker.succeed(leased, 8)
        flush(worker)
        assert [] == recorder.saved

    def test_are_made_for_an_empty_map_by_the_process_that_set_the_list(
        self, database: Database
    ) -> None:
        recorder = Recorder()
        graph = Graph("squares", version="1", on_save=recorder)
        graph.input("numbers")
        graph.map("squared", over="numbers", function=lambda item: item * item)
        with run_graph(graph, database) as run:
            run.start(numbers=[])
            run.run_ready()
            run.start(numbers=[2, 3])
            run.run_ready()
        assert [("squared", []), ("squared", [4, 9])] == [
            (each.node, each.value) for each in recorder.saved
        ]

    def test_of_a_run_on_a_fake_clock_may_take_real_time(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder, wait = Recorder(blocks=True), SystemClock.wait

        def release_and_wait(*arguments: Any) -> bool:
            recorder.release.set()
            return wait(*arguments)

        with released(recorder), run_graph(doubling(recorder), database) as run:
            run.start(number=4)
            monkeypatch.setattr(SystemClock, "wait", release_and_wait)
            run.run_ready()
            assert ["doubled", "parity"] == [node for node, _, _ in recorder.values]


class TestErrors:
    def test_of_a_call_are_emitted_and_neither_fail_the_attempt_nor_stop_other_calls(
        self, database: Database
    ) -> None:
        emitted: list[Event] = []
        recorder = Recorder()

        def fail(_: SavedValue) -> None:
            raise SystemExit("broken callback")

        worker = ManualWorker(database, doubling(recorder, on_save=fail))
        worker.source.emit_to(Events(emitted.append))
        execution = worker.flow.start("doubling", number=4)
        worker.run_all()
        flush(worker)
        assert [("doubled", 8, 2), ("parity", 0, 3)] == recorder.values
        [failed] = [each for each in emitted if isinstance(each, SaveCallbackFailed)]
        assert ("doubling", "doubled", execution.id) == (
            failed.graph,
            failed.node,
            failed.execution,
        )
        assert "SystemExit: broken callback" == failed.error
        assert "in fail" in failed.traceback
        assert [("doubled", "success"), ("parity", "success")] == [
            (each.node, each.state) for each in execution.computations()
        ]

    @pytest.mark.parametrize("given", [5, "print"])
    def test_of_definition_are_refused(self, given: Any) -> None:
        with pytest.raises(
            GraphError, match="on_save of graph 'doubling' must be a plain function"
        ):
            doubling(given)
        with pytest.raises(GraphError, match="node 'doubled': on_save must be a plain function"):
            doubling(on_save=given)

    def test_refuses_a_coroutine_function(self) -> None:
        async def call(_: SavedValue) -> None: ...

        with pytest.raises(GraphError, match="must be a plain function"):
            doubling(on_save=call)


class TestQueue:
    def test_drops_calls_above_its_bound_and_emits_that(self, database: Database) -> None:
        emitted: list[Event] = []
        recorder = Recorder(blocks=True)
        worker = ManualWorker(database, doubling(on_save=recorder))
        worker.source.emit_to(Events(emitted.append))
        with released(recorder):
            worker.flow.start("doubling", number=0)
            worker.succeed(worker.claim_one(), 0)
            assert recorder.entered.wait(TIMEOUT)
            for number in range(MAX_QUEUED + 2):
                worker.flow.start("doubling", number=number)
            while leased := [each for each in worker.claim(500) if each.item.node == "doubled"]:
                worker.run(leased)
        flush(worker)
        dropped = [each for each in emitted if isinstance(each, SaveCallbackDropped)]
        assert (MAX_QUEUED + 1, 2) == (len(recorder.saved), len(dropped))

    def test_flush_gives_up_on_a_call_that_hangs_and_returns_false_in_a_call(
        self, database: Database
    ) -> None:
        inside: list[bool] = []
        recorder = Recorder(blocks=True)

        def call(saved: SavedValue) -> None:
            inside.append(worker.flow.save_callbacks.flush(TIMEOUT))
            recorder(saved)

        worker = ManualWorker(database, doubling(on_save=call))
        with released(recorder):
            worker.flow.start("doubling", number=4)
            worker.succeed(worker.claim_one(), 8)
            assert recorder.entered.wait(TIMEOUT)
            assert not worker.flow.save_callbacks.flush(0)
        flush(worker)
        assert [False] == inside

    def test_is_empty_in_a_forked_child(self) -> None:
        callbacks = SaveCallbacks()
        callbacks._thread = object()  # type: ignore[assignment]
        callbacks.after_fork_in_child()
        assert callbacks.flush(0)


def test_a_worker_that_stops_has_made_the_calls(url: str) -> None:
    recorder = Recorder()
    with Flow(url, [doubling(recorder)], auto_migrate=True) as flow:
        with flow.worker():
            assert 0 == flow.start("doubling", number=4).get("parity", timeout=TIMEOUT)
        assert [("doubled", 8, 2), ("parity", 0, 3)] == recorder.values
