"""Turns `[container.NAME]` and the registry of agents into plans, and checks what they
need here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from longwatch.app.plans import bind_roots, make_declared_plan, registry_defaults
from longwatch.app.probe_plans import declared_probes
from longwatch.config.containers import RUNTIME_VARIABLE, RUNTIMES, ContainerSettings, parse_runtime
from longwatch.config.settings import Settings
from longwatch.config.settings_reader import UNSET
from longwatch.core.extras import install_command
from longwatch.core.sanitize import printable
from longwatch.core.suggest import did_you_mean
from longwatch.errors import Fault
from longwatch.supervisor.containers.agent_registry import RegistryReading, read_registry
from longwatch.supervisor.containers.container_spec import (
    Bind,
    ContainerSpec,
    container_faults,
    parse_bind,
    shown,
)
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.probes import CRASH_LOOP_BACKOFF, ProbeSet

_LIBRARY = "aiodocker"
_EXTRA = "containers"
_NO_PROBES = ProbeSet(crash_loop=CRASH_LOOP_BACKOFF)


def container_plan(
    name: str, container: ContainerSettings, *, settings: Settings, base: Path
) -> tuple[ProgramPlan, list[Fault]]:
    """The plan of a container, and its faults. `where` of a fault begins at its table, and is empty
    for the whole table. Checks the sources of its binds.
    """
    binds, faults = _binds(container.binds, base=base, roots=bind_roots(settings, base))
    spec = _spec(name, container, settings, binds)
    faults += [Fault("", problem) for problem in container_faults(spec)]
    probes = (
        replace(declared_probes(container), crash_loop=CRASH_LOOP_BACKOFF)
        if settings.supervisor.health_checks
        else _NO_PROBES
    )
    plan = make_declared_plan(name, container, spec, probes)
    return replace(plan, kind=ProgramKind.CONTAINER), faults


def runtime_faults(
    settings: Settings, *, environ: Mapping[str, str], source: str
) -> Iterator[Fault]:
    """The faults that keep every container from being started here."""
    if find_spec(_LIBRARY) is None:
        key = "container" if settings.container else "containers.registry"
        yield Fault(
            f"{source}: {key}",
            f"needs {_LIBRARY}, which is not installed",
            f"run: {install_command(_EXTRA)}",
        )
    text = environ.get(RUNTIME_VARIABLE, "")
    if text and parse_runtime(text) is UNSET:
        yield Fault(
            f"environment variable {RUNTIME_VARIABLE}",
            f'must be "auto", "docker" or "podman", not {shown(text)}',
            did_you_mean(text, RUNTIMES, default="correct it or unset it"),
        )


# --- the registry ---


def registry_path(settings: Settings, base: Path) -> Path | None:
    """The file of the registry; None if there is none."""
    registry = settings.containers.registry
    return None if registry is None else base / registry


def read_agents(settings: Settings, base: Path) -> RegistryReading | None:
    """Read the registry with these settings; None if there is no registry. Blocking. Raises
    RegistryError if it cannot be read.

    Probes are left out if they are off. An agent whose name belongs to another program is left out
    with a warning.
    """
    path = registry_path(settings, base)
    if path is None:
        return None
    reading = read_registry(path, defaults=registry_defaults(settings, base))
    taken = settings.taken_names
    plans = {name: plan for name, plan in reading.plans.items() if name not in taken}
    if not settings.supervisor.health_checks:
        plans = {name: replace(plan, probes=_NO_PROBES) for name, plan in plans.items()}
    warnings = [
        f"{printable(str(path))}: {name}: expected a name that nothing else has, found that of "
        f"{taken[name]}, so this agent is ignored; rename it"
        for name in reading.plans
        if name in taken
    ]
    return replace(reading, plans=plans, warnings=(*reading.warnings, *warnings))


def _binds(
    texts: Sequence[str], *, base: Path, roots: Sequence[Path]
) -> tuple[tuple[Bind, ...], list[Fault]]:
    binds, faults = [], []
    for number, text in enumerate(texts):
        try:
            binds.append(parse_bind(text, base=base, roots=roots))
        except ValueError as error:
            faults.append(Fault(f"binds[{number}]", str(error)))
    return tuple(binds), faults


def _spec(
    name: str, container: ContainerSettings, settings: Settings, binds: tuple[Bind, ...]
) -> ContainerSpec:
    shared = settings.containers
    stops = container.stop_on_exit
    return ContainerSpec(
        name=name,
        image=container.image,
        command=tuple(container.argv),
        env=dict(container.env),
        binds=binds,
        ports=container.published_ports,
        workdir=container.workdir,
        user=container.user,
        network=container.network,
        memory=container.limits.memory_bytes,
        pull=container.pull or shared.pull,
        stop_on_exit=shared.stop_on_exit if stops is None else stops,
    )
