"""Why is nothing happening? What is said of every node, and that it is so."""

from __future__ import annotations

from typing import Any

import pytest

from longwatch.flow import Graph, and_, compute, input, not_, or_, when  # noqa: A004 - the contract's word
from longwatch.flow.attempt import AttemptEndCause
from longwatch.flow.explanation import Explanation, explain
from test_flow_propagation import FakeExecution, even, graph_of, total


def explained(execution: FakeExecution) -> Explanation:
    return explain(execution.graph, execution.load())


def line(execution: FakeExecution, node: str) -> str:
    return explain(execution.graph, execution.load()).describe(node)


def word(execution: FakeExecution, node: str) -> str:
    [facts] = [
        facts for facts in explain(execution.graph, execution.load()).nodes if facts.node == node
    ]
    return facts.state


class TestInputs:
    def test_are_set_or_not_set(self) -> None:
        execution = graph_of("a", "b", c=["a", "b"])
        execution.set(a=1)
        assert ("set", "unset") == (word(execution, "a"), word(execution, "b"))
        assert "a is set at revision 1" == line(execution, "a")
        assert "b is not set" == line(execution, "b")


class TestBlocked:
    def test_names_the_input_that_is_missing(self) -> None:
        execution = graph_of("a", "approved", c=["a", "approved"])
        execution.set(a=1)
        assert "blocked" == word(execution, "c")
        assert "c is waiting for input `approved`" == line(execution, "c")

    def test_names_the_node_that_is_not_computed_yet(self) -> None:
        execution = graph_of("a", b="a", c="b")
        execution.set(a=1)
        assert "c is waiting for node `b`" == line(execution, "c")

    def test_says_that_the_node_it_waits_for_was_given_up(self) -> None:
        execution = graph_of("a", b="a", c="b", d="c")
        execution.set(a=1)
        execution.fail("b", AttemptEndCause.PERMANENT)
        assert "c is waiting for node `b`, which was given up" == line(execution, "c")
        assert "d is waiting for node `c`" == line(execution, "d")

    def test_lists_ten_conditions_and_counts_the_others(self) -> None:
        names = [f"n{number}" for number in range(12)]
        execution = graph_of(*names, c=names)
        shown = " and ".join(f"input `{name}`" for name in names[:10])
        assert f"c is waiting for {shown} and 2 more" == line(execution, "c")
        assert all(f"✗ {name} is not set" in str(explained(execution)) for name in names)

    def test_names_each_alternative(self) -> None:
        execution = graph_of("a", "b", c=(or_("a", "b"), total))
        assert "c is waiting for input `a` or input `b`" == line(execution, "c")

    def test_names_the_value_that_a_test_is_about(self) -> None:
        execution = graph_of("a", "x", b=([when("a", even), "x"], total))
        assert "b is waiting for input `a` and input `x`" == line(execution, "b")
        execution.set(a=2)
        assert "b is waiting for input `x`" == line(execution, "b")

    def test_names_what_a_negation_asks_for(self) -> None:
        alternatives = or_("x", not_("stop"), not_(when("a", even)))
        execution = graph_of("a", "stop", "x", b=(alternatives, total))
        execution.set(a=2, stop=1)
        assert (
            "b is waiting for input `x` or `stop` to be unset or even of `a` to be false"
            == line(execution, "b")
        )

    def test_by_the_present_values_says_that_it_is_not_computed(self) -> None:
        execution = graph_of("a", b=(when("a", even), total), c="b")
        execution.set(a=1)
        assert "b is not computed, because even of a is false" == line(execution, "b")
        assert "c is not computed, because b is not set" == line(execution, "c")
        execution = graph_of("a", "x", b=([when("a", even), "x"], total))
        execution.set(a=1)
        assert "b is not computed, because even of a is false and x is not set" == line(
            execution, "b"
        )

    def test_by_a_test_that_raises_shows_the_error_on_a_line_of_its_own(self) -> None:
        execution = graph_of("a", b=(when("a", lambda a: a["x"], text="has x"), total))
        execution.set(a=1)
        assert "b is waiting for has x of `a`, which raises an error" == line(execution, "b")
        *_, condition, error = str(explain(execution.graph, execution.load())).splitlines()
        assert "   ✗ has x of a raised an error" == condition
        assert error.startswith("      error: TypeError: ")


