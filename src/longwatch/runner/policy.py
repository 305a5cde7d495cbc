"""The settings of a runner as frozen values: its sources, its agent, its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from longwatch.host.process import ResourceLimits

MEBIBYTE = 1 << 20
DAY = 86_400.0


class Severity(StrEnum):
    """How grave a stream event is, from the mildest. `OTHER`, a word that no vocabulary has, counts
    as info.
    """

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
    OTHER = "other"


class SourceKind(StrEnum):
    SSE = "sse"
    MCP = "mcp"


class OverflowPolicy(StrEnum):
    """How a full queue treats one more event."""

    DROP_OLDEST = "drop-oldest"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """How to subscribe to an MCP server: the tool to call, and the logger of its events."""

    tool: str = "events_subscribe"
    arguments: Mapping[str, object] = field(default_factory=lambda: {"mode": "faults"})
    logger: str = "kubernetes/faults"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """One event source.

    `headers` are sent with each request, secrets resolved. `token_file` is read at each dial and
    sent as a bearer token. `ca_file`: the authorities to trust; `cert_file` and `key_file`: our
    certificate. `labels` are added to `event.json` of each run.
    """

    name: str
    url: str
    kind: SourceKind = SourceKind.SSE
    enabled: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    subscription: Subscription = field(default_factory=Subscription)

    @property
    def mailbox(self) -> str:
        return f"runner/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCheck:
    """The output that a successful run must leave: a file in its workspace with a least size."""

    file: str
    min_bytes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """The agent: one command for every stream event.

    `prompt`: a text file. A run gets a copy, followed by the event, as `prompt.md` in its workspace
    and on its standard input. Without one, standard input is `event.json`. `env_names`: which
    variables of the runner's environment an agent gets; `env`: more of them.
    """

    command: tuple[str, ...]
    workspace: Path = Path("runs")
    prompt: Path | None = None
    success: OutputCheck | None = None
    env_names: tuple[str, ...] = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER")
    env: Mapping[str, str] = field(default_factory=dict)
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    stop_grace: float = 5.0
    max_output_bytes: int = 10 * MEBIBYTE
    """The bytes that are kept of each of its two streams, from the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPolicy:
    """The settings of a runner; durations in seconds, None: off."""

    agent_timeout: float | None = 300.0
    progress_timeout: float | None = None
    """Seconds without output after which an agent is stalled and ended."""
    max_queue_age: float | None = 600.0
    queue_sweep_interval: float = 60.0
    shutdown_timeout: float = 30.0
    reconnect_initial_delay: float = 1.0
    reconnect_max_delay: float = 60.0
    read_timeout: float = 120.0
    severity_threshold: Severity = Severity.INFO
    max_concurrent_agents: int = 5
    max_concurrent_per_source: int = 1
    source_queue_size: int = 1000
    overflow: OverflowPolicy = OverflowPolicy.DROP_OLDEST
    dedup_window: float = 300.0
    """0: off."""
    max_attempts: int = 3
    work_breaker_failures: int = 5
    work_breaker_cooldown: float = 300.0
    breaker_affects_readiness: bool = True
    alert_after_failures: int = 5
    """The alert throttle: an outage is announced at this many failures in a row."""
    max_event_bytes: int = 4 * MEBIBYTE
    run_retention: float = 14 * DAY
    event_retention: float = 7 * DAY
    retry_delay: float = 10.0
    """Seconds before the second attempt of a failed run. The delay doubles, up to 900."""
