"""The crash file: the stacks of all threads, written before this process is killed, or on SIGUSR2.

It is a regular file that stays open, because the dump must not block: a full stderr pipe would
block it while it holds the GIL. C code writes the dump, which works while another thread holds the
GIL.
"""

from __future__ import annotations

import faulthandler
import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from longwatch.core.clock import Clock, SystemClock
from longwatch.errors import UsageError
from longwatch.host.file_lock import open_locked, try_lock
from longwatch.host.runtime_dir import private_file_directory, runtime_directory

CRASH_DIR_VARIABLE = "LONGWATCH_CRASH_DIR"
"""The variable that names the directory of crash files."""
MAX_AGE_SECONDS = 30 * 86_400.0
MAX_FILES = 100
MAX_STDERR_BYTES = 4096
_SUFFIX = ".stacks"
_NEW_FILE_SECONDS = 60.0
"""Seconds for which an empty file is kept, because its process may not have locked it yet."""


class CrashFile:
    """The crash file of this process, open from `open` to `close`; removed at the end if it is
    empty.
    """

    def __init__(
        self, name: str, *, directory: Path | None = None, clock: Clock | None = None
    ) -> None:
        self.path = Path()
        self._name = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:64]
        self._directory = directory
        self._clock = clock or SystemClock()
        self._descriptor = -1
        self._dump_offset = 0

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    @property
    def fileno(self) -> int:
        return self._descriptor

    def open(self) -> None:
        directory = self._directory or crash_directory()
        prune_crash_files(directory, now=self._clock.wall())
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._clock.wall()))
        self.path = directory / f"{self._name}-{stamp}-{os.getpid()}-{os.urandom(3).hex()}{_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise _directory_error(directory, error) from None
        with suppress(OSError):  # a file system without locks
            try_lock(self._descriptor)

    def dump_on_signal(self, signum: int = signal.SIGUSR2) -> None:
        """Make this signal write every stack to the file, even while the GIL is held."""
        faulthandler.register(signum, file=self._descriptor, all_threads=True)

    def write(self, text: str) -> None:
        """Append a line. Errors are ignored, because the process is about to end."""
        with suppress(OSError):
            os.write(self._descriptor, text.encode(errors="backslashreplace") + b"\n")

    def dump(self, reason: str) -> None:
        """Write the reason, the time and the stack of every thread."""
        with suppress(OSError):
            self._dump_offset = os.fstat(self._descriptor).st_size
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock.wall()))
        self.write(f"{stamp} pid {os.getpid()}: {reason}")
        with suppress(OSError, ValueError):
            faulthandler.dump_traceback(file=self._descriptor, all_threads=True)

    def copy_to_stderr(self) -> None:
        """Write the beginning of the last dump to stderr, if stderr accepts it without blocking.

        A terminal may report that it does, and block.
        """
        with suppress(OSError, ValueError, AttributeError):  # it may be closed, replaced, or None
            descriptor = sys.stderr.fileno()
            poller = select.poll()
            poller.register(descriptor, select.POLLOUT)
            if any(event & select.POLLOUT for _, event in poller.poll(0)):
                os.write(descriptor, self._last_dump())

    def _last_dump(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self._dump_offset)
            dump = file.read(MAX_STDERR_BYTES)
        return dump if dump.endswith(b"\n") else dump[:-1] + b"\n"

    def close(self, *, signum: int | None = None) -> None:
        """Close it, and remove it if it is empty; `signum` no longer writes to it. Idempotent."""
        if not self.is_open:
            return
        if signum is not None:
            faulthandler.unregister(signum)
        descriptor, self._descriptor = self._descriptor, -1
        if not os.fstat(descriptor).st_size:
            self.path.unlink(missing_ok=True)
        os.close(descriptor)


def crash_directory() -> Path:
    """Return the directory that the environment names, or one in the runtime directory.

    Created with mode 0700 if it does not exist. Raises UsageError if that fails. The temporary
    directory if the runtime directory cannot be used.
    """
    configured = os.environ.get(CRASH_DIR_VARIABLE)
    try:
        directory = Path(configured) if configured else runtime_directory() / "crashes"
    except UsageError:
        return private_file_directory()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _directory_error(directory, error) from None
    return directory


def _directory_error(directory: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot write crash files to {directory} ({error.strerror}); set {CRASH_DIR_VARIABLE}"
    )


def prune_crash_files(directory: Path, *, now: float) -> None:
    """Remove crash files that are older than a month or beyond the hundred newest, and empty ones.

    Keeps files that a living process has locked, in whichever container. The pid in the name would
    not do: in another container it means another process, or none.
    """
    written: list[tuple[float, Path]] = []
    for path, found in _crash_files(directory):
        if found.st_size:
            written.append((found.st_mtime, path))
        elif now - found.st_mtime > _NEW_FILE_SECONDS:
            _remove_unlocked(path)
    for place, (moment, path) in enumerate(sorted(written, reverse=True)):
        if place >= MAX_FILES or now - moment > MAX_AGE_SECONDS:
            _remove_unlocked(path)


def _crash_files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with suppress(OSError):
        for path in directory.glob(f"*{_SUFFIX}"):
            with suppress(OSError):
                found = path.lstat()
                if found.st_uid == os.geteuid():  # the directory may be shared
                    yield path, found


def _remove_unlocked(path: Path) -> None:
    """Remove a crash file whose process has ended, so that nothing locks it."""
    descriptor = open_locked(path, os.O_RDWR | os.O_NOFOLLOW)
    if descriptor is not None:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(descriptor)
