from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.host.guardian import wire
from longwatch.host.guardian.wire import ControlMessage, FrameReceiver, FrameSender

Pair = tuple[socket.socket, socket.socket]

any_text = st.text(st.characters(exclude_categories=()))
"""Every text Python can hold, lone surrogates included: that is how bytes that are no UTF-8
stand in argv and environment.
"""

messages = st.dictionaries(
    any_text, any_text | st.integers() | st.booleans() | st.none() | st.lists(any_text), max_size=5
)


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def exchange(*sent: ControlMessage) -> list[ControlMessage]:
    """What comes out at the other end."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    outbox, inbox = FrameSender(), FrameReceiver()
    with ours, theirs:
        for message in sent:
            outbox.put(message)
        assert outbox.flush(ours)
        inbox.receive(theirs)
        return [message for message, _ in inbox.take()]


def pipe_with(text: bytes) -> int:
    """The read end of a pipe that holds this text."""
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    return reader


def read_and_close(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def drain(
    outbox: FrameSender, inbox: FrameReceiver, pair: Pair
) -> list[tuple[ControlMessage, tuple[int, ...]]]:
    """Send and receive in turns until everything has arrived."""
    found = []
    done = False
    while not done:
        done = outbox.flush(pair[0])
        while _waiting(pair[1]):
            inbox.receive(pair[1])
            found += inbox.take()
    return found


def _waiting(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


@given(sent=st.lists(messages, max_size=4))
def test_messages_arrive_as_they_were_sent_and_in_order(sent: list[ControlMessage]) -> None:
    assert sent == exchange(*sent)


@given(raw=st.binary(max_size=50))
def test_bytes_that_are_no_text_survive_the_way(raw: bytes) -> None:
    assert [{"argv": [os.fsdecode(raw)]}] == exchange({"argv": [os.fsdecode(raw)]})


def test_a_message_may_be_torn_at_every_byte(pair: Pair) -> None:
    outbox, inbox = FrameSender(), FrameReceiver()
    outbox.put({"op": "spawn", "id": 1})
    outbox.put({"op": "kill", "id": 2})
    assert outbox.flush(pair[0])
    data = pair[1].recv(1000)
    arrived = []
    for number in range(len(data)):
        pair[0].send(data[number : number + 1])
        assert inbox.receive(pair[1])
        arrived += [(message["id"], number) for message, _ in inbox.take()]
    half = len(data) - len(b'{"op": "kill", "id": 2}') - 5
    assert [(1, half - 1), (2, len(data) - 1)] == arrived


def test_descriptors_arrive_with_the_message_they_were_sent_with(pair: Pair) -> None:
    outbox, inbox = FrameSender(), FrameReceiver()
    outbox.put({"id": 1}, (pipe_with(b"one"), pipe_with(b"two")))
    outbox.put({"id": 2})
    outbox.put({"id": 3}, (pipe_with(b"three"),))
    arrived = drain(outbox, inbox, pair)
    assert [(1, [b"one", b"two"]), (2, []), (3, [b"three"])] == [
        (message["id"], [read_and_close(descriptor) for descriptor in descriptors])
        for message, descriptors in arrived
    ]


def test_descriptors_of_a_message_larger_than_the_socket_takes_arrive_once(pair: Pair) -> None:
    outbox, inbox = FrameSender(), FrameReceiver()
    text = "x" * 3_000_000
    outbox.put({"id": 1, "text": text}, (pipe_with(b"one"),))
    outbox.put({"id": 2}, (pipe_with(b"two"),))
    arrived = drain(outbox, inbox, pair)
    assert [text, None] == [message.get("text") for message, _ in arrived]
    assert [[b"one"], [b"two"]] == [
        [read_and_close(descriptor) for descriptor in got] for _, got in arrived
    ]


def test_descriptors_that_arrive_are_not_passed_on_to_programs(pair: Pair) -> None:
    outbox, inbox = FrameSender(), FrameReceiver()
    outbox.put({"id": 1}, (pipe_with(b"one"),))
    [(_, [descriptor])] = drain(outbox, inbox, pair)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_descriptors_are_closed_here_once_they_were_sent(pair: Pair) -> None:
    outbox = FrameSender()
    reader = pipe_with(b"mine")
    outbox.put({"id": 1}, (reader,))
    os.fstat(reader)
    assert outbox.flush(pair[0])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader)


def test_what_was_not_sent_is_forgotten_with_its_descriptors(pair: Pair) -> None:
    outbox = FrameSender()
    reader = pipe_with(b"mine")
    outbox.put({"id": 1}, (reader,))
    assert outbox
    outbox.discard()
    assert not outbox
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reader)
    assert outbox.flush(pair[0])
    with pytest.raises(BlockingIOError):
        pair[1].recv(1)


def test_a_full_socket_takes_the_rest_later(pair: Pair) -> None:
    outbox = FrameSender()
    outbox.put({"text": "x" * 3_000_000})
    assert not outbox.flush(pair[0])
    assert outbox


def test_a_message_that_is_too_large_is_refused_and_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 20)
    outbox = FrameSender()
    outbox.put({"text": "x" * 8})
    with pytest.raises(ValueError, match="a message of 21 bytes is larger than 20"):
        outbox.put({"text": "x" * 9})
    outbox.discard()
    assert not outbox


def test_a_peer_that_has_closed_is_told_by_receive(pair: Pair) -> None:
    inbox = FrameReceiver()
    assert inbox.receive(pair[1])
    pair[0].close()
    assert not inbox.receive(pair[1])


def test_what_a_peer_said_before_it_closed_is_still_heard(pair: Pair) -> None:
    outbox, inbox = FrameSender(), FrameReceiver()
    outbox.put({"id": 7})
    outbox.flush(pair[0])
    pair[0].close()
    assert inbox.receive(pair[1])
    assert [({"id": 7}, ())] == inbox.take()
    assert not inbox.receive(pair[1])


def test_a_peer_that_closed_with_something_unread_is_gone_too(pair: Pair) -> None:
    pair[1].send(b"unread")
    pair[0].close()
    assert not FrameReceiver().receive(pair[1])


def test_sending_to_a_peer_that_has_closed_raises_and_does_not_kill_us_with_sigpipe(
    pair: Pair,
) -> None:
    outbox = FrameSender()
    outbox.put({"id": 1})
    pair[1].close()
    with pytest.raises(BrokenPipeError):
        outbox.flush(pair[0])
    outbox.discard()


def test_a_frame_is_its_length_the_number_of_descriptors_and_json(pair: Pair) -> None:
    outbox = FrameSender()
    outbox.put({"id": 1})
    outbox.flush(pair[0])
    assert struct.pack("!IB", 9, 0) + b'{"id": 1}' == pair[1].recv(100)
