"""The channel from a Longwatch program to its parent: JSON datagrams to a socket. A worker, whose
leases the parent renews, the runner and the status page have it.

It has one direction. The parent sends to a child through the child's beat page or as a signal. A
long datagram is compressed: the metrics of hundreds of loops or nodes repeat the same names.

Both ends are the same release, unless the package was upgraded under a running parent. So the
parent names the `PROTOCOL` that it speaks. A program that speaks another one stands
apart: it sends nothing but `apart`, and runs as if it had no parent. A worker then renews its
leases itself. The message `apart` and the three variables stay the same in every protocol.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import zlib
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Self

from longwatch.errors import TryAgainError
from longwatch.host.incarnation import Incarnation

_log = logging.getLogger("longwatch.parent")
PARENT_SOCKET_VARIABLE = "LONGWATCH_PARENT"
"""The variable that names the parent's socket."""
PARENT_INCARNATION_VARIABLE = "LONGWATCH_PARENT_INCARNATION"
"""The variable with the parent's incarnation (`host.incarnation`)."""
PARENT_PROTOCOL_VARIABLE = "LONGWATCH_PARENT_PROTOCOL"
"""The variable with the protocol of the parent. Parents that do not set it speak the first."""
FIRST_PROTOCOL = 1
PROTOCOL = FIRST_PROTOCOL
"""The reports, and the layout of the beat page. Raise it when one end would misread the other."""
REPORT_SECONDS = 1.0
"""Seconds between two reports of the state of a program."""
SUSPECTS_VARIABLE = "LONGWATCH_SUSPECTS"
"""The variable that makes a worker process run suspects (`store.blame`), and no other rows."""
MAX_DATAGRAM_BYTES = 128 * 1024
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Bytes of a message before it is compressed. A datagram could unpack to a thousand times its
size.
"""
_COMPRESSED_FROM = 16 * 1024
"""Bytes from which on a datagram is compressed."""
_SEND_TIMEOUT = 5.0
"""Seconds that `send` may take."""


class ParentChannel:
    """Sends messages to the parent process. Thread-safe.

    `incarnations`: those of the parent and of the guardian that spawned this process, separated by
    a space. This process dies with either of them.
    """

    def __init__(self, address: str, incarnations: str | None = None) -> None:
        self.address = address
        self.incarnations = incarnations

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Self | None:
        """Make the channel that the environment names, and remove its variables from the
        environment.

        The channel belongs to this process alone, not to its children. None if there is no channel,
        or if the parent speaks another protocol, which is then logged and reported to it.
        """
        address = environ.pop(PARENT_SOCKET_VARIABLE, "")
        parent = environ.pop(PARENT_INCARNATION_VARIABLE, None)
        protocol = environ.pop(PARENT_PROTOCOL_VARIABLE, str(FIRST_PROTOCOL))
        if not address:
            return None
        made = cls(address, None if parent is None else f"{parent} {Incarnation.of(os.getppid())}")
        if protocol == str(PROTOCOL):
            return made
        _log.warning(
            "expected a parent of protocol %s, found %s: the package was replaced under it; this "
            "process goes on as if it had no parent, and renews its leases itself; restart the "
            "parent",
            PROTOCOL,
            protocol,
        )
        made.report_apart()
        return None

    def send(self, about: str, **facts: object) -> None:
        """Send a message that must arrive. Blocks for up to 5 s; raises TryAgainError
        if it fails.
        """
        try:
            self._send(about, facts, timeout=_SEND_TIMEOUT)
        except OSError as error:
            raise TryAgainError(
                f"cannot send the {about} message to the parent of this process: "
                f"{error.strerror or error}"
            ) from None

    def try_send(self, about: str, **facts: object) -> None:
        """Send a message that may get lost, without blocking: the next one replaces it."""
        with suppress(OSError):
            self._send(about, facts, timeout=0.0)

    def report_finished(self) -> None:
        """Report that this process ends by its own decision, so that the parent does not replace
        it.

        Does not raise: a parent that cannot be reached is gone.
        """
        with suppress(TryAgainError):
            self.send("finished")

    def report_apart(self) -> None:
        """Report that this process speaks another protocol. Does not raise."""
        with suppress(TryAgainError):
            self.send("apart", protocol=PROTOCOL)

    def _send(self, about: str, facts: dict[str, object], *, timeout: float) -> None:
        data = encode_datagram({"about": about, "pid": os.getpid(), **facts})
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_DATAGRAM_BYTES)
            sock.settimeout(timeout)
            sock.sendto(data, self.address)


def encode_datagram(message: Mapping[str, object]) -> bytes:
    data = json.dumps(message).encode()
    return data if len(data) < _COMPRESSED_FROM else zlib.compress(data, level=1)


def decode_datagram(data: bytes) -> Mapping[str, Any]:
    """The message of a datagram. Raises ValueError or zlib.error for anything else, and for a
    message that is too long.
    """
    if not data.startswith(b"{"):
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(data, MAX_MESSAGE_BYTES)
        if not unpacking.eof:
            raise ValueError(f"a message has at most {MAX_MESSAGE_BYTES} bytes")
    decoded: Mapping[str, Any] = json.loads(data)
    return decoded
