"""Group send: threads that send to one mailbox at the same time share transactions.

A single send costs a transaction: a commit on disk, and on a server a round trip and several
statements. Threads that send at once would each pay for it. Here one or two threads *lead*: each
writes its own messages at once, without waiting for company. Sends that come meanwhile queue. A
leader that is done makes a batch of all sends that wait. The first of them leads: its thread writes
the batch in one transaction. So a lone sender waits for no other, and the more threads send, the
more messages share a transaction. Invariant: while a send waits, another one leads.

A store with a single writer has one leader, because transactions wait for each other anyway. A
server has two, so that it works on one transaction while the other is prepared or sent.

Each caller returns when its messages are on disk, or raises. A StoreError concerns the whole
transaction, so each caller in it gets that error. After any other error nothing was written, and
one caller's message may be the reason: each caller then writes alone.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from weakref import WeakSet

from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.errors import StoreBusyError, StoreError
from longwatch.mailbox.records import NewMessage
from longwatch.store.database import CALL_TIMEOUT

MAX_BATCH_SENDS = 512
"""Sends in one transaction: enough to share a commit, few enough that no caller waits long."""

Write = Callable[[Sequence[NewMessage], float], object]
"""Writes messages in one transaction within some seconds."""


class _Send:
    """The messages of one caller. `turn` is released when the caller leads `batch`, has to write
    alone, or when its messages were written or failed.
    """

    __slots__ = ("__weakref__", "batch", "deadline", "error", "is_alone", "messages", "turn")

    def __init__(self, messages: Sequence[NewMessage], timeout: float) -> None:
        self.messages = messages
        self.deadline = Deadline.after(timeout, SystemClock())
        self.turn = threading.Lock()
        self.batch: list[_Send] = []
        self.error: BaseException | None = None
        self.is_alone = False
        self.turn.acquire()


class GroupSend:
    """Shares transactions among the sends of one mailbox in this process. Thread-safe. A forked
    child starts anew.
    """

    def __init__(self, write: Write, *, max_leaders: int, timeout: float = CALL_TIMEOUT) -> None:
        self._write = write
        self._max_leaders = max_leaders
        self._timeout = timeout
        self._begin()

    def send(self, messages: Sequence[NewMessage]) -> None:
        """Store the messages. Blocks until they are on disk. Do not call it inside a write."""
        if self._pid != os.getpid():
            self._begin()
        send = _Send(messages, self._timeout)
        with self._lock:
            if len(self._leaders) < self._max_leaders:
                self._leaders.add(send)
                send.batch = [send]
            else:
                self._waiting.append(send)
        if send.batch or self._await_turn(send):
            self._lead(send.batch)
        if send.is_alone:
            self._write(messages, _remaining([send]))
        elif send.error is not None:
            raise send.error

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._leaders: WeakSet[_Send] = (
            WeakSet()
        )  # weak: a lead that an interrupt skipped past ends with its caller's frame
        self._waiting: deque[_Send] = deque()

    def _await_turn(self, send: _Send) -> bool:
        """Wait until the messages are written, or until this thread is to lead: returns True."""
        try:
            in_time = send.turn.acquire(timeout=_remaining([send]))
        except BaseException:
            self._leave(send)
            raise
        if not in_time and self._withdraw(send):
            raise StoreBusyError(
                f"the store was busy for {self._timeout:.0f} s; nothing was written, try again"
            )
        if not in_time and not send.batch:
            raise StoreError(
                f"no reply from the store within {self._timeout:.0f} s; whether it was written is "
                f"unknown"
            )
        return bool(send.batch)

    def _withdraw(self, send: _Send) -> bool:
        """Take a send out of the queue. Returns False if a leader has taken it."""
        with self._lock:
            if send not in self._waiting:
                return False
            self._waiting.remove(send)
            return True

    def _leave(self, send: _Send) -> None:
        """Give up an interrupted send. If it was made the leader, the others wait on."""
        if not self._withdraw(send) and send.batch:
            with self._lock:
                self._waiting.extendleft(reversed(send.batch[1:]))
            self._hand_over(send)

    def _lead(self, batch: list[_Send]) -> None:
        """Write a batch, let the next leader begin, and wake the callers of the batch."""
        leader, *others = batch
        try:
            self._write([each for send in batch for each in send.messages], _remaining(batch))
        except StoreError as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - the callers get it
            leader.error = error
            for send in batch if others else ():
                send.is_alone = True
        except BaseException:
            _fail(others, StoreError("the write was interrupted; whether it was done is unknown"))
            raise
        finally:
            self._hand_over(leader)
            for send in others:
                send.turn.release()

    def _hand_over(self, leader: _Send) -> None:
        """End a lead. The first of the sends that wait leads them all."""
        with self._lock:
            self._leaders.discard(leader)
            size = min(len(self._waiting), MAX_BATCH_SENDS)
            batch = [self._waiting.popleft() for _ in range(size)]
            if not batch:
                return
            self._leaders.add(batch[0])
            batch[0].batch = batch
        batch[0].turn.release()


def _fail(sends: Sequence[_Send], error: StoreError) -> None:
    for send in sends:
        send.error = error


def _remaining(sends: Sequence[_Send]) -> float:
    """Return the seconds that are left for a batch: those of the caller that has waited longest."""
    return min(send.deadline.remaining() or 0.0 for send in sends)
