"""Filters of executions by the values of their nodes and by their metadata.

`value("country") == "CH"`, `value("age") >= 18`, `value("url").startswith("https://")`,
`value("size").in_([1, 2])`, `value("error").is_set()`, `metadata("team") == "a"`. A list of filters
means all of them. A filter is data: the operands reach the database as parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from longwatch.errors import UsageError
from longwatch.flow.invocation import VALUE_CODEC
from longwatch.flow.search_key import (
    MAX_KEY_LENGTH,
    full_key,
    is_scalar,
    prefix_bounds,
    type_bounds,
)

MAX_ALTERNATIVES = 1000
"""Values in one `in_`."""


_MAX_INTEGER = 2**63


class KeyComparison(NamedTuple):
    """A comparison of a search key; `operand` is a list of keys for `IN`."""

    operator: str
    operand: str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ValueFilter:
    """A condition on the value of a node. All comparisons of its search key hold.

    `json` is the value to compare with as JSON, if its key is only a part of it. `wants_set` is
    whether the node has to be set.
    """

    node: str
    comparisons: tuple[KeyComparison, ...] = ()
    json: str | None = None
    wants_set: bool = True

    @property
    def is_equality(self) -> bool:
        return len(self.comparisons) == 1 and self.comparisons[0].operator == "="

    @property
    def has_index(self) -> bool:
        """Whether an index on the key finds the values."""
        return bool(self.comparisons) and self.comparisons[0].operator != "<>"


@dataclass(frozen=True, slots=True)
class MetadataFilter:
    """A condition on the metadata of an execution: the value of a key."""

    key: str
    operand: str | float | bool | None


Filter = ValueFilter | MetadataFilter


class value:  # noqa: N801 - reads as a function: value("age") >= 18
    """The value of a node in a filter. Comparisons with it make filters.

    A comparison holds only for values of the same type: numbers, text, bools or null. A node that
    is not set meets no comparison, also not `!=`.
    """

    __hash__ = None  # type: ignore[assignment] # `==` makes a filter

    def __init__(self, node: Any) -> None:
        if not isinstance(node, str) or not node.isidentifier():
            raise UsageError(f"value() takes the name of a node, not {node!r}")
        self.node: str = node

    def __eq__(self, other: object) -> ValueFilter:  # type: ignore[override] # a filter, not a bool
        return self._compare("=", other)

    def __ne__(self, other: object) -> ValueFilter:  # type: ignore[override] # a filter, not a bool
        return self._compare("<>", other)

    def __lt__(self, other: Any) -> ValueFilter:
        return self._order("<", other)

    def __le__(self, other: Any) -> ValueFilter:
        return self._order("<=", other)

    def __gt__(self, other: Any) -> ValueFilter:
        return self._order(">", other)

    def __ge__(self, other: Any) -> ValueFilter:
        return self._order(">=", other)

    def in_(self, values: Any) -> ValueFilter:
        """The value is one of these."""
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UsageError(f"in_() takes a list of values, not {values!r}")
        keys = tuple(dict.fromkeys(_short_key(self.node, each) for each in values))
        if len(keys) > MAX_ALTERNATIVES:
            raise UsageError(f"in_() takes up to {MAX_ALTERNATIVES} values, not {len(keys)}")
        return ValueFilter(self.node, (KeyComparison("IN", keys),))

    def startswith(self, prefix: Any) -> ValueFilter:
        """The value is text that begins with this prefix, character by character."""
        if not isinstance(prefix, str):
            raise UsageError(f"startswith() takes text, not {prefix!r}")
        _short_key(self.node, prefix)
        low, high = prefix_bounds(prefix)
        return ValueFilter(self.node, (KeyComparison(">=", low), KeyComparison("<", high)))

    def is_set(self) -> ValueFilter:
        """The node has a value; null is one."""
        return ValueFilter(self.node)

    def is_not_set(self) -> ValueFilter:
        """The node has no value."""
        return ValueFilter(self.node, wants_set=False)

    def __repr__(self) -> str:
        return f"value({self.node!r})"

    def _compare(self, operator: str, other: object) -> ValueFilter:
        key, json = _key(self.node, other)
        is_part = len(key) >= MAX_KEY_LENGTH
        return ValueFilter(
            self.node,
            (KeyComparison(operator, key[:MAX_KEY_LENGTH]),),
            json=json if is_part else None,
        )

    def _order(self, operator: str, other: Any) -> ValueFilter:
        if other is None or isinstance(other, bool):
            raise UsageError(
                f"{other!r} has no order; compare {self.node!r} with a number or text, or use =="
            )
        key = _short_key(self.node, other)
        low, high = type_bounds(key)
        bound = KeyComparison("<", high) if operator.startswith(">") else KeyComparison(">=", low)
        return ValueFilter(self.node, (KeyComparison(operator, key), bound))


class metadata:  # noqa: N801 - reads as a function: metadata("team") == "a"
    """A key of the metadata in a filter; it is compared with `==`."""

    __hash__ = None  # type: ignore[assignment] # `==` makes a filter

    def __init__(self, key: Any) -> None:
        if not isinstance(key, str) or "\0" in key:
            raise UsageError(f"metadata() takes a key as text without zero bytes, not {key!r}")
        VALUE_CODEC.encode(key)
        self.key: str = key

    def __eq__(self, other: object) -> MetadataFilter:  # type: ignore[override] # a filter, not a bool
        _key(self.key, other)
        if "\0" in str(other) or (isinstance(other, int) and abs(other) >= _MAX_INTEGER):
            raise UsageError(
                f"metadata {self.key!r} can be compared with text without zero bytes, whole "
                f"numbers of 64 bits, fractions, bools and None, not {other!r}"
            )
        return MetadataFilter(self.key, other)  # type: ignore[arg-type] # it is a scalar

    def __repr__(self) -> str:
        return f"metadata({self.key!r})"


def _key(name: str, operand: object) -> tuple[str, str]:
    """The key of an operand, and the operand as JSON. Raises UsageError for a list or an object,
    SerializationError for text or a number that is not JSON.
    """
    if not is_scalar(operand):
        raise UsageError(
            f"{name!r} can be compared with text, a number, a bool or None, not {operand!r}"
        )
    json = VALUE_CODEC.encode(operand).decode()
    return full_key(operand), json  # type: ignore[arg-type] # it is a scalar


def _short_key(node: str, operand: object) -> str:
    key, _ = _key(node, operand)
    if len(key) >= MAX_KEY_LENGTH:
        raise UsageError(
            f"{node!r} can be compared so with values of fewer than {MAX_KEY_LENGTH - 1} "
            f"characters; longer ones only with == and !="
        )
    return key
