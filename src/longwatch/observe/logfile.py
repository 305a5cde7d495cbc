"""A log file that stays small, stays readable, and never harms whoever writes to it.

Every write is one append of whole lines. Before it the file is looked at by its name: if it is gone
or another one stands there (deleted, rotated by someone else), it is opened anew; if it would grow
past its size, it is rotated (`x.log` → `x.log.1` → …). A write that the disk refuses leaves no torn
line behind; the lines are counted, and the first write that succeeds again says how many are
missing. A symbolic link at the name is never followed: another user may have put it there.

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
)  # the last, or a FIFO there would block the open


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
        """Lines that were given to `write` and are not in the file."""
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
        """Append whole lines, and count those that were dropped before them."""
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
        """Write the data, before it what is still to be told; returns the part that did not get
        into the file.
        """
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
        """Have the right file open, with room for so many bytes; returns its size."""
        current_size = self._size_by_name()
        outgrown = current_size is not None and current_size > max(self.max_bytes - size, 0)
        if current_size is None or (outgrown and self._rotate()):
            self._reopen()
        return os.fstat(self._fd).st_size

    def _size_by_name(self) -> int | None:
        """The size of our file; None if it no longer stands at its path."""
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
        """Move every file one number up, the last one out; False if it cannot be done now, and
        the file grows on.
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
        """What has to stand before the next line: the end of a torn one, the notice of dropped
        ones.
        """
        ending = b"\n" if self._torn else b""
        with suppress(
            Exception
        ):  # a notice that cannot be made is no reason to lose the line after it
            return ending + (
                self._dropped_line(self._unreported)
                if self._dropped_line and self._unreported
                else b""
            )
        return ending

    def _truncate_torn(self, data: bytes, *, size: int, written: int) -> int:
        """After a short write: cut the file back to the end of its last whole line; returns how
        much of the data is in it.
        """
        whole = data.rfind(b"\n", 0, written) + 1
        if os.fstat(self._fd).st_size == size + written:  # nobody else appended meanwhile
            os.ftruncate(self._fd, size + whole)
        else:
            self._torn = True
        return whole

    def _count_dropped(self, lines: int) -> None:
        self.dropped += lines
        self._unreported += lines


def _open(path: Path) -> int:
    """Open for appending; makes the file and its directories where they are missing."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, _FLAGS, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "not a regular file")
    return fd


def _ends_torn(fd: int) -> bool:
    """Whether the file's last line was never finished, as after a power cut."""
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
