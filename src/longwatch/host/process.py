"""Child processes as the rest of Longwatch uses them: how to start and stop one, and how it ended.

`GuardianClient` (in `longwatch.host.guardian_client`) starts them. All of it except the plain
values is for the loop's thread. `reap_orphans` is for any thread: it reaps the children that PID 1
or a subreaper inherits.
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
    """How to stop a child: `signal` to its process group, then SIGKILL to the tree after `grace`
    seconds.

    The grace is for the whole tree. SIGKILL as `signal` kills the tree without grace.
    """

    signal: int = signal.SIGTERM
    grace: float = 15.0

    @property
    def kills(self) -> bool:
        """Whether the child gets no chance to end by itself."""
        return self.signal == signal.SIGKILL


_GUARDIAN_TIMEOUT = 8.0
"""Seconds to wait for the guardian; longer than it takes to report that a process cannot be killed.
"""


KILL_NOW = StopPolicy(signal=signal.SIGKILL, grace=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """Resource limits of a child; None means the limit of the host."""

    memory: int | None = None
    """Bytes. Counts for the whole tree if it has a cgroup with a memory controller; elsewhere it
    limits the data of each process.
    """
    open_files: int | None = None
    nice: int | None = None
    """From -20 (highest priority, needs root) to 19."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process to start. No shell is involved.

    `stdout` and `stderr`: a LineSink gets whole lines, a descriptor is passed on as it is, None is
    /dev/null. One LineSink for both gets their lines in order. `stdin`: a descriptor or None. None
    for `cwd`, `identity` and `umask` means the host's. Directory and command are looked up as that
    user. The user's variables (`login_environment`) belong in `env`.
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
    """How a child ended; available once its whole tree is gone."""

    cause: EndCause
    lasted: float
    killed: int = 0
    """Processes that the guardian killed, including those left by a leader that ended by itself."""
    survivors: int = 0
    """Processes that SIGKILL did not end within five seconds; nearly always 0."""
    pid: int | None = None
    """Pid of the leader; None if it never ran."""
    cpu_seconds: float = 0.0
    max_rss: int = 0
    detail: str = ""
    """More for a person to read, such as why a start failed."""
    detached: bool = False
    """Whether it still runs and only the watching ended. Only for containers."""
    stopped_elsewhere: bool = False
    """Whether a person stopped it with the container runtime's own command. Only for containers."""


