"""The lock of a state directory, held as long as its supervisor lives.

The lock on `supervisor.lock` shows whether the supervisor is alive. The kernel releases it when the
process ends, however it ends, and a reused pid cannot be mistaken for it. The first line of the
file has the control socket:

    locked, with a socket       a supervisor that answers requests
    locked, without one         a supervisor that is starting
    not locked, with a line     the supervisor was killed
    not locked, empty or gone   there is none

`longwatch run`, `worker` and `runner` may share a state directory, with each other and with
`longwatch up`. Each of them has such a file in `running/`, and removes it when it ends. The next
one to start removes the files of killed ones.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self
from weakref import WeakMethod

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.error_text import os_reason
from longwatch.errors import TryAgainError, UsageError
from longwatch.host.file_lock import open_locked, try_lock

LOCK_FILE = "supervisor.lock"
ENTRY_DIRECTORY = "running"
_ENTRIES = "*.lock"
_MAX_LINE_BYTES = 4096
_LOCK_ATTEMPTS = 5
_RETRY_INTERVAL = 0.02
"""Seconds between attempts: a client that reads the file locks it for a moment too, and must not be
mistaken for a supervisor.
"""


class NotRunningError(TryAgainError):
    """No supervisor runs in the state directory, and none was killed there."""


@dataclass(frozen=True, slots=True)
class RunningSupervisor:
    """A running supervisor and its control socket. `command` is the Longwatch command that it runs
    for, empty for a supervisor in a process of your own.
    """

    pid: int
    socket: Path
    command: str = ""
    lock_path: Path | None = field(default=None, compare=False)
    started_at: float = field(default=0.0, compare=False)

    @property
    def owns_directory(self) -> bool:
        """Whether it is the one supervisor that keeps the records of programs there."""
        return self.lock_path is not None and self.lock_path.name == LOCK_FILE

    @property
    def is_running(self) -> bool:
        """Whether it still holds its lock."""
        look = None if self.lock_path is None else _look(self.lock_path)
        return look is not None and look.is_held and look.content.get("pid") == self.pid


class SupervisorLock:
    """This process as the one supervisor of a state directory, or as one of several that share it.
    Children do not inherit it.
    """

    def __init__(
        self, descriptor: int, *, clock: Clock, command: str = "", entry: Path | None = None
    ) -> None:
        self._descriptor = descriptor
        self._clock = clock
        self._entry = entry
        """The file that is removed with the lock; None for the file that stays."""
        self._content = {"pid": os.getpid(), **({"command": command} if command else {})}
        self._write(self._content)
        inherited = WeakMethod(self._close_descriptor)
        os.register_at_fork(after_in_child=lambda: (forget := inherited()) and forget())

    @classmethod
    def acquire(cls, state_dir: Path, *, clock: Clock | None = None, command: str = "") -> Self:
        """Lock the directory for this process. Raises TryAgainError if another supervisor holds it,
        UsageError if the directory cannot be used.
        """
        path = state_dir / LOCK_FILE
        clock = clock or SystemClock()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UsageError(
                f"cannot write {path} ({os_reason(error)}); choose another state directory "
                f"(--state-dir)"
            ) from None
        try:
            _lock_with_retries(descriptor, state_dir, clock)
            _remove_killed(state_dir / ENTRY_DIRECTORY)
            return cls(descriptor, clock=clock, command=command)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def share(cls, state_dir: Path, command: str, *, clock: Clock | None = None) -> Self:
        """Register this process as one that shares the directory. Raises OSError if it cannot be
        written.
        """
        directory = state_dir / ENTRY_DIRECTORY
        directory.mkdir(mode=0o700, exist_ok=True)
        _remove_killed(directory)
        for _ in range(_LOCK_ATTEMPTS):
            path = directory / f"{command}-{os.getpid()}-{os.urandom(3).hex()}.lock"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(path, flags, 0o600))
            descriptor = open_locked(path, os.O_RDWR | os.O_NOFOLLOW, wait=True)
            if descriptor is None:
                continue
            if path.exists():  # else another process removed it as that of a killed process
                return cls(descriptor, clock=clock or SystemClock(), command=command, entry=path)
            os.close(descriptor)
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), str(directory))

    def publish_socket(self, socket: Path) -> None:
        """Publish the path of the control socket to clients."""
        self._write({**self._content, "socket": str(socket), "started_at": self._clock.wall()})

    def release(self) -> None:
        """Release the directory. Idempotent."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
                if self._entry is not None:
                    self._entry.unlink(missing_ok=True)
            self._close_descriptor()

    def _write(self, content: dict[str, object]) -> None:
        """Replace the line in one write, then cut off the rest of a longer one. So readers always
        see a whole line.
        """
        line = json.dumps(content).encode() + b"\n"
        try:
            os.pwrite(self._descriptor, line, 0)
            os.ftruncate(self._descriptor, len(line))
        except OSError as error:
            raise TryAgainError(
                f"cannot write {LOCK_FILE} in the state directory: {os_reason(error)}"
            ) from None

    def _close_descriptor(self) -> None:
        """Close the descriptor. In a forked child that leaves the lock with its parent."""
        self._descriptor, closing = -1, self._descriptor
        if closing >= 0:
            os.close(closing)


