"""A container runtime in memory, whose containers run no process and behave as scripted.

    runtime = FakeRuntime(clock)
    runtime.add_image("agent:1")
    runtime.script("web").prints = ["listening"]
    host = ContainerHost(runtime.connect, …)
    …
    runtime.operator_stop("web")

It implements `ContainerRuntime` with the difficult behaviour of real runtimes. A start and a
command go on when their caller disconnects. A reply can get lost after the work was done. A
container can have ended by the time its start returns. Methods simulate operators, the kernel and
the network: `operator_…`, `end`, `go_down`.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from signal import SIGKILL
from typing import Any, TypeVar

from longwatch.core.clock import Clock
from longwatch.errors import RuntimeRefusedError, RuntimeUnreachableError
from longwatch.host.capture import LineSink
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.containers.runtime import (
    OWNER_LABEL,
    ContainerState,
    ContainerStatus,
    ExecEnd,
    RuntimeAction,
    RuntimeEvent,
)
from longwatch.testing.fake_container import ContainerScript, ExecHandler, FakeExec, FakeStream
from longwatch.testing.fake_daemon import CONFLICT, FakeDaemon, Fault

T = TypeVar("T")

_RESTARTING_POLICIES = frozenset({"always", "unless-stopped"})


class FakeRuntime:
    """One connection to a container runtime in memory, and the controls of that runtime.

    Implements `ContainerRuntime`. `connect` opens another connection to the same containers. All
    connections share controls, counters and faults. Use it on one event loop. `clock` gives the
    times, and only the command `timeout` waits on it. With `docker` the events of a stop come in
    Docker's order, else in Podman's. With `pullable` every image can be pulled, else only those of
    `add_image` exist.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        name: str = "fake 1.0",
        is_local: bool = False,
        docker: bool = False,
        pullable: bool = False,
    ) -> None:
        daemon = FakeDaemon(clock, docker=docker, pullable=pullable)
        self._attach(daemon, weakref.WeakSet(), name=name, is_local=is_local)

    def _attach(
        self,
        daemon: FakeDaemon,
        connections: weakref.WeakSet[FakeRuntime],
        *,
        name: str,
        is_local: bool,
    ) -> None:
        self._daemon = daemon
        self._connections = connections
        self._name = name
        self._is_local = is_local
        self._closed = False
        self._hung_up: asyncio.Future[Any] | None = None
        self._streams: weakref.WeakSet[FakeStream[Any]] = weakref.WeakSet()
        connections.add(self)

    async def connect(self) -> FakeRuntime | str:
        """Open another connection to the same containers. Returns the reason as text while the
        runtime is down.
        """
        if self._daemon.is_down:
            return f"{self.name} does not answer"
        connection = object.__new__(FakeRuntime)
        connection._attach(
            self._daemon, self._connections, name=self._name, is_local=self._is_local
        )
        return connection

    # --- ContainerRuntime ---

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_local(self) -> bool:
        return self._is_local

    async def list(self, owner: str) -> list[ContainerState]:
        async with self._call("list"):
            return [
                container.summary()
                for container in self._daemon.containers.values()
                if container.labels.get(OWNER_LABEL) == owner
            ]

    async def inspect(self, name: str) -> ContainerState | None:
        async with self._call("inspect"):
            return self.state(name)

    async def create(self, spec: ContainerSpec, labels: Mapping[str, str]) -> str:
        """Make a container. Raises RuntimeRefusedError for a name that is taken, and for an image
        that neither exists nor can be pulled.
        """
        async with self._call("create"):
            gate = self.script(spec.name).create_gate
            if gate is not None:
                await self._result(asyncio.ensure_future(gate.wait()))
            self._daemon.provide_image(spec)
            return self._daemon.add(spec, labels).id

    async def start(self, container_id: str) -> None:
        """Start a container. Raises RuntimeRefusedError if it is paused."""
        async with self._call("start"):
            container = self._daemon.expect(container_id)
            if container.status is ContainerStatus.PAUSED:
                raise RuntimeRefusedError(f"{container.name} is paused", status=CONFLICT)
            if not container.is_up:
                await self._result(self._daemon.begin_start(container))

    async def signal(self, container_id: str, signum: int) -> None:
        async with self._call("signal"):
            container = self._daemon.find(container_id)
            if container is not None and container.is_up:
                self._daemon.unpause(container)
                self._daemon.emit(RuntimeAction.KILL, container)
                self._daemon.signal(container, signum)

    async def remove(self, container_id: str) -> None:
        async with self._call("remove"):
            if (container := self._daemon.find(container_id)) is not None:
                self._daemon.remove(container)

    async def exec(
        self,
        container_id: str,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str],
        output: LineSink,
    ) -> ExecEnd:
        """Run a command in a container. Raises RuntimeRefusedError if it is paused or does not
        run.
        """
        async with self._call("exec"):
            container = self._daemon.expect_running(container_id)
            command = container.start_exec(
                argv, pid=self._daemon.made_up_pid(), cwd=cwd, env=env, output=output
            )
            try:
                return ExecEnd(exit_code=await self._result(command.ended))
            finally:
                command.hang_up()

    async def has_file(self, container_id: str, path: str) -> bool:
        async with self._call("has_file"):
            return path in self._daemon.expect(container_id).script.files

    def logs(self, container_id: str, *, since: float) -> AsyncIterator[bytes]:
        stream: FakeStream[bytes] = FakeStream()
        try:
            self._begin_call("logs")
            self._daemon.expect(container_id).read_log(stream, since)
        except Exception as error:  # noqa: BLE001 - its reader gets it
            stream.end(error)
        self._streams.add(stream)
        return stream

    def events(self) -> AsyncIterator[RuntimeEvent]:
        stream: FakeStream[RuntimeEvent] = FakeStream()
        try:
            self._begin_call("events")
        except Exception as error:  # noqa: BLE001 - its reader gets it
            stream.end(error)
            return stream
        for event in self._daemon.missed_events:
            stream.put(event)
        self._daemon.missed_events.clear()
        self._daemon.event_streams.add(stream)
        self._streams.add(stream)
        return stream

    async def close(self) -> None:
        """Close the connection. Every later call on it raises RuntimeUnreachableError."""
        self._closed = True
        self._hang_up()

    # --- containers and images ---

    def add_image(self, name: str) -> None:
        """Add an image."""
        self._daemon.images.add(name)

    def add_foreign(
        self,
        name: str,
        *,
        image: str = "foreign",
        labels: Mapping[str, str] | None = None,
        running: bool = True,
    ) -> str:
        """Make a container as another program would, by default without labels. Return its id."""
        container = self._daemon.add(ContainerSpec(name=name, image=image), labels or {})
        if running:
            self._daemon.start(container)
        return container.id

    def script(self, name: str) -> ContainerScript:
        """Return the script of the containers of this name, which a test may change at any time."""
        return self._daemon.scripts[name]

    def on_exec(self, name: str, handler: ExecHandler) -> None:
        """Set the handler that simulates every command in the containers of this name."""
        self.script(name).on_exec = handler

    def start_gate(self, name: str) -> asyncio.Event:
        """Make starts of this name slow: they wait until the event is set."""
        gate = self.script(name).start_gate = asyncio.Event()
        return gate

    def set_restart_policy(self, name: str, policy: str) -> None:
        """Set the runtime's restart policy of a container: `no`, `always`, `unless-stopped` or
        `on-failure`.
        """
        self._daemon.expect(name).restart_policy = policy

    def state(self, name: str) -> ContainerState | None:
        """Return what an inspection by name or id would show, also while the runtime is down."""
        container = self._daemon.find(name)
        return None if container is None else container.state()

    def names(self) -> Sequence[str]:
        """The names of all containers."""
        return [container.name for container in self._daemon.containers.values()]

    def signals(self, name: str) -> Sequence[int]:
        """Every signal that the containers of this name received, in order."""
        return tuple(self._daemon.signals[name])

    def live_execs(self, name: str = "") -> Sequence[FakeExec]:
        """The commands started by exec that still run; without a name, in all containers."""
        return [
            command
            for container in self._daemon.containers.values()
            if name in {"", container.name}
            for command in container.execs
        ]

    @property
    def calls(self) -> Counter[str]:
        """How often each method of `ContainerRuntime` was called, on all connections."""
        return self._daemon.calls

    @property
    def pulls(self) -> Sequence[str]:
        """The images that were pulled, in order."""
        return self._daemon.pulls

    # --- faults and operators ---

    def fail_next(self, method: str, error: Exception, *, after: bool = False) -> None:
        """Make the next call of this method raise the error. Several faults of one method apply to
        successive calls. With `after` the call does its work first, so only its reply is lost.
        """
        self._daemon.faults[method].append(Fault(error, after))

    @property
    def drop_events(self) -> bool:
        """Whether events are dropped, as if every stream was stuck."""
        return self._daemon.drop_events

    @drop_events.setter
    def drop_events(self, value: bool) -> None:
        self._daemon.drop_events = value

    def go_down(self) -> None:
        """Stop replying: every call raises RuntimeUnreachableError, and events and logs end. The
        containers run on.
        """
        self._daemon.is_down = True
        for connection in list(self._connections):
            connection._hang_up()  # noqa: SLF001 - an object of this class

    def come_back(self, *, lose_events: bool = True) -> None:
        """Reply again. The events of the meantime are lost, or else the next `events` yields them
        first.
        """
        self._daemon.is_down = False
        if lose_events:
            self._daemon.missed_events.clear()

    def write_output(self, name: str, data: bytes) -> None:
        """Make a running container print data."""
        self._daemon.expect(name).write(data)

    def end(self, name: str, exit_code: int, *, out_of_memory: bool = False) -> None:
        """Make a running container end by itself. The runtime applies its restart policy."""
        container = self._daemon.expect(name)
        if out_of_memory:
            self._daemon.emit(RuntimeAction.OOM, container)
        self._daemon.end(container, exit_code, out_of_memory=out_of_memory)
        policy = container.restart_policy
        if policy in _RESTARTING_POLICIES or (policy == "on-failure" and exit_code):
            self._daemon.start(container)

    def operator_stop(self, name: str) -> None:
        """Do what `podman stop` or `docker stop` does. A container that ignores SIGTERM is killed
        at once, as if its grace were over.
        """
        self._daemon.stop(self._daemon.expect(name))

    def operator_kill(self, name: str, signum: int = SIGKILL) -> None:
        """Do what `podman kill` does."""
        container = self._daemon.expect_running(name)
        self._daemon.emit(RuntimeAction.KILL, container)
        self._daemon.signal(container, signum)

    def operator_remove(self, name: str) -> None:
        """Do what `podman rm -f` does."""
        self._daemon.remove(self._daemon.expect(name))

    def operator_start(self, name: str) -> None:
        """Do what `podman start` does."""
        self._daemon.start(self._daemon.expect(name))

    def operator_restart(self, name: str) -> None:
        """Do what `podman restart` does."""
        container = self._daemon.expect(name)
        self._daemon.stop(container)
        self._daemon.start(container)

    def operator_pause(self, name: str) -> None:
        """Do what `podman pause` does."""
        self._daemon.pause(self._daemon.expect_running(name))

    def operator_unpause(self, name: str) -> None:
        """Do what `podman unpause` does."""
        self._daemon.unpause(self._daemon.expect(name))

    # --- calls ---

    @asynccontextmanager
    async def _call(self, method: str) -> AsyncIterator[None]:
        """Make one call of `ContainerRuntime`: yield to the loop, and raise a fault before or after
        the work.
        """
        fault = self._begin_call(method)
        await asyncio.sleep(0)
        self._expect_connected()
        yield
        if fault is not None:
            raise fault.error

    def _begin_call(self, method: str) -> Fault | None:
        """Count the call and raise a fault that is due before it. Return a fault for after it."""
        self._daemon.calls[method] += 1
        self._expect_connected()
        faults = self._daemon.faults[method]
        fault = faults.popleft() if faults else None
        if fault is not None and not fault.after:
            raise fault.error
        return fault

    async def _result(self, work: asyncio.Future[T]) -> T:
        """Wait for work that goes on without its caller. Raises RuntimeUnreachableError if the
        connection is lost first.
        """
        if self._hung_up is None:
            self._hung_up = asyncio.get_running_loop().create_future()
        waiting: set[asyncio.Future[Any]] = {work, self._hung_up}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise self._unreachable()
        return work.result()

    def _hang_up(self) -> None:
        if self._hung_up is not None:
            self._hung_up.set_result(None)
            self._hung_up = None
        for stream in list(self._streams):
            stream.end()
        self._streams.clear()

    def _expect_connected(self) -> None:
        if self._closed or self._daemon.is_down:
            raise self._unreachable()

    def _unreachable(self) -> RuntimeUnreachableError:
        reason = "the connection is closed" if self._closed else "it does not answer"
        return RuntimeUnreachableError(f"cannot reach {self.name}: {reason}")
