"""One group of faults of one kind of server, from the first client to the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from chaos_plan import ChaosPlan
from fault_harness import Fault, FaultHarness, MailboxWatcher, running_clients
from fault_postgres import postgres_faults
from fault_redis import redis_faults

SERVERS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "postgresql": postgres_faults,
    "redis": redis_faults,
}
GROUPS = ("server", "connections", "rules", "network")
CLIENTS: tuple[tuple[str, dict[str, str]], ...] = (
    ("produce", {}),
    ("produce", {"FAULT_CLOCK": "3600"}),
    ("work", {"FAULT_LEASE": "9", "FAULT_CLOCK": "-3600"}),
    ("work", {"FAULT_LEASE": "3"}),
)
SHORT_TIMEOUT = 3.0
"""Seconds that a call may take where a connection is silent for good, unless there is time for
the usual ones.
"""
LONG_RUN_SECONDS = 30.0


def fault_sequence(faults: list[Fault], chaos: ChaosPlan) -> Iterator[Fault]:
    """Each once, in an order by chance; in a long run again and again."""
    dice = chaos.random()
    rounds = max(int(chaos.seconds // 15), 1)
    for _ in range(rounds):
        yield from dice.sample(faults, len(faults))


def clients_for(group: str, chaos: ChaosPlan) -> list[tuple[str, dict[str, str]]]:
    if group == "network" and chaos.seconds < LONG_RUN_SECONDS:
        return [(role, {**extra, "FAULT_PATIENCE": str(SHORT_TIMEOUT)}) for role, extra in CLIENTS]
    return list(CLIENTS)


def url_for(server: Any, group: str, chaos: ChaosPlan) -> str:
    if group != "network":
        return str(server.url)
    impatient = chaos.seconds < LONG_RUN_SECONDS and server.name == "Redis"
    return (
        f"{server.proxied_url}?socket_timeout={SHORT_TIMEOUT / 2}"
        if impatient
        else str(server.proxied_url)
    )


@contextmanager
def run_faults(
    kind: str, group: str, folder: Path, chaos: ChaosPlan
) -> Iterator[tuple[FaultHarness, MailboxWatcher]]:
    """Run every fault of the group on a harness whose clients then finish what was sent."""
    with (
        SERVERS[kind]() as server,
        MailboxWatcher(server.watcher_url) as watcher,
        running_clients(
            folder, url_for(server, group, chaos), clients_for(group, chaos)
        ) as harness,
    ):
        for fault in fault_sequence(server.groups()[group], chaos):
            harness.apply(fault)
        harness.drain(watcher.is_empty)
        yield harness, watcher
