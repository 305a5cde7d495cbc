"""Waiting for a value: what wakes who waits, what is told him at once, and when there is nothing
to be hoped for.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from flow_rig import (
    TIMEOUT,
    BackgroundCall,
    ManualWorker,
    database_fixture,  # noqa: F401 - a fixture
    notifications_only_fixture,  # noqa: F401 - a fixture
    scrape_graph,
    url_fixture,  # noqa: F401 - a fixture
)
from longwatch.core.clock import Wakeup
from longwatch.errors import (
    ComputationFailedError,
    DeadlineExceededError,
    NotSetError,
)
from longwatch.flow import Execution, Graph, compute, input, or_  # noqa: A004 - the contract's word
from longwatch.flow.records import Records
from longwatch.store.database import Database
from longwatch.testing import FakeClock
from snippet import run_snippet


@pytest.fixture
def clock() -> FakeClock:
    """On which who waits for a value can be seen to wait."""
    return FakeClock()


@pytest.fixture(params=[True, False], ids=["by a worker of this process", "by another"])
def worker(database: Database, clock: FakeClock, request: pytest.FixtureRequest) -> ManualWorker:
    return ManualWorker(database, scrape_graph(), clock=clock, notifies_waiters=request.param)


here = pytest.mark.parametrize("worker", [True], ids=[""], indirect=True)


class ReadCounter:
    """How often somebody who waits has looked for himself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, awaited = 0, Execution._poll_value

        def counted(*given: Any, **named: Any) -> Any:
            self.count += 1
            return awaited(*given, **named)

        monkeypatch.setattr(Execution, "_poll_value", counted)


