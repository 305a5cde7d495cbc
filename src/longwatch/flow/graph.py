"""`Graph`: named nodes with their gates, validated whenever a node is added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, overload

from longwatch.core.suggest import did_you_mean
from longwatch.errors import GraphError, UsageError
from longwatch.flow.archiving import archive
from longwatch.flow.endless_loops import refuse_endless_loops
from longwatch.flow.gates import GateLike
from longwatch.flow.histories import DEFAULT_ENTRIES, historian
from longwatch.flow.map_nodes import DEFAULT_MAX_IN_FLIGHT
from longwatch.flow.map_nodes import map as map_
from longwatch.flow.mutations import mutate
from longwatch.flow.node_options import MAX_COUNT, is_finite_number, is_positive_int
from longwatch.flow.nodes import Node, NodeKind, compute
from longwatch.flow.nodes import input as input_
from longwatch.flow.saved_value import OnSave, is_on_save
from longwatch.flow.tick_nodes import refuse_foreign_options, tick_once, tick_recurring

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
MAX_GRAPH_NAME_LENGTH = 200


class Graph:
    """A named and versioned set of nodes. An execution belongs to one name and version.

    A version may get more nodes; any other change needs a new version. `max_running` caps how many
    attempts of the graph run at the same time, over all workers; None means no cap. `on_save` is
    called with a `SavedValue` after the commit of each new value of a computed node.

    `retention_days`: workers remove executions that are done, failed, cancelled or archived and
    have not changed for so many days, and attempts that ended so many days ago of executions with
    planned ticks; None keeps them. It applies to all versions of the graph; of several versions in
    one Flow, the setting of the last one counts.
    """

    def __init__(  # noqa: PLR0913 - one argument a setting
        self,
        name: str,
        *,
        version: str,
        nodes: Iterable[Node] = (),
        max_running: int | None = None,
        on_save: OnSave | None = None,
        retention_days: float | None = None,
    ) -> None:
        self.name = _validate_text("name", name)
        self.version = _validate_text("version", version)
        if max_running is not None and not is_positive_int(max_running, maximum=MAX_COUNT):
            raise GraphError(
                f"max_running of graph {name!r} must be a whole number of 1 to {MAX_COUNT}, or "
                f"None, not {max_running!r}"
            )
        if on_save is not None and not is_on_save(on_save):
            raise GraphError(
                f"on_save of graph {name!r} must be a plain function, or None, not {on_save!r}"
            )
        self.max_running = max_running
        self.on_save = on_save
        self.retention_days = _validate_retention(name, retention_days)
        self._unfinished_ticks: set[str | None] = set()
        """The ticks whose function is to follow by a decorator."""
        self.is_sealed = False
        """Whether the graph was given to a Flow, and cannot change any more."""
        self.nodes: dict[str, Node] = {}
        self.computed_nodes: tuple[Node, ...] = ()
        """The computed nodes in topological order."""
        self.map_nodes: tuple[Node, ...] = ()
        """The maps among them."""
        self._add(nodes)

    # --- defining ---

    def input(self, name: str, *, indexed: bool = False) -> None:
        """Add an input: a node whose value users set. `indexed` makes searches for its values
        fast.
        """
        self._add([input_(name, indexed=indexed)])

    def tick_once(
        self,
        name: str | None = None,
        *,
        after: GateLike | Iterable[GateLike] = (),
        delay: float | None = None,
        **options: Any,
    ) -> Callable[[FunctionT], FunctionT]:
        """Add a node that fires once: `delay` seconds after its gate is met, or, as a decorator,
        when the decorated function says; see `tick_nodes.tick_once`.
        """
        refuse_foreign_options(NodeKind.TICK_ONCE, name, options)
        make = partial(tick_once, after=after, **options)
        return self._define_tick(name, make, None if delay is None else {"delay": delay})

    def tick_recurring(
        self,
        name: str | None = None,
        *,
        after: GateLike | Iterable[GateLike] = (),
        every: float | None = None,
        cron: str | None = None,
        **options: Any,
    ) -> Callable[[FunctionT], FunctionT]:
        """Add a node that fires again and again: `every` so many seconds, at the times of a `cron`
        expression in a `timezone`, or, as a decorator, when the decorated function says; see
        `tick_nodes.tick_recurring`.
        """
        refuse_foreign_options(NodeKind.TICK_RECURRING, name, options)
        make = partial(tick_recurring, after=after, **options)
        is_plain = every is not None or cron is not None
        return self._define_tick(name, make, {"every": every, "cron": cron} if is_plain else None)

    def compute(
        self, *, after: GateLike | Iterable[GateLike], name: str | None = None, **options: Any
    ) -> Callable[[FunctionT], FunctionT]:
        """Add a node that the decorated function computes. It has the name of the function, or
        `name`.
        """

        def define(function: FunctionT) -> FunctionT:
            node_name = name if name is not None else str(getattr(function, "__name__", ""))
            self._add([compute(node_name, after, function, **options)])
            return function

        return define

    @overload
    def map(
        self,
        name: str | None = None,
        *,
        over: str,
        function: FunctionT,
        after: GateLike | Iterable[GateLike] = (),
        **options: Any,
    ) -> FunctionT: ...

    @overload
    def map(
        self,
        name: str | None = None,
        *,
        over: str,
        after: GateLike | Iterable[GateLike] = (),
        **options: Any,
    ) -> Callable[[FunctionT], FunctionT]: ...

    def map(
        self,
        name: str | None = None,
        *,
        over: str,
        function: Any = None,
        after: GateLike | Iterable[GateLike] = (),
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        **options: Any,
    ) -> Any:
        """Add a map: `function`, or the decorated function, computes each element of the list in
        node `over`. It has the name of the function, or `name`.
        """

        def define(function: FunctionT) -> FunctionT:
            node_name = name if name is not None else str(getattr(function, "__name__", ""))
            self._add(
                [map_(node_name, over, function, after, max_in_flight=max_in_flight, **options)]
            )
            return function

        return define if function is None else define(function)

    def mutate(
        self,
        *,
        after: GateLike | Iterable[GateLike],
        writes: str,
        new_revision: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> Callable[[FunctionT], FunctionT]:
        """Add a node whose decorated function computes the value of the node `writes`.

        Without `new_revision`, nothing that comes after that node is computed again.
        """

        def define(function: FunctionT) -> FunctionT:
            node_name = name if name is not None else str(getattr(function, "__name__", ""))
            node = mutate(
                node_name, after, function, writes=writes, new_revision=new_revision, **options
            )
            self._add([node])
            return function

        return define

    def historian(
        self, name: str, of: str | Iterable[str], *, max_entries: int = DEFAULT_ENTRIES
    ) -> None:
        """Add a node that keeps the last changes of the nodes `of`, the newest first."""
        self._add([historian(name, of, max_entries=max_entries)])

    def archive(self, name: str, *, after: GateLike | Iterable[GateLike]) -> None:
        """Add a node that archives the execution once its gate is met."""
        self._add([archive(name, after)])

    # --- lookup ---

    def node(self, name: str) -> Node:
        """Find a node by its name; raises UsageError, which suggests a name."""
        found = self.nodes.get(name)
        if found is None:
            hint = did_you_mean(
                str(name), self.nodes, default=f"it has {', '.join(self.nodes) or 'none'}"
            )
            raise UsageError(f"graph {self.name!r} has no node {name!r}; {hint}")
        return found

    def require_input(self, name: str) -> Node:
        """Find an input by its name; raises UsageError for a computed node."""
        node = self.node(name)
        if not node.is_input:
            raise UsageError(
                f"node {name!r} of graph {self.name!r} is computed; set what it comes after: "
                f"{', '.join(node.upstream) or 'nothing'}"
            )
        return node

    def __repr__(self) -> str:
        return f"<Graph {self.name} {self.version}: {', '.join(self.nodes)}>"

    # --- validation ---

    def _define_tick(
        self, name: str | None, make: Callable[..., Node], schedule: dict[str, Any] | None
    ) -> Callable[[FunctionT], FunctionT]:
        """Add a tick with this schedule. Without one, the returned decorator adds it."""
        if callable(name):
            raise GraphError(
                f"the name of a tick is text, not {name!r}; write the decorator with parentheses, "
                f"such as @graph.tick_once(after=[…])"
            )

        def define(function: FunctionT) -> FunctionT:
            if schedule is not None:
                raise GraphError(
                    f"tick {name!r} has a schedule and takes no function; leave out delay=, "
                    f"every= or cron=, or write a call instead of a decorator"
                )
            named = name if name is not None else str(getattr(function, "__name__", ""))
            self._add([make(named, function=function)])
            self._unfinished_ticks.discard(name)
            return function

        if schedule is not None:
            self._add([make(name, **schedule)])
        else:
            self._unfinished_ticks.add(name)
        return define

    def seal(self) -> None:
        """Take no further node. Raises GraphError for a tick that got neither a schedule nor a
        function.
        """
        for name in self._unfinished_ticks:
            tick = "a tick" if name is None else f"tick {name!r}"
            raise GraphError(
                f"{tick} of graph {self.name!r} has no schedule; pass delay=, every= or cron=, or "
                f"decorate a function with the call"
            )
        self.is_sealed = True

    def _add(self, nodes: Iterable[Node]) -> None:
        """Add all of these nodes or none. Raises GraphError at the definition of a wrong node."""
        if self.is_sealed:
            raise GraphError(
                f"graph {self.name!r} was given to a Flow; define all of its nodes before that"
            )
        known = dict(self.nodes)
        for node in nodes:
            if not isinstance(node, Node):
                raise GraphError(
                    f"graph {self.name!r} takes nodes, made by input(), compute() and map(), not "
                    f"{node!r}"
                )
            if node.name in known:
                raise GraphError(
                    f"graph {self.name!r} has two nodes called {node.name!r}; give one of "
                    f"them another name"
                )
            known[node.name] = node
        _validate_upstream(self.name, known)
        names = _topological_order(self.name, known)
        for node in known.values():
            node.validate_in(self.name, known)
        refuse_endless_loops(self.name, known)
        self.nodes = known
        self.computed_nodes = tuple(known[name] for name in names if not known[name].is_input)
        self.map_nodes = tuple(node for node in self.computed_nodes if node.kind is NodeKind.MAP)


def _validate_text(field: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= MAX_GRAPH_NAME_LENGTH
        or not value.isprintable()
    ):
        raise GraphError(
            f"the {field} of a graph is printable text of 1 to {MAX_GRAPH_NAME_LENGTH} "
            f"characters, not {value!r}"
        )
    return value


def _validate_retention(graph: str, days: Any) -> float | None:
    if days is not None and not (is_finite_number(days) and days > 0):
        raise GraphError(
            f"retention_days of graph {graph!r} must be a number of days above 0, or None to keep "
            f"all executions, not {days!r}"
        )
    return None if days is None else float(days)


def _validate_upstream(graph: str, nodes: dict[str, Node]) -> None:
    for node in nodes.values():
        for name in node.upstream:
            if name not in nodes:
                others = [each for each in nodes if each != node.name]
                hint = did_you_mean(
                    name,
                    others,
                    default="define it first: a node comes after nodes that exist",
                )
                raise GraphError(
                    f"node {node.name!r} of graph {graph!r} comes after {name!r}, which does "
                    f"not exist; {hint}"
                )


def _topological_order(graph: str, nodes: dict[str, Node]) -> list[str]:
    """The names of the nodes in topological order; raises GraphError with the path of a cycle."""
    from graphlib import CycleError, TopologicalSorter  # noqa: PLC0415 - processes without a graph need not load it

    try:
        return list(
            TopologicalSorter({name: node.upstream for name, node in nodes.items()}).static_order()
        )
    except CycleError as error:
        path = " → ".join(error.args[1])
        raise GraphError(
            f"graph {graph!r} has a cycle: {path}; a node cannot come after itself"
        ) from None
