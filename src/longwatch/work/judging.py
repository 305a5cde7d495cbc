"""How a run that raised is settled."""

from __future__ import annotations

from longwatch.core.backoff import BackoffPolicy, random_spread
from longwatch.errors import PermanentError
from longwatch.work.context import WorkContext
from longwatch.work.source import Outcome, Settlement

LONGEST_ERROR = 4000
"""Characters of an error that are kept with its row."""


def judged(context: WorkContext, error: BaseException, retry: BackoffPolicy) -> Settlement:
    """A permanent error is the end of the row; one of work that was told to stop is nobody's fault; any other is a failure."""
    claim, text = context.leased.claim, described(error)
    if isinstance(error, PermanentError):
        return Settlement(claim, Outcome.DEAD, reason="permanent", error=text)
    if context.cancelled:
        return Settlement(claim, Outcome.BACK, error=text)
    return Settlement(claim, Outcome.FAILED, delay=retry.delay(context.leased.failures + 1, spread=random_spread()), error=text)


def described(error: BaseException) -> str:
    """Its type and text in a form that every store takes: bounded, no lone surrogates, no zero bytes."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot be shown is still an error
        text = f"{type(error).__name__}: (its text could not be made)"
    return text[:LONGEST_ERROR].encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
