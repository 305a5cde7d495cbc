"""How a run that raised is settled."""

from __future__ import annotations

from longwatch.core.backoff import BackoffPolicy, random_spread
from longwatch.core.sanitize import sanitize
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.errors import PermanentError

MAX_ERROR_LENGTH = 4000
"""Characters of an error that are kept with its row."""


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


def describe_error(error: BaseException) -> str:
    """Its type and text in a form that every store takes: bounded, no lone surrogates, no zero
    bytes.
    """
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - its text is made by anybody's code; an error that cannot be shown is still an error
        text = f"{type(error).__name__}: (its text could not be made)"
    return sanitize(text, max_length=MAX_ERROR_LENGTH)
