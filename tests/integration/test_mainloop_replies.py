from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from engine_rig import TIMEOUT
from longwatch.core.events.engine import (
    MessageDeadLettered,
    RowsSettled,
    SettlementRefused,
    WorkFailed,
)
from longwatch.core.events.runtime import ReplyFailed
from longwatch.errors import CancelledError, MailboxError, PermanentError
from longwatch.mailbox import Mailbox, MailboxLimits, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.runtime import MainLoop, MainLoopContext, MainLoopRequest, MainLoopResult
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.testing import FakeClock, RecordingObserver
from loop_rig import GatedLoop, lapse_leases, receive_results, running_loop, wait_until
from postgres_server import shared_server
from redis_server import running_server

RESULT = MainLoopResult[Any]


@dataclasses.dataclass
class MailboxOpener:
    """A store, and how to open a mailbox there."""

    store: Any

    def __call__(self, name: str, body_type: Any = Any, **settings: Any) -> Mailbox[Any]:
        return open_mailbox(self.store, name, body_type, **settings)

    def advance_lease_clock(self, seconds: float) -> None:
        """So much time passes for leases, without a renewal."""
        lapse_leases(self.store, seconds)


def _opened(kind: str, folder: Path, closing: ExitStack) -> Any:
    if kind == "sqlite":
        return closing.enter_context(SqliteDatabase(folder / "m.db"))
    if kind == "postgres":
        url = closing.enter_context(shared_server().database())
        return closing.enter_context(PostgresDatabase(url, auto_migrate=True))
    return closing.enter_context(running_server()).url if kind == "redis" else MemoryStore()


@pytest.fixture
def make_opener(tmp_path: Path) -> Iterator[Callable[[str], MailboxOpener]]:
    with ExitStack() as closing:
        yield lambda kind: MailboxOpener(_opened(kind, tmp_path, closing))


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def opener(
    request: pytest.FixtureRequest, make_opener: Callable[[str], MailboxOpener]
) -> MailboxOpener:
    """Each kind of store."""
    return make_opener(request.param)


@pytest.fixture(params=["sqlite", "postgres"])
def sql(
    request: pytest.FixtureRequest, make_opener: Callable[[str], MailboxOpener]
) -> MailboxOpener:
    """Each store in which an answer and the settlement are one transaction."""
    return make_opener(request.param)


@pytest.fixture
def memory(make_opener: Callable[[str], MailboxOpener]) -> MailboxOpener:
    return make_opener("memory")


def counted(observer: RecordingObserver, what: str) -> int:
    return sum(getattr(event, what) for event in observer.of(RowsSettled))


# --- where an answer goes ---


def test_the_answer_goes_to_where_the_sender_said(opener: MailboxOpener) -> None:
    jobs, answers, others = opener("jobs"), opener("answers", RESULT), opener("others", RESULT)
    loop = GatedLoop(requests=jobs, responses=others)
    jobs.send(MainLoopRequest("x", "request-1", trace={"traceparent": "00-1"}), reply_to=answers)
    with running_loop(loop):
        loop.next_started()
        loop.reply("x", {"found": [1, 2]})
        [result] = receive_results(answers, 1)
        wait_until(lambda: jobs.approximate_count() == 0)
    assert ("request-1", {"found": [1, 2]}, None, 1, {"traceparent": "00-1"}) == (
        result.request_id,
        result.output,
        result.error,
        result.attempt,
        result.trace,
    )
    assert (0, 0, 1) == (
        others.approximate_count(),
        len(jobs.dead_letters),
        counted(loop.observer, "done"),
    )


def test_else_it_goes_to_the_responses_of_the_loop(memory: MailboxOpener) -> None:
    jobs, responses = memory("jobs"), memory("responses", RESULT)
    loop = GatedLoop(requests=jobs, responses=responses)
    sent = jobs.send("x")
    loop.reply("x", "y")
    with running_loop(loop):
        [result] = receive_results(responses, 1)
    assert (sent, "y") == (result.request_id, result.output)


