"""Keeps the containers of a registry up, for use from Python: a supervisor and a registry watch.

    with ContainerMonitor(MonitorConfig(registry=Path("agents.json"))) as monitor:
        monitor.status()

`longwatch up` uses the same parts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.errors import LongwatchError, UsageError
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.supervisor.client import send_request
from longwatch.supervisor.containers.agent_registry import RegistryDefaults
from longwatch.supervisor.containers.container_host import POLL_INTERVAL, Connect, ContainerHost
from longwatch.supervisor.containers.container_spec import PullPolicy
from longwatch.supervisor.containers.registry_watch import RegistryWatch
from longwatch.supervisor.managed_program import ProgramStatus
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.supervisor import Supervisor
from longwatch.supervisor.supervisor_lock import find_supervisor
from longwatch.supervisor.target_factory import Streams, inherited_streams

_ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """The containers to monitor: the agents of a registry, and plans from code."""

    registry: Path | None = None
    """The path of `agents.json`; None for `plans` alone."""
    plans: tuple[ProgramPlan, ...] = ()
    bind_roots: tuple[Path, ...] = ()
    """The directories that bind sources must be under; empty for the directory of the registry."""
    pull: PullPolicy = PullPolicy.MISSING
    stop_on_exit: bool = False
    """Whether the containers of the registry stop with the monitor."""
    poll_interval: float = POLL_INTERVAL
    """Seconds between two polls of the runtime and the registry, in addition to events."""
    runtime: str = "auto"
    """`docker`, `podman`, or `auto` for the first that answers."""

    def registry_defaults(self) -> RegistryDefaults:
        roots = self.bind_roots or ((self.registry.absolute().parent,) if self.registry else ())
        return RegistryDefaults(bind_roots=roots, pull=self.pull, stop_on_exit=self.stop_on_exit)


def owner_of(path: Path) -> str:
    """Return the owner label of a supervisor's containers, the same for every start on one
    directory.
    """
    return hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]


def clear_liveness_state(
    container_name: str, *, state_dir: str | os.PathLike[str] = ".longwatch"
) -> None:
    """Forget the failed liveness and the crash loops of a container: its probes start over.

    Asks the supervisor that runs on this state directory and blocks until it answers. Raises
    TryAgainError if none runs, and UsageError if it has no such container.
    """
    found = find_supervisor(Path(state_dir))
    request = {"do": "clear-liveness", "programs": [container_name]}
    response = send_request(found.socket, request, timeout=_ANSWER_SECONDS)
    if error := response.get("error"):
        raise UsageError(str(error))


class RegistryReload:
    """Reloads a supervisor when its registry changes: polls every few seconds, in a thread."""

    def __init__(
        self,
        has_changed: Callable[[], bool],
        supervisor: Supervisor,
        plans: Callable[[], Iterable[ProgramPlan]],
        *,
        interval: float,
    ) -> None:
        self._has_changed = has_changed
        self._supervisor = supervisor
        self._plans = plans
        self._is_behind = False
        """Whether a change was found that the supervisor has not loaded yet."""
        self._periodic = Periodic(
            self.look,
            Cadence(interval=interval, immediately=False),
            name="longwatch-registry",
            clock=supervisor.clock,
            events=supervisor.events,
        )

    def start(self) -> None:
        self._periodic.start()

    def stop(self, deadline: Deadline | None = None) -> bool:
        return self._periodic.stop(deadline=deadline)

    def look(self) -> None:
        """Reload the supervisor if the registry has changed."""
        if self._has_changed() or self._is_behind:
            self._is_behind = True
            with suppress(LongwatchError):  # it has not started yet, or is shutting down
                self._supervisor.reload(self._plans())
                self._is_behind = False


class ContainerMonitor(Service):
    """Keeps containers up until it is stopped. `start` and `stop` are thread-safe and idempotent.

    With a `state_dir`, restarts, breakers and stops by a person survive this process, and the next
    monitor on the same directory adopts the containers. Without it, the owner of the containers is
    the registry's path. `connect` finds the runtime, by default the one of `config.runtime`. Raises
    UsageError if the config has neither a registry nor plans.
    """

    def __init__(  # noqa: PLR0913 - a config and its dependencies, each optional
        self,
        config: MonitorConfig,
        *,
        state_dir: Path | None = None,
        events: Events | None = None,
        clock: Clock | None = None,
        connect: Connect | None = None,
        streams: Callable[[ProgramPlan], Streams] = inherited_streams,
    ) -> None:
        if config.registry is None and not config.plans:
            raise UsageError("expected a registry or plans, got neither; pass registry=…")
        self.config = config
        self.clock = clock or SystemClock()
        super().__init__(name="container-monitor", clock=self.clock)
        self.events = events or Events()
        self._watch = (
            None
            if config.registry is None
            else RegistryWatch(
                config.registry, defaults=config.registry_defaults(), events=self.events
            )
        )
        self._owner = owner_of(state_dir or config.registry or Path())
        self._connect = connect
        self._state_dir = state_dir
        self._streams = streams
        self._supervisor: Supervisor | None = None
        self._reload: RegistryReload | None = None

    def status(self, *names: str) -> list[ProgramStatus]:
        """Return the status of each target, or of those named, in plain JSON types."""
        return self._running().status(*names)

    def reset(self, *names: str) -> list[ProgramStatus]:
        """Read the manifests again, clear failures, and adopt or start the targets."""
        return self._running().reset_programs(*names)

    def clear_targets(self) -> None:
        """Stop monitoring all containers. Containers without `stop_on_exit` keep running."""
        self._running().reload(())

    def clear_liveness_state(self, container_name: str) -> None:
        """Forget the failed liveness and the crash loops of a container: its probes start over."""
        self._running().clear_liveness_state(container_name)

    # --- the service contract ---

    def _start(self) -> None:
        supervisor = Supervisor(
            self._plans(),
            state_dir=self._state_dir,
            events=self.events,
            clock=self.clock,
            streams=self._streams,
            container_host=self._make_host,
            refresh_plans=self._refresh,
        )
        supervisor.start()
        self._supervisor = supervisor
        if self._watch is not None:
            self._reload = RegistryReload(
                self._watch.has_changed, supervisor, self._plans, interval=self.config.poll_interval
            )
            self._reload.start()

    def _stop(self, deadline: Deadline) -> bool:
        if self._reload is not None and not self._reload.stop(deadline):
            return False
        self._reload = None
        if self._supervisor is not None and not self._supervisor.stop(deadline=deadline):
            return False
        self._supervisor = None
        return True

    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise UsageError("the monitor is not running; start() it first")
        return self._supervisor

    def _plans(self) -> list[ProgramPlan]:
        own = {plan.name: plan for plan in self.config.plans}
        agents = {} if self._watch is None else self._watch.read(taken=own)
        return [*own.values(), *agents.values()]

    def _refresh(self) -> list[ProgramPlan] | None:
        return self._plans() if self._watch is not None else None

    def _make_host(self) -> ContainerHost:
        from longwatch.supervisor.containers.runtime_finder import RuntimeFinder  # noqa: PLC0415 - it loads the Engine API

        finder = RuntimeFinder(self.config.runtime)
        return ContainerHost(
            self._connect or finder.connect,
            owner=self._owner,
            clock=self.clock,
            events=self.events,
            poll_interval=self.config.poll_interval,
            child_pids=finder.child_pids,
            on_close=finder.close,
        )
