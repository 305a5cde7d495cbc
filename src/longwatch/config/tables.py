"""The tables that `[run]`, `[program.NAME]` and `[container.NAME]` have below them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, field

from longwatch.config.fields import (
    Command,
    Count,
    Period,
    Port,
    ScriptName,
    Seconds,
    SettingsTable,
    Size,
    Text,
    UrlPath,
    argv,
    byte_count,
    command_faults,
)
from longwatch.errors import Fault

DEFAULT_HEALTH_PORT = 8080
MIN_MEMORY_BYTES = 1 << 20

HealthKind = Literal["http", "tcp", "exec", "heartbeat"]
ProbeMethod = Literal["http", "tcp", "exec", "script", "heartbeat"]

_HEALTH_PATH = "/health"
_HOST_NAME = re.compile(r"[A-Za-z0-9.-]{1,253}|\[?[0-9A-Fa-f:.]{2,45}\]?")
_PROBE_INTERVAL = 1.0
_SETTLED_INTERVAL = 10.0
_FAILURE_THRESHOLD = 5
_STARTUP_FAILURE_THRESHOLD = 30
_METHODS_OF_KEYS: dict[str, tuple[ProbeMethod, ...]] = {
    "port": ("http", "tcp"),
    "path": ("http",),
    "command": ("exec",),
    "script": ("script",),
}
"""The keys of a probe that belong to some kinds only."""


class BackoffSettings(SettingsTable, frozen=True, kw_only=True):
    """`backoff`: how long to wait before a restart."""

    initial: Seconds = 1.0
    """The wait after the first failure; 0: at once."""
    factor: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    """Each further failure in a row multiplies the wait by this; 1 keeps it constant."""
    cap: Seconds = 30.0
    """No wait is longer."""
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Spreads each wait at random by up to this fraction of it, so that many programs do not
    start together; 0 for none.
    """

    def faults(self) -> Iterator[Fault]:
        if self.cap < self.initial:
            yield Fault(
                "cap",
                f"must not be less than initial ({self.initial:g}), not {self.cap:g}",
                "raise cap or lower initial",
            )


class BreakerSettings(SettingsTable, frozen=True, kw_only=True):
    """`breaker`: when to stop restarting."""

    restarts: Annotated[int, Meta(ge=1, le=1000)] = 5
    """So many restarts are allowed within the window; one more trips the breaker."""
    window: Period = 60.0
    """The time in which restarts are counted."""
    cooldown: Period | Literal["off"] = 300.0
    """The wait before a trial start; "off": only `longwatch reset` closes the breaker."""


class HealthSettings(SettingsTable, frozen=True, kw_only=True):
    """`health`: how a program is checked for its health."""

    enabled: bool | None = None
    """Whether there are health checks. Not set: for a program, if it has any key of `health`; for
    `longwatch run`, if a port, a kind or a command is set. HEALTH_CHECK_ENABLED=false turns all
    checks off.
    """
    kind: HealthKind | None = None
    """How health is checked; not set: "exec" if there is a command, else "http".

    Healthy is, for "http", a response 200 with JSON that has `"status": "healthy"`; for "tcp", an
    accepted connection; for "exec", exit code 0; for "heartbeat", `WATCHDOG=1` on the notify socket
    at least once every interval.
    """
    port: Port | None = None
    """The port on 127.0.0.1 for http and tcp; not set: health_port of [supervisor], for `longwatch
    run` PORT of the environment, else 8080.
    """
    path: UrlPath = _HEALTH_PATH
    """The path of the HTTP request."""
    command: Command | None = None
    """The command of "exec". It runs as the program does: same user, directory and environment."""
    interval: Period = 30.0
    """From the start of one check to the start of the next; for "heartbeat", the longest time
    between two `WATCHDOG=1`.
    """
    timeout: Period = 5.0
    """A check without a complete response by then has failed."""
    failures: Count = 3
    """The program is restarted after so many failed checks in a row."""
    start_grace: Seconds = 10.0
    """The time from a start to the first check."""
    startup: Period | Literal["off"] = "off"
    """Instead of a grace: checks begin at the start, every `startup_interval`, and the first
    success has to come within this time.
    """
    startup_interval: Period = 1.0
    """The interval of checks until the first success."""

    @property
    def effective_enabled(self) -> bool:
        """Whether `longwatch run` makes checks, all settings considered."""
        wanted = self.port is not None or self.kind is not None or self.command is not None
        return wanted if self.enabled is None else self.enabled

    @property
    def effective_kind(self) -> HealthKind:
        return self.kind or ("http" if self.command is None else "exec")

    @property
    def effective_port(self) -> int:
        """The port that is asked by `longwatch run`, all settings considered."""
        return DEFAULT_HEALTH_PORT if self.port is None else self.port

    @property
    def url(self) -> str:
        """What `longwatch run` asks over HTTP, all settings considered."""
        return f"http://127.0.0.1:{self.effective_port}{self.path}"

    @property
    def argv(self) -> list[str]:
        return argv(self.command)

    def faults(self) -> Iterator[Fault]:
        yield from command_faults(self.command)
        if self.kind == "exec" and self.command is None:
            yield Fault(
                "command",
                'is missing, and kind is "exec"',
                "write the command that checks, or choose another kind",
            )
        if self.kind not in {None, "exec"} and self.command is not None:
            yield Fault(
                "command",
                f'is for kind "exec", and kind is "{self.kind}"',
                "take one of the two out",
            )


