"""Checks whether the process behind a Unix socket is visible on this host."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

_CREDENTIALS = struct.Struct("3i")
_CONNECT_SECONDS = 5.0


def is_peer_visible(socket_path: str) -> bool:
    """Return whether the process behind a socket is in our PID namespace. Blocks for at most 5
    seconds.

    In another PID namespace its number is 0 here, and so are those of its containers.
    """
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.settimeout(_CONNECT_SECONDS)
        probe.connect(socket_path)
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return bool(_CREDENTIALS.unpack(credentials)[0] > 0)
    return False
