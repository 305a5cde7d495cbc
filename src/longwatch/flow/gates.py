"""What a node waits for: conditions on the nodes before it.

A name stands for "that node is set". Gates are told of the nodes through a `View` and keep nothing;
predicates are the user's, run inside a transaction, and have to be quick and without side effects.
One that raises is not met, and says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from longwatch.errors import GraphError

NOT = "not"


class View(Protocol):
    """What a gate is told about the nodes of an execution."""

    def is_set(self, node: str) -> bool: ...

    def value(self, node: str) -> Any:
        """That of a node that is set."""


class Finding(NamedTuple):
    """What one condition came to, and the conditions inside it."""

    text: str
    met: bool
    parts: tuple[Finding, ...] = ()
    broken: bool = False
    """Whether it cannot be said: a test raised. The contrary is not met either, then."""


class Gate(ABC):
    """A condition. `nodes` are those it looks at, each once."""

    @property
    @abstractmethod
    def nodes(self) -> tuple[str, ...]: ...

    @abstractmethod
    def find(self, view: View) -> Finding:
        """How it stands, with the reasons."""

    def met(self, view: View) -> bool:
        return self.find(view).met

    def may_be_met(self, view: View, lost: Collection[str]) -> bool:
        """Whether it is, or may yet be although those of its nodes that are lost stay as they
        are.
        """
        return self.met(view) or any(node not in lost for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Needs(Gate):
    """A node is set."""

    node: str

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node,)

    def met(self, view: View) -> bool:
        return view.is_set(self.node)

    def find(self, view: View) -> Finding:
        met = view.is_set(self.node)
        return Finding(f"{self.node} is set" if met else f"{self.node} is not set", met)


@dataclass(frozen=True, slots=True)
class When(Gate):
    """A node is set, and its value passes a test."""

    node: str
    test: Callable[[Any], bool]
    text: str

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node,)

    def find(self, view: View) -> Finding:
        if not view.is_set(self.node):
            return Finding(f"{self.node} is not set, so {self.text} cannot be asked", met=False)
        try:
            met = bool(self.test(view.value(self.node)))
        except BaseException as error:  # noqa: BLE001 - it is anybody's code, and may exit; what cannot be said is not met
            from longwatch.work.judging import described  # noqa: PLC0415 - it takes the engine along, and predicates rarely raise

            return Finding(
                f"{self.text} of {self.node} raised {described(error)}", met=False, broken=True
            )
        return Finding(f"{self.text} of {self.node} is {'true' if met else 'false'}", met)


@dataclass(frozen=True, slots=True)
class All(Gate):
    """Every part is met; with no parts, always."""

    parts: tuple[Gate, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return _each_once(self.parts)

    def met(self, view: View) -> bool:
        return all(part.met(view) for part in self.parts)

    def may_be_met(self, view: View, lost: Collection[str]) -> bool:
        return all(part.may_be_met(view, lost) for part in self.parts)

    def find(self, view: View) -> Finding:
        found = tuple(part.find(view) for part in self.parts)
        return Finding(
            "all of", all(each.met for each in found), found, any(each.broken for each in found)
        )


@dataclass(frozen=True, slots=True)
class AnyOf(Gate):
    """At least one part is met."""

    parts: tuple[Gate, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return _each_once(self.parts)

    def find(self, view: View) -> Finding:
        found = tuple(part.find(view) for part in self.parts)
        return Finding(
            "any of", any(each.met for each in found), found, any(each.broken for each in found)
        )

    def may_be_met(self, view: View, lost: Collection[str]) -> bool:
        return any(part.may_be_met(view, lost) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not(Gate):
    """Its part is not met."""

    part: Gate

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.part.nodes

    def find(self, view: View) -> Finding:
        found = self.part.find(view)
        return Finding(NOT, not (found.met or found.broken), (found,), found.broken)


Condition = str | Gate


def and_(*parts: Condition) -> Gate:
    """All of these are met."""
    return All(_parts("and_", parts))


def or_(*parts: Condition) -> Gate:
    """At least one of these is met."""
    return AnyOf(_parts("or_", parts))


def not_(part: Condition) -> Gate:
    """This is not met; for a name: that node is not set."""
    return Not(_gate(part))


def when(node: Any, test: Any, *, text: str | None = None) -> Gate:
    """A node is set and `test(value)` is true. `text` is what `explain` calls the test; if not
    said, its name.
    """
    if not isinstance(node, str) or not callable(test):
        raise GraphError(
            f"when() takes the name of a node and a function of its value, not {node!r} and "
            f"{test!r}"
        )
    return When(
        node, test, text or getattr(test, "__name__", "the test").replace("<lambda>", "the test")
    )


def gate_of(after: Condition | Iterable[Condition]) -> Gate:
    """What stands in `after=`: one condition, or several that all have to be met."""
    if isinstance(after, str | Gate):
        return _gate(after)
    if not isinstance(after, Iterable):
        raise GraphError(f"after= takes names of nodes and gates, not {after!r}")
    return All(tuple(map(_gate, after)))


def _gate(part: Condition) -> Gate:
    if isinstance(part, Gate):
        return part
    if isinstance(part, str):
        return Needs(part)
    raise GraphError(
        f"a gate is made of names of nodes and of and_, or_, not_, when; {part!r} is neither"
    )


def _parts(word: str, parts: Sequence[Condition]) -> tuple[Gate, ...]:
    if not parts:
        raise GraphError(f"{word}() needs at least one condition")
    return tuple(map(_gate, parts))


def _each_once(parts: Iterable[Gate]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_nodes(parts)))


def _nodes(parts: Iterable[Gate]) -> Iterator[str]:
    for part in parts:
        yield from part.nodes
