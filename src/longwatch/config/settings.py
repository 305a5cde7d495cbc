"""Every setting of Longwatch: meaning, special values, default. What stands here is what `longwatch.toml` may hold.

Durations are seconds. Each struct is frozen and knows no other keys; an environment variable or a flag overrides the file.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from longwatch.config.expect import YES
from longwatch.config.reading import SAYS_NOTHING, Variable, from_environment, from_flags, read_settings
from longwatch.core.events import Level
from longwatch.core.masking import mask_mapping
from longwatch.errors import Fault

YEAR = 31_536_000
DEFAULT_HEALTH_PORT = 8080
SIGNALS = {spelled: number for name, number in signal.Signals.__members__.items() for spelled in (name.removeprefix("SIG"), name)}
"""Every signal under both spellings: `TERM` and `SIGTERM`."""

Seconds = Annotated[float, Meta(ge=0, le=YEAR, description="a number of seconds (0 to a year)")]
Period = Annotated[float, Meta(gt=0, le=YEAR, description="a number of seconds (more than 0, a year at most)")]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Text = Annotated[str, Meta(min_length=1, pattern=r"^[^\x00]*\Z", description="text that is not empty")]
Name = Annotated[
    str, Meta(pattern=r"^(?!\.)[A-Za-z0-9._-]{1,64}\Z", description="letters, digits, '.', '_' and '-', 64 at most, no '.' first")
]
Argument = Annotated[str, Meta(pattern=r"^[^\x00]*\Z", description="text")]
VariableName = Annotated[str, Meta(pattern=r"^[^=\x00]+\Z", description="named without '=', and not empty")]
SignalName = Annotated[str, Meta(description='the name of a signal, such as "TERM"', extra={"choices": tuple(SIGNALS)})]
UrlPath = Annotated[str, Meta(pattern=r"^/[!-~]*\Z", description='a URL path that begins with "/" and has no spaces')]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class BackoffSettings(_Table, frozen=True, kw_only=True):
    """`[run.backoff]`: how long to wait before a restart."""

    initial: Seconds = 1.0
    """The wait after the first failure."""
    factor: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    """Each further failure in a row multiplies the wait by this; 1 keeps it constant."""
    cap: Seconds = 30.0
    """No wait is longer."""
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Spreads each wait at random by up to this fraction of it, so that many programs do not start together; 0 for none."""

    def faults(self) -> Iterator[Fault]:
        if self.cap < self.initial:
            yield Fault("cap", f"must not be less than initial ({self.initial:g}), not {self.cap:g}", "raise cap or lower initial")


class BreakerSettings(_Table, frozen=True, kw_only=True):
    """`[run.breaker]`: when to stop restarting."""

    restarts: Count = 5
    """So many restarts are allowed within the window; the failure that would need one more trips the breaker."""
    window: Period = 60.0
    """The time in which restarts are counted."""
    cooldown: Period | Literal["off"] = 300.0
    """How long after tripping one trial start is made; "off" waits for a person."""


class HealthSettings(_Table, frozen=True, kw_only=True):
    """`[run.health]`: asking the program over HTTP whether it is well."""

    enabled: bool | None = None
    """Whether to check at all; not set: only if a port is set. HEALTH_CHECK_ENABLED=false turns it off."""
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """Where the program listens on 127.0.0.1 (environment: PORT); not set: 8080."""
    path: UrlPath = "/health"
    """What is asked for; healthy is an answer 200 with JSON that has `"status": "healthy"`."""
    interval: Period = 30.0
    """From the start of one check to the start of the next."""
    timeout: Period = 5.0
    """A check that has no full answer by then has failed."""
    failures: Count = 3
    """So many failed checks in a row have the program killed and restarted."""
    start_grace: Seconds = 10.0
    """No check is made for so long after a start."""

    @property
    def checked(self) -> bool:
        """Whether checks are made, all settings considered."""
        return self.port is not None if self.enabled is None else self.enabled

    @property
    def effective_port(self) -> int:
        """The port that is asked, all settings considered."""
        return DEFAULT_HEALTH_PORT if self.port is None else self.port

    @property
    def url(self) -> str:
        """What is asked, all settings considered."""
        return f"http://127.0.0.1:{self.effective_port}{self.path}"


