"""`longwatch up`."""

from __future__ import annotations

from pathlib import Path

import click

from longwatch.cli.fast_up import run_up


@click.command()
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(readable=False, path_type=Path),
    help="The configuration file. [longwatch.toml]",
)
@click.option(
    "--state-dir", metavar="DIR", help="The state directory; `off`: keep no files. [.longwatch]"
)
@click.option(
    "--log-level",
    metavar="LEVEL",
    help="Lowest level: debug, info, warning, error or critical. [info]",
)
@click.option("--log-format", metavar="FORMAT", help="Format of logs: auto, json or pretty. [auto]")
def up(
    *, config: Path | None, state_dir: str | None, log_level: str | None, log_format: str | None
) -> int:
    """Keep the programs of longwatch.toml running.

    Runs in the foreground, or as PID 1, until SIGTERM or Ctrl-C. SIGHUP reloads
    the configuration file. Exits with 0, 1 if a process had to be killed, 2 for
    wrong use, 75 to try again, 100 when a critical program failed too often.
    """
    return run_up(config=config, state_dir=state_dir, log_level=log_level, log_format=log_format)
