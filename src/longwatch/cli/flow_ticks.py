"""`longwatch flow pause` and `longwatch flow resume`: recurring ticks of executions."""

from __future__ import annotations

import click

from longwatch.cli.flow import change_node, node_argument
from longwatch.cli.options import json_option


@click.command()
@node_argument
@json_option
def pause(*, node: tuple[str, ...], json: bool) -> None:
    """Pause a recurring tick of an execution.

    It does not fire until `longwatch flow resume`.
    """
    change_node("pause", node, "has paused {node}", as_json=json)


@click.command()
@node_argument
@json_option
def resume(*, node: tuple[str, ...], json: bool) -> None:
    """Resume a paused tick of an execution.

    It fires at its next time from now; times that passed meanwhile are left out.
    """
    change_node("resume", node, "goes on with {node}", as_json=json)


def add_commands(app: click.Group) -> None:
    """Add both commands to those of `longwatch flow`."""
    app.add_command(pause)
    app.add_command(resume)