def test_else_it_goes_nowhere_and_the_message_is_done(memory: MailboxOpener) -> None:
    jobs = memory("jobs")
    loop = GatedLoop(requests=jobs)
    jobs.send("x")
    loop.reply("x", object())
    loop.run(max_iterations=1)
    assert (0, 0, 1) == (
        jobs.approximate_count(),
        len(jobs.dead_letters),
        counted(loop.observer, "done"),
    )


def test_no_output_is_an_answer_too(memory: MailboxOpener) -> None:
    jobs, responses = memory("jobs"), memory("responses", RESULT)
    loop = GatedLoop(requests=jobs, responses=responses)
    jobs.send("x")
    loop.reply("x", None)
    with running_loop(loop):
        [result] = receive_results(responses, 1)
    assert (None, True) == (result.output, result.ok)


@pytest.mark.parametrize("is_final", [False, True])
def test_an_async_handler_is_answered_for_in_the_same_way(
    memory: MailboxOpener,
    is_final: bool,  # noqa: FBT001 - how it ends
) -> None:
    class Async(GatedLoop):
        async def handle(self, request: Any, context: MainLoopContext) -> Any:
            await asyncio.sleep(0)
            if is_final:
                raise PermanentError("never")
            return request.upper()

    jobs, responses = memory("jobs"), memory("responses", RESULT)
    jobs.send("x")
    with running_loop(Async(requests=jobs, responses=responses)):
        [result] = receive_results(responses, 1)
    expected = (None, "PermanentError: never") if is_final else ("X", None)
    assert expected == (result.output, result.error)


def test_a_mailbox_in_another_store_is_answered_first_and_settled_then(
    memory: MailboxOpener, tmp_path: Path
) -> None:
    with SqliteDatabase(tmp_path / "m.db") as database:
        jobs, responses = open_mailbox(database, "jobs"), memory("responses", RESULT)
        loop = GatedLoop(requests=jobs, responses=responses)
        jobs.send("x")
        loop.open("x")
        loop.run(max_iterations=1)
        assert (["x"], 0, 1) == (
            [result.output for result in receive_results(responses, 1)],
            jobs.approximate_count(),
            counted(loop.observer, "done"),
        )


# --- one transaction ---


def test_whoever_has_lost_the_lease_before_it_is_settled_sends_nothing(sql: MailboxOpener) -> None:
    jobs, responses = sql("jobs"), sql("responses", RESULT)
    loop = GatedLoop(requests=jobs, responses=responses)
    jobs.send("x")
    with running_loop(loop, visibility_timeout=300):
        loop.next_started()
        sql.advance_lease_clock(301)
        [taken] = jobs.receive(wait_time_seconds=TIMEOUT)
        loop.reply("x", "late")
        loop.observer.wait_for(SettlementRefused)
        taken.acknowledge()
    assert (0, 0, 1) == (
        responses.approximate_count(),
        counted(loop.observer, "done"),
        counted(loop.observer, "refused"),
    )


@pytest.mark.parametrize("error", [PermanentError("never"), ValueError("the last one")])
def test_neither_does_it_send_what_went_wrong(sql: MailboxOpener, error: Exception) -> None:
    jobs, responses = sql("jobs", limits=MailboxLimits(max_failures=1)), sql("responses", RESULT)
    loop = GatedLoop(requests=jobs, responses=responses)
    jobs.send("x")
    with running_loop(loop, visibility_timeout=300):
        loop.next_started()
        sql.advance_lease_clock(301)
        [taken] = jobs.receive(wait_time_seconds=TIMEOUT)
        loop.fail("x", error)
        loop.observer.wait_for(SettlementRefused)
        taken.acknowledge()
    assert (0, 0) == (responses.approximate_count(), len(jobs.dead_letters))


