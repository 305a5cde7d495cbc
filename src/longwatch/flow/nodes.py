"""The nodes of a graph."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from longwatch.core.nearest import did_you_mean
from longwatch.errors import GraphError
from longwatch.flow.gates import All, Condition, Gate, gate_of
from longwatch.flow.options import Isolation, NodeOptions, checked_options

LONGEST_NAME = 100
CONTEXT = "context"
"""The parameter by which a function asks for its context."""
_OPEN = All(())


@dataclass(frozen=True, slots=True)
class Node:
    """One node: an input that is set from outside, or one that is computed by its function once
    its gate is met.
    """

    name: str
    gate: Gate = _OPEN
    function: Callable[..., Any] | None = None
    options: NodeOptions = field(default_factory=NodeOptions)
    upstream: tuple[str, ...] = field(init=False)
    """The nodes that it depends on, by name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "upstream", tuple(sorted(self.gate.nodes)))

    @property
    def is_input(self) -> bool:
        return self.function is None


def input(name: str) -> Node:  # noqa: A001 - the contract's word, and nobody imports it by chance
    """A node whose value is set from outside."""
    return Node(checked_name(name))


def compute(
    name: str, after: Condition | Iterable[Condition], function: Callable[..., Any], **options: Any
) -> Node:
    """A node whose value is what `function` returns, called with the values of the nodes that it
    names as parameters.
    """
    gate = gate_of(after)
    checked = checked_options(checked_name(name), options)
    if not gate.nodes:
        raise GraphError(
            f"node {name!r} waits for nothing; name what it is computed from in after=, or "
            f"make it an input"
        )
    _check_function(name, function, gate)
    if checked.isolation is Isolation.PROCESS:
        _check_importable(name, function)
    return Node(name, gate, function, checked)


def checked_name(name: Any) -> str:
    """A node is a parameter of functions, so its name is one that Python takes."""
    is_name = (
        isinstance(name, str)
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and name != CONTEXT
    )
    if not is_name or len(name) > LONGEST_NAME:
        raise GraphError(
            f"{name!r} cannot be the name of a node; say name=, a Python name of up to "
            f"{LONGEST_NAME} characters, not {CONTEXT!r}"
        )
    return str(name)


def _check_function(name: str, function: Any, gate: Gate) -> None:
    if not callable(function):
        raise GraphError(f"node {name!r} needs a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise GraphError(
            f"the function of node {name!r} is a generator, which nobody would run through; "
            f"use return, not yield"
        )
    for parameter in _signature(name, function).parameters.values():
        _check_parameter(name, parameter, gate)


def _signature(name: str, function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise GraphError(
            f"node {name!r} needs a function that says its parameters, not {function!r}; wrap "
            f"it in one"
        ) from None


def _check_parameter(name: str, parameter: inspect.Parameter, gate: Gate) -> None:
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise GraphError(
            f"the function of node {name!r} takes {parameter.name!r} by position; values are "
            f"given by name, remove the /"
        )
    if (
        parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        or parameter.name == CONTEXT
    ):
        return
    if parameter.name not in gate.nodes and parameter.default is inspect.Parameter.empty:
        hint = did_you_mean(
            parameter.name,
            gate.nodes,
            otherwise=f"add it to after=, which has {', '.join(gate.nodes)}",
        )
        raise GraphError(
            f"the function of node {name!r} takes {parameter.name!r}, which it does not come "
            f"after; {hint}"
        )


def _check_importable(name: str, function: Any) -> None:
    where = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
    of_an_object = inspect.ismethod(function) and not inspect.isclass(function.__self__)
    if of_an_object or "None" in where.split(":") or "<" in where or where.startswith("__main__:"):
        raise GraphError(
            f"the function of node {name!r} ({where}) cannot be imported by a child process, "
            f"which isolation='process' needs;"
            " define it at the top of a module"
        )
