"""One trace follows a message through every store, with the SDK of OpenTelemetry."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from engine_rig import TIMEOUT
from longwatch.errors import MailboxFullError, PermanentError, Release
from longwatch.mailbox import Mailbox, open_mailbox, open_store
from longwatch.mailbox.headers import MAX_HEADERS_BYTES, encode_headers
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.memory import MemoryStore
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.observe.event_log import stdlib_record
from longwatch.runtime import MainLoop, MainLoopContext
from loop_rig import NO_BACKOFF
from postgres_server import shared_server
from redis_server import running_server
from span_recorder import SpanRecorder, facts, is_child, recording, traceparent

SENT = {
    "messaging.system": "longwatch",
    "messaging.operation.name": "send",
    "messaging.operation.type": "send",
    "messaging.destination.name": "jobs",
}
FOREIGN = f"00-{'a' * 32}-{'b' * 16}-01"
FOREIGN_IDS = (int("a" * 32, 16), int("b" * 16, 16))
Handle = Callable[[Any, MainLoopContext], Any]


@pytest.fixture
def spans() -> Iterator[SpanRecorder]:
    with recording() as recorder:
        yield recorder


@pytest.fixture
def memory() -> Iterator[Any]:
    with MemoryStore() as store:
        yield store


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    match request.param:
        case "memory":
            url = f"memory://{secrets.token_hex(8)}"
        case "sqlite":
            url = f"sqlite:///{tmp_path}/jobs.db"
        case "postgresql":
            url = request.getfixturevalue("postgres_url")
        case _:
            url = request.getfixturevalue("redis_url")
    with open_store(url, auto_migrate=request.param == "postgresql") as opened:
        yield opened


@pytest.fixture
def postgres_url() -> Iterator[str]:
    with shared_server().database() as url:
        yield url


@pytest.fixture
def redis_url() -> Iterator[str]:
    with running_server() as server:
        yield server.url


class Jobs(MainLoop[Any, Any]):
    def __init__(self, handle: Handle, mailbox: Mailbox[Any]) -> None:
        super().__init__(requests=mailbox, name="worker", retry=NO_BACKOFF)
        self._handle = handle

    def handle(self, request: Any, context: MainLoopContext) -> Any:
        return self._handle(request, context)


def work(mailbox: Mailbox[Any], handle: Handle, *, times: int = 1) -> None:
    for _ in range(times):
        Jobs(handle, mailbox).run(max_iterations=1, wait_time_seconds=TIMEOUT)


def put_foreign(mailbox: Mailbox[Any], headers: dict[str, str]) -> None:
    """Store a message that a program without Longwatch's tracing has sent."""
    mailbox.backend.put([NewMessage(id=new_id(), body=b"1", headers=encode_headers(headers))])


