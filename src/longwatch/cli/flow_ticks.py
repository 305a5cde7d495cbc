"""`longwatch flow pause` and `longwatch flow resume`: recurring ticks of executions."""

from __future__ import annotations

import typer

from longwatch.cli.flow import NodeArguments, change_node
from longwatch.cli.options import Json


def pause(node: NodeArguments = None, *, json: Json = False) -> None:
    """Pause a recurring tick of an execution.

    It does not fire until `longwatch flow resume`.
    """
    change_node("pause", node, "has paused {node}", as_json=json)


def resume(node: NodeArguments = None, *, json: Json = False) -> None:
    """Resume a paused tick of an execution.

    It fires at its next time from now; times that passed meanwhile are left out.
    """
    change_node("resume", node, "goes on with {node}", as_json=json)


def add_commands(app: typer.Typer) -> None:
    """Add both commands to those of `longwatch flow`."""
    app.command()(pause)
    app.command()(resume)
