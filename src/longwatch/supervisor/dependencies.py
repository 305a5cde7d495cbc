"""What programs wait for in each other, and what makes one ready: two lists of words.

Who waits for whom: what is wrong with it, and the waves in which programs start and, the
other way round, stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from longwatch.core.suggest import did_you_mean


class Condition(StrEnum):
    """What a program may wait for in another one."""

    STARTED = "started"
    READY = "ready"
    COMPLETED = "completed"


class Readiness(StrEnum):
    """What makes a program ready: that it is up, that it is healthy, that it says so
    (`READY=1`), or that its readiness probe passes.
    """

    UP = "up"
    HEALTHY = "healthy"
    NOTIFY = "notify"
    PROBE = "probe"


DependencyMap = Mapping[str, Mapping[str, Condition]]
"""By program: what it waits for."""


class DependencyProblem(NamedTuple):
    """A dependency that cannot be: whose, what is wrong, and the cure."""

    program: str
    problem: str
    cure: str


def dependency_problems(depends_on: DependencyMap) -> list[DependencyProblem]:
    """Everything that is wrong: names that are not there, and circles, each told once."""
    return [*_unknown_dependencies(depends_on), *_cycles(depends_on)]


def start_waves(depends_on: DependencyMap) -> list[list[str]]:
    """The programs in groups, each waiting only for groups before it; names that are not there
    count for nothing.
    """
    remaining = dict(depends_on)
    groups: list[list[str]] = []
    while remaining:
        wave = [
            name for name, conditions in remaining.items() if not (set(conditions) & set(remaining))
        ]
        if not wave:
            raise ValueError(
                f"programs that wait for each other in a circle: {', '.join(sorted(remaining))}"
            )
        groups.append(wave)
        remaining = {name: conditions for name, conditions in remaining.items() if name not in wave}
    return groups


def _unknown_dependencies(depends_on: DependencyMap) -> Iterable[DependencyProblem]:
    for name, conditions in depends_on.items():
        for wanted in conditions:
            if wanted not in depends_on:
                cure = did_you_mean(wanted, depends_on, default="declare it, or take it out")
                yield DependencyProblem(name, f"waits for {wanted!r}, which is no program", cure)


def _cycles(depends_on: DependencyMap) -> Iterable[DependencyProblem]:
    """One for each circle: followed from every program along what it waits for, until a program
    comes again.
    """
    reported: set[frozenset[str]] = set()
    for start in depends_on:
        cycle = _cycle_from(start, depends_on)
        if cycle and frozenset(cycle) not in reported:
            reported.add(frozenset(cycle))
            path = " → ".join([*cycle, cycle[0]])
            yield DependencyProblem(cycle[0], f"waits for itself: {path}", "take one of them out")


def _cycle_from(start: str, depends_on: DependencyMap) -> list[str]:
    """A way from this program back to itself; empty if there is none."""
    paths = [[start]]
    seen = {start}
    while paths:
        path = paths.pop()
        for wanted in depends_on.get(path[-1], ()):
            if wanted == start:
                return path
            if wanted not in seen:
                seen.add(wanted)
                paths.append([*path, wanted])
    return []
