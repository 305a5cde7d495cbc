"""Retention: which executions are removed, when, and that nothing of them stays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    BackgroundCall,
    ManualWorker,
    database_fixture,
    on_postgres,
    url_fixture,
)
from longwatch.errors import GraphError, UnknownExecutionError, UnknownGraphError, UsageError
from longwatch.flow import (
    Execution,
    Flow,
    Graph,
    compute,
    input,  # noqa: A004 - the contract's word
    map,  # noqa: A004 - the contract's word
    tick_recurring,
)
from longwatch.flow import retention as module
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.flow.execution_state import ExecutionStatus
from longwatch.flow.records import Records
from longwatch.flow.retention import Retention
from longwatch.flow.sweeper import RETENTION_INTERVAL
from longwatch.store.database import Database, Transaction
from longwatch.testing import FakeClock, run_graph

DAY = 86_400.0
TABLES = (
    "longwatch_executions",
    "longwatch_values",
    "longwatch_computations",
    "longwatch_map_elements",
)


def pages(url: str) -> int:
    return len(url)


def scrape(days: float | None = None, version: str = "1") -> Graph:
    nodes = [input("url"), compute("pages", ["url"], pages, max_attempts=1)]
    return Graph("scrape", version=version, nodes=nodes, retention_days=days)


@pytest.fixture
def worker(database: Database) -> ManualWorker:
    return ManualWorker(database, scrape(2))


def finished(worker: ManualWorker, count: int = 1) -> list[Execution]:
    """Executions that are done."""
    made = [worker.flow.start("scrape", url="abc") for _ in range(count)]
    worker.run_all()
    return made


def add_element(worker: ManualWorker, execution: Execution) -> None:
    worker.write(
        "INSERT INTO longwatch_map_elements (execution, node, key, position, computed_with, input)"
        " VALUES (:number, 'pages', 'k', 0, '{}', '1')",
        number=execution._number,
    )


def row_counts(worker: ManualWorker) -> list[int]:
    return [worker.rows(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES]


def ids(worker: ManualWorker) -> set[str]:
    return {found for (found,) in worker.rows("SELECT id FROM longwatch_executions")}


class TestSetting:
    @pytest.mark.parametrize("days", [0, -1, True, "7", float("inf"), float("nan")])
    def test_a_graph_refuses_what_is_no_number_of_days(self, days: Any) -> None:
        with pytest.raises(GraphError, match="retention_days of graph 'scrape' must be a number"):
            scrape(days)

    def test_it_is_off_by_default(self, database: Database) -> None:
        worker = ManualWorker(database, scrape())
        [kept] = finished(worker)
        database.jump.wall += 1000 * DAY
        worker.flow.sweep()
        assert {kept.id} == ids(worker)
        assert "retention" not in {run.sweep for run in worker.flow.sweeps()}

    def test_the_last_version_decides_for_all(self, database: Database) -> None:
        worker = ManualWorker(database, scrape(version="1"), scrape(2, version="2"))
        worker.flow.start("scrape", version="1", url="abc")
        worker.run_all()
        database.jump.wall += 3 * DAY
        assert 1 == worker.flow.sweep()


class TestSweep:
    def test_it_removes_all_rows_of_old_executions_and_none_of_others(
        self, worker: ManualWorker
    ) -> None:
        [old] = finished(worker)
        add_element(worker, old)
        worker.database.jump.wall += 1.5 * DAY
        [young] = finished(worker)
        add_element(worker, young)
        worker.database.jump.wall += 1 * DAY
        assert 1 == worker.flow.sweep()
        assert {young.id} == ids(worker)
        assert [1, 2, 1, 1] == row_counts(worker)
        assert 3 == young.get("pages", wait=False)

    def test_it_removes_done_failed_cancelled_and_archived_ones_only(
        self, worker: ManualWorker
    ) -> None:
        [_, failed, cancelled, archived, idle] = finished(worker, 5)
        worker.write(
            "UPDATE longwatch_executions SET state = 5 WHERE execution = :number",
            number=archived._number,
        )
        cancelled.cancel()
        failed.set(url="bad")
        worker.exhaust(failed, "pages")
        idle.unset("url")
        active = worker.flow.start("scrape", url="waits")
        worker.database.jump.wall += 3 * DAY
        assert 4 == worker.flow.sweep()
        assert {idle.id, active.id} == ids(worker)

    def test_an_execution_that_changed_is_as_old_as_its_change(self, worker: ManualWorker) -> None:
        changed, other = finished(worker, 2)
        worker.database.jump.wall += 1.5 * DAY
        changed.set(url="longer")
        worker.run_all()
        worker.database.jump.wall += 1 * DAY
        assert 1 == worker.flow.sweep()
        assert {changed.id} == ids(worker)
        assert other.id not in ids(worker)

    def test_an_execution_with_an_open_attempt_stays(self, worker: ManualWorker) -> None:
        """Even if its row says that it is done."""
        kept = worker.flow.start("scrape", url="abc")
        worker.write("UPDATE longwatch_executions SET state = 3, settled_at = 0")
        worker.database.jump.wall += 3 * DAY
        assert 0 == Retention(worker.database, worker.flow.records).remove("scrape", age=DAY)
        assert {kept.id} == ids(worker)

    def test_it_runs_once_a_minute_and_is_recorded(self, worker: ManualWorker) -> None:
        clock = FakeClock()
        source = FlowClaimSource(worker.database, worker.flow.registry, clock=clock)

        def sweep_after(seconds: float) -> list[int]:
            clock.advance(seconds)
            worker.database.jump.wall += seconds
            source.sweep()
            return [run.row_count for run in worker.flow.sweeps() if run.sweep == "retention"]

        finished(worker)
        assert [0] == sweep_after(0.0)
        assert [0] == sweep_after(RETENTION_INTERVAL / 2)
        assert [1, 0] == sweep_after(3 * DAY)

    def test_its_error_stops_no_other_sweep(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> int:
            raise RuntimeError("no retention today")

        monkeypatch.setattr(Retention, "remove", fail)
        with pytest.raises(RuntimeError, match="no retention today"):
            worker.flow.sweep()
        by_name = {run.sweep: run.error for run in worker.flow.sweeps()}
        assert {"abandoned", "stalled", "retention"} == set(by_name)
        assert "no retention today" in (by_name["retention"] or "")
        assert by_name["stalled"] is None


class TestBatches:
    def test_many_executions_are_removed_in_several_transactions(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "FIRST_BATCH", 2)
        monkeypatch.setattr(module, "LARGEST_BATCH", 2)
        monkeypatch.setattr(module, "SMALLEST_BATCH", 2)
        finished(worker, 5)
        worker.database.jump.wall += 3 * DAY
        batches: list[int] = []
        assert 5 == worker.flow.prune(older_than=DAY, on_progress=batches.append)
        assert [2, 2, 1] == [each for each in batches if each]
        assert [0, 0, 0, 0] == row_counts(worker)

    def test_attempts_of_one_execution_are_removed_in_pieces(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "FIRST_BATCH", 1)
        monkeypatch.setattr(module, "LARGEST_BATCH", 1)
        monkeypatch.setattr(module, "SMALLEST_BATCH", 1)
        monkeypatch.setattr(module, "_ROWS_PER_EXECUTION", 2)
        [execution] = finished(worker)
        for length in range(4, 10):
            execution.set(url="x" * length)
            worker.run_all()
        add_element(worker, execution)
        worker.database.jump.wall += 3 * DAY
        batches: list[int] = []
        assert 1 == worker.flow.prune(older_than=DAY, on_progress=batches.append)
        assert [0, 0, 0, 1] == batches[:4]
        assert [0, 0, 0, 0] == row_counts(worker)

    def test_it_stops_when_its_time_is_over(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "FIRST_BATCH", 1)
        finished(worker, 3)
        worker.database.jump.wall += 3 * DAY
        clock = FakeClock()
        removing = Retention(worker.database, worker.flow.records, clock)
        batches = []

        def spend(count: int) -> None:
            batches.append(count)
            clock.advance(1.0)

        assert 1 == removing.remove("scrape", age=DAY, max_seconds=1.0, on_batch=spend)
        assert [1] == batches
        assert 2 == len(ids(worker))

    def test_a_batch_shrinks_when_it_took_too_long_and_grows_when_it_was_fast(self) -> None:
        assert (200, 100, 50, 25) == tuple(
            module._next_size(100, seconds) for seconds in (0.0, 0.025, 0.05, 10.0)
        )
        assert (module.SMALLEST_BATCH, module.LARGEST_BATCH) == (
            module._next_size(12, 10.0),
            module._next_size(1999, 0.0),
        )

    @on_postgres
    def test_a_locked_execution_is_skipped(self, worker: ManualWorker) -> None:
        locked, _ = finished(worker, 2)
        worker.database.jump.wall += 3 * DAY

        def prune_meanwhile(tx: Transaction) -> int:
            worker.flow.records.load(tx, [locked._number])
            return int(BackgroundCall(lambda: worker.flow.prune(older_than=DAY)).wait())

        assert 1 == worker.database.write(prune_meanwhile)
        assert {locked.id} == ids(worker)

    def test_an_execution_that_changed_after_it_was_found_stays(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next batch looks again."""
        monkeypatch.setattr(module, "FIRST_BATCH", 1)
        first, second = finished(worker, 2)
        worker.database.jump.wall += 3 * DAY
        changed: list[int] = []

        def change(_: int) -> None:
            if not changed:
                changed.append(second.set(url="again"))

        removing = Retention(worker.database, worker.flow.records)
        assert 1 == removing.remove("scrape", age=DAY, on_batch=change)
        assert {second.id} == ids(worker)
        assert first.id not in ids(worker)


