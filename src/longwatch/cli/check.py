"""`longwatch check`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli import answer
from longwatch.cli.stores import Json

if TYPE_CHECKING:
    from longwatch.config.discovery import Loaded
    from longwatch.supervisor.plan import ProgramPlan

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", readable=False, help="The file. [longwatch.toml]"),
]
HEAD = ("wave", "program", "command", "ready when", "waits for", "notes")
LONGEST_COMMAND = 60


def check(*, config: Config = None, json: Json = False) -> None:
    """Check a longwatch.toml against this machine.

    Shows in which order its programs start.
    """
    from longwatch.app.plans import plans  # noqa: PLC0415 - help must not wait for what only the command needs
    from longwatch.config.discovery import load_config  # noqa: PLC0415

    loaded = load_config(config, os.environ)
    made = plans(loaded.settings, base=loaded.base, environ=os.environ, source=loaded.source)
    _check_ports(loaded)
    programs = [_facts(wave, plan, loaded) for wave, plan in _in_order(made)]
    facts = {
        "config": str(loaded.base / loaded.path.name),
        "state_dir": loaded.state and str(loaded.state),
        "programs": programs,
    }
    in_order = f"{loaded.source} is in order: {answer.counted(len(programs), 'program')}"
    answer.tell([in_order, *answer.table(HEAD, map(_row, programs))], facts, as_json=json)


def _check_ports(loaded: Loaded) -> None:
    """A supervisor that runs has the ports for its own programs."""
    from longwatch.app.ports import busy_ports  # noqa: PLC0415
    from longwatch.errors import ConfigError, LongwatchError  # noqa: PLC0415
    from longwatch.supervisor.presence import find  # noqa: PLC0415

    try:
        if loaded.state is not None:
            find(loaded.state)
            return
    except LongwatchError:
        pass
    if busy := busy_ports(loaded.settings, source=loaded.source):
        raise ConfigError(*busy)


def _in_order(made: dict[str, ProgramPlan]) -> list[tuple[int, ProgramPlan]]:
    """Each program with the number of its wave; the processes of a worker are alike, and the
    first speaks for them.
    """
    from longwatch.supervisor.dependencies import waves  # noqa: PLC0415

    ordered = waves({name: plan.depends_on for name, plan in made.items()})
    found = [(number, made[name]) for number, wave in enumerate(ordered, start=1) for name in wave]
    firsts = {plan.group or plan.name: (number, plan) for number, plan in reversed(found)}
    return list(reversed(firsts.values()))


def _facts(wave: int, plan: ProgramPlan, loaded: Loaded) -> dict[str, Any]:
    from longwatch.core.masking import mask_argv  # noqa: PLC0415

    worker = loaded.settings.worker.get(plan.group)
    health = loaded.settings.asked(plan.name) if worker is None else None
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


def _command(facts: dict[str, Any]) -> str:
    """Of a worker: what it runs, and in how many processes."""
    if "target" not in facts:
        return shlex.join(facts["command"])
    number = facts["processes"]
    return f"{facts['target']} in {number} process{'' if number == 1 else 'es'}"


def _row(facts: dict[str, Any]) -> tuple[object, ...]:
    health, command = facts["health"] or {}, _command(facts)
    asked = " ".join(
        str(word) for word in (health.get("kind"), health.get("port")) if word is not None
    )
    notes = [
        word
        for word, holds in {
            "critical": facts["critical"],
            "by hand": not facts["autostart"],
        }.items()
        if holds
    ]
    return (
        facts["wave"],
        facts["name"],
        command if len(command) <= LONGEST_COMMAND else f"{command[:LONGEST_COMMAND]}…",
        f"{facts['ready']} ({asked})" if asked else facts["ready"],
        ", ".join(f"{name} {condition}" for name, condition in facts["depends_on"].items()),
        ", ".join([*notes, *([f"as {facts['user']}"] if facts["user"] else [])]),
    )
