"""The seam to a container runtime: what Docker and Podman are asked, in the words of the field.

Everything is async and runs on one event loop. Nothing here retries or waits longer than the
runtime takes: callers set deadlines by cancelling. Every call raises RuntimeUnreachableError when
the runtime does not answer, and RuntimeRefusedError when it says no.
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
    """What the runtime knows of one container. A list fills in the first four fields only."""

    id: str
    name: str
    status: ContainerStatus
    labels: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0
    """Of its first process on this host; 0 while it does not run, or if it cannot be seen."""
    is_local: bool = False
    """Whether `pid` is a number of this host, so that it says whether the process is there."""
    exit_code: int = 0
    out_of_memory: bool = False
    started_at: float = 0.0
    """Wall time; 0 if it never ran."""
    finished_at: float = 0.0
    """Wall time; 0 if it has not ended yet."""
    image: str = ""
    restart_policy: str = "no"
    """The runtime's own; anything but `no` is a second authority."""
    address: str = ""
    """Its address in the runtime's network; empty if it has none."""
    published_ports: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """By port of the container: host address and port."""

    @property
    def is_up(self) -> bool:
        """Whether it runs, paused or not."""
        return self.status is not ContainerStatus.STOPPED


def is_corpse(state: ContainerState) -> bool:
    """Whether the runtime says that it runs, and its process is not there: Podman goes on saying so
    once the container's monitor process was killed. Only where its pid would be seen from here.
    """
    return state.is_up and state.pid > 0 and state.is_local and not _is_process(state.pid)


def _is_process(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").exists()
    except OSError:
        return True


class RuntimeAction(StrEnum):
    """The events that are acted on; an implementation passes over all others."""

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
    """Something happened to a container."""

    action: RuntimeAction
    id: str
    name: str
    exit_code: int | None = None
    """Of `DIE`; None if the runtime did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecEnd:
    """How a command in a container ended: `exit_code` as a shell reports it."""

    exit_code: int


class ContainerRuntime(Protocol):
    """One connection to a runtime. Used on the loop that made it."""

    @property
    def name(self) -> str:
        """For people: `podman 4.3.1`."""

    @property
    def is_local(self) -> bool:
        """Whether the processes of its containers are processes of this host."""

    async def list(self, owner: str) -> list[ContainerState]:
        """Every container, running or not, whose owner label is this."""

    async def inspect(self, name: str) -> ContainerState | None:
        """Everything about one container, by name or id; None if there is none."""

    async def create(self, spec: ContainerSpec, labels: Mapping[str, str]) -> str:
        """Make a container with restart policy `no` and return its id. Pulls the image first, as
        the spec's pull policy says.
        """

    async def start(self, container_id: str) -> None:
        """Start it. Nothing if it runs."""

    async def signal(self, container_id: str, signum: int) -> None:
        """Send a signal to its first process; a paused one is unpaused first. Nothing if it does
        not run, or is gone.
        """

    async def remove(self, container_id: str) -> None:
        """Remove it, running or not. Nothing if it is gone."""

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
        Cancelling hangs up and leaves it running: the API cannot kill it.
        """

    async def has_file(self, container_id: str, path: str) -> bool:
        """Whether there is a file of that path in it."""

    def logs(self, container_id: str, *, since: float) -> AsyncIterator[bytes]:
        """Its output from that wall time on, and on and on, in chunks; ends when it stops."""

    def events(self) -> AsyncIterator[RuntimeEvent]:
        """What happens from now on; ends, or raises, when the connection is lost."""

    async def close(self) -> None:
        """Hang up. Idempotent."""