class TestComputed:
    def test_waiting_for_a_worker(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        assert "waiting" == word(execution, "b")
        assert "b is waiting for a worker, attempt 1 of 3" == line(execution, "b")

    def test_waiting_again_says_what_went_wrong(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b")
        assert "b is waiting for a worker, attempt 2 of 3" == line(execution, "b")
        tree = str(explain(execution.graph, execution.load())).splitlines()
        assert (
            "   last error: broken"
            == tree[tree.index("b: waiting for a worker, attempt 2 of 3") + 1]
        )
        assert "errors in full: longwatch flow show MODULE:FLOW e --errors" == tree[-1]

    def test_an_error_of_several_lines_is_cut_to_its_first(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b", error="ended by SIGKILL\n--- stderr\nTraceback: …")
        tree = str(explain(execution.graph, execution.load()))
        assert "   last error: ended by SIGKILL…\n" in tree
        assert "stderr" not in tree
        execution.fail("b", error="x" * 1000)
        assert f"   last error: {'x' * 120}…\n" in str(explain(execution.graph, execution.load()))

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
        assert ("fresh", "b is computed at revision 2") == (
            word(execution, "b"),
            line(execution, "b"),
        )

    def test_stale_says_what_it_waits_for(self) -> None:
        execution = graph_of("a", b="a", c="b")
        execution.set(a=1)
        execution.run_all()
        execution.set(a=2)
        assert ("stale", "c is out of date, waiting for node `b`") == (
            word(execution, "c"),
            line(execution, "c"),
        )

    def test_given_up_says_how_often_and_why(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.fail("b", AttemptEndCause.PERMANENT)
        expected = "b is given up after 1 attempt; retry it, or change one of its inputs"
        assert ("failed", expected) == (word(execution, "b"), line(execution, "b"))

    def test_not_in_line_yet(self) -> None:
        execution = graph_of("a", b="a")
        execution.set(a=1)
        execution.open.clear()
        assert "b is ready; the next get, set or sweep queues it" == line(execution, "b")

    def test_of_a_cancelled_execution(self) -> None:
        execution = graph_of("a", b="a", c="a")
        execution.set(a=1)
        execution.run("b")
        execution.cancelled = True
        execution.change()
        assert ("fresh", "cancelled") == (word(execution, "b"), word(execution, "c"))
        assert "c is not computed: the execution was cancelled" == line(execution, "c")


@pytest.mark.parametrize(
    ("is_archived", "ended"), [(True, "is archived"), (False, "was cancelled")]
)
def test_an_outdated_node_of_an_ended_execution_waits_for_nothing(
    *, is_archived: bool, ended: str
) -> None:
    execution = graph_of("a", b="a", c="b")
    execution.set(a=1)
    execution.run_all()
    execution.set(a=2)
    state = execution.load()
    state.archived, state.cancelled = is_archived, not is_archived
    state.open_attempts.clear()
    [facts] = [each for each in explain(execution.graph, state).nodes if each.node == "c"]
    assert "stale" == facts.state
    assert f"out of date and not computed: the execution {ended}" == facts.text


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
a: set at revision 1
b: not set
c: waiting for input `b` or even of `a` to be true
   ✗ all of
      ✓ a is set
      ✗ any of
         ✗ b is not set
         ✗ even of a is false"""
    assert expected == str(explain(execution.graph, execution.load()))


@pytest.mark.parametrize(
    ("gate", "lines"),
    [
        (["a"], ["✓ a is set"]),
        ([or_("b")], ["✗ b is not set"]),
        (not_("a"), ["✗ a is set"]),
        (not_("b"), ["✓ b is not set"]),
        (not_(not_("b")), ["✗ b is not set"]),
        (not_(when("a", even)), ["✓ even of a is false"]),
        (not_(and_("a", "b")), ["✓ not all of", "   ✓ a is set", "   ✗ b is not set"]),
        (not_(or_("a", "b")), ["✗ none of", "   ✓ a is set", "   ✗ b is not set"]),
        (["a", not_("b")], ["✓ all of", "   ✓ a is set", "   ✓ b is not set"]),
        (not_(not_(or_("a", "b"))), ["✓ any of", "   ✓ a is set", "   ✗ b is not set"]),
    ],
)
def test_the_tree_says_conditions_in_plain_words(gate: Any, lines: list[str]) -> None:
    """A mark means that the line holds or not: `not` never stands above what it negates."""
    execution = graph_of("a", "b", c=(gate, total))
    execution.set(a=1)
    tree = str(explained(execution)).splitlines()
    assert [f"   {each}" for each in lines] == tree[-len(lines) :]
    assert tree[-len(lines) - 1].startswith("c: ")


def test_the_tree_says_how_the_execution_ended_and_what_continues_it() -> None:
    execution = graph_of("a", b="a")
    execution.set(a=1)
    state = execution.load()
    state.archived = True
    archived = "execution e, archived; `longwatch flow unarchive` continues it"
    assert archived == str(explain(execution.graph, state)).splitlines()[0]
    execution.cancelled = True
    execution.change()
    assert str(explained(execution)).startswith("execution e, cancelled for good; start another")


def test_the_tree_names_the_command_that_tries_again() -> None:
    execution = graph_of("a", b="a", c="a")
    execution.set(a=1)
    execution.fail("b", AttemptEndCause.PERMANENT)
    again = "try again: longwatch flow retry MODULE:FLOW e "
    assert f"{again}b" == str(explained(execution)).splitlines()[-1]
    execution.fail("c", AttemptEndCause.PERMANENT)
    assert f"{again}NODE" == str(explained(execution)).splitlines()[-1]


@pytest.mark.parametrize("is_met", [True, False])
def test_twice_the_nodes_take_twice_the_tests_of_gates(*, is_met: bool) -> None:
    """The time is linear: every gate is evaluated a fixed number of times."""
    counts = []
    for nodes in (10, 20):
        calls: list[int] = []

        def test(value: int, calls: list[int] = calls) -> bool:
            calls.append(value)
            return is_met

        names = [f"n{number}" for number in range(nodes)]
        execution = graph_of("a", "x", **{name: ([when("a", test), "x"], total) for name in names})
        execution.set(a=1)
        calls.clear()
        assert nodes == sum(facts.state == "blocked" for facts in explained(execution).nodes)
        counts.append(len(calls))
    assert 2 * counts[0] == counts[1]
