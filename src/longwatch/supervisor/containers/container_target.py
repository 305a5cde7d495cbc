"""A container as a target: creates, starts and adopts it.

The steps: find it by name → refuse it if it is not ours → remove it if it was created from another
spec → create → start → register with the host → … → an event or a list shows that it does not run →
inspect → end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from longwatch.core.events.containers import ContainerRestartPolicyConflict
from longwatch.errors import (
    ContainerRuntimeError,
    RuntimeRefusedError,
    RuntimeUnreachableError,
    SpawnError,
    TargetRefusedError,
)
from longwatch.host.blocking_call import BlockingCall
from longwatch.host.loop import wait_until_done
from longwatch.host.process import StopPolicy
from longwatch.supervisor.containers.container_host import ContainerHost
from longwatch.supervisor.containers.container_spec import ContainerSpec, moved_binds
from longwatch.supervisor.containers.live_container import LiveContainer
from longwatch.supervisor.containers.runtime import (
    NAME_LABEL,
    OWNER_LABEL,
    SPEC_LABEL,
    ContainerRuntime,
    ContainerState,
    is_corpse,
)
from longwatch.supervisor.target_factory import Streams

T = TypeVar("T")

_ID = re.compile(r"\b[0-9a-f]{64}\b")

_BIND_SECONDS = 10.0
_START_SECONDS = 10.0
_LATE_STOP_SECONDS = 0.8
"""Seconds after an end within which Podman reports that a person stopped it, confirmation
included.
"""
_LOOK_SECONDS = 0.1
_NO_STREAMS = Streams(None, None, None)


class ContainerTarget:
    """Starts and adopts the container of a spec. Its output goes to the sink in `streams.stdout`,
    but not to a file descriptor there.
    """

    def __init__(
        self,
        spec: ContainerSpec,
        *,
        host: ContainerHost,
        streams: Streams,
        stop: StopPolicy | None = None,
    ) -> None:
        self._spec = spec
        self._host = host
        self._streams = streams
        self._stop = stop or StopPolicy()

    async def adopt(self) -> LiveContainer | None:
        """Return the container of this name if it runs, is ours and was created from this spec;
        else None.
        """
        state = await self._ask(lambda runtime: runtime.inspect(self._spec.name))
        if state is None or not state.is_up or not self._is_ours(state) or is_corpse(state):
            return None
        if state.labels.get(SPEC_LABEL) != self._spec.digest():
            return None
        return self._live(state, adopted=True)

    async def stop_unwatched(self, policy: StopPolicy) -> None:
        """Stop the container of this name if it is ours, whatever its spec."""
        try:
            state = await self._host.connected.inspect(self._spec.name)
        except ContainerRuntimeError:
            return
        if state is not None and state.is_up and self._is_ours(state):
            live = LiveContainer(
                self._spec, state, host=self._host, streams=_NO_STREAMS, adopted=True
            )
            live.begin_stop(policy)
            await live.wait()

    async def start(self) -> LiveContainer:
        """Start it, and create it anew if it is missing or was created from another spec.

        Waits for the runtime. A call that is cancelled after the runtime was asked to start the
        container still returns if the runtime answers. So its caller can stop the container.
        """
        container_id = await self._ask(self._prepare)
        await self._await_late_stop(container_id)
        starting = asyncio.ensure_future(self._start(container_id))
        try:
            state = await asyncio.shield(starting)
        except asyncio.CancelledError:
            if not await self._finishes(starting):
                raise
            state = starting.result()
        if state is None:
            raise SpawnError(f"the container {self._spec.name} was removed while it started")
        return self._live(state, adopted=False)

    async def _await_late_stop(self, container_id: str) -> None:
        """Wait a moment after its end: the runtime may still report that a person stopped it."""
        state = await self._ask(lambda runtime: runtime.inspect(container_id))
        ended = 0.0 if state is None else self._host.clock.wall() - state.finished_at
        if 0.0 < ended < _LATE_STOP_SECONDS:
            await self._host.clock.sleep(_LATE_STOP_SECONDS - ended)

    async def _start(self, container_id: str) -> ContainerState | None:
        await self._ask(lambda runtime: runtime.start(container_id))
        return await self._ask(lambda runtime: runtime.inspect(container_id))

    def _live(self, state: ContainerState, *, adopted: bool) -> LiveContainer:
        if state.restart_policy not in ("no", ""):
            self._host.events.emit(
                ContainerRestartPolicyConflict(program=self._spec.name, policy=state.restart_policy)
            )
        return LiveContainer(
            self._spec, state, host=self._host, streams=self._streams, adopted=adopted
        )

    async def _prepare(self, runtime: ContainerRuntime) -> str:
        """Return the id of a container that can be started: the existing one, or a new one."""
        state = await runtime.inspect(self._spec.name)
        if state is not None and not self._is_ours(state):
            raise TargetRefusedError(
                f"a container called {self._spec.name!r} exists and is not ours; remove or rename "
                f"it, then run `longwatch reset {self._spec.name}`"
            )
        if state is not None and (
            is_corpse(state) or state.labels.get(SPEC_LABEL) != self._spec.digest()
        ):
            await self._remove(runtime, state)
            state = None
        if state is not None:
            return state.id
        await self._check_binds(runtime)
        labels = {
            OWNER_LABEL: self._host.owner,
            NAME_LABEL: self._spec.name,
            SPEC_LABEL: self._spec.digest(),
        }
        container_id = await runtime.create(self._spec, labels)
        self._host.note_created(container_id)
        return container_id

    async def _finishes(self, starting: asyncio.Future[ContainerState | None]) -> bool:
        """Return whether a start that its caller cancelled completes while the runtime answers."""
        until = self._host.clock.monotonic() + _START_SECONDS
        while not starting.done() and self._host.is_known:
            if self._host.clock.monotonic() >= until:
                break
            await wait_until_done(starting, _LOOK_SECONDS, self._host.clock)
        starting.cancel()
        await asyncio.wait({starting})
        return not starting.cancelled() and starting.exception() is None

    async def _check_binds(self, runtime: ContainerRuntime) -> None:
        """Refuse binds that resolve elsewhere by now, or that contain the socket of this
        runtime.
        """
        socket_path: str | None = getattr(runtime, "socket_path", None)
        sockets = [] if socket_path is None else [Path(socket_path)]
        if not self._spec.binds:
            return
        checking = BlockingCall(
            lambda: moved_binds(self._spec, sockets=sockets),
            name="longwatch-binds",
            timeout=_BIND_SECONDS,
        )
        try:
            faults = await checking.run()
        except TimeoutError:
            raise SpawnError(
                "the sources of its binds could not be checked in time; look at the file systems "
                "they are on"
            ) from None
        finally:
            checking.close()
        if faults:
            raise TargetRefusedError("; ".join(faults))

    async def _remove(self, runtime: ContainerRuntime, state: ContainerState) -> None:
        """Stop a container that was created from another spec with its grace, and remove it."""
        clock = self._host.clock
        if state.is_up and not is_corpse(state):
            await runtime.signal(state.id, self._stop.signal)
            until = clock.monotonic() + self._stop.grace
            while clock.monotonic() < until:
                now = await runtime.inspect(state.id)
                if now is None or not now.is_up:
                    break
                await clock.sleep(min(0.1, max(until - clock.monotonic(), 0.01)))
        await runtime.remove(state.id)

    def _is_ours(self, state: ContainerState) -> bool:
        return state.labels.get(OWNER_LABEL) == self._host.owner

    async def _ask(self, call: Callable[[ContainerRuntime], Awaitable[T]]) -> T:
        """Call the runtime. Whenever it does not answer, wait for it and call again."""
        while True:
            runtime = await self._host.runtime()
            try:
                return await call(runtime)
            except RuntimeUnreachableError as error:
                self._host.suspect_lost(str(error))
            except RuntimeRefusedError as error:
                raise SpawnError(_ID.sub(self._spec.name, str(error))) from None
