"""Draws a graph, or an execution of it with the states of its nodes: as text for a terminal, or as
Mermaid for a page.

The functions are pure: they take a graph and optionally the state of an execution, and return text.
The states are those of `explain`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.explanation import explain
from longwatch.flow.gates import AllOf, AnyOf, Gate, IsSet, Not, When
from longwatch.flow.graph import Graph
from longwatch.flow.histories import HistorianNode
from longwatch.flow.mutations import MutateNode
from longwatch.flow.nodes import Node, NodeKind

_COLOURS = {
    "set": "#e8f5e9",
    "fresh": "#c8e6c9",
    "stale": "#fff9c4",
    "waiting": "#e3f2fd",
    "running": "#90caf9",
    "failed": "#ffcdd2",
    "blocked": "#eeeeee",
    "unset": "#ffffff",
    "cancelled": "#d7ccc8",
    "paused": "#ffe0b2",
    "ended": "#eeeeee",
    "archived": "#cfd8dc",
}
"""The colour of each state; white for all others."""
_BOX = ("[", "]")
_SHAPES = {NodeKind.INPUT: ("[/", "/]")}
"""The shape of each kind of node in Mermaid; a box for all others."""
MAX_MERMAID_ARROWS = 500
MAX_MERMAID_CHARACTERS = 50_000
"""What Mermaid draws with its default settings, `maxEdges` and `maxTextSize`."""


def text_diagram(graph: Graph, execution_state: ExecutionState | None = None) -> str:
    """Draw a line for every node in topological order: its name, kind, state and gate."""
    rows = [_row(node, state) for node, state in _node_states(graph, execution_state)]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = (_format_row(row, widths) for row in rows)
    return "\n".join([_title(graph, execution_state), *(f"  {line}" for line in lines)])


def mermaid_diagram(graph: Graph, execution_state: ExecutionState | None = None) -> str:
    """The source of a Mermaid flowchart. Labels of arrows are tests of the value. A dotted arrow is
    a negation, a thick one a node that writes another node.
    """
    nodes = _node_states(graph, execution_state)
    chart = _Flowchart({node.name: f"n{number}" for number, (node, _) in enumerate(nodes, 1)})
    for node, state in nodes:
        chart.node(node, state)
    for node, _ in nodes:
        chart.gate(node)
    chart.colours([state for _, state in nodes if state])
    title = f"title: {_yaml(_title(graph, execution_state))}"
    return "\n".join(["---", title, "---", "flowchart LR", *chart.notes(), *chart.lines])


# --- for both diagrams ---


def _node_states(graph: Graph, execution_state: ExecutionState | None) -> list[tuple[Node, str]]:
    """The nodes, inputs first, each with its state; the state is empty without an execution."""
    nodes = [*(node for node in graph.nodes.values() if node.is_input), *graph.computed_nodes]
    states = (
        {}
        if execution_state is None
        else {facts.node: facts.state for facts in explain(graph, execution_state).nodes}
    )
    return [(node, states.get(node.name, "")) for node in nodes]


def _title(graph: Graph, execution_state: ExecutionState | None) -> str:
    of = (
        ""
        if execution_state is None
        else f", execution {execution_state.id} at revision {execution_state.revision}"
    )
    return f"graph {graph.name} {graph.version}{of}"


# --- text ---


def _row(node: Node, state: str) -> tuple[str, str, str, str]:
    return node.name, node.kind, state, node.relation


def _format_row(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False) if width]
    return "  ".join([*cells, row[-1]]).rstrip()


# --- Mermaid ---


_NEGATIVE, _WRITING = "-.->", "==>"


class _Arrow(NamedTuple):
    """An arrow from a node or a junction, with the test that it stands for."""

    start: str
    label: str = ""
    line: str = "-->"

    @property
    def is_negative(self) -> bool:
        return self.line == _NEGATIVE

    def to(self, end: str) -> str:
        return f"{self.start} {self.line}{f'|{_quoted(self.label)}|' if self.label else ''} {end}"


@dataclass(slots=True)
class _Junctions:
    """Names the junctions in which the arrows of one gate meet."""

    prefix: str
    count: int = 0

    def next(self) -> str:
        self.count += 1
        return f"{self.prefix}_{self.count}"


class _Flowchart:
    """Builds the lines of a flowchart. `ids` has an id for each node, because a node name may be a
    keyword of Mermaid.
    """

    def __init__(self, ids: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._ids = ids
        self._arrow_count = 0

    def notes(self) -> Iterator[str]:
        """A comment if the chart is larger than what Mermaid draws with its default settings."""
        characters = sum(map(len, self.lines))
        if self._arrow_count > MAX_MERMAID_ARROWS or characters > MAX_MERMAID_CHARACTERS:
            yield (
                f"    %% {self._arrow_count} arrows, {characters} characters: Mermaid draws more "
                f"than {MAX_MERMAID_ARROWS} or {MAX_MERMAID_CHARACTERS} only with a higher "
                f"maxEdges and maxTextSize"
            )

    def node(self, node: Node, state: str) -> None:
        when = "" if node.schedule is None else node.schedule.text
        label = _quoted(node.name, " · ".join(filter(None, (node.kind, when, state))))
        left, right = _SHAPES.get(node.kind, _BOX)
        shape = f"{left}{label}{right}"
        self._add_line(f"{self._ids[node.name]}{shape}{f':::{state}' if state else ''}")

    def gate(self, node: Node) -> None:
        parts = node.gate.parts if isinstance(node.gate, AllOf) else (node.gate,)
        junctions = _Junctions(self._ids[node.name])
        for part in parts:
            self._add_arrow(self._arrow(part, junctions), self._ids[node.name])
        if isinstance(node, HistorianNode):
            for name in node.of:
                self._add_arrow(_Arrow(self._ids[name]), self._ids[node.name])
        if isinstance(node, MutateNode):
            self._add_arrow(
                _Arrow(self._ids[node.name], "writes", _WRITING), self._ids[node.writes]
            )

    def colours(self, states: Sequence[str]) -> None:
        for state in dict.fromkeys(states):
            self._add_line(
                f"classDef {state} fill:{_COLOURS.get(state, '#ffffff')},stroke:#555,color:#111"
            )

    def _arrow(self, gate: Gate, junctions: _Junctions) -> _Arrow:
        """Draw the junctions of a gate, and return the arrow that leaves it."""
        match gate:
            case IsSet(node):
                return _Arrow(self._ids[node])
            case When():
                return _Arrow(self._ids[gate.node], gate.text)
            case Not(part):
                inside = self._arrow(part, junctions)
                label = (
                    inside.label.removeprefix("not")
                    if inside.is_negative
                    else f"not {inside.label}"
                )
                line = "-->" if inside.is_negative else _NEGATIVE
                return _Arrow(inside.start, label.strip(), line)
        return _Arrow(self._junction(gate, junctions))

    def _junction(self, gate: Gate, junctions: _Junctions) -> str:
        name = junctions.next()
        self._add_line(f"{name}{{{_quoted('any of' if isinstance(gate, AnyOf) else 'all of')}}}")
        for part in _gate_parts(gate):
            self._add_arrow(self._arrow(part, junctions), name)
        return name

    def _add_arrow(self, arrow: _Arrow, end: str) -> None:
        self._arrow_count += 1
        self._add_line(arrow.to(end))

    def _add_line(self, line: str) -> None:
        self.lines.append(f"    {line}")


def _gate_parts(gate: Gate) -> Iterator[Gate]:
    yield from gate.parts if isinstance(gate, AllOf | AnyOf) else map(IsSet, gate.nodes)


_ESCAPES = str.maketrans(
    {
        "#": "#35;",
        "&": "#amp;",
        '"': "#quot;",
        "<": "#lt;",
        ">": "#gt;",
        "|": "#124;",
        "`": "#96;",  # begins a label in Markdown
        "%": "#37;",  # begins a directive, also inside a label
        ":": "#58;",  # Mermaid looks for styles by `style…:…#…;`, also inside a label
    }
)


def _quoted(*lines: str) -> str:
    """A label of these lines, escaped so that Mermaid reads them as text."""
    return '"' + "<br/>".join(map(_escaped, lines)) + '"'


def _escaped(line: str) -> str:
    plain = "".join(each if each.isprintable() else " " for each in line)
    return plain.translate(_ESCAPES)


def _yaml(title: str) -> str:
    return "'" + title.replace("'", "''") + "'"
