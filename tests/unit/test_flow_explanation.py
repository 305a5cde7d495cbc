"""Why is nothing happening? What is said of every node, and that it is so."""

from __future__ import annotations

from typing import Any

from longwatch.flow import Graph, compute, input, not_, or_, when  # noqa: A004 - the contract's word
from longwatch.flow.execution_state import AttemptEndCause
from longwatch.flow.explanation import explain
from test_flow_propagation import FakeExecution, even, graph_of, total


def line(execution: FakeExecution, node: str) -> str:
    return explain(execution.graph, execution.load()).describe(node)


def word(execution: FakeExecution, node: str) -> str:
    [facts] = [
        facts for facts in explain(execution.graph, execution.load()).nodes if facts.node == node
    ]
    return facts.state


class TestInputs:
    def test_are_set_or_wait_for_somebody(self) -> None:
        execution = graph_of("a", "b", c=["a", "b"])
        execution.set(a=1)
        assert ("set", "unset") == (word(execution, "a"), word(execution, "b"))
        assert "a is set, at revision 1" == line(execution, "a")
        assert "b waits for somebody to set it" == line(execution, "b")


class TestComputed:
    def test_blocked_says_what_is_missing(self) -> None:
        execution = graph_of("a", "b", c=["a", "b"])
        execution.set(a=1)
        assert "blocked" == word(execution, "c")
        assert "c waits for its gate: b is not set" == line(execution, "c")

    def test_blocked_by_a_test_says_which(self) -> None:
        execution = graph_of("a", b=(when("a", even), total))
        execution.set(a=1)
        assert "b waits for its gate: even of a is false" == line(execution, "b")

    def test_blocked_does_not_name_what_is_as_it_should_be(self) -> None:
        execution = graph_of("a", "stop", b=([when("a", even), not_("stop")], total))
        execution.set(a=1)
        assert "b waits for its gate: even of a is false" == line(execution, "b")
        execution.set(a=2, stop=1)
        assert "b waits for its gate: stop is set" == line(execution, "b")

    def test_blocked_by_alternatives_names_each(self) -> None:
        execution = graph_of("a", "b", c=(or_("a", "b"), total))
        assert "c waits for its gate: a is not set, b is not set" == line(execution, "c")

    def test_waiting_for_a_worker(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        assert "waiting" == word(execution, "b")
        assert "b is ready and waits for a worker, attempt 1 of 3" == line(execution, "b")

    def test_waiting_again_says_what_went_wrong(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b")
        assert "b is ready and waits for a worker, attempt 2 of 3 after: broken" == line(
            execution, "b"
        )

    def test_running(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.claim("b")
        assert "running" == word(execution, "b")
        assert "b is being computed, attempt 1 of 3" == line(execution, "b")

    def test_fresh(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.run_all()
        assert ("fresh", "b is computed, at revision 2") == (
            word(execution, "b"),
            line(execution, "b"),
        )

    def test_stale_says_what_it_waits_for(self) -> None:
        execution = graph_of("a", b="a", c="b")
        execution.set(a=1)
        execution.run_all()
        execution.set(a=2)
        assert ("stale", "c waits for b to be computed anew") == (
            word(execution, "c"),
            line(execution, "c"),
        )

    def test_given_up_says_how_often_and_why(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b", AttemptEndCause.PERMANENT)
        expected = (
            "b was given up after 1 attempts: broken; retry it, or change what it comes after"
        )
        assert ("failed", expected) == (word(execution, "b"), line(execution, "b"))

    def test_not_in_line_yet(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.open.clear()
        assert (
            "b could be computed, and is not in line yet: the next change or sweep puts it there"
            == line(execution, "b")
        )

    def test_of_a_cancelled_execution(self) -> None:
        execution = graph_of("a", b="a", c="a")
        execution.set(a=1)
        execution.run("b")
        execution.cancelled = True
        execution.change()
        assert ("fresh", "cancelled") == (word(execution, "b"), word(execution, "c"))
        assert "c is not computed any more: the execution was cancelled" == line(execution, "c")


def test_the_tree_shows_every_condition_met_and_unmet() -> None:
    nodes: list[Any] = [
        input("a"),
        input("b"),
        compute("c", ["a", or_("b", when("a", even))], total),
    ]
    execution = FakeExecution(Graph("g", version="1", nodes=nodes))
    execution.set(a=1)
    expected = """\
execution e
a: set; it is set, at revision 1
b: unset; it waits for somebody to set it
c: blocked; it waits for its gate: b is not set, even of a is false
   ✗ all of
      ✓ a is set
      ✗ any of
         ✗ b is not set
         ✗ even of a is false"""
    assert expected == str(explain(execution.graph, execution.load()))
