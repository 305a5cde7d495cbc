"""Retries a call that may fail for a moment, until a deadline.

`core.backoff` decides how long to wait, `core.deadline` until when. The caller decides which errors
to retry and how to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.deadline import Deadline

T = TypeVar("T")


def retry(  # noqa: PLR0913 - the call, its deadline, its errors, its pauses
    attempt: Callable[[], T],
    *,
    policy: BackoffPolicy,
    deadline: Deadline,
    should_retry: Callable[[Exception], bool],
    pause: Callable[[float], object],
    error: Exception | None = None,
) -> T:
    """Call `attempt` until it returns, and return its result.

    Raises the error of the last attempt when `should_retry` refuses it, or when the pause before
    the next attempt would last until the deadline. `error` is the error of an attempt that the
    caller already made: the first step is then the pause. Blocks only in `attempt` and `pause`.
    """
    backoff = Backoff(policy)
    try:
        while True:
            if error is not None:
                delay = backoff.failed(lasted=0.0)
                if not should_retry(error) or deadline.clock.monotonic() + delay >= deadline.at:
                    raise error
                pause(delay)
            try:
                return attempt()
            except Exception as failure:  # noqa: BLE001 - should_retry decides
                error = failure
    finally:
        error = None  # an error that refers to this frame would keep the attempt's resources open
