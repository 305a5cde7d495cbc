"""The span of one run of a row: what it did, and how its row is settled."""

from __future__ import annotations

from collections.abc import Callable

from longwatch.core.tracing import AttributeValue, Span, Work
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.coroutines import RowResult

_FAILED = frozenset({RowOutcome.FAILED, RowOutcome.CRASHED, RowOutcome.DEAD})


DescribeWork = Callable[[ClaimedRow], Work | None]
"""The method `describe_work` of a runner whose rows have spans: describes the span of a row, or
returns None if it has none. Does not raise.
"""


def describe_result(span: Span, result: RowResult, *, lease_lost: bool) -> None:
    """Add to the span how the row is settled. A failure gives it the status ERROR."""
    if lease_lost:
        span.set({"longwatch.lease_lost": True})
        span.fail("lease_lost", "the lease was lost, so the result does not count")
    if result is None:
        return
    facts: dict[str, AttributeValue] = {"longwatch.settlement": str(result.outcome)}
    if result.outcome is RowOutcome.DEAD:
        facts["longwatch.dead_letter.reason"] = result.reason
    elif isinstance(result, Settlement) and result.outcome is not RowOutcome.DONE:
        facts["longwatch.retry.delay_seconds"] = result.delay
    span.set(facts)
    if result.outcome in _FAILED:
        span.fail(result.reason or str(result.outcome), result.error or "")
