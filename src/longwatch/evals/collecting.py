"""Results on their way to a report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.errors import SerializationError, UsageError
from longwatch.evals.dataset import Dataset
from longwatch.evals.results import Ended, EvalResult, read_result
from longwatch.mailbox.letters import DeadLetter
from longwatch.mailbox.mailbox import Mailbox
from longwatch.runtime.messages import MainLoopRequest

_AT_ONCE = 500
_LOOK = 1.0
_GATHER = 0.1
"""Seconds in which more results come together: taken one by one they cost the loops more than
the samples do.
"""


class Collected(NamedTuple):
    """The results in the order of the samples, one a sample, and the ids of those that have
    none.
    """

    results: list[EvalResult]
    missing: list[str]


def collect_results(
    results: Mailbox[Any],
    *,
    expected: Dataset | Iterable[str],
    timeout: float,
    clock: Clock | None = None,
) -> Collected:
    """Receive results until every expected sample has one, or the time is over; acknowledges what
    it takes.

    Of several results of one sample the first counts. What belongs to no expected sample is
    acknowledged and passed over.
    """
    ids = expected.ids if isinstance(expected, Dataset) else list(dict.fromkeys(expected))
    if not timeout >= 0:
        raise UsageError(f"timeout must be a number of seconds, not {timeout}")
    clock = clock or SystemClock()
    deadline = Deadline.after(timeout, clock)
    found: dict[str, EvalResult] = {}
    wanted = set(ids)
    while wanted - found.keys():
        left = deadline.remaining()
        messages = results.receive(
            max_messages=_AT_ONCE, wait_time_seconds=_LOOK if left is None else min(_LOOK, left)
        )
        for message in messages:
            result = read_result(message.body)
            if result is not None and result.sample_id in wanted:
                found.setdefault(result.sample_id, result)
        results.acknowledge_many(messages)
        if not messages and deadline.expired:
            break
        if messages and len(messages) < _AT_ONCE and wanted - found.keys():
            clock.wait(Wakeup(), deadline.capped(_GATHER).remaining())
    return _ordered(ids, found)


def look_at_results(
    results: Mailbox[Any], requests: Mailbox[Any], *, expected: Iterable[str], most: int
) -> Collected:
    """The results there are, left where they are; a sample that was given up without one is told
    by its dead letter.
    """
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
            if (request := _request_in(requests, letter)) is not None:
                yield _given_up_result(request.request_id, letter)
        after = page[-1].position


def _given_up_result(sample: str, letter: DeadLetter) -> EvalResult:
    if letter.reason == "poison":
        error = f"its process died or hung {letter.crashes} times"
        return EvalResult(sample, Ended.CRASHED, error=error, attempt=letter.deliveries)
    return EvalResult(
        sample, Ended.ERROR, error=letter.error or letter.reason, attempt=letter.deliveries
    )


def _request_in(requests: Mailbox[Any], letter: DeadLetter) -> MainLoopRequest[Any] | None:
    """What a dead letter was; None for one that somebody else has sent."""
    try:
        return msgspec.convert(requests.codec.decode(letter.body), MainLoopRequest[Any])
    except (SerializationError, msgspec.ValidationError):
        return None


def _ordered(ids: list[str], found: dict[str, EvalResult]) -> Collected:
    return Collected(
        [found[each] for each in ids if each in found], [each for each in ids if each not in found]
    )
