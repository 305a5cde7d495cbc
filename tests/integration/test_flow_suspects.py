"""Suspects: attempts that one more crash or loss would give up. Ordinary engines never get them, an
engine for suspects gets one and nothing else. On every store.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flow_rig import TIMEOUT, ManualWorker, database_fixture, on_sqlite, url_fixture  # noqa: F401 - fixtures
from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.policy import EnginePolicy
from longwatch.flow import Execution, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow.eager_lease.leaser import LocalWorkers
from longwatch.flow.records import work_channel
from longwatch.store.claims import RowSelection
from longwatch.store.database import Database
from polling import eventually

ORDINARY, SUSPECTS, ANY = RowSelection.ORDINARY, RowSelection.SUSPECTS, RowSelection.ANY


def chain(*, version: str = "1", max_running: int | None = None) -> Graph:
    nodes = [
        input("x"),
        compute("a", ["x"], lambda x: x, max_running=max_running),
        compute("b", ["a"], lambda a: a),
    ]
    return Graph("chain", version=version, nodes=nodes)


@pytest.fixture
def worker(database: Database) -> ManualWorker:
    return ManualWorker(database, chain())


def start(
    worker: ManualWorker, *, version: str = "1", crashes: int = 0, lost: int = 0
) -> Execution:
    """An execution whose open attempt has crashed and was lost so often."""
    execution = worker.flow.start("chain", version=version, x=1)
    if not (crashes or lost):
        return execution
    counts = {"crashes": crashes, "lost": lost, "execution": execution._number}
    worker.write(
        "UPDATE longwatch_computations SET crashes = :crashes, lost = :lost"
        " WHERE execution = :execution",
        **counts,
    )
    worker.write(
        "INSERT INTO longwatch_values (execution, node, attempted_with, crashes, lost, changed_at)"
        " SELECT execution, node, computed_with, crashes, lost, 0 FROM longwatch_computations"
        " WHERE execution = :execution",
        execution=execution._number,
    )
    return execution


def ids(claimed: list[ClaimedRow]) -> list[str]:
    return [each.item.id for each in claimed]


class TestSelection:
    @pytest.mark.parametrize(("crashes", "lost"), [(2, 0), (0, 4), (2, 4), (2, 1)])
    def test_each_kind_of_engine_gets_its_own(
        self, worker: ManualWorker, crashes: int, lost: int
    ) -> None:
        """Two suspects between ordinary attempts; one that crashed once is ordinary."""
        first = start(worker)
        suspects = [start(worker, crashes=crashes, lost=lost) for _ in range(2)]
        once = start(worker, crashes=1, lost=3)
        ordinary = worker.claim(selection=ORDINARY)
        assert [first.id, once.id] == ids(ordinary)
        assert [False, False] == [each.is_exclusive for each in ordinary]
        for suspect in suspects:
            [leased] = worker.claim(selection=SUSPECTS)
            assert (suspect.id, True) == (leased.item.id, leased.is_exclusive)
        assert [] == worker.claim(selection=SUSPECTS) == worker.claim(selection=ORDINARY)

    def test_without_a_parent_a_suspect_comes_by_itself(self, worker: ManualWorker) -> None:
        first, suspect, last = start(worker), start(worker, crashes=2), start(worker)
        claims = [worker.claim(selection=ANY) for _ in range(3)]
        assert [[first.id], [suspect.id], [last.id]] == [ids(each) for each in claims]
        assert [False, True, False] == [each[0].is_exclusive for each in claims]

    def test_one_suspect_of_all_queues_is_claimed(self, database: Database) -> None:
        worker = ManualWorker(database, chain(), chain(version="2"))
        made = {start(worker, version=version, crashes=2).id for version in ("1", "2")}
        claims = [worker.claim(selection=SUSPECTS) for _ in range(2)]
        assert [1, 1] == [len(each) for each in claims]
        assert made == {each[0].item.id for each in claims}

    def test_a_suspect_that_waits_for_its_time_is_found_when_it_is_due(
        self, worker: ManualWorker
    ) -> None:
        start(worker, crashes=2)
        [leased] = worker.claim(selection=SUSPECTS)
        worker.fail(leased, delay=60.0)
        assert [] == worker.claim(selection=SUSPECTS)
        worker.database.jump.wall += 61.0
        assert [] == worker.claim(selection=ORDINARY)
        [again] = worker.claim(selection=SUSPECTS)
        assert (1, 2, True) == (again.item.failures, again.item.crashes, again.is_exclusive)

    def test_caps_hold_for_suspects(self, database: Database) -> None:
        worker = ManualWorker(database, chain(max_running=1))
        for _ in range(2):
            start(worker, crashes=2)
        assert 1 == worker.source.count_suspects(limit=10)
        [leased] = worker.claim(selection=SUSPECTS)
        assert (0, []) == (worker.source.count_suspects(limit=10), worker.claim(selection=SUSPECTS))
        worker.succeed(leased, 1)
        assert 1 == len(worker.claim(selection=SUSPECTS))


class TestCounting:
    def test_free_suspects_are_counted_no_further_than_asked(self, worker: ManualWorker) -> None:
        start(worker)
        start(worker, crashes=1, lost=3)
        assert 0 == worker.source.count_suspects(limit=10)
        for _ in range(3):
            start(worker, lost=4)
        assert [3, 2] == [worker.source.count_suspects(limit=limit) for limit in (10, 2)]
        worker.claim(selection=SUSPECTS)
        assert 2 == worker.source.count_suspects(limit=10)

    def test_rows_are_called_by_execution_and_node(self, worker: ManualWorker) -> None:
        execution = start(worker)
        leased = worker.claim_one()
        assert {leased.claim.seq: f"{execution.id}/a"} == worker.source.row_ids(
            [leased.claim.seq, 12345]
        )
        assert {} == worker.source.row_ids([])


class ListeningWorker(ManualWorker):
    """A worker that listens: only then a poll that found nothing counts, and rows are leased
    eagerly.
    """

    def listen(self) -> None:
        self.notified = Wakeup()
        self.source.listen(self.notified)
        for selection in (ORDINARY, SUSPECTS):
            assert [] == self.claim(selection=selection)

    def exchange(self, settlement: Settlement, selection: RowSelection) -> list[ClaimedRow]:
        self.claim(0, selection=selection)
        return self.source.exchange(
            [settlement], owner=self.owner, limit=10, lease_seconds=0.0, selection=selection
        ).claimed


class TestEagerLease:
    @pytest.fixture
    def worker(self, database: Database) -> ListeningWorker:
        return ListeningWorker(database, chain())

    def failed_suspect(self, worker: ListeningWorker) -> Settlement:
        start(worker, crashes=2)
        [leased] = worker.claim(selection=SUSPECTS)
        worker.listen()
        return Settlement(leased.claim, RowOutcome.FAILED, error="broken")

    def test_an_ordinary_engine_leases_no_suspect_that_it_opens(
        self, worker: ListeningWorker
    ) -> None:
        failed = self.failed_suspect(worker)
        assert [] == worker.exchange(failed, ORDINARY)
        assert 1 == len(worker.claim(selection=SUSPECTS))

    def test_an_engine_for_suspects_leases_nothing_eagerly(self, worker: ListeningWorker) -> None:
        """What its result opens is ordinary and goes to the queue; another suspect is claimed from
        there.
        """
        failed = self.failed_suspect(worker)
        assert [] == worker.exchange(
            Settlement(failed.claim, RowOutcome.DONE, result=b"1"), SUSPECTS
        )
        assert ["b"] == [each.item.node for each in worker.claim(selection=ORDINARY)]

    def test_a_claimed_suspect_is_the_one_that_was_opened(self, worker: ListeningWorker) -> None:
        [again] = worker.exchange(self.failed_suspect(worker), SUSPECTS)
        assert (True, 1) == (again.is_exclusive, again.item.failures)

    def test_one_that_crashed_once_is_leased_as_any_other(self, worker: ListeningWorker) -> None:
        """Most crashes are accidents."""
        start(worker, crashes=1)
        [leased] = worker.claim(selection=ORDINARY)
        worker.listen()
        failed = Settlement(leased.claim, RowOutcome.FAILED, error="broken")
        [again] = worker.exchange(failed, ORDINARY)
        assert (1, False) == (again.item.crashes, again.is_exclusive)

    @pytest.mark.parametrize(
        ("selection", "outcome"),
        [(ORDINARY, RowOutcome.FAILED), (SUSPECTS, RowOutcome.DONE)],
    )
    def test_other_workers_are_notified_of_what_an_engine_leaves_to_them(
        self, worker: ListeningWorker, selection: RowSelection, outcome: RowOutcome
    ) -> None:
        failed = self.failed_suspect(worker)
        heard = Wakeup()
        [graph_id] = worker.flow.registry.graphs
        stop = worker.database.listen([work_channel(graph_id)], heard)
        heard.clear()
        settlement = failed._replace(outcome=outcome, result=b"1")
        assert [] == worker.exchange(settlement, selection)
        assert eventually(heard.is_set, timeout=TIMEOUT)
        stop()

    @pytest.mark.parametrize(("selection", "may"), [(ANY, 1), (ORDINARY, 1), (SUSPECTS, 0)])
    def test_a_change_reserves_no_room_in_an_engine_for_suspects(
        self, worker: ListeningWorker, selection: RowSelection, may: int
    ) -> None:
        asked: list[int] = []
        engine: Any = SimpleNamespace(
            policy=EnginePolicy(selection=selection), reserve=asked.append
        )
        workers = LocalWorkers()
        [graph_id] = worker.flow.registry.graphs
        with workers.registered(engine, worker.source.eager_leaser):
            assert workers.reserve(graph_id) is None
        assert may == len(asked)


@on_sqlite
def test_an_ordinary_engine_does_not_write_for_suspects(
    worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll that finds only suspects is a read: idle engines leave the one writer alone."""
    start(worker, crashes=2)
    writes: list[object] = []
    monkeypatch.setattr(worker.database, "write_inline", writes.append)
    assert ([], []) == (worker.claim(selection=ORDINARY), writes)
