"""`longwatch check`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli import output
from longwatch.cli.options import Json

if TYPE_CHECKING:
    from longwatch.config.discovery import LoadedConfig
    from longwatch.supervisor.plan import ProgramPlan

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", readable=False, help="The file. [longwatch.toml]"),
]
HEADERS = ("wave", "program", "command", "ready when", "waits for", "notes")
MAX_COMMAND_CHARS = 60


def check(*, config: Config = None, json: Json = False) -> None:
    """Check a longwatch.toml against this machine.

    Shows in which order its programs start.
    """
    from longwatch.app.plans import make_plans  # noqa: PLC0415 - help must not wait for what only the command needs
    from longwatch.config.discovery import load_config  # noqa: PLC0415

    loaded = load_config(config, os.environ)
    plans_by_name = make_plans(
        loaded.settings,
        base=loaded.base_dir,
        environ=os.environ,
        source=loaded.display_path,
        config=loaded.absolute_path,
    )
    _check_ports(loaded)
    programs = [_program_json(wave, plan, loaded) for wave, plan in _start_order(plans_by_name)]
    data = {
        "config": str(loaded.absolute_path),
        "state_dir": loaded.state_dir and str(loaded.state_dir),
        "programs": programs,
    }
    summary = f"{loaded.display_path} is in order: {output.pluralize(len(programs), 'program')}"
    output.print_result([summary, *output.table(HEADERS, map(_row, programs))], data, as_json=json)


def _check_ports(loaded: LoadedConfig) -> None:
    """A supervisor that runs has the ports for its own programs."""
    from longwatch.app.startup_checks import busy_port_faults  # noqa: PLC0415
    from longwatch.errors import ConfigError, LongwatchError  # noqa: PLC0415
    from longwatch.supervisor.supervisor_lock import find_supervisor  # noqa: PLC0415

    try:
        if loaded.state_dir is not None:
            find_supervisor(loaded.state_dir)
            return
    except LongwatchError:
        pass
    if busy := busy_port_faults(loaded.settings, source=loaded.display_path):
        raise ConfigError(*busy)


def _start_order(plans: dict[str, ProgramPlan]) -> list[tuple[int, ProgramPlan]]:
    """Each program with the number of its wave; the processes of a worker are alike, and the
    first speaks for them.
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
        "wave": wave,
        "command": mask_argv(plan.process.argv),
        "cwd": plan.process.cwd,
        "user": plan.process.identity and plan.process.identity.name,
        "ready": plan.ready_when.value,
        "health": health
        and {"kind": health.effective_kind, "port": loaded.settings.health_port(plan.name)},
        "depends_on": {name: condition.value for name, condition in plan.depends_on.items()},
        "critical": plan.critical,
        "autostart": plan.autostart,
        **({} if worker is None else {"target": worker.target, "processes": worker.processes}),
    }


def _command(program: dict[str, Any]) -> str:
    """Of a worker: what it runs, and in how many processes."""
    if "target" not in program:
        return shlex.join(program["command"])
    number = program["processes"]
    return f"{program['target']} in {number} process{'' if number == 1 else 'es'}"


def _row(program: dict[str, Any]) -> tuple[object, ...]:
    health, command = program["health"] or {}, _command(program)
    asked = " ".join(
        str(word) for word in (health.get("kind"), health.get("port")) if word is not None
    )
    notes = [
        word
        for word, holds in {
            "critical": program["critical"],
            "by hand": not program["autostart"],
        }.items()
        if holds
    ]
    return (
        program["wave"],
        program["name"],
        command if len(command) <= MAX_COMMAND_CHARS else f"{command[:MAX_COMMAND_CHARS]}…",
        f"{program['ready']} ({asked})" if asked else program["ready"],
        ", ".join(f"{name} {condition}" for name, condition in program["depends_on"].items()),
        ", ".join([*notes, *([f"as {program['user']}"] if program["user"] else [])]),
    )
