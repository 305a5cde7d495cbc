"""`longwatch run -- COMMAND`."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument(
    "command", metavar="[COMMAND...]", nargs=-1, help="The command and its arguments, after `--`."
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(readable=False, path_type=Path),
    help="Read settings from the [run] table of this TOML file.",
)
@click.option("--name", metavar="NAME", help="Name of the program in logs. [the command's]")
@click.option("--cwd", metavar="DIR", help="Working directory of the command.")
@click.option(
    "--state-dir", metavar="DIR", help="The state directory; `off`: keep no files. [.longwatch]"
)
@click.option(
    "--restart", metavar="POLICY", help="When to restart: on-failure, always or never. [on-failure]"
)
@click.option(
    "--stop-signal", metavar="NAME", help="Signal that stops the command. [the signal received]"
)
@click.option("--stop-grace", metavar="DURATION", help="Time from the stop signal to SIGKILL. [15]")
@click.option(
    "--stable-after", metavar="DURATION", help="Running this long clears earlier failures. [60]"
)
@click.option("--backoff-initial", metavar="DURATION", help="The first wait before a restart. [1]")
@click.option("--backoff-factor", metavar="N", help="Multiply each further wait by N. [2]")
@click.option("--backoff-cap", metavar="DURATION", help="The longest wait before a restart. [30]")
@click.option("--breaker-restarts", metavar="N", help="Give up after more restarts than this. [5]")
@click.option(
    "--breaker-window", metavar="DURATION", help="Time in which restarts are counted. [60]"
)
@click.option(
    "--health/--no-health", default=None, help="Check health over HTTP. [only if a port is set]"
)
@click.option("--health-port", metavar="PORT", help="Port of the health check. [PORT, else 8080]")
@click.option("--health-path", metavar="PATH", help="Path of the health check. [/health]")
@click.option("--health-interval", metavar="DURATION", help="Time between health checks. [30]")
@click.option("--health-timeout", metavar="DURATION", help="The longest wait for a response. [5]")
@click.option(
    "--health-failures", metavar="N", help="Restart after this many failed checks in a row. [3]"
)
@click.option(
    "--health-start-grace", metavar="DURATION", help="Time before the first health check. [10]"
)
@click.option(
    "--log-level",
    metavar="LEVEL",
    help="Lowest level: debug, info, warning, error or critical. [info]",
)
@click.option("--log-format", metavar="FORMAT", help="Format of logs: auto, json or pretty. [auto]")
def run(  # noqa: PLR0913 - one argument an option
    *,
    command: tuple[str, ...],
    config: Path | None,
    name: str | None,
    cwd: str | None,
    state_dir: str | None,
    restart: str | None,
    stop_signal: str | None,
    stop_grace: str | None,
    stable_after: str | None,
    backoff_initial: str | None,
    backoff_factor: str | None,
    backoff_cap: str | None,
    breaker_restarts: str | None,
    breaker_window: str | None,
    health: bool | None,
    health_port: str | None,
    health_path: str | None,
    health_interval: str | None,
    health_timeout: str | None,
    health_failures: str | None,
    health_start_grace: str | None,
    log_level: str | None,
    log_format: str | None,
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
