"""The parser of event streams: every rule, however the bytes are cut into chunks."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos_plan import ChaosPlan
from longwatch.sse import MAX_RETRY_MS, EventStreamParser, ServerSentEvent

E = ServerSentEvent

VECTORS = {
    "one event": (b"data: a\n\n", [E("a")]),
    "no space after the colon": (b"data:a\n\n", [E("a")]),
    "one space is dropped, not two": (b"data:  a\n\n", [E(" a")]),
    "a tab is kept": (b"data:\ta\n\n", [E("\ta")]),
    "lines are joined by LF": (b"data: a\ndata: b\n\n", [E("a\nb")]),
    "one final LF is removed": (b"data: a\ndata:\n\n", [E("a\n")]),
    "data alone is an event with empty data": (b"data\n\n", [E("")]),
    "data twice is one LF": (b"data\ndata\n\n", [E("\n")]),
    "CRLF": (b"data: a\r\n\r\n", [E("a")]),
    "CR": (b"data: a\r\r", [E("a")]),
    "mixed line ends": (b"data: a\rdata: b\r\ndata: c\n\r\n", [E("a\nb\nc")]),
    "CR LF LF": (b"data: a\r\n\n", [E("a")]),
    "LF CR": (b"data: a\n\rdata: b\n\n", [E("a"), E("b")]),
    "other separators are text": (
        "data: a\u2028b\x0bc\x0cd\x85e\n\n".encode(),
        [E("a\u2028b\x0bc\x0cd\x85e")],
    ),
    "a comment": (b": ping\ndata: a\n: pong\n\n", [E("a")]),
    "a comment alone is no event": (b":\n\n", []),
    "a colon in the value": (b"data: a:b: c\n\n", [E("a:b: c")]),
    "unknown and differently cased names": (b"DATA: x\nDa: y\nfoo: z\ndata : w\n\n", []),
    "a name with a leading space is unknown": (b" data: x\n\n", []),
    "the last event name counts": (b"event: a\nevent: b\ndata: x\n\n", [E("x", "b")]),
    "an empty event name is message": (b"event: a\nevent:\ndata: x\n\n", [E("x")]),
    "the event name is reset": (b"event: a\ndata: x\n\ndata: y\n\n", [E("x", "a"), E("y")]),
    "an event name without data is reset": (b"event: a\n\ndata: y\n\n", [E("y")]),
    "an id": (b"id: 1\ndata: x\n\ndata: y\n\n", [E("x", id="1"), E("y", id="1")]),
    "an id after the data": (b"data: x\nid: 1\n\n", [E("x", id="1")]),
    "an id without data": (b"id: 1\n\ndata: x\n\n", [E("x", id="1")]),
    "an empty id clears": (b"id: 1\ndata: x\n\nid\ndata: y\n\n", [E("x", id="1"), E("y")]),
    "an id with NUL is ignored": (
        b"id: 1\ndata: x\n\nid: 2\0\ndata: y\n\n",
        [E("x", id="1"), E("y", id="1")],
    ),
    "the end discards the unfinished block": (b"data: a\n\nid: 9\ndata: b\n", [E("a")]),
    "an unfinished line": (b"data: a\n\ndata: b", [E("a")]),
    "a byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [E("a")]),
    "only the first byte order mark": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    "a byte order mark later is text": (b"data: \xef\xbb\xbfa\n\n", [E("\ufeffa")]),
    "the beginning of a mark alone": (b"\xef\xbbdata: a\n\ndata: b\n\n", [E("b")]),
    "bad bytes": (b"data: a\xff\xc3\n\n", [E("a\ufffd\ufffd")]),
    "a character cut by a line end": (b"data: \xe2\x82\ndata: \xac\n\n", [E("\ufffd\n\ufffd")]),
    "NUL in data is kept": (b"data: a\0b\n\n", [E("a\0b")]),
    "empty lines": (b"\n\r\n\r\r\n\n", []),
    "nothing": (b"", []),
}


def whole(stream: bytes) -> Iterable[bytes]:
    yield stream


def bytewise(stream: bytes) -> Iterable[bytes]:
    return (bytes([byte]) for byte in stream)


def in_pairs(stream: bytes) -> Iterable[bytes]:
    return (stream[start : start + 2] for start in range(0, len(stream), 2))


def at_random(stream: bytes) -> Iterable[bytes]:
    cuts = sorted(random.Random(len(stream)).choices(range(len(stream) + 1), k=8))
    return (stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True))


Cut = Callable[[bytes], Iterable[bytes]]
every_cut = pytest.mark.parametrize("cut", [whole, bytewise, in_pairs, at_random])


def parse(chunks: Iterable[bytes], parser: EventStreamParser) -> list[ServerSentEvent]:
    return [event for chunk in chunks for event in parser.feed(chunk)]


@every_cut
@pytest.mark.parametrize("name", VECTORS)
def test_a_stream_has_the_same_events_however_it_is_cut(name: str, cut: Cut) -> None:
    stream, events = VECTORS[name]
    assert events == parse(cut(stream), EventStreamParser())


def test_a_cr_ends_its_line_at_once() -> None:
    """An event is not held back until the byte after its last CR arrives."""
    assert [E("a")] == EventStreamParser().feed(b"data: a\r\r")


@pytest.mark.parametrize(
    ("lines", "retry_ms"),
    [
        (b"retry: 1500\n", 1500),
        (b"retry:0\n", 0),
        (b"retry: 007\n", 7),
        (b"retry: 10\nretry: 20\n", 20),
        (b"retry: 10\nretry: -1\nretry: 1.5\nretry: 1s\nretry:  2\nretry\n", 10),
        ("retry: ١٢\n".encode(), None),
        (b"retry: " + b"9" * 5000 + b"\n", MAX_RETRY_MS),
    ],
)
@every_cut
def test_retry_takes_ascii_digits_only(lines: bytes, retry_ms: int | None, cut: Cut) -> None:
    """A value that is no whole number changes nothing, and one without end is bounded."""
    parser = EventStreamParser()
    assert [] == parse(cut(lines), parser)
    assert retry_ms == parser.retry_ms


def test_the_last_event_id_is_known_without_an_event_and_kept_from_before() -> None:
    parser = EventStreamParser(last_event_id="7")
    assert [E("a", id="7")] == parser.feed(b"data: a\n\n")
    parser.feed(b"id: 8\n")
    assert "7" == parser.last_event_id
    parser.feed(b"\n")
    assert "8" == parser.last_event_id


@every_cut
@pytest.mark.parametrize(
    ("stream", "events", "dropped"),
    [
        pytest.param(b"data: " + b"x" * 11 + b"\n\ndata: ok\n\n", [E("ok")], 1, id="a long line"),
        pytest.param(b": " + b"x" * 99 + b"\n\ndata: ok\n\n", [E("ok")], 1, id="a long comment"),
        pytest.param(b"data: " + b"x" * 10 + b"\n\n", [E("x" * 10)], 0, id="the longest line"),
        pytest.param(
            b"data: 0123456789\n" * 3 + b"\ndata: ok\n\n", [E("ok")], 1, id="too much data"
        ),
        pytest.param(b"data:\n" * 21 + b"\n", [E("\n" * 20)], 0, id="the most data"),
        pytest.param(
            b"id: 5\ndata: " + b"x" * 99 + b"\nid: 6\ndata: y\n\ndata: ok\n\n",
            [E("ok")],
            1,
            id="the rest of its block and its ids",
        ),
        pytest.param((b"x" * 99 + b"\r\n\r\n") * 3, [], 3, id="one after another"),
        pytest.param(b"x" * 99 + b"\r" + b"x" * 99 + b"\r\r\ndata: ok\n\n", [E("ok")], 1, id="CR"),
    ],
)
def test_a_block_that_is_too_large_is_dropped_and_counted(
    stream: bytes, events: list[ServerSentEvent], dropped: int, cut: Cut
) -> None:
    """The parser goes on after the next empty line."""
    parser = EventStreamParser(max_line=16, max_event=20)
    assert events == parse(cut(stream), parser)
    assert (dropped, "") == (parser.dropped, parser.last_event_id)


def test_memory_is_bounded() -> None:
    """A server that sends a line, or data, without end costs no more than the bounds."""
    parser = EventStreamParser(max_line=10_000, max_event=100_000)
    tracemalloc.start()
    try:
        for _ in range(2_000):
            parser.feed(b"x" * 10_000)
            parser.feed(b"\ndata: " + b"y" * 9_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def in_packets(stream: bytes) -> Iterable[bytes]:
    return (stream[start : start + 65_536] for start in range(0, len(stream), 65_536))


LARGE = 10_000_000


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("x" * LARGE, id="one line"),
        pytest.param("\n".join(["y" * 999] * (LARGE // 1000)), id="many lines"),
        pytest.param("\n" * (LARGE // 20), id="empty lines"),
        pytest.param("é€" * (LARGE // 5), id="not ASCII"),
    ],
)
@pytest.mark.parametrize("cut", [whole, in_packets])
def test_a_large_event_comes_through_whole(data: str, cut: Cut) -> None:
    stream = b"id: 1\ndata: " + data.encode().replace(b"\n", b"\ndata:") + b"\n\n"
    parser = EventStreamParser(max_line=LARGE + 10, max_event=LARGE)
    [event] = parse(cut(stream), parser)
    assert (data, "1", 0) == (event.data, event.id, parser.dropped)


def test_a_large_event_costs_a_few_times_its_size() -> None:
    """At most 40 MB beyond the chunk for an event of 10 MB, the event itself included."""
    parser, chunk = EventStreamParser(max_line=2 * LARGE, max_event=LARGE), b"x" * 65_536
    tracemalloc.start()
    try:
        parser.feed(b"data: ")
        for _ in range(LARGE // len(chunk)):
            assert [] == parser.feed(chunk)
        [event] = parser.feed(b"\n\n")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(event.data) == LARGE // len(chunk) * len(chunk)
    assert peak < 40_000_000


@pytest.mark.parametrize(("max_line", "max_event"), [(0, 1), (1, 0)])
def test_bounds_are_at_least_one(max_line: int, max_event: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        EventStreamParser(max_line=max_line, max_event=max_event)


PIECES = [
    *(b"data", b"event", b"id", b"retry", b":", b" ", b"\r", b"\n", b"\r\n", b"\0", b"\t"),
    *(b"a", b"12", b"\xef\xbb\xbf", b"\xef", b"\xe2\x82\xac", b"\xe2\x82", b"\xff", b"\n\n"),
]

LINES = [
    *(b"id: 1\n", b"id:2\n", b"id:  3\n", b"id:\n", b"id: \n", b"id\n", b"id: 4\0\n", b"\n"),
    *(b"event: e\n", b"event:\n", b"event: \n", b"event:  \xff\n", b"retry: 5\n", b": c\n\n"),
    *(b"data: a\n", b"data: a\n\n", b"data:b\n\n", b"data: \n\n", b"data\n\n", b"data: \xe2\n\n"),
    *(b"data: \0\n\n", b"data:  c\n\n", "data: ä€\u2028\n\n".encode(), b"data: a\r\n\r\n"),
]
"""Most streams of these are blocks of the usual shape, with others among them."""


def read_naively(stream: bytes) -> tuple[list[ServerSentEvent], str, int | None]:
    """The whole stream at once, by the text of the standard."""
    events, data, name, last_id, new_id, retry = [], "", "", "", None, None
    text = stream.removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
    *lines, _ = re.split(r"\r\n|\r|\n", text)
    for line in lines:
        if not line:
            last_id = last_id if new_id is None else new_id
            if data:
                events.append(E(data.removesuffix("\n"), name or "message", last_id))
            data, name, new_id = "", "", None
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data += value + "\n"
        elif field == "event":
            name = value
        elif field == "id" and "\0" not in value:
            new_id = value
        elif field == "retry" and re.fullmatch("[0-9]+", value):
            retry = int(value)
    return events, last_id, retry


@given(
    st.lists(st.sampled_from(PIECES + LINES), max_size=60), st.lists(st.integers(0, 90), max_size=8)
)
def test_any_stream_in_any_chunks_is_read_as_the_standard_says(
    pieces: list[bytes], cuts: list[int]
) -> None:
    stream, parser = b"".join(pieces), EventStreamParser()
    places = sorted(min(cut, len(stream)) for cut in cuts)
    chunks = (stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True))
    events = parse(chunks, parser)
    assert read_naively(stream) == (events, parser.last_event_id, parser.retry_ms)


def cut_anywhere(stream: bytes, chance: random.Random) -> Iterable[bytes]:
    places = sorted(chance.randint(0, len(stream)) for _ in range(chance.randrange(6)))
    return (stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True))


@pytest.mark.chaos
def test_random_streams_are_read_as_the_standard_says_and_alike_in_any_chunks(
    chaos: ChaosPlan,
) -> None:
    """A million of them in a minute's worth of chaos. With small bounds there is no reference, but
    the chunks make no difference there either.
    """
    chance = chaos.random()
    for _ in range(int(chaos.seconds * 1_000_000 / 60)):
        pieces = chance.choice((PIECES, LINES, PIECES + LINES))
        stream = b"".join(chance.choices(pieces, k=chance.randrange(40)))
        if chance.random() < 0.1:
            stream = chance.randbytes(len(stream)) + stream
        parser = EventStreamParser()
        events = parse(cut_anywhere(stream, chance), parser)
        assert read_naively(stream) == (events, parser.last_event_id, parser.retry_ms), stream
        bounds = max_line, max_event = chance.randrange(1, 30), chance.randrange(1, 12)
        one, other = (EventStreamParser(max_line=max_line, max_event=max_event) for _ in "12")
        assert one.feed(stream) == parse(cut_anywhere(stream, chance), other), (stream, bounds)
        assert (one.last_event_id, one.retry_ms, one.dropped) == (
            other.last_event_id,
            other.retry_ms,
            other.dropped,
        ), (stream, bounds)
