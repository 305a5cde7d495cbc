"""Pictures of a graph, and of how an execution of it stands: as text for a terminal, as Mermaid for
a page.

Pure: a graph, and the standing of an execution if there is one, in; text out. States are those of
`explain`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from longwatch.flow.explaining import explained
from longwatch.flow.gates import All, AnyOf, Gate, Needs, Not, When
from longwatch.flow.graph import Graph
from longwatch.flow.nodes import Node
from longwatch.flow.standing import Standing

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
}


def text(graph: Graph, standing: Standing | None = None) -> str:
    """A line for every node, each below those that it depends on: its name, its kind, its state,
    and its gate in words.
    """
    rows = [_row(node, state) for node, state in _stood(graph, standing)]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = (_line(row, widths) for row in rows)
    return "\n".join([_title(graph, standing), *(f"  {line}" for line in lines)])


def mermaid(graph: Graph, standing: Standing | None = None) -> str:
    """The source of a flowchart. Arrows say what they ask of a value; one with dots is met by
    what is not so.
    """
    nodes = _stood(graph, standing)
    drawing = _Drawing({node.name: f"n{number}" for number, (node, _) in enumerate(nodes, 1)})
    for node, state in nodes:
        drawing.node(node, state)
    for node, _ in nodes:
        drawing.gate(node)
    drawing.colours([state for _, state in nodes if state])
    return "\n".join(
        ["---", f"title: {_yaml(_title(graph, standing))}", "---", "flowchart LR", *drawing.lines]
    )


def gate_text(gate: Gate) -> str:
    """A gate in words: `pages and (draft or not final)`, `is_long(pages)`."""
    match gate:
        case Needs(node):
            return node
        case When():
            return f"{gate.text}({gate.node})"
        case Not(part):
            return f"not {_inner(part)}"
        case All(parts):
            return " and ".join(
                _inner(part) if len(parts) > 1 else gate_text(part) for part in parts
            )
        case AnyOf(parts):
            return " or ".join(
                _inner(part) if len(parts) > 1 else gate_text(part) for part in parts
            )
    return ", ".join(gate.nodes)


def kind_of(node: Node) -> str:
    """`input`, `compute`, or whatever it says that it is."""
    return str(getattr(node, "kind", "input" if node.is_input else "compute"))


# --- what both show ---


def _stood(graph: Graph, standing: Standing | None) -> list[tuple[Node, str]]:
    """The nodes, those that are set from outside first, each with its state, which is empty
    without an execution.
    """
    nodes = [*(node for node in graph.nodes.values() if node.is_input), *graph.order]
    states = (
        {}
        if standing is None
        else {facts.node: facts.up for facts in explained(graph, standing).nodes}
    )
    return [(node, states.get(node.name, "")) for node in nodes]


def _title(graph: Graph, standing: Standing | None) -> str:
    of = "" if standing is None else f", execution {standing.id} at revision {standing.revision}"
    return f"graph {graph.name} {graph.version}{of}"


def _inner(gate: Gate) -> str:
    """As part of another: in parentheses if it could be misread without."""
    several = isinstance(gate, All | AnyOf) and len(gate.parts) > 1
    return f"({gate_text(gate)})" if several else gate_text(gate)


# --- text ---


def _row(node: Node, state: str) -> tuple[str, str, str, str]:
    return node.name, kind_of(node), state, "" if node.is_input else f"← {gate_text(node.gate)}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False) if width]
    return "  ".join([*cells, row[-1]]).rstrip()


# --- Mermaid ---


class _Arrow(NamedTuple):
    """From a node or a junction, with what it asks."""

    start: str
    asks: str = ""
    is_negative: bool = False

    def to(self, end: str) -> str:
        line = "-.->" if self.is_negative else "-->"
        return f"{self.start} {line}{f'|{_quoted(self.asks)}|' if self.asks else ''} {end}"


@dataclass(slots=True)
class _Junctions:
    """Where the arrows of one node's gate meet before they come to it."""

    of: str
    count: int = 0

    def next(self) -> str:
        self.count += 1
        return f"{self.of}_{self.count}"


class _Drawing:
    """Lines of a flowchart. `ids`: what each node is called there, for a name may be one of
    Mermaid's own words.
    """

    def __init__(self, ids: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._ids = ids

    def node(self, node: Node, state: str) -> None:
        label = _quoted("<br/>".join((node.name, " · ".join(filter(None, (kind_of(node), state))))))
        shape = f"[/{label}/]" if node.is_input else f"[{label}]"
        self._say(f"{self._ids[node.name]}{shape}{f':::{state}' if state else ''}")

    def gate(self, node: Node) -> None:
        parts = node.gate.parts if isinstance(node.gate, All) else (node.gate,)
        junctions = _Junctions(self._ids[node.name])
        for part in parts:
            self._say(self._arrow(part, junctions).to(self._ids[node.name]))

    def colours(self, states: Sequence[str]) -> None:
        for state in dict.fromkeys(states):
            self._say(
                f"classDef {state} fill:{_COLOURS.get(state, '#ffffff')},stroke:#555,color:#111"
            )

    def _arrow(self, gate: Gate, junctions: _Junctions) -> _Arrow:
        """What leads on from a gate; the junctions before it are drawn."""
        match gate:
            case Needs(node):
                return _Arrow(self._ids[node])
            case When():
                return _Arrow(self._ids[gate.node], gate.text)
            case Not(part):
                inside = self._arrow(part, junctions)
                asks = (
                    inside.asks.removeprefix("not") if inside.is_negative else f"not {inside.asks}"
                )
                return _Arrow(inside.start, asks.strip(), is_negative=not inside.is_negative)
        return _Arrow(self._junction(gate, junctions))

    def _junction(self, gate: Gate, junctions: _Junctions) -> str:
        name = junctions.next()
        self._say(f"{name}{{{_quoted('any of' if isinstance(gate, AnyOf) else 'all of')}}}")
        for part in _parts(gate):
            self._say(self._arrow(part, junctions).to(name))
        return name

    def _say(self, line: str) -> None:
        self.lines.append(f"    {line}")


def _parts(gate: Gate) -> Iterator[Gate]:
    yield from gate.parts if isinstance(gate, All | AnyOf) else map(Needs, gate.nodes)


def _quoted(label: str) -> str:
    """As a label: nothing in it ends it, or is read as anything but text; `<br/>` stays."""
    plain = "".join(each if each.isprintable() else " " for each in label)
    return '"' + "<br/>".join(map(_escaped, plain.split("<br/>"))) + '"'


def _escaped(plain: str) -> str:
    for sign, written in (
        ("#", "#35;"),
        ("&", "#amp;"),
        ('"', "#quot;"),
        ("<", "#lt;"),
        (">", "#gt;"),
        ("|", "#124;"),
    ):
        plain = plain.replace(sign, written)
    return plain


def _yaml(title: str) -> str:
    return "'" + title.replace("'", "''") + "'"
