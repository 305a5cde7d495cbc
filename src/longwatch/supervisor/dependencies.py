"""Dependencies between programs: conditions, faults, and the order of starts and stops.

`start_waves` groups programs into waves. They start in this order and stop in the reverse order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from longwatch.core.suggest import did_you_mean


class Condition(StrEnum):
    """The condition of another program that a program waits for."""

    STARTED = "started"
    READY = "ready"
    COMPLETED = "completed"


class Readiness(StrEnum):
    """When a program is ready: when it is up, when it is healthy, when it sends `READY=1`, or when
    its readiness probe passes.
    """

    UP = "up"
    HEALTHY = "healthy"
    NOTIFY = "notify"
    PROBE = "probe"


DependencyMap = Mapping[str, Mapping[str, Condition]]
"""By program: its dependencies and their conditions."""


class DependencyProblem(NamedTuple):
    """A faulty dependency: the program, the problem, and what to do."""

    program: str
    problem: str
    cure: str


def dependency_problems(depends_on: DependencyMap) -> list[DependencyProblem]:
    """Return all faults: names that do not exist, and cycles, each reported once."""
    return [*_unknown_dependencies(depends_on), *_cycles(depends_on)]


def start_waves(depends_on: DependencyMap) -> list[list[str]]:
    """Return the programs in groups, each of which depends only on groups before it. Ignores
    unknown names. Raises ValueError for a cycle.
    """
    remaining = dict(depends_on)
    groups: list[list[str]] = []
    while remaining:
        wave = [
            name for name, conditions in remaining.items() if not (set(conditions) & set(remaining))
        ]
        if not wave:
            raise ValueError(
                f"these programs depend on each other in a cycle: {', '.join(sorted(remaining))}"
            )
        groups.append(wave)
        remaining = {name: conditions for name, conditions in remaining.items() if name not in wave}
    return groups


def _unknown_dependencies(depends_on: DependencyMap) -> Iterable[DependencyProblem]:
    for name, conditions in depends_on.items():
        for wanted in conditions:
            if wanted not in depends_on:
                cure = did_you_mean(wanted, depends_on, default="declare it, or remove it here")
                yield DependencyProblem(name, f"waits for {wanted!r}, which is not a program", cure)


def _cycles(depends_on: DependencyMap) -> Iterable[DependencyProblem]:
    """Yield one problem for each cycle. Follows the dependencies of every program until a program
    repeats.
    """
    reported: set[frozenset[str]] = set()
    for start in depends_on:
        cycle = _cycle_from(start, depends_on)
        if cycle and frozenset(cycle) not in reported:
            reported.add(frozenset(cycle))
            path = " → ".join([*cycle, cycle[0]])
            yield DependencyProblem(cycle[0], f"waits for itself: {path}", "remove one of them")


def _cycle_from(start: str, depends_on: DependencyMap) -> list[str]:
    """Return a path from this program back to itself; empty if there is none."""
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
