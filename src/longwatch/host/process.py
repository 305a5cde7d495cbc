"""Child processes as the rest of Longwatch sees them: what to start, how to stop it, how it ended.

`GuardianClient` (in `longwatch.host.guardian_client`) starts them. Everything here but the plain
values is used on the loop's thread. `reap_orphans` is for any thread: it reaps the children that
PID 1 or a subreaper inherits.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from longwatch.core.clock import Clock
from longwatch.core.end_cause import EndCause, EndKind
from longwatch.errors import SpawnError
from longwatch.host.capture import Capture, LineSink
from longwatch.host.guardian.wire import ControlMessage
from longwatch.host.identity import Identity
from longwatch.host.loop import wait_until_done


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPolicy:
    """How a child is stopped: `signal` to its process group, `grace` seconds for the whole tree
    to end, then SIGKILL to all. With SIGKILL as its signal it kills the tree without grace.
    """

    signal: int = signal.SIGTERM
    grace: float = 15.0

    @property
    def kills(self) -> bool:
        """Whether the child gets no chance to end by itself."""
        return self.signal == signal.SIGKILL


_GUARDIAN_TIMEOUT = 8.0
"""Seconds; longer than the guardian takes to say that something cannot be killed."""


KILL_NOW = StopPolicy(signal=signal.SIGKILL, grace=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """What a child may use; None: as much as we may."""

    memory: int | None = None
    """Bytes: of the whole tree together where it has a cgroup with a memory controller, else of
    data for each of its processes.
    """
    open_files: int | None = None
    nice: int | None = None
    """From -20 (favoured; for root) to 19."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to start. Nothing goes through a shell.

    `stdout` and `stderr`: a LineSink gets whole lines, a descriptor is passed on as it is, None is
    /dev/null; one LineSink for both gets their lines in order. `stdin`: a descriptor or None.
    `cwd`: None is the host's working directory, `identity` None the host's user, `umask` None the
    host's. Directory and command are looked for as that user; their variables (`login_environment`)
    belong into `env`.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    stdin: int | None = None
    stdout: LineSink | int | None = None
    stderr: LineSink | int | None = None
    limits: ResourceLimits = ResourceLimits()
    identity: Identity | None = None
    umask: int | None = None
    on_output: Callable[[], None] | None = None
    """Called on the loop whenever bytes come for a LineSink, before the end of their line."""

    @property
    def shares_sink(self) -> bool:
        """Whether both outputs go to the same LineSink."""
        return self.stdout is self.stderr and not isinstance(self.stdout, int | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """How a child ended, told when its whole tree was gone."""

    cause: EndCause
    lasted: float
    killed: int = 0
    """Processes that got SIGKILL from us, leftovers of a leader that ended by itself included."""
    survivors: int = 0
    """Processes that even SIGKILL did not end in five seconds; 0 nearly always."""
    pid: int | None = None
    """Of the leader; None for one that never ran."""
    cpu_seconds: float = 0.0
    max_rss: int = 0
    detail: str = ""
    """What more there is to say to a person, of a start that failed for one."""
    detached: bool = False
    """Whether it runs on, and only the watching has ended; only for containers."""
    stopped_elsewhere: bool = False
    """Whether a person stopped it with the runtime's own command; only for containers."""


class StopGrace:
    """The one end of grace that all stops of a child share. A later stop can only bring it forward,
    and the child itself may ask for more time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end: float | None = None
        """On the monotonic clock; None before the first stop with a grace."""

    def extend(self, seconds: float) -> None:
        """Let it last at least so long from now. Nothing while there is none."""
        if self._end is not None:
            self._end = max(self._end, self._clock.monotonic() + seconds)

    async def wait(self, ended: asyncio.Future[Any], seconds: float) -> None:
        """Wait for the end until the grace is over, however often that is moved meanwhile."""
        end = self._clock.monotonic() + seconds
        self._end = end if self._end is None else min(self._end, end)
        waited_until = None
        while not ended.done() and waited_until != self._end:
            waited_until = self._end
            await wait_until_done(ended, waited_until - self._clock.monotonic(), self._clock)


class GuardianLink(Protocol):
    """What a child needs of its guardian."""

    def send(self, message: ControlMessage, descriptors: tuple[int, ...] = ()) -> None: ...

    def abort(self) -> None: ...


class Child:
    """One running child and its tree. Made by `GuardianClient.spawn`.

    A child that is being stopped gets one stop signal: many programs take a second one for "quit
    now" and drop their work. All stops share one end of grace. A later stop can only bring it
    forward, or kill at once; the child itself may ask for more time.
    """

    def __init__(self, number: int, mark: str, guardian: GuardianLink, clock: Clock) -> None:
        self.number = number
        self.mark = mark
        self.pid = 0
        self.start = 0
        """When its leader began, in clock ticks since boot: with the pid it names a process for
        good. 0: nobody can tell.
        """
        self.started_at = self._ended_at = clock.monotonic()
        self._guardian = guardian
        self._clock = clock
        self._stopping = False
        self._stop_signal = 0
        self._out_of_memory = False
        self._grace = StopGrace(clock)
        self._captures: list[Capture] = []
        self._stops: set[asyncio.Task[ProcessEnd]] = set()
        loop = asyncio.get_running_loop()
        self.spawned: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[ControlMessage] = loop.create_future()
        self._cleared: asyncio.Future[ControlMessage] = loop.create_future()
        for future in self._futures():
            future.add_done_callback(_consume_exception)

    @property
    def is_leader_running(self) -> bool:
        """Whether its leader runs, for all we have heard."""
        return self.spawned.done() and not self._ended.done()

    def signal(self, signum: int, *, group: bool = True) -> None:
        """Pass a signal on to its process group, or to the leader alone; one that has ended
        hears nothing.
        """
        self._guardian.send(
            {"op": "signal", "id": self.number, "signal": int(signum), "group": group}
        )

    def kill(self) -> None:
        """SIGKILL to the whole tree, again and again until nothing of it is left; `wait` tells
        when.
        """
        self._guardian.send({"op": "kill", "id": self.number})

    async def wait(self) -> ProcessEnd:
        """How it ended, once its leader has ended and nothing of its tree is left.

        When the leader ends by itself the rest of its tree is killed; while it is being stopped the
        rest has its grace too.
        """
        end = await asyncio.shield(self._ended)
        if not self._stopping and not self._cleared.done():
            self.kill()
        clear = await asyncio.shield(self._cleared)
        self.finish_output()
        return ProcessEnd(
            cause=EndCause(EndKind.MEMORY)
            if self._out_of_memory
            else EndCause.from_wait_status(end["status"]),
            lasted=self._ended_at - self.started_at,
            pid=self.pid,
            killed=clear["killed"],
            survivors=clear["survivors"],
            cpu_seconds=end["cpu"],
            max_rss=end["max_rss"],
        )

    async def stop(self, policy: StopPolicy) -> ProcessEnd:
        """Signal, grace, kill; returns how it ended. Idempotent: a second call sends no second
        signal. It hastens the first if its grace ends earlier, or if it kills.
        """
        first, self._stopping = not self._stopping, True
        if self._cleared.done():
            return await self.wait()
        if not policy.kills:
            if first:
                self._send_stop_signal(policy.signal)
            await self._grace.wait(self._cleared, policy.grace)
        if not self._cleared.done():
            self.kill()
            await self._await_kill()
        return await self.wait()

    def extend_stop(self, seconds: float) -> None:
        """While it is being stopped: its grace lasts at least so long from now. Nothing while it
        is not.
        """
        self._grace.extend(seconds)

    def _send_stop_signal(self, signum: int) -> None:
        self._stop_signal = signum
        self.signal(signum)
        self.signal(signal.SIGCONT)
        self._signal_remaining()

    def _signal_remaining(self) -> None:
        """Once its leader has ended, what it has left in other sessions is asked to stop as
        well, before it has to be killed.
        """
        if self._ended.done() and not self._cleared.done() and self._stop_signal:
            for signum in (self._stop_signal, signal.SIGCONT):
                self._guardian.send({"op": "signal_rest", "id": self.number, "signal": int(signum)})

    async def _await_kill(self) -> None:
        """For as long as killing may take; one that does not answer (stopped, stuck) is given up,
        and all it holds dies with it.

        Counted in real time: it is another process that is waited for, not something of ours.
        """
        await asyncio.wait({self._cleared}, timeout=_GUARDIAN_TIMEOUT)
        if not self._cleared.done():
            self._guardian.abort()

    def begin_stop(self, policy: StopPolicy) -> None:
        """`stop`, without waiting for it; whoever waits for the child learns how it ended."""
        task = asyncio.ensure_future(self.stop(policy))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
        task.add_done_callback(_consume_exception)

    # --- told by the guardian ---

    def capture(
        self, descriptor: int, sink: LineSink, on_output: Callable[[], None] | None
    ) -> None:
        self._captures.append(Capture(descriptor, sink, on_output=on_output))

    def finish_output(self) -> None:
        """Take the last lines and close the pipes."""
        while self._captures:
            self._captures.pop().finish()

    def handle_message(self, message: ControlMessage) -> None:
        match message["event"]:
            case "spawned":
                self.pid, self.start = message["pid"], message.get("start", 0)
                self.started_at = self._clock.monotonic()
                self.spawned.set_result(self.pid)
            case "spawn_failed":
                self.fail(SpawnError(message["error"], errno=message["errno"]))
            case "ended":
                self._ended_at = self._clock.monotonic()
                self._out_of_memory = message.get("oom", False) and not self._stopping
                self._ended.set_result(message)
                self._signal_remaining()
            case "cleared":
                self._cleared.set_result(message)

    def fail(self, error: Exception) -> None:
        """Whatever it still waits for will not come."""
        for future in self._futures():
            if not future.done():
                future.set_exception(error)

    def _futures(self) -> tuple[asyncio.Future[Any], ...]:
        return self.spawned, self._ended, self._cleared


def _consume_exception(future: asyncio.Future[Any]) -> None:
    """A child nobody waits for any more is no reason for asyncio to complain."""
    if not future.cancelled():
        future.exception()


def reap_orphans(known: Collection[int]) -> int:
    """Reap every ended child of this process but those in `known`, whose owners wait for them;
    how many there were.
    """
    reaped = 0
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in known:  # the kernel names only the first: ask for each other one
                return reaped + sum(_reap(pid) for pid in set(_children()) - set(known))
            reaped += _reap(ended.si_pid)
    return reaped


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return False


def _children() -> Iterator[int]:
    """Our children, thread by thread; in a PID namespace that sees an outer /proc, numbers that
    are nobody's.
    """
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            yield from map(int, (task / "children").read_text().split())
