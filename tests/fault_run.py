"""One group of faults of one kind of server, from the first actor to the reckoning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from chaos_plan import ChaosPlan
from fault_postgres import postgres_target
from fault_reckoning import Watcher
from fault_redis import redis_target
from fault_stage import Fault, Stage, staged

TARGETS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "postgresql": postgres_target,
    "redis": redis_target,
}
GROUPS = ("server", "connections", "rules", "network")
CAST: tuple[tuple[str, dict[str, str]], ...] = (
    ("produce", {}),
    ("produce", {"FAULT_CLOCK": "3600"}),
    ("work", {"FAULT_LEASE": "9", "FAULT_CLOCK": "-3600"}),
    ("work", {"FAULT_LEASE": "3"}),
)
IMPATIENT = 3.0
"""Seconds that a call may take where a connection is silent for good, unless there is time for
the usual ones.
"""
LONG = 30.0


def chosen(faults: list[Fault], chaos: ChaosPlan) -> Iterator[Fault]:
    """Each once, in an order by chance; in a long run again and again."""
    dice = chaos.random()
    rounds = max(int(chaos.seconds // 15), 1)
    for _ in range(rounds):
        yield from dice.sample(faults, len(faults))


def cast_for(group: str, chaos: ChaosPlan) -> list[tuple[str, dict[str, str]]]:
    if group == "network" and chaos.seconds < LONG:
        return [(role, {**extra, "FAULT_PATIENCE": str(IMPATIENT)}) for role, extra in CAST]
    return list(CAST)


def url_for(target: Any, group: str, chaos: ChaosPlan) -> str:
    if group != "network":
        return str(target.url)
    impatient = chaos.seconds < LONG and target.name == "Redis"
    return (
        f"{target.proxied_url}?socket_timeout={IMPATIENT / 2}"
        if impatient
        else str(target.proxied_url)
    )


@contextmanager
def played(
    kind: str, group: str, folder: Path, chaos: ChaosPlan
) -> Iterator[tuple[Stage, Watcher]]:
    """A stage whose actors have suffered every fault of the group, and have finished what was
    sent.
    """
    with (
        TARGETS[kind]() as target,
        Watcher(target.watcher_url) as watcher,
        staged(folder, url_for(target, group, chaos), cast_for(group, chaos)) as stage,
    ):
        for fault in chosen(target.groups()[group], chaos):
            stage.suffer(fault)
        stage.drain(watcher.is_empty)
        yield stage, watcher
