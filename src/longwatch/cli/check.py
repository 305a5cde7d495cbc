"""`longwatch check`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longwatch.cli import output
from longwatch.cli.options import json_option

if TYPE_CHECKING:
    from longwatch.config.discovery import LoadedConfig
    from longwatch.errors import Fault
    from longwatch.supervisor.plan import ProgramPlan
    from longwatch.supervisor.probes import ProbeSet

config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(readable=False, path_type=Path),
    help="The configuration file. [longwatch.toml]",
)
HEADERS = ("wave", "program", "command", "ready when", "waits for", "notes")
MAX_COMMAND_CHARS = 60
EXIT_FAULTS = 2


@click.command()
@config_option
@json_option
def check(*, config: Path | None, json: bool) -> int:
    """Check a longwatch.toml against this machine.

    Shows the order in which programs start. Exits with 2 if one cannot start.
    """
    loaded, plans_by_name, warnings = _examine(config)
    programs = [_program_json(wave, plan, loaded) for wave, plan in _start_order(plans_by_name)]
    data = {
        "config": str(loaded.absolute_path),
        "state_dir": loaded.state_dir and str(loaded.state_dir),
        "programs": programs,
        "warnings": warnings,
    }
    lines = [
        _summary(loaded, programs),
        *output.table(HEADERS, map(_row, programs)),
        *(f"warning: {warning}" for warning in warnings),
    ]
    output.print_result(lines, data, as_json=json)
    return EXIT_FAULTS if any(program["fault"] for program in programs) else 0


def _examine(config: Path | None) -> tuple[LoadedConfig, dict[str, ProgramPlan], list[str]]:
    """Read the file, the plans of its programs and the warnings about its registry. Raises
    ConfigError with every fault of the file and of the machine.
    """
    from longwatch.config.discovery import examine_config  # noqa: PLC0415 - help must not wait for what only the command needs
    from longwatch.errors import ConfigError  # noqa: PLC0415

    loaded, faults = examine_config(config, os.environ)
    if loaded is None:
        raise ConfigError(*faults)
    plans: dict[str, ProgramPlan] = {}
    warnings: list[str] = []
    notes: list[str] = []
    settings = loaded.settings
    if not faults or settings.keeps_anything_up:
        _add_new(faults, _make_plans(loaded, plans, notes))
    if settings.containers.registry is not None:
        _add_new(faults, _read_registry(loaded, plans, warnings))
    _add_new(faults, _port_faults(loaded))
    if faults:
        refused = ConfigError(*faults)
        for note in notes:
            refused.add_note(note)
        raise refused
    return loaded, plans, warnings


def _add_new(faults: list[Fault], found: Iterable[Fault]) -> None:
    """Add the faults of a later check. A fault at a place that has one already follows from the
    first and is dropped.
    """
    places = tuple(fault.where for fault in faults)
    below = tuple(f"{place}{mark}" for place in places for mark in ".[")
    faults += [
        fault for fault in found if fault.where not in places and not fault.where.startswith(below)
    ]


def _make_plans(
    loaded: LoadedConfig, plans: dict[str, ProgramPlan], notes: list[str]
) -> tuple[Fault, ...]:
    """Add the plans of the file, or return the faults of this machine."""
    from longwatch.app.plans import make_plans  # noqa: PLC0415
    from longwatch.errors import ConfigError  # noqa: PLC0415

    try:
        plans |= make_plans(
            loaded.settings,
            base=loaded.base_dir,
            environ=os.environ,
            source=loaded.display_path,
            config=loaded.absolute_path,
        )
    except ConfigError as error:
        notes += getattr(error, "__notes__", ())
        return error.faults
    return ()


def _read_registry(
    loaded: LoadedConfig, plans: dict[str, ProgramPlan], warnings: list[str]
) -> Iterator[Fault]:
    """Add the agents to the plans and their warnings to the warnings. Yields a fault if the
    registry cannot be read.
    """
    from longwatch.app.container_plans import read_agents  # noqa: PLC0415
    from longwatch.errors import Fault  # noqa: PLC0415
    from longwatch.supervisor.containers.agent_registry import RegistryError  # noqa: PLC0415

    try:
        reading = read_agents(loaded.settings, loaded.base_dir)
    except RegistryError as error:
        yield Fault(f"{loaded.display_path}: containers.registry", str(error))
        return
    assert reading is not None
    plans |= reading.plans
    warnings += reading.warnings


def _summary(loaded: LoadedConfig, programs: list[dict[str, Any]]) -> str:
    number = output.pluralize(len(programs), "program")
    broken = sum(bool(program["fault"]) for program in programs)
    if broken:
        return f"{loaded.display_path}: {broken} of {number} cannot start; the notes say why"
    return f"{loaded.display_path} is in order: {number}"


def _port_faults(loaded: LoadedConfig) -> list[Fault]:
    """Ports that another process has. No port is checked while the supervisor runs: its own
    programs have them.
    """
    from longwatch.app.startup_checks import busy_port_faults  # noqa: PLC0415
    from longwatch.errors import LongwatchError  # noqa: PLC0415
    from longwatch.supervisor.supervisor_lock import find_supervisor  # noqa: PLC0415

    try:
        if loaded.state_dir is not None and find_supervisor(loaded.state_dir).owns_directory:
            return []
    except LongwatchError:
        pass
    return busy_port_faults(loaded.settings, source=loaded.display_path)


def _start_order(plans: dict[str, ProgramPlan]) -> list[tuple[int, ProgramPlan]]:
    """Each program with the number of its wave. The first process of a worker stands for all of
    them.
    """
    from longwatch.supervisor.dependencies import start_waves  # noqa: PLC0415

    ordered = start_waves({name: plan.depends_on for name, plan in plans.items()})
    found = [(number, plans[name]) for number, wave in enumerate(ordered, start=1) for name in wave]
    firsts = {plan.group or plan.name: (number, plan) for number, plan in reversed(found)}
    return list(reversed(firsts.values()))


def _program_json(wave: int, plan: ProgramPlan, loaded: LoadedConfig) -> dict[str, Any]:
    from longwatch.core.masking import mask_argv  # noqa: PLC0415

    worker = loaded.settings.worker.get(plan.group)
    health = loaded.settings.effective_health(plan.name) if worker is None else None
    return {
        "name": plan.group or plan.name,
        "kind": plan.kind.value,
        "wave": wave,
        "command": mask_argv(plan.command),
        **_place(plan),
        "ready": plan.ready_when.value,
        "health": health
        and {"kind": health.effective_kind, "port": loaded.settings.health_port(plan.name)},
        "probes": _probes_json(plan.probes),
        "depends_on": {name: condition.value for name, condition in plan.depends_on.items()},
        "critical": plan.critical,
        "autostart": plan.autostart,
        "fault": plan.fault,
        **({} if worker is None else {"target": worker.target, "processes": worker.processes}),
    }


def _place(plan: ProgramPlan) -> dict[str, Any]:
    """The directory or image in which the program runs, and its user."""
    from longwatch.supervisor.containers.container_spec import ContainerSpec  # noqa: PLC0415

    spec = plan.spec
    if isinstance(spec, ContainerSpec):
        return {"image": spec.image, "cwd": spec.workdir, "user": spec.user}
    return {"cwd": spec.cwd, "user": spec.identity and spec.identity.name}


def _probes_json(probes: ProbeSet) -> dict[str, Any]:
    """The method of each probe by its kind, without its intervals."""
    from dataclasses import asdict  # noqa: PLC0415

    from longwatch.core.masking import mask_argv  # noqa: PLC0415
    from longwatch.supervisor.probes import ProbeKind  # noqa: PLC0415

    found = {}
    for kind in ProbeKind:
        policy = getattr(probes, kind.value)
        if policy is not None:
            method = type(policy.probe).__name__.removesuffix("Probe").lower()
            found[kind.value] = {"kind": method, **asdict(policy.probe)}
            if "command" in found[kind.value]:
                found[kind.value]["command"] = mask_argv(policy.probe.command)
    return found


def _command(program: dict[str, Any]) -> str:
    """The target and the number of processes of a worker, the image and command of a container,
    else the command.
    """
    if "target" not in program:
        return shlex.join(word for word in program["command"] if word or "image" not in program)
    number = program["processes"]
    return f"{program['target']} in {number} process{'' if number == 1 else 'es'}"


def _asked(program: dict[str, Any]) -> str:
    """The method, port and script of the probe that makes the program ready."""
    probes = program["probes"]
    first = "readiness" if program["ready"] == "probe" else "liveness"
    probe = probes.get(first) or probes.get("startup") or {}
    words = (probe.get("kind"), probe.get("port"), probe.get("script"))
    return " ".join(str(word) for word in words if word is not None)


def _notes(program: dict[str, Any]) -> list[str]:
    notes = {
        "critical": program["critical"],
        "by hand": not program["autostart"],
        f"as {program['user']}": program["user"],
        program["fault"]: program["fault"],
    }
    return [note for note, holds in notes.items() if holds]


def _row(program: dict[str, Any]) -> tuple[object, ...]:
    command, asked = _command(program), _asked(program)
    return (
        program["wave"],
        program["name"],
        command if len(command) <= MAX_COMMAND_CHARS else f"{command[:MAX_COMMAND_CHARS]}…",
        f"{program['ready']} ({asked})" if asked else program["ready"],
        ", ".join(f"{name} {condition}" for name, condition in program["depends_on"].items()),
        ", ".join(_notes(program)),
    )
