"""Datasets into a store, results out of it, and evaluations that another process goes on with."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eval_rig import (
    ON_EVERY_STORE,
    ON_SHARED_STORES,
    Store,
    Subject,
    echo_dataset,
    is_drained,
    on_stores,
    opened_store,
    running_loop,
)
from longwatch.app.evaluation import EvalSpec, Evaluation, find_evaluation
from longwatch.errors import InvalidParameterError, SerializationError, UnsupportedError, UsageError
from longwatch.evals import EvalLoop, Sample, Score, collect_results, exact_match, submit_dataset
from longwatch.evals.results import EvalResult, SampleEnd, peek_results
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.runtime import MainLoopRequest
from longwatch.runtime.request import MainLoopResult
from polling import eventually
from redis_server import FSYNC_ALWAYS, RedisServer, running_server
from run_process import TIMEOUT, start_process
from up_process import FROM_SOURCE


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
    return open_mailbox(store, "samples")


@pytest.fixture
def results(store: Store) -> Mailbox[Any]:
    return open_mailbox(store, "results")


# --- submitting ---


@ON_EVERY_STORE
def test_a_dataset_is_sent_as_a_whole_or_not_at_all_and_the_sample_is_named(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    with pytest.raises(
        InvalidParameterError,
        match=r"^sample 'big' cannot be sent: a body of \d+ bytes is larger than 1048576;",
    ):
        submit_dataset(
            [Sample("small", 1), Sample("big", "x" * (1 << 20))], requests, reply_to=results
        )
    with pytest.raises(SerializationError, match=r"^sample 'odd' cannot be sent: "):
        submit_dataset([Sample("plain", 1), Sample("odd", object())], requests, reply_to=results)
    assert 0 == requests.stats().ready


def test_results_have_to_be_in_the_store_of_the_samples(requests: Mailbox[Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"^a reply to 'results' would not arrive: "):
        submit_dataset(
            echo_dataset(1), requests, reply_to=open_mailbox("memory://elsewhere", "results")
        )
    assert 0 == requests.stats().ready


def test_wrong_samples_are_refused_before_anything_is_sent(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    for samples in ([], [Sample("a", 1), Sample("a", 2)], [Sample("", 1)]):
        with pytest.raises(UsageError):
            submit_dataset(samples, requests, reply_to=results)
    assert 0 == requests.stats().ready


@on_stores("sqlite", "postgresql")
def test_a_dataset_is_part_of_the_transaction_it_is_given(
    store: Store, requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    def sent(tx: Any) -> None:
        submit_dataset(echo_dataset(5), requests, reply_to=results, tx=tx)

    def regretted(tx: Any) -> None:
        sent(tx)
        raise KeyError

    with pytest.raises(KeyError):
        store.transact(regretted)
    assert 0 == requests.stats().ready
    store.transact(sent)
    assert 5 == requests.stats().ready


# --- collecting ---


def _sent(results: Mailbox[Any], sample: str, value: float) -> None:
    result = EvalResult(sample, SampleEnd.SCORED, score=Score(value, value == 1.0))
    results.send(MainLoopResult(sample, result))


def _ids(collected: Any) -> tuple[list[str], list[str]]:
    return [each.sample_id for each in collected.results], collected.missing


@ON_EVERY_STORE
def test_of_several_results_of_one_sample_the_first_counts_and_strangers_are_passed_over(
    results: Mailbox[Any],
) -> None:
    for sample, value in (("b", 1.0), ("b", 0.0), ("stranger", 1.0), ("a", 0.0), ("b", 0.0)):
        _sent(results, sample, value)
    results.send({"no": "answer"})
    found = collect_results(results, expected=["a", "b", "a"], timeout=TIMEOUT)
    assert (["a", "b"], []) == _ids(found)
    assert [False, True] == [each.passed for each in found.results]


def test_those_without_a_result_are_named_when_the_time_is_over(results: Mailbox[Any]) -> None:
    _sent(results, "b", 1.0)
    assert (["b"], ["a", "c"]) == _ids(
        collect_results(results, expected=["a", "b", "c"], timeout=0)
    )
    assert is_drained(results)


def test_without_a_limit_it_waits_until_all_are_there(
    results: Mailbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    waits: list[float] = []
    receive = results.receive

    def spied(*, wait_time_seconds: float, **more: Any) -> Any:
        waits.append(wait_time_seconds)
        return receive(wait_time_seconds=wait_time_seconds, **more)

    monkeypatch.setattr(results, "receive", spied)
    waiting = threading.Thread(
        target=lambda: found.append(collect_results(results, expected=["a", "b"], timeout=math.inf))
    )
    waiting.start()
    _sent(results, "a", 1.0)
    assert eventually(lambda: is_drained(results))
    _sent(results, "b", 1.0)
    waiting.join(TIMEOUT)
    assert [(["a", "b"], [])] == list(map(_ids, found))
    assert {1.0} == set(waits)


def test_a_time_that_is_none_is_refused(results: Mailbox[Any]) -> None:
    for timeout in (-1.0, math.nan):
        with pytest.raises(UsageError, match=r"^timeout must be a number of seconds, not "):
            collect_results(results, expected=["a"], timeout=timeout)


@ON_EVERY_STORE
def test_looking_leaves_the_results_and_takes_the_given_up_from_their_dead_letters(
    requests: Mailbox[Any], results: Mailbox[Any]
) -> None:
    _sent(results, "a", 1.0)
    _sent(results, "a", 0.0)
    requests.send_many(
        [
            MainLoopRequest(Sample("b", 1), "b"),
            MainLoopRequest(Sample("a", 1), "a"),
            "of somebody else",
        ]
    )
    for message in requests.receive(max_messages=3):
        message.reject("undecodable")
    for _ in range(2):
        found = peek_results(results, requests, expected=["a", "b", "c"], limit=100)
        assert (["a", "b"], ["c"]) == _ids(found)
        assert (True, SampleEnd.ERROR) == (found.results[0].passed, found.results[1].ended)
    assert 2 == results.stats().ready


# --- evaluations in a store ---


def _facts(store: Store, **more: Any) -> EvalSpec:
    ids = [f"s{n}" for n in range(3)]
    return EvalSpec(
        run="night-1", store=store.url, loop="app:loop", evaluator="app:judge", ids=ids, **more
    )


@ON_SHARED_STORES
def test_an_evaluation_is_found_again_by_its_name_and_goes_on_where_it_was(store: Store) -> None:
    evaluation = Evaluation(_facts(store, attempts=2, digest="d"), store)
    evaluation.submit(echo_dataset(3))
    again = find_evaluation(store, "night-1", url=store.url)
    assert (evaluation.spec, 3, ["s0", "s1", "s2"]) == (
        again.spec,
        again.remaining(),
        again.report().missing,
    )
    [leased] = again.samples.receive(max_messages=1)
    assert 3 == again.remaining()
    leased.nack(visibility_timeout=0.001, reason="not now")
    with running_loop(EvalLoop(loop=Subject(), evaluator=exact_match, requests=again.samples)):
        assert eventually(lambda: again.remaining() == 0)
    report = again.report()
    assert ("night-1", "app:loop", "d", 3, []) == (
        report.run,
        report.subject,
        report.digest,
        report.passed,
        report.missing,
    )


@ON_SHARED_STORES
def test_the_url_of_the_store_is_not_kept_in_it(store: Store) -> None:
    Evaluation(_facts(store), store).submit(echo_dataset(3))
    [kept] = open_mailbox(store, "eval/night-1/spec").backend.peek(limit=10)
    assert "" == json.loads(kept.body)["store"]
    assert (
        "somewhere://else" == find_evaluation(store, "night-1", url="somewhere://else").spec.store
    )


def test_an_unknown_evaluation_is_told_with_the_nearest_or_the_last_ones(store: Store) -> None:
    with pytest.raises(
        UsageError, match=r"^no evaluation 'night-1' in \S+; `longwatch eval run` starts one$"
    ):
        find_evaluation(store, "night-1", url=store.url)
    Evaluation(_facts(store), store).submit(echo_dataset(3))
    open_mailbox(store, "of/another/spec").send(1)
    with pytest.raises(
        UsageError, match=r"^no evaluation 'nihgt-1' in \S+; did you mean night-1\?$"
    ):
        find_evaluation(store, "nihgt-1", url=store.url)
    with pytest.raises(
        UsageError, match=r"^no evaluation 'of' in \S+; the last ones are: night-1$"
    ):
        find_evaluation(store, "of", url=store.url)


def test_one_whose_facts_were_purged_is_told_so(store: Store) -> None:
    Evaluation(_facts(store), store).submit(echo_dataset(3))
    open_mailbox(store, "eval/night-1/spec").purge()
    with pytest.raises(
        UsageError,
        match=r"^the spec of evaluation 'night-1' was removed from the store; run it "
        r"again$",
    ):
        find_evaluation(store, "night-1", url=store.url)


# --- the command on a server ---

APP = """
import os, time
from longwatch.mailbox import open_mailbox
from longwatch.runtime import MainLoop

