"""Who supervises here: one lock in the state directory, held for as long as the supervisor lives.

`supervisor.lock` says two things. Its lock says whether a supervisor lives; the kernel lets go of
it when the process ends, however it ends, and no pid that somebody else has got meanwhile can be
taken for it. Its first line says where to reach it:

    locked, with a socket       a supervisor that can be asked
    locked, without one         it has just been started
    not locked, with a line     it was killed
    not locked, empty or gone   there is none
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from weakref import WeakMethod

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.error_text import os_reason
from longwatch.errors import TryAgainError, UsageError
from longwatch.host.file_lock import try_lock

LOCK_FILE = "supervisor.lock"
_MAX_LINE_BYTES = 4096
_LOCK_ATTEMPTS = 5
_RETRY_INTERVAL = 0.02
"""Seconds; a client that looks holds the lock for a moment, too, and is not to be taken for a
supervisor.
"""


@dataclass(frozen=True, slots=True)
class RunningSupervisor:
    """A supervisor that lives, and where to ask it."""

    pid: int
    socket: Path


class SupervisorLock:
    """This process as the one supervisor of a state directory. Children do not inherit it."""

    def __init__(self, descriptor: int, *, clock: Clock) -> None:
        self._descriptor = descriptor
        self._clock = clock
        self._write({"pid": os.getpid()})
        inherited = WeakMethod(self._close_descriptor)
        os.register_at_fork(after_in_child=lambda: (forget := inherited()) and forget())

    @classmethod
    def acquire(cls, state_dir: Path, *, clock: Clock | None = None) -> Self:
        """Be the supervisor here; TryAgainError if another one is, UsageError if the directory
        cannot be used.
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
            return cls(descriptor, clock=clock)
        except BaseException:
            os.close(descriptor)
            raise

    def publish_socket(self, socket: Path) -> None:
        """Tell clients where to ask."""
        self._write({"pid": os.getpid(), "socket": str(socket), "started_at": self._clock.wall()})

    def release(self) -> None:
        """Be no supervisor any more; idempotent."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            self._close_descriptor()

    def _write(self, content: dict[str, object]) -> None:
        """One write, then the rest of a longer line before it cut off: whoever reads a line
        reads a whole one.
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
        """Close our end; in a forked child that leaves the lock with its parent."""
        self._descriptor, closing = -1, self._descriptor
        if closing >= 0:
            os.close(closing)


def find_supervisor(state_dir: Path) -> RunningSupervisor:
    """The supervisor of a state directory, for those who want to ask it; TryAgainError, with
    what to do, if there is none.
    """
    try:
        descriptor = os.open(
            state_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
    except (FileNotFoundError, NotADirectoryError):
        raise _not_running_error(state_dir) from None
    except OSError as error:
        problem = f"cannot look for the supervisor of {state_dir} ({os_reason(error)})"
        raise UsageError(
            f"{problem}; ask as the user who started it, or give --state-dir"
        ) from None
    try:
        held, content = not try_lock(descriptor, shared=True), _read_lock_file(descriptor)
    finally:
        os.close(descriptor)
    return (
        _running_supervisor(state_dir, content) if held else _raise_not_running(state_dir, content)
    )


def _running_supervisor(state_dir: Path, content: dict[str, Any]) -> RunningSupervisor:
    if "socket" not in content:
        raise TryAgainError(f"the supervisor of {state_dir} is just starting; try again")
    return RunningSupervisor(content["pid"], Path(content["socket"]))


def _raise_not_running(state_dir: Path, content: dict[str, Any]) -> RunningSupervisor:
    if "pid" in content:
        raise TryAgainError(
            f"the supervisor of {state_dir} (pid {content['pid']}) was killed; start it again with "
            f"`longwatch up`"
        )
    raise _not_running_error(state_dir)


def _not_running_error(state_dir: Path) -> TryAgainError:
    return TryAgainError(
        f"no supervisor runs on {state_dir}; start one with `longwatch up`, or give --state-dir"
    )


def _lock_with_retries(descriptor: int, state_dir: Path, clock: Clock) -> None:
    for _ in range(_LOCK_ATTEMPTS):
        if try_lock(descriptor):
            return
        clock.wait(Wakeup(), _RETRY_INTERVAL)
    content = _read_lock_file(descriptor)
    owner, cure = (
        (f"pid {content['pid']}", f", end it with `kill {content['pid']}`")
        if "pid" in content
        else ("another process", "")
    )
    raise TryAgainError(
        f"{owner} is supervising on {state_dir} already; use `longwatch status`{cure}, or give "
        f"another --state-dir"
    )


def _read_lock_file(descriptor: int) -> dict[str, Any]:
    """What the file says; nothing if that is no line of ours."""
    line, ended, _ = os.pread(descriptor, _MAX_LINE_BYTES, 0).partition(b"\n")
    with suppress(ValueError):
        content = json.loads(line)
        if ended and isinstance(content, dict) and isinstance(content.get("pid"), int):
            return content
    return {}
