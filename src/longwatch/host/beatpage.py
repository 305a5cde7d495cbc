"""The beat page: a file in which a worker process shows its current work.

Other processes can read it even while the worker holds the GIL, hangs or is dead. Each engine has
one small file, mapped into memory. Its header has: until when its leases are trusted, whether it is
draining, the last beat of the engine itself, and how many rows it has completed. Then comes one
entry for each slot: last beat, its row, and when it started the row.

Only the slot itself writes its entry. It writes the row number last when it begins and first when
it ends, so a reader never sees a row that has not started. A parent that renews the leases writes
until when they are trusted. Of a child that it has killed, it writes which rows are to blame.

The engine declares a row *silent* when its code has given no beat for so long that the lease is not
renewed any more. The row's number is then negative: the row still runs, and its own code is the
reason why its lease lapses.

Beats and starts are on CLOCK_MONOTONIC, so that a suspend is not a stall. The end of trust is on
`Clock.boottime()`, so that a suspend uses it up, as it does the lease.

    offset  0  magic (8)   8  slots   16  trusted until   24  draining   32  beat of the engine
           40  completed rows
           48 …  per slot: beat, row, started (8 bytes each)
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MAGIC = b"LWBEAT03"
_HEADER = 48
_TRUSTED, _DRAINING, _ENGINE, _COMPLETED = 16, 24, 32, 40
_MAX_BYTES = 1 << 20
_SLOT = 24
_NUMBER = struct.Struct(
    "@q"
)  # native, so that each write is one store: a process killed in between leaves no half number
_TIME = struct.Struct("@d")


class SlotState(NamedTuple):
    """The state of one slot; `row` is 0 if it is idle.

    Times are on CLOCK_MONOTONIC of the machine. `is_silent`: the engine does not renew the lease of
    this row.
    """

    beat_at: float
    row: int
    started_at: float
    is_silent: bool = False


class BeatPage:
    """The beat page that this process writes. A beat is one store into memory."""

    def __init__(self, path: Path, slots: int) -> None:
        self.path = path
        self.slots = slots
        self._map = _create_mapped(path, _HEADER + slots * _SLOT)
        _NUMBER.pack_into(self._map, 8, slots)
        self._map[:8] = _MAGIC

    def begin(self, slot: int, row: int, now: float) -> None:
        """Record that the slot starts to work on this row."""
        offset = _HEADER + slot * _SLOT
        _TIME.pack_into(self._map, offset, now)
        _TIME.pack_into(self._map, offset + 16, now)
        _NUMBER.pack_into(self._map, offset + 8, row)

    def beat(self, slot: int, now: float) -> None:
        _TIME.pack_into(self._map, _HEADER + slot * _SLOT, now)

    def end(self, slot: int) -> None:
        """Record that the slot has settled its row, or given it up."""
        _NUMBER.pack_into(self._map, _HEADER + slot * _SLOT + 8, 0)

    def mark_silent(self, slot: int) -> None:
        """Declare that the row of this slot gives no beat and is not renewed. Idempotent.

        Must not run at the same time as `begin` or `end` of the same slot in another thread.
        """
        offset = _HEADER + slot * _SLOT + 8
        [row] = _NUMBER.unpack_from(self._map, offset)
        _NUMBER.pack_into(self._map, offset, -abs(row))

    def beat_engine(self, now: float) -> None:
        """Record that the engine's own loop runs, whatever its slots do."""
        _TIME.pack_into(self._map, _ENGINE, now)

    def record_completed(self, rows: int) -> None:
        """Record how many rows the engine has completed since it started: run and settled, not
        released.
        """
        _NUMBER.pack_into(self._map, _COMPLETED, rows)

    @property
    def trusted_until(self) -> float:
        """Until when the leases are trusted, as written last, here or by a parent that
        renews them.
        """
        moment: float = _TIME.unpack_from(self._map, _TRUSTED)[0]
        return moment

    def trust_until(self, moment: float) -> None:
        _TIME.pack_into(self._map, _TRUSTED, moment)

    def start_draining(self) -> None:
        """Record that the process drains: from now on no row is to blame for its end."""
        _NUMBER.pack_into(self._map, _DRAINING, 1)

    def end_draining(self) -> None:
        """Record that the process takes work again: from now on rows are to blame for its end."""
        _NUMBER.pack_into(self._map, _DRAINING, 0)

    def close(self) -> None:
        """Remove the page. A process that ended normally leaves none."""
        self._map.close()
        self.path.unlink(missing_ok=True)


