"""Gates: the conditions on upstream nodes under which a node is computed.

A name means "this node is set". Gates read the nodes through a `NodeView` and store nothing.
Predicates are code of users. They run inside a transaction, so they have to be quick and free of
side effects. A gate whose predicate raises is not met, and its result has the error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from longwatch.core.error_text import describe_error
from longwatch.errors import GraphError

NOT_TEXT = "not"


class NodeView(Protocol):
    """The nodes of an execution, as a gate reads them."""

    def is_set(self, node: str) -> bool: ...

    def value(self, node: str) -> Any:
        """The value of a node, which is set."""


class GateResult(NamedTuple):
    """The result of one condition, with those of the conditions inside it."""

    text: str
    met: bool
    parts: tuple[GateResult, ...] = ()
    has_error: bool = False
    """Whether a test raised. Then the negation of this condition is not met either."""
    error: str = ""
    """What this test raised."""


class Gate(ABC):
    """A condition. `nodes` has the nodes that it reads, each once."""

    @property
    @abstractmethod
    def nodes(self) -> tuple[str, ...]: ...

    @abstractmethod
    def evaluate(self, view: NodeView) -> GateResult:
        """Evaluate the condition and all its parts, for an explanation."""

    def is_met(self, view: NodeView) -> bool:
        return self.evaluate(view).met

    def may_be_met(self, view: NodeView, unreachable: Collection[str]) -> bool:
        """Whether the condition is met, or can be met while the `unreachable` nodes do not
        change.
        """
        return self.is_met(view) or any(node not in unreachable for node in self.nodes)


@dataclass(frozen=True, slots=True)
class IsSet(Gate):
    """A node is set."""

    node: str

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node,)

    def is_met(self, view: NodeView) -> bool:
        return view.is_set(self.node)

    def may_be_met(self, view: NodeView, unreachable: Collection[str]) -> bool:
        return self.node not in unreachable or view.is_set(self.node)

    def evaluate(self, view: NodeView) -> GateResult:
        met = view.is_set(self.node)
        return GateResult(f"{self.node} is set" if met else f"{self.node} is not set", met)


@dataclass(frozen=True, slots=True)
class When(Gate):
    """A node is set and its value passes a test."""

    node: str
    predicate: Callable[[Any], bool]
    text: str

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node,)

    def evaluate(self, view: NodeView) -> GateResult:
        if not view.is_set(self.node):
            return GateResult(f"{self.node} is not set", met=False)
        try:
            met = bool(self.predicate(view.value(self.node)))
        except BaseException as error:  # noqa: BLE001 - code of users may raise anything, also SystemExit
            return GateResult(
                f"{self.text} of {self.node} raised an error",
                met=False,
                has_error=True,
                error=describe_error(error),
            )
        return GateResult(f"{self.text} of {self.node} is {'true' if met else 'false'}", met)


@dataclass(frozen=True, slots=True)
class AllOf(Gate):
    """Every part is met; without parts it is always met."""

    parts: tuple[Gate, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return _unique_nodes(self.parts)

    def is_met(self, view: NodeView) -> bool:
        return all(part.is_met(view) for part in self.parts)

    def may_be_met(self, view: NodeView, unreachable: Collection[str]) -> bool:
        return all(part.may_be_met(view, unreachable) for part in self.parts)

    def evaluate(self, view: NodeView) -> GateResult:
        results = tuple(part.evaluate(view) for part in self.parts)
        return GateResult(
            "all of",
            all(each.met for each in results),
            results,
            any(each.has_error for each in results),
        )


@dataclass(frozen=True, slots=True)
class AnyOf(Gate):
    """At least one part is met."""

    parts: tuple[Gate, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return _unique_nodes(self.parts)

    def evaluate(self, view: NodeView) -> GateResult:
        results = tuple(part.evaluate(view) for part in self.parts)
        return GateResult(
            "any of",
            any(each.met for each in results),
            results,
            any(each.has_error for each in results),
        )

    def may_be_met(self, view: NodeView, unreachable: Collection[str]) -> bool:
        return any(part.may_be_met(view, unreachable) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not(Gate):
    """The part is not met."""

    part: Gate

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.part.nodes

    def evaluate(self, view: NodeView) -> GateResult:
        result = self.part.evaluate(view)
        return GateResult(
            NOT_TEXT, not (result.met or result.has_error), (result,), result.has_error
        )


GateLike = str | Gate


def and_(*parts: GateLike) -> Gate:
    """A gate that is met when all of these conditions are met."""
    return AllOf(_to_gates("and_", parts))


def or_(*parts: GateLike) -> Gate:
    """A gate that is met when at least one of these conditions is met."""
    return AnyOf(_to_gates("or_", parts))


def not_(part: GateLike) -> Gate:
    """A gate that is met when this condition is not; for a name, when that node is not set."""
    return Not(_as_gate(part))


def when(node: Any, test: Any, *, text: str | None = None) -> Gate:
    """A gate that is met when a node is set and `test(value)` is true.

    `explain` shows `text` as the name of the test; the default is the name of the function.
    """
    if not isinstance(node, str) or not callable(test):
        raise GraphError(
            f"when() takes the name of a node and a function of its value, not {node!r} and "
            f"{test!r}"
        )
    return When(
        node, test, text or getattr(test, "__name__", "the test").replace("<lambda>", "the test")
    )


def to_gate(after: GateLike | Iterable[GateLike]) -> Gate:
    """The gate of an `after=`: one condition, or several that all have to be met."""
    if isinstance(after, str | Gate):
        return _as_gate(after)
    if not isinstance(after, Iterable):
        raise GraphError(f"after= takes names of nodes and gates, not {after!r}")
    return AllOf(tuple(map(_as_gate, after)))


def gate_text(gate: Gate) -> str:
    """A gate as text: `pages and (draft or not final)`, `is_long(pages)`."""
    match gate:
        case IsSet(node):
            return node
        case When():
            return f"{gate.text}({gate.node})"
        case Not(part):
            return f"not {_inner(part)}"
        case AllOf(parts):
            return " and ".join(
                _inner(part) if len(parts) > 1 else gate_text(part) for part in parts
            )
        case AnyOf(parts):
            return " or ".join(
                _inner(part) if len(parts) > 1 else gate_text(part) for part in parts
            )
    return ", ".join(gate.nodes)


def normal_gate_text(gate: Gate) -> str:
    """A gate as text in which the order and the repetition of its conditions do not matter. It is
    the same in every process, also if `after=` is a set.
    """
    match gate := _without_wrapper(gate):
        case Not(part):
            return f"not {_normal_inner(part)}"
        case AllOf() | AnyOf():
            parts = sorted({_normal_inner(part) for part in _flat_parts(gate)})
            return (" and " if isinstance(gate, AllOf) else " or ").join(parts)
    return gate_text(gate)


def _without_wrapper(gate: Gate) -> Gate:
    """The only condition of a gate that has one."""
    while isinstance(gate, AllOf | AnyOf) and len(gate.parts) == 1:
        [gate] = gate.parts
    return gate


def _flat_parts(gate: AllOf | AnyOf) -> Iterator[Gate]:
    """The conditions of a gate; those of a gate of the same kind inside it are its own."""
    for part in map(_without_wrapper, gate.parts):
        if isinstance(part, AllOf | AnyOf) and type(part) is type(gate):
            yield from _flat_parts(part)
        else:
            yield part


def _normal_inner(gate: Gate) -> str:
    text, inner = normal_gate_text(gate), _without_wrapper(gate)
    return f"({text})" if isinstance(inner, AllOf | AnyOf) else text


def _inner(gate: Gate) -> str:
    """A gate inside another one, in parentheses where they are needed."""
    several = isinstance(gate, AllOf | AnyOf) and len(gate.parts) > 1
    return f"({gate_text(gate)})" if several else gate_text(gate)


def _as_gate(part: GateLike) -> Gate:
    if isinstance(part, Gate):
        return part
    if isinstance(part, str):
        return IsSet(part)
    raise GraphError(
        f"a gate is made of names of nodes and of and_, or_, not_, when; {part!r} is neither"
    )


def _to_gates(function_name: str, parts: Sequence[GateLike]) -> tuple[Gate, ...]:
    if not parts:
        raise GraphError(f"{function_name}() needs at least one condition")
    return tuple(map(_as_gate, parts))


def _unique_nodes(parts: Iterable[Gate]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_all_nodes(parts)))


def _all_nodes(parts: Iterable[Gate]) -> Iterator[str]:
    for part in parts:
        yield from part.nodes
