from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Generic, TypeVar

import msgspec
import pytest

from longwatch.errors import SerializationError, UsageError
from longwatch.mailbox.records import MessageRecord
from longwatch.runtime import MainLoop, MainLoopContext, MainLoopRequest, MainLoopResult
from longwatch.runtime.main_loop import _type_argument
from longwatch.runtime.request import RequestDecoder
from longwatch.store.json_codec import Codec

DELIVERY = MessageRecord(
    "message-7",
    b"",
    deliveries=1,
    failures=0,
    crashes=0,
    enqueued_at=1_700_000_000.0,
    reply_to=None,
)
NOON = datetime(2031, 5, 6, 12, tzinfo=UTC)


class Page(msgspec.Struct):
    url: str
    depth: int = 0


@dataclasses.dataclass
class Job:
    request: str
    when: datetime | None = None


def arrived(body: Any) -> Any:
    """A body as it comes out of a mailbox that was opened for anything."""
    return Codec().decode(Codec().encode(body))


def decoded(body: Any, request_type: Any = Any) -> MainLoopRequest[Any]:
    return RequestDecoder(request_type).decode(body, DELIVERY)


# --- an envelope ---


def test_an_envelope_keeps_everything_that_is_known_about_the_request() -> None:
    sent = MainLoopRequest(
        Page("http://x", 2),
        "id-1",
        deadline=NOON,
        created_at=NOON - timedelta(hours=1),
        trace={"traceparent": "00-1"},
    )
    assert sent == decoded(arrived(sent), Page)


def test_an_envelope_may_be_written_by_hand_and_gets_its_defaults() -> None:
    before = datetime.now(UTC)
    found = decoded({"request": {"url": "http://x"}}, Page)
    assert (Page("http://x"), None, {}) == (found.request, found.deadline, found.trace)
    assert before <= found.created_at <= datetime.now(UTC)
    assert 32 == len(found.request_id)
    assert found.request_id != decoded({"request": {"url": "http://x"}}, Page).request_id


def test_an_envelope_from_a_mailbox_that_was_opened_for_envelopes_is_decoded_further() -> None:
    codec: Codec[MainLoopRequest[Any]] = Codec(MainLoopRequest[Any])
    sent = MainLoopRequest(Page("http://x"), "id-1", deadline=NOON)
    assert sent == decoded(codec.decode(codec.encode(sent)), Page)


def test_an_envelope_of_anything_is_taken_as_it_is() -> None:
    found = decoded(arrived(MainLoopRequest({"url": "http://x"}, "id-1")))
    assert ({"url": "http://x"}, "id-1") == (found.request, found.request_id)


# --- a bare body ---


@pytest.mark.parametrize(
    ("body", "request_type", "expected"),
    [
        ("text", Any, "text"),
        ("text", str, "text"),
        (7, int, 7),
        (None, Any, None),
        ([1, 2], list[int], [1, 2]),
        ({"url": "http://x", "depth": 3}, Page, Page("http://x", 3)),
        ({"url": "http://x"}, dict[str, str], {"url": "http://x"}),
        ("2031-05-06T12:00:00Z", datetime, NOON),
        (None, int | None, None),
    ],
)
def test_a_bare_body_is_the_request_itself(body: Any, request_type: Any, expected: Any) -> None:
    assert expected == decoded(arrived(body), request_type).request


def test_a_bare_body_has_the_id_and_the_time_of_its_message() -> None:
    found = decoded({"url": "http://x"}, Page)
    assert ("message-7", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), None) == (
        found.request_id,
        found.created_at,
        found.deadline,
    )


@pytest.mark.parametrize("body", [Page("http://x"), Job("x", NOON)])
def test_a_body_that_the_mailbox_has_decoded_already_is_the_request(body: Any) -> None:
    assert body == decoded(body, type(body)).request


def test_a_mapping_with_a_request_and_with_something_that_no_envelope_has_is_a_bare_body() -> None:
    assert Job("x", NOON) == decoded({"request": "x", "when": "2031-05-06T12:00:00Z"}, Job).request


# --- neither ---


@pytest.mark.parametrize(
    ("body", "request_type"),
    [
        ({"url": 7}, Page),
        ({"request": {"url": 7}}, Page),
        ({"request": {"url": "x"}, "deadline": "tomorrow"}, Page),
        ({"request": {"url": "x"}, "deadline": "2031-05-06T12:00:00"}, Page),
        ({"request": {"url": "x"}, "created_at": "2031-05-06T12:00:00"}, Page),
        ({"request": {"url": "x"}, "request_id": 7}, Page),
        ({"request": {"url": "x"}, "trace": {"a": 1}}, Page),
        ("text", int),
        (None, Page),
        (MainLoopRequest("text"), int),
    ],
)
def test_what_is_neither_cannot_be_read(body: Any, request_type: Any) -> None:
    with pytest.raises(SerializationError, match="a request cannot be read"):
        decoded(body, request_type)


def test_a_type_that_nothing_can_be_decoded_to_is_refused_when_the_decoder_is_made() -> None:
    with pytest.raises(UsageError, match="give request_type="):
        RequestDecoder(Page | Job)


# --- times ---


@pytest.mark.parametrize("field", ["deadline", "created_at"])
def test_a_moment_without_a_time_zone_is_refused_where_it_is_made(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} needs a time zone"):
        MainLoopRequest("x", **{field: datetime(2031, 5, 6)})  # type: ignore[arg-type] # noqa: DTZ001 - that is the point


def test_a_deadline_in_another_time_zone_is_the_same_moment() -> None:
    there = datetime(2031, 5, 6, 14, tzinfo=timezone(timedelta(hours=2)))
    assert NOON == decoded(arrived(MainLoopRequest("x", deadline=there)), str).deadline


# --- results ---


def test_a_result_travels_typed() -> None:
    codec: Codec[MainLoopResult[Page]] = Codec(MainLoopResult[Page])
    sent = MainLoopResult("id-1", Page("http://x"), attempt=3, trace={"a": "b"})
    found = codec.decode(codec.encode(sent))
    assert (sent, True) == (found, found.ok)


def test_a_result_with_an_error_is_not_ok() -> None:
    assert not MainLoopResult("id-1", error="ValueError: x").ok


# --- what a class takes ---

T = TypeVar("T")
U = TypeVar("U")


class Nothing(MainLoop):  # type: ignore[type-arg]
    def handle(self, request: Any, context: MainLoopContext) -> Any: ...


class Pages(MainLoop[Page, int]):
    def handle(self, request: Page, context: MainLoopContext) -> int:
        return 0


class Between(MainLoop[T, int]):
    def handle(self, request: T, context: MainLoopContext) -> int:
        return 0


class Turned(Between[U], Generic[T, U]): ...


class Below(Turned[int, Page]): ...


class Open(Between[T]): ...


class Mixed(dict[str, int], Pages): ...


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Nothing, Any),
        (Pages, Page),
        (Between, Any),
        (Below, Page),
        (Open, Any),
        (Mixed, Page),
        (type("Sub", (Pages,), {}), Page),
    ],
)
def test_the_type_argument_says_what_a_class_takes_also_through_classes_between(
    kind: type, expected: Any
) -> None:
    assert expected is _type_argument(kind, 0)
