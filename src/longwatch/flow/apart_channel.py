"""The child's side of what is said between a worker and the child that computes a node: its line,
its ears, and the context that its function is given. As lean as `child.py`, and for the same
reason.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from longwatch.flow.apart_frames import BEAT, CANCEL, Frame, Frames, framed

if TYPE_CHECKING:
    from logging import Logger, LoggerAdapter

    from longwatch.core.cancel import CancelToken
    from longwatch.core.deadline import Deadline

_ANY_SIZE = 1 << 40
_CHUNK = 1 << 18
_SMALL_STACK = 1 << 18
"""Bytes: that of a thread counts as memory of a child whose memory is limited."""
_BEATS_APART = 0.05
_LONGEST_PROGRESS = 4096


class ToldToStop(SystemExit):
    """SIGTERM came, to a function that cannot be told otherwise."""


class Channel:
    """The line to the worker. `send` may be called from any thread."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._frames = Frames(largest=_ANY_SIZE)
        self._come: list[Frame] = []
        self._sending = threading.Lock()
        self._pid = os.getpid()

    def next_frame(self) -> Frame | None:
        """The next one; None when the worker is gone."""
        while not self._come:
            chunk = os.read(self.descriptor, _CHUNK)
            if not chunk:
                return None
            self._come += self._frames.feed(chunk)
        return self._come.pop(0)

    def awaited(self, kind: bytes) -> bytes:
        """The payload of the next frame, which is of this kind."""
        frame = self.next_frame()
        if frame is None:
            sys.exit("the worker is gone")
        assert kind == frame[0]
        return frame[1]

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        with self._sending:
            self._write(framed(kind, payload))

    def send_if_free(self, kind: bytes, payload: bytes) -> None:
        """Unless somebody is sending just now: be it the code that this was called in the middle
        of.
        """
        if self._sending.acquire(blocking=False):
            try:
                self._write(framed(kind, payload))
            finally:
                self._sending.release()

    def answer(self, kind: bytes, payload: bytes) -> None:
        """The last word; not from a copy of this process that user code has forked and let
        return.
        """
        if os.getpid() != self._pid:
            os._exit(0)
        self.send(kind, payload)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        with suppress(
            BrokenPipeError, ConnectionResetError
        ):  # nobody is left to hear it, and we are about to be killed
            while left:
                left = left[os.write(self.descriptor, left) :]


class ChildContext:
    """What a function in a child is told about the attempt it is: as `FlowContext`, whose worker
    hears its beats.
    """

    lease_lost = False
    """Only the worker knows; it has this process ended."""

    def __init__(
        self, channel: Channel, facts: dict[str, Any], deadline: Deadline, cancel: CancelToken
    ) -> None:
        self.execution: str = facts["execution"]
        self.node: str = facts["node"]
        self.attempt: int = facts["attempt"]
        self.fencing_token: int = facts["fencing_token"]
        self.deadline = deadline
        self.cancel = cancel
        self._channel = channel
        self._said_at = float("-inf")

    @property
    def cancelled(self) -> bool:
        return self.cancel.cancelled

    @property
    def logger(self) -> LoggerAdapter[Logger]:
        """A logger whose records carry the ids."""
        import logging  # noqa: PLC0415 - not everybody logs

        extra = {"execution": self.execution, "node": self.node, "attempt": self.attempt}
        return logging.LoggerAdapter(logging.getLogger("longwatch.flow"), extra)

    def beat(self, progress: object = None) -> None:
        """Say that the work moves, and with `progress` how far it is; twenty times a second at
        the most, the rest is not sent.
        """
        now = self.deadline.clock.monotonic()
        if now - self._said_at >= _BEATS_APART:
            self._said_at = now
            self._channel.send_if_free(BEAT, _shown(progress))


class Listener:
    """Hears the worker and SIGTERM, in a thread of its own: a handler of signals may take no
    lock, and cancelling takes some.
    """

    def __init__(self, channel: Channel) -> None:
        self.may_interrupt = True
        self._channel = channel
        self._pid = os.getpid()
        self._heard, self._signalled = os.pipe()
        os.set_blocking(self._signalled, False)
        signal.signal(signal.SIGTERM, self._on_signal)

    def tell(self, token: CancelToken) -> None:
        """From here on that is cancelled, and nothing is interrupted. A function that cannot be
        told has no such thread: it may want to fork.
        """
        if self.may_interrupt:
            self.may_interrupt = False
            before = threading.stack_size(_SMALL_STACK)
            threading.Thread(
                target=self._listen, args=(token,), name="longwatch-listener", daemon=True
            ).start()
            threading.stack_size(before)

    def _on_signal(self, *_: object) -> None:
        if (
            os.getpid() != self._pid
        ):  # a copy that user code has forked: as if nobody had ever listened there
            die_of_sigterm()
        with suppress(OSError):
            os.write(self._signalled, b"!")
        if self.may_interrupt:
            raise ToldToStop(128 + signal.SIGTERM)

    def _listen(self, token: CancelToken) -> None:
        poll = select.poll()
        poll.register(self._channel.descriptor, select.POLLIN)
        poll.register(self._heard, select.POLLIN)
        while not token.cancelled:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._channel.descriptor in ready and not self._hear(token):
                poll.unregister(self._channel.descriptor)
            if self._heard in ready:
                token.cancel(signal.SIGTERM.name)

    def _hear(self, token: CancelToken) -> bool:
        """What the worker says; whether it will say more."""
        frame = self._channel.next_frame()
        if frame is not None and frame[0] == CANCEL:
            token.cancel(frame[1].decode())
        return frame is not None


def die_of_sigterm() -> NoReturn:
    """As a program does that has nothing to say to it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)


def _shown(progress: object) -> bytes:
    from msgspec import json  # noqa: PLC0415

    with suppress(Exception):
        if len(said := json.encode(progress)) <= _LONGEST_PROGRESS:
            return said
    return json.encode(ascii(progress)[:1000])
