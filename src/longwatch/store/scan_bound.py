"""A lower bound for the scan of claims: an old snapshot elsewhere must not slow them down.

PostgreSQL keeps the index entries of a claimed and of a settled row until no snapshot can see that
row. While another session holds an old snapshot (a dump, a report, a forgotten transaction), these
dead entries collect at the low end of the index of free rows, and each claim would read all of
them. So a claim reads from a bound on: `seq >= low`. The engine with the sweep turn does so, too,
when it looks for rows that wait (`sweep_turns`).

The rule
    *Live* rows of a queue are free, delayed or leased. All of them count, because a delayed or
    leased row becomes free under its old number. `low` is valid if no live row of the queue has,
    or will ever have, a lower number.

    1. A claim that found rows measures, at most once a second in each process and queue. Within one
       snapshot it finds the lowest live row, from the last bound on. If there is none, it takes the
       highest number that this process has claimed. Numbers rise, so a row that is numbered later
       is above that.
    2. A transaction may have taken a lower number and not committed: the snapshot does not show its
       row. So the measurement also returns `xmax`, which is above the number of every transaction
       that had written by then. The measurement waits until a later one sees that all of these have
       ended: its `xmin`, the lowest number of a transaction in progress, has reached that `xmax`.
       The later snapshot shows the rows that they committed, so the lower of both results is the
       bound. A session that only reads has no number, and does not delay this.
    3. A transaction takes the number of a row just before its own. So at least a second passes
       between a measurement and its confirmation.
    4. The index of delayed rows collects dead entries, too. A claim looks for due rows from a time
       on, `due_low`: before it no delayed row is due. Within the same snapshot this is the lowest
       time of a delayed row, at most the present, less a margin. A row that is delayed later gets a
       later time, unless its statement has waited for longer than the margin. A claim also lowers
       `due_low` to the present less the margin: the clock may have been set back.
    5. Measurements come from transactions that committed. One that rolls back has not settled what
       it saw as settled.

Why a wrong bound loses nothing
    A claim without a bound, a *full scan*, is due every five seconds, at most every minute where it
    takes long, and always after the store may have become another one. So a row below the bound is
    claimed late, but it is claimed. This covers what the rule cannot exclude: a sequence that was
    set back, sessions that cache its numbers, rows that were inserted by hand, a row that has been
    due for longer than the margin since the clock was set back.

    It also allows an exception to 2. A writing transaction that lasts for hours would hold back
    every measurement. After a minute of waiting the measurement is used. A message that such a
    transaction sends may wait for the next full scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import NamedTuple

from longwatch.core.clock import Clock, SystemClock

MEASURE_INTERVAL = 1.0
"""Seconds between two measurements of a queue."""
FULL_SCAN_INTERVAL = 5.0
"""Seconds between two full scans of a queue, where they are fast."""
MAX_FULL_SCAN_INTERVAL = 60.0
_FULL_SCAN_SHARE = 0.02
"""The share of the time that full scans may take, up to the longest interval."""
DUE_MARGIN = 60.0
"""Seconds that a statement may take between the present that it adds a delay to and its snapshot.
"""
MAX_WAIT = 60.0
"""Seconds after which a measurement is used although a transaction from before it still runs."""


class Measurement(NamedTuple):
    """What one snapshot showed: no live row of the queue was below `low`, the oldest transaction in
    progress that had written was `xmin`, and none had reached `xmax`. No delayed row was due before
    `due_low`.
    """

    low: int
    xmin: int
    xmax: int
    due_low: float = 0.0


class FullScanSchedule:
    """Decides when the next full scan is due. Not thread-safe, but a race only adds a full scan."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_at = -inf

    def begin(self) -> bool:
        """Return whether this scan has to be a full one."""
        now = self._clock.monotonic()
        if now < self._due_at:
            return False
        self._due_at = now + FULL_SCAN_INTERVAL
        return True

    def end(self, seconds: float) -> None:
        """Postpone the next full scan by the time that this one took."""
        wait = min(seconds / _FULL_SCAN_SHARE, MAX_FULL_SCAN_INTERVAL)
        self._due_at = self._clock.monotonic() + max(wait, FULL_SCAN_INTERVAL)


class ScanBound:
    """The bound of one queue in one process. Thread-safe: of two results at once, one is kept, and
    each of them is valid.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.low = 0
        """Where the scan of a claim begins."""
        self.due_low = 0.0
        """The time from which on a claim looks for due rows."""
        self.highest = 0
        """The highest number that this process has claimed."""
        self._pending: tuple[Measurement, float] | None = None
        self._measure_at = -inf
        self._full_scans = FullScanSchedule(clock)

    def begin_claim(self) -> int:
        """Return where a claim reads from: the bound, or 0 for a full scan."""
        return 0 if self._full_scans.begin() else self.low

    def end_full_scan(self, seconds: float) -> None:
        """Postpone the next full scan by the time that this one took."""
        self._full_scans.end(seconds)

    def has_claimed(self, highest: int) -> bool:
        """Note the highest number of a claim that found rows. Returns whether to measure now."""
        self.highest = max(self.highest, highest)
        now = self._clock.monotonic()
        if now < self._measure_at:
            return False
        self._measure_at = now + MEASURE_INTERVAL
        return True

    def record(self, measured: Measurement) -> None:
        """Confirm the measurement that waits, if it may be used, and let this one wait instead."""
        now = self._clock.monotonic()
        if self._pending is not None:
            waiting, since = self._pending
            if measured.xmin < waiting.xmax and now - since < MAX_WAIT:
                return
            self.low = min(waiting.low, measured.low)
            self.due_low = min(waiting.due_low, measured.due_low)
        self._pending = measured, now


class ScanBounds:
    """The bounds of the claims from one database in this process, by table and queue."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._bounds: dict[tuple[str, int], ScanBound] = {}

    def of(self, table: str, queue: int) -> ScanBound:
        key = table, queue
        found = self._bounds.get(key)
        return self._bounds.setdefault(key, ScanBound(self.clock)) if found is None else found

    def clear(self) -> None:
        """Forget every bound: the store may have become another one."""
        self._bounds = {}


class LookBounds:
    """The bounds of the looks of one sweeper at the free rows of a table. A look claims nothing, so
    it measures nothing: it uses the bounds of the claims of its process. Not thread-safe.
    """

    def __init__(self, bounds: ScanBounds, table: str) -> None:
        self._bounds = bounds
        self._table = table
        self._full_scans = FullScanSchedule(bounds.clock)

    @contextmanager
    def begin_look(self, queues: Iterable[int]) -> Iterator[list[int]]:
        """Yield where the look reads each of these queues from: its bound, or 0 for a full scan."""
        clock, is_full = self._bounds.clock, self._full_scans.begin()
        began = clock.monotonic()
        try:
            yield [0 if is_full else self._bounds.of(self._table, queue).low for queue in queues]
        finally:
            if is_full:
                self._full_scans.end(clock.monotonic() - began)
