"""Is the port free on which a program will be asked for its health? Somebody else there would
answer in its place.
"""

from __future__ import annotations

import errno
import os
import socket

from longwatch.config.discovery import FILE_NAME
from longwatch.config.reading import spelled
from longwatch.config.settings import Settings
from longwatch.errors import Fault

_TAKEN = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})


def port_problem(port: int) -> str:
    """Why a program could not listen on this port of 127.0.0.1; empty if it could, or if only it
    may (a port below 1024).
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return os.strerror(error.errno).lower() if error.errno in _TAKEN else ""
    return ""


def busy_ports(settings: Settings, *, source: str = FILE_NAME) -> list[Fault]:
    """The ports of programs that start by themselves which somebody else has; to be asked while
    no program runs.
    """
    faults = []
    for name, program in settings.program.items():
        port = settings.health_port(name)
        if port is not None and program.autostart and (problem := port_problem(port)):
            told = f"{port} is not free ({problem}), so health checks would ask another server"
            faults.append(
                Fault(
                    f"{source}: program.{spelled(name)}.health.port",
                    told,
                    "stop that one, or choose another port",
                )
            )
    return faults
