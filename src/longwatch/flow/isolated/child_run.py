"""One child process that computes one node, from its start until no process of it is left. All
methods run on the event loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple, Self

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
from longwatch.host.process import (
    KILL_NOW,
    Child,
    ProcessEnd,
    ProcessSpec,
    ResourceLimits,
    StopPolicy,
)
from longwatch.host.task import ChildSpawner, OutputTail, Task, TaskSpec

_CHUNK = 1 << 18
_DUMP_POLL_INTERVAL = 0.02
"""Seconds without output after which a dump of stacks counts as complete. Real seconds, because
another process writes it.
"""


class ChildSpec(NamedTuple):
    """The command of a child, its environment, the frames that it gets first, and its memory
    limit.
    """

    argv: list[str]
    env: dict[str, str]
    request: bytes
    max_memory: int | None


class WorkerFrameChannel:
    """The worker's side of the channel to a child. Its errors are ignored: the end of the child is
    what counts.
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
        """Send data without blocking. Drops it if earlier data is unsent: it could not be
        decoded.
        """
        if not self._unsent:
            self._unsent = memoryview(data)
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Read the remaining frames, and close the connection."""
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
        """Read once; returns whether more may follow."""
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
        ):  # user code wrote to the channel: the stream cannot be decoded any more
            self._connection.shutdown(socket.SHUT_RDWR)
        return True


class ChildRun:
    """A child that computes a node: a `Task` whose standard input is the frame channel. `grace`
    returns how many seconds it has to end once it was cancelled or has replied.

    After `run`: `reply` is the reply of the child, None without one; `out` and `err` have the end
    of its output.
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
        self._killing: asyncio.Task[None] | None = None

    async def run(self, guardian: ChildSpawner) -> ProcessEnd:
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ExitStack() as undo, WorkerFrameChannel(ours, self._on_frame) as channel, theirs:

            def begin(child: Child) -> None:
                self._child = child
                theirs.close()
                channel.send(self._spec.request)
                undo.callback(self._context.cancel.on_cancel(on_cancel))

            def on_cancel() -> None:
                with suppress(RuntimeError):  # the loop is closed, so the run has ended
                    self._loop.call_soon_threadsafe(self._cancel, task, channel)

            undo.callback(self._forget_child)
            task = Task(self._task_spec(theirs.fileno()), clock=self._clock, on_spawned=begin)
            return (await task.run(guardian)).process

    def _task_spec(self, channel: int) -> TaskSpec:
        process = ProcessSpec(
            argv=self._spec.argv,
            env=self._spec.env,
            stdin=channel,
            stdout=self.out,
            stderr=self.err,
            limits=ResourceLimits(memory=self._spec.max_memory),
        )
        return TaskSpec(process=process, timeout=None, stop=StopPolicy(grace=self._grace()))

    async def dump_stacks(self) -> None:
        """Make the child write the stacks of its threads to its standard error; returns when the
        output pauses.
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

    def _cancel(self, task: Task, channel: WorkerFrameChannel) -> None:
        """Send the reason over the channel, then SIGTERM, then SIGKILL. A child that has replied
        ends anyway.
        """
        if self._child is not None and self.reply is None:
            channel.send(encode_frame(CANCEL, self._context.cancel.reason.encode()))
            task.cancel(self._context.cancel.reason, grace=self._grace())

    async def _kill_later(self) -> None:
        """Kill the child if it has not ended within its grace after its reply."""
        await self._clock.sleep(self._grace())
        if self._child is not None:
            self._child.begin_stop(KILL_NOW)

    def _forget_child(self) -> None:
        self._child = None
        if self._killing is not None:
            self._killing.cancel()

    def _on_frame(self, frame: Frame) -> None:
        kind, payload = frame
        if kind == BEAT:
            self._context.beat(msgspec.json.decode(payload))
        elif kind == READY:
            self._is_ready = True
        elif kind in REPLIES and self.reply is None:
            self.reply = frame
            self._killing = self._loop.create_task(self._kill_later())