def test_a_reply_that_cannot_be_sent_is_a_failure_of_its_message_which_is_tried_again(
    sql: MailboxOpener,
) -> None:
    jobs, responses = sql("jobs"), sql("responses", RESULT, limits=MailboxLimits(max_size=1))
    loop = GatedLoop(requests=jobs, responses=responses)
    responses.send(MainLoopResult("another"))
    jobs.send("x")
    with running_loop(loop):
        loop.next_started()
        loop.open("x")
        assert "MailboxFullError" in loop.observer.wait_for(ReplyFailed).error
        second = loop.next_started().context
        assert (2, 1) == (second.attempt, second._row_context.claimed.failures)
        assert ["another"] == [result.request_id for result in receive_results(responses, 1)]
        loop.open("x")
        assert [(2, "x")] == [
            (result.attempt, result.output) for result in receive_results(responses, 1)
        ]
    assert (0, 0, 1) == (
        jobs.approximate_count(),
        len(jobs.dead_letters),
        counted(loop.observer, "done"),
    )


def test_a_reply_that_is_never_sent_ends_with_one_dead_letter_after_the_last_failure(
    opener: MailboxOpener,
) -> None:
    """The work of an unanswered message runs as often as it may fail, and not without end."""
    jobs = opener("jobs", limits=MailboxLimits(max_failures=3))
    responses = opener("responses", RESULT, limits=MailboxLimits(max_size=1))
    loop = GatedLoop(requests=jobs, responses=responses)
    responses.send(MainLoopResult("another"))
    message_id = jobs.send("x")
    with running_loop(loop):
        for attempt in (1, 2, 3):
            assert attempt == loop.next_started().context.attempt
            loop.open("x")
        dead_lettered = loop.observer.wait_for(MessageDeadLettered)
        failed = loop.observer.of(ReplyFailed)
    assert loop.started.empty()
    assert ("jobs", message_id, "unanswered") == (
        dead_lettered.mailbox,
        dead_lettered.message_id,
        dead_lettered.reason,
    )
    assert [(message_id, True), (message_id, True), (message_id, False)] == [
        (each.message_id, each.retry_in is not None) for each in failed
    ]
    [dead] = jobs.dead_letters
    assert ("unanswered", 3) == (dead.reason, dead.deliveries)
    assert (dead.error or "").startswith("the reply could not be sent: MailboxFullError: ")


