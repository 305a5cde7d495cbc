"""The beat page: what a worker process is doing, readable from outside even while it holds the GIL, hangs or is dead.

One small file a process, mapped into memory. A header says until when its leases are trusted and whether it is draining; then one
entry a slot: last beat, the row it works on, since when. Each entry is written by its one slot, with the row number last when it
begins and first when it ends, so a reader never sees a row that is not started.

    offset  0  magic (8)   8  slots   16  trusted until   24  draining   32 …  per slot: beat, row, started (8 bytes each)
"""

from __future__ import annotations

import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MAGIC = b"LWBEAT01"
_HEADER = 32
_SLOT = 24
_NUMBER = struct.Struct("@q")  # native, so that each is one store: a process killed in the middle leaves no half number
_TIME = struct.Struct("@d")


class SlotState(NamedTuple):
    """What one slot does: `row` is 0 when it does nothing. Times are on CLOCK_MONOTONIC of the machine."""

    beat: float
    row: int
    started: float


class BeatPage:
    """The page of this process, to write to. A beat is one store into memory."""

    def __init__(self, path: Path, slots: int) -> None:
        self.path = path
        self.slots = slots
        self._map = _mapped(path, _HEADER + slots * _SLOT)
        _NUMBER.pack_into(self._map, 8, slots)
        self._map[:8] = _MAGIC

    def begin(self, slot: int, row: int, now: float) -> None:
        """The slot starts to work on this row."""
        place = _HEADER + slot * _SLOT
        _TIME.pack_into(self._map, place, now)
        _TIME.pack_into(self._map, place + 16, now)
        _NUMBER.pack_into(self._map, place + 8, row)

    def beat(self, slot: int, now: float) -> None:
        _TIME.pack_into(self._map, _HEADER + slot * _SLOT, now)

    def end(self, slot: int) -> None:
        """The slot has settled its row, or given it up."""
        _NUMBER.pack_into(self._map, _HEADER + slot * _SLOT + 8, 0)

    def trust_until(self, moment: float) -> None:
        _TIME.pack_into(self._map, 16, moment)

    def start_draining(self) -> None:
        """From here on the end of this process is nobody's fault."""
        _NUMBER.pack_into(self._map, 24, 1)

    def end_draining(self) -> None:
        """It takes work again, and is to blame again."""
        _NUMBER.pack_into(self._map, 24, 0)

    def close(self) -> None:
        """Remove the page; a process that ended well leaves none."""
        self._map.close()
        self.path.unlink(missing_ok=True)


def _mapped(path: Path, size: int) -> mmap.mmap:
    """A new file in memory. Written once, because a hole that a full disk cannot fill would end the process with SIGBUS."""
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


class BeatReading(NamedTuple):
    """A page as somebody else found it."""

    trusted_until: float
    draining: bool
    slots: tuple[SlotState, ...]

    @property
    def started(self) -> frozenset[int]:
        """The rows that were being worked on."""
        return frozenset(slot.row for slot in self.slots if slot.row)


def read_page(path: str) -> BeatReading | None:
    """The page at this path; None if there is none, or it is not one of ours."""
    data = b""
    with suppress(OSError):
        data = Path(path).read_bytes()
    if len(data) < _HEADER or data[:8] != _MAGIC:
        return None
    [count] = _NUMBER.unpack_from(data, 8)
    if not 0 <= count <= (len(data) - _HEADER) // _SLOT:
        return None
    slots = tuple(_slot(data, _HEADER + number * _SLOT) for number in range(count))
    return BeatReading(_TIME.unpack_from(data, 16)[0], bool(_NUMBER.unpack_from(data, 24)[0]), slots)


def remove_page(path: str) -> None:
    """Remove the page of a process that is gone; nothing that is not a page is touched."""
    if read_page(path) is not None:
        Path(path).unlink(missing_ok=True)


def _slot(data: bytes, place: int) -> SlotState:
    return SlotState(
        _TIME.unpack_from(data, place)[0], _NUMBER.unpack_from(data, place + 8)[0], _TIME.unpack_from(data, place + 16)[0]
    )