class TestGet:
    def test_without_waiting_says_that_there_is_none(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        with pytest.raises(NotSetError, match=f"node 'pages' of {execution.id} has no value$"):
            execution.get("pages", wait=False)
        with pytest.raises(NotSetError, match="has no value newer than 1"):
            execution.get("url", wait=False, newer_than=1)
        assert "abc" == execution.get("url", wait=False, newer_than=0)

    def test_without_waiting_takes_an_old_value(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.run_all()
        execution.set(url="abcd")
        assert 3 == execution.get("pages", wait=False)

    def test_says_after_its_time_what_the_node_waits_for(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape")
        with pytest.raises(DeadlineExceededError) as caught:
            execution.get("pages", timeout=0)
        assert (
            f"node 'pages' of {execution.id} has no value after 0 s; pages is waiting for input "
            f"`url`" == str(caught.value)
        )

    def test_ends_after_its_time(self, worker: ManualWorker, clock: FakeClock) -> None:
        execution = worker.flow.start("scrape", url="abc")
        waiting = BackgroundCall(lambda: execution.get("pages", timeout=60))
        clock.await_parked(1)
        clock.advance(60, parked=0)
        assert "has no value after 1 minute; pages is waiting for a worker, attempt 1 of 3" in str(
            waiting.wait()
        )

    @pytest.mark.usefixtures("notifications_only")
    def test_is_woken_by_the_result(self, worker: ManualWorker, clock: FakeClock) -> None:
        execution = worker.flow.start("scrape", url="abc")
        waiting = BackgroundCall(lambda: execution.get("titles", timeout=TIMEOUT))
        clock.await_parked(1)
        worker.run_all()
        assert ["title"] * 3 == waiting.wait()

    @pytest.mark.usefixtures("notifications_only")
    def test_waits_for_the_value_of_the_present_inputs(
        self, worker: ManualWorker, clock: FakeClock
    ) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.run_all()
        execution.set(url="xyz")
        waiting = BackgroundCall(lambda: execution.get("titles", timeout=TIMEOUT))
        clock.await_parked(1)
        assert {"pages": 1} == worker.run_all()
        assert ["title"] * 3 == waiting.wait()

    @pytest.mark.usefixtures("notifications_only")
    def test_waits_for_one_that_is_newer(self, worker: ManualWorker, clock: FakeClock) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.run_all()
        assert 3 == execution.get("pages", newer_than=1, timeout=0)
        waiting = BackgroundCall(lambda: execution.get("pages", newer_than=2, timeout=TIMEOUT))
        clock.await_parked(1)
        execution.set(url="abcd")
        worker.run_all()
        assert 4 == waiting.wait()

    @pytest.mark.usefixtures("notifications_only")
    def test_is_woken_by_another_process(
        self, worker: ManualWorker, clock: FakeClock, url: str
    ) -> None:
        """There is no net below: it is the change that wakes it."""
        execution = worker.flow.start("scrape")
        with run_snippet(OTHER.format(url=url, id=execution.id)) as child:
            assert "ready" == child.read_line()
            heard = BackgroundCall(lambda: execution.get("depth", timeout=TIMEOUT))
            clock.await_parked(1)
            child.send_line()
            assert "of another process" == heard.wait()
            assert "set" == child.read_line()
            assert (0, "") == child.wait()


OTHER = """
    from longwatch.flow import Flow, Graph
    graph = Graph("scrape", version="1")
    graph.input("depth")
    with Flow({url!r}, [graph]) as flow:
        execution = flow.execution({id!r})
        print("ready", flush=True)
        input()
        execution.set(depth="of another process")
        print("set", flush=True)
"""


def break_down(*_: object) -> None:
    raise ValueError("broken")


class TestANotifiedValue:
    """Value, by a worker of the same process."""

    @here
    @pytest.mark.usefixtures("notifications_only")
    def test_is_not_looked_for(
        self, worker: ManualWorker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if worker.database.is_shared:  # everybody is woken once when the ear is there
            heard = Wakeup()
            worker.database.listen("anything", heard)
            assert heard.block(TIMEOUT)
        execution, looks = worker.flow.start("scrape", url="abc"), ReadCounter(monkeypatch)
        waiting = [
            BackgroundCall(lambda: execution.get("titles", timeout=TIMEOUT)) for _ in range(2)
        ]
        clock.await_parked(2)
        worker.run_all()
        assert ([["title"] * 3] * 2, 2) == ([each.wait() for each in waiting], looks.count)
        assert waiting[0].wait() is not waiting[1].wait()

    @here
    def test_counts_once_it_is_committed(
        self, worker: ManualWorker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        execution = worker.flow.start("scrape", url="abc")
        waiting = BackgroundCall(lambda: execution.get("pages", timeout=TIMEOUT))
        clock.await_parked(1)
        leased = worker.claim_one()
        with monkeypatch.context() as patch:
            patch.setattr(Records, "save", break_down)
            with pytest.raises(ValueError, match="broken"):
                worker.succeed(leased, "never kept")
        clock.await_parked(1)
        assert worker.succeed(leased, 3)
        assert 3 == waiting.wait()

    @pytest.mark.usefixtures("notifications_only")
    def test_counts_only_if_it_is_that_of_the_present_inputs(
        self, database: Database, clock: FakeClock
    ) -> None:
        graph = Graph(
            "chain",
            version="1",
            nodes=[
                input("x"),
                compute("a", ["x"], lambda x: x * x),
                compute("b", ["a"], lambda a: f"{a}"),
            ],
        )
        worker = ManualWorker(database, graph, clock=clock, notifies_waiters=True)
        execution = worker.flow.start("chain", x=1)
        assert worker.succeed(worker.claim_one(), 1)
        waiting = BackgroundCall(lambda: execution.get("b", timeout=TIMEOUT))
        clock.await_parked(1)
        of_the_old_one = worker.claim_one()
        execution.set(x=-1)
        assert worker.succeed(of_the_old_one, "1")
        clock.await_parked(1)
        assert worker.succeed(worker.claim_one(), 1)
        assert "1" == waiting.wait()

    @here
    def test_counts_only_if_it_is_new_enough(self, worker: ManualWorker, clock: FakeClock) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.run_all()
        waiting = BackgroundCall(lambda: execution.get("pages", newer_than=2, timeout=TIMEOUT))
        clock.await_parked(1)
        for url in ("xyz", "abcd"):
            clock.await_parked(1)
            execution.set(url=url)
            worker.run_all()
        assert 4 == waiting.wait()

    def test_is_nothing_to_a_forked_child(self) -> None:
        code = """
            import os, threading
            from longwatch.flow.waiters import Waiters
            waiters, stop = Waiters(), threading.Event()
            def wait():
                while not stop.is_set():
                    with waiters.waiting("execution", "node"):
                        pass
            threads = [threading.Thread(target=wait) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(50):
                with waiters.waiting("mine", "node"):
                    if not (child := os.fork()):
                        alone = not waiters._waiting
                        with waiters.waiting("of the child", "node"):
                            os._exit(0 if alone else 1)
                    assert os.waitpid(child, 0)[1] == 0
            stop.set()
            for thread in threads:
                thread.join()
            print(waiters._waiting)
        """
        with run_snippet(code) as snippet:
            assert "{}" == snippet.read_line()
            assert (0, "") == snippet.wait()

    @here
    def test_is_told_to_nobody_who_has_gone(self, worker: ManualWorker, clock: FakeClock) -> None:
        execution = worker.flow.start("scrape", url="abc")
        waiting = BackgroundCall(lambda: execution.get("pages", timeout=1.0))
        clock.await_parked(1)
        clock.advance(1.0, parked=0)
        assert isinstance(waiting.wait(), DeadlineExceededError)
        worker.run_all()
        assert {} == worker.flow.waiters._waiting


class TestHopelessWaits:
    def test_ends_at_once_when_a_node_is_given_up(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.exhaust(execution, "pages")
        with pytest.raises(ComputationFailedError) as caught:
            execution.get("pages")
        expected = (
            f"node 'pages' of {execution.id} will get no value: it failed 3 times: broken; "
            f"`retry` tries it again"
        )
        assert expected == str(caught.value)
        with pytest.raises(
            ComputationFailedError, match="'pages', which it waits for, failed 3 times: broken"
        ):
            execution.get("titles")

    def test_ends_for_what_has_an_old_value_that_will_not_be_replaced(
        self, worker: ManualWorker
    ) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.run_all()
        execution.set(url="abcd")
        worker.give_up(worker.claim_one())
        with pytest.raises(
            ComputationFailedError, match="'pages', which it waits for, failed once: hopeless"
        ):
            execution.get("titles", timeout=0)
        assert ["title"] * 3 == execution.get("titles", wait=False)

    @pytest.mark.usefixtures("notifications_only")
    def test_ends_for_who_waits_already(self, worker: ManualWorker, clock: FakeClock) -> None:
        execution = worker.flow.start("scrape", url="abc")
        waiting = [
            BackgroundCall(partial(execution.get, node, timeout=TIMEOUT))
            for node in ("pages", "titles")
        ]
        clock.await_parked(2)
        worker.give_up(worker.claim_one())
        assert [ComputationFailedError] * 2 == [type(each.wait()) for each in waiting]

    @pytest.mark.usefixtures("notifications_only")
    def test_does_not_end_for_what_does_not_come_after_it(
        self, database: Database, clock: FakeClock
    ) -> None:
        nodes = [
            input("a"),
            input("b"),
            compute("c", "a", lambda a: a),
            compute("d", "b", lambda b: b),
        ]
        worker = ManualWorker(database, Graph("two", version="1", nodes=nodes), clock=clock)
        execution = worker.flow.start("two", a=1)
        worker.give_up(worker.claim_one())
        waiting = [
            BackgroundCall(partial(execution.get, node, timeout=TIMEOUT)) for node in ("b", "d")
        ]
        clock.await_parked(2)
        execution.set(b=2)
        worker.run_all()
        assert [2, 2] == [each.wait() for each in waiting]

    def test_ends_though_others_are_at_work(self, database: Database) -> None:
        nodes = [
            input("a"),
            input("b"),
            compute("c", "a", lambda a: a),
            compute("d", "c", lambda c: c),
            compute("e", "b", lambda b: b),
        ]
        worker = ManualWorker(database, Graph("two", version="1", nodes=nodes))
        execution = worker.flow.start("two", a=1)
        worker.give_up(worker.claim_one())
        execution.set(b=1)
        with pytest.raises(
            ComputationFailedError, match="'c', which it waits for, failed once: hopeless"
        ):
            execution.get("d", timeout=0)

    def test_does_not_end_while_another_way_is_open(self, database: Database) -> None:
        nodes = [
            input("a"),
            compute("b", "a", lambda a: a),
            compute("c", "a", lambda a: a),
            compute("d", or_("b", "c"), lambda b, c: (b, c)),
        ]
        worker = ManualWorker(database, Graph("ways", version="1", nodes=nodes))
        execution = worker.flow.start("ways", a=1)
        b, c = sorted(worker.claim(), key=lambda leased: leased.item.node)
        worker.give_up(b)
        with pytest.raises(DeadlineExceededError):
            execution.get("d", timeout=0)
        worker.succeed(c, 1)
        worker.run_all()
        assert [None, 1] == execution.get("d", timeout=0)

    @pytest.mark.usefixtures("notifications_only")
    def test_ends_when_the_execution_is_cancelled(
        self, worker: ManualWorker, clock: FakeClock
    ) -> None:
        execution = worker.flow.start("scrape")
        waiting = BackgroundCall(lambda: execution.get("pages", timeout=TIMEOUT))
        clock.await_parked(1)
        execution.cancel()
        assert (
            f"node 'pages' of {execution.id} will get no value: the execution was cancelled"
            == str(waiting.wait())
        )
