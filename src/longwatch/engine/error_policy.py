"""Decides how a row whose code raised is settled."""

from __future__ import annotations

from longwatch.core.backoff import BackoffPolicy, random_spread
from longwatch.core.error_text import MAX_ERROR_LENGTH, describe_error
from longwatch.core.masking import mask_text
from longwatch.core.traceback_text import describe_traceback
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.errors import PermanentError, Release

_FREE_RELEASES = 2
"""Releases of a row without a minimum delay. Later releases wait."""
_MIN_RELEASE_DELAY = 1.0


class NotStartedError(Exception):
    """The engine could not start the work of a row. The row is not to blame."""


def settlement_for(context: RowContext, error: BaseException, retry: BackoffPolicy) -> Settlement:
    """Decide how a row whose code raised is settled. The first rule that applies wins.

    A Release releases the row with its delay. A PermanentError dead-letters it. An error after a
    cancel releases it. Work that could not start is released with a delay, because this worker
    would claim it again at once. Any other error is a failure.
    """
    claim = context.claimed.claim
    if isinstance(error, Release):
        return Settlement(claim, RowOutcome.RELEASED, delay=_release_delay(context, error))
    text, where = describe_error(error), describe_traceback(error)
    if isinstance(error, PermanentError):
        return Settlement(
            claim, RowOutcome.DEAD, reason="permanent", error=_masked(text), traceback=where
        )
    if context.cancelled:
        return Settlement(claim, RowOutcome.RELEASED, error=_masked(text))
    if isinstance(error, NotStartedError):
        delay = (context.claimed.retry or retry).delay(1, spread=random_spread())
        return Settlement(claim, RowOutcome.RELEASED, delay=delay, error=_masked(text))
    return failure_settlement(context, retry, reason="failed", error=text, traceback=where)


def failure_settlement(
    context: RowContext,
    retry: BackoffPolicy,
    *,
    reason: str,
    error: str,
    traceback: str | None = None,
) -> Settlement:
    """Count one failure: retry after the backoff of the row or of the engine. If it was the last
    that the row may have, dead-letter the row for this reason.
    """
    claimed, error = context.claimed, _masked(error)
    if claimed.failures_left is not None and claimed.failures_left <= 1:
        return Settlement(
            claimed.claim, RowOutcome.DEAD, reason=reason, error=error, traceback=traceback
        )
    delay = (claimed.retry or retry).delay(claimed.failures + 1, spread=random_spread())
    return Settlement(
        claimed.claim, RowOutcome.FAILED, delay=delay, error=error, traceback=traceback
    )


def _masked(text: str) -> str:
    return mask_text(text)[:MAX_ERROR_LENGTH]


def _release_delay(context: RowContext, release: Release) -> float:
    """Return the delay that the handler asked for. A row that is released repeatedly waits for a
    minimum, so that it does not keep workers busy.
    """
    is_repeated = context.claimed.releases >= _FREE_RELEASES
    return max(release.safe_delay, _MIN_RELEASE_DELAY if is_repeated else 0.0)
