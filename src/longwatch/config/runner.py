"""`[runner]`: event sources, the agent, and the limits between them.

Every setting of the table itself is a key of the file, an environment variable and a flag of
`longwatch runner` (`VARIABLES`). Sources and the agent are in the file alone. A secret is in the
file by the name of the variable that has it: `{env = "NAME"}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta, field

from longwatch.config.fields import (
    Argument,
    Command,
    Count,
    Name,
    Period,
    Seconds,
    SettingsTable,
    Text,
    VariableName,
    argv,
    command_faults,
)
from longwatch.config.settings_reader import EnvironmentVariable, toml_key
from longwatch.config.tables import LimitsSettings
from longwatch.core.masking import mask_text
from longwatch.errors import Fault
from longwatch.runner.policy import MEBIBYTE, AgentSpec, OverflowPolicy, Subscription

DEFAULT_HEALTH_PORT = 8080
DEFAULT_METRICS_PORT = 9090
DEFAULT_STORE = "sqlite:///longwatch.db"
DEFAULT_ENV_NAMES = AgentSpec(command=("true",)).env_names
PREFIX = "LONGWATCH_RUNNER_"

ListenPort = (
    Annotated[
        int, Meta(ge=0, le=65535, description="a port from 1 to 65535, 0 for any that is free")
    ]
    | Literal["off"]
)
SeverityWord = Literal["debug", "info", "warning", "error", "critical"]
Days = Annotated[float, Meta(gt=0, le=36_500, description="a number of days, more than 0")]
StoreUrl = Annotated[
    str,
    Meta(
        pattern=r"(?i)^(sqlite|postgres|postgresql)://[^\x00]+\Z",
        description="a SQL store, sqlite:///FILE or postgresql://… (Redis has no transactions)",
    ),
]
MetricPrefix = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,99}\Z",
        description="letters, digits and '_', no digit first",
    ),
]

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OWN_HEADERS = frozenset({"accept", "cache-control", "last-event-id", "content-length", "host"})


class EnvironmentReference(SettingsTable, frozen=True, kw_only=True):
    """`{env = "NAME"}`: a value that an environment variable has."""

    env: VariableName
    """The variable; it is read when the runner starts."""


class SubscribeSettings(SettingsTable, frozen=True, kw_only=True):
    """`subscribe`: how an MCP server is made to send events."""

    tool: Text = "events_subscribe"
    """The tool of an MCP server that is called after each connect."""
    arguments: dict[str, Any] = field(default_factory=lambda: {"mode": "faults"})
    """The arguments of that tool."""


class SourceSettings(SettingsTable, frozen=True, kw_only=True):
    """`[runner.source.NAME]`: one event source. NAME is `cluster` in logs and metrics."""

    url: Text
    """The address: `https://…` or `http://…`."""
    kind: Literal["sse", "mcp"] = "sse"
    """The protocol: Server-Sent Events, or MCP over HTTP."""
    enabled: bool = True
    """False: it stays connected, and its events are filtered as `disabled`."""
    headers: dict[Text, str | EnvironmentReference] = field(default_factory=dict)
    """Headers of each request: a text, or `{env = "NAME"}` for a secret."""
    token_file: Text | None = None
    """A file with a bearer token; read again at each connection."""
    ca_file: Text | None = None
    """The authorities to trust, in PEM; not set: those of the system."""
    cert_file: Text | None = None
    """The client certificate, in PEM."""
    key_file: Text | None = None
    """The key of the client certificate; not set: it is in cert_file."""
    labels: dict[Text, Argument] = field(default_factory=dict)
    """Labels that are added to `event.json` of each run."""
    subscribe: SubscribeSettings = SubscribeSettings()
    logger: Text = Subscription().logger
    """Of an MCP server: the logger whose notifications are events."""

    def faults(self) -> Iterator[Fault]:
        if problem := _url_problem(self.url):
            yield Fault("url", problem, 'write it as "https://host/path"')
        yield from self._header_faults()
        if self.key_file is not None and self.cert_file is None:
            yield Fault("key_file", "is set, and cert_file is not", "name the certificate too")
        if self.kind != "mcp":
            standard = {"subscribe": SubscribeSettings(), "logger": Subscription().logger}
            for key, value in standard.items():
                if getattr(self, key) != value:
                    yield Fault(key, 'is for kind "mcp", and kind is "sse"', "take it out")

    def _header_faults(self) -> Iterator[Fault]:
        for name, value in self.headers.items():
            place = f"headers.{toml_key(name)}"
            if not _HEADER_NAME.fullmatch(name):
                yield Fault(place, "is not the name of a header", "write letters, digits and '-'")
            elif name.lower() in _OWN_HEADERS:
                yield Fault(place, "is a header that the connection sets itself", "take it out")
            elif name.lower() == "authorization" and self.token_file is not None:
                yield Fault(place, "is set, and token_file too", "take one of the two out")
            if isinstance(value, str) and _CONTROL.search(value):
                yield Fault(place, "has a control character, which no header can", "take it out")


class SuccessSettings(SettingsTable, frozen=True, kw_only=True):
    """`success`: the output that a successful run must leave."""

    file: Text
    """A run with exit code 0 and without this file in its workspace has failed, such as
    "output/report.md".
    """
    min_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 1
    """The smallest size of that file; 0: it may be empty."""

    def faults(self) -> Iterator[Fault]:
        path = PurePosixPath(self.file)
        if path.is_absolute() or ".." in path.parts:
            yield Fault(
                "file", "is outside the workspace of a run", 'write it as "output/report.md"'
            )


class AgentSettings(SettingsTable, frozen=True, kw_only=True):
    """`[runner.agent]`: the command that runs for each event."""

    command: Command
    """The command and its arguments, run without a shell in the workspace of the run. No value of
    an event becomes part of it.
    """
    workspace: Text = "runs"
    """The directory for the workspaces of the runs; created if missing."""
    prompt: Text | None = None
    """A text file. A run gets it, followed by the event, as `prompt.md` and on standard input; not
    set: standard input is `event.json`.
    """
    success: SuccessSettings | None = None
    """The output that a run with exit code 0 must have left; not set: none."""
    env: dict[VariableName, Argument] = field(default_factory=dict)
    """Variables added to its environment."""
    env_names: list[VariableName] = field(default_factory=lambda: list(DEFAULT_ENV_NAMES))
    """Variables that it inherits from the runner."""
    stop_grace: Seconds = 5.0
    """The time from SIGTERM to SIGKILL, for the whole process tree."""
    max_output_bytes: Annotated[int, Meta(ge=4096, le=1 << 40)] = 10 * MEBIBYTE
    """The limit of each of `stdout.log` and `stderr.log`; of longer output the end is kept."""
    limits: LimitsSettings = LimitsSettings()

    @property
    def argv(self) -> list[str]:
        return argv(self.command)

    def faults(self) -> Iterator[Fault]:
        yield from command_faults(self.command)


class RunnerSettings(SettingsTable, frozen=True, kw_only=True):
    """`[runner]`: the settings of `longwatch runner`."""

    source: Annotated[
        dict[Name, SourceSettings],
        Meta(description='a table for each source: [runner.source.NAME] with url = "https://…"'),
    ]
    """The event sources, by name."""
    agent: AgentSettings
    agent_timeout: Period | Literal["off"] = 300.0
    """The longest run of an agent."""
    progress_timeout: Period | Literal["off"] = "off"
    """An agent that writes nothing for so long is stopped."""
    max_queue_age: Period | Literal["off"] = 600.0
    """Events that waited longer expire and are not run."""
    queue_sweep_interval: Period = 60.0
    """The interval of sweeps: expired events are settled, and old records removed."""
    shutdown_timeout: Period = 30.0
    """How long a stop waits for runs before it stops them. Their events stay queued."""
    health_port: ListenPort | None = None
    """The port for health; 0: any free port. Not set: 8080, inside `longwatch up` off."""
    health_host: Text = "0.0.0.0"  # noqa: S104 - probes come from outside
    """The address of the health port."""
    metrics_port: ListenPort | None = None
    """The port for metrics; 0: any free port. Not set: 9090, inside `longwatch up` off."""
    metrics_host: Text = "0.0.0.0"  # noqa: S104 - scrapes come from outside
    """The address of the metrics port."""
    metrics_namespace: MetricPrefix = "longwatch_runner"
    """The prefix of the names of metrics."""
    sse_reconnect_initial_delay: Period = 1.0
    """The wait before the first reconnect; it doubles with each failure in a row."""
    sse_reconnect_max_delay: Period = 60.0
    """The longest wait before a reconnect."""
    sse_read_timeout: Period = 120.0
    """The runner reconnects after so long without a byte."""
    severity_threshold: SeverityWord = "info"
    """Events below it are not run: debug < info < warning < error < critical."""
    max_concurrent_agents: Count = 5
    """The number of agents at a time."""
    max_concurrent_per_source: Count = 1
    """The number of agents at a time for one source."""
    source_queue_size: Count = 1000
    """The number of events that may wait for one source."""
    queue_overflow_policy: OverflowPolicy = OverflowPolicy.DROP_OLDEST
    """For a full queue: drop its oldest event, or reject the new one."""
    dedup_window: Seconds | Literal["off"] = 300.0
    """The same fault is not run again within this time; 0 or "off": it is."""
    max_attempts: Count = 3
    """The number of runs of one event before it is dead-lettered."""
    retry_delay: Period = 10.0
    """The wait before the second attempt; it doubles, up to 15 minutes."""
    work_breaker_failures: Count = 5
    """So many failed runs in a row open the work breaker: no run starts."""
    work_breaker_cooldown: Period = 300.0
    """The wait before a trial run when the work breaker is open."""
    breaker_affects_readiness: bool = True
    """Whether `/readyz` fails while the work breaker is open."""
    alert_after_failures: Count = 5
    """The runner reports an outage of a source or of the agent at so many failures in a row."""
    max_event_bytes: Annotated[int, Meta(ge=1024, le=1 << 30)] = 4 * MEBIBYTE
    """Larger events are dropped and counted."""
    run_retention_days: Days = 14.0
    """How many days runs and workspaces are kept."""
    event_retention_days: Days = 7.0
    """How many days events and dead letters are kept."""
    store_url: StoreUrl = DEFAULT_STORE
    """The SQL store; Redis has no transactions and is refused."""
    max_threads: Count | Literal["off"] = "off"
    """`/healthz` fails when the runner has more threads."""
    max_tasks: Count | Literal["off"] = "off"
    """`/healthz` fails when the event loop has more tasks."""
    max_rss_mb: Count | Literal["off"] = "off"
    """`/healthz` fails when the runner uses more memory, in MB."""

    def faults(self) -> Iterator[Fault]:
        if not self.source:
            yield Fault(
                "source", "names no event source", "add one: [runner.source.NAME] with url = …"
            )
        if self.sse_reconnect_max_delay < self.sse_reconnect_initial_delay:
            yield Fault(
                "sse_reconnect_max_delay",
                f"must not be less than sse_reconnect_initial_delay "
                f"({self.sse_reconnect_initial_delay:g}), not {self.sse_reconnect_max_delay:g}",
                "raise it, or lower the other",
            )
        same = self.health_port if isinstance(self.health_port, int) else None
        if same and same == self.metrics_port and self.health_host == self.metrics_host:
            yield Fault("metrics_port", f"is {same}, as health_port is", "give each its own")


UNPREFIXED = {
    "agent_timeout": "AGENT_TIMEOUT_SECONDS",
    "max_queue_age": "MAX_QUEUE_AGE_SECONDS",
    "queue_sweep_interval": "QUEUE_SWEEP_INTERVAL_SECONDS",
    "shutdown_timeout": "SHUTDOWN_TIMEOUT_SECONDS",
    "metrics_port": "METRICS_PORT",
    "metrics_host": "METRICS_HOST",
    "health_port": "HEALTH_PORT",
    "health_host": "HEALTH_HOST",
    "sse_reconnect_initial_delay": "SSE_RECONNECT_INITIAL_DELAY_SECONDS",
    "sse_reconnect_max_delay": "SSE_RECONNECT_MAX_DELAY_SECONDS",
    "sse_read_timeout": "SSE_READ_TIMEOUT_SECONDS",
    "severity_threshold": "SEVERITY_THRESHOLD",
    "max_concurrent_agents": "MAX_CONCURRENT_AGENTS",
}
"""The settings whose variables have no prefix."""
_DURATIONS = frozenset({"progress_timeout", "dedup_window", "retry_delay", "work_breaker_cooldown"})
OPTIONS = tuple(
    name for name in RunnerSettings.__struct_fields__ if name not in {"source", "agent"}
)
"""The settings that are variables and flags too."""


def variable_name(option: str) -> str:
    """The environment variable of a setting."""
    seconds = "_SECONDS" if option in _DURATIONS else ""
    return UNPREFIXED.get(option) or f"{PREFIX}{option.upper()}{seconds}"


VARIABLES = tuple(
    EnvironmentVariable(name=variable_name(option), path=f"runner.{option}", needs_table=True)
    for option in OPTIONS
)
"""The variables of the runner. They count only where there is a `[runner]`."""


def _url_problem(url: str) -> str:
    """Why no source can be at this URL; empty if one can."""
    shown = mask_text(url)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{shown!r} is not a URL ({str(error).lower()})"
    if parts.scheme.lower() not in {"http", "https"}:
        return f"must begin with https:// or http://, not {shown!r}"
    if not host or re.search(r"[\s\x00-\x1f\x7f]", url):
        return f"{shown!r} {'has white space' if host else 'names no host'}"
    return ""
