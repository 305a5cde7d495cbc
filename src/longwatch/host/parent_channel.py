"""The line from a worker process to the parent that keeps its leases: datagrams of JSON to a socket
of the parent's.

Nothing comes back on it. What the parent has to tell a child, it writes on the child's beat page or
sends as a signal.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Self

from longwatch.errors import TryAgainError
from longwatch.host.incarnation import Incarnation

PARENT_SOCKET_VARIABLE = "LONGWATCH_PARENT"
"""The variable that names the parent's socket."""
PARENT_INCARNATION_VARIABLE = "LONGWATCH_PARENT_INCARNATION"
"""The variable with the parent's incarnation (`host.incarnation`)."""
SUSPECTS_VARIABLE = "LONGWATCH_SUSPECTS"
"""The variable that makes a worker process run suspects (`store.blame`), and no other rows."""
MAX_DATAGRAM_BYTES = 128 * 1024
_SEND_TIMEOUT = 5.0
"""Seconds that a word that must be heard may take to be taken."""


class ParentChannel:
    """Speaks to the parent. Thread-safe. `incarnations`: those of the parent and of the guardian
    that spawned this process, separated by a space. This process dies with either of them.
    """

    def __init__(self, address: str, incarnations: str | None = None) -> None:
        self.address = address
        self.incarnations = incarnations

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Self | None:
        """The line that the environment names, which is taken out of it: it is this process's
        alone, not its children's.
        """
        address = environ.pop(PARENT_SOCKET_VARIABLE, "")
        parent = environ.pop(PARENT_INCARNATION_VARIABLE, None)
        if not address:
            return None
        return cls(address, None if parent is None else f"{parent} {Incarnation.of(os.getppid())}")

    def send(self, about: str, **facts: object) -> None:
        """Say what must be heard; TryAgainError if it cannot be."""
        try:
            self._send(about, facts, timeout=_SEND_TIMEOUT)
        except OSError as error:
            raise TryAgainError(
                f"the parent of this worker cannot be told of its {about}: "
                f"{error.strerror or error}"
            ) from None

    def try_send(self, about: str, **facts: object) -> None:
        """Say what may as well be lost, without waiting: the next such word replaces it."""
        with suppress(OSError):
            self._send(about, facts, timeout=0.0)

    def report_finished(self) -> None:
        """Report that this process ends by its own decision: it is not to be replaced. A parent
        that cannot be reached is gone.
        """
        with suppress(TryAgainError):
            self.send("finished")

    def _send(self, about: str, facts: dict[str, object], *, timeout: float) -> None:
        data = json.dumps({"about": about, "pid": os.getpid(), **facts}).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_DATAGRAM_BYTES)
            sock.settimeout(timeout)
            sock.sendto(data, self.address)
