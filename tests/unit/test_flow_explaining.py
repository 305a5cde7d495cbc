"""Why is nothing happening? What is said of every node, and that it is so."""

from __future__ import annotations

from typing import Any

from longwatch.flow import Graph, compute, input, not_, or_, when  # noqa: A004 - the contract's word
from longwatch.flow.explaining import explained
from longwatch.flow.standing import Cause
from test_flow_advancing import World, even, made, total


def line(world: World, node: str) -> str:
    return explained(world.graph, world.loaded()).line(node)


def word(world: World, node: str) -> str:
    [facts] = [
        facts for facts in explained(world.graph, world.loaded()).nodes if facts.node == node
    ]
    return facts.up


class TestInputs:
    def test_are_set_or_wait_for_somebody(self) -> None:
        world = made("a", "b", c=["a", "b"])
        world.set(a=1)
        assert ("set", "unset") == (word(world, "a"), word(world, "b"))
        assert "a is set, at revision 1" == line(world, "a")
        assert "b waits for somebody to set it" == line(world, "b")


class TestComputed:
    def test_blocked_says_what_is_missing(self) -> None:
        world = made("a", "b", c=["a", "b"])
        world.set(a=1)
        assert "blocked" == word(world, "c")
        assert "c waits for its gate: b is not set" == line(world, "c")

    def test_blocked_by_a_test_says_which(self) -> None:
        world = made("a", b=(when("a", even), total))
        world.set(a=1)
        assert "b waits for its gate: even of a is false" == line(world, "b")

    def test_blocked_does_not_name_what_is_as_it_should_be(self) -> None:
        world = made("a", "stop", b=([when("a", even), not_("stop")], total))
        world.set(a=1)
        assert "b waits for its gate: even of a is false" == line(world, "b")
        world.set(a=2, stop=1)
        assert "b waits for its gate: stop is set" == line(world, "b")

    def test_blocked_by_alternatives_names_each(self) -> None:
        world = made("a", "b", c=(or_("a", "b"), total))
        assert "c waits for its gate: a is not set, b is not set" == line(world, "c")

    def test_waiting_for_a_worker(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        assert "waiting" == word(world, "b")
        assert "b is ready and waits for a worker, attempt 1 of 3" == line(world, "b")

    def test_waiting_again_says_what_went_wrong(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.fail("b")
        assert "b is ready and waits for a worker, attempt 2 of 3 after: broken" == line(world, "b")

    def test_running(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.take("b")
        assert "running" == word(world, "b")
        assert "b is being computed, attempt 1 of 3" == line(world, "b")

    def test_fresh(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.run_all()
        assert ("fresh", "b is computed, at revision 2") == (word(world, "b"), line(world, "b"))

    def test_stale_says_what_it_waits_for(self) -> None:
        world = made("a", b="a", c="b")
        world.set(a=1)
        world.run_all()
        world.set(a=2)
        assert ("stale", "c waits for b to be computed anew") == (
            word(world, "c"),
            line(world, "c"),
        )

    def test_given_up_says_how_often_and_why(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.fail("b", Cause.PERMANENT)
        expected = (
            "b was given up after 1 attempts: broken; retry it, or change what it comes after"
        )
        assert ("failed", expected) == (word(world, "b"), line(world, "b"))

    def test_not_in_line_yet(self) -> None:
        world = made("a", b="a")
        world.set(a=1)
        world.open.clear()
        assert (
            "b could be computed, and is not in line yet: the next change or sweep puts it there"
            == line(world, "b")
        )

    def test_of_a_cancelled_execution(self) -> None:
        world = made("a", b="a", c="a")
        world.set(a=1)
        world.run("b")
        world.cancelled = True
        world.change()
        assert ("fresh", "cancelled") == (word(world, "b"), word(world, "c"))
        assert "c is not computed any more: the execution was cancelled" == line(world, "c")


def test_the_tree_shows_every_condition_met_and_unmet() -> None:
    nodes: list[Any] = [
        input("a"),
        input("b"),
        compute("c", ["a", or_("b", when("a", even))], total),
    ]
    world = World(Graph("g", version="1", nodes=nodes))
    world.set(a=1)
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
    assert expected == str(explained(world.graph, world.loaded()))
