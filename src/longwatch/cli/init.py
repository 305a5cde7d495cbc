"""`longwatch init`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from longwatch.cli import output

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        readable=False,
        help="The configuration file to write. [longwatch.toml]",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]


def init(*, config: Config = None, force: Force = False) -> None:
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
