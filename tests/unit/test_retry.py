"""The one loop around calls that may fail for a moment, on a clock that only a pause moves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.deadline import Deadline
from longwatch.core.fake_clock import FakeClock
from longwatch.store.retry import retry

POLICY = BackoffPolicy(initial=1.0, factor=2.0, cap=4.0)


class Attempts:
    """Fails with these errors, then works; and the pauses in between."""

    def __init__(self, *errors: Exception, seconds: float = 100.0) -> None:
        self.clock = FakeClock()
        self.deadline = Deadline.after(seconds, self.clock)
        self.calls = 0
        self.pauses: list[float] = []
        self._errors = list(errors)

    def attempt(self) -> str:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"

    def run(
        self,
        should_retry: Callable[[Exception], bool] = lambda error: isinstance(error, OSError),
        error: Exception | None = None,
    ) -> str:
        return retry(
            self.attempt,
            policy=POLICY,
            deadline=self.deadline,
            should_retry=should_retry,
            pause=self._pause,
            error=error,
        )

    def _pause(self, delay: float) -> None:
        self.pauses.append(delay)
        self.clock.advance(delay)


def test_a_call_that_works_is_made_once_and_never_waits() -> None:
    attempts = Attempts()
    assert ("done", 1, []) == (attempts.run(), attempts.calls, attempts.pauses)


def test_a_call_that_fails_for_a_moment_is_made_again_less_and_less_often() -> None:
    attempts = Attempts(*[OSError(number) for number in range(4)])
    assert "done" == attempts.run()
    assert [1.0, 2.0, 4.0, 4.0] == attempts.pauses


def test_an_error_that_is_refused_comes_out_at_once() -> None:
    attempts = Attempts(OSError("first"), ValueError("second"), OSError("third"))
    with pytest.raises(ValueError, match="second"):
        attempts.run()
    assert (2, [1.0]) == (attempts.calls, attempts.pauses)


@pytest.mark.parametrize(("seconds", "calls"), [(0.5, 1), (1.0, 1), (1.1, 2), (3.0, 2), (3.1, 3)])
def test_no_attempt_starts_at_the_deadline_or_later_and_the_last_error_comes_out(
    seconds: float, calls: int
) -> None:
    attempts = Attempts(*[OSError(number) for number in range(10)], seconds=seconds)
    with pytest.raises(OSError, match=str(calls - 1)):
        attempts.run()
    assert calls == attempts.calls
    assert sum(attempts.pauses) < seconds


def test_an_attempt_that_the_caller_made_counts_as_the_first() -> None:
    attempts, lost = Attempts(), OSError("lost")
    assert ("done", [1.0]) == (attempts.run(error=lost), attempts.pauses)
    refused = Attempts()
    with pytest.raises(OSError, match="lost"):
        refused.run(lambda _: False, error=lost)
    assert (0, []) == (refused.calls, refused.pauses)


def test_an_error_of_the_pause_comes_out() -> None:
    attempts = Attempts(OSError("gone"))

    def closed(_: float) -> None:
        raise LookupError("closed")

    with pytest.raises(LookupError, match="closed"):
        retry(
            attempts.attempt,
            policy=POLICY,
            deadline=attempts.deadline,
            should_retry=lambda _: True,
            pause=closed,
        )


def test_an_interrupt_is_never_retried() -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    attempts = Attempts()
    attempts.attempt = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        attempts.run(lambda _: True)
    assert [] == attempts.pauses


def test_a_failed_attempt_keeps_nothing_alive() -> None:
    """Its traceback holds what it had open; that is freed without the collector."""

    class Opened:
        pass

    kept: list[weakref.ref[Opened]] = []
    attempts = Attempts()

    def attempt() -> str:
        if kept:
            return "done"
        opened = Opened()
        kept.append(weakref.ref(opened))
        raise OSError(opened)

    attempts.attempt = attempt  # type: ignore[method-assign]
    gc.disable()
    try:
        assert "done" == attempts.run()
        assert kept[0]() is None
    finally:
        gc.enable()
