"""`[containers]` and `[container.NAME]`: agents in Docker or Podman that are kept up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, field

from longwatch.config.fields import (
    DURATION,
    Command,
    ContainerPath,
    ImageName,
    Name,
    Period,
    PortToPublish,
    SettingsTable,
    Size,
    Text,
    argv,
    byte_count,
    command_faults,
    duration_words,
)
from longwatch.config.programs import ManagedSettings, dependencies, probe_tables, ready_faults
from longwatch.config.settings_reader import UNSET
from longwatch.config.tables import OutputSettings, ProbeSettings, probe_faults
from longwatch.core.duration import YEAR_SECONDS
from longwatch.errors import Fault
from longwatch.supervisor.containers.container_spec import (
    MIN_MEMORY_BYTES,
    PublishedPort,
    PullPolicy,
    is_network_name,
    parse_port,
    shown,
)
from longwatch.supervisor.dependencies import Condition, Readiness

RUNTIME_VARIABLE = "CONTAINER_RUNTIME"
RUNTIMES = ("auto", "docker", "podman")

PollInterval = Annotated[
    float,
    Meta(ge=0.1, le=YEAR_SECONDS, description=duration_words("0.1 to a year"), extra=DURATION),
]


class ContainersSettings(SettingsTable, frozen=True, kw_only=True):
    """`[containers]`: the runtime, the registry of agents, and settings of all containers."""

    registry: Text | None = None
    """The file with the agents, a JSON object, relative to this file; not set: none."""
    runtime: Literal["auto", "docker", "podman"] = "auto"
    """The runtime; "auto": the first that answers."""
    bind_roots: list[Text] = field(default_factory=lambda: ["."])
    """The directories, relative to this file, below which binds are allowed."""
    poll_interval: PollInterval = 5.0
    """The interval of full lists of the containers, beside the events of the runtime."""
    pull: PullPolicy = PullPolicy.MISSING
    """When an image is pulled: "missing": if it is not there; "never"; "always": before each
    container is created.
    """
    stop_on_exit: bool = False
    """True: containers stop when `longwatch up` stops. False: they run on, and the next `longwatch
    up` adopts them.
    """


class ContainerLimitsSettings(SettingsTable, frozen=True, kw_only=True):
    """`limits` of a container."""

    memory: Size | None = None
    """As for a program, and 6 MiB at least; not set: no limit."""

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else byte_count(self.memory)

    def faults(self) -> Iterator[Fault]:
        if self.memory_bytes is not None and self.memory_bytes < MIN_MEMORY_BYTES:
            yield Fault(
                "memory",
                f"is {self.memory_bytes} bytes, and no runtime takes less than 6 MiB",
                'give it more, such as "512MB"',
            )


class ContainerSettings(ManagedSettings, frozen=True, kw_only=True):
    """`[container.NAME]`: one container. NAME is its name in the runtime, too."""

    image: ImageName
    """The image of the container."""
    command: Command | None = None
    """The command, run without a shell; not set: that of the image."""
    binds: list[Text] = field(default_factory=list)
    """Files and directories of this host inside it: "SOURCE:TARGET", or "SOURCE:TARGET:ro" for
    reading only. A source is relative to this file, and below one of `bind_roots`.
    """
    ports: list[PortToPublish] = field(default_factory=list)
    """Published ports: 80, "8080:80" or "ADDRESS:8080:80", with "/udp" at the end for UDP. Without
    an address on 127.0.0.1.
    """
    workdir: ContainerPath | None = None
    """The working directory; not set: that of the image."""
    user: Text | None = None
    """The user inside the container, by name or number; not set: that of the image."""
    network: Text | None = None
    """A network of the runtime, "none" for none; not set: the runtime's default."""
    pull: PullPolicy | None = None
    """Not set: that of `[containers]`."""
    stop_on_exit: bool | None = None
    """Not set: that of `[containers]`."""
    restart: Literal["on-failure", "always", "never"] = "always"
    """When it is started again after its end."""
    limits: ContainerLimitsSettings = ContainerLimitsSettings()
    liveness: ProbeSettings | None = None
    """As for a program."""
    readiness: ProbeSettings | None = None
    """As for a program."""
    startup: ProbeSettings | None = None
    """As for a program."""
    ready: Readiness | None = None
    """The condition of its readiness: "up", "healthy" or "probe". Not set: "probe" if it has a
    readiness probe, else "healthy" if it has another one, else "up".
    """
    ready_timeout: Period | Literal["off"] = "off"
    """As for a program."""
    critical: bool = False
    """As for a program."""
    autostart: bool = True
    """As for a program."""
    depends_on: list[Name] | dict[Name, Condition] = field(default_factory=list)
    """As for a program; programs and containers can wait for each other."""
    log: OutputSettings = OutputSettings()

    @property
    def argv(self) -> list[str]:
        """The command as words; empty if there is none."""
        return argv(self.command)

    @property
    def published_ports(self) -> tuple[PublishedPort, ...]:
        """The ports, once they are in order."""
        return tuple(parse_port(str(port)) for port in self.ports)

    @property
    def dependencies(self) -> dict[str, Condition]:
        return dependencies(self.depends_on)

    @property
    def probe_tables(self) -> dict[str, ProbeSettings]:
        """Its probes by their keys."""
        return probe_tables(self)

    def faults(self) -> Iterator[Fault]:
        yield from command_faults(self.command)
        yield from super().faults()
        yield from self._port_faults()
        if self.network is not None and not is_network_name(self.network):
            yield Fault(
                "network",
                f"must be the name of a network of the runtime, not {shown(self.network)}: a "
                f"container never shares the network of the host or of another container",
                "name a network, or take it out",
            )
        yield from self._probe_faults()
        yield from self._ready_faults()

    def _port_faults(self) -> Iterator[Fault]:
        for number, port in enumerate(self.ports):
            try:
                parse_port(str(port))
            except ValueError as error:
                yield Fault(f"ports[{number}]", str(error))

    def _probe_faults(self) -> Iterator[Fault]:
        tables = self.probe_tables
        beating = [key for key, probe in tables.items() if probe.effective_kind == "heartbeat"]
        for key in beating:
            problem = 'is "heartbeat", and a container has no notify socket'
            yield Fault(f"{key}.kind", problem, "choose another kind")
        for key, probe in tables.items():
            if probe.effective_kind in {"http", "tcp"} and probe.port is None:
                problem = f'is missing, and kind is "{probe.effective_kind}"'
                cure = "write the port inside the container, or choose another kind"
                yield Fault(f"{key}.port", problem, cure)
        if not beating:
            yield from probe_faults(
                liveness=self.liveness, readiness=self.readiness, startup=self.startup
            )

    def _ready_faults(self) -> Iterator[Fault]:
        if self.ready is Readiness.NOTIFY:
            problem = 'is "notify", and a container has no notify socket'
            yield Fault("ready", problem, 'add a readiness table, or say "up"')
        is_asked = (self.liveness or self.startup) is not None
        yield from ready_faults(self.ready, self.readiness, is_asked=is_asked, table="liveness")


def parse_runtime(text: str) -> object:
    """The runtime that CONTAINER_RUNTIME names. A word that names no runtime leaves the setting as
    it is, and is a fault where there are containers.
    """
    word = text.strip().lower()
    return word if word in RUNTIMES else UNSET
