"""The connection to a container runtime, which all containers of a supervisor share.

    connect ──► events, and a list every few seconds ──► lost ──► connect again
       │ no runtime: one event, then silent retries every few seconds

Each run of a container registers here by its id. It gets the events of its container, and its state
from every list. While the runtime does not answer, nothing is passed on, and callers that need the
runtime wait in `runtime`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.core.events.containers import (
    ContainerRuntimeConnected,
    ContainerRuntimeUnavailable,
)
from longwatch.errors import ContainerRuntimeError, RuntimeUnreachableError
from longwatch.host.loop import wait_until_done
from longwatch.host.periodic import Cadence, run_every
from longwatch.supervisor.containers.runtime import (
    OWNER_LABEL,
    ContainerRuntime,
    ContainerState,
    RuntimeAction,
    RuntimeEvent,
)

POLL_INTERVAL = 5.0
_CALL_TIMEOUT = 30.0
"""Seconds to wait for a list before the runtime counts as not answering."""

_CONFIRM_SECONDS = 0.3
_MIN_POLL_GAP = 0.1
"""Minimum seconds between two lists, however many events arrive."""

Connect = Callable[[], Awaitable[ContainerRuntime | str]]
"""Returns a runtime that answers, or one sentence that says why there is none and what to do."""


class ContainerWatcher(Protocol):
    """One run of a container, as the host sees it."""

    def handle_event(self, event: RuntimeEvent) -> None:
        """Handle an event of the container."""

    def handle_listed(self, state: ContainerState | None) -> None:
        """Handle its state in the latest list; None if the container is gone."""


class ContainerHost:
    """Keeps the connection and passes events and lists on. Used on the event loop.

    `owner` is the value of the owner label of all containers of ours. `on_started` is called when a
    container of ours runs unwatched, because a person started it or a stop failed. It gets the name
    and the start in wall time. `on_stopped` is called with the name of a container of ours that a
    person stopped, if the runtime reports the stop only after the end. `child_pids` are the
    processes that `connect` started to reach a runtime, and `on_close` ends them.
    """

    def __init__(  # noqa: PLR0913 - a connection and its dependencies, most of them optional
        self,
        connect: Connect,
        *,
        owner: str,
        clock: Clock,
        events: Events,
        poll_interval: float = POLL_INTERVAL,
        child_pids: Callable[[], Collection[int]] = tuple,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.owner = owner
        self.clock = clock
        self.events = events
        self.on_started: Callable[[str, float], None] = lambda _name, _started_at: None
        self.on_stopped: Callable[[str], None] = lambda _: None
        self.logged_until: dict[str, float] = {}
        """By container: the wall time when its output was last copied."""
        self.has_timeout: dict[str, bool] = {}
        """By image: whether it has a `timeout` command with `-s KILL`."""
        self.reason = "not connected yet"
        """Why the runtime does not answer; empty while it does."""
        self._connect = connect
        self._poll_interval = poll_interval
        self.child_pids = child_pids
        self._on_close = on_close
        self._runtime: ContainerRuntime | None = None
        self._known = asyncio.Event()
        self._poll_now = asyncio.Event()
        self._watchers: dict[str, list[ContainerWatcher]] = {}
        self._known_ids: set[str] = set()
        """The ids of our containers, from the latest list and created since."""
        self._log_copies: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._reported: bool | None = None
        """Whether the runtime was last reported as connected; None before the first report."""

    def open(self) -> None:
        """Begin to connect and return at once. Idempotent."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._keep_connected())

    async def close(self) -> None:
        """Close the connection. Containers keep running. Idempotent."""
        tasks = {*self._log_copies.values(), *self._background}
        tasks |= {self._task} if self._task else set()
        self._task = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._on_close is not None:
            await self._on_close()

    @property
    def is_known(self) -> bool:
        """Whether the runtime answers, so that the known states of containers are current."""
        return self._known.is_set()

    @property
    def connected(self) -> ContainerRuntime:
        """The runtime. Raises RuntimeUnreachableError if it does not answer now."""
        if self._runtime is None or not self._known.is_set():
            raise RuntimeUnreachableError(f"the container runtime does not answer: {self.reason}")
        return self._runtime

    async def runtime(self) -> ContainerRuntime:
        """Return the runtime once it answers. Waits without a limit."""
        while True:
            await self._known.wait()
            with suppress(RuntimeUnreachableError):
                return self.connected

    def register(self, container_id: str, watcher: ContainerWatcher) -> None:
        self._watchers.setdefault(container_id, []).append(watcher)

    def unregister(self, container_id: str, watcher: ContainerWatcher) -> None:
        watchers = self._watchers.get(container_id, [])
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers:
            self._watchers.pop(container_id, None)

    def copy_logs(self, container_id: str, copying: Coroutine[Any, Any, None]) -> None:
        """Start to copy the output of a container. The copy ends soon after its run ended, or when
        the next run begins.
        """
        self.end_logs(container_id)
        task = asyncio.ensure_future(copying)
        self._log_copies[container_id] = task
        task.add_done_callback(lambda _: self._forget_logs(container_id, task))

    def end_logs(self, container_id: str) -> None:
        """Stop copying its output."""
        if (task := self._log_copies.pop(container_id, None)) is not None:
            task.cancel()

    def _forget_logs(self, container_id: str, task: asyncio.Task[None]) -> None:
        if self._log_copies.get(container_id) is task:
            del self._log_copies[container_id]

    def suspect_lost(self, reason: str) -> None:
        """Note that a call got no answer: container states are unknown until the next list
        succeeds.
        """
        self.reason = reason
        self._known.clear()
        self._poll_now.set()

    def owns_process(self, pid: int) -> bool:
        """Return whether that process belongs to the runtime: we started it to reach the runtime,
        or it is the monitor process (`conmon`) of a container of ours, watched or not.
        """
        if pid in self.child_pids():
            return True
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return any(known.encode() in words for known in {*self._watchers, *self._known_ids})

    def note_created(self, container_id: str) -> None:
        """Note that a container was created, so that it counts as ours before the next list."""
        self._known_ids.add(container_id)

    def status(self) -> dict[str, Any]:
        """Return the runtime and the reason for `status`, in plain JSON types."""
        return {"runtime": self._runtime.name if self._runtime else None, "reason": self.reason}

    # --- the connection ---

    async def _keep_connected(self) -> None:
        await run_every(
            Cadence(interval=self._poll_interval),
            self._connect_and_follow,
            name="container runtime",
            clock=self.clock,
            events=self.events,
        )

    async def _connect_and_follow(self) -> None:
        """Run one connection, from finding the runtime to losing it."""
        found = await self._connect()
        if isinstance(found, str):
            self._report_unavailable(found)
            return
        self._runtime = found
        try:
            await self._follow(found)
        except ContainerRuntimeError as error:
            self._report_unavailable(str(error))
        finally:
            self._known.clear()
            self._runtime = None
            with suppress(ContainerRuntimeError):
                await found.close()

    def _report_unavailable(self, reason: str) -> None:
        """Emit the event once, until the runtime answers again."""
        self.reason = reason
        if self._reported is not False:
            self._reported = False
            self.events.emit(ContainerRuntimeUnavailable(reason=reason))

    async def _follow(self, runtime: ContainerRuntime) -> None:
        """Pass on events and lists until one of the two ends."""
        tasks = {
            asyncio.ensure_future(self._follow_events(runtime)),
            asyncio.ensure_future(self._poll(runtime)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _follow_events(self, runtime: ContainerRuntime) -> None:
        async for event in runtime.events():
            watchers = self._watchers.get(event.id, ())
            for watcher in list(watchers):
                watcher.handle_event(event)
            if not watchers and event.action is RuntimeAction.START:
                self._poll_now.set()
            elif not watchers and event.action is RuntimeAction.STOP:
                self.run_in_background(self._confirm_stop(runtime, event))
        raise RuntimeUnreachableError("the runtime ended its stream of events")

    async def _confirm_stop(self, runtime: ContainerRuntime, event: RuntimeEvent) -> None:
        """Report that a container was stopped, if it still is after a moment: it may be removed or
        restarted.
        """
        await self.clock.sleep(_CONFIRM_SECONDS)
        with suppress(ContainerRuntimeError):
            state = await runtime.inspect(event.id)
            if state is not None and not state.is_up and self._is_ours(state):
                self.on_stopped(event.name)

    async def _confirm_start(self, runtime: ContainerRuntime, listed: ContainerState) -> None:
        """Report that a container of ours runs without being watched. Inspects it, since the list
        may be old.
        """
        with suppress(ContainerRuntimeError):
            state = await runtime.inspect(listed.id)
            if state is not None and state.is_up and state.id not in self._watchers:
                self.on_started(state.name, state.started_at)

    def _is_ours(self, state: ContainerState) -> bool:
        return state.labels.get(OWNER_LABEL) == self.owner

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that runs until it ends or the host is closed."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _poll(self, runtime: ContainerRuntime) -> None:
        while True:
            self._poll_now.clear()
            self._apply_list(await self._list(runtime))
            await self.clock.sleep(_MIN_POLL_GAP)
            waiting = asyncio.ensure_future(self._poll_now.wait())
            try:
                await wait_until_done(waiting, self._poll_interval - _MIN_POLL_GAP, self.clock)
            finally:
                waiting.cancel()

    async def _list(self, runtime: ContainerRuntime) -> list[ContainerState]:
        listing = asyncio.ensure_future(runtime.list(self.owner))
        try:
            if await wait_until_done(listing, _CALL_TIMEOUT, self.clock):
                return listing.result()
        finally:
            listing.cancel()
        raise RuntimeUnreachableError(f"no list of containers within {_CALL_TIMEOUT:g} s")

    def _apply_list(self, states: list[ContainerState]) -> None:
        """Pass each watcher the state of its container, and find containers that run unwatched."""
        self._known.set()
        self.reason = ""
        if not self._reported:
            self._reported = True
            assert self._runtime is not None
            self.events.emit(ContainerRuntimeConnected(runtime=self._runtime.name))
        by_id = {state.id: state for state in states}
        for container_id, watchers in list(self._watchers.items()):
            for watcher in list(watchers):
                watcher.handle_listed(by_id.get(container_id))
        self._known_ids = set(by_id)
        assert self._runtime is not None
        for state in states:
            if state.is_up and state.id not in self._watchers:
                self.run_in_background(self._confirm_start(self._runtime, state))
