"""The picture of an execution: its nodes and arrows as `graph_drawing` takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from longwatch.flow.gates import AllOf, AnyOf, Gate, Not
from longwatch.flow.mutations import MutateNode
from longwatch.flow.nodes import Node
from longwatch.page.graph_drawing import DrawnArrow, DrawnNode, draw_graph

MAX_DRAWN_NODES = 300


def draw_execution(
    nodes: Sequence[Node], states: Mapping[str, str], notes: Mapping[str, str], *, title: str
) -> str:
    """The picture as SVG; empty if there are too many nodes. `notes` follow the states."""
    if len(nodes) > MAX_DRAWN_NODES:
        return ""
    drawn = [
        DrawnNode(each.name, kind_text(each), states[each.name], notes.get(each.name, ""))
        for each in nodes
    ]
    counts = Counter(each.state for each in drawn)
    listed = ", ".join(f"{count} {state}" for state, count in counts.items())
    return draw_graph(
        drawn,
        _arrows(nodes),
        title=title,
        description=f"{len(nodes)} nodes: {listed}. The table of nodes has the same as text.",
    )


def kind_text(node: Node) -> str:
    """The kind of a node in words."""
    return node.kind.replace("_", " ")


def _arrows(nodes: Iterable[Node]) -> Iterator[DrawnArrow]:
    for node in nodes:
        excluded = _excluded(node)
        for name in node.upstream:
            yield DrawnArrow(name, node.name, is_dashed=name in excluded)
        if isinstance(node, MutateNode):
            yield DrawnArrow(node.name, node.writes, leads_back=True)


def _excluded(node: Node) -> set[str]:
    """The nodes that keep a node from being computed: its gate has them only negated."""
    wanted: set[str] = set()
    unwanted: set[str] = set()

    def visit(gate: Gate, *, is_negated: bool) -> None:
        match gate:
            case Not(part):
                visit(part, is_negated=not is_negated)
            case AllOf(parts) | AnyOf(parts):
                for part in parts:
                    visit(part, is_negated=is_negated)
            case _:
                (unwanted if is_negated else wanted).update(gate.nodes)

    visit(node.gate, is_negated=False)
    return unwanted - wanted
