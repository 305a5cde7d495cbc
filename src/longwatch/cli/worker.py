"""`longwatch worker module:group`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def worker(  # noqa: PLR0913, PLR0917 - one argument an option, and typer passes them by name
    target: Annotated[str, typer.Argument(metavar="MODULE:GROUP", show_default=False, help="The loops, as shop.workers:group.")],
    processes: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="How many processes run them. [1]", show_default=False)
    ] = 1,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="What the processes are called in logs. [worker]", show_default=False)
    ] = "worker",
    health_port: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65535, help="Where health and metrics are. [the group's]")
    ] = None,
    health_host: Annotated[str | None, typer.Option(metavar="HOST", help="On which address. [the group's]")] = None,
    state_dir: Annotated[
        str, typer.Option(metavar="DIR", help="Where logs and stacks are kept; `off`: nowhere. [.longwatch]", show_default=False)
    ] = ".longwatch",
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning, error or critical. [info]")] = None,
    log_format: Annotated[str | None, typer.Option(metavar="FORMAT", help="auto, json or pretty. [auto]")] = None,
) -> int:
    """Run the loops of a group in worker processes.

    This process is their parent, which keeps them up, and their leases too.

    A process that dies or hangs is replaced, and its messages go to others at once.
    SIGTERM and Ctrl-C finish what is in flight; SIGHUP restarts the processes one
    after another. Exits with 0, 1 if something had to be killed, 2 for wrong use,
    100 when the processes failed too often.
    """
    from longwatch.app.worker import WorkerWishes  # noqa: PLC0415 - help must not wait for what only running needs
    from longwatch.app.worker import worker as run  # noqa: PLC0415
    from longwatch.config.settings import load_settings  # noqa: PLC0415

    flags = {"supervisor.log.level": log_level, "supervisor.log.format": log_format}
    settings = load_settings(path=None, environ=os.environ, flags=flags)
    wishes = WorkerWishes(
        target=target,
        processes=processes,
        name=name,
        health_port=health_port,
        health_host=health_host,
        state=None if state_dir == "off" else Path(state_dir),
        log=settings.supervisor.log,
    )
    return run(wishes, dict(os.environ))
