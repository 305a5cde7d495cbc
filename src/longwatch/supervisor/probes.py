"""Plain values that define how a program is probed, and how often.

There are three probes, each optional: `startup` until it passes once, then `liveness` to the end,
and `readiness` to the end after liveness has passed. Failed liveness ends a run, failed readiness
does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

from longwatch.core.backoff import BackoffPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpProbe:
    """Passes if `GET http://127.0.0.1:PORT/PATH` returns 200 and JSON with `"status":
    "healthy"`.
    """

    port: int
    path: str = "/health"


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpProbe:
    """Passes if a connection to 127.0.0.1 is accepted."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecProbe:
    """Passes if a command exits with 0, in the program's directory and environment."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptProbe:
    """Passes if `sh ./SCRIPT` exits with 0: in a container in `/code`, for a program in its
    directory. A missing script trips the breaker, because no later try would find it.
    """

    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatProbe:
    """Passes if `WATCHDOG=1` came on the notify socket since the last check."""


Probe = HttpProbe | TcpProbe | ExecProbe | ScriptProbe | HeartbeatProbe


class ProbeKind(StrEnum):
    STARTUP = auto()
    LIVENESS = auto()
    READINESS = auto()


class ProbeState(StrEnum):
    """The state of one probe of a run."""

    PENDING = auto()  # waits for its grace, another probe, or the end of a crash-loop hold
    RUNNING = auto()  # probing, and no threshold reached yet
    SUCCESS = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePolicy:
    """How liveness or readiness is probed.

    The first probe comes `start_grace` seconds after the start, then one every `interval`, or every
    `settled_interval` once it has passed. Each has `timeout` seconds for the whole answer. It fails
    after `failures` in a row and passes after `successes` in a row. A failed liveness probe ends
    the run, a failed readiness probe marks it not ready.
    """

    probe: Probe
    interval: float = 30.0
    timeout: float = 5.0
    failures: int = 3
    successes: int = 1
    start_grace: float = 10.0
    settled_interval: float | None = None
    """None for `interval`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupPolicy:
    """How the startup is probed: every `interval` until it passes once. The run ends if that takes
    longer than `within` seconds. Replaces the grace of the other probes.
    """

    probe: Probe
    within: float
    interval: float = 1.0
    timeout: float = 5.0


CRASH_LOOP_BACKOFF = BackoffPolicy(initial=10.0, factor=2.0, cap=300.0, stable_after=600.0)
"""The delay of probing after a restart for failed liveness, for containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSet:
    """The probes of a program.

    With `crash_loop`, a run that ends for its liveness is restarted at once, and instead its
    probing is delayed by this backoff. The backoff starts over once a run was stable for long
    enough.
    """

    liveness: ProbePolicy | None = None
    readiness: ProbePolicy | None = None
    startup: StartupPolicy | None = None
    crash_loop: BackoffPolicy | None = None

    @property
    def beat_interval(self) -> float | None:
        """The interval at which it must beat; None if it need not."""
        beats = self.liveness is not None and isinstance(self.liveness.probe, HeartbeatProbe)
        return self.liveness.interval if self.liveness is not None and beats else None

    def hold_after(self, restarts: int, *, age: float) -> float:
        """Return how long probing is still delayed in a run of this age, after this many restarts
        for failed liveness.
        """
        if self.crash_loop is None or not restarts:
            return 0.0
        return max(self.crash_loop.delay(restarts) - age, 0.0)

    def __bool__(self) -> bool:
        """Whether there is any probe."""
        return (self.liveness or self.readiness or self.startup) is not None


NO_PROBES = ProbeSet()
