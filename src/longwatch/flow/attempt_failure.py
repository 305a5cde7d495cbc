"""Counts an attempt that ended without a result, for nodes and for elements of maps alike."""

from __future__ import annotations

from typing import NamedTuple

from longwatch.core.error_text import MAX_ERROR_LENGTH
from longwatch.core.sanitize import sanitize
from longwatch.flow.attempt import ABANDONING_CAUSES, AttemptEndCause, AttemptState
from longwatch.flow.node_record import GiveUpReason, NodeRecord
from longwatch.store.blame import DEFAULT_BUDGET

MAX_TRACEBACK_LENGTH = 16 << 10


class AttemptFailure(NamedTuple):
    """The end of an attempt without a result."""

    state: AttemptState
    cause: AttemptEndCause
    error: str | None
    traceback: str | None


def count_failure(
    record: NodeRecord,
    cause: AttemptEndCause,
    *,
    max_attempts: int,
    error: str | None = None,
    traceback: str | None = None,
) -> AttemptFailure:
    """Count an attempt against the budget of its cause, and give the record up if that is spent.

    The error of the last crash or loss begins with the reason.
    """
    error = None if error is None else sanitize(error, max_length=MAX_ERROR_LENGTH)
    if traceback is not None:
        traceback = sanitize(traceback, max_length=MAX_TRACEBACK_LENGTH)
    record.count(cause)
    record.failed = (
        cause is AttemptEndCause.PERMANENT
        or record.failed_attempts >= max_attempts
        or DEFAULT_BUDGET.is_spent(crashes=record.crashes, lost=record.lost)
    )
    if record.give_up_reason in {GiveUpReason.POISON, GiveUpReason.LOST}:
        error = f"{record.give_up_reason}: {error or cause}"
    record.error = error or str(cause)
    record.traceback = traceback or record.traceback
    state = AttemptState.ABANDONED if cause in ABANDONING_CAUSES else AttemptState.FAILED
    return AttemptFailure(state, cause, error, traceback)
