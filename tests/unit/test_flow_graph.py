"""Graphs: what is refused where it is defined, and how the two forms of definition agree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.errors import UsageError
from longwatch.flow import Graph, GraphError, compute, input, or_, when  # noqa: A004 - the contract's word
from longwatch.flow.nodes import MAX_NODE_NAME_LENGTH


def pages(url: str) -> int:
    return len(url)


def titles(pages: int, context: Any) -> list[str]:
    return ["title"] * pages


class Site:
    def pages(self, url: str) -> int:
        return len(url)

    @staticmethod
    def count(url: str) -> int:
        return len(url)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(GraphError) as caught:
        act()
    return str(caught.value)


def graph(*nodes: Any, **settings: Any) -> Graph:
    return Graph("scrape", version="1", nodes=nodes, **settings)


class TestForms:
    def test_list_and_decorators_give_the_same_graph(self) -> None:
        listed = graph(
            input("url"),
            compute("pages", ["url"], pages, max_attempts=5),
            compute("titles", ["pages"], titles),
        )
        decorated = Graph("scrape", version="1")
        decorated.input("url")
        assert pages is decorated.compute(after=["url"], max_attempts=5)(pages)
        assert titles is decorated.compute(after=["pages"])(titles)
        assert listed.nodes == decorated.nodes
        assert listed.computed_nodes == decorated.computed_nodes
        assert repr(listed) == repr(decorated) == "<Graph scrape 1: url, pages, titles>"

    def test_a_decorated_function_may_be_called_otherwise(self) -> None:
        made = graph(input("url"))
        made.compute(after="url", name="count")(pages)
        assert {"url", "count"} == set(made.nodes)

    def test_a_list_may_be_in_any_order(self) -> None:
        made = graph(
            compute("titles", "pages", titles), compute("pages", "url", pages), input("url")
        )
        assert ["pages", "titles"] == [node.name for node in made.computed_nodes]

    @given(st.permutations(range(6)), st.data())
    def test_nodes_are_looked_at_after_what_they_depend_on(
        self, numbers: list[int], data: st.DataObject
    ) -> None:
        above = {
            n: data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True)) if n else []
            for n in range(6)
        }
        nodes = [
            compute(f"n{n}", [f"n{m}" for m in above[n]], lambda **_: 0) if n else input("n0")
            for n in numbers
        ]
        order = [node.name for node in graph(*nodes).computed_nodes]
        assert {f"n{n}" for n in range(1, 6)} == set(order)
        assert all(
            order.index(f"n{m}") < order.index(f"n{n}") for n in range(6) for m in above[n] if m
        )


class TestHoldingTogether:
    def test_a_cycle_is_shown_with_its_path(self) -> None:
        after = {"b": ["a", "d"], "c": ["b"], "d": ["c"]}
        text = refused(
            lambda: graph(
                input("a"),
                *(compute(name, before, lambda **_: 0) for name, before in after.items()),
            )
        )
        path = text.partition("has a cycle: ")[2].partition(";")[0].split(" → ")
        assert path[0] == path[-1]
        assert {("b", "c"), ("c", "d"), ("d", "b")} == set(pairwise(path))

    def test_a_node_after_itself_is_a_cycle(self) -> None:
        text = refused(lambda: graph(input("a"), compute("b", ["a", "b"], lambda **_: 0)))
        assert "graph 'scrape' has a cycle: b → b; a node cannot come after itself" == text

    def test_an_unknown_upstream_names_the_nearest(self) -> None:
        text = refused(lambda: graph(input("url"), compute("pages", ["urls"], lambda urls: urls)))
        assert text.startswith(
            "node 'pages' of graph 'scrape' comes after 'urls', which does not exist; "
        )
        assert text.endswith("did you mean url?")

    def test_an_unknown_upstream_in_a_gate_is_found(self) -> None:
        text = refused(
            lambda: graph(
                input("url"), compute("pages", or_("url", when("zzz", bool)), lambda **_: 0)
            )
        )
        assert "comes after 'zzz', which does not exist; define it first" in text

    def test_two_of_a_name_are_refused(self) -> None:
        expected = "graph 'scrape' has two nodes called 'url'; give one of them another name"
        assert expected == refused(lambda: graph(input("url"), input("url")))
        made = graph(input("url"))
        assert expected == refused(lambda: made.input("url"))

    def test_what_is_refused_leaves_the_graph_as_it_was(self) -> None:
        made = graph(input("url"))
        refused(lambda: made.compute(after="urls")(lambda urls: urls))
        assert (["url"], ()) == (list(made.nodes), made.computed_nodes)

    def test_what_is_no_node_is_refused(self) -> None:
        assert "takes nodes, made by input(), compute() and map(), not 'url'" in refused(
            lambda: graph("url")
        )


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "",
            "a b",
            "1a",
            "a-b",
            "class",
            "context",
            "a" * (MAX_NODE_NAME_LENGTH + 1),
            None,
            3,
            "a\n",
        ],
    )
    def test_of_nodes_are_names_of_parameters(self, name: Any) -> None:
        assert f"{name!r} cannot be the name of a node" in refused(lambda: input(name))
        assert f"{name!r} cannot be the name of a node" in refused(
            lambda: compute(name, ["url"], pages)
        )

    @pytest.mark.parametrize("name", ["a", "_", "größe", "a" * MAX_NODE_NAME_LENGTH])
    def test_whatever_python_takes_is_taken(self, name: str) -> None:
        assert name == input(name).name

    @pytest.mark.parametrize("name", ["", "a" * 201, "a\n", None, 3, b"a"])
    def test_of_graphs_are_printable_text(self, name: Any) -> None:
        assert "the name of a graph is printable text of 1 to 200 characters" in refused(
            lambda: Graph(name, version="1")
        )
        assert "the version of a graph is printable text of 1 to 200 characters" in refused(
            lambda: Graph("a", version=name)
        )

    def test_a_lambda_has_none_to_go_by(self) -> None:
        assert "'<lambda>' cannot be the name of a node" in refused(
            lambda: graph(input("url")).compute(after="url")(lambda url: url)
        )


@pytest.mark.parametrize("most", [0, -1, True, "3", 1.0, 2**31])
def test_the_cap_of_a_graph_is_a_whole_number(most: Any) -> None:
    assert (
        f"max_running of graph 'scrape' must be a whole number of 1 to 2147483647, or None, "
        f"not {most!r}" in refused(lambda: graph(max_running=most))
    )


class TestFunctions:
    def test_it_waits_for_something(self) -> None:
        assert "node 'pages' has no upstream nodes; name them in after=" in refused(
            lambda: compute("pages", [], pages)
        )

    def test_an_unknown_parameter_names_the_nearest(self) -> None:
        text = refused(lambda: compute("pages", ["urls"], pages))
        assert text.startswith("the function of node 'pages' takes 'url', which is not in after=; ")
        assert text.endswith("did you mean urls?")

    def test_an_unknown_parameter_with_nothing_near_names_what_there_is(self) -> None:
        assert "add it to after=, which has a, b" in refused(
            lambda: compute("x", ["a", "b"], lambda zzz: zzz)
        )

    def test_parameters_with_a_default_and_open_ones_are_taken(self) -> None:
        def free(
            url: str, tries: int = 3, *rest: Any, context: Any = None, **others: Any
        ) -> None: ...

        assert ("url",) == compute("x", ["url"], free).upstream

    def test_what_is_taken_by_position_is_refused(self) -> None:
        def positional(url: str, /) -> str:
            return url

        expected = (
            "the function of node 'x' takes 'url' by position; values are passed by name, remove "
            "the /"
        )
        assert expected == refused(lambda: compute("x", ["url"], positional))

    def test_generators_are_refused(self) -> None:
        def generator(url: str) -> Iterator[str]:
            yield url

        async def asynchronous(url: str) -> AsyncIterator[str]:
            yield url

        for each in (generator, asynchronous, partial(generator)):
            assert "the function of node 'x' is a generator" in refused(
                partial(compute, "x", ["url"], each)
            )

    @pytest.mark.parametrize("wrong", [None, 3, "pages"])
    def test_what_cannot_be_called_is_refused(self, wrong: Any) -> None:
        assert f"node 'x' needs a function, not {wrong!r}" == refused(
            lambda: compute("x", ["url"], wrong)
        )

    @pytest.mark.parametrize("wrong", [max, int])
    def test_what_does_not_say_its_parameters_is_refused(self, wrong: Any) -> None:
        text = refused(lambda: compute("x", ["url"], wrong))
        assert f"node 'x' needs a function with a signature, not {wrong!r}" in text

    def test_callables_of_other_kinds_are_taken(self) -> None:
        for each in (Site().pages, Site.count, partial(pages)):
            assert ("url",) == compute("x", ["url"], each).upstream


class TestAProcessOfItsOwn:
    def test_takes_functions_of_modules(self) -> None:
        for each in (pages, Site.count):
            assert each is compute("x", ["url"], each, isolation="process").function

    def test_refuses_what_a_child_cannot_import(self) -> None:
        def local(url: str) -> int:
            return len(url)

        def at_home(url: str) -> int:
            return len(url)

        at_home.__module__, at_home.__qualname__ = "__main__", "at_home"
        for each in (lambda url: url, local, partial(pages), Site().pages, at_home):
            text = refused(partial(compute, "x", ["url"], each, isolation="process"))
            assert (
                "cannot be imported by a child process, which isolation='process' needs; "
                "define it at the top of a module" in text
            )


class TestAsking:
    def test_for_a_node_that_is_not_there_names_the_nearest(self) -> None:
        made = graph(input("url"), compute("pages", "url", pages))
        with pytest.raises(
            UsageError, match=r"graph 'scrape' has no node 'page'; did you mean pages"
        ):
            made.node("page")
        with pytest.raises(
            UsageError, match=r"graph 'scrape' has no node 'zzz'; it has url, pages"
        ):
            made.node("zzz")
        with pytest.raises(UsageError, match=r"has no node 'a'; it has none"):
            graph().node("a")

    def test_for_an_input_says_what_a_computed_node_comes_after(self) -> None:
        made = graph(input("url"), compute("pages", "url", pages))
        assert "url" == made.require_input("url").name
        with pytest.raises(
            UsageError,
            match="node 'pages' of graph 'scrape' is computed; set what it comes after: url",
        ):
            made.require_input("pages")


def test_the_definition_of_a_node_is_the_same_in_every_process() -> None:
    """A set in `after=` has another order in each process: a restart is no change of the graph."""
    code = (
        "from longwatch.flow import compute, when\n"
        "after = {'url', 'depth', 'pages', when('final', lambda final: final)}\n"
        "print(compute('titles', after, lambda **_: 1).definition)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in "123"
    }
    assert {"compute after depth and pages and the test(final) and url\n"} == found
