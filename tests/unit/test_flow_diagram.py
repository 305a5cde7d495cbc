from __future__ import annotations

import json
from typing import Any

import pytest

from longwatch.flow import Graph, and_, compute, input, not_, or_, when  # noqa: A004 - the contract's word
from longwatch.flow.attempt import Attempt, AttemptSpec
from longwatch.flow.diagram import mermaid_diagram, text_diagram
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.gates import GateLike, gate_text, to_gate

TERMS = AttemptSpec(1, 240.0, 3600.0, 3)


def anything(**values: Any) -> None: ...


def is_long(value: Any) -> bool:
    return len(value) > 3


def graph_of(*after: GateLike, inputs: str = "a b", name: str = "work") -> Graph:
    """One node that comes after some inputs."""
    nodes = [*map(input, inputs.split()), compute(name, after, anything)]
    return Graph("small", version="1", nodes=nodes)


def execution_state(*, failed: str = "", running: str = "", **values: Any) -> ExecutionState:
    made = ExecutionState(1, "e1", GraphId("small", "1"), revision=3)
    for name, value in values.items():
        made.set_value(name, json.dumps(value))
    if running:
        made.open_attempts[running] = Attempt(
            7, running, 2, f'{{"a":{made.revision_of("a")}}}', 1, TERMS
        )
    if failed:
        stored = made.node(failed)
        stored.failed, stored.attempted_with, stored.failed_attempts = (
            True,
            f'{{"a":{made.revision_of("a")}}}',
            3,
        )
    return made


def arrows(graph: Graph) -> list[str]:
    return [line.strip() for line in mermaid_diagram(graph).splitlines() if "->" in line]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("a", "a"),
        (["a", "b"], "a and b"),
        (["a"], "a"),
        (when("a", is_long), "is_long(a)"),
        (when("a", lambda _: True, text="big enough"), "big enough(a)"),
        (not_("a"), "not a"),
        (not_(when("a", is_long)), "not is_long(a)"),
        (or_("a", not_("b")), "a or not b"),
        (["a", or_("b", "c")], "a and (b or c)"),
        (or_("a", and_("b", "c")), "a or (b and c)"),
        (not_(or_("a", "b")), "not (a or b)"),
        (not_(or_("a")), "not a"),
        (["a", or_("b")], "a and b"),
    ],
)
def test_a_gate_is_told_in_words_that_cannot_be_misread(condition: GateLike, words: str) -> None:
    assert words == gate_text(to_gate(condition))


def test_the_text_has_a_line_for_every_node_below_what_it_depends_on() -> None:
    nodes = [
        input("a"),
        compute("last", ["middle"], anything),
        compute("middle", ["a"], anything),
        input("unused"),
    ]
    assert [
        "graph small 1",
        "  a       input",
        "  unused  input",
        "  middle  compute  ← a",
        "  last    compute  ← middle",
    ] == text_diagram(Graph("small", version="1", nodes=nodes)).splitlines()


def test_the_text_of_an_execution_says_how_every_node_stands() -> None:
    assert [
        "graph small 1, execution e1 at revision 4",
        "  a     input    set",
        "  b     input    unset",
        "  work  compute  running  ← a",
    ] == text_diagram(graph_of("a"), execution_state(a=1, running="work")).splitlines()
    assert (
        "  work  compute  failed  ← a"
        in text_diagram(graph_of("a"), execution_state(a=1, failed="work")).splitlines()
    )
    assert (
        "  work  compute  blocked  ← a and b"
        in text_diagram(graph_of("a", "b"), execution_state(a=1)).splitlines()
    )


def test_a_graph_without_nodes_is_only_its_name() -> None:
    empty = Graph("empty", version="2")
    assert "graph empty 2" == text_diagram(empty)
    assert ["---", "title: 'graph empty 2'", "---", "flowchart LR"] == mermaid_diagram(
        empty
    ).splitlines()


def test_mermaid_draws_inputs_nodes_and_arrows() -> None:
    assert [
        "---",
        "title: 'graph small 1'",
        "---",
        "flowchart LR",
        '    n1[/"a<br/>input"/]',
        '    n2[/"b<br/>input"/]',
        '    n3["work<br/>compute"]',
        "    n1 --> n3",
        "    n2 --> n3",
    ] == mermaid_diagram(graph_of("a", "b")).splitlines()


