"""The interface to a container runtime: the operations that Docker and Podman provide.

All calls are async and run on one event loop. They neither retry nor have timeouts of their own:
callers set deadlines by cancelling. Every call raises RuntimeUnreachableError when the runtime does
not answer, and RuntimeRefusedError when it refuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from longwatch.host.capture import LineSink

if TYPE_CHECKING:
    from longwatch.supervisor.containers.container_spec import ContainerSpec

OWNER_LABEL = "longwatch.owner"
NAME_LABEL = "longwatch.name"
SPEC_LABEL = "longwatch.spec"


class ContainerStatus(StrEnum):
    """The states of a container that matter here. Docker's `created`, `dead`, `removing` and
    `exited` are all `STOPPED`; its `restarting` is `RUNNING`.
    """

    RUNNING = auto()
    PAUSED = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """The state of one container in the runtime. A list fills in the first four fields only."""

    id: str
    name: str
    status: ContainerStatus
    labels: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0
    """The pid of its first process on this host; 0 while it does not run or is not visible."""
    is_local: bool = False
    """Whether `pid` is a pid of this host, so that it shows whether the process exists."""
    exit_code: int = 0
    out_of_memory: bool = False
    started_at: float = 0.0
    """Wall time; 0 if it never ran."""
    finished_at: float = 0.0
    """Wall time; 0 if it has not ended yet."""
    image: str = ""
    restart_policy: str = "no"
    """The runtime's own policy; any other than `no` conflicts with the supervisor."""
    address: str = ""
    """Its address in the runtime's network; empty if it has none."""
    published_ports: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """Host address and port, by port of the container."""

    @property
    def is_up(self) -> bool:
        """Whether it runs, paused or not."""
        return self.status is not ContainerStatus.STOPPED


def is_corpse(state: ContainerState) -> bool:
    """Return whether the runtime reports it as running although its process is gone.

    Podman does so after the container's monitor process was killed. False if its pid is not visible
    on this host.
    """
    return state.is_up and state.pid > 0 and state.is_local and not _is_process(state.pid)


def _is_process(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").exists()
    except OSError:
        return True


class RuntimeAction(StrEnum):
    """The events that are handled; implementations skip all others."""

    START = auto()
    DIE = auto()
    STOP = auto()
    KILL = auto()
    PAUSE = auto()
    UNPAUSE = auto()
    REMOVE = auto()
    """Docker calls it `destroy`."""
    OOM = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeEvent:
    """An event of a container."""

    action: RuntimeAction
    id: str
    name: str
    exit_code: int | None = None
    """The exit code of a `DIE` event; None if the runtime did not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecEnd:
    """How a command in a container ended, with `exit_code` as a shell reports it."""

    exit_code: int


class ContainerRuntime(Protocol):
    """One connection to a runtime. Used on the event loop that created it."""

    @property
    def name(self) -> str:
        """Name and version for display, such as `podman 4.3.1`."""

    @property
    def is_local(self) -> bool:
        """Whether the processes of its containers are processes of this host."""

    async def list(self, owner: str) -> list[ContainerState]:
        """Return all containers with this owner label, running or not."""

    async def inspect(self, name: str) -> ContainerState | None:
        """Return the state of one container, by name or id; None if there is none."""

    async def create(self, spec: ContainerSpec, labels: Mapping[str, str]) -> str:
        """Create a container with restart policy `no` and return its id. Pulls the image first, as
        the spec's pull policy says.
        """

    async def start(self, container_id: str) -> None:
        """Start it. Does nothing if it runs."""

    async def signal(self, container_id: str, signum: int) -> None:
        """Send a signal to its first process; unpause it first if it is paused. Does nothing if it
        does not run or is gone.
        """

    async def remove(self, container_id: str) -> None:
        """Remove it, running or not. Does nothing if it is gone."""

    async def exec(
        self,
        container_id: str,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str],
        output: LineSink,
    ) -> ExecEnd:
        """Run a command in it and return how it ended; its output goes to the sink as it comes.
        Cancelling closes the connection and leaves the command running: the API cannot kill it.
        """

    async def has_file(self, container_id: str, path: str) -> bool:
        """Return whether the container has a file at that path."""

    def logs(self, container_id: str, *, since: float) -> AsyncIterator[bytes]:
        """Yield its output since that wall time, in chunks, until it stops."""

    def events(self) -> AsyncIterator[RuntimeEvent]:
        """Yield the events from now on; end or raise when the connection is lost."""

    async def close(self) -> None:
        """Close the connection. Idempotent."""
