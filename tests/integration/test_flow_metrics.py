"""What is counted and measured of graphs, from the store to the page that Prometheus reads."""

from __future__ import annotations

import http.client
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import requires
from flow_rig import (  # noqa: F401 - fixtures
    NO_SUCH_PID,
    TIMEOUT,
    ManualWorker,
    database_fixture,
    url_fixture,
)
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.events.base import Events
from longwatch.core.events.flow import AttemptsEnded, FlowSweepFinished
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.flow import Flow, FlowContext, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow.backlog import GraphBacklog, read_backlog
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.flow.sweeper import FlowSweeper
from longwatch.observe import Metrics
from longwatch.runtime import LoopGroup
from longwatch.store.database import Database
from longwatch.testing import FakeClock, RecordingObserver
from longwatch.workers.flow_lease_source import FlowLeaseSource
from loop_rig import running_group
from polling import eventually
from worker_process import parse_metrics

QUICKLY = BackoffPolicy(initial=0.01, factor=1.0, cap=0.01)
SILENT = 300.0
"""Longer than any heartbeat may be missing."""


def url_length(url: str) -> int:
    return len(url)


def scrape(version: str = "1", **options: Any) -> Graph:
    return Graph(
        "scrape",
        version=version,
        nodes=[
            input("url"),
            compute("pages", ["url"], url_length, **options),
            compute("titles", ["pages"], lambda pages: ["title"] * pages),
        ],
    )


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def worker(database: Database, observer: RecordingObserver) -> ManualWorker:
    made = ManualWorker(database, scrape())
    made.source.emit_to(Events(observer))
    return made


def ends(observer: RecordingObserver) -> list[tuple[str, str, str, int]]:
    """Node, state, cause and number of what has ended, event by event."""
    return [
        (each.node, each.state, each.cause, each.attempts)
        for each in observer.of(AttemptsEnded)
        if each.graph == "scrape"
    ]


def settle(worker: ManualWorker, *settlements: Settlement) -> list[bool]:
    return worker.source.exchange(
        settlements, owner=worker.owner, limit=0, lease_seconds=0.0
    ).settled


