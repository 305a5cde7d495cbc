"""The heartbeat of a loop or a slot."""

from __future__ import annotations

from longwatch.core.clock import Clock, SystemClock


class Heartbeat:
    """Records when its owner last beat, and its progress.

    A beat means *responsive*: the loop runs. A beat with `progress` also means *progressing*: this
    piece of work advances. Until the first beat, time counts from construction. Thread-safe without
    a lock: each call stores or loads one reference.
    """

    __slots__ = ("_beat_at", "_monotonic", "progress")

    def __init__(self, clock: Clock | None = None) -> None:
        self._monotonic = (clock or SystemClock()).monotonic
        self._beat_at = self._monotonic()
        self.progress: object = None
        """The progress of the last beat that had any; None until then."""

    def beat(self, progress: object = None) -> None:
        """Record a beat; `progress` is any value that shows how far the work is (None: nothing to
        report).
        """
        self._beat_at = self._monotonic()
        if progress is not None:
            self.progress = progress

    def elapsed(self) -> float:
        """Return the seconds since the last beat."""
        last = self._beat_at  # read first: a beat in between must not make the age negative
        return self._monotonic() - last
