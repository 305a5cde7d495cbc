"""Why is nothing happening? For every node of an execution: how it stands, and what it waits
for, as a tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from longwatch.flow.advancing import Next, inputs_of, judged
from longwatch.flow.gates import NOT, Finding
from longwatch.flow.graph import Graph
from longwatch.flow.nodes import Node
from longwatch.flow.standing import LEASED, Standing


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """How one node stands. `up` is one word: set, unset, fresh, stale, waiting, running, failed,
    blocked or cancelled.
    """

    node: str
    up: str
    text: str
    gate: Finding | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """All nodes of an execution, those that are set from outside first; `str` draws the tree."""

    execution: str
    nodes: tuple[NodeFacts, ...]

    def line(self, node: str) -> str:
        """One sentence about one node."""
        return next(f"{facts.node} {facts.text}" for facts in self.nodes if facts.node == node)

    def __str__(self) -> str:
        return "\n".join(_drawn(self))


def survey(graph: Graph, standing: Standing) -> dict[str, Next]:
    """What is up with every node that is computed; changes nothing."""
    found: dict[str, Next] = {}
    unsettled: set[str] = set()
    for node in graph.order:
        up = found[node.name] = judged(node, standing, unsettled, inputs_of(node, standing))
        if up not in {Next.CLOSED, Next.FRESH} and standing.is_set(node.name):
            unsettled.add(node.name)
    return found


def lost(graph: Graph, standing: Standing) -> dict[str, str]:
    """The nodes that will get no value of the present inputs, each with the node that was given
    up and is to blame for it.
    """
    found: dict[str, str] = {}
    for name, up in survey(graph, standing).items():
        node = graph.nodes[name]
        before = [each for each in node.upstream if each in found]
        if up is Next.SPENT:
            found[name] = name
        elif up is Next.WAITS and any(map(standing.is_set, before)):
            found[name] = found[next(filter(standing.is_set, before))]
        elif before and up is Next.CLOSED and not node.gate.may_be_met(standing, found):
            found[name] = found[before[0]]
    return found


def explained(graph: Graph, standing: Standing) -> Explanation:
    up = survey(graph, standing)
    inputs = [_input(node, standing) for node in graph.nodes.values() if node.is_input]
    return Explanation(
        standing.id, (*inputs, *(_computed(node, standing, up) for node in graph.order))
    )


def _input(node: Node, standing: Standing) -> NodeFacts:
    if standing.is_set(node.name):
        return NodeFacts(node.name, "set", f"is set, at revision {standing.revision_of(node.name)}")
    return NodeFacts(node.name, "unset", "waits for somebody to set it")


def _computed(node: Node, standing: Standing, up: dict[str, Next]) -> NodeFacts:
    word, text = _WORDS[up[node.name]](node, standing, up)
    if standing.cancelled and word not in {"fresh", "stale"}:
        word, text = "cancelled", "is not computed any more: the execution was cancelled"
    return NodeFacts(node.name, word, text, node.gate.find(standing))


def _closed(node: Node, standing: Standing, up: dict[str, Next]) -> tuple[str, str]:  # noqa: ARG001 - as its neighbours
    return (
        "blocked",
        f"waits for its gate: {', '.join(dict.fromkeys(_unmet(node.gate.find(standing))))}",
    )


def _unmet(finding: Finding, *, wanted: bool = True) -> Iterator[str]:
    """The conditions that are to blame for it."""
    if finding.met is wanted:
        return
    if not finding.parts:
        yield finding.text
    for part in finding.parts:
        yield from _unmet(part, wanted=wanted is not (finding.text == NOT))


def _fresh(node: Node, standing: Standing, up: dict[str, Next]) -> tuple[str, str]:  # noqa: ARG001
    return "fresh", f"is computed, at revision {standing.revision_of(node.name)}"


def _waits(node: Node, standing: Standing, up: dict[str, Next]) -> tuple[str, str]:  # noqa: ARG001
    changing = [
        name for name in node.upstream if up.get(name, Next.FRESH) not in {Next.CLOSED, Next.FRESH}
    ]
    return "stale", f"waits for {', '.join(changing)} to be computed anew"


def _at_work(node: Node, standing: Standing, up: dict[str, Next]) -> tuple[str, str]:  # noqa: ARG001
    attempt = standing.open[node.name]
    number = f"attempt {attempt.number} of {attempt.terms.max_attempts}"
    if attempt.held == LEASED:
        return "running", f"is being computed, {number}"
    error = standing.node(node.name).error
    after = f" after: {error}" if error and attempt.number > 1 else ""
    return "waiting", f"is ready and waits for a worker, {number}{after}"


def _spent(node: Node, standing: Standing, up: dict[str, Next]) -> tuple[str, str]:  # noqa: ARG001
    stored = standing.node(node.name)
    return (
        "failed",
        (
            f"was given up after {stored.spent} attempts: {stored.error}; retry it, or change "
            f"what it comes after"
        ),
    )


def _due(node: Node, standing: Standing, up: dict[str, Next]) -> tuple[str, str]:  # noqa: ARG001
    return (
        "waiting",
        "could be computed, and is not in line yet: the next change or sweep puts it there",
    )


_WORDS = {
    Next.CLOSED: _closed,
    Next.FRESH: _fresh,
    Next.WAITS: _waits,
    Next.AT_WORK: _at_work,
    Next.SPENT: _spent,
    Next.DUE: _due,
}
_MARKS = {True: "✓", False: "✗"}


def _drawn(explanation: Explanation) -> Iterator[str]:
    yield f"execution {explanation.execution}"
    for facts in explanation.nodes:
        yield f"{facts.node}: {facts.up}; it {facts.text}"
        if facts.gate is not None:
            yield from _drawn_gate(facts.gate, depth=1)


def _drawn_gate(finding: Finding, *, depth: int) -> Iterator[str]:
    yield f"{'   ' * depth}{_MARKS[finding.met]} {finding.text}"
    for part in finding.parts:
        yield from _drawn_gate(part, depth=depth + 1)
