"""The result of one sample, and the collection of results for a report."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum, auto
from typing import Any, NamedTuple

import msgspec

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.errors import SerializationError, UsageError
from longwatch.evals.dataset import Dataset
from longwatch.evals.evaluators import Score
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.records import DeadLetter
from longwatch.runtime.request import MainLoopRequest, MainLoopResult


class SampleEnd(StrEnum):
    """How the work on a sample ended."""

    SCORED = auto()
    ERROR = auto()  # the loop or the evaluator raised, at every try
    CRASHED = auto()  # the process died in it, or hung and was killed, at every try


class EvalResult(msgspec.Struct, frozen=True):
    """The result of one sample. Without a score it has an error."""

    sample_id: str
    ended: SampleEnd
    score: Score | None = None
    error: str | None = None
    output: Any = None
    seconds: float | None = None
    """Seconds that the loop took, without the evaluator."""
    attempt: int = 1

    @property
    def passed(self) -> bool:
        return self.score is not None and self.score.passed


def read_result(body: Any) -> EvalResult | None:
    """Read the result from the body of a reply; None if the body is no reply of an EvalLoop.

    A reply with an error names the sample only by its request id.
    """
    try:
        reply: MainLoopResult[EvalResult] = msgspec.convert(body, MainLoopResult[EvalResult])
    except (msgspec.ValidationError, ValueError):
        return None
    if reply.output is not None:
        return reply.output
    return EvalResult(
        reply.request_id, SampleEnd.ERROR, error=reply.error or "no output", attempt=reply.attempt
    )


_BATCH_SIZE = 500
_POLL_SECONDS = 1.0
_BATCH_WAIT = 0.1
"""Seconds to wait for more results, so that they are received in batches. Receiving them singly
costs more than running the samples.
"""


class CollectedResults(NamedTuple):
    """One result per sample, in the order of the samples, and the ids of samples without one."""

    results: list[EvalResult]
    missing: list[str]


def collect_results(
    results: Mailbox[Any],
    *,
    expected: Dataset | Iterable[str],
    timeout: float,
    clock: Clock | None = None,
) -> CollectedResults:
    """Receive and acknowledge results until every expected sample has one, or the timeout passes.

    The first result of a sample counts. Results of unknown samples are acknowledged and ignored.
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
            max_messages=_BATCH_SIZE,
            wait_time_seconds=_POLL_SECONDS if left is None else min(_POLL_SECONDS, left),
        )
        for message in messages:
            result = read_result(message.body)
            if result is not None and result.sample_id in wanted:
                found.setdefault(result.sample_id, result)
        results.acknowledge_many(messages)
        if not messages and deadline.expired:
            break
        if messages and len(messages) < _BATCH_SIZE and wanted - found.keys():
            clock.wait(Wakeup(), deadline.capped(_BATCH_WAIT).remaining())
    return _in_order(ids, found)


def peek_results(
    results: Mailbox[Any], requests: Mailbox[Any], *, expected: Iterable[str], limit: int
) -> CollectedResults:
    """Read the results without removing them. A sample that was given up gets its result from its
    dead letter.
    """
    ids = list(expected)
    found: dict[str, EvalResult] = {}
    for message in results.backend.peek(limit=limit):
        result = read_result(results.codec.decode(message.body))
        if result is not None:
            found.setdefault(result.sample_id, result)
    for result in _dead_letter_results(requests):
        found.setdefault(result.sample_id, result)
    return _in_order(ids, found)


def _dead_letter_results(requests: Mailbox[Any]) -> Iterable[EvalResult]:
    after = 0
    while page := requests.backend.dead_letters(after=after, limit=_BATCH_SIZE):
        for dead_letter in page:
            if (request := _decode_request(requests, dead_letter)) is not None:
                yield _dead_letter_result(request.request_id, dead_letter)
        after = page[-1].position


def _dead_letter_result(sample_id: str, dead_letter: DeadLetter) -> EvalResult:
    if dead_letter.reason == "poison":
        error = f"its process died or hung {dead_letter.crashes} times"
        return EvalResult(sample_id, SampleEnd.CRASHED, error=error, attempt=dead_letter.deliveries)
    return EvalResult(
        sample_id,
        SampleEnd.ERROR,
        error=dead_letter.error or dead_letter.reason,
        attempt=dead_letter.deliveries,
    )


def _decode_request(requests: Mailbox[Any], dead_letter: DeadLetter) -> MainLoopRequest[Any] | None:
    """Decode the request in a dead letter; None if it is no request."""
    try:
        return msgspec.convert(requests.codec.decode(dead_letter.body), MainLoopRequest[Any])
    except (SerializationError, msgspec.ValidationError):
        return None


def _in_order(ids: list[str], found: dict[str, EvalResult]) -> CollectedResults:
    return CollectedResults(
        [found[each] for each in ids if each in found], [each for each in ids if each not in found]
    )
