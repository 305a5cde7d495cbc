"""What a supervisor has in its state directory: the claim to it, the ledger, and the way to
reach it.
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
    """Opened when the supervisor starts, closed when it stops. `open` and `close` wait for the
    disk. The rest is for the loop and does not, but for `open_control`: it writes one line before
    any program runs.

    A supervisor that is `shared` leaves the directory to others as well. It remembers nothing, and
    goes on without control if the directory cannot be used.
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
        """Claim the directory, made if it is new, and read what is remembered."""
        with suppress(OSError):  # the claim tells
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
        """Open the control socket and say where it is."""
        if self._lock is None:  # the event has said why
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
        """Write what is unwritten and release the directory. False if the disk does not answer in
        time: then the lock goes with this process.
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

    The sticky bit does not help: it lets others make a lock file, a ledger or a log before we do.
    A symbolic link is followed only if this user or root made it.
    """
    for path in (state_dir, *(state_dir / name for name in _DIRECTORIES)):
        if problem := _find_problem(path):
            raise UsageError(
                f"the state directory is not safe: {path} {problem}, or give another --state-dir, "
                f"such as a new directory below it"
            )


def _find_problem(path: Path) -> str:
    """Why the directory is not safe, and a cure; empty if it is, or is not there."""
    try:
        entry, found = path.lstat(), path.stat()
    except OSError:
        return ""  # found out where it is used
    if stat.S_ISLNK(entry.st_mode) and entry.st_uid not in {0, os.geteuid()}:
        return f"is a symbolic link of user {entry.st_uid}; replace it by a directory"
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(found.st_mode)
        return f"can be written to by every user (mode {mode:o}); `chmod o-w` it"
    return ""