class Waits(MainLoop):
    def handle(self, request, context):
        open(f"begun-{request}", "w").close()
        while not os.path.exists("go"):
            context.beat()
            time.sleep(0.01)
        return request

loop = Waits(requests=open_mailbox("memory://", "unused"))
"""


def test_an_evaluation_outlives_a_restart_of_its_server(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    echo_dataset(40).save(tmp_path / "pairs.jsonl")
    words = [
        *FROM_SOURCE["within"],
        FROM_SOURCE["longwatch"],
        "eval",
        "run",
        "pairs.jsonl",
        "app:loop",
        "--json",
        "--store",
    ]
    with (
        running_server(FSYNC_ALWAYS) as server,
        start_process([*words, server.url], tmp_path) as (process, out, err),
    ):
        assert eventually((tmp_path / "begun-0").exists)
        server.kill()
        while b"waiting for it" not in (err.next_line(_soon()) or b"it ended"):
            assert process.poll() is None, err.text
        server.start()
        (tmp_path / "go").touch()
        out.read_to_end(_soon())
        assert 0 == process.wait(TIMEOUT)
    assert (40, 40, 0) == tuple(
        json.loads(out.text)[key] for key in ("samples", "passed", "errors")
    )


def _soon() -> float:
    return time.monotonic() + TIMEOUT
