"""How a run that raised is settled."""

from __future__ import annotations

from longwatch.core.backoff import BackoffPolicy, random_spread
from longwatch.core.error_text import describe_error
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.errors import PermanentError


class NotStartedError(Exception):
    """The engine could not begin the work of a row: the fault is its own."""


def settlement_for(context: RowContext, error: BaseException, retry: BackoffPolicy) -> Settlement:
    """Decide how a row whose code raised is settled, first rule first.

    A PermanentError dead-letters the row. An error after a cancel releases it. Work that could not
    start here is released with a delay, or this worker would claim it again at once. Any other
    error is a failure, retried after the backoff of the row or of the engine.
    """
    claim, text = context.claimed.claim, describe_error(error)
    retry = context.claimed.retry or retry
    if isinstance(error, PermanentError):
        return Settlement(claim, RowOutcome.DEAD, reason="permanent", error=text)
    if context.cancelled:
        return Settlement(claim, RowOutcome.RELEASED, error=text)
    if isinstance(error, NotStartedError):
        return Settlement(
            claim, RowOutcome.RELEASED, delay=retry.delay(1, spread=random_spread()), error=text
        )
    return Settlement(
        claim,
        RowOutcome.FAILED,
        delay=retry.delay(context.claimed.failures + 1, spread=random_spread()),
        error=text,
    )
