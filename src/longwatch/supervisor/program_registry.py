"""Keeps the programs of a supervisor by name: adds, retires and removes them, and keeps their
records.

`apply_plans` applies new plans while the supervisor runs, and touches only the programs that
changed. Used on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import ConfigReloaded
from longwatch.supervisor.end_judge import EndJudges
from longwatch.supervisor.managed_program import ChangeSignal, ManagedProgram
from longwatch.supervisor.notify_socket import Notice, NotifySocket
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.program import Program
from longwatch.supervisor.program_listener import ProgramListener
from longwatch.supervisor.program_record import ProgramRecord
from longwatch.supervisor.target_factory import Streams, TargetFactory

SocketPath = Callable[[str, int | None], Path]
"""Returns the path of a socket with that name, for a process of that user."""


class PreparedPlan(NamedTuple):
    """A plan and the resources that it needs."""

    plan: ProgramPlan
    streams: Streams
    socket_path: Path | None
    """The path of its new notify socket; None to keep the present one."""


class ProgramRegistry:
    """Managed programs by name.

    `save_record` is called whenever the record of a program may have changed. `on_finished` is
    called after each activation of a program, `on_error` when its task raised, which ends the
    supervisor.
    """

    def __init__(  # noqa: PLR0913 - the dependencies of a program, each by name
        self,
        *,
        targets: TargetFactory,
        clock: Clock,
        events: Events,
        listener: ProgramListener,
        end_judges: EndJudges,
        streams: Callable[[ProgramPlan], Streams],
        save_record: Callable[[str, ProgramRecord], None],
        on_finished: Callable[[ManagedProgram, int], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.programs: dict[str, ManagedProgram] = {}
        self.records: dict[str, ProgramRecord] = {}
        """The records of programs that are not registered now, and may be again."""
        self.changes = ChangeSignal()
        self.socket_path: SocketPath = lambda name, _: Path(name)
        self._targets = targets
        self._clock = clock
        self._events = events
        self._listener = listener
        self._end_judges = end_judges
        self._streams = streams
        self._save_record = save_record
        self._on_finished = on_finished
        self._on_error = on_error
        self._sockets: dict[str, NotifySocket] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._socket_count = 0

    def add(self, prepared: PreparedPlan, *, strict: bool = False) -> ManagedProgram:
        """Register a program and start the task that supervises it."""
        plan = prepared.plan
        assert prepared.socket_path is not None
        program = Program(
            plan,
            targets=self._targets,
            clock=self._clock,
            events=self._events,
            listener=self._listener,
            end_judges=self._end_judges,
            streams=prepared.streams,
            record=self.records.pop(plan.name, None),
            notify_socket=self._open_notify_socket(plan, prepared.socket_path),
            on_changed=partial(self.program_changed, plan.name),
            strict=strict,
        )
        managed = ManagedProgram(
            program, programs=self.programs, changes=self.changes, clock=self._clock
        )
        self.programs[plan.name] = managed
        self._tasks[plan.name] = task = asyncio.ensure_future(managed.supervise(self._on_finished))
        task.add_done_callback(partial(self._on_task_done, plan.name))
        return managed

    def run_on_demand(self, plan: ProgramPlan) -> None:
        """Run a program once. Does nothing if a program of this name is registered."""
        if plan.name not in self.programs:
            self.add(self.prepare(plan)).request_start()

    def stop_on_demand(self, group: str) -> None:
        """Stop the programs of the group that run on demand. Does not wait."""
        for managed in self.programs.values():
            if managed.plan.on_demand and managed.plan.group == group:
                managed.stop()

    def prepare(self, plan: ProgramPlan) -> PreparedPlan:
        """Create the resources that a plan needs, before any program is changed: if they cannot be
        created, all programs stay as they are.
        """
        return PreparedPlan(plan, self._streams(plan), self._new_socket_path(plan))

    def _new_socket_path(self, plan: ProgramPlan) -> Path | None:
        """Return a new socket path; None for a program that can keep its own."""
        present = self.programs.get(plan.name)
        if present is not None and not present.retired and present.plan.uid == plan.uid:
            return None
        self._socket_count += 1
        return self.socket_path(f"n{self._socket_count}", plan.uid)

    def apply_plan(self, managed: ManagedProgram, prepared: PreparedPlan) -> None:
        """Switch a program to another plan."""
        plan = prepared.plan
        if prepared.socket_path is not None:
            self._sockets.pop(plan.name).close()
            managed.program.notify_socket = self._open_notify_socket(plan, prepared.socket_path)
        managed.program.apply_plan(plan)
        managed.program.streams = prepared.streams
        self.changes.notify()

    async def retire(self, names: Iterable[str]) -> None:
        """Stop and remove these programs; wait until all are removed."""
        leaving = [self.programs[name] for name in names]
        for managed in leaving:
            managed.retired = True
            managed.stop(leave=True)
        self.changes.notify()
        await self.changes.wait_until(
            lambda: not any(managed in self.programs.values() for managed in leaving)
        )

    def program_changed(self, name: str) -> None:
        """Wake the waiters and save the record of a program that changed."""
        self.changes.notify()
        if name in self.programs:
            self._save_record(name, self.programs[name].program.record)

    def signal(self, signum: int) -> None:
        """Pass a signal on to every program's process group."""
        for managed in self.programs.values():
            managed.program.signal(signum)

    def kill_unhealthy(self, pid: int, reason: str) -> None:
        """Kill the program with this process."""
        for managed in self.programs.values():
            run = managed.program.run
            if run is not None and run.pid == pid:
                run.kill_unhealthy(reason)

    def started_elsewhere(self, name: str, started_at: float) -> None:
        """Handle the unwatched container of this name, which runs since that wall time."""
        if name in self.programs:
            self.programs[name].started_elsewhere(started_at)

    def stopped_elsewhere(self, name: str) -> None:
        """Handle a stop by a person that the runtime reports after the container's end."""
        if name in self.programs:
            self.programs[name].stopped_elsewhere()

    def close(self) -> None:
        """Cancel all tasks and close all sockets. Call it when all programs have stopped or are
        lost.
        """
        for task in self._tasks.values():
            task.cancel()
        for socket in self._sockets.values():
            socket.close()
        self._tasks.clear()
        self._sockets.clear()

    def _open_notify_socket(self, plan: ProgramPlan, path: Path) -> NotifySocket:
        socket = NotifySocket(path, partial(self._handle_notice, plan.name), uid=plan.uid)
        socket.open()
        self._sockets[plan.name] = socket
        return socket

    def _handle_notice(self, name: str, notice: Notice) -> None:
        if name in self.programs:
            self.programs[name].program.handle_notice(notice)

    def _on_task_done(self, name: str, task: asyncio.Task[None]) -> None:
        """Handle the end of a program's task: cancelled by `close`, retired, or failed, which ends
        the supervisor.
        """
        if task.cancelled():
            return
        if error := task.exception():
            self._on_error(error)
        else:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self.records[name] = self.programs.pop(name).program.record
        self._tasks.pop(name)
        self._sockets.pop(name).close()
        self.changes.notify()


