"""Events of the runner: connections to event sources, stream events, agent runs.

`cluster` is the name of the event source. Labels of metrics come from these events, so `severity`,
`reason` and `status` are closed sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from longwatch.core.events.base import Event, Level

# --- the runner ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStarted(Event):
    """The runner has opened its store and begins to connect."""

    settings: Mapping[str, object]
    """All of them, masked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStopping(Event):
    """A stop was requested."""

    signal: str
    in_flight: int
    """Running agents."""
    budget: float
    """Seconds that they have to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStopped(Event):
    """The runner has ended."""

    duration: float
    completed: int
    """Runs that were in flight and ended by themselves."""
    interrupted: int
    """Runs that were in flight and that the stop interrupted."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last values of the counters and gauges, summed over their labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStopForced(Event):
    """The process ends before its stop is complete: its time is over, or a part did not stop. The
    exit code is 1.
    """

    default_level: ClassVar[Level] = Level.ERROR

    unsettled: int
    """Stream events whose run is not stored as ended; they run again once their leases have lapsed.
    """
    left: tuple[str, ...]
    """The parts that had not stopped."""


# --- connections ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SseConnectionEstablished(Event):
    """A source is connected."""

    text: ClassVar[str] = "SSE connection established"

    cluster: str
    downtime: float
    """Seconds since the last connection ended; 0 for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SseConnectionClosed(Event):
    """An established connection has ended."""

    text: ClassVar[str] = "SSE connection closed"

    cluster: str
    error: str
    """Empty for a clean end."""
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SseConnectionFailed(Event):
    """A connection ended or could not be made, and the runner reconnects."""

    default_level: ClassVar[Level] = Level.WARNING
    text: ClassVar[str] = "SSE connection failed, retrying"

    cluster: str
    error: str
    reason: str
    """`network_error`, `server_restart`, `idle_timeout`, `http_status`, `bad_content_type`, `dns`
    or `tls`.
    """
    retry_in: float
    """Seconds until the next attempt."""
    attempt: int
    """How many in a row, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSourceDegraded(Event):
    """An outage of a source or of the agent. Emitted once for each outage, at
    `alert_after_failures` failures in a row.
    """

    default_level: ClassVar[Level] = Level.ERROR

    cluster: str
    """The source; empty: the agent."""
    failures: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSourceRecovered(Event):
    """An outage that was reported has ended."""

    cluster: str
    downtime: float
    """Seconds since its first failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSourceEnded(Event):
    """The server asked the runner not to reconnect (204). The runner connects again after a
    restart.
    """

    default_level: ClassVar[Level] = Level.WARNING

    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSourceStandingBy(Event):
    """Another runner has the lease of this source; this one takes over when that one is gone."""

    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGapped(Event):
    """The server begins each connection at "now": its events during the gap are lost."""

    default_level: ClassVar[Level] = Level.WARNING

    cluster: str
    seconds: float
    """The length of the gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeToolMissing(Event):
    """An MCP server lacks the tool that subscribes."""

    default_level: ClassVar[Level] = Level.ERROR

    cluster: str
    tool: str
    tools: tuple[str, ...]
    """The tools that it has."""


# --- stream events ---


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEventsTaken(Event):
    """A batch of stream events was filtered and stored, in one transaction."""

    default_level: ClassVar[Level] = Level.DEBUG

    cluster: str
    received: Mapping[str, int] = field(default_factory=dict)
    """How many, by severity."""
    filtered: Mapping[str, int] = field(default_factory=dict)
    """How many, by reason."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """How many, by reason."""
    breaker_dropped: int = 0
    """How many were dropped because of a full queue while the work breaker is open; they are not in
    `dropped`.
    """
    queued: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedEventExpired(Event):
    """A queued stream event has waited longer than `max_queue_age` and is not run. The log shows at
    most five a second, metrics count all.
    """

    default_level: ClassVar[Level] = Level.WARNING
    text: ClassVar[str] = "Expired queued event"
    max_logged_per_second: ClassVar[int | None] = 5

    cluster: str
    event_id: str
    age: float
    count: int = 1
    """How many events this line stands for."""


# --- runs ---


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunStarted(Event):
    """An agent was spawned for a stream event."""

    cluster: str
    run_id: str
    event_id: str
    attempt: int
    pid: int | None
    """That of the agent; null if the spawn failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunEnded(Event):
    """An agent run has ended, and no process of its tree is left."""

    cluster: str
    run_id: str
    event_id: str
    attempt: int
    status: str
    """`success`, `failure`, `timeout` or `cancelled`."""
    cause: str
    """`exit n`, `signal n`, `timeout`, `cancelled`, `stalled`, `spawn_error`, `invalid_output`,
    `shutdown` or `lease_lost`.
    """
    duration: float
    error: str = ""
    survivors: int = 0

    @property
    def level(self) -> Level:
        """Warning for `failure` and `timeout`."""
        return Level.INFO if self.status in {"success", "cancelled"} else Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunTimedOut(Event):
    """An agent ran longer than its timeout and was stopped."""

    default_level: ClassVar[Level] = Level.WARNING
    text: ClassVar[str] = "Agent timed out"

    cluster: str
    run_id: str
    duration: float
    """Seconds until its end."""
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunInterrupted(Event):
    """A shutdown stops a run; its stream event returns to the queue."""

    default_level: ClassVar[Level] = Level.WARNING

    run_id: str
    cluster: str
    pid: int
    """That of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSurvivorsKilled(Event):
    """Processes of an earlier runner process were still alive and were killed at the start."""

    default_level: ClassVar[Level] = Level.WARNING

    run_id: str
    cluster: str
    pid: int
    """That of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBreakerOpened(Event):
    """`work_breaker_failures` runs in a row failed; no run starts during the cool-down."""

    default_level: ClassVar[Level] = Level.ERROR

    failures: int
    cooldown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBreakerTrialStarted(Event):
    """The cool-down is over, and one trial run starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBreakerClosed(Event):
    """A run succeeded, and runs start again."""

    open_for: float
    """Seconds since the breaker opened."""
