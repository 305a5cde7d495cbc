"""The sign of life of a loop or a slot."""

from __future__ import annotations

from longwatch.core.clock import Clock, SystemClock


class Heartbeat:
    """Remembers when its owner last gave a sign of life, and when its work last moved.

    A beat says *responsive*: the loop turns. A beat with `progress` also says *progressing*: this
    piece of work moves. Until the first of either, time counts from construction. Beats and
    readings may come from any thread: each is one reference stored or loaded, so there is no lock
    and nothing is ever seen half-written.
    """

    __slots__ = ("_beat_at", "_last_progress", "_monotonic")

    def __init__(self, clock: Clock | None = None) -> None:
        self._monotonic = (clock or SystemClock()).monotonic
        self._beat_at = self._monotonic()
        self._last_progress: tuple[float, object] = (self._beat_at, None)

    def beat(self, progress: object = None) -> None:
        """Give a sign of life; `progress` is whatever tells the owner's work apart from before
        (None: none to report).
        """
        self._beat_at = now = self._monotonic()
        if progress is not None:
            self._last_progress = (now, progress)

    def elapsed(self) -> float:
        """Seconds since the last beat."""
        last = (
            self._beat_at
        )  # read before the time: a beat in between must not make the age negative
        return self._monotonic() - last

    @property
    def progress(self) -> object:
        """What the last beat with progress carried; None until then."""
        return self._last_progress[1]

    def progress_elapsed(self) -> float:
        """Seconds since the last beat with progress."""
        last = self._last_progress[0]
        return self._monotonic() - last
