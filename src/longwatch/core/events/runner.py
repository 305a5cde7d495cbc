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
    """The runner has opened its store and begins to connect. `settings`: all of them, masked."""

    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStopping(Event):
    """A stop was requested. `in_flight`: runs in progress; `budget`: seconds they have to end."""

    signal: str
    in_flight: int
    budget: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStopped(Event):
    """The runner has ended. `completed` and `interrupted` count the runs that were in flight."""

    duration: float
    completed: int
    interrupted: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last values of the counters and gauges, summed over their labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStopForced(Event):
    """The process exits before its stop is complete: its time is over, or a part did not stop.

    `unsettled`: stream events whose run is not stored as ended; they run again once their leases
    have lapsed. `left`: the parts that had not stopped.
    """

    default_level: ClassVar[Level] = Level.ERROR

    unsettled: int
    left: tuple[str, ...]


# --- connections ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SseConnectionEstablished(Event):
    """A source is connected. `downtime`: seconds since the last connection ended, 0 for
    the first.
    """

    text: ClassVar[str] = "SSE connection established"

    cluster: str
    downtime: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SseConnectionClosed(Event):
    """An established connection has ended. `error` is empty for a clean end."""

    text: ClassVar[str] = "SSE connection closed"

    cluster: str
    error: str
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SseConnectionFailed(Event):
    """A connection ended or could not be made, and is retried after `retry_in` seconds.

    `reason`: network_error, server_restart, idle_timeout, http_status, bad_content_type, dns, tls.
    `attempt`: how many times in a row, from 1.
    """

    default_level: ClassVar[Level] = Level.WARNING
    text: ClassVar[str] = "SSE connection failed, retrying"

    cluster: str
    error: str
    reason: str
    retry_in: float
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSourceDegraded(Event):
    """An outage of a source, or of the agent (`cluster` empty).

    Emitted once for each outage, at `alert_after_failures` failures in a row.
    """

    default_level: ClassVar[Level] = Level.ERROR

    cluster: str
    failures: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSourceRecovered(Event):
    """An outage that was reported has ended. `downtime`: seconds since its first failure."""

    cluster: str
    downtime: float


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
    """The server starts each connection at "now", so its events of these `seconds` are lost."""

    default_level: ClassVar[Level] = Level.WARNING

    cluster: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeToolMissing(Event):
    """An MCP server has no tool of this name; `tools` are those it has."""

    default_level: ClassVar[Level] = Level.ERROR

    cluster: str
    tool: str
    tools: tuple[str, ...]


# --- stream events ---


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEventsTaken(Event):
    """A batch of stream events was filtered and stored, in one transaction.

    `received` counts them by severity, `filtered` and `dropped` by reason. `breaker_dropped` counts
    those dropped because of a full queue while the work breaker is open; they are not in `dropped`.
    """

    default_level: ClassVar[Level] = Level.DEBUG

    cluster: str
    received: Mapping[str, int] = field(default_factory=dict)
    filtered: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    breaker_dropped: int = 0
    queued: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedEventExpired(Event):
    """A queued stream event has waited longer than MAX_QUEUE_AGE_SECONDS and is not run.

    `count`: how many events this one stands for. The log shows a few of a batch, metrics count them
    all.
    """

    default_level: ClassVar[Level] = Level.WARNING
    text: ClassVar[str] = "Expired queued event"
    max_logged_per_second: ClassVar[int | None] = 5

    cluster: str
    event_id: str
    age: float
    count: int = 1


# --- runs ---


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunStarted(Event):
    """An agent was spawned for a stream event. `pid` is None if the spawn failed."""

    cluster: str
    run_id: str
    event_id: str
    attempt: int
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunEnded(Event):
    """An agent run has ended, and no process of its tree is left.

    `status`: success, failure, timeout or cancelled. `cause`: `exit n`, `signal n`, timeout,
    cancelled, stalled, spawn_error, invalid_output, shutdown or lease_lost.
    """

    cluster: str
    run_id: str
    event_id: str
    attempt: int
    status: str
    cause: str
    duration: float
    error: str = ""
    survivors: int = 0

    @property
    def level(self) -> Level:
        return Level.INFO if self.status in {"success", "cancelled"} else Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunTimedOut(Event):
    """An agent ran for longer than its timeout and was stopped. `duration`: until its end."""

    default_level: ClassVar[Level] = Level.WARNING
    text: ClassVar[str] = "Agent timed out"

    cluster: str
    run_id: str
    duration: float
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunInterrupted(Event):
    """A shutdown stops a run; its stream event returns to the queue."""

    default_level: ClassVar[Level] = Level.WARNING

    run_id: str
    cluster: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSurvivorsKilled(Event):
    """Processes of an earlier runner process were still alive and were killed at the start."""

    default_level: ClassVar[Level] = Level.WARNING

    run_id: str
    cluster: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBreakerOpened(Event):
    """`failures` runs failed in a row: no run starts for `cooldown` seconds."""

    default_level: ClassVar[Level] = Level.ERROR

    failures: int
    cooldown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBreakerTrialStarted(Event):
    """The cool-down is over: one run is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBreakerClosed(Event):
    """A run succeeded, and runs start again. `open_for`: seconds since the breaker opened."""

    open_for: float
