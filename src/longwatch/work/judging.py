"""How a run that raised is settled."""

from __future__ import annotations

from longwatch.core.backoff import BackoffPolicy, random_spread
from longwatch.core.storable import storable
from longwatch.errors import PermanentError
from longwatch.work.context import WorkContext
from longwatch.work.source import Outcome, Settlement

LONGEST_ERROR = 4000
"""Characters of an error that are kept with its row."""


class NotBegunError(Exception):
    """The engine could not begin the work of a row: the fault is its own."""


def judged(context: WorkContext, error: BaseException, retry: BackoffPolicy) -> Settlement:
    """A permanent error is the end of the row; one of work that was told to stop, or never begun,
    is not its fault; any other is a failure. Work that could not be begun here is left alone for a
    while, or it would go back and forth.
    """
    claim, text = context.leased.claim, described(error)
    retry = context.leased.retry or retry
    if isinstance(error, PermanentError):
        return Settlement(claim, Outcome.DEAD, reason="permanent", error=text)
    if context.cancelled:
        return Settlement(claim, Outcome.BACK, error=text)
    if isinstance(error, NotBegunError):
        return Settlement(
            claim, Outcome.BACK, delay=retry.delay(1, spread=random_spread()), error=text
        )
    return Settlement(
        claim,
        Outcome.FAILED,
        delay=retry.delay(context.leased.failures + 1, spread=random_spread()),
        error=text,
    )


def described(error: BaseException) -> str:
    """Its type and text in a form that every store takes: bounded, no lone surrogates, no zero
    bytes.
    """
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - its text is made by anybody's code; an error that cannot be shown is still an error
        text = f"{type(error).__name__}: (its text could not be made)"
    return storable(text, longest=LONGEST_ERROR)
