"""The drawing of an execution: where nodes stand, and what the SVG shows."""

from __future__ import annotations

from itertools import combinations, pairwise
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from longwatch.page.graph_drawing import SIGNS, DrawnArrow, DrawnNode, draw_graph
from longwatch.page.graph_layout import ROW_GAP, Box, Layout, Size, lay_out

SVG = "{http://www.w3.org/2000/svg}"
Graph = tuple[dict[str, Size], list[tuple[str, str]]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Nodes with sizes, and arrows without a cycle."""
    count = draw(st.integers(1, 14))
    names = [f"n{number}" for number in range(count)]
    size = st.builds(Size, st.floats(40, 200), st.floats(20, 60))
    sizes = {name: draw(size) for name in names}
    pairs = list(combinations(names, 2))
    arrows = draw(st.lists(st.sampled_from(pairs), max_size=30)) if pairs else []
    return {name: sizes[name] for name in draw(st.permutations(names))}, arrows


def overlap(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def passes_through(layout: Layout, box: Box, arrow: tuple[str, str]) -> bool:
    """Whether a straight part of an arrow, through a column, passes through a box."""
    points = layout.routes[arrow][1:-1]
    return any(
        start.x < box.x + box.width and box.x < end.x and box.y < start.y < box.y + box.height
        for number, (start, end) in enumerate(pairwise(points))
        if number % 2 == 0
    )


@given(graph=graphs())
def test_no_nodes_overlap_and_all_are_inside(graph: Graph) -> None:
    layout = lay_out(*graph)
    assert set(graph[0]) == set(layout.boxes)
    for one, other in combinations(layout.boxes.values(), 2):
        assert not overlap(one, other)
    for box in layout.boxes.values():
        assert 0 <= box.x <= layout.width - box.width
        assert 0 <= box.y <= layout.height - box.height


@given(graph=graphs())
def test_every_arrow_leads_to_the_right_from_its_start_to_its_end(graph: Graph) -> None:
    layout = lay_out(*graph)
    assert set(graph[1]) == set(layout.routes)
    for (start, end), points in layout.routes.items():
        assert layout.boxes[start].x + layout.boxes[start].width == points[0].x
        assert layout.boxes[end].x == points[-1].x
        assert all(one.x <= other.x for one, other in pairwise(points))
        assert all(0 <= point.y <= layout.height for point in points)


@given(graph=graphs())
def test_no_arrow_passes_through_a_node(graph: Graph) -> None:
    layout = lay_out(*graph)
    for arrow in layout.routes:
        for name, box in layout.boxes.items():
            assert name in arrow or not passes_through(layout, box, arrow)


def test_a_chain_is_a_straight_line() -> None:
    sizes = {name: Size(100, 40) for name in "abc"}
    layout = lay_out(sizes, [("a", "b"), ("b", "c")])
    assert 1 == len({box.y for box in layout.boxes.values()})


def test_arrows_that_need_not_cross_do_not() -> None:
    names = "abcdef"
    arrows = [("a", "f"), ("b", "e"), ("c", "d")]
    layout = lay_out({name: Size(100, 40) for name in names}, arrows)
    heights = [[layout.boxes[name].y for name in arrow] for arrow in arrows]
    assert all(start == end for start, end in heights)


def test_an_input_stands_beside_the_node_that_needs_it() -> None:
    sizes = {name: Size(100, 40) for name in ("a", "b", "c", "late")}
    layout = lay_out(sizes, [("a", "b"), ("b", "c"), ("late", "c")])
    assert layout.boxes["b"].x == layout.boxes["late"].x


def test_a_thousand_nodes_fan_out_below_each_other() -> None:
    names = [f"n{number}" for number in range(1000)]
    sizes = {name: Size(100, 40) for name in ("start", *names, "end")}
    arrows = [("start", name) for name in names] + [(name, "end") for name in names]
    layout = lay_out(sizes, arrows)
    tops = sorted(layout.boxes[name].y for name in names)
    assert all(below - above >= 40 + ROW_GAP - 0.001 for above, below in pairwise(tops))


def test_a_hundred_nodes_that_all_need_each_other_are_drawn() -> None:
    names = [f"n{number}" for number in range(100)]
    layout = lay_out({name: Size(100, 40) for name in names}, combinations(names, 2))
    assert (100, 4950) == (len(layout.boxes), len(layout.routes))


# --- the SVG ---


def parsed(nodes: list[DrawnNode], arrows: list[DrawnArrow]) -> ET.Element:
    text = draw_graph(nodes, arrows, title="a <title>", description="what & how")
    return ET.fromstring(text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))


def test_the_drawing_shows_every_node_with_its_state_and_every_arrow() -> None:
    nodes = [DrawnNode(state, "compute", state) for state in SIGNS]
    arrows = [DrawnArrow(one, other) for one, other in pairwise(SIGNS)]
    arrows += [DrawnArrow("failed", "set", leads_back=True)]
    found = parsed(nodes, arrows)
    texts = [each.text for each in found.iter(f"{SVG}text")]
    assert [text for name in SIGNS for text in (name, f"{name} · compute")] == texts
    drawn = [each for each in found.iter(f"{SVG}path") if "arrow" in each.get("class", "").split()]
    assert len(SIGNS) == len(drawn)


def test_markup_in_names_is_shown_as_text() -> None:
    name = "<script>alert('1')</script>&\x1b[31m"
    found = parsed([DrawnNode(name, "compute", "failed", "<b>")], [])
    assert ["<script>alert('1')</scrip…", "failed · <b>"] == [
        each.text for each in found.iter(f"{SVG}text")
    ]
    titles = [each.text for each in found.iter(f"{SVG}title")]
    assert ["a <title>", "<script>alert('1')</script>&\\x1b[31m: failed · <b>"] == titles


def test_an_arrow_that_is_both_is_solid_and_drawn_once() -> None:
    nodes = [DrawnNode("a", "input", "set"), DrawnNode("b", "compute", "fresh")]
    arrows = [DrawnArrow("a", "b", is_dashed=True), DrawnArrow("a", "b"), DrawnArrow("b", "b")]
    drawn = [
        each.get("class")
        for each in parsed(nodes, arrows).iter(f"{SVG}path")
        if "arrow" in each.get("class", "").split()
    ]
    assert ["arrow"] == drawn


def test_an_arrow_to_a_node_that_is_not_shown_is_left_out() -> None:
    found = parsed([DrawnNode("a", "input", "set")], [DrawnArrow("a", "gone")])
    assert 1 == len(list(found.iter(f"{SVG}rect")))


def test_a_state_that_is_new_is_shown_by_its_word() -> None:
    found = parsed([DrawnNode("a", "compute", "strange")], [])
    assert "strange · compute" in [each.text for each in found.iter(f"{SVG}text")]
