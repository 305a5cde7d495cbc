"""A graph: named nodes and what each waits for, checked whenever one is added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from longwatch.core.nearest import did_you_mean
from longwatch.errors import GraphError, UsageError
from longwatch.flow.gates import Condition
from longwatch.flow.nodes import Node, compute
from longwatch.flow.nodes import input as input_
from longwatch.flow.options import MOST, is_whole

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
LONGEST = 200


class Graph:
    """Nodes by name. An execution belongs to a name and a version: nodes may be added to a version,
    all else needs a new one.

    `max_running`: how many attempts of the whole graph run at the same time, over all workers;
    None: no cap.
    """

    def __init__(
        self, name: str, *, version: str, nodes: Iterable[Node] = (), max_running: int | None = None
    ) -> None:
        self.name = _checked("name", name)
        self.version = _checked("version", version)
        if max_running is not None and not is_whole(max_running, most=MOST):
            raise GraphError(
                f"max_running of graph {name!r} must be a whole number of 1 to {MOST}, or "
                f"None, not {max_running!r}"
            )
        self.max_running = max_running
        self.sealed = False
        """Whether a Flow has it: then it stays as it is."""
        self.nodes: dict[str, Node] = {}
        self.order: tuple[Node, ...] = ()
        """The nodes that are computed, each after those that it depends on."""
        self._add(nodes)

    # --- defining ---

    def input(self, name: str) -> None:
        """A node whose value is set from outside."""
        self._add([input_(name)])

    def compute(
        self, *, after: Condition | Iterable[Condition], name: str | None = None, **options: Any
    ) -> Callable[[FunctionT], FunctionT]:
        """A node that is computed by the decorated function, and called like it unless `name`
        says otherwise.
        """

        def define(function: FunctionT) -> FunctionT:
            called = name if name is not None else str(getattr(function, "__name__", ""))
            self._add([compute(called, after, function, **options)])
            return function

        return define

    # --- what is known ---

    def node(self, name: str) -> Node:
        """UsageError, with the nearest name, if there is none."""
        found = self.nodes.get(name)
        if found is None:
            hint = did_you_mean(
                str(name), self.nodes, otherwise=f"it has {', '.join(self.nodes) or 'none'}"
            )
            raise UsageError(f"graph {self.name!r} has no node {name!r}; {hint}")
        return found

    def require_input(self, name: str) -> Node:
        """UsageError for a node that is computed: nobody sets it."""
        node = self.node(name)
        if not node.is_input:
            raise UsageError(
                f"node {name!r} of graph {self.name!r} is computed; set what it comes after: "
                f"{', '.join(node.upstream)}"
            )
        return node

    def __repr__(self) -> str:
        return f"<Graph {self.name} {self.version}: {', '.join(self.nodes)}>"

    # --- checking ---

    def _add(self, nodes: Iterable[Node]) -> None:
        """All of them, or none: what does not hold together is refused here, where its
        definition stands.
        """
        if self.sealed:
            raise GraphError(
                f"graph {self.name!r} was given to a Flow; define all of its nodes before that"
            )
        known = dict(self.nodes)
        for node in nodes:
            if not isinstance(node, Node):
                raise GraphError(
                    f"graph {self.name!r} takes nodes, made by input() and compute(), not {node!r}"
                )
            if node.name in known:
                raise GraphError(
                    f"graph {self.name!r} has two nodes called {node.name!r}; give one of "
                    f"them another name"
                )
            known[node.name] = node
        _check_upstream(self.name, known)
        names = _sorted(self.name, known)
        self.nodes = known
        self.order = tuple(known[name] for name in names if not known[name].is_input)


def _checked(what: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST or not value.isprintable():
        raise GraphError(
            f"the {what} of a graph is printable text of 1 to {LONGEST} characters, not {value!r}"
        )
    return value


def _check_upstream(graph: str, nodes: dict[str, Node]) -> None:
    for node in nodes.values():
        for name in node.upstream:
            if name not in nodes:
                others = [each for each in nodes if each != node.name]
                hint = did_you_mean(
                    name,
                    others,
                    otherwise="define it first: what a node comes after stands before it",
                )
                raise GraphError(
                    f"node {node.name!r} of graph {graph!r} comes after {name!r}, which there "
                    f"is not; {hint}"
                )


def _sorted(graph: str, nodes: dict[str, Node]) -> list[str]:
    """Their names, each after those that it depends on; GraphError with the path for a cycle."""
    from graphlib import CycleError, TopologicalSorter  # noqa: PLC0415 - only who has a graph needs it

    try:
        return list(
            TopologicalSorter({name: node.upstream for name, node in nodes.items()}).static_order()
        )
    except CycleError as error:
        path = " → ".join(error.args[1])
        raise GraphError(
            f"graph {graph!r} has a cycle: {path}; a node cannot come after itself"
        ) from None
