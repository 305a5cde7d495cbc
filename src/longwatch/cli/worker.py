"""`longwatch worker module:group`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import typer

from longwatch.cli.option_values import whole_number

Processes = Annotated[
    int,
    typer.Option(
        metavar="N",
        parser=whole_number(1, 256),
        help="Number of worker processes, 256 at most. [1]",
        show_default=False,
    ),
]
Name = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Name of the processes in logs. [worker]", show_default=False
    ),
]
HealthPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        parser=whole_number(0, 65_535),
        help="Port of health and metrics. [the group's]",
    ),
]
HealthHost = Annotated[
    str | None, typer.Option(metavar="HOST", help="Address of health and metrics. [the group's]")
]
StateDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="The state directory; `off`: keep no files. [.longwatch]"),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL", help="Lowest level: debug, info, warning, error or critical. [info]"
    ),
]
LogFormat = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="Format of logs: auto, json or pretty. [auto]")
]


def worker(  # noqa: PLR0913, PLR0917 - one argument an option, and typer passes them by name
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:GROUP",
            show_default=False,
            help="Import path of the group, such as shop.workers:group.",
        ),
    ],
    processes: Processes = 1,
    name: Name = "worker",
    health_port: HealthPort = None,
    health_host: HealthHost = None,
    state_dir: StateDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
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
