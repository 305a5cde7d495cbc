"""EvalLoop on every store: samples in, scores out, one a sample; what goes wrong is told by the
sample it went wrong with.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eval_rig import (
    ON_EVERY_STORE,
    ON_SHARED_STORES,
    Store,
    Subject,
    echo_dataset,
    is_drained,
    opened_store,
    running_loop,
)
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.fake_clock import FakeClock
from longwatch.errors import InvalidParameterError, PermanentError, UsageError
from longwatch.evals import (
    Dataset,
    EvalLoop,
    EvalReport,
    Sample,
    Score,
    collect_results,
    exact_match,
    submit_dataset,
)
from longwatch.evals.results import EvalResult, SampleEnd, peek_results
from longwatch.mailbox import Mailbox, MailboxLimits, open_mailbox
from longwatch.runtime import LoopGroup, MainLoop, MainLoopContext
from polling import eventually
from redis_server import FSYNC_ALWAYS, RedisServer, running_server
from run_process import TIMEOUT

FAST_BACKOFF = BackoffPolicy(initial=0.001, cap=0.001)
MAX_ATTEMPTS = 3


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_server(FSYNC_ALWAYS) as started:
        yield started


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, redis: RedisServer) -> Iterator[Store]:
    """SQLite, or what the test asks for."""
    with opened_store(getattr(request, "param", "sqlite"), tmp_path, redis) as there:
        yield there


@pytest.fixture
def requests(store: Store) -> Mailbox[Any]:
    return open_mailbox(
        store, "samples", limits=MailboxLimits(max_failures=MAX_ATTEMPTS, max_crashes=1)
    )


@pytest.fixture
def results(store: Store) -> Mailbox[Any]:
    return open_mailbox(store, "results")


def evaluate(
    subject: MainLoop[Any, Any],
    dataset: Dataset,
    requests: Mailbox[Any],
    results: Mailbox[Any],
    **settings: Any,
) -> EvalReport:
    """From the dataset to the report."""
    loop = EvalLoop(
        **{
            "loop": subject,
            "evaluator": exact_match,
            "requests": requests,
            "retry": FAST_BACKOFF,
            **settings,
        }
    )
    submit_dataset(dataset, requests, reply_to=results)
    with running_loop(loop):
        return EvalReport.of(dataset, collect_results(results, expected=dataset, timeout=TIMEOUT))


def only(report: EvalReport) -> EvalResult:
    """The result of the one sample there is."""
    assert [] == report.missing
    [result] = report.results
    return result


# --- what becomes of samples ---


@ON_EVERY_STORE
@pytest.mark.parametrize("slots", [1, 8])
def test_every_sample_is_run_once_and_scored_in_the_order_of_the_dataset(
    requests: Mailbox[Any], results: Mailbox[Any], slots: int
) -> None:
    dataset, subject = echo_dataset(40, wrong=10), Subject()
    report = evaluate(subject, dataset, requests, results, concurrency=slots)
    assert (dataset.ids, []) == ([result.sample_id for result in report.results], report.missing)
    assert (40, 30, 10, 0.75, 0.75) == (
        report.samples,
        report.passed,
        len(report.failures),
        report.pass_rate,
        report.mean_score,
    )
    assert list(range(40)) == sorted(subject.calls)
    assert {1} == {result.attempt for result in report.results}
    assert eventually(lambda: is_drained(requests))
    assert is_drained(results)


def test_an_async_loop_runs_its_samples_beside_each_other(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    together: set[int] = set()

    async def meet(request: int, _: MainLoopContext) -> int:
        together.add(request)
        while len(together) < 4:  # noqa: ASYNC110 - an Event belongs to one loop, and which one is not known here
            await asyncio.sleep(0.001)
        return request

    report = evaluate(Subject(meet), echo_dataset(4, wrong=1), requests, results, concurrency=4)
    assert (3, 1, []) == (report.passed, len(report.failures), report.errors)


def test_the_loop_is_given_what_it_takes_and_told_which_sample_it_is(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    class Question(msgspec.Struct):
        text: str
        tries: int = 1

    told: list[tuple[str, int]] = []

    def answer(question: Question, context: MainLoopContext) -> str:
        told.append((context.request_id, context.attempt))
        return question.text * question.tries

    dataset = Dataset([Sample("q", {"text": "ab", "tries": 2}, "abab")])
    assert only(evaluate(Subject(answer, request_type=Question), dataset, requests, results)).passed
    assert [("q", 1)] == told


def test_the_own_mailbox_of_the_loop_is_left_alone(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    subject = Subject()
    subject.requests.send("untouched")
    evaluate(subject, echo_dataset(1), requests, results)
    assert 1 == subject.requests.stats().ready
    assert 1 == subject.requests.purge()


def test_how_long_the_loop_took_is_on_its_own_clock_without_the_evaluator(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    clock = FakeClock()

    def judge(output: Any, expected: Any) -> Score:
        clock.advance(100)
        return Score(1.0, passed=True)

    def work(_: Any, context: MainLoopContext) -> None:
        clock.advance(3)

    loop = EvalLoop(loop=Subject(work), evaluator=judge, requests=requests, clock=clock)
    context: Any = _FakeContext()
    assert 3.0 == loop.handle(Sample("a", 1), context).seconds
    assert 1 == context.beats


class _FakeContext:
    """As much of a context as EvalLoop needs."""

    attempt = 1
    beats = 0

    def beat(self) -> None:
        self.beats += 1


# --- what goes wrong ---


@ON_EVERY_STORE
def test_a_sample_that_fails_is_tried_again_and_counts_when_it_works(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    def work(request: Any, context: MainLoopContext) -> Any:
        if context.attempt < MAX_ATTEMPTS:
            raise RuntimeError("not yet")
        return request

    subject = Subject(work)
    result = only(evaluate(subject, echo_dataset(1), requests, results))
    assert (True, MAX_ATTEMPTS, MAX_ATTEMPTS) == (result.passed, result.attempt, len(subject.calls))


@ON_EVERY_STORE
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_one_that_always_fails_is_an_error_after_its_tries_and_the_rest_goes_on(
    requests: Mailbox[Any], results: Mailbox[Any], kind: str
) -> None:
    def work(request: Any, _: MainLoopContext) -> Any:
        if request == 1:
            raise RuntimeError("never")
        return request

    async def later(request: Any, context: MainLoopContext) -> Any:
        return work(request, context)

    subject = Subject({"sync": work, "async": later}[kind])
    report = evaluate(subject, echo_dataset(3), requests, results)
    assert [
        EvalResult("s1", SampleEnd.ERROR, error="RuntimeError: never", attempt=MAX_ATTEMPTS)
    ] == report.errors
    assert (2, MAX_ATTEMPTS) == (report.passed, subject.calls.count(1))


@ON_EVERY_STORE
def test_a_permanent_error_is_final_at_the_first_try(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    def refuse(*_: Any) -> Any:
        raise PermanentError("no such page")

    subject = Subject(refuse)
    result = only(evaluate(subject, echo_dataset(1), requests, results))
    assert (SampleEnd.ERROR, "PermanentError: no such page", 1) == (
        result.ended,
        result.error,
        len(subject.calls),
    )


def _raises(output: Any, expected: Any) -> Score:
    raise KeyError("gone")


def _a_number(output: Any, expected: Any) -> Any:
    return 0.5


def _goes_too_far(output: Any, expected: Any) -> Score:
    return Score(1.5, passed=True)


@pytest.mark.parametrize(
    ("evaluator", "error"),
    [
        (_raises, "PermanentError: the evaluator failed: KeyError: 'gone'"),
        (
            _a_number,
            (
                "PermanentError: the evaluator failed: UsageError: evaluator _a_number returned "
                "float, not a Score; write: "
            ),
        ),
        (
            _goes_too_far,
            (
                "PermanentError: the evaluator failed: ValueError: the value of a score is a "
                "number from 0 to 1, not 1.5"
            ),
        ),
    ],
)
def test_an_evaluator_that_fails_is_an_error_at_once(
    requests: Mailbox[Any],
    results: Mailbox[Any],
    evaluator: Callable[[Any, Any], Score],
    error: str,
) -> None:
    subject = Subject()
    result = only(evaluate(subject, echo_dataset(1), requests, results, evaluator=evaluator))
    assert (SampleEnd.ERROR, error, 1) == (
        result.ended,
        (result.error or "")[: len(error)],
        len(subject.calls),
    )


def test_an_input_that_the_loop_does_not_take_is_an_error_at_once(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    subject = Subject(request_type=int)
    result = only(evaluate(subject, Dataset([Sample("a", "text")]), requests, results))
    expected = (
        "PermanentError: Subject cannot take the input: a request cannot be read: Expected "
        "`int`, got `str`"
    )
    assert (SampleEnd.ERROR, expected, []) == (result.ended, result.error, subject.calls)


def test_an_output_that_cannot_be_sent_is_an_error_at_once(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    subject = Subject(lambda *_: object())
    result = only(evaluate(subject, echo_dataset(1), requests, results))
    assert (SampleEnd.ERROR, True, 1) == (
        result.ended,
        "cannot be sent" in (result.error or ""),
        len(subject.calls),
    )


CRASHING = """
import os, sys
from longwatch.evals import EvalLoop, exact_match
from longwatch.mailbox import MailboxLimits, open_mailbox
from longwatch.runtime import MainLoop

