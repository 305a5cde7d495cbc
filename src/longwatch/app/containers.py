"""The containers of `longwatch up`: the agents of its registry, and the runtime they run in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from longwatch.config.discovery import LoadedConfig
from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.probes import CRASH_LOOP_BACKOFF, ProbeSet

if TYPE_CHECKING:
    from longwatch.supervisor.containers.container_host import ContainerHost
    from longwatch.supervisor.containers.monitor import RegistryReload
    from longwatch.supervisor.containers.registry_watch import RegistryWatch
    from longwatch.supervisor.supervisor import Supervisor


class AppContainers:
    """The registry and the runtime for a file with containers. It costs nothing for a file without.

    `configure` and `agents` block on the disk. All methods are idempotent.
    """

    def __init__(self, *, environ: Mapping[str, str], events: Events) -> None:
        self._environ = environ
        self._events = events
        self._watch: RegistryWatch | None = None
        self._poll_interval = 5.0
        self._taken_names: set[str] = set()
        self._probes_agents = True
        self._supervisor: Supervisor | None = None
        self._all_plans: Callable[[], Iterable[ProgramPlan]] = tuple
        self._reload: RegistryReload | None = None

    def configure(self, loaded: LoadedConfig) -> None:
        """Use these settings from now on."""
        settings = loaded.settings.containers
        self._poll_interval = settings.poll_interval
        self._taken_names = {*loaded.settings.taken_names}
        self._probes_agents = loaded.settings.supervisor.health_checks
        if settings.registry is None:
            self._watch = None
            return
        from longwatch.app.plans import registry_defaults  # noqa: PLC0415 - only for a file with a registry
        from longwatch.supervisor.containers.registry_watch import RegistryWatch  # noqa: PLC0415

        path = loaded.base_dir / settings.registry
        defaults = registry_defaults(loaded.settings, loaded.base_dir)
        if self._watch is None or (self._watch.path, self._watch.defaults) != (path, defaults):
            self._watch = RegistryWatch(path, defaults=defaults, events=self._events)
            self._start_following()

    def agents(self, *, taken: set[str]) -> dict[str, ProgramPlan]:
        """The plans of the agents in the registry at this moment; empty without a registry."""
        if self._watch is None:
            return {}
        agents = self._watch.read(taken={*self._taken_names, *taken})
        if self._probes_agents:
            return agents
        no_probes = ProbeSet(crash_loop=CRASH_LOOP_BACKOFF)
        return {name: replace(plan, probes=no_probes) for name, plan in agents.items()}

    def make_host(self, loaded: LoadedConfig, clock: Clock) -> ContainerHost:
        """Make the connection to the runtime. The owner of its containers is the state directory,
        else the file.
        """
        from longwatch.supervisor.containers.container_host import ContainerHost  # noqa: PLC0415
        from longwatch.supervisor.containers.monitor import owner_of  # noqa: PLC0415
        from longwatch.supervisor.containers.runtime_finder import RuntimeFinder  # noqa: PLC0415

        settings = loaded.settings.containers
        finder = RuntimeFinder(settings.runtime, environ=self._environ)
        return ContainerHost(
            finder.connect,
            owner=owner_of(loaded.state_dir or loaded.absolute_path),
            clock=clock,
            events=self._events,
            poll_interval=settings.poll_interval,
            child_pids=finder.child_pids,
            on_close=finder.close,
        )

    def report(self) -> None:
        """Emit what was read of the registry so far, for a log that was opened later."""
        if self._watch is not None:
            self._watch.report()

    def follow(self, supervisor: Supervisor, plans: Callable[[], Iterable[ProgramPlan]]) -> None:
        """Make this supervisor follow changes of the registry, now or when a reload adds one.
        `plans` returns all plans to keep up.
        """
        self._supervisor, self._all_plans = supervisor, plans
        self._start_following()

    def _start_following(self) -> None:
        if self._watch is None or self._supervisor is None or self._reload is not None:
            return
        from longwatch.supervisor.containers.monitor import RegistryReload  # noqa: PLC0415

        self._reload = RegistryReload(
            lambda: self._watch is not None and self._watch.has_changed(),
            self._supervisor,
            self._all_plans,
            interval=self._poll_interval,
        )
        self._reload.start()

    def close(self) -> None:
        """Stop following the registry."""
        if self._reload is not None:
            self._reload.stop()
