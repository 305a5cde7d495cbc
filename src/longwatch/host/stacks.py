"""The crash file: where the stacks of every thread go when this process is about to be ended, or is asked for them by SIGUSR2.

It is a regular file that stays open, because last words must not wait: a full stderr pipe would block the dump while it holds the
GIL. The dump is made by C code, which works while some other thread holds the GIL, or never lets go of it.
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
from longwatch.host.runtimedir import runtime_directory

CRASH_DIRECTORY = "LONGWATCH_CRASH_DIR"
"""The variable that says where crash files go."""
KEEP_SECONDS = 30 * 86_400.0
KEEP_FILES = 100
MOST_TO_STDERR = 4096
_SUFFIX = ".stacks"


class CrashFile:
    """The crash file of this process, open from `open` to `close`; nothing was written: then it is removed."""

    def __init__(self, name: str, *, directory: Path | None = None, clock: Clock | None = None) -> None:
        self.path = Path()
        self._name = re.sub(r"[^\w.-]+", "_", name)[:64]
        self._directory = directory
        self._clock = clock or SystemClock()
        self._descriptor = -1

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    @property
    def fileno(self) -> int:
        return self._descriptor

    def open(self) -> None:
        directory = self._directory or crash_directory()
        forget_old(directory, now=self._clock.wall())
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._clock.wall()))
        self.path = directory / f"{self._name}-{stamp}-{os.getpid()}-{os.urandom(3).hex()}{_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o600)

    def on_signal(self, signum: int = signal.SIGUSR2) -> None:
        """From now on this signal writes every stack here, also while the GIL is held."""
        faulthandler.register(signum, file=self._descriptor, all_threads=True)

    def write(self, text: str) -> None:
        """Add a line; what cannot be written is not: these are last words."""
        with suppress(OSError):
            os.write(self._descriptor, text.encode(errors="backslashreplace") + b"\n")

    def dump(self, reason: str) -> None:
        """Write why, when, and what every thread is doing."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock.wall()))
        self.write(f"{stamp} pid {os.getpid()}: {reason}")
        with suppress(OSError):
            faulthandler.dump_traceback(file=self._descriptor, all_threads=True)

    def show(self) -> None:
        """As much of it on stderr as is taken without waiting."""
        with suppress(OSError, ValueError):
            descriptor = sys.stderr.fileno()
            poller = select.poll()
            poller.register(descriptor, select.POLLOUT)
            if any(event & select.POLLOUT for _, event in poller.poll(0)):
                os.write(descriptor, self.path.read_bytes()[:MOST_TO_STDERR])

    def close(self, *, signum: int | None = None) -> None:
        """Close it, and remove it if it is empty; `signum` writes here no more. Idempotent."""
        if not self.is_open:
            return
        if signum is not None:
            faulthandler.unregister(signum)
        descriptor, self._descriptor = self._descriptor, -1
        if not os.fstat(descriptor).st_size:
            self.path.unlink(missing_ok=True)
        os.close(descriptor)


def crash_directory() -> Path:
    """Where the environment says, else in the runtime directory; made 0700 if it is not there."""
    asked = os.environ.get(CRASH_DIRECTORY)
    directory = Path(asked) if asked else runtime_directory() / "crashes"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"crash files cannot go to {directory} ({error.strerror}); set {CRASH_DIRECTORY}") from None
    return directory


def forget_old(directory: Path, *, now: float) -> None:
    """Remove crash files that are older than a month, those beyond the hundred newest, and empty ones of dead processes."""
    written: list[tuple[float, Path]] = []
    for path, found in _found(directory):
        if found.st_size:
            written.append((found.st_mtime, path))
        elif not _lives(path):
            _remove(path)
    for place, (moment, path) in enumerate(sorted(written, reverse=True)):
        if place >= KEEP_FILES or now - moment > KEEP_SECONDS:
            _remove(path)


def _found(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with suppress(OSError):
        for path in directory.glob(f"*{_SUFFIX}"):
            with suppress(OSError):
                yield path, path.stat()


def _lives(path: Path) -> bool:
    """Whether there is a process with the number in the name."""
    pid = path.stem.split("-")[-2:-1]
    return bool(pid) and pid[0].isdigit() and Path("/proc", pid[0]).exists()


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