async def apply_plans(
    registry: ProgramRegistry,
    plans: Mapping[str, ProgramPlan],
    *,
    check_running: Callable[[], None],
) -> ConfigReloaded:
    """Apply the plans: stop removed programs, restart or update changed ones, then start new ones.

    The resources of the new plans are created first: if that fails, nothing is changed.
    `check_running` is called once the removed programs have stopped, which may take a while. It
    raises if no program may be started any more.
    """
    present = {
        name: managed.plan
        for name, managed in registry.programs.items()
        if not (managed.retired or managed.plan.on_demand)
    }
    changes = plan_changes(present, plans)
    prepared = {
        name: registry.prepare(plans[name])
        for name in (*changes.changed, *changes.updated, *changes.added)
    }
    for group in {present[name].group for name in (*changes.changed, *changes.removed)}:
        registry.stop_on_demand(group)
    await registry.retire(changes.removed)
    check_running()
    for name in (*changes.changed, *changes.updated):
        managed = registry.programs[name]
        registry.apply_plan(managed, prepared[name])
        if name in changes.changed and managed.desired:
            managed.restart()
    for name in changes.added:
        registry.add(prepared[name]).start_if_desired()
    return changes


def plan_changes(
    current: Mapping[str, ProgramPlan], plans: Mapping[str, ProgramPlan]
) -> ConfigReloaded:
    """Return the changes that lead from the current plans to the new ones."""
    differing = [name for name in plans if name in current and plans[name] != current[name]]
    restarted = [name for name in differing if current[name].needs_restart(plans[name])]
    return ConfigReloaded(
        added=tuple(name for name in plans if name not in current),
        changed=tuple(restarted),
        updated=tuple(name for name in differing if name not in restarted),
        removed=tuple(name for name in current if name not in plans),
    )