class LogSettings(_Table, frozen=True, kw_only=True):
    """`[run.log]`: what is logged, how it looks on the console, and how large files get."""

    level: Level = Level.INFO
    """The quietest level on the console (environment: DEBUG=1 for "debug")."""
    format: Literal["auto", "json", "pretty"] = "auto"
    """The form on the console; "auto" is pretty on a terminal and JSON elsewhere. Files are always JSON lines."""
    max_bytes: Annotated[int, Meta(ge=1024, description="a whole number of bytes, 1024 or more")] = 10 << 20
    """A log file that has grown to this is rotated; one block of output, 64 KiB at the most, may lie above it."""
    keep: Annotated[int, Meta(ge=0, le=1000)] = 5
    """So many former log files are kept beside the current one."""


class RunSettings(_Table, frozen=True, kw_only=True):
    """`[run]`: the defaults of `longwatch run`."""

    name: Name | None = None
    """The program's name in logs; not set: the command's base name."""
    command: list[Argument] | None = None
    """The command and its arguments, run without a shell; not set: it stands on the command line after `--`."""
    cwd: Text | None = None
    """Its working directory; not set: ours."""
    env: dict[VariableName, Argument] = field(default_factory=dict)
    """Variables added to its environment."""
    restart: Literal["on-failure", "always", "never"] = "on-failure"
    """When it is started again after it ended; "on-failure" goes by the exit table."""
    restart_codes: list[ExitCode] = field(default_factory=list)
    """Exit codes after which it is always started again."""
    no_restart_codes: list[ExitCode] = field(default_factory=list)
    """Exit codes after which it is never started again."""
    stop_signal: SignalName | None = None
    """The signal that asks it to stop, by name, with or without "SIG"; not set: the one that told us to stop, TERM if none did."""
    stop_grace: Seconds = 15.0
    """How long it may take to stop before it is killed."""
    stable_after: Seconds = 60.0
    """Up for longer than this it counts as stable: backoff and counters start anew."""
    backoff: BackoffSettings = BackoffSettings()
    breaker: BreakerSettings = BreakerSettings()
    health: HealthSettings = HealthSettings()
    log: LogSettings = LogSettings()

    @property
    def stop_signal_number(self) -> signal.Signals:
        return SIGNALS[self.stop_signal or "TERM"]

    def faults(self) -> Iterator[Fault]:
        if self.command is not None and not any(self.command[:1]):
            yield Fault("command", "names no program", "write the program first, then its arguments")
        for code in sorted({*self.restart_codes} & {*self.no_restart_codes}):
            yield Fault("no_restart_codes", f"has {code}, which is in restart_codes too", "take it out of one of the two")


class Settings(_Table, frozen=True, kw_only=True):
    """The whole file."""

    state_dir: Text = ".longwatch"
    """Where logs and state are kept (environment: LONGWATCH_STATE_DIR); "off" keeps no files."""
    run: RunSettings = RunSettings()

    @property
    def state_path(self) -> Path | None:
        """The state directory; None if there is to be none."""
        return None if self.state_dir == "off" else Path(self.state_dir)


def load_settings(*, path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """The settings in effect; ConfigError with every fault there is. `flags` maps dotted paths to values, None is "not given"."""
    overrides = [*from_environment(VARIABLES, environ), *from_flags(flags, called=flag_name)]
    return read_settings(Settings, path=path, overrides=overrides)


def shown_settings(settings: Settings) -> dict[str, object]:
    """The settings in effect as plain values, secrets masked, for the log."""
    return mask_mapping(msgspec.to_builtins(settings))


def flag_name(path: str) -> str:
    """What the flag for a setting is called: `run.health.port` is `--health-port`, `run.health.enabled` is `--health`."""
    return "--" + path.removeprefix("run.").removesuffix(".enabled").replace(".", "-").replace("_", "-")


def _off_only(text: str) -> object:
    """HEALTH_CHECK_ENABLED can turn checks off; to turn them on takes a port or a setting."""
    return SAYS_NOTHING if text.strip().lower() in YES else text


def _debug_level(text: str) -> object:
    """DEBUG is everybody's variable: what is no yes (`DEBUG=app:*`) was not meant for us."""
    return Level.DEBUG.value if text.strip().lower() in YES else SAYS_NOTHING


VARIABLES = (
    Variable(name="PORT", path="run.health.port"),
    Variable(name="HEALTH_CHECK_ENABLED", path="run.health.enabled", parse=_off_only),
    Variable(name="DEBUG", path="run.log.level", parse=_debug_level),
    Variable(name="LONGWATCH_STATE_DIR", path="state_dir"),
)
"""The environment variables that are read, and the setting each one overrides."""
