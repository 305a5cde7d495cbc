"""How a program is probed, and how often: plain values.

Three probes, each optional: `startup` until it passes once, then `liveness` for life, and
`readiness` for life after liveness has passed. Liveness ends a run, readiness never does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

from longwatch.core.backoff import BackoffPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpProbe:
    """`GET http://127.0.0.1:PORT/PATH`: healthy is 200 and JSON with `"status": "healthy"`."""

    port: int
    path: str = "/health"


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpProbe:
    """Healthy is a connection that is accepted on 127.0.0.1."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecProbe:
    """Healthy is a command that exits with 0, in the program's directory and environment."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptProbe:
    """Healthy is `sh ./SCRIPT` that exits with 0: in a container in `/code`, for a program in its
    directory. A script that is not there trips the breaker: no later try would find it.
    """

    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatProbe:
    """Healthy is one `WATCHDOG=1` on the notify socket since it was last looked at."""


Probe = HttpProbe | TcpProbe | ExecProbe | ScriptProbe | HeartbeatProbe


class ProbeKind(StrEnum):
    STARTUP = auto()
    LIVENESS = auto()
    READINESS = auto()


class ProbeState(StrEnum):
    """Where a probe of one run stands."""

    PENDING = auto()  # has not begun: it waits for its grace, another probe, or a crash-loop hold
    RUNNING = auto()  # probing, and no threshold reached yet
    SUCCESS = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePolicy:
    """How one thing is probed.

    The first probe comes `start_grace` seconds after the start, then one every `interval`, or
    every `settled_interval` once it has passed; each has `timeout` seconds for the whole answer.
    `failures` in a row are a failure, `successes` in a row a success. What a failure means depends
    on the kind: a liveness probe ends the run, a readiness probe marks it not ready.
    """

    probe: Probe
    interval: float = 30.0
    timeout: float = 5.0
    failures: int = 3
    successes: int = 1
    start_grace: float = 10.0
    settled_interval: float | None = None
    """None: `interval`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupPolicy:
    """Probed every `interval` from the start until it passes once; a run for which that takes
    longer than `within` seconds ends. Replaces the grace of the other probes.
    """

    probe: Probe
    within: float
    interval: float = 1.0
    timeout: float = 5.0


CRASH_LOOP_BACKOFF = BackoffPolicy(initial=10.0, factor=2.0, cap=300.0, stable_after=600.0)
"""How long probing is held after a restart for failed liveness, for containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSet:
    """The probes of a program.

    With `crash_loop`, a run that ends for its liveness is started again at once, and probing is
    held for this backoff instead; it counts from the start once a run was stable for long enough.
    """

    liveness: ProbePolicy | None = None
    readiness: ProbePolicy | None = None
    startup: StartupPolicy | None = None
    crash_loop: BackoffPolicy | None = None

    @property
    def beat_interval(self) -> float | None:
        """How often it is asked to beat; None: not at all."""
        beats = self.liveness is not None and isinstance(self.liveness.probe, HeartbeatProbe)
        return self.liveness.interval if self.liveness is not None and beats else None

    def hold_after(self, restarts: int, *, age: float) -> float:
        """How long probing is still held in a run of this age, after so many restarts for failed
        liveness.
        """
        if self.crash_loop is None or not restarts:
            return 0.0
        return max(self.crash_loop.delay(restarts) - age, 0.0)

    def __bool__(self) -> bool:
        """Whether anything is probed."""
        return (self.liveness or self.readiness or self.startup) is not None


NO_PROBES = ProbeSet()
