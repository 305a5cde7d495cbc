"""What goes wrong around the workers of graphs: dead and frozen processes, lost hosts, code that
runs away, stores that fail.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flow_process import (
    DIAMOND,
    FlowProcess,
    FlowProcesses,
    flow_processes,
    inconsistencies,
    unsuccessful_attempts,
)
from flow_stores import KINDS, opened_database, opened_store, store_url
from longwatch.core.events.base import Events
from longwatch.core.events.engine import ClaimSourceFailed
from longwatch.flow import Execution, Flow, FlowContext, Graph
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.testing import RecordingObserver, run_graph
from polling import eventually
from postgres_server import PostgresServer, destroy_server, make_server
from small_disk import fill_disk, small_filesystem

HOUR = 3600.0
TIMEOUT = 30.0
on_each_store = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the killed leave lying around: sockets and pages, in a directory of their own."""
    with TemporaryDirectory(prefix="lw-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


def causes(execution: Execution) -> list[str | None]:
    """How the attempts of an execution ended, in their order."""
    return [each.end_cause for each in execution.computations()]


def wait_for_start(worker: FlowProcess, *, times: int = 1) -> bool:
    return eventually(lambda: len(worker.records("began")) >= times, timeout=TIMEOUT)


def wait_for_event(workers: list[FlowProcess], event: str) -> bool:
    return eventually(
        lambda: all([event] in each.journal.entries("told") for each in workers), timeout=TIMEOUT
    )


class TestAFiveHourJobWhoseWorkerDiesInItsFirstMinute:
    @on_each_store
    def test_on_another_host_is_back_after_its_heartbeat_timeout(
        self, kind: str, tmp_path: Path
    ) -> None:
        graph = Graph("scrape", version="1")
        graph.input("url")

        @graph.compute(
            after=["url"],
            abandon_after_seconds=6 * HOUR,
            heartbeat_interval_seconds=40,
            heartbeat_timeout_seconds=240,
        )
        def pages(url: str, context: FlowContext) -> int:
            run.advance(5 * HOUR if context.attempt > 1 else 60.0)
            return len(url)

        with opened_store(kind, tmp_path) as store, run_graph(graph, store) as run:
            execution = run.start(url="abc")
            run.crash_at("renewed", on_other_host=True)
            run.run_ready()
            run.advance(239.0)
            assert 1 == run.runs["pages"]
            run.advance(1.0)
            assert 3 == execution.get("pages", wait=False)
            assert ["lost", "done"] == causes(execution)

    @on_each_store
    def test_on_this_host_is_begun_by_another_at_once(self, kind: str, tmp_path: Path) -> None:
        """The heartbeat timeout is 240 s: whoever goes on within the patience of this test has
        seen the death itself.
        """
        with (
            store_url(kind, tmp_path) as url,
            flow_processes(url, tmp_path, "job", abandon_after_seconds=5 * HOUR) as rig,
        ):
            first = rig.start_worker()
            execution = rig.flow.start("job", until=str(tmp_path / "until"))
            assert wait_for_start(first)
            second = rig.start_worker()
            rig.kill(first)
            assert wait_for_start(second)
            (tmp_path / "until").touch()
            [note] = second.records("began")
            assert [2, note.token] == execution.get("work", timeout=TIMEOUT)
            assert ["crash", "done"] == causes(execution)
            assert rig.killed_attempts == unsuccessful_attempts(execution.computations()).keys()

    def test_on_a_real_process_of_another_boot_it_takes_the_timeout_and_no_more(
        self, tmp_path: Path
    ) -> None:
        """The server's clock judges: it is moved for the one that looks."""
        with store_url("postgresql", tmp_path) as url, flow_processes(url, tmp_path, "job") as rig:
            first = rig.start_worker(boot="another")
            execution = rig.flow.start("job", until=str(tmp_path / "until"))
            assert wait_for_start(first)
            first.kill()
            (tmp_path / "until").touch()
            with rig.flow.worker(sweep_interval_seconds=0.05):
                rig.database.jump.lease = 200.0
                assert wait_for_sweeps(rig.flow, times=3)
                assert [None] == causes(execution)
                rig.database.jump.lease = 241.0
                assert 2 == execution.get("work", timeout=TIMEOUT)[0]
            assert ["lost", "done"] == causes(execution)


def wait_for_sweeps(flow: Flow, *, times: int) -> bool:
    """Whether so many more sweeps for abandoned attempts are made."""

    def made() -> int:
        return sum(run.sweep == "abandoned" for run in flow.sweeps(limit=1000))

    before = made()
    return eventually(lambda: made() >= before + times, timeout=TIMEOUT)


class TestAFrozenWorker:
    @on_each_store
    def test_is_given_up_and_its_late_result_is_refused(self, kind: str, tmp_path: Path) -> None:
        short = {"heartbeat_interval_seconds": 0.5, "heartbeat_timeout_seconds": 2.0}
        with store_url(kind, tmp_path) as url, flow_processes(url, tmp_path, "job", **short) as rig:
            until = tmp_path / "until"
            first = rig.start_worker()
            execution = rig.flow.start("job", until=str(until))
            assert wait_for_start(first)
            rig.freeze(first)
            second = rig.start_worker()
            assert wait_for_start(second)
            until.touch()
            [note] = second.records("began")
            assert [2, note.token] == execution.get("work", timeout=TIMEOUT)
            first.resume()
            assert eventually(lambda: bool(first.records("ended")), timeout=TIMEOUT)
            rig.kill(second)
            another = rig.flow.start("job", until=str(until))
            another.get(
                "work", timeout=TIMEOUT
            )  # by the first: what it had to settle before is settled, or refused
            assert [2, note.token] == execution.get("work")
            assert ["heartbeat", "done"] == causes(execution)
            assert {another.id, execution.id} == {each.execution for each in first.records("ended")}


class TestALockThatIsNotLetGo:
    """By a worker that freezes in the middle of a transaction; the server ends that after a
    minute.
    """

    @pytest.mark.parametrize(
        "lock",
        [
            "UPDATE longwatch_sweeps SET position = position",
            "SELECT 1 FROM longwatch_executions WHERE execution = 1 FOR UPDATE",
        ],
    )
    def test_keeps_nobody_from_bringing_back_what_others_lost(
        self, tmp_path: Path, lock: str
    ) -> None:
        import psycopg  # noqa: PLC0415 - only where there is a server

        graph = Graph("two", version="1")
        graph.input("number")
        graph.compute(after=["number"], name="node")(lambda number: number)
        with store_url("postgresql", tmp_path) as url, opened_database(url) as store:
            with run_graph(graph, store) as run:
                executions = [run.start(number=number) for number in range(2)]
                run.crash_at("begun", on_other_host=True, times=2)
                run.run_ready()
                run.flow.sweep()
            store.jump.lease = 300.0
            with (
                psycopg.connect(url) as other,
                Flow(store, [graph]).worker(sweep_interval_seconds=0.05),
            ):
                other.execute(lock)
                found = eventually(lambda: bool(executions[1].value("node")), timeout=5.0)
                other.rollback()
            assert found


class TestARunaway:
    @on_each_store
    def test_that_beats_for_ever_ends_at_its_deadline_and_is_tried_again(
        self, kind: str, tmp_path: Path
    ) -> None:
        over = threading.Event()
        graph = Graph("runaway", version="1")
        graph.input("number")

        @graph.compute(
            after=["number"],
            abandon_after_seconds=0.5,
            progress_timeout_seconds=60.0,
            max_attempts=10,
        )
        def node(number: int, context: FlowContext) -> int:
            while context.attempt == 1 and not over.wait(0.01):
                context.beat()
            return context.attempt

        with opened_store(kind, tmp_path) as store:
            flow = Flow(store, [graph])
            with flow.worker(concurrency=2):
                execution = flow.start("runaway", number=1)
                try:
                    value = execution.get("node", timeout=TIMEOUT)
                finally:
                    over.set()
            assert value > 1
            assert value == execution.get("node")
            assert [*["deadline"] * (value - 1), "done"] == causes(execution)


class TestAWallClockThatIsSet:
    @on_each_store
    @pytest.mark.parametrize("jump", [HOUR, -HOUR])
    def test_abandons_nothing_that_runs(self, kind: str, tmp_path: Path, jump: float) -> None:
        over = threading.Event()
        graph = Graph("clock", version="1")
        graph.input("number")
        began = threading.Event()

        @graph.compute(after=["number"])
        def node(number: int) -> int:
            began.set()
            assert over.wait(TIMEOUT)
            return number

        with opened_store(kind, tmp_path) as store:
            flow = Flow(store, [graph])
            with flow.worker(sweep_interval_seconds=0.05):
                execution = flow.start("clock", number=1)
                assert began.wait(TIMEOUT)
                store.jump.wall = jump
                assert wait_for_sweeps(flow, times=5)
                over.set()
                assert 1 == execution.get("node", timeout=TIMEOUT)
            assert ["done"] == causes(execution)


class TestAStoreThatFails:
    EXECUTIONS = 60

    @pytest.fixture
    def server(self) -> Iterator[PostgresServer]:
        made = make_server()
        made.start()
        yield made
        destroy_server(made)

    def started(self, rig: FlowProcesses) -> list[Execution]:
        return [rig.flow.start("diamond", number=number) for number in range(self.EXECUTIONS)]

    def test_a_server_that_crashes_and_comes_back_loses_nothing(
        self, server: PostgresServer, tmp_path: Path
    ) -> None:
        with flow_processes(server.url(), tmp_path, "diamond") as rig:
            workers = [rig.start_worker(), rig.start_worker()]
            executions = self.started(rig)
            for share in (0.7, 0.3):
                wanted = share * len(DIAMOND) * self.EXECUTIONS
                assert eventually(partial(self.fewer_are_missing, rig, wanted), timeout=TIMEOUT)
                server.kill()
                server.start()
            assert eventually(partial(self.complete, rig, executions), timeout=2 * TIMEOUT)
            assert [] == inconsistencies(rig, executions)
            assert {} == unsuccessful_attempts(
                [each for execution in executions for each in execution.computations()]
            )
            assert [None, None] == [worker.process.poll() for worker in workers]

    def fewer_are_missing(self, rig: FlowProcesses, wanted: float) -> bool:
        return len(DIAMOND) * self.EXECUTIONS - len(rig.records("began")) < wanted

    def complete(self, rig: FlowProcesses, executions: list[Execution]) -> bool:
        with suppress(Exception):
            return all("e" in execution.values() for execution in executions)
        return False

    def test_a_file_that_another_process_has_locked_keeps_them_waiting_and_that_is_all(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "flow.db"
        with flow_processes(f"sqlite:///{path}", tmp_path, "diamond") as rig:
            workers = [rig.start_worker(), rig.start_worker()]
            executions = self.started(rig)
            assert all(wait_for_start(worker) for worker in workers)
            with closing(sqlite3.connect(path, isolation_level=None, timeout=TIMEOUT)) as other:
                other.execute("BEGIN IMMEDIATE")
                assert wait_for_event(workers, "claim_source_failed")
                other.execute("COMMIT")
            assert eventually(partial(self.complete, rig, executions), timeout=TIMEOUT)
            assert [] == inconsistencies(rig, executions)
            assert {} == unsuccessful_attempts(
                [each for execution in executions for each in execution.computations()]
            )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_filesystem(tmp_path) as place:
        yield place


class TestAFullDisk:
    def test_keeps_a_result_waiting_until_there_is_space(self, small_disk: Path) -> None:
        began, over, observer = threading.Event(), threading.Event(), RecordingObserver()
        graph = Graph("large", version="1")
        graph.input("number")

        @graph.compute(after=["number"])
        def node(number: int) -> str:
            began.set()
            assert over.wait(TIMEOUT)
            return "x" * 200_000 * number

        with SqliteDatabase(small_disk / "flow.db") as store:
            flow = Flow(store, [graph])
            with flow.worker(events=Events(observer)):
                execution = flow.start("large", number=1)
                assert began.wait(TIMEOUT)
                ballast = fill_disk(small_disk)
                over.set()
                failed = observer.wait_for(ClaimSourceFailed)
                ballast.unlink()
                assert 200_000 == len(execution.get("node", timeout=TIMEOUT))
            assert "the disk is full" in failed.error
            assert ["done"] == causes(execution)
