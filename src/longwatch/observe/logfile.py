"""A log file that is rotated by size, has whole lines only, and never raises in its writers.

Every write is one append of whole lines. Before a write the path is checked. A file that was
deleted or rotated by another program is opened anew. A file that would grow past its size is
rotated (`x.log` → `x.log.1` → …). A write that the disk refuses leaves no torn line behind. Its
lines are counted, and the next successful write reports how many are missing. A symbolic link at
the path is never followed: another user may have created it.

A write blocks for as long as the disk does. In a process that must not wait for a disk a
`NonblockingWriter` stands in front of the file, and rotation is the work of its thread too.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from longwatch.core.error_text import os_reason
from longwatch.errors import UsageError
from longwatch.host.nonblocking_writer import PutResult, count_lines

SUPERVISOR_LOG = "watchdog"
"""The name of the supervisor's own log, which no program's may have."""

DroppedLine = Callable[[int], bytes]
_FLAGS = (
    os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
)  # without the last, opening a FIFO would block


class LogFile:
    """One log file, readable only by its owner, with up to `keep` former ones beside it.

    The file is opened at once, so that a wrong place is found at the start: UsageError. From then
    on nothing raises. `dropped_line` makes the line that says, once the disk takes lines again, how
    many were dropped. `on_failed` gets the reason, once each time that lines begin to be dropped.
    Any thread may call any method. It is a `LineTarget`.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 10 << 20,
        keep: int = 5,
        dropped_line: DroppedLine | None = None,
        on_failed: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self.dropped = 0
        """Lines passed to `write` that are not in the file."""
        self._dropped_line = dropped_line
        self._unreported = 0
        self._on_failed = on_failed
        self._is_failing = False
        self._lock = threading.Lock()
        try:
            self._fd = _open(path)
            self._torn = _ends_torn(self._fd)
        except OSError as error:
            raise UsageError(_open_error(path, error)) from None

    def write(self, data: bytes) -> bool:
        """Append whole lines; False if some of them were dropped. Never raises."""
        return self.put(data).written == len(data)

    def put(
        self,
        chunk: bytes,
        *,
        skipped: int = 0,
        is_wanted: Callable[[], bool] | None = None,  # noqa: ARG002 - one write cannot stop midway
    ) -> PutResult:
        """Append whole lines, and count the lines that were dropped before them."""
        with self._lock:
            self._count_dropped(skipped)
            reason = "the disk takes no more"
            try:
                lost = self._append(chunk)
            except OSError as error:
                lost, reason = chunk, _reason(error)
            self._count_dropped(count_lines(lost))
            failed_before, self._is_failing = self._is_failing, bool(lost)
        if lost and not failed_before and self.is_open:
            self._on_failed(reason)
        return PutResult(len(chunk) - len(lost))

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def close(self) -> None:
        """Close the file; later writes are dropped. Idempotent."""
        with self._lock:
            self._fd, closing = -1, self._fd
        if closing >= 0:
            os.close(closing)

    def _append(self, data: bytes) -> bytes:
        """Write the data after any pending notice. Returns the part that was not written."""
        if self._fd < 0:
            return data
        size = self._prepare(len(data))
        prefix = self._prefix()
        written = os.write(self._fd, prefix + data)
        if prefix and written >= len(prefix):
            self._unreported, self._torn = 0, False
        if written < len(prefix + data):
            written = self._truncate_torn(prefix + data, size=size, written=written)
        return data[max(written - len(prefix), 0) :]

    def _prepare(self, size: int) -> int:
        """Open the right file, rotated if it has no room for so many bytes. Returns its size."""
        current_size = self._size_by_name()
        outgrown = current_size is not None and current_size > max(self.max_bytes - size, 0)
        if current_size is None or (outgrown and self._rotate()):
            self._reopen()
        return os.fstat(self._fd).st_size

    def _size_by_name(self) -> int | None:
        """The size of our file; None if its path now leads to another file, or to none."""
        try:
            there, ours = self.path.lstat(), os.fstat(self._fd)
        except FileNotFoundError:
            return None
        return there.st_size if os.path.samestat(there, ours) else None

    def _reopen(self) -> None:
        fresh = _open(self.path)
        os.close(self._fd)
        self._fd = fresh
        self._torn = _ends_torn(fresh)

    def _rotate(self) -> bool:
        """Rotate: raise the number of every file and delete the oldest. If that fails, return False
        and let the file grow.
        """
        names = [
            self.path,
            *(
                self.path.with_name(f"{self.path.name}.{number}")
                for number in range(1, self.keep + 1)
            ),
        ]
        try:
            for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
                with suppress(FileNotFoundError):
                    newer.replace(older)
            if not self.keep:
                self.path.unlink()
        except OSError:
            return False
        return True

    def _prefix(self) -> bytes:
        """The bytes before the next line: the end of a torn line, and the notice of
        dropped lines.
        """
        ending = b"\n" if self._torn else b""
        with suppress(Exception):  # the next line is written even if the notice cannot be made
            return ending + (
                self._dropped_line(self._unreported)
                if self._dropped_line and self._unreported
                else b""
            )
        return ending

    def _truncate_torn(self, data: bytes, *, size: int, written: int) -> int:
        """After a short write, truncate the file to its last whole line. Returns how much of the
        data it keeps.
        """
        whole = data.rfind(b"\n", 0, written) + 1
        if os.fstat(self._fd).st_size == size + written:  # no other process has appended
            os.ftruncate(self._fd, size + whole)
        else:
            self._torn = True
        return whole

    def _count_dropped(self, lines: int) -> None:
        self.dropped += lines
        self._unreported += lines


def _open(path: Path) -> int:
    """Open the file for appending. Creates it and its directories."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, _FLAGS, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "not a regular file")
    return fd


def _ends_torn(fd: int) -> bool:
    """Whether the last line of the file is incomplete, as after a power cut."""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def _open_error(path: Path, error: OSError) -> str:
    cure = "choose a directory you may write to with --state-dir (`off`: no files)"
    if error.errno == errno.ELOOP:
        cure = "remove it, or choose another directory with --state-dir"
    return f"cannot write the log {path}: {_reason(error)}; {cure}"


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError):
        return "not a directory"
    return "it is a symbolic link" if error.errno == errno.ELOOP else os_reason(error)
