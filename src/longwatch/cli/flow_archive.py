"""`longwatch flow archive` and `longwatch flow unarchive`."""

from __future__ import annotations

import typer

from longwatch.cli.flow import ExecutionArguments, change_execution
from longwatch.cli.options import Json


def archive(execution: ExecutionArguments = None, *, json: Json = False) -> None:
    """Archive an execution: stop its work and hide it from lists.

    Its values stay. `longwatch flow unarchive` continues it.
    """
    change_execution("archive", execution, "is archived", as_json=json)


def unarchive(execution: ExecutionArguments = None, *, json: Json = False) -> None:
    """Continue an archived execution.

    Workers compute what was left.
    """
    change_execution("unarchive", execution, "is not archived any more", as_json=json)


def add_commands(app: typer.Typer) -> None:
    """Add both commands to those of `longwatch flow`."""
    app.command()(archive)
    app.command()(unarchive)