def find_supervisor(state_dir: Path) -> RunningSupervisor:
    """Return the first of `find_supervisors`. Raises TryAgainError, with what to do, if there is
    none.
    """
    return find_supervisors(state_dir)[0]


def find_supervisors(state_dir: Path) -> list[RunningSupervisor]:
    """Return the supervisors of a state directory: the one that holds its lock, then the others,
    the oldest first. Raises TryAgainError, with what to do, if there is none.
    """
    found: list[RunningSupervisor] = []
    others: list[_LockLook] = []
    for path in (state_dir / LOCK_FILE, *_entries(state_dir)):
        look = _look(path)
        if look is not None and look.is_held and "socket" in look.content:
            found.append(_running_supervisor(path, look.content))
        elif look is not None:
            others.append(look)
    if not found:
        raise _nothing_answers_error(state_dir, others)
    return sorted(found, key=lambda each: (not each.owns_directory, each.started_at))


def _entries(state_dir: Path) -> list[Path]:
    try:
        return list((state_dir / ENTRY_DIRECTORY).glob(_ENTRIES))
    except OSError as error:
        raise _unreadable_error(state_dir, error) from None


def _unreadable_error(state_dir: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot look for the supervisor of {state_dir} ({os_reason(error)}); run as the user that "
        f"started it, or give --state-dir"
    )


class _LockLook(NamedTuple):
    """The state of a lock file at one moment."""

    is_held: bool
    content: dict[str, Any]


def _look(path: Path) -> _LockLook | None:
    """Read a lock file; None if it does not exist. Raises UsageError if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable_error(path.parent, error) from None
    try:
        return _LockLook(not try_lock(descriptor, shared=True), _read_lock_file(descriptor))
    except OSError as error:  # a FIFO, or a directory
        raise _unreadable_error(path.parent, error) from None
    finally:
        os.close(descriptor)


def _running_supervisor(path: Path, content: dict[str, Any]) -> RunningSupervisor:
    return RunningSupervisor(
        content["pid"],
        Path(content["socket"]),
        str(content.get("command", "")),
        path,
        float(content.get("started_at", 0.0)),
    )


def _nothing_answers_error(state_dir: Path, looks: list[_LockLook]) -> TryAgainError:
    if any(look.is_held for look in looks):
        return TryAgainError(f"the supervisor of {state_dir} is just starting; try again")
    for look in looks:
        if "pid" in look.content:
            command = look.content.get("command") or "up"
            return TryAgainError(
                f"the supervisor of {state_dir} (pid {look.content['pid']}) was killed; start it "
                f"again with `longwatch {command}`"
            )
    return _not_running_error(state_dir)


def _not_running_error(state_dir: Path) -> NotRunningError:
    return NotRunningError(
        f"no supervisor runs on {state_dir}; start one with `longwatch up`, or give --state-dir"
    )


def _remove_killed(directory: Path) -> None:
    """Remove the files of killed supervisors: those that no process has locked."""
    for path in directory.glob(_ENTRIES):
        descriptor = open_locked(path, os.O_RDWR | os.O_NOFOLLOW)
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _lock_with_retries(descriptor: int, state_dir: Path, clock: Clock) -> None:
    for _ in range(_LOCK_ATTEMPTS):
        if try_lock(descriptor):
            return
        clock.wait(Wakeup(), _RETRY_INTERVAL)
    content = _read_lock_file(descriptor)
    owner = f"pid {content['pid']}" if "pid" in content else "another process"
    raise TryAgainError(
        f"{owner} is supervising on {state_dir} already; use `longwatch status`, end it with "
        f"`longwatch down`, or give another --state-dir"
    )


def _read_lock_file(descriptor: int) -> dict[str, Any]:
    """Return the content of a lock file; empty if it is not valid."""
    line, ended, _ = os.pread(descriptor, _MAX_LINE_BYTES, 0).partition(b"\n")
    with suppress(ValueError):
        content = json.loads(line)
        if ended and isinstance(content, dict) and isinstance(content.get("pid"), int):
            return content
    return {}
