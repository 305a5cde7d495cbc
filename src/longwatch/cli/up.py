"""`longwatch up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longwatch.cli.fast_up import run_up


def up(
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="The configuration file. [longwatch.toml]"
        ),
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The state directory; `off`: keep no files. [.longwatch]"),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="Lowest level: debug, info, warning, error or critical. [info]"
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="Format of logs: auto, json or pretty. [auto]"),
    ] = None,
) -> int:
    """Keep the programs of longwatch.toml running.

    Runs in the foreground, or as PID 1, until SIGTERM or Ctrl-C. SIGHUP reloads
    the configuration file. Exits with 0, 1 if a process had to be killed, 2 for
    wrong use, 75 to try again, 100 when a critical program failed too often.
    """
    return run_up(config=config, state_dir=state_dir, log_level=log_level, log_format=log_format)