class ProbeSettings(SettingsTable, frozen=True, kw_only=True):
    """`liveness`, `readiness` and `startup`: how a program or container is probed."""

    kind: ProbeMethod | None = None
    """How it is probed; not set: "script" if there is a script, "exec" if there is a command, else
    "http".

    "script": `sh ./SCRIPT` exits with 0, in the directory of a program, in `/code` of a container.
    The other kinds are those of `health`; a container has no "heartbeat".
    """
    port: Port | None = None
    """The port for http and tcp; not set: as for `health`. A container has to name it."""
    path: UrlPath = _HEALTH_PATH
    """The path of the HTTP request."""
    command: Command | None = None
    """The command of "exec". It runs where the program or container runs."""
    script: ScriptName | None = None
    """The file of "script"."""
    interval: Period | None = None
    """From the start of one probe to the start of the next; not set: 1, after the first success
    10; for "heartbeat" 10.
    """
    timeout: Period = 5.0
    """A probe without a complete response by then has failed."""
    failure_threshold: Count | None = None
    """The number of failures in a row that count; not set: 5, for a startup probe 30."""
    success_threshold: Count = 1
    """The number of successes in a row that count."""
    start_grace: Seconds = 0.0
    """The time from a start to the first probe."""

    @property
    def effective_kind(self) -> ProbeMethod:
        unset: ProbeMethod = "http" if self.command is None else "exec"
        return self.kind or (unset if self.script is None else "script")

    @property
    def effective_interval(self) -> float:
        """The interval until the first success."""
        beats = self.effective_kind == "heartbeat"
        return self.interval or (_SETTLED_INTERVAL if beats else _PROBE_INTERVAL)

    @property
    def settled_interval(self) -> float | None:
        """The interval after the first success; None: the same."""
        is_fixed = self.interval is not None or self.effective_kind == "heartbeat"
        return None if is_fixed else _SETTLED_INTERVAL

    @property
    def effective_failures(self) -> int:
        """How many failures in a row count, for liveness and readiness."""
        return self.failure_threshold or _FAILURE_THRESHOLD

    @property
    def startup_seconds(self) -> float:
        """How long a startup probe may fail."""
        failures = self.failure_threshold or _STARTUP_FAILURE_THRESHOLD
        return self.effective_interval * failures

    @property
    def argv(self) -> list[str]:
        return argv(self.command)

    def faults(self) -> Iterator[Fault]:
        yield from command_faults(self.command)
        kind = self.effective_kind
        if kind == "exec" and self.command is None:
            cure = "write the command that checks, or choose another kind"
            yield Fault("command", 'is missing, and kind is "exec"', cure)
        if kind == "script" and self.script is None:
            cure = "write the name of the script, or choose another kind"
            yield Fault("script", 'is missing, and kind is "script"', cure)
        for key, methods in _METHODS_OF_KEYS.items():
            if self._has(key) and kind not in methods:
                wanted = " or ".join(f'"{method}"' for method in methods)
                problem = f'is for kind {wanted}, and kind is "{kind}"'
                yield Fault(key, problem, "take one of the two out")

    def _has(self, key: str) -> bool:
        """Whether a key is set to something else than its default."""
        return bool(getattr(self, key) != (_HEALTH_PATH if key == "path" else None))