@pytest.mark.parametrize(
    ("condition", "drawn"),
    [
        (when("a", is_long), ['n1 -->|"is_long"| n3']),
        (not_("a"), ['n1 -.->|"not"| n3']),
        (not_(not_("a")), ["n1 --> n3"]),
        (not_(when("a", is_long)), ['n1 -.->|"not is_long"| n3']),
        (not_(not_(when("a", is_long))), ['n1 -->|"is_long"| n3']),
        (or_("a", not_("b")), ["n1 --> n3_1", 'n2 -.->|"not"| n3_1', "n3_1 --> n3"]),
        (not_(or_("a", "b")), ["n1 --> n3_1", "n2 --> n3_1", 'n3_1 -.->|"not"| n3']),
        (
            and_("a", or_("b", and_("a", "b"))),
            [
                "n1 --> n3",
                "n2 --> n3_1",
                "n1 --> n3_2",
                "n2 --> n3_2",
                "n3_2 --> n3_1",
                "n3_1 --> n3",
            ],
        ),
    ],
)
def test_arrows_say_what_a_gate_asks_and_meet_where_it_branches(
    condition: GateLike, drawn: list[str]
) -> None:
    assert drawn == arrows(
        Graph(
            "small",
            version="1",
            nodes=[input("a"), input("b"), compute("work", condition, anything)],
        )
    )


def test_where_arrows_meet_says_whether_all_or_any_of_them_are_needed() -> None:
    drawing = mermaid_diagram(graph_of(or_("a", and_("a", "b"))))
    assert '    n3_1{"any of"}' in drawing.splitlines()
    assert '    n3_2{"all of"}' in drawing.splitlines()


def test_mermaid_of_an_execution_colours_every_state_that_there_is_once() -> None:
    lines = mermaid_diagram(graph_of("a"), execution_state(a=1, running="work")).splitlines()
    assert '    n1[/"a<br/>input · set"/]:::set' in lines
    assert '    n3["work<br/>compute · running"]:::running' in lines
    classes = [line.split()[1] for line in lines if "classDef" in line]
    assert ["set", "unset", "running"] == classes


def test_no_name_or_text_of_a_user_is_read_as_something_else() -> None:
    odd = when("end", is_long, text='a "b" <c> #35; & |\n')
    graph = Graph("it's", version="1", nodes=[input("end"), compute("graph", [odd], anything)])
    lines = mermaid_diagram(graph).splitlines()
    assert "title: 'graph it''s 1'" == lines[1]
    assert '    n1 -->|"a #quot;b#quot; #lt;c#gt; #35;35; #amp; #124; "| n2' == lines[-1]


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("a<br/>b", "a#lt;br/#gt;b"),
        ("`**a**`", "#96;**a**#96;"),
        ("%%{init: {}}%%", "#37;#37;{init#58; {}}#37;#37;"),
        ("style x:red", "style x#58;red"),
    ],
)
def test_markup_in_the_text_of_a_test_is_drawn_as_it_is(text: str, drawn: str) -> None:
    assert [f'n1 -->|"{drawn}"| n3'] == arrows(graph_of(when("a", is_long, text=text)))


def star(arms: int) -> Graph:
    nodes = [input("a"), *(compute(f"n{number}", "a", anything) for number in range(arms))]
    return Graph("star", version="1", nodes=nodes)


def test_a_comment_warns_of_a_chart_that_mermaid_does_not_draw_by_default() -> None:
    assert "%%" not in mermaid_diagram(star(500))
    lines = mermaid_diagram(star(501)).splitlines()
    assert lines[4].startswith("    %% 501 arrows, ")
    assert lines[4].endswith("only with a higher maxEdges and maxTextSize")
    assert 4 + 1 + 502 + 501 == len(lines)


def test_a_comment_warns_of_a_chart_with_too_much_text() -> None:
    test = when("a", is_long, text="x" * 50_000)
    assert "    %% 1 arrows, 50" in mermaid_diagram(graph_of(test))
