"""Makes calls to a source that may fail: catches errors, emits them, and spaces the retries with
the backoff.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.error_text import describe_error
from longwatch.core.events.engine import ClaimSourceFailed, ClaimSourceRecovered
from longwatch.engine.policy import EngineContext

T = TypeVar("T")

SOURCE_RETRY = BackoffPolicy(initial=0.05, factor=2.0, cap=2.0, jitter=0.25)


OUTAGE_REMINDER = 16
"""Failures in a row after which an outage is emitted again, at this number and at every
doubling.
"""


class SourceCall:
    """One kind of call to a source. It emits every error instead of raising it, so no thread of the
    engine ends. Not thread-safe.

    `retry_in` is how long to wait before the next attempt, 0 after a success. An outage makes every
    kind of call fail. Only the kind that failed first emits it, once, and again from time to time
    while it lasts.
    """

    def __init__(self, name: str, engine_context: EngineContext) -> None:
        self.name = name
        self.retry_in = 0.0
        self._engine = engine_context.name
        self._events = engine_context.events
        self._failing_calls = engine_context.failing_calls
        self._has_reported = False
        self._backoff = Backoff(SOURCE_RETRY)

    def run(self, call: Callable[[], T]) -> T | None:
        """Return the result of the call, or None if it raised."""
        try:
            result = call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a source may raise any error; it is emitted
            self._on_failure(error)
            return None
        self._failing_calls.clear()  # the source replied: the next failure is a new outage
        if self.retry_in:
            self._on_recovery()
        return result

    def _on_failure(self, error: BaseException) -> None:
        self.retry_in = self._backoff.failed(lasted=0.0)
        failures = self._backoff.failures
        reporter = next(iter(tuple(self._failing_calls)), self.name)
        if self.name not in self._failing_calls:
            self._failing_calls.append(self.name)
        if reporter == self.name and (
            not self._has_reported
            or (failures >= OUTAGE_REMINDER and failures & (failures - 1) == 0)
        ):
            self._has_reported = True
            self._events.emit(
                ClaimSourceFailed(
                    engine=self._engine,
                    call=self.name,
                    error=describe_error(error),
                    failures=failures,
                )
            )

    def _on_recovery(self) -> None:
        if self._has_reported:
            self._events.emit(
                ClaimSourceRecovered(
                    engine=self._engine, call=self.name, failures=self._backoff.failures
                )
            )
        self._has_reported = False
        self._backoff.succeeded()
        self.retry_in = 0.0
