"""`longwatch flow archive` and `longwatch flow unarchive`."""

from __future__ import annotations

import click

from longwatch.cli.flow import change_execution, execution_argument
from longwatch.cli.options import json_option


@click.command()
@execution_argument
@json_option
def archive(*, execution: tuple[str, ...], json: bool) -> None:
    """Archive an execution: stop its work and hide it from lists.

    Its values stay. `longwatch flow unarchive` continues it.
    """
    change_execution("archive", execution, "is archived", as_json=json)


@click.command()
@execution_argument
@json_option
def unarchive(*, execution: tuple[str, ...], json: bool) -> None:
    """Continue an archived execution.

    Workers compute what was left.
    """
    change_execution("unarchive", execution, "is not archived any more", as_json=json)


def add_commands(app: click.Group) -> None:
    """Add both commands to those of `longwatch flow`."""
    app.add_command(archive)
    app.add_command(unarchive)
