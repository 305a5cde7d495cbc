from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from longwatch.core.events.base import Events
from longwatch.core.events.engine import WorkFailed
from longwatch.errors import (
    InvalidParameterError,
    PermanentError,
    UsageError,
)
from longwatch.mailbox import Mailbox, MailboxLimits, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.runtime import MainLoop, MainLoopContext, MainLoopRequest, Runnable
from loop_rig import (
    NO_BACKOFF,
    GatedLoop,
    StartedMessage,
    running_loop,
    wait_until,
)


class Page(msgspec.Struct, frozen=True):
    url: str


class Function(MainLoop[Any, Any]):
    """A loop over a plain function."""

    def __init__(self, work: Callable[[Any, MainLoopContext], Any], **settings: Any) -> None:
        self._function = work
        super().__init__(**{"retry": NO_BACKOFF, "events": Events(), **settings})

    def handle(self, request: Any, context: MainLoopContext) -> Any:
        return self._function(request, context)


@pytest.fixture
def mailbox() -> Mailbox[Any]:
    return open_mailbox(MemoryStore(), "jobs")


# --- making one ---


def test_making_one_starts_nothing_and_opens_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    loop = GatedLoop(requests=open_mailbox(f"sqlite:///{tmp_path}/m.db", "jobs"), concurrency=8)
    assert (set(), False, []) == (
        set(threading.enumerate()) - before,
        loop.running,
        list(tmp_path.iterdir()),
    )


def test_it_is_a_runnable(mailbox: Mailbox[Any]) -> None:
    assert isinstance(GatedLoop(requests=mailbox), Runnable)


class NoHandler(MainLoop[Any, Any]): ...


class TooFew(MainLoop[Any, Any]):
    def handle(self, request: Any) -> Any: ...  # type: ignore[override]


class TooMany(MainLoop[Any, Any]):
    def handle(self, request: Any, context: MainLoopContext, more: int) -> Any: ...  # type: ignore[override]


class Yields(MainLoop[Any, Any]):
    def handle(self, request: Any, context: MainLoopContext) -> Any:
        yield 1


class YieldsAsync(MainLoop[Any, Any]):
    async def handle(self, request: Any, context: MainLoopContext) -> Any:
        yield 1


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        (NoHandler, TypeError, "abstract"),
        (
            TooFew,
            UsageError,
            (
                r"TooFew.handle cannot be called with a request and a context .*write: def "
                r"handle\(self, request"
            ),
        ),
        (TooMany, UsageError, "TooMany.handle cannot be called with a request and a context"),
        (Yields, TypeError, "the handler is a generator"),
        (YieldsAsync, TypeError, "the handler is a generator"),
    ],
)
def test_a_handler_that_cannot_work_is_refused_at_once(
    mailbox: Mailbox[Any], kind: type[MainLoop[Any, Any]], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        kind(requests=mailbox)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, 10_001])
def test_concurrency_is_a_whole_number_of_slots(mailbox: Mailbox[Any], concurrency: Any) -> None:
    with pytest.raises(InvalidParameterError, match="concurrency"):
        GatedLoop(requests=mailbox, concurrency=concurrency)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_shutdown_timeout_is_a_number_of_seconds(mailbox: Mailbox[Any], timeout: float) -> None:
    with pytest.raises(UsageError, match="shutdown_timeout of GatedLoop"):
        GatedLoop(requests=mailbox, shutdown_timeout=timeout)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_iterations": -1},
        {"max_iterations": 1.5},
        {"max_iterations": True},
        {"visibility_timeout": -1},
        {"visibility_timeout": 50_000},
        {"wait_time_seconds": -1},
    ],
)
def test_a_run_with_a_number_that_cannot_be_is_refused(
    mailbox: Mailbox[Any], settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(settings))):
        GatedLoop(requests=mailbox).run(**settings)


def test_a_run_whose_messages_would_be_taken_away_at_once_is_refused(mailbox: Mailbox[Any]) -> None:
    with pytest.raises(UsageError, match="visibility_timeout must be more than 0 seconds"):
        GatedLoop(requests=mailbox).run(visibility_timeout=0)


# --- what a handler is given ---


def test_the_class_says_what_its_handler_is_given(mailbox: Mailbox[Any]) -> None:
    class Pages(MainLoop[Page, None]):
        seen: list[Page]

        def handle(self, request: Page, context: MainLoopContext) -> None:
            self.seen.append(request)

    loop = Pages(requests=mailbox)
    loop.seen = []
    mailbox.send({"url": "bare"})
    mailbox.send(MainLoopRequest(Page("in an envelope")))
    loop.run(max_iterations=2)
    assert [Page("bare"), Page("in an envelope")] == loop.seen


def test_request_type_says_more_than_the_class(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox, request_type=tuple[int, ...])
    mailbox.send([1, 2])
    with running_loop(loop):
        assert (1, 2) == loop.next_started().request


def test_the_context_says_what_is_worked_on(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox)
    sent = mailbox.send(MainLoopRequest("x", "request-1", trace={"traceparent": "00-1"}))
    with running_loop(loop):
        context = loop.next_started().context
        assert ("request-1", sent, {"traceparent": "00-1"}, 1) == (
            context.request_id,
            context.message_id,
            context.trace,
            context.attempt,
        )
        assert (False, False, None) == (
            context.cancelled,
            context.lease_lost,
            context.deadline.remaining(),
        )


