"""Who waits for whom: what is wrong with it, and the waves in which programs start and, the
other way round, stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from longwatch.core.nearest import did_you_mean
from longwatch.supervisor.conditions import Condition

Wishes = Mapping[str, Mapping[str, Condition]]
"""By program: what it waits for."""


class Problem(NamedTuple):
    """A dependency that cannot be: whose, what is wrong, and the cure."""

    program: str
    problem: str
    cure: str


def problems(depends_on: Wishes) -> list[Problem]:
    """Everything that is wrong: names that are not there, and circles, each told once."""
    return [*_unknown(depends_on), *_circles(depends_on)]


def waves(depends_on: Wishes) -> list[list[str]]:
    """The programs in groups, each waiting only for groups before it; names that are not there
    count for nothing.
    """
    left = dict(depends_on)
    found: list[list[str]] = []
    while left:
        wave = [name for name, wishes in left.items() if not (set(wishes) & set(left))]
        if not wave:
            raise ValueError(
                f"programs that wait for each other in a circle: {', '.join(sorted(left))}"
            )
        found.append(wave)
        left = {name: wishes for name, wishes in left.items() if name not in wave}
    return found


def _unknown(depends_on: Wishes) -> Iterable[Problem]:
    for name, wishes in depends_on.items():
        for wanted in wishes:
            if wanted not in depends_on:
                cure = did_you_mean(wanted, depends_on, otherwise="declare it, or take it out")
                yield Problem(name, f"waits for {wanted!r}, which is no program", cure)


def _circles(depends_on: Wishes) -> Iterable[Problem]:
    """One for each circle: followed from every program along what it waits for, until a program
    comes again.
    """
    told: set[frozenset[str]] = set()
    for start in depends_on:
        circle = _circle_from(start, depends_on)
        if circle and frozenset(circle) not in told:
            told.add(frozenset(circle))
            path = " → ".join([*circle, circle[0]])
            yield Problem(circle[0], f"waits for itself: {path}", "take one of them out")


def _circle_from(start: str, depends_on: Wishes) -> list[str]:
    """A way from this program back to itself; empty if there is none."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop()
        for wanted in depends_on.get(way[-1], ()):
            if wanted == start:
                return way
            if wanted not in seen:
                seen.add(wanted)
                ways.append([*way, wanted])
    return []