def _create_mapped(path: Path, size: int) -> mmap.mmap:
    """Create a file and map it into memory.

    All of it is written once: a hole that a full disk cannot fill would end the process with
    SIGBUS.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(bytes(size))
        return mmap.mmap(descriptor, size)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


class BeatSnapshot(NamedTuple):
    """The contents of a page, as another process read it."""

    trusted_until: float
    draining: bool
    beat_at: float
    """Last beat of the engine itself; 0.0 if it has not beaten yet."""
    slots: tuple[SlotState, ...]
    completed: int = 0
    """Rows that the engine has completed."""

    @property
    def running_rows(self) -> frozenset[int]:
        """The rows that slots were running."""
        return frozenset(slot.row for slot in self.slots if slot.row)

    @property
    def silent_rows(self) -> frozenset[int]:
        """The running rows that the engine has declared silent."""
        return frozenset(slot.row for slot in self.slots if slot.row and slot.is_silent)

    def stalled_rows(self, now: float, *, older_than: float) -> dict[int, float]:
        """Return the rows whose slot has given no beat for longer than this, with the age of the
        last beat.

        Row 0 stands for the engine itself.
        """
        ages = {slot.row: now - slot.beat_at for slot in self.slots if slot.row} | (
            {0: now - self.beat_at} if self.beat_at else {}
        )
        return {row: age for row, age in ages.items() if age > older_than}


_EMPTY = BeatSnapshot(0.0, draining=False, beat_at=0.0, slots=())


def read_page(path: str) -> BeatSnapshot | None:
    """Read the page at this path; None if there is none, or it is not a beat page.

    The path may come from a database, so it may name anything. So this never blocks on a FIFO,
    follows no link, and reads no more than the size of a page.
    """
    try:
        descriptor = _open_page(path, os.O_RDONLY)
    except (OSError, ValueError):
        return None
    try:
        return _parse(os.pread(descriptor, _MAX_BYTES, 0))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _open_page(path: str, access: int) -> int:
    """Open a regular file of this user or of root, of at most the size of a page.

    Raises OSError or ValueError for anything else.
    """
    descriptor = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    found = os.fstat(descriptor)
    if (
        stat.S_ISREG(found.st_mode)
        and found.st_uid in {0, os.geteuid()}
        and found.st_size <= _MAX_BYTES
    ):
        return descriptor
    os.close(descriptor)
    raise ValueError(
        f"{path} is not a beat page: expected a file of this user with at most {_MAX_BYTES} bytes"
    )


class ChildBeatPage:
    """The beat page of a child, for a parent that renews its leases.

    Uses the descriptor and no mapping: a truncated mapped file would end this process. After
    `close`, which any thread may call, nothing is read or written any more.
    """

    def __init__(self, path: str) -> None:
        """Open the page; raises OSError or ValueError if there is no page at the path."""
        self.path = path
        self._lock = threading.Lock()
        self._descriptor = _open_page(path, os.O_RDWR)
        if self._read() is None:
            self.close()
            raise ValueError(f"{path} is not a beat page")

    def read(self) -> BeatSnapshot:
        """Return its contents; an empty snapshot if it is closed or no longer a page."""
        return self._read() or _EMPTY

    def trust_until(self, moment: float) -> None:
        """Extend the trust in its leases to this moment; an earlier moment changes nothing."""
        if moment > self.read().trusted_until:
            self._write(_TIME.pack(moment), _TRUSTED)

    def blame_only(self, rows: Collection[int]) -> None:
        """Record that only these rows are to blame for the end of the process, even if it drains.

        For a process that is about to end.
        """
        reading = self.read()
        if rows and reading.draining:
            self._write(_NUMBER.pack(0), _DRAINING)
        for number, slot in enumerate(reading.slots):
            if slot.row not in rows:
                self._write(_NUMBER.pack(0), _HEADER + number * _SLOT + 8)

    def close(self) -> None:
        """Close the page. Idempotent."""
        with self._lock:  # else a concurrent write could go to another file with this number
            self._descriptor, descriptor = -1, self._descriptor
            if descriptor >= 0:
                os.close(descriptor)

    def _read(self) -> BeatSnapshot | None:
        with self._lock, suppress(OSError):
            return _parse(os.pread(self._descriptor, _MAX_BYTES, 0))
        return None

    def _write(self, data: bytes, offset: int) -> None:
        with self._lock, suppress(OSError):
            os.pwrite(self._descriptor, data, offset)


def _parse(data: bytes) -> BeatSnapshot | None:
    if len(data) < _HEADER or data[:8] != _MAGIC:
        return None
    [count] = _NUMBER.unpack_from(data, 8)
    if not 0 <= count <= (len(data) - _HEADER) // _SLOT:
        return None
    slots = tuple(_parse_slot(data, _HEADER + number * _SLOT) for number in range(count))
    trusted, beat = _TIME.unpack_from(data, _TRUSTED)[0], _TIME.unpack_from(data, _ENGINE)[0]
    [draining], [completed] = (
        _NUMBER.unpack_from(data, offset) for offset in (_DRAINING, _COMPLETED)
    )
    return BeatSnapshot(trusted, bool(draining), beat, slots, completed)


def remove_page(path: str) -> None:
    """Remove the page of a process that is gone; leaves a file that is not a page."""
    if read_page(path) is not None:
        Path(path).unlink(missing_ok=True)


def _parse_slot(data: bytes, offset: int) -> SlotState:
    [row] = _NUMBER.unpack_from(data, offset + 8)
    return SlotState(
        _TIME.unpack_from(data, offset)[0],
        abs(row),
        _TIME.unpack_from(data, offset + 16)[0],
        is_silent=row < 0,
    )
