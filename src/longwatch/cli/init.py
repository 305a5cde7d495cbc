"""`longwatch init`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from longwatch.cli import output

config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(readable=False, path_type=Path),
    help="The configuration file to write. [longwatch.toml]",
)
force_option = click.option("--force", is_flag=True, help="Overwrite an existing file.")


@click.command()
@config_option
@force_option
def init(*, config: Path | None, force: bool) -> None:
    """Write an example longwatch.toml.

    The file has one example program, and every setting with its default.
    """
    from longwatch.app.scaffold import write_example_config  # noqa: PLC0415 - help must not wait for what only the command needs
    from longwatch.config.discovery import FILE_NAME  # noqa: PLC0415

    path = config or Path(os.environ.get("LONGWATCH_CONFIG") or FILE_NAME)
    write_example_config(path, force=force)
    option = "" if config is None else f" --config {shlex.quote(str(config))}"
    summary = f"{path} is written: one example program, and every setting with its default. Next:"
    steps = [
        f"  longwatch check{option}",
        f"  longwatch up{option}",
        f"  longwatch status{option}    (in another terminal)",
    ]
    output.print_result([summary, *steps], None, as_json=False)
