"""The sign of life of a loop or a slot."""

from __future__ import annotations

from longwatch.core.clock import Clock, SystemClock


class Heartbeat:
    """Remembers when its owner last gave a sign of life, and how far its work was then.

    A beat says *responsive*: the loop turns. A beat with `progress` also says *progressing*: this
    piece of work moves. Until the first beat, time counts from construction. Thread-safe without a
    lock: each call stores or loads one reference.
    """

    __slots__ = ("_beat_at", "_monotonic", "progress")

    def __init__(self, clock: Clock | None = None) -> None:
        self._monotonic = (clock or SystemClock()).monotonic
        self._beat_at = self._monotonic()
        self.progress: object = None
        """What the last beat with progress carried; None until then."""

    def beat(self, progress: object = None) -> None:
        """Give a sign of life; `progress` is whatever tells the owner's work apart from before
        (None: none to report).
        """
        self._beat_at = self._monotonic()
        if progress is not None:
            self.progress = progress

    def elapsed(self) -> float:
        """Seconds since the last beat."""
        last = self._beat_at  # read first: a beat in between must not make the age negative
        return self._monotonic() - last