def probe_faults(
    *,
    liveness: ProbeSettings | None,
    readiness: ProbeSettings | None,
    startup: ProbeSettings | None,
    health_kind: HealthKind | None = None,
) -> Iterator[Fault]:
    """Faults between the probes of one program. `health_kind` is the kind of its `health` table,
    which is a liveness probe too.
    """
    liveness_kind = health_kind if liveness is None else liveness.effective_kind
    if startup is not None:
        yield from _startup_faults(startup, liveness_kind)
    if readiness is not None and readiness.effective_kind == "heartbeat":
        cure = 'say ready = "notify", or choose another kind'
        yield Fault("readiness.kind", 'is "heartbeat", which is for liveness', cure)
    for key, probe in (("liveness", liveness), ("readiness", readiness)):
        if probe is not None and probe.start_grace and startup is not None:
            problem = "is not waited for, because there is a startup probe"
            yield Fault(f"{key}.start_grace", problem, "take one of the two out")
    if readiness is not None and readiness.start_grace and liveness_kind and startup is None:
        problem = "is not waited for, because readiness is probed once liveness has passed"
        yield Fault("readiness.start_grace", problem, "take it out")


def _startup_faults(
    startup: ProbeSettings, liveness_kind: HealthKind | ProbeMethod | None
) -> Iterator[Fault]:
    if startup.success_threshold != 1:
        problem = f"must be 1, because a startup probe passes once, not {startup.success_threshold}"
        yield Fault("startup.success_threshold", problem, "take it out")
    if startup.start_grace:
        problem = "is for liveness and readiness: a startup probe is made from the start"
        yield Fault("startup.start_grace", problem, "take it out")
    if startup.effective_kind == "heartbeat" != liveness_kind:
        problem = 'is "heartbeat", and liveness is not'
        yield Fault("startup.kind", problem, "choose another kind")


class LimitsSettings(SettingsTable, frozen=True, kw_only=True):
    """`limits`: what it may use; not set: what we may use ourselves."""

    memory: Size | None = None
    """Bytes, or a size such as "512MB" (10⁶) or "512MiB" (2²⁰). A program that needs more is
    killed, with the end cause `memory`. The limit holds for the whole tree where the program can
    have a cgroup, else for the data of each process.
    """
    open_files: Annotated[int, Meta(ge=16, le=1 << 30)] | None = None
    """The number of open files of each process."""
    nice: Annotated[int, Meta(ge=-20, le=19)] | None = None
    """The scheduling priority: 19 yields to every other process; below 0 needs a privilege."""

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else byte_count(self.memory)

    def faults(self) -> Iterator[Fault]:
        if self.memory_bytes is not None and self.memory_bytes < MIN_MEMORY_BYTES:
            yield Fault(
                "memory",
                f"is {self.memory_bytes} bytes, with which nothing can start",
                'give it more, such as "512MB"',
            )


class LogFileSettings(SettingsTable, frozen=True, kw_only=True):
    """How large log files get."""

    max_bytes: Annotated[
        int, Meta(ge=1024, description="a whole number of bytes, 1024 or more")
    ] = 10 << 20
    """A log file of this size is rotated. It may be larger by one block of output, 64 KiB."""
    keep: Annotated[int, Meta(ge=0, le=1000)] = 5
    """The number of rotated files beside the current one."""


class OutputSettings(LogFileSettings, frozen=True, kw_only=True):
    """`log` of a program: where its output goes besides its file."""

    console: bool = True
    """False: the output goes only to its file."""


class PageSettings(SettingsTable, frozen=True, kw_only=True):
    """`[page]`: the status page, which `longwatch up` keeps up beside its programs."""

    port: Port | Literal["off"] | None = None
    """The port of the page (environment: LONGWATCH_PAGE_PORT). Not set: that of the last page, or
    the first free port from 8087 to 8097. "off": there is no page.
    """
    host: Text = "127.0.0.1"
    """The address of that port."""
    allowed_hosts: list[Text] = field(default_factory=list)
    """The names of hosts by which browsers may reach it, beside those of the loopback interface."""
    stores: list[Text] = field(default_factory=list)
    """The URLs of stores that it shows beside those of the workers and the runner."""

    def faults(self) -> Iterator[Fault]:
        for place, host in enumerate(self.allowed_hosts):
            if not _HOST_NAME.fullmatch(host):
                cure = 'write a name or an address alone, such as "status.example.org"'
                yield Fault(f"allowed_hosts[{place}]", f"is {host!r}, which names no host", cure)
