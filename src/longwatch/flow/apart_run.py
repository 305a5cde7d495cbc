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
from longwatch.flow.apart_frames import ANSWERS, BEAT, CANCEL, READY, Frame, Frames, framed
from longwatch.flow.calling import LARGEST_VALUE
from longwatch.flow.child import STACKS
from longwatch.flow.context import FlowContext
from longwatch.host.patience import settled_within
from longwatch.host.process import KILL_NOW, Child, Ending, Limits, ProcessSpec, StopPolicy

TAIL = 8192
"""Bytes that are kept of what a child writes, of each of its two streams."""
_CHUNK = 1 << 18
_GLANCE = 0.02
"""Seconds in which a dump of stacks goes on, unless it is over; real ones, as it is another
process that writes it.
"""


class Order(NamedTuple):
    """What a child is to do: its command, what it is told first, and what it may use."""

    argv: list[str]
    env: dict[str, str]
    request: bytes
    memory: int | None


class Spawner(Protocol):
    """The one thing that is wanted of a guardian."""

    async def spawn(self, spec: ProcessSpec) -> Child: ...


class Tail:
    """A sink that keeps the end of what is written, however much that is."""

    congested = False

    def __init__(self) -> None:
        self.data = b""
        self.came = asyncio.Event()

    def write(self, data: bytes) -> bool:
        self.came.set()
        self.data = (self.data + data[-TAIL:])[-TAIL:]
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()


class Line:
    """The worker's end of the channel to a child. What goes wrong with it is no news: the end of
    the child tells.
    """

    def __init__(self, end: socket.socket, hear: Callable[[Frame], None]) -> None:
        self._end = end
        self._hear = hear
        self._frames = Frames(largest=LARGEST_VALUE)
        self._unsent = memoryview(b"")
        self._loop = asyncio.get_running_loop()
        end.setblocking(False)
        self._loop.add_reader(end, self._take)

    def send(self, data: bytes) -> None:
        """Have it sent, unless there is still something unsent: then it would not be understood."""
        if not self._unsent:
            self._unsent = memoryview(data)
            self._flush()

    def close(self) -> None:
        """Take what is there, and close it."""
        while self._take():
            pass
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._end.send(self._unsent) :]
        except BlockingIOError:
            self._loop.add_writer(self._end, self._flush)
            return
        except OSError:
            self._unsent = memoryview(b"")
        self._loop.remove_writer(self._end)

    def _take(self) -> bool:
        """Read once; whether there may be more."""
        try:
            chunk = self._end.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self._loop.remove_reader(self._end)
            return False
        try:
            for frame in self._frames.feed(chunk):
                self._hear(frame)
        except (
            ValueError,
            msgspec.MsgspecError,
        ):  # somebody else has found the channel: what it says is worth nothing any more
            self._end.shutdown(socket.SHUT_RDWR)
        return True


class ChildRun:
    """A child at work. `grace` says how long it has to end once it was told to.

    After `to_its_end`: `answer` is what it said, if it did; `out` and `err` are the last that it
    wrote.
    """

    def __init__(
        self, order: Order, context: FlowContext, *, grace: Callable[[], float], clock: Clock
    ) -> None:
        self.answer: Frame | None = None
        self.out = Tail()
        self.err = Tail()
        self._order = order
        self._context = context
        self._grace = grace
        self._clock = clock
        self._hears_signals = False
        self._child: Child | None = None

    async def to_its_end(self, guardian: Spawner) -> Ending:
        self._loop = asyncio.get_running_loop()
        self._called_off, self._answered = self._loop.create_future(), self._loop.create_future()
        ours, theirs = socket.socketpair()
        line = Line(ours, self._hear)
        try:
            with theirs:
                child = self._child = await guardian.spawn(self._spec(theirs.fileno()))
            line.send(self._order.request)
            with self._listening():
                return await self._over(child, line)
        finally:
            line.close()

    def _spec(self, channel: int) -> ProcessSpec:
        return ProcessSpec(
            argv=self._order.argv,
            env=self._order.env,
            stdin=channel,
            stdout=self.out,
            stderr=self.err,
            limits=Limits(memory=self._order.memory),
        )

    async def _over(self, child: Child, line: Line) -> Ending:
        over = asyncio.ensure_future(child.wait())
        try:
            await asyncio.wait(
                {over, self._called_off, self._answered}, return_when=asyncio.FIRST_COMPLETED
            )
            if self._answered.done() and not await settled_within(over, self._grace(), self._clock):
                await child.stop(KILL_NOW)
            elif not over.done():
                await self._stop(child, line)
            return await over
        finally:
            over.cancel()

    async def say_where(self) -> None:
        """Have the stacks of its threads written to its standard error; returns when they are
        there, as far as one can tell.
        """
        if self._child is None or not self._hears_signals:
            return
        came = self.err.came
        came.clear()
        self._child.signal(STACKS, group=False)
        await came.wait()
        while came.is_set():
            came.clear()
            await asyncio.sleep(_GLANCE)

    async def _stop(self, child: Child, line: Line) -> None:
        """Told over the line with the reason, by SIGTERM, by SIGKILL."""
        line.send(framed(CANCEL, self._context.cancel.reason.encode()))
        await child.stop(StopPolicy(grace=self._grace()))

    def _hear(self, frame: Frame) -> None:
        kind, payload = frame
        if kind == BEAT:
            self._context.beat(msgspec.json.decode(payload))
        elif kind == READY:
            self._hears_signals = True
        elif kind in ANSWERS and self.answer is None:
            self.answer = frame
            self._answered.set_result(None)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Hear, from whichever thread, that the attempt is called off."""
        undo = self._context.cancel.on_cancel(self._pass_on)
        try:
            yield
        finally:
            undo()

    def _pass_on(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: it is over anyway
            self._loop.call_soon_threadsafe(self._call_off)

    def _call_off(self) -> None:
        if not self._called_off.done():
            self._called_off.set_result(None)
