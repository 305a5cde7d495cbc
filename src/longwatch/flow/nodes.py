"""The nodes of a graph: frozen values that are validated when they are made."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from longwatch.core.suggest import did_you_mean
from longwatch.errors import GraphError
from longwatch.flow.gates import AllOf, Gate, GateLike, gate_text, normal_gate_text, to_gate
from longwatch.flow.node_options import Isolation, NodeOptions, validate_options
from longwatch.flow.schedules import Schedule

MAX_NODE_NAME_LENGTH = 100
CONTEXT_PARAMETER = "context"
"""The name of the parameter that gets the `FlowContext`."""
_ALWAYS = AllOf(())


class NodeKind(StrEnum):
    """What a node is."""

    INPUT = "input"  # users set its value
    COMPUTE = "compute"  # its function computes its value
    MUTATE = "mutate"  # its function computes the value of another node
    HISTORIAN = "historian"  # it keeps the changes of other nodes
    ARCHIVE = "archive"  # it archives the execution
    MAP = "map"  # its function computes each element of a list
    TICK_ONCE = "tick_once"  # it fires at a time
    TICK_RECURRING = "tick_recurring"  # it fires again and again


@dataclass(frozen=True, slots=True)
class Node:
    """One node: an input, whose value users set, or a node that its function computes once its gate
    is met.
    """

    name: str
    kind: NodeKind = NodeKind.INPUT
    gate: Gate = _ALWAYS
    function: Callable[..., Any] | None = None
    options: NodeOptions = field(default_factory=NodeOptions)
    over: str | None = None
    """The node whose list a map takes its elements from."""
    max_in_flight: int = 0
    """How many elements of a map may have open attempts."""
    schedule: Schedule | None = None
    """When a tick fires; None if its function decides that."""
    upstream: tuple[str, ...] = field(init=False)
    """The names of the nodes that it depends on."""

    @property
    def definition(self) -> str:
        """What may not change in a version of the graph, as text."""
        kind = f"{self.kind} over {self.over}" if self.over else str(self.kind)
        return f"{kind} after {normal_gate_text(self.gate)}" if self.gate.nodes else kind

    @property
    def relation(self) -> str:
        """How the node depends on others and on time, as a diagram shows it; empty for an input."""
        gate = f"← {gate_text(self.gate)}" if self.gate.nodes else ""
        return "  ".join(filter(None, (gate, self.schedule.text if self.schedule else "")))

    def validate_in(self, graph: str, nodes: Mapping[str, Node]) -> None:
        """Validate the node among all nodes of its graph; raises GraphError."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "upstream", tuple(sorted(self.gate.nodes)))

    @property
    def is_input(self) -> bool:
        return self.kind is NodeKind.INPUT

    @property
    def is_tick(self) -> bool:
        return self.kind in {NodeKind.TICK_ONCE, NodeKind.TICK_RECURRING}


def input(name: str, *, indexed: bool = False) -> Node:  # noqa: A001 - the public name of the API
    """Define an input: a node whose value users set. `indexed` makes searches for its values
    fast.
    """
    return Node(
        validate_name(name), options=validate_options(validate_name(name), {"indexed": indexed})
    )


def compute(
    name: str, after: GateLike | Iterable[GateLike], function: Callable[..., Any], **options: Any
) -> Node:
    """Define a node whose value is the result of `function`. The parameters of the function are the
    names of upstream nodes, whose values it gets, and `context`.
    """
    gate = to_gate(after)
    node_options = validate_options(validate_name(name), options)
    if not gate.nodes:
        raise GraphError(
            f"node {name!r} has no upstream nodes; name them in after=, or make it an input"
        )
    validate_function(name, function, gate.nodes, node_options)
    return Node(name, NodeKind.COMPUTE, gate, function, node_options)


def validate_name(name: Any) -> str:
    """Validate the name of a node. It is a parameter of functions, so it has to be a Python name.

    Raises GraphError.
    """
    is_name = (
        isinstance(name, str)
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and name != CONTEXT_PARAMETER
    )
    if not is_name or len(name) > MAX_NODE_NAME_LENGTH:
        raise GraphError(
            f"{name!r} cannot be the name of a node; pass name=, a Python name of up to "
            f"{MAX_NODE_NAME_LENGTH} characters, not {CONTEXT_PARAMETER!r}"
        )
    return str(name)


def validate_function(
    name: str,
    function: Any,
    upstream: Collection[str],
    options: NodeOptions,
    *,
    takes_element: bool = False,
) -> None:
    """Validate the function of a node whose other parameters are `upstream`; `takes_element`: the
    first parameter gets an element of a map. Raises GraphError.
    """
    if not callable(function):
        raise GraphError(f"node {name!r} needs a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise GraphError(f"the function of node {name!r} is a generator; use return, not yield")
    parameters = list(_signature(name, function).parameters.values())
    if takes_element:
        _validate_element_parameter(name, parameters[:1], upstream)
    for parameter in parameters[takes_element:]:
        _validate_parameter(name, parameter, upstream)
    if options.isolation is Isolation.PROCESS:
        _validate_importable(name, function)


def _validate_element_parameter(
    name: str, first: list[inspect.Parameter], upstream: Collection[str]
) -> None:
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    if not first or first[0].kind not in named or first[0].name == CONTEXT_PARAMETER:
        raise GraphError(
            f"the function of map {name!r} needs a first parameter that gets the element, by name"
        )
    if first[0].name in upstream:
        raise GraphError(
            f"the first parameter of the function of map {name!r} gets the element, and "
            f"{first[0].name!r} is the name of a node in after=; rename the parameter"
        )


def _signature(name: str, function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise GraphError(
            f"node {name!r} needs a function with a signature, not {function!r}; wrap "
            f"it in a function"
        ) from None


def _validate_parameter(name: str, parameter: inspect.Parameter, upstream: Collection[str]) -> None:
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise GraphError(
            f"the function of node {name!r} takes {parameter.name!r} by position; values are "
            f"passed by name, remove the /"
        )
    if (
        parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        or parameter.name == CONTEXT_PARAMETER
    ):
        return
    if parameter.name not in upstream and parameter.default is inspect.Parameter.empty:
        hint = did_you_mean(
            parameter.name,
            upstream,
            default=f"add it to after=, which has {', '.join(upstream) or 'none'}",
        )
        raise GraphError(
            f"the function of node {name!r} takes {parameter.name!r}, which is not in "
            f"after=; {hint}"
        )


def _validate_importable(name: str, function: Any) -> None:
    import_path = (
        f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
    )
    is_bound_method = inspect.ismethod(function) and not inspect.isclass(function.__self__)
    if (
        is_bound_method
        or "None" in import_path.split(":")
        or "<" in import_path
        or import_path.startswith("__main__:")
    ):
        raise GraphError(
            f"the function of node {name!r} ({import_path}) cannot be imported by a child process, "
            f"which isolation='process' needs;"
            " define it at the top of a module"
        )
