"""Telling whoever started this process how it is: systemd, or our own supervisor, by sd_notify."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

MAX_DATAGRAM_BYTES = 4096
"""Bytes of a datagram that whoever listens takes; it passes over longer ones."""
_MICROSECONDS = re.compile(r"0*[1-9][0-9]{0,19}")


class SdNotifier:
    """Says `NAME=value` lines to the socket that the environment names; nothing where it names
    none.

    Nothing here waits or raises: what cannot be said now is not said. Thread-safe.
    """

    def __init__(self, address: str = "", *, watchdog_seconds: float | None = None) -> None:
        self.watchdog_seconds = watchdog_seconds
        """Seconds within which a beat has to come; None: nobody waits for one."""
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """As systemd has it: NOTIFY_SOCKET, WATCHDOG_USEC, and WATCHDOG_PID if beats are
        somebody else's business.
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
        """Ask to be treated as one that does not beat any more."""
        self.send(WATCHDOG="trigger", **_status(status))

    def send(self, **facts: str) -> bool:
        """Whether it was said."""
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
