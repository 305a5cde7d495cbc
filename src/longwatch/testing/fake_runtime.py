"""A container runtime in memory: its containers run nothing and behave as their scripts say.

    runtime = FakeRuntime(clock)
    runtime.add_image("agent:1")
    runtime.script("web").prints = ["listening"]
    host = ContainerHost(runtime.connect, …)
    …
    runtime.operator_stop("web")

It keeps the rules of `ContainerRuntime`, and it is unkind where real runtimes are. A start and a
command go on when their caller hangs up. An answer can get lost after the work was done. A
container can have ended by the time its start returns. What people, the kernel and the network do
to a runtime are methods here: `operator_…`, `end`, `go_down`.
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

    It is a `ContainerRuntime`. `connect` opens another connection to the same containers; controls,
    counters and faults are the same on all of them. Everything is used on one event loop. `clock`
    gives the times; only the command `timeout` waits on it. With `docker` the events of a stop come
    in Docker's order, else in Podman's. With `pullable` every image can be pulled, else only those
    of `add_image` exist.
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
        """Open another connection to the same containers; why not, while the runtime is down."""
        if self._daemon.is_down:
            return f"{self.name} does not answer"
        connection = object.__new__(FakeRuntime)
        connection._attach(
            self._daemon, self._connections, name=self._name, is_local=self._is_local
        )
        return connection

    # --- the seam ---

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
        """Refuses a name that is taken, and an image that is neither there nor pullable."""
        async with self._call("create"):
            gate = self.script(spec.name).create_gate
            if gate is not None:
                await self._result(asyncio.ensure_future(gate.wait()))
            self._daemon.provide_image(spec)
            return self._daemon.add(spec, labels).id

    async def start(self, container_id: str) -> None:
        """A paused container refuses."""
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
        """A container that is paused or does not run refuses."""
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
        """Hang up; every later call on this connection raises RuntimeUnreachableError."""
        self._closed = True
        self._hang_up()

    # --- what there is ---

    def add_image(self, name: str) -> None:
        """The image is there from now on."""
        self._daemon.images.add(name)

    def add_foreign(
        self,
        name: str,
        *,
        image: str = "foreign",
        labels: Mapping[str, str] | None = None,
        running: bool = True,
    ) -> str:
        """Make a container as another program would, by default without labels; returns its id."""
        container = self._daemon.add(ContainerSpec(name=name, image=image), labels or {})
        if running:
            self._daemon.start(container)
        return container.id

    def script(self, name: str) -> ContainerScript:
        """What the containers of this name do, now and later; change it as needed."""
        return self._daemon.scripts[name]

    def on_exec(self, name: str, handler: ExecHandler) -> None:
        """Have the handler play every command that is run in the containers of this name."""
        self.script(name).on_exec = handler

    def start_gate(self, name: str) -> asyncio.Event:
        """Make starts of this name slow: they wait until the event is set."""
        gate = self.script(name).start_gate = asyncio.Event()
        return gate

    def set_restart_policy(self, name: str, policy: str) -> None:
        """Give a container a policy of the runtime's own: `no`, `always`, `unless-stopped`,
        `on-failure`.
        """
        self._daemon.expect(name).restart_policy = policy

    def state(self, name: str) -> ContainerState | None:
        """What an inspection by name or id would say, while the runtime is down too."""
        container = self._daemon.find(name)
        return None if container is None else container.state()

    def names(self) -> Sequence[str]:
        """The names of all containers."""
        return [container.name for container in self._daemon.containers.values()]

    def signals(self, name: str) -> Sequence[int]:
        """Every signal that the containers of this name got, in order."""
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
        """How often each method of the seam was called, on all connections."""
        return self._daemon.calls

    @property
    def pulls(self) -> Sequence[str]:
        """The images that were pulled, in order."""
        return self._daemon.pulls

    # --- what happens to it ---

    def fail_next(self, method: str, error: Exception, *, after: bool = False) -> None:
        """Have the next call of this method raise the error, or one later for each that is to fail
        already. With `after` the call does its work first: only its answer is lost.
        """
        self._daemon.faults[method].append(Fault(error, after))

    @property
    def drop_events(self) -> bool:
        """Whether no event reaches a reader, as if every stream was stuck."""
        return self._daemon.drop_events

    @drop_events.setter
    def drop_events(self, value: bool) -> None:
        self._daemon.drop_events = value

    def go_down(self) -> None:
        """The runtime does not answer: every call raises RuntimeUnreachableError, events and logs
        end. The containers go on.
        """
        self._daemon.is_down = True
        for connection in list(self._connections):
            connection._hang_up()  # noqa: SLF001 - one of this class

    def come_back(self, *, lose_events: bool = True) -> None:
        """The runtime answers again. Events from meanwhile are lost, or else they are the first
        that the next `events` gives.
        """
        self._daemon.is_down = False
        if lose_events:
            self._daemon.missed_events.clear()

    def write_output(self, name: str, data: bytes) -> None:
        """Have a running container print something."""
        self._daemon.expect(name).write(data)

    def end(self, name: str, exit_code: int, *, out_of_memory: bool = False) -> None:
        """Have a running container end by itself; the runtime applies its restart policy."""
        container = self._daemon.expect(name)
        if out_of_memory:
            self._daemon.emit(RuntimeAction.OOM, container)
        self._daemon.end(container, exit_code, out_of_memory=out_of_memory)
        policy = container.restart_policy
        if policy in _RESTARTING_POLICIES or (policy == "on-failure" and exit_code):
            self._daemon.start(container)

    def operator_stop(self, name: str) -> None:
        """As a person's `podman stop` or `docker stop`. One that ignores SIGTERM is killed at once,
        as if its grace were over.
        """
        self._daemon.stop(self._daemon.expect(name))

    def operator_kill(self, name: str, signum: int = SIGKILL) -> None:
        """As `podman kill`."""
        container = self._daemon.expect_running(name)
        self._daemon.emit(RuntimeAction.KILL, container)
        self._daemon.signal(container, signum)

    def operator_remove(self, name: str) -> None:
        """As `podman rm -f`."""
        self._daemon.remove(self._daemon.expect(name))

    def operator_start(self, name: str) -> None:
        """As `podman start`."""
        self._daemon.start(self._daemon.expect(name))

    def operator_restart(self, name: str) -> None:
        """As `podman restart`."""
        container = self._daemon.expect(name)
        self._daemon.stop(container)
        self._daemon.start(container)

    def operator_pause(self, name: str) -> None:
        """As `podman pause`."""
        self._daemon.pause(self._daemon.expect_running(name))

    def operator_unpause(self, name: str) -> None:
        """As `podman unpause`."""
        self._daemon.unpause(self._daemon.expect(name))

    # --- calls ---

    @asynccontextmanager
    async def _call(self, method: str) -> AsyncIterator[None]:
        """One call of the seam: it takes a turn of the loop, and may fail before or after."""
        fault = self._begin_call(method)
        await asyncio.sleep(0)
        self._expect_connected()
        yield
        if fault is not None:
            raise fault.error

    def _begin_call(self, method: str) -> Fault | None:
        """Count the call and raise the fault that is due; return one that is due after it."""
        self._daemon.calls[method] += 1
        self._expect_connected()
        faults = self._daemon.faults[method]
        fault = faults.popleft() if faults else None
        if fault is not None and not fault.after:
            raise fault.error
        return fault

    async def _result(self, work: asyncio.Future[T]) -> T:
        """Wait for work that goes on without its caller; RuntimeUnreachableError if the connection
        is lost first.
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