def parent_ids(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def test_send_work_and_reply_are_one_trace_in_every_store(store: Any, spans: SpanRecorder) -> None:
    jobs, answers = open_mailbox(store, "jobs"), open_mailbox(store, "answers")
    with spans.tracer.start_as_current_span("caller"):
        sent = jobs.send(2, reply_to=answers, headers={"tenant": "acme"})
    seen: list[dict[str, str]] = []

    def double(request: int, context: MainLoopContext) -> int:
        with spans.tracer.start_as_current_span("user code"):
            seen.append(context.headers)
            return 2 * request

    work(jobs, double)
    [answer] = answers.receive(wait_time_seconds=TIMEOUT)
    with answer.traced():
        pass
    names = ["send jobs", "caller", "user code", "send answers", "process jobs", "process answers"]
    assert names == spans.names
    chain = ["caller", "send jobs", "process jobs", "send answers", "process answers"]
    for parent, child in pairwise(chain):
        assert is_child(spans.one(child), spans.one(parent)), (parent, child)
    assert is_child(spans.one("user code"), spans.one("process jobs"))
    assert [{"tenant": "acme", "traceparent": traceparent(spans.one("send jobs"))}] == seen
    assert {**SENT, "messaging.message.id": sent} == facts(spans.one("send jobs"))
    assert SpanKind.PRODUCER is spans.one("send jobs").kind
    assert {
        "messaging.system": "longwatch",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "jobs",
        "messaging.message.id": sent,
        "messaging.message.body.size": 1,
        "messaging.longwatch.message.delivery_count": 1,
        "longwatch.settlement": "done",
    } == facts(spans.one("process jobs"))
    assert SpanKind.CONSUMER is spans.one("process jobs").kind
    assert [] == [span.name for span in spans.spans if span.status.status_code != StatusCode.UNSET]


def test_retries_a_dead_letter_and_its_replay_stay_in_the_trace_of_the_send(
    store: Any, spans: SpanRecorder
) -> None:
    mailbox = open_mailbox(store, "jobs")
    mailbox.send("x")
    errors: list[BaseException] = [ValueError("token=s3cret broke"), PermanentError("hopeless")]

    def fail(_: Any, __: MainLoopContext) -> None:
        if errors:
            raise errors.pop(0)

    work(mailbox, fail, times=2)
    [dead] = mailbox.dead_letters
    assert traceparent(spans.one("send jobs")) == dead.headers["traceparent"]
    mailbox.dead_letters.replay(dead.id)
    work(mailbox, fail)
    runs = spans.named("process jobs")
    assert all(is_child(run, spans.one("send jobs")) for run in runs)
    count = "messaging.longwatch.message.delivery_count"
    assert [
        (1, "failed", "ValueError", None, 0.0),
        (2, "dead", "longwatch.errors.PermanentError", "permanent", None),
        (1, "done", None, None, None),
    ] == [
        (
            facts(run)[count],
            facts(run)["longwatch.settlement"],
            facts(run).get("error.type"),
            facts(run).get("longwatch.dead_letter.reason"),
            facts(run).get("longwatch.retry.delay_seconds"),
        )
        for run in runs
    ]
    failed = runs[0]
    assert StatusCode.ERROR is failed.status.status_code
    assert "ValueError: token=*** broke" == failed.status.description
    [recorded] = failed.events
    exception = dict(recorded.attributes or {})
    assert ("exception", "ValueError") == (recorded.name, exception["exception.type"])
    assert "token=*** broke" == exception["exception.message"]
    assert "raise errors.pop(0)" in str(exception["exception.stacktrace"])
    assert "s3cret" not in str(exception)


def test_a_release_is_no_error(memory: Any, spans: SpanRecorder) -> None:
    mailbox = open_mailbox(memory, "jobs")
    mailbox.send("x")

    def not_now(_: Any, __: MainLoopContext) -> None:
        raise Release(delay=60.0)

    work(mailbox, not_now)
    run = spans.one("process jobs")
    assert ("released", 60.0) == (
        facts(run)["longwatch.settlement"],
        facts(run)["longwatch.retry.delay_seconds"],
    )
    assert (StatusCode.UNSET, ()) == (run.status.status_code, tuple(run.events))


def test_messages_of_one_send_carry_its_span(memory: Any, spans: SpanRecorder) -> None:
    mailbox = open_mailbox(memory, "jobs")
    mailbox.send_many([1, 2], headers={"tenant": "acme"})
    sent = spans.one("send jobs")
    assert {**SENT, "messaging.batch.message_count": 2} == facts(sent)
    expected = {"tenant": "acme", "traceparent": traceparent(sent)}
    assert [expected] * 2 == [each.headers for each in mailbox.receive(max_messages=2)]


def test_a_send_that_is_refused_is_an_error_of_its_span(memory: Any, spans: SpanRecorder) -> None:
    mailbox = open_mailbox(memory, "jobs", limits=MailboxLimits(max_size=1))
    mailbox.send(1)
    with pytest.raises(MailboxFullError):
        mailbox.send(2)
    assert [StatusCode.UNSET, StatusCode.ERROR] == [
        span.status.status_code for span in spans.named("send jobs")
    ]
    assert "longwatch.errors.MailboxFullError" == facts(spans.spans[-1])["error.type"]


def test_an_asynchronous_handler_is_inside_the_span(memory: Any, spans: SpanRecorder) -> None:
    mailbox = open_mailbox(memory, "jobs")
    mailbox.send(1)

    async def ask(_: Any, __: MainLoopContext) -> None:
        with spans.tracer.start_as_current_span("user code"):
            pass

    work(mailbox, ask)
    assert is_child(spans.one("user code"), spans.one("process jobs"))


@pytest.mark.parametrize(
    "garbage",
    ["", "garbage", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "ff-" + "1" * 49, "\x00é"[1:] * 99],
)
def test_a_traceparent_that_is_garbage_means_no_parent(
    memory: Any, spans: SpanRecorder, garbage: str
) -> None:
    mailbox = open_mailbox(memory, "jobs")
    put_foreign(mailbox, {"traceparent": garbage, "tracestate": "=,=", "baggage": "%zz;;="})
    work(mailbox, lambda _, __: None)
    assert spans.one("process jobs").parent is None
    assert "done" == facts(spans.one("process jobs"))["longwatch.settlement"]


def test_a_trace_from_another_system_goes_on(memory: Any, spans: SpanRecorder) -> None:
    mailbox = open_mailbox(memory, "jobs")
    put_foreign(mailbox, {"traceparent": FOREIGN, "tracestate": "vendor=1"})
    seen: list[dict[str, str]] = []
    work(mailbox, lambda _, context: seen.append(context.trace_headers))
    run = spans.one("process jobs")
    assert FOREIGN_IDS == parent_ids(run)
    assert [{"traceparent": traceparent(run), "tracestate": "vendor=1"}] == seen


def test_a_send_with_a_traceparent_and_no_span_around_it_continues_that_trace(
    memory: Any, spans: SpanRecorder
) -> None:
    mailbox = open_mailbox(memory, "jobs")
    mailbox.send(1, headers={"traceparent": FOREIGN})
    assert FOREIGN_IDS == parent_ids(spans.one("send jobs"))
    [message] = mailbox.receive()
    assert traceparent(spans.one("send jobs")) == message.headers["traceparent"]


def test_a_message_sent_on_with_its_headers_continues_the_trace_here(
    memory: Any, spans: SpanRecorder
) -> None:
    jobs, later = open_mailbox(memory, "jobs"), open_mailbox(memory, "later")
    jobs.send(1, headers={"tenant": "acme"})
    work(jobs, lambda request, context: later.send(request, headers=context.headers))
    assert is_child(spans.one("send later"), spans.one("process jobs"))
    [message] = later.receive()
    expected = {"tenant": "acme", "traceparent": traceparent(spans.one("send later"))}
    assert expected == message.headers


def test_baggage_reaches_the_handler(memory: Any, spans: SpanRecorder) -> None:
    mailbox = open_mailbox(memory, "jobs")
    token = otel_context.attach(baggage.set_baggage("tenant", "acme"))
    mailbox.send(1)
    otel_context.detach(token)
    seen: list[object] = []
    work(mailbox, lambda _, __: seen.append(baggage.get_baggage("tenant")))
    assert ["acme"] == seen


def test_headers_of_the_user_are_kept_where_those_of_the_trace_do_not_fit(
    memory: Any, spans: SpanRecorder
) -> None:
    mailbox = open_mailbox(memory, "jobs")
    largest = {"a": "x" * (MAX_HEADERS_BYTES - len('{"a":""}'))}
    mailbox.send(1, headers=largest)
    [message] = mailbox.receive()
    assert (largest, 1) == (message.headers, len(spans.named("send jobs")))


def test_records_of_logging_in_a_handler_name_its_span(memory: Any, spans: SpanRecorder) -> None:
    mailbox = open_mailbox(memory, "jobs")
    mailbox.send(1)
    records: list[dict[str, object]] = []

    def log(_: Any, __: MainLoopContext) -> None:
        record = logging.makeLogRecord({"msg": "hello", "levelno": logging.INFO})
        records.append(stdlib_record(record, manager_pid=1))

    work(mailbox, log)
    context = spans.one("process jobs").get_span_context()
    assert context is not None
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (
        records[0]["trace_id"],
        records[0]["span_id"],
    )
    outside = stdlib_record(logging.makeLogRecord({"levelno": logging.INFO}), manager_pid=1)
    assert not {"trace_id", "span_id"} & set(outside)
    assert json.dumps(records[0])


class Broken(SpanProcessor):
    """A span processor with a bug."""

    def on_start(self, span: trace.Span, parent_context: Any = None) -> None:
        raise RuntimeError("broken at the start")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("broken at the end")


def test_a_broken_span_processor_costs_no_message(memory: Any, spans: SpanRecorder) -> None:
    spans.provider.add_span_processor(Broken())
    mailbox = open_mailbox(memory, "jobs")
    mailbox.send(1)
    done: list[Any] = []
    work(mailbox, lambda request, _: done.append(request))
    assert ([1], 0) == (done, mailbox.approximate_count())


def test_a_lost_lease_is_an_error_of_the_span(memory: Any, spans: SpanRecorder) -> None:
    mailbox = open_mailbox(memory, "jobs")
    mailbox.send(1)

    def lose(_: Any, context: MainLoopContext) -> None:
        context._row_context.lose_lease()

    work(mailbox, lose)
    run = spans.one("process jobs")
    assert (True, "released", "lease_lost") == (
        facts(run)["longwatch.lease_lost"],
        facts(run)["longwatch.settlement"],
        facts(run)["error.type"],
    )
