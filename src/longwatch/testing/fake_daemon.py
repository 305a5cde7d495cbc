"""The process behind every connection to one `FakeRuntime`: containers, images, events, faults."""

from __future__ import annotations

import asyncio
import itertools
import signal
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import NamedTuple

from longwatch.core.clock import Clock
from longwatch.errors import RuntimeRefusedError
from longwatch.supervisor.containers.container_spec import ContainerSpec, PullPolicy
from longwatch.supervisor.containers.runtime import (
    ContainerStatus,
    RuntimeAction,
    RuntimeEvent,
)
from longwatch.testing.fake_container import ContainerScript, FakeContainer, FakeStream

_FIRST_MADE_UP_PID = 1 << 30
"""Above the highest pid of Linux, so that no signal reaches a real process."""
NOT_FOUND, CONFLICT = 404, 409


class Fault(NamedTuple):
    """An error that a call will raise, before or after its work."""

    error: Exception
    after: bool


class FakeDaemon:
    """Holds the containers, changes them and emits the events of each change in order.

    With `docker` the events of a stop come in Docker's order, else in Podman's. Used only on the
    event loop.
    """

    def __init__(self, clock: Clock, *, docker: bool, pullable: bool) -> None:
        self.clock = clock
        self.docker = docker
        self.pullable = pullable
        self.is_down = False
        self.drop_events = False
        self.images: set[str] = set()
        self.pulls: list[str] = []
        self.containers: dict[str, FakeContainer] = {}
        """The containers by id."""
        self.scripts: dict[str, ContainerScript] = defaultdict(ContainerScript)
        self.signals: dict[str, list[int]] = defaultdict(list)
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.missed_events: list[RuntimeEvent] = []
        self.event_streams: weakref.WeakSet[FakeStream[RuntimeEvent]] = weakref.WeakSet()
        self._starts: dict[str, asyncio.Task[None]] = {}
        """The starts in progress, by container id."""
        self._numbers = itertools.count(1)

    def find(self, name: str) -> FakeContainer | None:
        """Return the container of this name or id; None if there is none."""
        found = (each for each in self.containers.values() if name in {each.id, each.name})
        return next(found, None)

    def expect(self, name: str) -> FakeContainer:
        """Return the container of this name or id. Raises RuntimeRefusedError if there is none."""
        container = self.find(name)
        if container is None:
            names = ", ".join(each.name for each in self.containers.values()) or "none"
            raise RuntimeRefusedError(
                f"there is no container {name}; there are: {names}", status=NOT_FOUND
            )
        return container

    def expect_running(self, name: str) -> FakeContainer:
        """Return the container of this name or id. Raises RuntimeRefusedError if it does not run or
        is paused.
        """
        container = self.expect(name)
        if container.status is not ContainerStatus.RUNNING:
            raise RuntimeRefusedError(f"{container.name} is {container.status}", status=CONFLICT)
        return container

    def made_up_pid(self) -> int:
        """Return a pid that no process of this host can have."""
        return _FIRST_MADE_UP_PID + next(self._numbers)

    # --- making ---

    def provide_image(self, spec: ContainerSpec) -> None:
        """Pull the image by the spec's policy. Raises RuntimeRefusedError if that is impossible."""
        pulls = spec.pull is PullPolicy.ALWAYS or (
            spec.pull is PullPolicy.MISSING and spec.image not in self.images
        )
        if pulls and self.pullable:
            self.pulls.append(spec.image)
            self.images.add(spec.image)
        elif pulls or spec.image not in self.images:
            raise RuntimeRefusedError(f"{spec.image}: no such image", status=NOT_FOUND)

    def add(self, spec: ContainerSpec, labels: Mapping[str, str]) -> FakeContainer:
        """Make a container. Raises RuntimeRefusedError if its name is taken."""
        if self.find(spec.name) is not None:
            raise RuntimeRefusedError(f"the name {spec.name} is in use", status=CONFLICT)
        container = FakeContainer(
            spec,
            container_id=f"{next(self._numbers):064x}",
            labels=labels,
            script=self.scripts[spec.name],
            clock=self.clock,
        )
        self.containers[container.id] = container
        return container

    # --- starting ---

    def begin_start(self, container: FakeContainer) -> asyncio.Task[None]:
        """Return the task of a start that waits for its gate, or of the start in progress."""
        if container.id not in self._starts:
            task = self._starts[container.id] = asyncio.ensure_future(self._start_slowly(container))
            task.add_done_callback(lambda _: self._starts.pop(container.id))
        return self._starts[container.id]

    async def _start_slowly(self, container: FakeContainer) -> None:
        if container.script.start_gate is not None:
            await container.script.start_gate.wait()
        self.start(container)

    def start(self, container: FakeContainer) -> None:
        """Start the container. Does nothing if it runs or was removed meanwhile."""
        if container.is_up or container.id not in self.containers:
            return
        container.run(container.script.pid or self.made_up_pid())
        self.emit(RuntimeAction.START, container)
        if container.script.exits_at_start is not None:
            self.end(container, container.script.exits_at_start)

    # --- ending ---

    def end(self, container: FakeContainer, exit_code: int, *, out_of_memory: bool = False) -> None:
        """End the container and emit that. The restart policy is not applied."""
        container.end(exit_code, out_of_memory=out_of_memory)
        self.emit(RuntimeAction.DIE, container, exit_code)

    def signal(self, container: FakeContainer, signum: int) -> None:
        """Send a signal to the first process, with the effect that its script defines."""
        script = container.script
        self.signals[container.name].append(signum)
        if script.on_signal is not None and signum != signal.SIGKILL:
            script.on_signal(signum)
        code = script.exit_code_on(signum)
        if code is not None and container.is_up:
            self.end(container, code)

    def stop(self, container: FakeContainer) -> None:
        """Send SIGTERM, and SIGKILL if it still runs. The events are `kill, die, stop` in Docker
        and `stop, die` in Podman. Does nothing if it does not run.
        """
        if not container.is_up:
            return
        self._announce_stop(container)
        self.signal(container, signal.SIGTERM)
        if container.is_up:
            self.signal(container, signal.SIGKILL)
        if self.docker:
            self.emit(RuntimeAction.STOP, container)

    def remove(self, container: FakeContainer) -> None:
        """Remove the container. The events are `kill, die, remove` in Docker and `stop, die,
        remove` in Podman; only `remove` if it does not run.
        """
        if container.is_up:
            self._announce_stop(container)
            self.signal(container, signal.SIGKILL)
        del self.containers[container.id]
        self.emit(RuntimeAction.REMOVE, container)

    def _announce_stop(self, container: FakeContainer) -> None:
        self.unpause(container)
        self.emit(RuntimeAction.KILL if self.docker else RuntimeAction.STOP, container)

    # --- the rest ---

    def pause(self, container: FakeContainer) -> None:
        container.status = ContainerStatus.PAUSED
        self.emit(RuntimeAction.PAUSE, container)

    def unpause(self, container: FakeContainer) -> None:
        """Resume the container. Does nothing if it is not paused."""
        if container.status is ContainerStatus.PAUSED:
            container.status = ContainerStatus.RUNNING
            self.emit(RuntimeAction.UNPAUSE, container)

    def emit(
        self, action: RuntimeAction, container: FakeContainer, exit_code: int | None = None
    ) -> None:
        """Send an event to every reader. While the runtime is down, keep it for later."""
        event = RuntimeEvent(
            action=action, id=container.id, name=container.name, exit_code=exit_code
        )
        if self.drop_events:
            return
        if self.is_down:
            self.missed_events.append(event)
        for stream in list(self.event_streams):
            stream.put(event)