def test_the_fencing_token_and_the_attempt_rise_with_every_delivery(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox)
    mailbox.send("x")
    with running_loop(loop):
        first = loop.next_started().context
        seen = first.attempt, first.fencing_token
        loop.fail("x", ValueError("once"))
        second = loop.next_started().context
        assert 2 == second.attempt
        assert seen[1] < second.fencing_token


def test_its_logger_carries_the_ids(
    mailbox: Mailbox[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def work(request: Any, context: MainLoopContext) -> None:
        context.logger.warning("half way", extra={"more": 7})

    sent = mailbox.send(MainLoopRequest("x", "request-1"))
    with caplog.at_level(logging.WARNING, logger="longwatch.runtime.handler"):
        Function(work, requests=mailbox, name="pages").run(max_iterations=1)
    [record] = caplog.records
    expected = {
        "loop": "pages",
        "request_id": "request-1",
        "message_id": sent,
        "attempt": 1,
        "more": 7,
    }
    assert expected == {name: getattr(record, name) for name in expected}


def test_as_many_messages_are_worked_on_as_it_has_slots(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox, concurrency=3)
    mailbox.send_many(range(5))
    with running_loop(loop):
        assert {0, 1, 2} == {loop.next_started().request for _ in range(3)}
        assert loop.started.empty()
        loop.open(1)
        assert 3 == loop.next_started().request


# --- what cannot be read, what raises ---


@pytest.mark.parametrize(
    "body",
    ["no page", {"url": 7}, {"request": {"url": 7}}, {"request": {"url": "x"}, "deadline": "soon"}],
)
def test_a_body_that_cannot_be_read_is_a_dead_letter_and_the_loop_goes_on(
    mailbox: Mailbox[Any], body: Any
) -> None:
    loop = GatedLoop(requests=mailbox, request_type=Page)
    mailbox.send(body)
    mailbox.send({"url": "fine"})
    with running_loop(loop):
        assert Page("fine") == loop.next_started().request
        loop.open(Page("fine"))
        wait_until(lambda: len(mailbox.dead_letters) == 1)
    [dead] = mailbox.dead_letters
    assert ("undecodable", True) == (dead.reason, "a request cannot be read" in (dead.error or ""))
    assert 0 == mailbox.approximate_count()


def test_a_body_that_the_mailbox_itself_cannot_read_is_one_too() -> None:
    store = MemoryStore()
    open_mailbox(store, "jobs").send("text")
    numbers = open_mailbox(store, "jobs", int)
    numbers.send(7)
    loop = GatedLoop(requests=numbers)
    with running_loop(loop):
        assert 7 == loop.next_started().request
    assert ["undecodable"] == [dead.reason for dead in numbers.dead_letters]


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_handler_raises_is_a_failure_of_its_message_and_the_loop_goes_on(
    mailbox: Mailbox[Any], error: BaseException
) -> None:
    loop = GatedLoop(requests=mailbox)
    mailbox.send_many(["bad", "good"])
    with running_loop(loop):
        assert "bad" == loop.next_started().request
        loop.fail("bad", error)
        assert {("good", 1), ("bad", 2)} == {
            (begun.request, begun.context.attempt) for begun in (_passed(loop), _passed(loop))
        }
    failed = loop.observer.wait_for(WorkFailed)
    assert f"{type(error).__name__}: {error}" == failed.error
    assert (0, 0) == (mailbox.approximate_count(), len(mailbox.dead_letters))


def _passed(loop: GatedLoop) -> StartedMessage:
    begun = loop.next_started()
    loop.open(begun.request)
    return begun


def test_after_its_last_failure_it_is_a_dead_letter() -> None:
    mailbox = open_mailbox(MemoryStore(), "jobs", limits=MailboxLimits(max_failures=3))
    loop = GatedLoop(requests=mailbox)
    mailbox.send("bad")
    with running_loop(loop):
        for attempt in (1, 2, 3):
            assert attempt == loop.next_started().context.attempt
            loop.fail("bad", ValueError("broken"))
        wait_until(lambda: len(mailbox.dead_letters) == 1)
    [dead] = mailbox.dead_letters
    assert ("failed", 3, "ValueError: broken") == (dead.reason, dead.deliveries, dead.error)


def test_a_permanent_error_is_the_end_of_the_message_at_once(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox)
    mailbox.send("bad")
    with running_loop(loop):
        loop.next_started()
        loop.fail("bad", PermanentError("never"))
        wait_until(lambda: len(mailbox.dead_letters) == 1)
    [dead] = mailbox.dead_letters
    assert ("permanent", 1, "PermanentError: never") == (dead.reason, dead.deliveries, dead.error)


# --- small words ---


def test_its_repr_names_it_and_its_mailbox(mailbox: Mailbox[Any]) -> None:
    assert "<GatedLoop pages on <Mailbox 'jobs'>>" == repr(
        GatedLoop(requests=mailbox, name="pages")
    )
