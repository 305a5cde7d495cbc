"""The child's side of the channel between a worker and the child that computes a node.

It has the connection, the listener for cancellation, and the context of the function. It imports as
little as `child.py`, because every attempt pays for it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from longwatch.flow.isolated.frames import BEAT, CANCEL, Frame, FrameDecoder, encode_frame

if TYPE_CHECKING:
    from logging import Logger, LoggerAdapter

    from longwatch.core.cancel import CancelToken
    from longwatch.core.deadline import Deadline

_NO_LIMIT = 1 << 40
_CHUNK = 1 << 18
_THREAD_STACK_BYTES = 1 << 18
"""Bytes of the listener's stack, which counts against the memory limit of the child."""
_MIN_BEAT_INTERVAL = 0.05
_MAX_PROGRESS_BYTES = 4096


class SigtermExit(SystemExit):
    """SIGTERM arrived while a function ran that takes no context."""


class ChildFrameChannel:
    """The connection to the worker. `send` is thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._decoder = FrameDecoder(max_bytes=_NO_LIMIT)
        self._received: list[Frame] = []
        self._send_lock = threading.Lock()
        self._pid = os.getpid()

    def next_frame(self) -> Frame | None:
        """Read the next frame; None when the worker has closed the connection. Blocks."""
        while not self._received:
            chunk = os.read(self.descriptor, _CHUNK)
            if not chunk:
                return None
            self._received += self._decoder.feed(chunk)
        return self._received.pop(0)

    def expect(self, kind: bytes) -> bytes:
        """Read the payload of the next frame, which has to be of this kind. Blocks."""
        frame = self.next_frame()
        if frame is None:
            sys.exit("the worker is gone")
        assert kind == frame[0]
        return frame[1]

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        with self._send_lock:
            self._write(encode_frame(kind, payload))

    def send_if_free(self, kind: bytes, payload: bytes) -> None:
        """Send a frame, unless another call is sending. A signal handler may have interrupted that
        call in this very thread.
        """
        if self._send_lock.acquire(blocking=False):
            try:
                self._write(encode_frame(kind, payload))
            finally:
                self._send_lock.release()

    def send_reply(self, kind: bytes, payload: bytes) -> None:
        """Send the reply. A forked copy of this process exits instead: user code let it return."""
        if os.getpid() != self._pid:
            os._exit(0)
        self.send(kind, payload)

    def _write(self, data: bytes) -> None:
        remaining = memoryview(data)
        with suppress(
            BrokenPipeError, ConnectionResetError
        ):  # the worker is gone, and the guardian is about to kill this process
            while remaining:
                remaining = remaining[os.write(self.descriptor, remaining) :]


class ChildContext:
    """The attempt as a function in a child sees it; like `FlowContext`. It sends beats to the
    worker.
    """

    lease_lost = False
    """Always false: only the worker knows, and it ends this process."""

    def __init__(
        self,
        channel: ChildFrameChannel,
        facts: dict[str, Any],
        deadline: Deadline,
        cancel: CancelToken,
    ) -> None:
        self.execution: str = facts["execution"]
        self.node: str = facts["node"]
        self.attempt: int = facts["attempt"]
        self.fencing_token: int = facts["fencing_token"]
        self.trace_headers: dict[str, str] = facts["trace"]
        self.deadline = deadline
        self.cancel = cancel
        self._channel = channel
        self._sent_at = float("-inf")

    @property
    def cancelled(self) -> bool:
        return self.cancel.cancelled

    @property
    def logger(self) -> LoggerAdapter[Logger]:
        """A logger whose records have execution, node and attempt."""
        import logging  # noqa: PLC0415 - most functions do not log

        extra = {"execution": self.execution, "node": self.node, "attempt": self.attempt}
        return logging.LoggerAdapter(logging.getLogger("longwatch.flow"), extra)

    def beat(self, progress: object = None) -> None:
        """Report that the work makes progress; `progress` says how far it is. At most twenty beats
        a second are sent.
        """
        now = self.deadline.clock.monotonic()
        if now - self._sent_at >= _MIN_BEAT_INTERVAL:
            self._sent_at = now
            self._channel.send_if_free(BEAT, _encode_progress(progress))


class CancelListener:
    """Cancels the token on SIGTERM or a message of the worker, in a thread of its own: a signal
    handler may take no locks, and cancelling takes some.
    """

    def __init__(self, channel: ChildFrameChannel) -> None:
        self.may_interrupt = True
        self._channel = channel
        self._pid = os.getpid()
        self._signal_reader, self._signal_writer = os.pipe()
        os.set_blocking(self._signal_writer, False)
        signal.signal(signal.SIGTERM, self._on_signal)

    def start(self, token: CancelToken) -> None:
        """Start the thread: from here on SIGTERM cancels the token and interrupts nothing. It is
        not started for a function without a context, which may want to fork.
        """
        if self.may_interrupt:
            self.may_interrupt = False
            before = threading.stack_size(_THREAD_STACK_BYTES)
            threading.Thread(
                target=self._listen, args=(token,), name="longwatch-listener", daemon=True
            ).start()
            threading.stack_size(before)

    def _on_signal(self, *_: object) -> None:
        if (
            os.getpid() != self._pid
        ):  # a copy that user code has forked: behave as if there were no handler
            die_of_sigterm()
        with suppress(OSError):
            os.write(self._signal_writer, b"!")
        if self.may_interrupt:
            raise SigtermExit(128 + signal.SIGTERM)

    def _listen(self, token: CancelToken) -> None:
        poll = select.poll()
        poll.register(self._channel.descriptor, select.POLLIN)
        poll.register(self._signal_reader, select.POLLIN)
        while not token.cancelled:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._channel.descriptor in ready and not self._read_frame(token):
                poll.unregister(self._channel.descriptor)
            if self._signal_reader in ready:
                token.cancel(signal.SIGTERM.name)

    def _read_frame(self, token: CancelToken) -> bool:
        """Handle the next frame of the worker; returns whether more may follow."""
        frame = self._channel.next_frame()
        if frame is not None and frame[0] == CANCEL:
            token.cancel(frame[1].decode())
        return frame is not None


def die_of_sigterm() -> NoReturn:
    """Die of SIGTERM, as a program without a handler does."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)


def _encode_progress(progress: object) -> bytes:
    from msgspec import json  # noqa: PLC0415

    with suppress(Exception):
        if len(encoded := json.encode(progress)) <= _MAX_PROGRESS_BYTES:
            return encoded
    return json.encode(ascii(progress)[:1000])
