"""Sends of several threads share transactions: a store in memory that a test holds up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from functools import partial

import pytest

from longwatch.errors import InvalidParameterError, StoreBusyError, StoreError
from longwatch.mailbox.group_send import GroupSend, _Send
from longwatch.mailbox.records import NewMessage
from polling import eventually

BAD = b"bad"


def message(body: bytes) -> list[NewMessage]:
    return [NewMessage(id=body.decode(), body=body)]


class Store:
    """Records transactions. While `gate` is closed, writes wait; `error` fails all but lone ones
    of good messages.
    """

    def __init__(self) -> None:
        self.written: list[list[bytes]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = 0
        self.error: BaseException | None = None

    def write(self, messages: Sequence[NewMessage], _timeout: float) -> None:
        self.begun += 1
        assert self.gate.wait(30)
        bodies = [each.body for each in messages]
        if self.error is not None and (len(bodies) > 1 or BAD in bodies):
            raise self.error
        self.written.append(bodies)


class Sender(threading.Thread):
    """A thread that sends one message and keeps the error."""

    def __init__(self, group: GroupSend, body: bytes) -> None:
        super().__init__(daemon=True)
        self.group = group
        self.body = body
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.group.send(message(self.body))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error


class Rig:
    """A store, the group of its senders, and threads that send."""

    def __init__(self, *, max_leaders: int = 1, timeout: float = 30.0) -> None:
        self.store = Store()
        self.group = GroupSend(self.store.write, max_leaders=max_leaders, timeout=timeout)

    def start(self, body: bytes, *, until: Callable[[], bool]) -> Sender:
        sender = Sender(self.group, body)
        sender.start()
        assert eventually(until)
        return sender

    @contextmanager
    def busy(self) -> Iterator[Sender]:
        """A send is being written meanwhile. Its end is awaited."""
        self.store.gate.clear()
        begun = self.store.begun
        leader = self.start(b"first", until=lambda: self.store.begun > begun)
        try:
            yield leader
        finally:
            self.store.gate.set()
            leader.join()

    def queue(self, *bodies: bytes) -> list[Sender]:
        """Senders that wait, in this order."""
        waiting = self.group._waiting
        counts = range(len(waiting) + 1, len(waiting) + len(bodies) + 1)
        return [
            self.start(body, until=partial(_is_long, waiting, count))
            for body, count in zip(bodies, counts, strict=True)
        ]


def _is_long(waiting: Sized, count: int) -> bool:
    return len(waiting) == count


def join(senders: Sequence[Sender]) -> list[BaseException | None]:
    for sender in senders:
        sender.join()
    return [sender.error for sender in senders]


def test_lone_sends_are_written_at_once_and_each_by_itself() -> None:
    rig = Rig()
    for body in (b"a", b"b"):
        rig.group.send(message(body))
    assert [[b"a"], [b"b"]] == rig.store.written


def test_sends_that_come_during_a_write_share_the_next_one_in_their_order() -> None:
    rig = Rig()
    with rig.busy():
        senders = rig.queue(b"a", b"b", b"c")
    assert [None] * 3 == join(senders)
    assert [[b"first"], [b"a", b"b", b"c"]] == rig.store.written
    rig.group.send(message(b"later"))
    assert [b"later"] == rig.store.written[-1]


def test_a_second_leader_does_not_wait_for_the_first() -> None:
    rig = Rig(max_leaders=2)
    with rig.busy():
        second = rig.start(b"second", until=lambda: rig.store.begun == 2)
        third = rig.queue(b"third")
    join([second, *third])
    assert 3 == len(rig.store.written)


def test_an_error_of_the_store_reaches_every_caller_of_the_transaction() -> None:
    rig = Rig()
    with rig.busy():
        senders = rig.queue(b"a", b"b")
        rig.store.error = StoreBusyError("locked")
    assert [rig.store.error] * 2 == join(senders)
    assert [[b"first"]] == rig.store.written


def test_an_invalid_message_fails_alone() -> None:
    rig = Rig()
    with rig.busy():
        senders = rig.queue(b"a", BAD, b"b")
        rig.store.error = InvalidParameterError("zero bytes")
    assert [None, rig.store.error, None] == join(senders)
    assert [[b"a"], [b"b"], [b"first"]] == sorted(rig.store.written)


def test_an_interrupted_leader_leaves_the_others_an_unknown_outcome_and_a_group_that_works() -> (
    None
):
    rig = Rig()
    with rig.busy():
        senders = rig.queue(b"a", b"b")
        rig.store.error = KeyboardInterrupt()
    leader, other = join(senders)
    assert leader is rig.store.error
    assert isinstance(other, StoreError)
    assert "unknown" in str(other)
    rig.group.send(message(b"later"))
    assert [b"later"] == rig.store.written[-1]


def test_a_send_that_waits_too_long_is_not_written() -> None:
    rig = Rig()
    with rig.busy():
        rig.group._timeout = 0.0
        with pytest.raises(StoreBusyError, match="nothing was written"):
            rig.group.send(message(b"late"))
    rig.group.send(message(b"next"))
    assert [[b"first"], [b"next"]] == rig.store.written


def test_a_send_whose_leader_takes_too_long_has_an_unknown_outcome() -> None:
    taken = _Send(message(b"a"), timeout=0.0)
    with pytest.raises(StoreError, match="unknown"):
        Rig().group._await_turn(taken)


def test_a_lead_that_an_interrupt_skipped_past_ends_with_its_frame() -> None:
    rig = Rig(timeout=0.0)
    skipped = _Send(message(b"skipped"), timeout=0.0)
    rig.group._leaders.add(skipped)
    with pytest.raises(StoreBusyError):
        rig.group.send(message(b"a"))
    del skipped
    rig.group.send(message(b"b"))
    assert [[b"b"]] == rig.store.written


def test_a_forked_child_starts_anew() -> None:
    rig = Rig(timeout=0.0)
    with rig.busy():
        rig.group._pid = -1
        child = rig.start(b"child", until=lambda: rig.store.begun == 2)
    assert [None] == join([child])
