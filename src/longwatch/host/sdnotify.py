"""Reports the state of this process to its service manager (systemd or our supervisor) by
sd_notify.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

MAX_DATAGRAM_BYTES = 4096
"""Longest datagram in bytes that the service manager accepts; it ignores longer ones."""
_MICROSECONDS = re.compile(r"0*[1-9][0-9]{0,19}")


class SdNotifier:
    """Sends `NAME=value` lines to the socket that the environment names, if it names one.

    Never blocks or raises: a message that cannot be sent now is dropped. Thread-safe.
    """

    def __init__(self, address: str = "", *, watchdog_seconds: float | None = None) -> None:
        self.watchdog_seconds = watchdog_seconds
        """Seconds within which a beat must come; None if the service manager expects no beats."""
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, as systemd sets them.

        If WATCHDOG_PID names another process, this one sends no beats.
        """
        return cls(environ.get("NOTIFY_SOCKET", ""), watchdog_seconds=_watchdog_seconds(environ))

    @property
    def is_enabled(self) -> bool:
        return bool(self._address)

    def ready(self, status: str = "") -> None:
        self.send(READY="1", **_status(status))

    def stopping(self, status: str = "") -> None:
        self.send(STOPPING="1", **_status(status))

    def beat(self) -> None:
        self.send(WATCHDOG="1")

    def stalled(self, status: str) -> None:
        """Ask the service manager to treat this process as if its beats had stopped."""
        self.send(WATCHDOG="trigger", **_status(status))

    def send(self, **facts: str) -> bool:
        """Send these facts; True if they were sent."""
        if not self._address:
            return False
        text = "\n".join(f"{name}={' '.join(value.split())}" for name, value in facts.items())
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock,
        ):
            data = text.encode(errors="replace")
            if len(data) > MAX_DATAGRAM_BYTES:
                data = data[:MAX_DATAGRAM_BYTES].decode(errors="ignore").encode()
            sock.sendto(data, self._address)
            return True
        return False


def _status(text: str) -> dict[str, str]:
    return {"STATUS": text} if text else {}


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    microseconds, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not _MICROSECONDS.fullmatch(microseconds) or pid not in {"", str(os.getpid())}:
        return None
    return int(microseconds) / 1_000_000
