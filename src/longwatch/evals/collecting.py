"""Results on their way to a report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.deadline import Deadline
from longwatch.errors import UsageError
from longwatch.evals.dataset import Dataset
from longwatch.evals.results import Ended, EvalResult, read_result
from longwatch.mailbox.mailbox import Mailbox

_AT_ONCE = 500
_LOOK = 1.0


class Collected(NamedTuple):
    """The results in the order of the samples, one a sample, and the ids of those that have none."""

    results: list[EvalResult]
    missing: list[str]


def collect_results(
    results: Mailbox[Any], *, expected: Dataset | Iterable[str], timeout: float, clock: Clock | None = None
) -> Collected:
    """Receive results until every expected sample has one, or the time is over; acknowledges what it takes.

    Of several results of one sample the first counts. What belongs to no expected sample is acknowledged and passed over.
    """
    ids = expected.ids if isinstance(expected, Dataset) else list(expected)
    if not timeout >= 0:
        raise UsageError(f"timeout must be a number of seconds, not {timeout}")
    deadline = Deadline.after(timeout, clock or SystemClock())
    found: dict[str, EvalResult] = {}
    wanted = set(ids)
    while wanted - found.keys():
        left = deadline.remaining()
        messages = results.receive(max_messages=_AT_ONCE, wait_time_seconds=min(_LOOK, left or 0.0))
        for message in messages:
            result = read_result(message.body)
            if result is not None and result.sample_id in wanted:
                found.setdefault(result.sample_id, result)
        results.acknowledge_many(messages)
        if not messages and deadline.expired:
            break
    return _ordered(ids, found)


def look_at_results(results: Mailbox[Any], requests: Mailbox[Any], *, expected: Iterable[str], most: int) -> Collected:
    """The results there are, left where they are; a sample that was given up without one is told by its dead letter."""
    ids = list(expected)
    found: dict[str, EvalResult] = {}
    for delivery in results.backend.peek(limit=most):
        result = read_result(results.codec.decode(delivery.body))
        if result is not None:
            found.setdefault(result.sample_id, result)
    for result in _given_up(requests):
        found.setdefault(result.sample_id, result)
    return _ordered(ids, found)


def _given_up(requests: Mailbox[Any]) -> Iterable[EvalResult]:
    after = 0
    while page := requests.backend.dead(after=after, limit=_AT_ONCE):
        for letter in page:
            body = requests.codec.decode(letter.body)
            error = letter.error or f"its process died or hung {letter.crashes} times"
            ended = Ended.CRASHED if letter.reason == "poison" else Ended.ERROR
            yield EvalResult(str(body["request_id"]), ended, error=error, attempt=letter.deliveries)
        after = page[-1].position


def _ordered(ids: list[str], found: dict[str, EvalResult]) -> Collected:
    return Collected([found[each] for each in ids if each in found], [each for each in ids if each not in found])
