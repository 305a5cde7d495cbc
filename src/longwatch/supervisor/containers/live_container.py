"""One run of a container: its end, its stop, its commands and its output.

The docstring of the package explains how an end is distinguished from a runtime that does not
answer, and from a stop by a person.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from longwatch.core.end_cause import EndCause, EndKind
from longwatch.errors import (
    ContainerRuntimeError,
    RuntimeRefusedError,
    RuntimeUnreachableError,
    SpawnError,
)
from longwatch.host.capture import LineSink
from longwatch.host.loop import wait_until_done
from longwatch.host.process import ProcessEnd, StopGrace, StopPolicy
from longwatch.supervisor.containers.container_command import ContainerCommand, cgroup_pids
from longwatch.supervisor.containers.container_host import ContainerHost
from longwatch.supervisor.containers.container_logs import copy_logs
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.containers.runtime import (
    ContainerState,
    ContainerStatus,
    RuntimeAction,
    RuntimeEvent,
    is_corpse,
)
from longwatch.supervisor.process_target import LOOPBACK
from longwatch.supervisor.target_factory import Streams

SETTLE_SECONDS = 1.0
"""Seconds after a stop from outside until it is checked whether the container stays stopped."""
KILL_TIMEOUT = 10.0
"""Seconds after SIGKILL until a container that still runs, or whose state is unknown, is given
up.
"""
_RETRY_SECONDS = 1.0
_STOP_EVENT_SECONDS = 2.0
"""Maximum seconds between the two events of one stop."""
_EARLY_OUTPUT_SECONDS = 2.0
"""A runtime may record the start of a container this many seconds after its first output."""
_FIRST_SIGNAL_EXIT = 129
_LAST_SIGNAL_EXIT = 128 + 64
_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - reported by a runtime, not listened on


class LiveContainer:
    """One run of a container. Used on the event loop."""

    def __init__(
        self,
        spec: ContainerSpec,
        state: ContainerState,
        *,
        host: ContainerHost,
        streams: Streams,
        adopted: bool,
    ) -> None:
        self.id = state.id
        self._spec = spec
        self._state = state
        self._host = host
        self._clock = host.clock
        now_wall, now = self._clock.wall(), self._clock.monotonic()
        self.started_at = now - max(now_wall - state.started_at, 0.0) if state.started_at else now
        self.last_seen_running = now_wall
        self._stopping = False
        self._killed = False
        self._stopped_at: float | None = None
        """When the runtime reported a stop, by us or by another client."""
        self._was_signalled = False
        """Whether the runtime sent it a signal, ours included."""
        self._exit_code: int | None = None
        """The exit code in the event of its end."""
        self._grace = StopGrace(self._clock)
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[ProcessEnd] = loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._judging: asyncio.Task[None] | None = None
        host.register(self.id, self)
        self._follow_logs(streams, adopted=adopted)
        if not state.is_up:
            self._judge_end()

    # --- the target interface ---

    @property
    def pid(self) -> int | None:
        return self._state.pid or None

    def process_ids(self) -> list[int] | None:
        """Return the pids of its processes; None if they are not visible on this host. Blocks on
        /proc.
        """
        pid = self.pid
        return cgroup_pids(pid) if pid is not None and self._state.is_local else None

    @property
    def is_running(self) -> bool:
        return self._state.is_up and not self._ended.done()

    @property
    def is_paused(self) -> bool:
        return self._state.status is ContainerStatus.PAUSED

    def signal(self, signum: int) -> None:
        if not self._ended.done():
            self._spawn(self._signal(signum))

    def begin_stop(self, policy: StopPolicy) -> None:
        if not self._ended.done():
            self._spawn(self._stop(policy))

    def extend_stop(self, seconds: float) -> None:
        self._grace.extend(seconds)

    def detach(self) -> bool:
        if not self._ended.done():
            self._host.end_logs(self.id)
            self._end(ProcessEnd(cause=EndCause.exit(0), lasted=self._age, detached=True))
        return True

    async def wait(self) -> ProcessEnd:
        return await asyncio.shield(self._ended)

    async def script_fault(self, name: str) -> str | None:
        path = f"{self._spec.script_dir}/{name}"
        try:
            found = await self._host.connected.has_file(self.id, path)
        except ContainerRuntimeError:
            return None
        return None if found else f"there is no probe script {path} in the container"

    async def probe_address(self, port: int) -> tuple[str, int]:
        if (published := self._state.published_ports.get(port)) is not None:
            host, host_port = published
            return (LOOPBACK if host in _EVERYWHERE else host), host_port
        if self._state.address:
            return self._state.address, port
        raise SpawnError(f"port {port} is not published; add it to the ports of the container")

    def facts(self) -> dict[str, Any]:
        return {
            "container": {
                "id": self.id,
                "status": self._state.status.value if self._host.is_known else "unknown",
                **self._host.status(),
            },
            "last_seen_running": self.last_seen_running,
        }

    async def exec(
        self, argv: Sequence[str], *, output: LineSink, in_scripts: bool, timeout: float
    ) -> EndCause:
        cwd = self._spec.script_dir if in_scripts else None
        command = ContainerCommand(self._spec, self._state, self._host)
        return cause_of(await command.run(argv, output=output, cwd=cwd, timeout=timeout))

    # --- events and lists ---

    def handle_event(self, event: RuntimeEvent) -> None:
        match event.action:
            case RuntimeAction.PAUSE | RuntimeAction.UNPAUSE:
                self._spawn(self._refresh())
            case RuntimeAction.STOP:
                self._stopped_at = self._clock.monotonic()
                self._was_signalled = True
            case RuntimeAction.KILL:
                self._was_signalled = True
            case RuntimeAction.DIE:
                self._exit_code = event.exit_code
                self._judge_end()
            case RuntimeAction.REMOVE:
                self._judge_end()
            case RuntimeAction.START | RuntimeAction.OOM:
                pass

    def handle_listed(self, state: ContainerState | None) -> None:
        if state is None or not state.is_up:
            self._judge_end()
        else:
            self.last_seen_running = self._clock.wall()
            if is_corpse(self._state):
                self._judge_end()
            if state.status is not self._state.status:
                self._spawn(self._refresh())

    async def _refresh(self) -> None:
        """Read its state again after a pause or an unpause."""
        with suppress(ContainerRuntimeError):
            state = await self._host.connected.inspect(self.id)
            if state is not None and state.is_up:
                self._state = state

    def _judge_end(self) -> None:
        """Find out how it ended, in one task at a time."""
        if self._ended.done() or (self._judging is not None and not self._judging.done()):
            return
        self._judging = self._spawn(self._find_end())

    async def _find_end(self) -> None:
        try:
            state = await self._host.connected.inspect(self.id)
            if self._still_runs(state):
                return
            looks_up = state is not None and state.is_up
            if looks_up or (self._was_signalled and not self._stopping):
                await self._clock.sleep(SETTLE_SECONDS)
                state = await self._host.connected.inspect(self.id)
                if self._still_runs(state):
                    return
        except RuntimeUnreachableError as error:
            self._host.suspect_lost(str(error))
            return
        except RuntimeRefusedError:
            return
        self._end(self._ending(state))

    def _still_runs(self, state: ContainerState | None) -> bool:
        is_same = state is not None and state.started_at == self._state.started_at
        return is_same and state is not None and state.is_up and not is_corpse(state)

    def _ending(self, state: ContainerState | None) -> ProcessEnd:
        """Return how it ended, by its state now. If it is gone (None), the event of its end
        counts.
        """
        code = self._exit_code if state is None or state.is_up else state.exit_code
        cause = EndCause.signal(signal.SIGKILL) if code is None else cause_of(code)
        detail = ""
        if state is None:
            detail = "the container was removed"
        elif is_corpse(state):
            detail = "its process is gone, but the runtime reports it as running"
        elif state.is_up:
            detail = "the container was restarted by another program"
        elif state.out_of_memory:
            cause = EndCause(EndKind.MEMORY)
        ran = state.finished_at - state.started_at if state is not None and not state.is_up else 0.0
        stopped = self._was_stopped and not self._stopping
        return ProcessEnd(
            cause=cause,
            lasted=ran if ran > 0 else self._age,
            killed=int(self._killed),
            pid=self._state.pid or None,
            detail=detail,
            stopped_elsewhere=stopped and state is not None and not state.is_up,
        )

    @property
    def _was_stopped(self) -> bool:
        """Whether the runtime reported a stop of this run: it does so within a moment of the end.
        An older report was about the run before.
        """
        if self._stopped_at is None:
            return False
        return self._clock.monotonic() - self._stopped_at <= SETTLE_SECONDS + _STOP_EVENT_SECONDS

    def _end(self, ending: ProcessEnd) -> None:
        if not self._ended.done():
            self._ended.set_result(ending)
        self._host.unregister(self.id, self)
        for task in self._tasks:
            if task is not self._judging:
                task.cancel()

    @property
    def _age(self) -> float:
        return self._clock.monotonic() - self.started_at

    # --- stopping it ---

    async def _stop(self, policy: StopPolicy) -> None:
        """Send the stop signal, wait for the grace, kill; give up if the runtime cannot end it."""
        first, self._stopping = not self._stopping, True
        if not policy.kills:
            if first:
                self._spawn(self._signal(policy.signal))
            await self._grace.wait(self._ended, policy.grace)
        if self._ended.done():
            return
        self._killed = True
        self._spawn(self._signal(signal.SIGKILL))
        if not await wait_until_done(self._ended, KILL_TIMEOUT, self._clock):
            reason = self._host.reason or "the runtime did not end it"
            self._end(
                ProcessEnd(
                    cause=EndCause.signal(signal.SIGKILL),
                    lasted=self._age,
                    killed=1,
                    survivors=1,
                    pid=self._state.pid or None,
                    detail=f"it may still run: {reason}",
                )
            )

    async def _signal(self, signum: int) -> None:
        """Send a signal as soon as the runtime answers; after SIGKILL, check whether the container
        has ended.
        """
        while not self._ended.done():
            runtime = await self._host.runtime()
            try:
                await runtime.signal(self.id, signum)
            except RuntimeUnreachableError as error:
                self._host.suspect_lost(str(error))
            except RuntimeRefusedError:
                await self._clock.sleep(_RETRY_SECONDS)
            else:
                break
        if signum == signal.SIGKILL:
            self._judge_end()

    # --- its output ---

    def _follow_logs(self, streams: Streams, *, adopted: bool) -> None:
        sink = streams.stdout
        if sink is None or isinstance(sink, int):
            return
        began = self._state.started_at or self._clock.wall()
        logged = self._host.logged_until.get(self.id, 0.0)
        since = began - _EARLY_OUTPUT_SECONDS
        if since < logged < self._clock.wall():  # false if the wall clock was set back
            since = logged
        if adopted:
            since = self._clock.wall() if streams.since is None else streams.since()
        copying = copy_logs(self._host, self.id, sink, since=since, has_ended=self._ended.done)
        self._host.copy_logs(self.id, copying)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def cause_of(exit_code: int) -> EndCause:
    """Convert an exit code as a runtime reports it: 128 + n is signal n."""
    if _FIRST_SIGNAL_EXIT <= exit_code <= _LAST_SIGNAL_EXIT:
        return EndCause.signal(exit_code - 128)
    return EndCause.exit(exit_code)
