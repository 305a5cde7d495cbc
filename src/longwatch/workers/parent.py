"""The parent of worker processes and other Longwatch programs: connects their monitor with a
supervisor, and gives them the address that they report to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from longwatch.config.settings import LogSettings, is_pretty
from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.host.crash_file import CRASH_DIR_VARIABLE
from longwatch.host.incarnation import Incarnation
from longwatch.host.parent_channel import (
    PARENT_INCARNATION_VARIABLE,
    PARENT_PROTOCOL_VARIABLE,
    PARENT_SOCKET_VARIABLE,
    PROTOCOL,
)
from longwatch.host.service import Service
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.socket_directory import SocketDirectory
from longwatch.supervisor.supervisor import Supervisor
from longwatch.workers.child_reports import RecordsHandler
from longwatch.workers.monitor import WorkerMonitor
from longwatch.workers.preflight import LOG_FORMAT, LOG_LEVEL
from longwatch.workers.suspects import Plans


class WorkerParent(Service):
    """Monitors the workers of one supervisor, and receives the events and metrics of all of its
    Longwatch programs. The crash files of workers are below `state`. Without `counts_events` the
    metrics of its monitor contain only those of the programs.

    `on_records` gets the records of relayed events.

    Call `attach` after the plans were made, which need `environment_for` or `connect`, and before
    the supervisor starts them.
    """

    def __init__(  # noqa: PLR0913 - a parent and its surroundings, two of them optional
        self,
        *,
        state: Path | None,
        log: LogSettings,
        clock: Clock,
        events: Events,
        on_records: RecordsHandler = lambda _records: None,
        on_worker_active: Callable[[], None] = lambda: None,
        counts_events: bool = True,
    ) -> None:
        super().__init__(name="workers", clock=clock)
        self.monitor = WorkerMonitor(
            kill_worker=self._kill_worker,
            clock=clock,
            events=events,
            on_worker_active=on_worker_active,
            run_on_demand=self._run_on_demand,
            on_records=on_records,
        )
        self._supervisor: Supervisor | None = None
        self._incarnation = Incarnation.current()
        self._state = state
        self._log_variables = _log_environment(log)
        self._socket_directory: SocketDirectory | None = None
        if counts_events:
            events.subscribe(self.monitor.observe)

    def attach(self, supervisor: Supervisor) -> None:
        """Monitor the workers of this supervisor, and let it kill stalled ones and show why
        programs report that they are not ready.
        """
        self._supervisor = supervisor
        supervisor.add_listener(self.monitor)
        supervisor.set_end_judge(self.monitor)
        supervisor.commands.unready_reasons = self.monitor.unready_reasons

    def environment_for(self, uid: int | None) -> dict[str, str]:
        """The variables for worker processes of that user.

        Workers of another user renew their leases themselves: this process does not trust the files
        and stores that they report.
        """
        if uid is not None and uid != os.getuid():
            return self._log_variables
        crashes = (
            {}
            if self._state is None
            else {CRASH_DIR_VARIABLE: str((self._state / "crashes").absolute())}
        )
        return {**self._relay_variables(), **self._log_variables, **crashes}

    def connect(self, plan: ProgramPlan, kind: ProgramKind) -> ProgramPlan:
        """The plan of a Longwatch program of this kind that is no worker, such that the program
        relays its events and reports its state (`workers.program_relay`).
        """
        env = {**plan.process.env, **self._relay_variables()}
        return replace(plan, kind=kind, spec=replace(plan.process, env=env))

    def _relay_variables(self) -> dict[str, str]:
        return {
            PARENT_SOCKET_VARIABLE: str(self._socket_path()),
            PARENT_INCARNATION_VARIABLE: str(self._incarnation),
            PARENT_PROTOCOL_VARIABLE: str(PROTOCOL),
        }

    def _kill_worker(self, pid: int, reason: str) -> None:
        if self._supervisor is not None:
            self._supervisor.kill_unhealthy(pid, reason)

    def _run_on_demand(self, choose: Callable[[Plans], Iterable[ProgramPlan]]) -> None:
        if self._supervisor is not None:
            self._supervisor.run_on_demand(choose)

    def _socket_path(self) -> Path:
        """The socket that programs report to. Opened for the first one."""
        if self._socket_directory is None:
            self._socket_directory = SocketDirectory.create()
            self.monitor.open_channel(self._socket_directory.path / "line")
        return self._socket_directory.path / "line"

    # --- the service contract ---

    @property
    def in_own_thread(self) -> bool:
        return self.monitor.in_own_thread

    def _start(self) -> None:
        self.monitor.start()

    def _stop(self, deadline: Deadline) -> bool:
        stopped = self.monitor.stop(deadline=deadline)
        if self._socket_directory is not None:
            self._socket_directory.close()
            self._socket_directory = None
        return stopped


def _log_environment(log: LogSettings) -> dict[str, str]:
    """The log settings of worker processes, whose lines go to the stdout of this process."""
    return {LOG_LEVEL: log.level.value, LOG_FORMAT: "pretty" if is_pretty(log, 1) else "json"}
