"""Plans that define which programs are kept up, and how.

Plans are plain values that can be compared, so that a reload touches only changed programs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any, Self

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.errors import UsageError
from longwatch.host.identity import login_environment, resolve_identity
from longwatch.host.process import ProcessSpec, ResourceLimits, StopPolicy
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.dependencies import Condition, Readiness, dependency_problems
from longwatch.supervisor.probes import NO_PROBES, ProbeSet
from longwatch.supervisor.restart_policy import RestartPolicy

_WITHHELD_VARIABLES = frozenset(
    {
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "LISTEN_PID",
        "LISTEN_FDS",
        "LISTEN_FDNAMES",
        "PIDFILE",
    }
)


def child_environment(
    environ: Mapping[str, str], extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return our environment without variables meant for us alone, then `extra`, then `MANAGED_BY`.

    It leaves out `LONGWATCH_*` and the notify, socket and pid-file variables that address this
    process. All other variables pass through.
    """
    passed = {
        name: value
        for name, value in environ.items()
        if not name.startswith("LONGWATCH_") and name not in _WITHHELD_VARIABLES
    }
    return {**passed, **(extra or {}), "MANAGED_BY": "longwatch"}


class ProgramKind(StrEnum):
    """The kind of a program, for the code around the supervisor, which itself treats all kinds
    alike.
    """

    COMMAND = auto()
    WORKER = auto()  # a process of ours that runs loops and reports to its parent
    CONTAINER = auto()
    RUNNER = auto()  # `longwatch runner`
    PAGE = auto()  # `longwatch page`


REPORTING_KINDS = frozenset({ProgramKind.WORKER, ProgramKind.RUNNER, ProgramKind.PAGE})
"""Programs of Longwatch itself, which relay their events and report their state to their parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPolicy:
    """How a program's output is kept: on the console too, and the size and number of its log files.
    For the code that creates its streams.
    """

    console: bool = True
    max_bytes: int = 10 << 20
    keep: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """One program: a process or a container, as `spec` describes it.

    A process has no streams of its own here: the code that runs the plan decides where output goes.
    A run that is not ready after `ready_timeout` seconds ends like a failed health check; None for
    no limit. If the breaker of a `critical` program trips, or it fails and is not restarted, the
    supervisor stops all programs.
    """

    name: str
    spec: ProcessSpec | ContainerSpec
    kind: ProgramKind = ProgramKind.COMMAND
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    backoff: BackoffPolicy = field(default_factory=BackoffPolicy)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    stop: StopPolicy = field(default_factory=StopPolicy)
    probes: ProbeSet = NO_PROBES
    readiness: Readiness | None = None
    """None for the default: its readiness probe if it has one, else healthy if it has a liveness or
    startup probe, else up.
    """
    ready_timeout: float | None = None
    depends_on: Mapping[str, Condition] = field(default_factory=dict)
    critical: bool = False
    output: OutputPolicy = OutputPolicy()
    autostart: bool = True
    """Whether it is started when no operator has decided otherwise."""
    group: str = ""
    """The name of its group: commands accept it for all members, which are restarted one after
    another.
    """
    on_demand: bool = False
    """Whether it runs once, by `Supervisor.run_on_demand`. It is known only while it runs, is never
    started again by its policy, a command or a reload, and does not count in the exit code.
    """
    fault: str = ""
    """Why its settings do not allow a start, for a person to correct. Its breaker is open with this
    reason, without a trial.
    """

    @classmethod
    def of(  # noqa: PLR0913 - the parts of a process, each by name; the rest are fields of the plan
        cls,
        name: str,
        argv: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        limits: ResourceLimits | None = None,
        user: str | None = None,
        **policies: Any,
    ) -> Self:
        """Return a plan for a command that runs without a shell, in our environment plus `env`.
        `policies` are the fields above.
        """
        identity = None if user is None else resolve_identity(user)
        identity_env = {} if identity is None else login_environment(identity)
        process = ProcessSpec(
            argv=tuple(argv),
            env=child_environment(os.environ, {**identity_env, **(env or {})}),
            cwd=None if cwd is None else os.path.abspath(cwd),  # noqa: PTH100 - plain text for the wire
            limits=limits or ResourceLimits(),
            identity=identity,
        )
        return cls(name=name, spec=process, **policies)

    @property
    def process(self) -> ProcessSpec:
        """The process to start; only for a plan of a process."""
        assert isinstance(self.spec, ProcessSpec), f"{self.name} is a container"
        return self.spec

    @property
    def uid(self) -> int | None:
        """The user of its process; None for our own, and for a container."""
        identity = None if isinstance(self.spec, ContainerSpec) else self.spec.identity
        return None if identity is None else identity.uid

    @property
    def command(self) -> tuple[str, ...]:
        """The command line for display: that of a process, or the image and command of a
        container.
        """
        if isinstance(self.spec, ContainerSpec):
            return (self.spec.image, *self.spec.command)
        return tuple(self.spec.argv)

    @property
    def stays_running(self) -> bool:
        """Whether it keeps running when the supervisor ends, or when it is removed from the
        settings.
        """
        return isinstance(self.spec, ContainerSpec) and not self.spec.stop_on_exit

    @property
    def ready_when(self) -> Readiness:
        if self.readiness is not None:
            return self.readiness
        if self.probes.readiness is not None:
            return Readiness.PROBE
        return Readiness.HEALTHY if self.probes else Readiness.UP

    def needs_restart(self, other: ProgramPlan) -> bool:
        """Return whether a running program must be restarted for the other plan. All other changes
        are applied while it runs.
        """
        if isinstance(self.spec, ContainerSpec) and isinstance(other.spec, ContainerSpec):
            has_fault = bool(self.fault or other.fault)
            return not has_fault and self.spec.digest() != other.spec.digest()
        return (self.spec, self.probes, self.ready_when) != (
            other.spec,
            other.probes,
            other.ready_when,
        )


Plans = Iterable[ProgramPlan]


def validate_plans(plans: Plans) -> dict[str, ProgramPlan]:
    """Return the plans by name. Raises UsageError if two have one name, or with all faults of their
    dependencies.
    """
    found: dict[str, ProgramPlan] = {}
    for plan in plans:
        if plan.name in found:
            raise UsageError(
                f"two programs are called {plan.name!r}; give one of them another name"
            )
        found[plan.name] = plan
    if faults := dependency_problems({name: plan.depends_on for name, plan in found.items()}):
        raise UsageError(
            "\n".join(
                f"program {problem.program!r} {problem.problem}; {problem.cure}"
                for problem in faults
            )
        )
    return found
