"""The parts of a supervisor in its state directory: the lock, the ledger, and the control
socket.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import ControlUnavailable
from longwatch.errors import TryAgainError, UsageError
from longwatch.supervisor.control import ControlServer
from longwatch.supervisor.ledger import ProgramLedger
from longwatch.supervisor.program_record import ProgramRecord
from longwatch.supervisor.supervisor_lock import ENTRY_DIRECTORY, SupervisorLock

LEDGER_FILE = "supervisor.db"
_DIRECTORIES = ("logs", "crashes", "evals", ENTRY_DIRECTORY)
"""Directories below the state directory in which we write files."""

RequestHandler = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class StateDirectory:
    """The state directory, opened when the supervisor starts and closed when it stops.

    `open` and `close` block on the disk. The other methods are for the event loop and do not,
    except `open_control`, which writes one line before any program runs.

    A `shared` supervisor does not own the directory. It saves no records, and runs without control
    if the directory cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        events: Events,
        command: str = "",
        shared: bool = False,
    ) -> None:
        self.path = path
        self._command = command
        self._shared = shared
        self._clock = clock
        self._events = events
        self._lock: SupervisorLock | None = None
        self._ledger: ProgramLedger | None = None
        self._control: ControlServer | None = None

    def open(self, known: Collection[str], *, forget_after: float) -> dict[str, ProgramRecord]:
        """Lock the directory, created if it is new, and read the records of programs."""
        with suppress(OSError):  # the lock reports it
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_trusted(self.path)
        if self._shared:
            self._share()
            return {}
        self._lock = SupervisorLock.acquire(self.path, command=self._command)
        ledger = ProgramLedger(self.path / LEDGER_FILE, clock=self._clock, events=self._events)
        records = ledger.load(forget_after=forget_after, known=known)
        ledger.start()
        self._ledger = ledger
        return records

    def _share(self) -> None:
        try:
            self._lock = SupervisorLock.share(self.path, self._command)
        except (OSError, TryAgainError) as error:
            self._events.emit(ControlUnavailable(reason=describe_error(error)))

    async def open_control(self, socket: Path, handle: RequestHandler) -> None:
        """Open the control socket and publish its path."""
        if self._lock is None:  # `_share` has emitted why
            return
        self._control = ControlServer(socket, handle, clock=self._clock, events=self._events)
        try:
            await self._control.open()
            self._lock.publish_socket(socket)
        except (UsageError, TryAgainError) as error:
            if not self._shared:
                raise
            self._events.emit(ControlUnavailable(reason=str(error)))

    def save_record(self, name: str, record: ProgramRecord) -> None:
        if self._ledger is not None:
            self._ledger.save(name, record)

    async def flush_records(self) -> None:
        if self._ledger is not None:
            await self._ledger.flush()

    async def close_control(self) -> None:
        if self._control is not None:
            await self._control.close()
            self._control = None

    def close(self, deadline: Deadline) -> bool:
        """Write pending records and release the directory. Returns False if the disk does not
        answer in time: then the lock is held until this process ends.
        """
        if self._ledger is not None:
            if not self._ledger.stop(deadline=deadline):
                return False
            self._ledger = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        return True


def require_trusted(state_dir: Path) -> None:
    """Raise UsageError if any other user can put files into the state directory.

    The sticky bit does not help: it lets others create a lock file, a ledger or a log before we do.
    A symbolic link is followed only if this user or root created it.
    """
    for path in (state_dir, *(state_dir / name for name in _DIRECTORIES)):
        if problem := _find_problem(path):
            raise UsageError(
                f"the state directory is not safe: {path} {problem}, or give another --state-dir, "
                f"such as a new directory below it"
            )


def _find_problem(path: Path) -> str:
    """Return why the directory is not safe and what to do; empty if it is safe or does not
    exist.
    """
    try:
        entry, found = path.lstat(), path.stat()
    except OSError:
        return ""  # its first use reports this
    if stat.S_ISLNK(entry.st_mode) and entry.st_uid not in {0, os.geteuid()}:
        return f"is a symbolic link of user {entry.st_uid}; replace it by a directory"
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(found.st_mode)
        return f"can be written to by every user (mode {mode:o}); `chmod o-w` it"
    return ""
