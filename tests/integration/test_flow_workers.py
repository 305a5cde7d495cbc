"""Workers with threads of their own: what they compute, how many at a time, and how what runs
too long is ended.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine_rig import stop_once_cancelled
from flow_rig import TIMEOUT, database_fixture, migrated_database, on_sqlite, url_fixture  # noqa: F401 - fixtures
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.events.base import Events
from longwatch.core.events.engine import WorkFailed, WorkReleased
from longwatch.core.events.flow import AttemptAbandoned
from longwatch.errors import (
    ComputationFailedError,
    PermanentError,
    Release,
    ShutdownTimeoutError,
    UsageError,
)
from longwatch.flow import Execution, Flow, FlowContext, FlowWorker, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.host.background_thread import BackgroundThread
from longwatch.runtime import LoopGroup
from longwatch.store.database import Database
from longwatch.testing import FakeClock, RecordingObserver
from polling import eventually

NO_BACKOFF = BackoffPolicy(initial=0.0)


def graph(*nodes: Any, **settings: Any) -> Graph:
    return Graph("work", version="1", nodes=[input("a"), *nodes], **settings)


def node(function: Callable[..., Any], name: str = "b", **options: Any) -> Any:
    return compute(name, "a", function, **{"retry": NO_BACKOFF, **options})


def states_of(execution: Execution) -> list[tuple[str, str | None]]:
    return [(each.state, each.end_cause) for each in execution.computations()]


def overran(execution: Execution, cause: str) -> bool:
    """Whether the first attempt was given up for `cause` and a later one counted; a slow machine
    may overrun more than once.
    """
    *given_up, last = states_of(execution)
    return (
        bool(given_up) and {("abandoned", cause)} == set(given_up) and last == ("success", "done")
    )


class ConcurrencyCounter:
    """How many are inside at the same time."""

    def __init__(self) -> None:
        self.most = 0
        self._inside = 0
        self._lock = threading.Lock()

    @contextmanager
    def entered(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1


@contextmanager
def working(database: Database, *graphs: Graph, **settings: Any) -> Iterator[Flow]:
    flow = Flow(database, graphs)
    with flow.worker(**settings):
        yield flow


@on_sqlite
def test_nodes_that_are_async_share_threads_and_each_other_node_has_one_while_it_runs(
    database: Database,
) -> None:
    """Ten executions: ten coroutines and ten blocking calls run at the same time."""
    entered, may_end = threading.Semaphore(0), threading.Event()

    async def wait(a: int) -> int:
        entered.release()
        assert await asyncio.to_thread(may_end.wait, TIMEOUT)
        return a

    def block(a: int) -> int:
        entered.release()
        assert may_end.wait(TIMEOUT)
        return a

    mixed = graph(node(wait, "wait"), node(block, "block"))
    with working(database, mixed, concurrency=40, name="mixed") as flow:
        started = [flow.start("work", a=number) for number in range(10)]
        assert all(entered.acquire(timeout=TIMEOUT) for _ in range(20))
        slot_threads = [each for each in threading.enumerate() if "mixed-slot-" in each.name]
        assert 12 == len(slot_threads)
        may_end.set()
        assert list(range(10)) == [each.get("wait", timeout=TIMEOUT) for each in started]
        assert list(range(10)) == [each.get("block", timeout=TIMEOUT) for each in started]


class TestComputing:
    def test_threads_and_coroutines(self, database: Database) -> None:
        async def later(b: int) -> int:
            await asyncio.sleep(0)
            return b + 1

        made = graph(node(lambda a: a + 1), compute("c", "b", later))
        with working(database, made) as flow:
            assert 3 == flow.start("work", a=1).get("c", timeout=TIMEOUT)

    def test_what_was_ready_before_it_came(self, database: Database) -> None:
        flow = Flow(database, [graph(node(lambda a: a + 1))])
        executions = [flow.start("work", a=number) for number in range(20)]
        with flow.worker(concurrency=4):
            assert [*range(1, 21)] == [
                execution.get("b", timeout=TIMEOUT) for execution in executions
            ]
        assert [[("success", "done")]] * 20 == [states_of(execution) for execution in executions]

    def test_as_many_at_a_time_as_it_was_told(self, database: Database) -> None:
        count, meeting = ConcurrencyCounter(), threading.Barrier(3)

        def meet(a: int) -> int:
            with count.entered():
                meeting.wait(TIMEOUT)
            return a

        with working(database, graph(node(meet)), concurrency=3) as flow:
            executions = [flow.start("work", a=number) for number in range(6)]
            assert [*range(6)] == [execution.get("b", timeout=TIMEOUT) for execution in executions]
        assert 3 == count.most

    def test_the_context_says_what_it_is_about(self, database: Database) -> None:
        seen: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

        def look(a: int, context: FlowContext) -> int:
            remaining = context.deadline.remaining()
            seen.put(
                (
                    context.execution,
                    context.node,
                    context.attempt,
                    context.cancelled,
                    context.lease_lost,
                    remaining,
                )
            )
            seen.put((context.fencing_token,))
            context.beat("half")
            context.logger.info("here")
            if context.attempt < 3:
                raise RuntimeError("again")
            return a

        with working(database, graph(node(look, abandon_after_seconds=100.0))) as flow:
            execution = flow.start("work", a=1)
            assert 1 == execution.get("b", timeout=TIMEOUT)
        told = [seen.get_nowait() for _ in range(6)]
        assert [(execution.id, "b", number, False, False) for number in (1, 2, 3)] == [
            each[:5] for each in told[::2]
        ]
        assert all(0 < each[5] <= 100 for each in told[::2])
        tokens = [each[0] for each in told[1::2]]
        assert sorted(set(tokens)) == tokens
        assert [("failed", "raised")] * 2 + [("success", "done")] == states_of(execution)

    def test_a_short_computation_makes_no_heartbeat_write(
        self,
        database: Database,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        renewals: list[object] = []
        monkeypatch.setattr(FlowClaimSource, "renew", lambda *_, **given: renewals.append(given))
        with working(database, graph(node(lambda a: a))) as flow:
            for number in range(10):
                assert number == flow.start("work", a=number).get("b", timeout=TIMEOUT)
        assert [] == renewals
        assert [(0,)] == database.read(
            lambda tx: tx.rows(
                "SELECT count(*) FROM longwatch_computations WHERE last_heartbeat_at > started_at"
            )
        )

    def test_a_longer_one_is_renewed_while_it_runs(self, database: Database) -> None:
        over, began = threading.Event(), threading.Event()

        def wait(a: int) -> int:
            began.set()
            assert over.wait(TIMEOUT)
            return a

        options: dict[str, Any] = {
            "heartbeat_interval_seconds": 0.2,
            "heartbeat_timeout_seconds": 2.0,
        }
        with working(database, graph(node(wait, **options))) as flow:
            execution = flow.start("work", a=1)
            assert began.wait(TIMEOUT)
            wait_until(lambda: _was_renewed(execution))
            over.set()
            assert 1 == execution.get("b", timeout=TIMEOUT)
        assert [("success", "done")] == states_of(execution)


def _was_renewed(execution: Execution) -> bool:
    [running] = execution.computations()
    return (running.last_heartbeat_at or 0) > (running.started_at or 0)


def wait_until(condition: Callable[[], bool]) -> None:
    """For what gives no sign that one could wait for."""
    news = threading.Event()
    for _ in range(int(TIMEOUT / 0.01)):
        if condition():
            return
        news.wait(0.01)
    pytest.fail("it has not come to hold")


class TestErrors:
    def test_are_tried_again_and_then_given_up(self, database: Database) -> None:
        def broken(a: int) -> int:
            raise RuntimeError(f"no {a}")

        with working(database, graph(node(broken))) as flow:
            execution = flow.start("work", a=1)
            with pytest.raises(ComputationFailedError, match="failed 3 times: RuntimeError: no 1"):
                execution.get("b", timeout=TIMEOUT)
        assert [("failed", "raised")] * 3 == states_of(execution)

    def test_name_the_computation_and_leave_the_traceback(self, database: Database) -> None:
        def divide(a: int) -> float:
            return a / 0

        observer = RecordingObserver()
        with working(
            database, graph(node(divide, max_attempts=1)), events=Events(observer)
        ) as flow:
            execution = flow.start("work", a=1)
            failed = observer.wait_for(WorkFailed)
        assert ("", f"{execution.id}/b") == (failed.message_id, failed.computation)
        assert failed.traceback.endswith(
            "in divide\n    return a / 0\nZeroDivisionError: division by zero"
        )

    def test_are_none_if_the_function_gives_the_computation_back(self, database: Database) -> None:
        runs: list[float] = []

        def wait_for_quota(a: int) -> int:
            runs.append(time.monotonic())
            if len(runs) < 4:
                raise Release
            return a

        observer = RecordingObserver()
        with working(
            database, graph(node(wait_for_quota, max_attempts=1)), events=Events(observer)
        ) as flow:
            execution = flow.start("work", a=1)
            assert 1 == execution.get("b", timeout=TIMEOUT)
        assert [("success", "done")] == states_of(execution)
        assert [0.0, 0.0, 1.0] == [each.delay for each in observer.of(WorkReleased)]
        assert runs[3] - runs[2] > 0.9, "the third release has a minimum delay"

    def test_that_are_permanent_are_the_end_at_once(self, database: Database) -> None:
        def hopeless(a: int) -> int:
            raise PermanentError(f"never {a}")

        with working(database, graph(node(hopeless))) as flow:
            execution = flow.start("work", a=1)
            with pytest.raises(
                ComputationFailedError, match="failed once: PermanentError: never 1"
            ):
                execution.get("b", timeout=TIMEOUT)
        assert [("failed", "permanent")] == states_of(execution)

    @pytest.mark.parametrize("result", [object(), float("nan")])
    def test_a_result_that_cannot_be_kept_is_the_end_at_once(
        self, database: Database, result: Any
    ) -> None:
        async def later(a: int) -> Any:
            return result

        made = graph(node(lambda a: result), node(later, "c"))
        with working(database, made) as flow:
            execution = flow.start("work", a=1)
            for name in ("b", "c"):
                with pytest.raises(
                    ComputationFailedError,
                    match=f"the result of node '{name}' cannot be kept: a value of type",
                ):
                    execution.get(name, timeout=TIMEOUT)
        assert [("failed", "permanent")] * 2 == states_of(execution)

    def test_a_value_that_the_function_does_not_take_is_the_end_at_once(
        self, database: Database
    ) -> None:
        def typed(a: int) -> int:
            return a

        refused = pytest.raises(
            ComputationFailedError, match="the value of 'a' does not fit the function of node 'b'"
        )
        with working(database, graph(node(typed))) as flow, refused:
            flow.start("work", a=[]).get("b", timeout=TIMEOUT)


class TestLimits:
    """Heartbeats are made all the while, every 70 seconds: longer than any of these limits.

    The limits are so short that a machine under load may overrun them once more: hence many
    attempts.
    """

    def test_a_runaway_that_beats_is_ended_at_its_deadline_and_tried_again(
        self, database: Database
    ) -> None:
        reasons: list[str] = []

        def run_away(a: int, context: FlowContext) -> int:
            if context.attempt == 1:
                while not context.cancel.wakeup.block(0.01):
                    context.beat()
                reasons.append(context.cancel.reason)
                return 99
            return a

        observer = RecordingObserver()
        with working(
            database,
            graph(node(run_away, abandon_after_seconds=0.3, max_attempts=10)),
            events=Events(observer),
        ) as flow:
            execution = flow.start("work", a=1)
            assert 1 == execution.get("b", timeout=TIMEOUT)
        assert overran(execution, "deadline")
        assert "it took longer than 0.3 seconds" == execution.computations()[0].error
        assert ["deadline"] == reasons
        assert [cause for _, cause in states_of(execution)[:-1]] == [
            event.cause for event in observer.of(AttemptAbandoned)
        ]

    def test_a_coroutine_is_cancelled_at_its_deadline(self, database: Database) -> None:
        ends: list[str] = []

        async def run_away(a: int, context: FlowContext) -> int:
            if context.attempt == 1:
                try:
                    await asyncio.sleep(10 * TIMEOUT)
                except asyncio.CancelledError:
                    ends.append("cancelled")
                    raise
            return a

        with working(
            database, graph(node(run_away, abandon_after_seconds=0.3, max_attempts=10))
        ) as flow:
            execution = flow.start("work", a=1)
            assert 1 == execution.get("b", timeout=TIMEOUT)
        assert overran(execution, "deadline")
        assert ["cancelled"] == ends

    def test_one_that_does_not_listen_is_retried_elsewhere_and_its_result_does_not_count(
        self, database: Database
    ) -> None:
        over = threading.Event()

        def deaf(a: int, context: FlowContext) -> int:
            if context.attempt == 1:
                assert over.wait(TIMEOUT)
                return 99
            return a

        with working(
            database, graph(node(deaf, abandon_after_seconds=0.3, max_attempts=10)), concurrency=2
        ) as flow:
            execution = flow.start("work", a=1)
            assert 1 == execution.get("b", timeout=TIMEOUT)
            over.set()
        assert 1 == execution.get("b", wait=False)
        assert overran(execution, "deadline")

    def test_one_that_does_not_say_that_it_moves_is_stalled(self, database: Database) -> None:
        def stall(a: int, context: FlowContext) -> int:
            if context.attempt == 1:
                assert context.cancel.wakeup.block(TIMEOUT)
            return a

        with working(
            database, graph(node(stall, progress_timeout_seconds=0.3, max_attempts=10))
        ) as flow:
            execution = flow.start("work", a=1)
            assert 1 == execution.get("b", timeout=TIMEOUT)
        assert overran(execution, "stalled")
        assert "it did not call context.beat() for 0.3 seconds" == execution.computations()[0].error

    def test_one_that_says_so_goes_on(self, database: Database) -> None:
        """Only one that was itself kept from saying so, by a machine that stood still for almost
        that long, may be given up.
        """
        paused: dict[int, float] = {}

        def move(a: int, context: FlowContext) -> int:
            said = time.monotonic()
            for _ in range(20):
                called_off = context.cancel.wakeup.block(0.05)
                said, before = time.monotonic(), said
                paused[context.attempt] = max(said - before, paused.get(context.attempt, 0.0))
                if called_off:
                    raise RuntimeError("called off")
                context.beat()
            return a

        with working(
            database, graph(node(move, progress_timeout_seconds=0.5, max_attempts=10))
        ) as flow:
            execution = flow.start("work", a=1)
            assert 1 == execution.get("b", timeout=TIMEOUT)
        *given_up, last = states_of(execution)
        assert ("success", "done") == last
        assert all(longest > 0.4 for number, longest in paused.items() if number <= len(given_up))


class TestBeingCalledOff:
    @pytest.mark.parametrize("returns", [True, False])
    @pytest.mark.parametrize("way", ["cancel", "set", "abandon"])
    def test_running_code_is_told_and_nothing_of_it_counts(
        self, database: Database, way: str, *, returns: bool
    ) -> None:
        began: queue.SimpleQueue[int] = queue.SimpleQueue()
        told = threading.Event()

        def wait(a: int, context: FlowContext) -> int:
            began.put(a)
            if context.attempt == 1 and a == 1:
                assert context.cancel.wakeup.block(TIMEOUT)
                told.set()
                if not returns:
                    raise RuntimeError("told to stop")
                return 99
            return a

        acts: dict[str, Callable[[Execution], object]] = {
            "cancel": Execution.cancel,
            "set": lambda execution: execution.set(a=2),
            "abandon": lambda execution: execution.abandon("b"),
        }
        with working(database, graph(node(wait)), concurrency=2) as flow:
            execution = flow.start("work", a=1)
            assert 1 == began.get(timeout=TIMEOUT)
            acts[way](execution)
            assert told.wait(TIMEOUT)
            if way != "cancel":
                assert {"set": 2, "abandon": 1}[way] == execution.get("b", timeout=TIMEOUT)
        first = {
            "cancel": ("cancelled", "execution"),
            "set": ("cancelled", "superseded"),
            "abandon": ("abandoned", "asked"),
        }[way]
        assert [first, *[("success", "done")] * (way != "cancel")] == states_of(execution)
        assert int(way != "cancel") == began.qsize()
        assert way != "cancel" or "b" not in execution.values()

    def test_by_the_end_of_the_worker_goes_back_unspent(self, database: Database) -> None:
        began, told = threading.Event(), threading.Event()

        def wait(a: int, context: FlowContext) -> int:
            began.set()
            assert context.cancel.wakeup.block(TIMEOUT)
            told.set()
            raise RuntimeError("told to stop")

        clock = FakeClock()
        flow = Flow(database, [graph(node(wait))], clock=clock)
        worker = flow.worker()
        with worker:
            execution = flow.start("work", a=1)
            assert began.wait(TIMEOUT)
            assert stop_once_cancelled(
                clock, told.is_set, lambda timeout: worker.shutdown(timeout=timeout)
            )
        assert [("not_set", None)] == states_of(execution)
        assert 1 == execution.computations()[0].attempt

    def test_a_shutdown_whose_time_ran_out_says_so_every_time(self, database: Database) -> None:
        """Whichever comes first, the end of the wait or the end of the run: an attempt was left
        behind.
        """
        began, may_end = queue.SimpleQueue[int](), queue.SimpleQueue[int]()

        def wait(a: int) -> int:
            began.put(a)
            return may_end.get(timeout=10 * TIMEOUT)

        flow = Flow(database, [graph(node(wait))])
        worker = flow.worker(concurrency=1, events=Events())
        for number in range(6):
            thread = BackgroundThread(worker.run, name="worker")
            thread.start()
            execution = flow.start("work", a=number)
            assert number == began.get(timeout=TIMEOUT)
            assert not worker.shutdown(timeout=0.02)
            assert thread.done.block(TIMEOUT)
            assert isinstance(thread.error, ShutdownTimeoutError)
            may_end.put(-number)
            assert worker.shutdown(timeout=TIMEOUT)
            assert -number == execution.get("b", timeout=TIMEOUT)


class TestCaps:
    """Over two workers, each with a store of its own to the same rows."""

    @pytest.mark.parametrize("of", ["node", "graph"])
    def test_are_never_exceeded_and_used_in_full(
        self, database: Database, url: str, of: str
    ) -> None:
        count, meeting = ConcurrencyCounter(), threading.Barrier(2)

        def meet(a: int) -> int:
            with count.entered():
                meeting.wait(TIMEOUT)
            return a

        capped: dict[str, Any] = {"max_running": 2}
        made = graph(
            node(meet, **(capped if of == "node" else {})), **(capped if of == "graph" else {})
        )
        with (
            migrated_database(url) as second,
            working(second, made),
            working(database, made) as flow,
        ):
            executions = [flow.start("work", a=number) for number in range(12)]
            assert [*range(12)] == [execution.get("b", timeout=TIMEOUT) for execution in executions]
        assert 2 == count.most

    def test_of_one_node_does_not_keep_the_others(self, database: Database) -> None:
        over = threading.Event()

        def wait(a: int) -> int:
            assert over.wait(TIMEOUT)
            return a

        made = graph(node(wait, max_running=1), node(lambda a: a, "c"))
        with working(database, made, concurrency=2) as flow:
            executions = [flow.start("work", a=number) for number in range(6)]
            assert [*range(6)] == [execution.get("c", timeout=TIMEOUT) for execution in executions]
            over.set()
            assert [*range(6)] == [execution.get("b", timeout=TIMEOUT) for execution in executions]

    def test_of_a_graph_is_shared_by_its_nodes(self, database: Database) -> None:
        count = ConcurrencyCounter()

        def one(a: int) -> int:
            with count.entered():
                return a

        made = graph(node(one, max_running=3), node(one, "c"), max_running=1)
        with working(database, made) as flow:
            executions = [flow.start("work", a=number) for number in range(10)]
            assert [[*range(10)]] * 2 == [
                [each.get(name, timeout=TIMEOUT) for each in executions] for name in ("b", "c")
            ]
        assert 1 == count.most


@on_sqlite
class TestInAGroup:
    @contextmanager
    def grouped(self, worker: FlowWorker) -> Iterator[LoopGroup]:
        group = LoopGroup(
            [worker], health_host="127.0.0.1", health_port=0, events=Events(RecordingObserver())
        )
        thread = BackgroundThread(lambda: group.run(install_signals=False), name="group")
        thread.start()
        try:
            yield group
        finally:
            group.shutdown(timeout=TIMEOUT)
            assert thread.done.block(TIMEOUT)

    def test_it_works_drains_resumes_and_ends(self, database: Database) -> None:
        flow = Flow(database, [graph(node(lambda a: a))])
        worker = flow.worker(name="flow")
        with self.grouped(worker) as group:
            assert 1 == flow.start("work", a=1).get("b", timeout=TIMEOUT)
            assert worker.running
            group.drain()
            wait_until(lambda: _is_draining(worker))
            execution = flow.start("work", a=2)
            assert [("not_set", None)] == states_of(execution)
            group.resume()
            assert 2 == execution.get("b", timeout=TIMEOUT)
        assert not worker.running

    def test_it_is_as_fresh_as_what_it_runs(self, database: Database) -> None:
        over, began = threading.Event(), threading.Event()

        def wait(a: int) -> int:
            began.set()
            assert over.wait(TIMEOUT)
            return a

        flow = Flow(database, [graph(node(wait))])
        worker = flow.worker()
        with self.grouped(worker):
            execution = flow.start("work", a=1)
            assert began.wait(TIMEOUT)
            assert worker.heartbeat.elapsed() < TIMEOUT
            assert eventually(
                lambda: worker.has_reached_store
            )  # the first row may begin before the start has returned
            over.set()
            assert 1 == execution.get("b", timeout=TIMEOUT)

    def test_it_may_run_again(self, database: Database) -> None:
        flow = Flow(database, [graph(node(lambda a: a))])
        worker = flow.worker()
        for number in range(2):
            with worker:
                assert number == flow.start("work", a=number).get("b", timeout=TIMEOUT)
        assert not worker.running


def _is_draining(worker: FlowWorker) -> bool:
    engine = worker._engine
    return engine is not None and engine.draining


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, "3", True, 10**6])
def test_a_worker_of_no_sensible_size_is_refused(concurrency: Any) -> None:
    with pytest.raises(UsageError, match="concurrency must be a whole number from 1 to "):
        Flow("sqlite:///never.db").worker(concurrency=concurrency)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), "5", None])
def test_a_worker_that_sweeps_at_no_sensible_interval_is_refused(interval: Any) -> None:
    with pytest.raises(UsageError, match="sweep_interval_seconds must be a number above 0"):
        Flow("sqlite:///never.db").worker(sweep_interval_seconds=interval)
