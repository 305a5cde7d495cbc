"""Ports that nobody listens on, for servers of tests."""

from __future__ import annotations

import socket

HIGHEST = 65536


def free_port(*, below: int = HIGHEST) -> int:
    """A free port on loopback; whoever comes first may take it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < below:
            return port
