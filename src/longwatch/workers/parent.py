"""The parent of worker processes, beside a supervisor: where they speak to it, and what they are
told.
"""

from __future__ import annotations

import os
from pathlib import Path

from longwatch.config.settings import LogSettings, is_pretty
from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.host.crash_file import CRASH_DIR_VARIABLE
from longwatch.host.parent_channel import PARENT_SOCKET_VARIABLE
from longwatch.host.service import Service
from longwatch.supervisor.socket_directory import SocketDirectory
from longwatch.supervisor.supervisor import Supervisor
from longwatch.workers.monitor import WorkerMonitor
from longwatch.workers.preflight import LOG_FORMAT, LOG_LEVEL


class WorkerParent(Service):
    """Oversees the worker processes of a supervisor. `state`: where their crash files go."""

    def __init__(
        self, *, state: Path | None, log: LogSettings, clock: Clock, events: Events
    ) -> None:
        super().__init__(name="workers", clock=clock)
        self.supervisor: Supervisor | None = None
        """Who starts them; its plans need what is told here, so it comes later."""
        self.monitor = WorkerMonitor(kill_worker=self._kill_worker, clock=clock, events=events)
        self._state = state
        self._log_variables = _log_environment(log)
        self._socket_directory: SocketDirectory | None = None
        events.subscribe(self.monitor.observe)

    def environment_for(self, uid: int | None) -> dict[str, str]:
        """What worker processes of that user find in their environment.

        Those of another user keep their leases by themselves: we would have to believe what they
        say of files and stores.
        """
        if uid is not None and uid != os.getuid():
            return self._log_variables
        crashes = (
            {}
            if self._state is None
            else {CRASH_DIR_VARIABLE: str((self._state / "crashes").absolute())}
        )
        return {PARENT_SOCKET_VARIABLE: str(self._socket_path()), **self._log_variables, **crashes}

    def _kill_worker(self, pid: int, reason: str) -> None:
        if self.supervisor is not None:
            self.supervisor.kill_unhealthy(pid, reason)

    def _socket_path(self) -> Path:
        """Where they speak to us."""
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
    """As we log."""
    return {LOG_LEVEL: log.level.value, LOG_FORMAT: "pretty" if is_pretty(log) else "json"}