class StopGrace:
    """The one end of grace that all stops of a child share.

    A later stop can only bring it forward. The child itself may ask for more time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end: float | None = None
        """On the monotonic clock; None before the first stop with a grace."""

    def extend(self, seconds: float) -> None:
        """Make it last at least this long from now. Does nothing before the first stop."""
        if self._end is not None:
            self._end = max(self._end, self._clock.monotonic() + seconds)

    async def wait(self, ended: asyncio.Future[Any], seconds: float) -> None:
        """Wait until the child has ended or the grace is over, even if the grace is moved
        meanwhile.
        """
        end = self._clock.monotonic() + seconds
        self._end = end if self._end is None else min(self._end, end)
        waited_until = None
        while not ended.done() and waited_until != self._end:
            waited_until = self._end
            await wait_until_done(ended, waited_until - self._clock.monotonic(), self._clock)


class GuardianLink(Protocol):
    """The part of the guardian client that a child uses."""

    def send(self, message: ControlMessage, descriptors: tuple[int, ...] = ()) -> None: ...

    def abort(self) -> None: ...


class Child:
    """One running child and its process tree. Made by `GuardianClient.spawn`.

    A child gets one stop signal: many programs take a second one for "quit now" and drop their
    work. All stops share one end of grace. A later stop can only bring it forward, or kill at once.
    The child itself may ask for more time.
    """

    def __init__(self, number: int, mark: str, guardian: GuardianLink, clock: Clock) -> None:
        self.number = number
        self.mark = mark
        self.pid = 0
        self.start = 0
        """Start time of its leader in clock ticks since boot, 0 if unknown. Pid and start time
        identify a process uniquely.
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
        """Whether its leader runs, as far as the guardian has reported."""
        return self.spawned.done() and not self._ended.done()

    def signal(self, signum: int, *, group: bool = True) -> None:
        """Send a signal to its process group, or to the leader alone. Does nothing once it has
        ended.
        """
        self._guardian.send(
            {"op": "signal", "id": self.number, "signal": int(signum), "group": group}
        )

    def kill(self) -> None:
        """Send SIGKILL to the whole tree, repeatedly until no process is left. Does not wait; see
        `wait`.
        """
        self._guardian.send({"op": "kill", "id": self.number})

    async def wait(self) -> ProcessEnd:
        """Wait until its leader has ended and no process of its tree is left; return how it ended.

        If the leader ends by itself, the rest of its tree is killed. During a stop, the rest gets
        the grace too.
        """
        end = await asyncio.shield(self._ended)
        if not self._stopping and not self._cleared.done():
            self.kill()
        clear = await asyncio.shield(self._cleared)
        left = clear["survivors"]
        self.finish_output()
        return ProcessEnd(
            cause=EndCause(EndKind.MEMORY)
            if self._out_of_memory
            else EndCause.from_wait_status(end["status"]),
            lasted=self._ended_at - self.started_at,
            pid=self.pid,
            killed=clear["killed"],
            survivors=left,
            cpu_seconds=end["cpu"],
            max_rss=end["max_rss"],
            detail=f"{left} of its processes survived SIGKILL" if left else "",
        )

    async def stop(self, policy: StopPolicy) -> ProcessEnd:
        """Send the stop signal, wait for the grace, kill; return how it ended. Idempotent.

        A second call sends no second signal. It shortens the first if its grace ends earlier, or if
        it kills.
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
        """Make the grace of the current stop last at least this long from now. Does nothing
        otherwise.
        """
        self._grace.extend(seconds)

    def _send_stop_signal(self, signum: int) -> None:
        self._stop_signal = signum
        self.signal(signum)
        self.signal(signal.SIGCONT)
        self._signal_remaining()

    def _signal_remaining(self) -> None:
        """Send the stop signal to members in other sessions, once the leader has ended.

        They get the chance to stop before they are killed.
        """
        if self._ended.done() and not self._cleared.done() and self._stop_signal:
            for signum in (self._stop_signal, signal.SIGCONT):
                self._guardian.send({"op": "signal_rest", "id": self.number, "signal": int(signum)})

    async def _await_kill(self) -> None:
        """Wait until the guardian reports the kill; abort a guardian that does not respond.

        A stopped or stuck guardian is given up, and all its children die with it. Counted in real
        time, because it waits for another process.
        """
        await asyncio.wait({self._cleared}, timeout=_GUARDIAN_TIMEOUT)
        if not self._cleared.done():
            self._guardian.abort()

    def begin_stop(self, policy: StopPolicy) -> None:
        """Begin `stop` without waiting for it; `wait` returns how the child ended."""
        task = asyncio.ensure_future(self.stop(policy))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
        task.add_done_callback(_consume_exception)

    # --- messages from the guardian ---

    def capture(
        self, descriptor: int, sink: LineSink, on_output: Callable[[], None] | None
    ) -> None:
        self._captures.append(Capture(descriptor, sink, on_output=on_output))

    def finish_output(self) -> None:
        """Read the last lines and close the pipes."""
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
        """Set this error on everything that still waits for the child."""
        for future in self._futures():
            if not future.done():
                future.set_exception(error)

    def _futures(self) -> tuple[asyncio.Future[Any], ...]:
        return self.spawned, self._ended, self._cleared


def _consume_exception(future: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved, so that asyncio does not warn about it."""
    if not future.cancelled():
        future.exception()


def reap_orphans(known: Collection[int]) -> int:
    """Reap every ended child of this process except those in `known`; return how many it reaped.

    The owners of the `known` ones wait for them. It may miss one whose thread is ending; the next
    call reaps that.
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
    """Yield the children of this process, thread by thread.

    In a PID namespace that sees an outer /proc, the numbers name no processes here.
    """
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            yield from map(int, (task / "children").read_text().split())
