"""`longwatch worker module:group`."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from longwatch.cli.option_values import whole_number

processes_option = click.option(
    "--processes",
    metavar="N",
    type=whole_number(1, 256),
    default=1,
    show_default=False,
    help="Number of worker processes, 256 at most. [1]",
)
name_option = click.option(
    "--name",
    metavar="NAME",
    default="worker",
    show_default=False,
    help="Name of the processes in logs. [worker]",
)
health_port_option = click.option(
    "--health-port",
    metavar="PORT",
    type=whole_number(0, 65_535),
    help="Port of health and metrics. [the group's]",
)
health_host_option = click.option(
    "--health-host", metavar="HOST", help="Address of health and metrics. [the group's]"
)
state_dir_option = click.option(
    "--state-dir", metavar="DIR", help="The state directory; `off`: keep no files. [.longwatch]"
)
log_level_option = click.option(
    "--log-level",
    metavar="LEVEL",
    help="Lowest level: debug, info, warning, error or critical. [info]",
)
log_format_option = click.option(
    "--log-format", metavar="FORMAT", help="Format of logs: auto, json or pretty. [auto]"
)


@click.command()
@click.argument(
    "target", metavar="MODULE:GROUP", help="Import path of the group, such as shop.workers:group."
)
@processes_option
@name_option
@health_port_option
@health_host_option
@state_dir_option
@log_level_option
@log_format_option
def worker(  # noqa: PLR0913 - one argument an option
    *,
    target: str,
    processes: int,
    name: str,
    health_port: int | None,
    health_host: str | None,
    state_dir: str | None,
    log_level: str | None,
    log_format: str | None,
) -> int:
    """Run the loops of a group in worker processes.

    The parent process restarts workers that die or hang, and releases their
    messages at once. SIGTERM and Ctrl-C finish the messages in flight; SIGHUP
    restarts the workers one after another. Exits with 0, 1 if a process had to be
    killed, 2 for wrong use, 75 to try again, 100 when the workers failed too often.
    """
    return run_workers(
        target,
        processes=processes,
        name=name,
        health_port=health_port,
        health_host=health_host,
        state_dir=state_dir,
        log_level=log_level,
        log_format=log_format,
    )


def run_workers(  # noqa: PLR0913 - one argument an option
    target: str,
    *,
    processes: int,
    name: str,
    health_port: int | None,
    health_host: str | None,
    state_dir: str | None,
    log_level: str | None,
    log_format: str | None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run an import path in worker processes until a stop signal; returns the exit code. Only the
    worker processes get `env`.
    """
    from longwatch.app.worker import WorkerOptions  # noqa: PLC0415 - help must not wait for what only running needs
    from longwatch.app.worker import worker as run  # noqa: PLC0415
    from longwatch.config.settings import load_settings  # noqa: PLC0415

    flags = {
        "state_dir": state_dir,
        "supervisor.log.level": log_level,
        "supervisor.log.format": log_format,
    }
    settings = load_settings(path=None, environ=os.environ, flags=flags)
    request = WorkerOptions(
        import_path=target,
        processes=processes,
        name=name,
        health_port=health_port,
        health_host=health_host,
        state=settings.state_path,
        log=settings.supervisor.log,
        env=env or {},
    )
    return run(request, dict(os.environ))
