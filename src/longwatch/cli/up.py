"""`longwatch up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longwatch.cli.fast_up import run_up


def up(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="The programs. [longwatch.toml]"),
    ] = None,
    state_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where logs and state are kept. [.longwatch]")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning, error or critical. [info]"),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="auto, json or pretty. [auto]")
    ] = None,
) -> int:
    """Keep the programs of longwatch.toml up, without restart storms.

    Runs in the foreground until SIGTERM or Ctrl-C, or as PID 1; SIGHUP reads the
    file again. Exits with 0, 1 if something had to be killed, 2 for wrong use, 75
    to try again, 100 when a critical program failed too often.
    """
    return run_up(config=config, state_dir=state_dir, log_level=log_level, log_format=log_format)
