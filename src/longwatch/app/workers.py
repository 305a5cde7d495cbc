"""The parent of worker processes, beside a supervisor: where they speak to it, and what they are
told.
"""

from __future__ import annotations

import os
from pathlib import Path

from longwatch.app.console import is_pretty
from longwatch.app.overseer import Overseer
from longwatch.app.preflight import LOG_FORMAT, LOG_LEVEL
from longwatch.config.settings import LogSettings
from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events import Events
from longwatch.host.parent import PARENT_SOCKET
from longwatch.host.service import Service
from longwatch.host.stacks import CRASH_DIRECTORY
from longwatch.supervisor.rendezvous import Rendezvous
from longwatch.supervisor.supervisor import Supervisor


class Workers(Service):
    """Oversees the worker processes of a supervisor. `state`: where their crash files go."""

    def __init__(
        self, *, state: Path | None, log: LogSettings, clock: Clock, events: Events
    ) -> None:
        super().__init__(name="workers", clock=clock)
        self.supervisor: Supervisor | None = None
        """Who starts them; its plans need what is told here, so it comes later."""
        self.overseer = Overseer(condemn=self._condemn, clock=clock, events=events)
        self._state = state
        self._log = _child_log(log)
        self._rendezvous: Rendezvous | None = None
        events.subscribe(self.overseer.observe)

    def told(self, uid: int | None) -> dict[str, str]:
        """What worker processes of that user find in their environment.

        Those of another user keep their leases by themselves: we would have to believe what they
        say of files and stores.
        """
        if uid is not None and uid != os.getuid():
            return self._log
        crashes = (
            {}
            if self._state is None
            else {CRASH_DIRECTORY: str((self._state / "crashes").absolute())}
        )
        return {PARENT_SOCKET: str(self._line()), **self._log, **crashes}

    def _condemn(self, pid: int, reason: str) -> None:
        if self.supervisor is not None:
            self.supervisor.condemn(pid, reason)

    def _line(self) -> Path:
        """Where they speak to us."""
        if self._rendezvous is None:
            self._rendezvous = Rendezvous.make()
            self.overseer.listen(self._rendezvous.path / "line")
        return self._rendezvous.path / "line"

    # --- the service contract ---

    @property
    def inside(self) -> bool:
        return self.overseer.inside

    def _start(self) -> None:
        self.overseer.start()

    def _stop(self, deadline: Deadline) -> bool:
        stopped = self.overseer.stop(deadline=deadline)
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None
        return stopped


def _child_log(log: LogSettings) -> dict[str, str]:
    """As we log."""
    return {LOG_LEVEL: log.level.value, LOG_FORMAT: "pretty" if is_pretty(log) else "json"}
