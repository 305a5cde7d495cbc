"""`longwatch run -- COMMAND`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def run(  # noqa: PLR0913, PLR0917 - one argument an option, and typer passes them by name
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND...",
            show_default=False,
            help="The command and its arguments, after `--`.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            readable=False,
            help="Read settings from the [run] table of this TOML file.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the program in logs. [the command's]"),
    ] = None,
    cwd: Annotated[
        str | None, typer.Option(metavar="DIR", help="Working directory of the command.")
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The state directory; `off`: keep no files. [.longwatch]"),
    ] = None,
    restart: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", help="When to restart: on-failure, always or never. [on-failure]"
        ),
    ] = None,
    stop_signal: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Signal that stops the command. [the signal received]"),
    ] = None,
    stop_grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time from the stop signal to SIGKILL. [15]"),
    ] = None,
    stable_after: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Running this long clears earlier failures. [60]"),
    ] = None,
    backoff_initial: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The first wait before a restart. [1]")
    ] = None,
    backoff_factor: Annotated[
        str | None, typer.Option(metavar="N", help="Multiply each further wait by N. [2]")
    ] = None,
    backoff_cap: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The longest wait before a restart. [30]")
    ] = None,
    breaker_restarts: Annotated[
        str | None, typer.Option(metavar="N", help="Give up after more restarts than this. [5]")
    ] = None,
    breaker_window: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time in which restarts are counted. [60]"),
    ] = None,
    health: Annotated[
        bool | None, typer.Option(help="Check health over HTTP. [only if a port is set]")
    ] = None,
    health_port: Annotated[
        str | None, typer.Option(metavar="PORT", help="Port of the health check. [PORT, else 8080]")
    ] = None,
    health_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="Path of the health check. [/health]")
    ] = None,
    health_interval: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time between health checks. [30]")
    ] = None,
    health_timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The longest wait for a response. [5]")
    ] = None,
    health_failures: Annotated[
        str | None,
        typer.Option(metavar="N", help="Restart after this many failed checks in a row. [3]"),
    ] = None,
    health_start_grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time before the first health check. [10]"),
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
    """Keep one command running.

    Restarts the command when it fails, after growing waits, and gives up when it
    fails too often. Exits with the command's own code, 128 + n if signal n ended
    it, 2 for wrong use, 75 to try again, 100 when it failed too often.
    """
    given = dict(locals())
    from longwatch.app.run import run as supervise  # noqa: PLC0415 - help must not wait for what only running needs
    from longwatch.config.settings import load_settings, setting_path  # noqa: PLC0415
    from longwatch.errors import UsageError  # noqa: PLC0415

    flags = {
        setting_path(option): value
        for option, value in given.items()
        if option not in {"command", "config"}
    }
    settings = load_settings(path=config, environ=os.environ, flags=flags)
    argv = command or settings.run.argv
    if not argv:
        raise UsageError(
            "no command to run; write it after `--`, as in: longwatch run -- python app.py"
        )
    return supervise(settings, argv, os.environ)
