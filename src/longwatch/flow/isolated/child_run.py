"""One child that computes one node, from its spawning until nothing of it is left. Everything
here is on the loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

import msgspec

from longwatch.core.clock import Clock
from longwatch.flow.context import FlowContext
from longwatch.flow.invocation import MAX_VALUE_BYTES
from longwatch.flow.isolated.child import STACKS_SIGNAL
from longwatch.flow.isolated.frames import (
    BEAT,
    CANCEL,
    READY,
    REPLIES,
    Frame,
    FrameDecoder,
    encode_frame,
)
from longwatch.host.loop import wait_until_done
from longwatch.host.process import (
    KILL_NOW,
    Child,
    ProcessEnd,
    ProcessSpec,
    ResourceLimits,
    StopPolicy,
)

TAIL_BYTES = 8192
"""Bytes that are kept of what a child writes, of each of its two streams."""
_CHUNK = 1 << 18
_DUMP_POLL_INTERVAL = 0.02
"""Seconds in which a dump of stacks goes on, unless it is over; real ones, as it is another
process that writes it.
"""


class ChildSpec(NamedTuple):
    """What a child is to do: its command, what it is told first, and what it may use."""

    argv: list[str]
    env: dict[str, str]
    request: bytes
    max_memory: int | None


class ChildSpawner(Protocol):
    """The one thing that is wanted of a guardian."""

    async def spawn(self, spec: ProcessSpec) -> Child: ...


class OutputTail:
    """A sink that keeps the end of what is written, however much that is."""

    congested = False

    def __init__(self) -> None:
        self.data = b""
        self.received = asyncio.Event()

    def write(self, data: bytes) -> bool:
        self.received.set()
        self.data = (self.data + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        """Nothing ever holds it up."""


class WorkerFrameChannel:
    """The worker's end of the channel to a child. What goes wrong with it is no news: the end of
    the child tells.
    """

    def __init__(self, connection: socket.socket, on_frame: Callable[[Frame], None]) -> None:
        self._connection = connection
        self._on_frame = on_frame
        self._decoder = FrameDecoder(max_bytes=MAX_VALUE_BYTES)
        self._unsent = memoryview(b"")
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        self._loop.add_reader(connection, self._receive)

    def send(self, data: bytes) -> None:
        """Have it sent, unless there is still something unsent: then it would not be understood."""
        if not self._unsent:
            self._unsent = memoryview(data)
            self._flush()

    def close(self) -> None:
        """Take what is there, and close it."""
        while self._receive():
            pass
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        self._connection.close()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            self._loop.add_writer(self._connection, self._flush)
            return
        except OSError:
            self._unsent = memoryview(b"")
        self._loop.remove_writer(self._connection)

    def _receive(self) -> bool:
        """Read once; whether there may be more."""
        try:
            chunk = self._connection.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self._loop.remove_reader(self._connection)
            return False
        try:
            for frame in self._decoder.feed(chunk):
                self._on_frame(frame)
        except (
            ValueError,
            msgspec.MsgspecError,
        ):  # somebody else has found the channel: what it says is worth nothing any more
            self._connection.shutdown(socket.SHUT_RDWR)
        return True


class ChildRun:
    """A child at work. `grace` says how long it has to end once it was told to.

    After `run`: `reply` is what it said, if it did; `out` and `err` are the last that it
    wrote.
    """

    def __init__(
        self, spec: ChildSpec, context: FlowContext, *, grace: Callable[[], float], clock: Clock
    ) -> None:
        self.reply: Frame | None = None
        self.out = OutputTail()
        self.err = OutputTail()
        self._spec = spec
        self._context = context
        self._grace = grace
        self._clock = clock
        self._is_ready = False
        self._child: Child | None = None

    async def run(self, guardian: ChildSpawner) -> ProcessEnd:
        self._loop = asyncio.get_running_loop()
        self._cancelled, self._replied = self._loop.create_future(), self._loop.create_future()
        ours, theirs = socket.socketpair()
        channel = WorkerFrameChannel(ours, self._on_frame)
        try:
            with theirs:
                child = self._child = await guardian.spawn(self._process_spec(theirs.fileno()))
            channel.send(self._spec.request)
            with self._watching_cancel():
                return await self._wait_for_end(child, channel)
        finally:
            channel.close()

    def _process_spec(self, channel: int) -> ProcessSpec:
        return ProcessSpec(
            argv=self._spec.argv,
            env=self._spec.env,
            stdin=channel,
            stdout=self.out,
            stderr=self.err,
            limits=ResourceLimits(memory=self._spec.max_memory),
        )

    async def _wait_for_end(self, child: Child, channel: WorkerFrameChannel) -> ProcessEnd:
        ended = asyncio.ensure_future(child.wait())
        try:
            await asyncio.wait(
                {ended, self._cancelled, self._replied}, return_when=asyncio.FIRST_COMPLETED
            )
            if self._replied.done() and not await wait_until_done(
                ended, self._grace(), self._clock
            ):
                await child.stop(KILL_NOW)
            elif not ended.done():
                await self._stop(child, channel)
            return await ended
        finally:
            ended.cancel()

    async def dump_stacks(self) -> None:
        """Have the stacks of its threads written to its standard error; returns when they are
        there, as far as one can tell.
        """
        if self._child is None or not self._is_ready:
            return
        received = self.err.received
        received.clear()
        self._child.signal(STACKS_SIGNAL, group=False)
        await received.wait()
        while received.is_set():
            received.clear()
            await asyncio.sleep(_DUMP_POLL_INTERVAL)

    async def _stop(self, child: Child, channel: WorkerFrameChannel) -> None:
        """Told over the line with the reason, by SIGTERM, by SIGKILL."""
        channel.send(encode_frame(CANCEL, self._context.cancel.reason.encode()))
        await child.stop(StopPolicy(grace=self._grace()))

    def _on_frame(self, frame: Frame) -> None:
        kind, payload = frame
        if kind == BEAT:
            self._context.beat(msgspec.json.decode(payload))
        elif kind == READY:
            self._is_ready = True
        elif kind in REPLIES and self.reply is None:
            self.reply = frame
            self._replied.set_result(None)

    @contextmanager
    def _watching_cancel(self) -> Iterator[None]:
        """Hear, from whichever thread, that the attempt is called off."""
        undo = self._context.cancel.on_cancel(self._on_cancel)
        try:
            yield
        finally:
            undo()

    def _on_cancel(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: it is over anyway
            self._loop.call_soon_threadsafe(self._set_cancelled)

    def _set_cancelled(self) -> None:
        if not self._cancelled.done():
            self._cancelled.set_result(None)
