"""Plans the elements of a map from the list in its `over` node: which are inserted, kept, computed
again and removed. Pure decisions; `map_records` writes them.

An element is known by the hash of its value and by its occurrence: the first, the second … of equal
values. So an element that only moved in the list keeps its result. It is computed again if the
other inputs of the map have changed, or if it has failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from longwatch.flow.attempt import AttemptEndCause

MAX_ELEMENTS = 100_000
"""Elements of one map."""
_CANONICAL = msgspec.json.Encoder(order="deterministic")
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


class MapInputError(ValueError):
    """The value of an `over` node is not a list that a map can take."""


class Element(NamedTuple):
    """One element of the list: its key, and its value as JSON."""

    key: str
    input: str


class StoredElement(NamedTuple):
    """An element as the store has it. `has_attempt`: an attempt of it is open."""

    element: int
    key: str
    position: int
    computed_with: str
    is_open: bool
    is_set: bool
    has_attempt: bool


@dataclass(slots=True)
class MapPlan:
    """What one transaction changes about the elements of a map.

    `cancelled` are elements whose attempts are cancelled, with `cause`; None means all of them.
    `is_cleared`: all elements are deleted. `pending` elements are left to compute, and `room` of
    them are opened.
    """

    computed_with: str = ""
    inserted: dict[int, Element] = field(default_factory=dict)
    moved: dict[int, int] = field(default_factory=dict)
    reset: dict[int, int] = field(default_factory=dict)
    removed: list[int] = field(default_factory=list)
    cancelled: list[int] | None = field(default_factory=list)
    cause: AttemptEndCause = AttemptEndCause.SUPERSEDED
    is_cleared: bool = False
    pending: int = 0
    in_flight: int = 0
    room: int = 0

    @property
    def may_cancel_running(self) -> bool:
        return self.cancelled is None or bool(self.cancelled)


def closing_plan(cause: AttemptEndCause, *, is_cleared: bool = False) -> MapPlan:
    """Cancel the attempts of all elements; with `is_cleared` also delete the elements."""
    return MapPlan(cancelled=None, cause=cause, is_cleared=is_cleared)


def split_elements(text: str, node: str, over: str) -> list[Element]:
    """The elements of a list. Raises MapInputError for another value, or too many elements."""
    try:
        raw = _LIST.decode(text)
    except msgspec.ValidationError:
        found = type(msgspec.json.decode(text)).__name__
        raise MapInputError(
            f"map {node!r} needs a list in {over!r}, not {_JSON_NAMES.get(found, found)}; let "
            f"{over!r} be a list"
        ) from None
    if len(raw) > MAX_ELEMENTS:
        raise MapInputError(
            f"map {node!r} takes up to {MAX_ELEMENTS:,} elements, and {over!r} has {len(raw):,}; "
            f"let each element stand for several"
        )
    return _with_keys(raw)


_JSON_NAMES = {
    "dict": "an object",
    "str": "text",
    "NoneType": "null",
    "bool": "a truth value",
    "int": "a number",
    "float": "a number",
}


def _with_keys(raw: Iterable[msgspec.Raw]) -> list[Element]:
    seen: Counter[str] = Counter()
    elements = []
    for each in raw:
        digest = blake2b(_canonical(each), digest_size=16).hexdigest()
        elements.append(Element(f"{digest}/{seen[digest]}", bytes(each).decode()))
        seen[digest] += 1
    return elements


def _canonical(raw: msgspec.Raw) -> bytes:
    """An element as JSON in which the order of keys does not matter."""
    text = bytes(raw)
    if not text.startswith((b"{", b"[")):
        return text
    try:
        return _CANONICAL.encode(msgspec.json.decode(text))
    except RecursionError:  # too deep to compare: treating it as changed costs a computation
        return text


def plan_map(
    elements: Sequence[Element],
    stored: Iterable[StoredElement],
    computed_with: str,
    *,
    max_in_flight: int,
) -> MapPlan:
    """Plan the elements of a map whose other inputs are `computed_with`."""
    plan = MapPlan(computed_with)
    known = {each.key: each for each in stored}
    for position, element in enumerate(elements):
        found = known.pop(element.key, None)
        if found is None:
            plan.inserted[position] = element
        else:
            _plan_known(plan, found, position)
    plan.removed = [each.element for each in known.values()]
    assert plan.cancelled is not None
    plan.cancelled += [each.element for each in known.values() if each.has_attempt]
    plan.pending += len(plan.inserted) + len(plan.reset)
    plan.room = max(max_in_flight - plan.in_flight, 0)
    return plan


def _plan_known(plan: MapPlan, found: StoredElement, position: int) -> None:
    is_current = found.computed_with == plan.computed_with
    if is_current and (found.is_set or found.is_open):
        plan.pending += found.is_open
        plan.in_flight += found.has_attempt
        if found.position != position:
            plan.moved[found.element] = position
        return
    plan.reset[found.element] = position
    if found.has_attempt:
        assert plan.cancelled is not None
        plan.cancelled.append(found.element)