class TestEndedAttempts:
    def test_of_each_node_that_ended_in_the_same_way_are_one_event(
        self, worker: ManualWorker, observer: RecordingObserver
    ) -> None:
        for _ in range(3):
            worker.flow.start("scrape", url="abc")
        good, also_good, bad = [
            Settlement(each.claim, RowOutcome.DONE, result=b"3", seconds=number + 0.5)
            for number, each in enumerate(worker.claim())
        ]
        bad = bad._replace(outcome=RowOutcome.FAILED, result=None, error="broken")
        assert [True] * 3 == settle(worker, good, also_good, bad)
        assert [("pages", "success", "done", 2), ("pages", "failed", "raised", 1)] == ends(observer)
        assert [(0.5, 1.5), (2.5,)] == [each.durations for each in observer.of(AttemptsEnded)]

    def test_released_and_refused_ones_have_not_ended(
        self, worker: ManualWorker, observer: RecordingObserver
    ) -> None:
        worker.flow.start("scrape", url="abc")
        claimed = worker.claim_one()
        assert worker.release(claimed)
        assert not worker.succeed(claimed, 3)
        assert [] == ends(observer)

    def test_one_that_is_settled_twice_ends_once(
        self, worker: ManualWorker, observer: RecordingObserver
    ) -> None:
        worker.flow.start("scrape", url="abc")
        claimed = worker.claim_one()
        assert [True, False] == [worker.succeed(claimed, 3), worker.succeed(claimed, 3)]
        assert [("pages", "success", "done", 1)] == ends(observer)

    def test_a_transaction_that_fails_ends_none(
        self, worker: ManualWorker, observer: RecordingObserver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker.flow.start("scrape", url="abc")
        claimed = worker.claim_one()

        def fail(*_: object) -> None:
            raise ArithmeticError

        with monkeypatch.context() as patch:
            patch.setattr("longwatch.flow.claim_source.notify_workers", fail)
            with pytest.raises(ArithmeticError):
                worker.succeed(claimed, 3)
        assert [] == ends(observer)
        assert worker.succeed(claimed, 3)
        assert [("pages", "success", "done", 1)] == ends(observer)

    def test_those_that_a_result_makes_useless_are_among_them(
        self, database: Database, observer: RecordingObserver
    ) -> None:
        """`both` runs with the old value of `a` when `a` gets a new one."""
        graph = Graph(
            "scrape",
            version="1",
            nodes=[
                input("n"),
                input("m"),
                compute("a", ["n"], lambda n: n),
                compute("both", ["a", "m"], lambda a, m: a + m),
            ],
        )
        worker = ManualWorker(database, graph)
        worker.source.emit_to(Events(observer))
        execution = worker.flow.start("scrape", n=1, m=1)
        worker.run([worker.claim_one()])
        worker.claim_one()
        execution.set(n=2)
        worker.run([worker.claim_one()])
        assert [
            ("a", "success", "done", 1),
            ("a", "success", "done", 1),
            ("both", "cancelled", "superseded", 1),
        ] == ends(observer)
        assert [(), (), ()] == [each.durations for each in observer.of(AttemptsEnded)]

    def test_without_an_observer_no_event_is_made(self, worker: ManualWorker) -> None:
        worker.source.emit_to(Events())
        worker.flow.start("scrape", url="abc")
        assert {"pages": 1, "titles": 1} == worker.run_all()

    @pytest.mark.parametrize("kind", [FlowClaimSource, FlowLeaseSource], ids=["worker", "parent"])
    def test_those_of_a_dead_worker_are_counted_once_by_the_sweep_that_finds_them(
        self, worker: ManualWorker, kind: type[FlowClaimSource]
    ) -> None:
        observer = RecordingObserver()
        source = kind(worker.database, worker.flow.registry, events=Events(observer))
        for _ in range(2):
            worker.flow.start("scrape", url="abc")
        worker.claim(owner=worker.register_owner(pid=NO_SUCH_PID))
        source.sweep()
        source.sweep()
        assert [("pages", "abandoned", "crash", 2)] == ends(observer)
        [dead] = [each for each in observer.of(FlowSweepFinished) if each.sweep == "dead"]
        assert (2, "") == (dead.rows, dead.error)


class TestSweeps:
    def test_each_run_says_how_many_rows_it_changed_and_how_long_it_took(
        self, worker: ManualWorker
    ) -> None:
        observer, clock = RecordingObserver(), FakeClock()
        source = FlowClaimSource(
            worker.database, worker.flow.registry, clock=clock, events=Events(observer)
        )
        worker.flow.start("scrape", url="abc")
        worker.claim_one()
        worker.database.jump.lease += SILENT
        source.sweep()
        assert [("abandoned", 1, "", 0.0), ("stalled", 0, "", 0.0)] == [
            (each.sweep, each.rows, each.error, each.seconds)
            for each in observer.of(FlowSweepFinished)
        ]
        assert [("pages", "abandoned", "heartbeat", 1)] == ends(observer)

    def test_one_of_a_graph_is_not_named_after_it(self, database: Database) -> None:
        """The names of sweeps are three, however many graphs there are."""
        observer = RecordingObserver()
        flow = Flow(database, [scrape("1"), scrape("2")])
        FlowClaimSource(database, flow.registry, events=Events(observer)).sweep()
        assert ["abandoned", "stalled", "stalled"] == [
            each.sweep for each in observer.of(FlowSweepFinished)
        ]

    @pytest.mark.parametrize(
        ("method", "sweep"), [("_reclaim_lapsed", "abandoned"), ("_reclaim_from_dead", "dead")]
    )
    def test_one_that_fails_says_so(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch, method: str, sweep: str
    ) -> None:
        def fail(*_: object, **__: object) -> int:
            raise ArithmeticError("broken")

        monkeypatch.setattr(FlowSweeper, method, fail)
        observer = RecordingObserver()
        source = FlowClaimSource(worker.database, worker.flow.registry, events=Events(observer))
        with pytest.raises(ArithmeticError):
            source.sweep()
        assert [(sweep, 0, "ArithmeticError: broken")] == [
            (each.sweep, each.rows, each.error)
            for each in observer.of(FlowSweepFinished)
            if each.error
        ]


class TestBacklog:
    def backlog(self, worker: ManualWorker) -> list[GraphBacklog]:
        """Without the fractions of a second that the test itself takes."""
        return sorted(
            each._replace(oldest_ready=each.oldest_ready // 10 * 10)
            for each in read_backlog(worker.database, worker.flow.records)
        )

    def test_of_a_store_without_graphs_is_empty(self, database: Database) -> None:
        assert [] == self.backlog(ManualWorker(database))

    def test_of_a_graph_without_attempts_is_zero(self, worker: ManualWorker) -> None:
        assert [GraphBacklog("scrape", 0, 0, 0, 0.0)] == self.backlog(worker)

    def test_counts_what_is_ready_delayed_and_running(self, worker: ManualWorker) -> None:
        for _ in range(6):
            worker.flow.start("scrape", url="abc")
        ended, failed, delayed = worker.claim(3)
        worker.succeed(ended, 3)
        worker.fail(failed)
        worker.fail(delayed, delay=3600.0)
        worker.claim(1)
        assert [GraphBacklog("scrape", 4, 1, 1, 0.0)] == self.backlog(worker)

    def test_delayed_ones_that_are_due_are_ready(self, worker: ManualWorker) -> None:
        worker.flow.start("scrape", url="abc")
        worker.fail(worker.claim_one(), delay=100.0)
        assert [GraphBacklog("scrape", 0, 1, 0, 0.0)] == self.backlog(worker)
        worker.database.jump.wall += 150.0
        assert [GraphBacklog("scrape", 1, 0, 0, 50.0)] == self.backlog(worker)

    def test_the_oldest_is_the_one_that_is_claimed_next(self, worker: ManualWorker) -> None:
        worker.flow.start("scrape", url="abc")
        worker.database.jump.wall += 100.0
        worker.flow.start("scrape", url="abc")
        worker.database.jump.wall += 50.0
        assert [GraphBacklog("scrape", 2, 0, 0, 150.0)] == self.backlog(worker)
        worker.claim(1)
        assert [GraphBacklog("scrape", 1, 0, 1, 50.0)] == self.backlog(worker)

    def test_the_versions_and_the_capped_nodes_of_a_graph_add_up(self, database: Database) -> None:
        graphs = [scrape("1"), scrape("2", max_running=1)]
        other = Graph("other", version="1", nodes=[input("n"), compute("m", ["n"], lambda n: n)])
        worker = ManualWorker(database, *graphs, other)
        for version in ("1", "2", "2", "2"):
            worker.flow.start("scrape", url="abc", version=version)
        worker.flow.start("other", n=1)
        assert [("other", 1, 0, 0, 0.0), ("scrape", 4, 0, 0, 0.0)] == self.backlog(worker)
        assert 3 == len(worker.claim())
        assert [("other", 0, 0, 1, 0.0), ("scrape", 2, 0, 2, 0.0)] == self.backlog(worker)

    def test_of_graphs_without_code_here_is_there_too(self, worker: ManualWorker) -> None:
        """A graph that no worker computes is the one whose backlog grows."""
        worker.flow.start("scrape", url="abc")
        assert [GraphBacklog("scrape", 1, 0, 0, 0.0)] == self.backlog(ManualWorker(worker.database))


# --- the page of a group ---


@contextmanager
def measured_group(
    database: Database, graph: Graph, **settings: Any
) -> Iterator[tuple[Flow, Callable[[], str]]]:
    """A group with a flow worker, and its page."""
    flow = Flow(database, [graph])
    group = LoopGroup(
        [flow.worker(name="nodes", **settings)],
        health_host="127.0.0.1",
        health_port=0,
        metrics=Metrics(),
        events=Events(),
    )

    def page() -> str:
        assert group.health_address is not None
        connection = http.client.HTTPConnection(*group.health_address, timeout=TIMEOUT)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    with running_group(group):
        yield flow, page


def values(page: str) -> dict[str, float]:
    """The series of a page, without what is common to their names, and without buckets."""
    return {
        f"{name.removeprefix('longwatch_')}{{{','.join(value for _, value in labels)}}}": value
        for (name, labels), value in parse_metrics(page).items()
        if not name.endswith("_bucket")
    }


@contextmanager
def page_after_work(database: Database) -> Iterator[str]:
    """The page after two results, one failure that is retried, and while one attempt runs."""
    gate = threading.Event()
    started = threading.Event()

    def pages(url: str, context: FlowContext) -> int:
        if url == "bad" and context.attempt == 1:
            raise ValueError(url)
        if url == "slow":
            started.set()
            assert gate.wait(TIMEOUT)
        return len(url)

    graph = Graph(
        "scrape",
        version="1",
        nodes=[input("url"), compute("pages", ["url"], pages, retry=QUICKLY)],
    )
    with measured_group(database, graph) as (flow, page):
        try:
            for url in ("abc", "bad"):
                assert 3 == flow.start("scrape", url=url).get("pages", timeout=TIMEOUT)
            flow.start("scrape", url="slow")
            assert started.wait(TIMEOUT)
            assert eventually(lambda: "flow_sweep_seconds_count{stalled}" in values(page()))
            yield page()
        finally:
            gate.set()


def test_the_page_counts_attempts_and_no_messages(database: Database) -> None:
    with page_after_work(database) as page:
        found = values(page)
    assert {
        "flow_attempts_total{done,scrape,pages,success}": 2.0,
        "flow_attempts_total{raised,scrape,pages,failed}": 1.0,
        "flow_attempt_seconds_count{scrape,pages}": 3.0,
        "flow_claimed_total{nodes}": 4.0,
        "flow_ready{scrape}": 0.0,
        "flow_delayed{scrape}": 0.0,
        "flow_running{scrape}": 1.0,
        "flow_oldest_ready_seconds{scrape}": 0.0,
    } == {
        name: value
        for name, value in found.items()
        if name.startswith("flow_") and not name.startswith("flow_sweep") and "_sum" not in name
    }
    assert found["flow_sweep_seconds_count{abandoned}"] >= 1.0
    assert [] == [name for name in found if name.startswith(("mailbox", "messages", "handle"))]
    assert 1.0 == found["leases_held{nodes}"]


def test_promtool_finds_no_fault_in_the_page(database: Database) -> None:
    requires.require_tool("promtool")
    with page_after_work(database) as page:
        pass
    linted = subprocess.run(
        ["promtool", "check", "metrics"],
        check=False,
        input=page,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (0, "", "") == (linted.returncode, linted.stdout, linted.stderr)


def test_an_attempt_that_times_out_ends_once_with_the_time_it_took(database: Database) -> None:
    """The watchdog of the worker settles it; the result of its code comes too late."""

    def pages(url: str, context: FlowContext) -> int:
        if context.attempt == 1:
            assert context.cancel.wakeup.block(TIMEOUT)
        return len(url)

    observer = RecordingObserver()
    graph = Graph(
        "scrape",
        version="1",
        nodes=[
            input("url"),
            compute("pages", ["url"], pages, abandon_after_seconds=1.0, max_attempts=10),
        ],
    )
    flow = Flow(database, [graph])
    with flow.worker(events=Events(observer)):
        assert 3 == flow.start("scrape", url="abc").get("pages", timeout=TIMEOUT)
        assert eventually(lambda: "success" in [state for _, state, *_ in ends(observer)])
    first, *_, last = observer.of(AttemptsEnded)
    assert ("abandoned", "deadline", 1) == (first.state, first.cause, first.attempts)
    assert ("success", "done", 1) == (last.state, last.cause, last.attempts)
    assert len(first.durations) == len(last.durations) == 1
    assert first.durations[0] > 0.0
