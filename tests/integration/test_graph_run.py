"""The test kit for graphs: what a test of a graph may rely on, on both stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flow_stores import KINDS, opened_store
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.events.flow import AttemptAbandoned, AttemptsEnded, FlowSweepFinished
from longwatch.errors import ComputationFailedError, NotSetError, PermanentError, UsageError
from longwatch.flow import Execution, FlowContext, Graph
from longwatch.testing import GraphRun, Step, check_graph, run_graph
from longwatch.testing.stepped_worker import KilledError

HOUR = 3600.0


@contextmanager
def running_node(work: object, **options: object) -> Iterator[GraphRun]:
    """A graph of one node that does this work, being run; its options are those of the node."""
    graph = Graph("one", version="1")
    graph.input("number")
    graph.compute(after=["number"], name="node", **options)(work)  # type: ignore[type-var]
    with run_graph(graph) as run:
        yield run


def scrape() -> Graph:
    """A diamond with an async side."""
    graph = Graph("scrape", version="1")
    graph.input("url")

    @graph.compute(after=["url"])
    def pages(url: str) -> int:
        return len(url)

    @graph.compute(after=["pages"])
    async def words(pages: int) -> int:
        return pages * 100

    @graph.compute(after=["pages"])
    def links(pages: int) -> int:
        return pages * 2

    @graph.compute(after=["words", "links"])
    def report(words: int, links: int) -> int:
        return words + links

    return graph


SEEN: list[int] = []


def see(number: int) -> int:
    SEEN.append(number)
    return number


def attempt_states(execution: Execution, node: str = "node") -> list[tuple[str, str | None]]:
    """How the attempts at a node went."""
    return [(each.state, each.end_cause) for each in execution.computations() if each.node == node]


class TestSettling:
    def test_computes_all_that_is_ready_and_what_follows_from_it_async_functions_too(self) -> None:
        with run_graph(scrape()) as run:
            execution = run.start(url="abc")
            assert {"url": "abc"} == execution.values()
            assert 4 == run.run_ready()
            assert {
                "url": "abc",
                "pages": 3,
                "words": 300,
                "links": 6,
                "report": 306,
            } == execution.values()

    def test_counts_how_often_each_node_ran(self) -> None:
        with run_graph(scrape()) as run:
            execution = run.start(url="abc")
            run.run_ready()
            execution.set(url="xyz")
            run.run_ready()
            assert {"pages": 2, "words": 1, "links": 1, "report": 1} == run.runs

    def test_starts_no_thread_but_the_stores_and_runs_the_code_in_that_of_the_test(self) -> None:
        seen: list[object] = []

        async def node(number: int) -> None:
            seen.append(threading.current_thread())

        before = set(threading.enumerate())
        with running_node(node) as run:
            run.start(number=1)
            run.run_ready()
            started = {thread.name for thread in set(threading.enumerate()) - before}
        assert [threading.current_thread()] == seen
        assert [] == [name for name in started if "lone-worker" in name]

    def test_what_would_have_a_process_of_its_own_runs_here_too(self) -> None:
        SEEN.clear()
        with running_node(see, isolation="process") as run:
            execution = run.start(number=7)
            run.run_ready()
            assert 7 == execution.get("node")
        assert [7] == SEEN

    def test_can_be_watched_step_by_step(self) -> None:
        seen: list[tuple[str, list[str]]] = []
        with running_node(lambda number: number) as run:
            execution = run.start(number=1)
            run.on_step = lambda step, _: seen.append(
                (step, [each.state for each in execution.computations()])
            )
            run.run_ready()
        computing = ["claimed", "begun", "computed", "finished"]
        assert [*((step, ["computing"]) for step in computing), ("settled", ["success"])] == seen

    def test_a_get_that_would_wait_for_ever_says_what_to_do_instead(self) -> None:
        with (
            run_graph(scrape()) as run,
            pytest.raises(AssertionError, match=r"call run.run_ready\(\)"),
        ):
            run.start(url="abc").get("report")

    def test_code_that_is_given_up_is_told_as_in_life(self) -> None:
        def node(number: int) -> None:
            raise PermanentError(f"{number} is too much")

        with running_node(node) as run:
            execution = run.start(number=9)
            run.run_ready()
            with pytest.raises(ComputationFailedError, match="9 is too much"):
                execution.get("node")

    def test_the_code_of_a_node_cannot_settle(self) -> None:
        def node(number: int) -> None:
            runs[0].run_ready()

        with running_node(node, max_attempts=1) as run:
            runs = [run]
            execution = run.start(number=1)
            run.run_ready()
            with pytest.raises(ComputationFailedError, match="code of a node calls advance"):
                execution.get("node")


class TestTime:
    def failing(self, number: int) -> None:
        raise ValueError(number)

    def test_a_retry_is_due_when_its_backoff_has_passed_and_not_before(self) -> None:
        with running_node(
            self.failing,
            max_attempts=3,
            retry=BackoffPolicy(initial=10.0, factor=3.0, cap=900.0, jitter=0.0),
        ) as run:
            run.start(number=1)
            run.run_ready()
            found = [run.runs["node"]]
            for seconds in (9.0, 1.0, 29.0, 1.0):
                run.advance(seconds)
                found.append(run.runs["node"])
            assert [1, 1, 2, 2, 3] == found

    def test_one_long_advance_makes_everything_due_on_its_way(self) -> None:
        with running_node(self.failing, max_attempts=5) as run:
            execution = run.start(number=1)
            run.advance(HOUR)
            assert 5 == run.runs["node"]
            with pytest.raises(ComputationFailedError):
                execution.get("node")

    def test_finish_lets_pass_what_it_takes(self) -> None:
        with running_node(
            self.failing,
            max_attempts=2,
            retry=BackoffPolicy(initial=900.0, factor=1.0, cap=900.0, jitter=0.0),
        ) as run:
            run.start(number=1)
            run.finish()
            assert 2 == run.runs["node"]

    def test_code_that_takes_long_is_renewed(self) -> None:
        def node(number: int) -> int:
            runs[0].advance(5 * HOUR)
            return number

        with running_node(node, abandon_after_seconds=6 * HOUR) as run:
            runs = [run]
            execution = run.start(number=1)
            run.run_ready()
            assert [("success", "done")] == attempt_states(execution)
            assert 5 * HOUR // 70 == run.steps[Step.RENEWED, "node"]

    def test_code_that_takes_longer_than_it_may_is_ended_and_tried_again(self) -> None:
        cancelled: list[bool] = []

        def node(number: int, context: FlowContext) -> int:
            runs[0].advance(HOUR if context.attempt == 1 else 1.0)
            cancelled.append(context.cancelled)
            return number

        with running_node(node, abandon_after_seconds=600.0) as run:
            runs = [run]
            execution = run.start(number=1)
            run.run_ready()
            assert [("abandoned", "deadline"), ("success", "done")] == attempt_states(execution)
            assert [True, False] == cancelled
            assert ["deadline"] == [
                event.cause for event in run.observer.events if isinstance(event, AttemptAbandoned)
            ]

    def test_code_that_does_not_say_that_it_moves_is_stalled(self) -> None:
        def node(number: int, context: FlowContext) -> int:
            for _ in range(10):
                runs[0].advance(50.0 if context.attempt == 1 else 20.0)
                if context.attempt == 2:
                    context.beat()
            return number

        with running_node(node, progress_timeout_seconds=40.0) as run:
            runs = [run]
            execution = run.start(number=1)
            run.run_ready()
            assert [("abandoned", "stalled"), ("success", "done")] == attempt_states(execution)

    def test_code_whose_input_changes_meanwhile_is_told_and_its_result_does_not_count(self) -> None:
        lost: list[bool] = []

        def node(number: int, context: FlowContext) -> int:
            if number == 1:
                executions[0].set(number=2)
                runs[0].advance(1.0)
                lost.append(context.lease_lost)
            return number

        with running_node(node) as run:
            runs, executions = [run], [run.start(number=1)]
            run.run_ready()
            assert 2 == executions[0].get("node")
            assert [True] == lost
            assert [("cancelled", "superseded"), ("success", "done")] == attempt_states(
                executions[0]
            )

    @pytest.mark.parametrize("jump", [HOUR, -HOUR])
    def test_the_wall_clock_may_be_set_without_an_end_to_anything(self, jump: float) -> None:
        def node(number: int) -> int:
            runs[0].clock.jump_wall(jump)
            runs[0].advance(200.0)
            return number

        with running_node(node) as run:
            runs = [run]
            execution = run.start(number=1)
            run.run_ready()
            assert [("success", "done")] == attempt_states(execution)

    def test_a_store_that_was_given_has_its_own_time_again_in_the_end(self, tmp_path: Path) -> None:
        from longwatch.store.sqlite.database import SqliteDatabase  # noqa: PLC0415 - only here

        with SqliteDatabase(tmp_path / "given.db") as database:
            database.jump.wall = 5.0
            with run_graph(scrape(), database) as run:
                run.advance(HOUR)
                assert HOUR - 60 < database.jump.lease <= HOUR
            assert (0.0, 5.0) == (database.jump.lease, database.jump.wall)


class TestCrashes:
    @pytest.mark.parametrize(
        ("step", "calls", "spent"),
        [
            ("claimed", 1, 0),
            ("begun", 1, 1),
            ("computed", 2, 1),
            ("finished", 2, 0),
            ("settled", 1, 0),
        ],
    )
    def test_on_this_machine_another_worker_goes_on_at_once(
        self, step: str, calls: int, spent: int
    ) -> None:
        with run_graph(scrape()) as run:
            execution = run.start(url="abc")
            run.crash_at(step, node="links")
            run.run_ready()
            assert 306 == execution.get("report", wait=False)
            assert calls == run.runs["links"]
            assert [("abandoned", "crash")] * spent + [("success", "done")] == attempt_states(
                execution, "links"
            )
            assert [(step, "links", 1, False)] == [
                (each.step, each.node, each.attempt, each.on_other_host) for each in run.crashes
            ]

    def test_elsewhere_only_the_missing_heartbeat_tells(self) -> None:
        with run_graph(scrape()) as run:
            execution = run.start(url="abc")
            run.crash_at("begun", node="pages", on_other_host=True)
            run.run_ready()
            run.advance(239.0)
            with pytest.raises(NotSetError):
                execution.get("pages", wait=False)
            run.advance(1.0)
            assert 306 == execution.get("report", wait=False)
            assert [("abandoned", "lost"), ("success", "done")] == attempt_states(
                execution, "pages"
            )

    def test_within_code_that_takes_long_it_ends_there_whatever_that_catches(self) -> None:
        after: list[int] = []

        def node(number: int, context: FlowContext) -> int:
            try:
                runs[0].advance(100.0)
            except BaseException:  # noqa: BLE001 - code that would live on
                runs[0].advance(100.0)
            after.append(context.attempt)
            return number

        with running_node(node) as run:
            runs = [run]
            run.crash_at("renewed")
            execution = run.start(number=1)
            run.run_ready()
            assert [2] == after
            assert [("abandoned", "crash"), ("success", "done")] == attempt_states(execution)
            assert [] == [
                event
                for event in run.observer.events
                if not isinstance(event, AttemptAbandoned | AttemptsEnded | FlowSweepFinished)
            ]

    def test_several_in_a_row_spend_all_attempts(self) -> None:
        with run_graph(scrape()) as run:
            execution = run.start(url="abc")
            run.crash_at("begun", node="pages", times=3)
            run.run_ready()
            with pytest.raises(ComputationFailedError, match="its worker ended while it ran"):
                execution.get("pages")

    def test_what_a_killed_worker_would_still_have_settled_does_not_count(self) -> None:
        with run_graph(scrape()) as run:
            execution = run.start(url="abc")
            run.crash_at("computed", node="pages")
            run.crash_at("finished", node="report")
            run.run_ready()
            before = execution.revision
            assert [False, False] == run.settle_late()
            assert before == execution.revision

    def test_not_even_while_another_has_the_same_attempt(self) -> None:
        late: list[bool] = []
        with run_graph(scrape()) as run:
            execution = run.start(url="abc")
            run.crash_at("finished", node="pages")
            run.on_step = lambda step, node: (
                late.extend(run.settle_late()) if (step, node) == ("begun", "pages") else None
            )
            run.run_ready()
            assert [False] == late
            assert [("success", "done")] == attempt_states(execution, "pages")
            assert run.crashes[0].claim.seq == execution.computations()[0].number

    def test_a_step_or_node_that_there_is_not_is_refused_with_the_nearest(self) -> None:
        with run_graph(scrape()) as run:
            with pytest.raises(UsageError, match="did you mean computed"):
                run.crash_at("compute")
            with pytest.raises(UsageError, match="did you mean pages"):
                run.crash_at("computed", node="page")

    def test_the_end_of_a_worker_is_no_exception_that_code_handles(self) -> None:
        assert not issubclass(KilledError, Exception)


class TestCheckGraph:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_graph_survives_a_crash_at_every_step(self, kind: str, tmp_path: Path) -> None:
        with opened_store(kind, tmp_path) as store:
            check_graph(scrape(), lambda run: run.start(url="abc"), store=store)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_map_survives_a_crash_at_every_step(self, kind: str, tmp_path: Path) -> None:
        graph = Graph("squares", version="1")
        graph.input("numbers")
        graph.map("squared", over="numbers", function=lambda number: number * number)

        def scenario(run: GraphRun) -> Execution:
            execution = run.start(numbers=[2, 3])
            run.finish()
            assert [4, 9] == execution.get("squared", wait=False)
            return execution

        with opened_store(kind, tmp_path) as store:
            check_graph(graph, scenario, store=store)

    def test_code_that_takes_long_is_killed_at_its_renewals_as_well(self) -> None:
        runs: list[GraphRun] = []
        graph = Graph("long", version="1")
        graph.input("number")

        @graph.compute(after=["number"])
        def node(number: int) -> int:
            runs[-1].advance(100.0)
            return number

        def scenario(run: GraphRun) -> Execution:
            runs.append(run)
            return run.start(number=1)

        check_graph(graph, scenario)
        assert 1 + 2 * len(Step) == len(runs)

    def test_a_node_with_one_attempt_survives_a_crash_which_is_no_failure(self) -> None:
        graph = Graph("once", version="1")
        graph.input("number")
        graph.compute(after=["number"], name="node", max_attempts=1)(lambda number: number)
        check_graph(graph, lambda run: run.start(number=1))

    def test_a_node_that_cannot_run_twice_does_not_survive_and_that_is_said(self) -> None:
        graph = Graph("once", version="1")
        graph.input("number")

        @graph.compute(after=["number"], max_attempts=1)
        def node(number: int, context: FlowContext) -> int:
            if context.attempt > 1:
                raise ArithmeticError("it was half done")
            return number

        with pytest.raises(
            AssertionError, match="on this machine when 'node' was begun, not computed: node"
        ):
            check_graph(graph, lambda run: run.start(number=1))
        check_graph(graph, lambda run: run.start(number=1), steps=["settled"])

    def test_what_the_scenario_asserts_has_to_hold_after_every_crash(self) -> None:
        sent: list[int] = []
        graph = Graph("mail", version="1")
        graph.input("number")

        @graph.compute(after=["number"])
        def node(number: int) -> None:
            sent.append(number)

        def scenario(run: GraphRun) -> Execution:
            sent.clear()
            execution = run.start(number=1)
            run.finish()
            assert [1] == sent
            return execution

        with pytest.raises(AssertionError, match=r"\[1\] == \[1, 1\]"):
            check_graph(graph, scenario)
