"""Calls to a source that may fail: contained, counted, told, and spaced by the one backoff."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.events import SourceFailed, SourceRecovered
from longwatch.work.judging import described
from longwatch.work.policy import Surroundings

T = TypeVar("T")

RETRY = BackoffPolicy(initial=0.05, factor=2.0, cap=2.0, jitter=0.25)


LASTING = 16
"""Failures in a row after which an outage is told again, at this one and at every doubling."""


class SourceCall:
    """One kind of call. Whatever it raises is told, and no reason for a thread of the engine to
    end.

    `retry_in` is how long to wait before the next try; 0 when the last one worked. One owner; not
    thread-safe. An outage makes every kind of call fail: that which failed first tells of it, once,
    and when it lasts now and then again.
    """

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self.retry_in = 0.0
        self._engine = around.name
        self._events = around.events
        self._failing = around.failing
        self._has_told = False
        self._backoff = Backoff(RETRY)

    def make(self, call: Callable[[], T]) -> T | None:
        """Its result, or None if it raised."""
        try:
            result = call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a source may be anybody's code; the event tells
            self._failed(error)
            return None
        self._failing.clear()  # the source answers: whoever fails next has something new to tell
        if self.retry_in:
            self._recovered()
        return result

    def _failed(self, error: BaseException) -> None:
        self.retry_in = self._backoff.failed(lasted=0.0)
        failures = self._backoff.failures
        speaker = next(iter(tuple(self._failing)), self.name)
        if self.name not in self._failing:
            self._failing.append(self.name)
        if speaker == self.name and (
            not self._has_told or (failures >= LASTING and failures & (failures - 1) == 0)
        ):
            self._has_told = True
            self._events.emit(
                SourceFailed(
                    engine=self._engine, call=self.name, error=described(error), failures=failures
                )
            )

    def _recovered(self) -> None:
        if self._has_told:
            self._events.emit(
                SourceRecovered(
                    engine=self._engine, call=self.name, failures=self._backoff.failures
                )
            )
        self._has_told = False
        self._backoff.succeeded()
        self.retry_in = 0.0