class TestRemoved:
    @pytest.mark.parametrize(
        "act",
        [
            lambda execution: execution.history(),
            lambda execution: execution.computations(),
            lambda execution: execution.values(),
            lambda execution: execution.metadata,
            lambda execution: execution.set(url="b"),
            lambda execution: execution.get("pages", timeout=1),
        ],
    )
    def test_an_execution_says_that_it_does_not_exist_any_more(
        self, worker: ManualWorker, act: Callable[[Execution], object]
    ) -> None:
        [execution] = finished(worker)
        worker.database.jump.wall += 1.0
        assert 1 == worker.flow.prune(older_than=0)
        with pytest.raises(UnknownExecutionError, match="does not exist any more"):
            act(execution)

    def test_its_key_starts_another_one(self, worker: ManualWorker) -> None:
        keyed = worker.flow.start("scrape", url="a", idempotency_key="k")
        shared = worker.flow.find_or_start("scrape", url="a")
        worker.run_all()
        worker.database.jump.wall += 1.0
        assert 2 == worker.flow.prune(older_than=0)
        again = worker.flow.start("scrape", url="b", idempotency_key="k")
        assert keyed.id != again.id == worker.flow.start("scrape", idempotency_key="k").id
        assert shared.id != worker.flow.find_or_start("scrape", url="b").id

    def test_several_processes_remove_each_once_and_none_that_changed(
        self, worker: ManualWorker, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a user changes meanwhile is either removed before the change, or stays."""
        monkeypatch.setattr(module, "FIRST_BATCH", 3)
        monkeypatch.setattr(module, "LARGEST_BATCH", 5)
        made = finished(worker, 60)
        worker.write("UPDATE longwatch_executions SET settled_at = settled_at - 10 * 86400")

        def change() -> set[str]:
            changed = set()
            with Flow(url, [scrape()]) as flow:
                for each in made[::2]:
                    with suppress(UnknownExecutionError):
                        flow.execution(each.id).set(url="changed")
                        changed.add(each.id)
            return changed

        def prune() -> int:
            with Flow(url, [scrape()]) as flow:
                return flow.prune(older_than=DAY)

        changing = BackgroundCall(change)
        pruning = [BackgroundCall(prune) for _ in range(3)]
        assert len(made) == sum(each.wait() for each in pruning) + len(changing.wait())
        assert changing.wait() == ids(worker)
        orphans = " UNION ALL ".join(
            f"SELECT execution FROM {table} WHERE execution NOT IN "
            "(SELECT execution FROM longwatch_executions)"
            for table in TABLES[1:]
        )
        assert [] == worker.rows(orphans)


class TestPrune:
    def test_a_dry_run_counts_and_removes_nothing(self, worker: ManualWorker) -> None:
        finished(worker, 3)
        worker.database.jump.wall += DAY
        assert 3 == worker.flow.prune(older_than=DAY / 2, dry_run=True)
        assert 0 == worker.flow.prune(older_than=2 * DAY, dry_run=True)
        assert 3 == len(ids(worker))

    def test_it_removes_the_given_states_of_the_given_graph(self, worker: ManualWorker) -> None:
        done, cancelled = finished(worker, 2)
        cancelled.cancel()
        worker.database.jump.wall += DAY
        with pytest.raises(UnknownGraphError, match="there is no graph 'other' in the store"):
            worker.flow.prune(older_than=1.0, graph="other")
        assert 1 == worker.flow.prune(older_than=1.0, graph="scrape", states=["cancelled"])
        assert {done.id} == ids(worker)

    @pytest.mark.parametrize("states", [["idle"], ["running"], "active", ["done", "gone"]])
    def test_it_refuses_states_that_are_not_finished(
        self, worker: ManualWorker, states: Any
    ) -> None:
        with pytest.raises(UsageError, match="states are done, failed, cancelled, archived"):
            worker.flow.prune(older_than=1.0, states=states)

    @pytest.mark.parametrize("age", [-1, float("nan"), "30d", None])
    def test_it_refuses_what_is_no_age(self, worker: ManualWorker, age: Any) -> None:
        with pytest.raises(UsageError, match="older_than must be a number of seconds"):
            worker.flow.prune(older_than=age)


_MANY_EXECUTIONS = """
INSERT INTO longwatch_executions (id, graph, version, created_at, updated_at, state, settled_at)
SELECT number, number % 100, '1', 0, 0, 3, number FROM generate_series(1, 5000) AS number
"""
"""On an empty table every index costs the planner the same."""


def plans(database: Database) -> list[str]:
    """The plans of the statements of one batch, as text."""
    removing = Retention(database, Records(database.dialect))
    sqlite = database.dialect == "sqlite"
    explain = "EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN "
    numbers = "[1, 2]" if sqlite else [1, 2]
    values = {
        "graph": "g",
        "state": int(ExecutionStatus.DONE),
        "age": 1.0,
        "after": 0,
        "limit": 10,
        "execution": 1,
        "executions": numbers,
    }

    def read(tx: Transaction) -> list[str]:
        if not sqlite:
            tx.execute("SET LOCAL enable_seqscan = off")
            tx.execute(_MANY_EXECUTIONS)
            tx.execute("ANALYZE longwatch_executions")
        return [
            "\n".join(str(row[-1]) for row in tx.rows(explain + text, values))
            for name, text in removing._sql.items()
            if name != "stored_graphs"
        ]

    return database.write(read)


def test_every_statement_of_a_batch_reads_an_index(database: Database) -> None:
    found = plans(database)
    assert 8 == len(found)
    for plan in found:
        assert "Seq Scan on longwatch" not in plan
        assert "SCAN longwatch" not in plan
        assert "SCAN e" not in plan.replace("SCAN elements", "")
    assert all("longwatch_executions_by_state" in plan for plan in found[:2])


class TestExecutionsWithTicks:
    """They never finish, so their old attempts are removed."""

    def test_keep_only_the_attempts_of_the_last_days_and_all_values(
        self, database: Database
    ) -> None:
        graph = nightly(days=2)
        with run_graph(graph, database) as run:
            execution = run.start(shops=["a", "b"])
            run.advance(10 * DAY)
            attempts = [each for each in execution.computations() if each.ended_at is not None]
            now = run.clock.wall()
            assert {"night", "sums", "report"} == {each.node for each in attempts}
            assert all(now - (each.ended_at or 0.0) < 2 * DAY + 120 for each in attempts)
            assert 10 == run.runs["report"]
            assert ["a!", "b!"] == execution.get("sums", wait=False)
            run.advance(DAY)
            assert 11 == run.runs["report"]

    def test_keep_everything_without_the_setting(self, database: Database) -> None:
        with run_graph(nightly(days=None), database) as run:
            execution = run.start(shops=["a", "b"])
            run.advance(10 * DAY)
            assert 10 == sum(each.node == "report" for each in execution.computations())

    def test_take_turns_in_pages(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_TRIMMED_EXECUTIONS", 2)
        monkeypatch.setattr(module, "_TRIMMED_ATTEMPTS", 1)
        worker = ManualWorker(database, nightly(days=None))
        executions = [worker.flow.start("nightly", shops=["a"]) for _ in range(5)]
        for execution in executions:
            worker.write(ENDED_ATTEMPTS, number=execution._number)
        retention = Retention(database, Records(database.dialect))
        assert [6, 6, 3, 0] == [retention.trim("nightly", age=DAY) for _ in range(4)]
        assert 0 == retention.trim("other", age=DAY)


ENDED_ATTEMPTS = """
    INSERT INTO longwatch_computations (queue, lease_state, execution, node, state, attempt,
        computed_with, abandon_after, max_attempts, created_at, ended_at)
    SELECT 1, 3, :number, 'report', 'success', 1, '{}', 1, 3, 0, age.ended_at
    FROM (SELECT 1 AS ended_at UNION ALL SELECT 2 UNION ALL SELECT 3) AS age
"""
"""Three that ended long ago."""


def nightly(days: float | None) -> Graph:
    nodes = [
        input("shops"),
        tick_recurring("night", ["shops"], every=DAY),
        map("sums", "shops", lambda shop: f"{shop}!", ["night"]),
        compute("report", ["sums", "night"], lambda sums, night: [sums, night]),
    ]
    return Graph("nightly", version="1", nodes=nodes, retention_days=days)
