"""Measures the CPU time and memory of the process trees of programs, off the event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from longwatch.host.blocking_call import BlockingCall
from longwatch.host.guardian.proctable import ProcTable
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.tree_usage import TreeUsage, sum_usage, tree_usages
from longwatch.supervisor.plan import ProgramKind
from longwatch.supervisor.program_registry import ProgramRegistry

if TYPE_CHECKING:
    from longwatch.supervisor.containers.live_container import LiveContainer

_MEASURE_TIMEOUT = 5.0


class UsageMeter:
    """Measures the programs of one registry. Used on the event loop."""

    def __init__(self, guardian: GuardianClient, registry: ProgramRegistry) -> None:
        self._guardian = guardian
        self._registry = registry

    async def measure(self) -> Mapping[int, TreeUsage]:
        """Return the usage of each running program, by the pid of its first process.

        Leaves out programs whose processes are not visible on this host. Raises TimeoutError if
        /proc does not answer.
        """
        trees, guardian = self._guardian.process_trees(), self._guardian.pid
        containers = self._containers()

        def read() -> dict[int, TreeUsage]:
            found = {} if guardian is None else tree_usages(trees, guardian=guardian)
            return {**found, **_container_usages(containers)}

        call = BlockingCall(read, name="longwatch-usage", timeout=_MEASURE_TIMEOUT)
        try:
            return await call.run()
        finally:
            call.close()

    def _containers(self) -> list[LiveContainer]:
        return [
            cast("LiveContainer", managed.program.run.target)
            for managed in self._registry.programs.values()
            if managed.plan.kind is ProgramKind.CONTAINER and managed.program.run is not None
        ]


def _container_usages(containers: list[LiveContainer]) -> dict[int, TreeUsage]:
    """Return the usage of the containers whose processes are visible on this host, by pid."""
    table, found = ProcTable(), {}
    for container in containers:
        members = container.process_ids()
        if container.pid is not None and members is not None:
            found[container.pid] = sum_usage(members, table)
    return found