@pytest.mark.parametrize("error", [MailboxError("no"), RuntimeError("no"), OSError(5, "no")])
def test_whatever_a_reply_mailbox_raises_the_message_runs_no_more_often_than_it_may_fail(
    memory: MailboxOpener, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mailbox of another kind may raise anything."""
    jobs, responses = memory("jobs"), memory("responses", RESULT)
    monkeypatch.setattr(responses, "send", Mock(side_effect=error))
    loop = GatedLoop(requests=jobs, responses=responses)
    jobs.send("x")
    loop.open_all()
    with running_loop(loop):
        wait_until(lambda: len(jobs.dead_letters) == 1)
    assert 5 == loop.started.qsize()
    assert ["unanswered"] == [dead.reason for dead in jobs.dead_letters]


def test_a_final_failure_whose_error_reply_cannot_be_sent_is_dead_lettered_all_the_same(
    opener: MailboxOpener,
) -> None:
    """The reason stays that of the failure: the work did not succeed."""
    jobs = opener("jobs", limits=MailboxLimits(max_failures=2))
    responses = opener("responses", RESULT, limits=MailboxLimits(max_size=1))
    loop = GatedLoop(requests=jobs, responses=responses)
    responses.send(MainLoopResult("another"))
    jobs.send("x")
    with running_loop(loop):
        for _ in range(2):
            loop.next_started()
            loop.fail("x", ValueError("broken"))
        assert "failed" == loop.observer.wait_for(MessageDeadLettered).reason
        [failed] = loop.observer.of(ReplyFailed)
    assert (None, True) == (failed.retry_in, loop.started.empty())
    assert [("failed", "ValueError: broken")] == [
        (dead.reason, dead.error) for dead in jobs.dead_letters
    ]


def test_mailboxes_of_one_file_that_were_opened_apart_are_settled_together(tmp_path: Path) -> None:
    with SqliteDatabase(tmp_path / "m.db") as here, SqliteDatabase(tmp_path / "m.db") as there:
        jobs, responses = open_mailbox(here, "jobs"), open_mailbox(there, "responses", RESULT)
        loop = GatedLoop(requests=jobs, responses=responses)
        jobs.send("x")
        with running_loop(loop, visibility_timeout=300):
            loop.next_started()
            lapse_leases(here, 301.0)
            [taken] = jobs.receive(wait_time_seconds=TIMEOUT)
            loop.open("x")
            loop.observer.wait_for(SettlementRefused)
            taken.acknowledge()
        assert 0 == responses.approximate_count()


def test_answers_are_counted_as_done_also_those_of_the_end(sql: MailboxOpener) -> None:
    """They are settled with their answer, not by the engine: nothing may be traded any more when
    the last of them is done.
    """
    jobs, responses = sql("jobs"), sql("responses", RESULT)
    loop = GatedLoop(requests=jobs, responses=responses, concurrency=3)
    jobs.send_many(range(3))
    with running_loop(loop):
        for _ in range(3):
            loop.next_started()
        loop.drain()
        loop.open(0, 1, 2)
    assert (3, 3) == (len(receive_results(responses, 3)), counted(loop.observer, "done"))
    assert 3 == sum(len(event.durations) for event in loop.observer.of(RowsSettled))


@pytest.mark.parametrize("error", [None, PermanentError("never")])
def test_work_that_was_told_of_its_lost_lease_sends_nothing_in_whichever_store(
    opener: MailboxOpener, error: Exception | None
) -> None:
    jobs, responses = opener("jobs"), opener("responses", RESULT)
    loop = GatedLoop(requests=jobs, responses=responses)
    jobs.send("x")
    with running_loop(loop):
        loop.next_started().context._row_context.lose_lease()
        loop.drain()
        loop.open("x") if error is None else loop.fail("x", error)
        wait_until(lambda: jobs.stats().leased == 0)
    assert (1, 0, 0, 0) == (
        jobs.stats().ready,
        len(jobs.dead_letters),
        responses.approximate_count(),
        counted(loop.observer, "done"),
    )


# --- what went wrong ---


def test_a_failure_is_told_to_the_sender_only_when_it_was_the_last(opener: MailboxOpener) -> None:
    jobs, answers = opener("jobs", limits=MailboxLimits(max_failures=3)), opener("answers", RESULT)
    loop = GatedLoop(requests=jobs)
    jobs.send(MainLoopRequest("x", "request-1"), reply_to=answers)
    with running_loop(loop):
        for attempt in (1, 2, 3):
            assert (attempt, 0) == (
                loop.next_started().context.attempt,
                answers.approximate_count(),
            )
            loop.fail("x", ValueError(f"broken {attempt}"))
        [result] = receive_results(answers, 1)
        wait_until(lambda: len(jobs.dead_letters) == 1)
    assert ("request-1", None, "ValueError: broken 3", 3) == (
        result.request_id,
        result.output,
        result.error,
        result.attempt,
    )
    assert (0, ["failed"]) == (
        answers.approximate_count(),
        [dead.reason for dead in jobs.dead_letters],
    )
    assert (2, 1) == (counted(loop.observer, "failed"), counted(loop.observer, "dead_lettered"))
    retries = [event.retry_in is not None for event in loop.observer.of(WorkFailed)]
    assert [True, True, False] == retries, "the last failure announces no retry"


def test_a_failure_that_is_followed_by_a_success_is_told_to_nobody(memory: MailboxOpener) -> None:
    jobs, responses = memory("jobs"), memory("responses", RESULT)
    loop = GatedLoop(requests=jobs, responses=responses)
    jobs.send("x")
    with running_loop(loop):
        loop.next_started()
        loop.fail("x", ValueError("once"))
        loop.next_started()
        loop.open("x")
        assert [(None, 2)] == [
            (result.error, result.attempt) for result in receive_results(responses, 1)
        ]
    assert 0 == responses.approximate_count()


def test_a_permanent_error_is_told_to_the_sender_at_once(opener: MailboxOpener) -> None:
    jobs, answers = opener("jobs"), opener("answers", RESULT)
    loop = GatedLoop(requests=jobs)
    jobs.send("x", reply_to=answers)
    with running_loop(loop):
        loop.next_started()
        loop.fail("x", PermanentError("never"))
        [result] = receive_results(answers, 1)
        wait_until(lambda: len(jobs.dead_letters) == 1)
    assert ("PermanentError: never", 1) == (result.error, result.attempt)
    assert (["permanent"], 1) == (
        [dead.reason for dead in jobs.dead_letters],
        counted(loop.observer, "dead_lettered"),
    )


def test_what_went_wrong_is_kept_as_a_dead_letter_when_nobody_can_be_told(
    sql: MailboxOpener,
) -> None:
    jobs, responses = sql("jobs"), sql("responses", RESULT, limits=MailboxLimits(max_size=1))
    loop = GatedLoop(requests=jobs, responses=responses)
    responses.send(MainLoopResult("another"))
    jobs.send("x")
    with running_loop(loop):
        loop.next_started()
        loop.fail("x", PermanentError("never"))
        loop.observer.wait_for(ReplyFailed)
        wait_until(lambda: len(jobs.dead_letters) == 1)
    assert 1 == responses.approximate_count()


@pytest.mark.parametrize(
    ("error", "told", "dead"),
    [
        (CancelledError("shutdown"), 0, 0),
        (ValueError("because of that"), 0, 0),
        (PermanentError("never"), 1, 1),
    ],
)
def test_of_work_that_was_told_to_stop_only_what_is_permanent_is_told(
    memory: MailboxOpener, error: Exception, told: int, dead: int
) -> None:
    jobs, responses = (
        memory("jobs", limits=MailboxLimits(max_failures=1)),
        memory("responses", RESULT),
    )
    loop = GatedLoop(requests=jobs, responses=responses)
    jobs.send("x")
    with running_loop(loop):
        loop.next_started().context.cancel.cancel("shutdown")
        loop.drain()
        loop.fail("x", error)
        wait_until(lambda: jobs.stats().leased == 0)
    assert (told, dead, 1 - dead) == (
        responses.approximate_count(),
        len(jobs.dead_letters),
        jobs.stats().ready,
    )


@pytest.mark.parametrize(
    "output", [object(), {"a": float("nan")}, "x" * 2_000_000, {1: threading.Lock()}]
)
def test_an_output_that_cannot_be_sent_is_an_error_for_the_sender_and_the_end_of_the_message(
    memory: MailboxOpener, output: Any
) -> None:
    jobs, responses = memory("jobs"), memory("responses", RESULT)
    loop = GatedLoop(requests=jobs, responses=responses, name="pages")
    jobs.send("x")
    loop.reply("x", output)
    with running_loop(loop):
        [result] = receive_results(responses, 1)
        wait_until(lambda: len(jobs.dead_letters) == 1)
    [dead] = jobs.dead_letters
    start = f"PermanentError: the output of pages, of type {type(output).__name__}, cannot be sent"
    assert (True, True, "permanent") == (
        (result.error or "").startswith(start),
        (dead.error or "").startswith(start),
        dead.reason,
    )


def test_an_output_that_does_not_fit_the_type_of_the_responses_is_one_too(
    memory: MailboxOpener,
) -> None:
    jobs, responses = memory("jobs"), memory("responses", MainLoopResult[int])
    loop = GatedLoop(requests=jobs, responses=responses)
    jobs.send("x")
    loop.reply("x", "no number")
    with running_loop(loop):
        [result] = receive_results(responses, 1)
    assert "cannot be sent" in (result.error or "")


@dataclasses.dataclass
class Page:
    number: int


class PageLoop(MainLoop[int, Page]):
    """Returns a page whose number is wrong for a request of 0."""

    def handle(self, request: int, context: MainLoopContext) -> Any:
        return Page(request or "none")  # type: ignore[arg-type] # the mistake that is checked for


def test_an_output_with_a_field_of_another_type_than_declared_is_an_error_for_the_sender(
    memory: MailboxOpener,
) -> None:
    """`MainLoop[int, Page]` declares the output; the reply mailbox, by its name, declares none."""
    jobs, replies = memory("jobs"), memory("replies", RESULT)
    jobs.send_many([0, 7], reply_to="replies")
    with running_loop(PageLoop(requests=jobs, name="pages")):
        first, second = receive_results(replies, 2)
    assert (
        "PermanentError: the output of pages, of type Page, cannot be sent: an output of type "
        "Page cannot be decoded: field number: expected int, got str; the loop declares "
        f"{Page | None}"
    ) == first.error
    assert {"number": 7} == second.output


def iter_nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("is_async", [False, True])
def test_a_generator_as_the_output_of_the_last_try_is_told(
    memory: MailboxOpener,
    is_async: bool,  # noqa: FBT001 - by which way
) -> None:
    class Async(GatedLoop):
        async def handle(self, request: Any, context: MainLoopContext) -> Any:
            return iter_nothing()

    jobs, responses = (
        memory("jobs", limits=MailboxLimits(max_failures=1)),
        memory("responses", RESULT),
    )
    loop = (Async if is_async else GatedLoop)(requests=jobs, responses=responses)
    jobs.send("x")
    loop.reply("x", iter_nothing())
    with running_loop(loop):
        [result] = receive_results(responses, 1)
    assert "the handler is a generator" in (result.error or "")


# --- deadlines ---


def test_a_request_whose_deadline_has_passed_is_answered_without_being_worked_on(
    opener: MailboxOpener,
) -> None:
    jobs, answers = opener("jobs"), opener("answers", RESULT)
    loop = GatedLoop(requests=jobs)
    jobs.send(
        MainLoopRequest("x", "request-1", deadline=datetime.now(UTC) - timedelta(seconds=1)),
        reply_to=answers,
    )
    with running_loop(loop):
        [result] = receive_results(answers, 1)
        wait_until(lambda: jobs.approximate_count() == 0)
    assert ("request-1", None, True) == (
        result.request_id,
        result.output,
        (result.error or "").startswith("deadline_exceeded"),
    )
    assert (0, True) == (len(jobs.dead_letters), loop.started.empty())


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
def test_with_nobody_to_answer_it_is_a_dead_letter(
    make_opener: Callable[[str], MailboxOpener], kind: str
) -> None:
    jobs = make_opener(kind)("jobs")
    loop = GatedLoop(requests=jobs)
    jobs.send(MainLoopRequest("x", deadline=datetime.now(UTC) - timedelta(seconds=1)))
    loop.run(max_iterations=1)
    [dead] = jobs.dead_letters
    assert ("expired", True, True) == (
        dead.reason,
        (dead.error or "").startswith("deadline_exceeded"),
        loop.started.empty(),
    )


def test_a_handler_is_told_its_deadline_and_that_it_has_passed(memory: MailboxOpener) -> None:
    clock = FakeClock(wall=datetime(2031, 5, 6, 12, tzinfo=UTC).timestamp())
    jobs, responses = memory("jobs"), memory("responses", RESULT)
    loop = GatedLoop(requests=jobs, responses=responses, clock=clock)
    jobs.send(MainLoopRequest("x", deadline=datetime(2031, 5, 6, 12, 1, tzinfo=UTC)))
    with running_loop(loop):
        context = loop.next_started().context
        seen = [(context.deadline.remaining(), context.cancelled)]
        clock.jump_wall(3600)
        seen.append((context.deadline.remaining(), context.cancelled))
        clock.await_parked(4)
        clock.advance(60.0)
        seen.append((context.deadline.remaining(), context.cancelled))
        assert [(60.0, False), (60.0, False), (0.0, True)] == seen
        loop.open("x")
        assert ["x"] == [result.output for result in receive_results(responses, 1)]