class Crash(MainLoop):
    def handle(self, request, context):
        os._exit(9) if request == 1 else None
        return request

there = open_mailbox(sys.argv[1], "samples", limits=MailboxLimits(max_crashes=1))
EvalLoop(loop=Crash(requests=there), evaluator=exact_match, requests=there).run()
"""


@ON_SHARED_STORES
def test_a_sample_that_killed_its_process_is_told_by_its_dead_letter(store: Store) -> None:
    requests = open_mailbox(store, "samples", limits=MailboxLimits(max_crashes=1))
    results, dataset = open_mailbox(store, "results"), echo_dataset(3)
    submit_dataset(dataset, requests, reply_to=results)
    died = subprocess.run([sys.executable, "-c", CRASHING, store.url], check=False, timeout=TIMEOUT)
    assert 9 == died.returncode
    with running_loop(EvalLoop(loop=Subject(), evaluator=exact_match, requests=requests)):
        assert eventually(lambda: is_drained(requests))
    found = peek_results(results, requests, expected=dataset.ids, limit=100)
    crashed = EvalResult(
        "s1", SampleEnd.CRASHED, error="its process died or hung 1 times", attempt=1
    )
    assert (["s0", "s1", "s2"], []) == ([each.sample_id for each in found.results], found.missing)
    assert (crashed, {"s0", "s2"}) == (
        found.results[1],
        {each.sample_id for each in found.results if each.passed},
    )
    assert ["s1"] == collect_results(results, expected=dataset, timeout=0).missing


# --- restarts ---


@ON_EVERY_STORE
def test_what_is_finished_is_not_run_again_by_the_next_loop(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    dataset, enough = echo_dataset(30), threading.Event()

    def work(request: int, _: MainLoopContext) -> int:
        if request == 10:
            enough.set()
        return request

    subject = Subject(work)
    submit_dataset(dataset, requests, reply_to=results)
    with running_loop(
        EvalLoop(loop=subject, evaluator=exact_match, requests=requests, concurrency=2)
    ):
        assert enough.wait(TIMEOUT)
    assert 0 == requests.stats().leased
    with running_loop(EvalLoop(loop=subject, evaluator=exact_match, requests=requests)):
        report = EvalReport.of(dataset, collect_results(results, expected=dataset, timeout=TIMEOUT))
    assert (30, list(range(30))) == (report.passed, sorted(subject.calls))


# --- beside other loops ---


def test_beside_another_loop_in_one_group_both_work_and_both_stop(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    other = Subject(name="main")
    evals = EvalLoop(loop=Subject(), evaluator=exact_match, requests=requests, name="evals")
    group = LoopGroup([other, evals], health_port=0, health_host="127.0.0.1")
    thread = threading.Thread(target=lambda: group.run(install_signals=False))
    thread.start()
    try:
        other.requests.send("a request")
        submit_dataset(echo_dataset(3), requests, reply_to=results)
        assert 3 == len(collect_results(results, expected=echo_dataset(3), timeout=TIMEOUT).results)
        assert eventually(lambda: other.calls == ["a request"])
        assert {"loop main", "loop evals"} <= _health_results(group)
    finally:
        assert group.shutdown()
        thread.join(TIMEOUT)
    assert (False, False) == (other.running, evals.running)


def _health_results(group: LoopGroup) -> set[str]:
    """What the health port looks at."""
    host, port = group.health_address or ("", 0)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/health/ready?verbose")
        checks = json.loads(connection.getresponse().read())["checks"]
    finally:
        connection.close()
    return {check["name"] for check in checks}


def test_a_sample_that_hangs_is_seen_by_the_heartbeat_that_the_watchdog_looks_at(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        begun.set()
        go_on.wait(TIMEOUT)

    submit_dataset(echo_dataset(1), requests, reply_to=results)
    clock = FakeClock()
    loop = EvalLoop(loop=Subject(hang), evaluator=exact_match, requests=requests, clock=clock)
    with running_loop(loop):
        assert begun.wait(TIMEOUT)
        clock.advance(60)
        assert loop.heartbeat.elapsed() >= 60
        go_on.set()
        assert eventually(lambda: is_drained(requests))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"loop": exact_match}, "EvalLoop needs a MainLoop to measure, not <function exact_match"),
        ({"loop": Subject}, "EvalLoop needs a MainLoop to measure, not <class"),
        (
            {"evaluator": "exact_match"},
            (
                "an evaluator is a function of (output, expected) that returns a Score, not "
                "'exact_match'"
            ),
        ),
        (
            {"evaluator": lambda output: output},
            "evaluator <lambda> cannot be called with (output, expected): ",
        ),
        ({"concurrency": 0}, "concurrency must be a whole number"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_when_the_loop_is_made(
    wrong: dict[str, Any], problem: str
) -> None:
    right = {
        "loop": Subject(),
        "evaluator": exact_match,
        "requests": open_mailbox("memory://", "samples"),
    }
    with pytest.raises((UsageError, InvalidParameterError)) as refused:
        EvalLoop(**{**right, **wrong})
    assert problem in str(refused.value)
