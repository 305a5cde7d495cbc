"""The kinds of nodes that write, record and archive: their definitions."""

from __future__ import annotations

from typing import Any

import pytest

from longwatch.errors import GraphError
from longwatch.flow import (
    Graph,
    archive,
    compute,
    historian,
    input,  # noqa: A004 - the contract's word
    mutate,
)
from longwatch.flow.diagram import mermaid_diagram, text_diagram
from longwatch.flow.nodes import Node


def same(**values: Any) -> Any:
    return next(iter(values.values()))


def graph_of(*nodes: Node) -> Graph:
    return Graph(
        "g",
        version="1",
        nodes=[input("card"), input("go"), compute("paid", ["card"], same), *nodes],
    )


class TestMutateDefinitions:
    def test_the_decorator_and_the_list_define_the_same(self) -> None:
        graph = graph_of()

        @graph.mutate(after=["go"], writes="card", new_revision=True, max_attempts=7)
        def write(go: int) -> int:
            return go

        listed = mutate("write", ["go"], write, writes="card", new_revision=True, max_attempts=7)
        assert listed == graph.nodes["write"]
        assert "mutate after go, writes card with a new revision" == listed.definition

    def test_the_decorator_takes_a_name(self) -> None:
        graph = graph_of()
        graph.mutate(after="go", writes="paid", name="other")(same)
        assert "other" in graph.nodes

    @pytest.mark.parametrize("writes", ["car", "crad"])
    def test_an_unknown_target_is_refused_with_a_suggestion(self, writes: str) -> None:
        with pytest.raises(
            GraphError, match=f"writes '{writes}', which does not exist; did you mean card"
        ):
            graph_of(mutate("m", ["go"], same, writes=writes))

    def test_another_mutate_node_is_no_target(self) -> None:
        with pytest.raises(GraphError, match="'m', which is of kind mutate; name an input or"):
            graph_of(
                mutate("m", ["go"], same, writes="card"), mutate("n", ["go"], same, writes="m")
            )

    @pytest.mark.parametrize("after", ["card", "paid"])
    def test_an_endless_loop_is_refused_with_its_path_and_the_cure(self, after: str) -> None:
        with pytest.raises(GraphError, match=r"card → .*m → card.*new_revision=False"):
            graph_of(mutate("m", [after], same, writes="card", new_revision=True))
        graph_of(mutate("m", [after], same, writes="card"))

    def test_an_endless_loop_over_two_writers_is_refused(self) -> None:
        there = mutate("there", ["go"], same, writes="card", new_revision=True)
        with pytest.raises(GraphError, match="would never come to rest"):
            graph_of(there, mutate("back", ["paid"], same, writes="go", new_revision=True))
        graph_of(there, mutate("back", ["paid"], same, writes="go"))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"writes": 5}, "takes the name of a node, not 5"),
            ({"writes": "card", "new_revision": 1}, "is True or False, not 1"),
            ({"writes": "card", "heartbeat_interval_seconds": 200}, "unsafe heartbeat"),
            ({"writes": "card", "wirtes": "card"}, "unknown option 'wirtes'"),
        ],
    )
    def test_wrong_options_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(GraphError, match=message):
            mutate("m", ["go"], same, **options)

    def test_diagrams_show_what_it_writes(self) -> None:
        graph = graph_of(mutate("m", ["go"], same, writes="card"))
        assert "m     mutate   ← go, writes card" in text_diagram(graph)
        assert 'n4 ==>|"writes"| n1' in mermaid_diagram(graph)


class TestHistorianDefinitions:
    def test_the_method_and_the_list_define_the_same(self) -> None:
        graph = graph_of()
        graph.historian("log", of=["go", "card"], max_entries=5)
        assert historian("log", ["go", "card"], max_entries=5) == graph.nodes["log"]
        assert "historian of card, go" == graph.nodes["log"].definition

    @pytest.mark.parametrize("of", [[], None, [5], 5])
    def test_it_needs_names_of_nodes(self, of: Any) -> None:
        with pytest.raises(GraphError, match="of= of node 'log' takes names of nodes"):
            historian("log", of)

    @pytest.mark.parametrize("max_entries", [0, -1, 1.5, True, None])
    def test_its_bound_is_a_whole_number(self, max_entries: Any) -> None:
        with pytest.raises(GraphError, match="max_entries of node 'log' must be a whole number"):
            historian("log", ["go"], max_entries=max_entries)

    def test_unknown_nodes_are_refused_with_a_suggestion(self) -> None:
        with pytest.raises(GraphError, match="did you mean card"):
            graph_of(historian("log", ["crad"]))

    def test_a_cycle_over_its_nodes_is_refused(self) -> None:
        with pytest.raises(GraphError, match="has a cycle"):
            graph_of(compute("a", ["log"], same), historian("log", ["a"]))

    def test_a_mutation_after_the_history_of_its_target_is_refused(self) -> None:
        log = historian("log", ["card"])
        with pytest.raises(GraphError, match=r"would never come to rest: .*let 'm' come after"):
            graph_of(log, mutate("m", ["log"], same, writes="card"))
        graph_of(log, mutate("m", ["log"], same, writes="go"))

    def test_it_is_no_target_of_mutations(self) -> None:
        with pytest.raises(GraphError, match="'log', which is of kind historian"):
            graph_of(historian("log", ["card"]), mutate("m", ["go"], same, writes="log"))

    def test_diagrams_show_what_it_records(self) -> None:
        graph = graph_of(historian("log", ["card", "go"]))
        assert "log   historian  ← changes of card, go" in text_diagram(graph)
        assert {"n1 --> n4", "n2 --> n4"} <= {
            line.strip() for line in mermaid_diagram(graph).splitlines()
        }


class TestArchiveDefinitions:
    def test_the_method_and_the_list_define_the_same(self) -> None:
        graph = graph_of()
        graph.archive("put_away", after=["paid"])
        assert archive("put_away", ["paid"]) == graph.nodes["put_away"]
        assert "archive after paid" == graph.nodes["put_away"].definition

    def test_it_needs_upstream_nodes_that_exist(self) -> None:
        with pytest.raises(GraphError, match="'put_away' has no upstream nodes"):
            archive("put_away", [])
        with pytest.raises(GraphError, match="did you mean paid"):
            graph_of(archive("put_away", ["payd"]))

    def test_it_is_no_target_of_mutations(self) -> None:
        with pytest.raises(GraphError, match="'put_away', which is of kind archive"):
            graph_of(archive("put_away", ["paid"]), mutate("m", ["go"], same, writes="put_away"))

    def test_diagrams_show_it(self) -> None:
        assert "put_away  archive  ← paid" in text_diagram(graph_of(archive("put_away", ["paid"])))
