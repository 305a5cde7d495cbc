"""Stops all programs of a supervisor: dependents first, each with its grace, all under one
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.host.loop import wait_until_done
from longwatch.host.process import StopPolicy
from longwatch.supervisor.dependencies import dependency_problems, start_waves
from longwatch.supervisor.managed_program import ChangeSignal, ManagedProgram
from longwatch.supervisor.program_listener import ProgramEnd, ProgramListener


async def stop_in_waves(
    programs: Mapping[str, ManagedProgram],
    changes: ChangeSignal,
    *,
    policy: StopPolicy | None,
    timeout: float | None,
    clock: Clock,
) -> None:
    """Stop all programs, wave by wave, by `policy` if given, else each by its own. Programs that
    are left after `timeout` are killed.
    """
    deadline = Deadline.after(timeout, clock)
    for wave in reversed(_stop_waves(programs)):
        stopping = [programs[name] for name in wave if name in programs]
        for managed in stopping:
            managed.start_requested = False
            if managed.active:
                managed.program.stop(_cap_grace(policy or managed.plan.stop, deadline), leave=True)
        await _wait_until_idle(stopping, changes, deadline)


def _stop_waves(programs: Mapping[str, ManagedProgram]) -> list[list[str]]:
    """Return the waves; all programs at once if an unfinished reload left their dependencies
    faulty.
    """
    dependency_map = {name: managed.plan.depends_on for name, managed in programs.items()}
    return [list(programs)] if dependency_problems(dependency_map) else start_waves(dependency_map)


async def _wait_until_idle(
    programs: list[ManagedProgram], changes: ChangeSignal, deadline: Deadline
) -> None:
    """Wait until they are idle; kill those that still run at the deadline, whatever their grace."""
    waiting = asyncio.ensure_future(
        changes.wait_until(lambda: all(managed.idle for managed in programs))
    )
    left = deadline.remaining()
    try:
        if left is not None and not await wait_until_done(waiting, left, deadline.clock):
            for managed in programs:
                if managed.active:
                    managed.program.kill()
        await waiting
    finally:
        waiting.cancel()


def _cap_grace(policy: StopPolicy, deadline: Deadline) -> StopPolicy:
    left = deadline.remaining()
    return policy if left is None or left >= policy.grace else replace(policy, grace=left)


class ShutdownKillCounter(ProgramListener):
    """Counts the processes that had to be killed while the supervisor shuts down."""

    def __init__(self, is_shutting_down: Callable[[], bool]) -> None:
        self.killed = 0
        self._is_shutting_down = is_shutting_down

    def program_ended(self, end: ProgramEnd) -> None:
        if self._is_shutting_down() and not end.on_demand:
            self.killed += end.killed
