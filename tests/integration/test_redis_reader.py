"""Answers of a server, in whatever pieces they arrive."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import Connection

from longwatch.mailbox.redis.transport import RespReader, encode_command

ANSWERS: list[tuple[bytes, Any]] = [
    (b"+OK\r\n", b"OK"),
    (b":-7\r\n", -7),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"$0\r\n\r\n", b""),
    (b"$4\r\n\r\n\r\n\r\n", b"\r\n\r\n"),
    (b"*0\r\n", []),
    (b"*3\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n$0\r\n\r\n", [b"a", [1, None], b""]),
]


class Pieces:
    """A socket that gives what it has in pieces of these sizes, and then ends."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data = data
        self._sizes = sizes

    def recv(self, most: int) -> bytes:
        size = min(self._sizes.pop() if self._sizes else most, most)
        piece, self._data = self._data[:size], self._data[size:]
        return piece


def reader_of(sock: Any) -> RespReader:
    kind: Any = Connection
    return RespReader(SimpleNamespace(_sock=sock, _parser=kind()._parser))


@given(
    answers=st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 9), max_size=60),
)
def test_answers_are_read_one_by_one_however_they_are_cut(
    answers: list[tuple[bytes, Any]], sizes: list[int]
) -> None:
    reader = reader_of(Pieces(b"".join(data for data, _ in answers), sizes))
    assert [meant for _, meant in answers] == [reader.read() for _ in answers]
    assert not reader.has_buffered


@given(body=st.binary(max_size=400_000).map(lambda data: data * 7))
def test_an_answer_larger_than_what_is_asked_for_at_once_is_whole(body: bytes) -> None:
    reader = reader_of(Pieces(b"$%d\r\n%b\r\n:1\r\n" % (len(body), body), [3, 70_000, 5]))
    assert (body, 1) == (reader.read(), reader.read())


def test_a_refusal_is_an_error_of_its_class_and_is_read_past() -> None:
    reader = reader_of(Pieces(b"*2\r\n-NOSCRIPT none\r\n:1\r\n-MOVED 3 h:1\r\n:2\r\n", []))
    refused, one = reader.read()
    assert (redis.exceptions.NoScriptError, 1) == (type(refused), one)
    assert (redis.exceptions.MovedError, 2) == (type(reader.read()), reader.read())


@pytest.mark.parametrize("data", [b"", b"$5\r\nab", b"*2\r\n:1\r\n", b":1"])
def test_an_end_in_the_middle_is_a_lost_connection(data: bytes) -> None:
    with pytest.raises(redis.ConnectionError, match="closed by server"):
        reader_of(Pieces(data, [])).read()


def test_what_is_no_answer_is_told() -> None:
    with pytest.raises(redis.InvalidResponse):
        reader_of(Pieces(b"HTTP/1.1 400\r\n", [])).read()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_server_that_says_nothing_is_given_up_in_time(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ends[0].settimeout(0.01)
    with pytest.raises(redis.TimeoutError):
        reader_of(ends[0]).read()


def test_a_connection_that_breaks_is_lost(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    with pytest.raises(redis.ConnectionError):
        reader_of(ends[0]).read()


@given(
    words=st.lists(
        st.binary(max_size=30) | st.text(max_size=9) | st.integers() | st.floats(allow_nan=False),
        min_size=1,
    )
)
def test_a_command_is_an_answer_of_its_words(words: list[Any]) -> None:
    [piece] = encode_command(words)
    meant = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    assert meant == reader_of(Pieces(piece, [])).read()


def test_a_large_command_is_not_copied(ends: tuple[socket.socket, socket.socket]) -> None:
    body = b"x" * (1 << 20)
    pieces = encode_command((b"SET", "k", body))
    assert any(piece is body for piece in pieces)
    sending = threading.Thread(target=ends[1].sendall, args=(b"".join(pieces),))
    sending.start()
    assert [b"SET", b"k", body] == reader_of(ends[0]).read()
    sending.join()
