"""The sd_notify socket of a program, on which it reports that it is ready, alive or stopping, or
needs more time.

A message is one datagram of `NAME=value` lines.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longwatch.core.masking import mask_text
from longwatch.core.sanitize import MAX_LINE_CHARS, printable
from longwatch.errors import UsageError

MAX_EXTENSION = 86_400.0
"""Maximum seconds of one extension; a program that needs more asks again."""
_MAX_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notice of a program. `pid` is the sender's, from the kernel; 0 if it is not visible on
    this host.
    """

    pid: int
    ready: bool = False
    """`READY=1`: its start is over."""
    stopping: bool = False
    """`STOPPING=1`: it is about to end."""
    beat: bool = False
    """`WATCHDOG=1`: it is alive."""
    trigger: bool = False
    """`WATCHDOG=trigger`: it asks to be treated as unhealthy."""
    status: str | None = None
    """`STATUS=…`: a text that describes its work, masked for display; empty to clear it."""
    extend_seconds: float | None = None
    """`EXTEND_TIMEOUT_USEC=…`: seconds that it needs from now for its start or stop."""

    @classmethod
    def parse(cls, datagram: bytes, *, pid: int) -> Notice | None:
        """Parse a datagram; None if it has no known name. If a name is given twice, the last value
        counts.
        """
        fields = dict(_assignments(datagram))
        notice = cls(
            pid=pid,
            ready=fields.get("READY") == "1",
            stopping=fields.get("STOPPING") == "1",
            beat=fields.get("WATCHDOG") == "1",
            trigger=fields.get("WATCHDOG") == "trigger",
            status=_status(fields.get("STATUS")),
            extend_seconds=_seconds(fields.get("EXTEND_TIMEOUT_USEC", "")),
        )
        return None if notice == cls(pid=pid) else notice


def _assignments(datagram: bytes) -> list[tuple[str, str]]:
    lines = (line.partition("=") for line in datagram.decode(errors="replace").split("\n"))
    return [(name, value) for name, sign, value in lines if sign]


def _status(text: str | None) -> str | None:
    return None if text is None else printable(mask_text(text.strip()), max_chars=MAX_LINE_CHARS)


def _seconds(microseconds: str) -> float | None:
    """Convert microseconds to seconds; None if the text is not a whole number above 0."""
    if not (microseconds.isascii() and microseconds.isdigit() and len(microseconds) <= _MAX_DIGITS):
        return None
    return min(int(microseconds) / 1_000_000, MAX_EXTENSION) or None


__all__ = ["Notice", "NotifySocket"]

_MAX_PATH_BYTES = 107
_MAX_DATAGRAM_BYTES = 4096
_MAX_PER_TURN = 64
_MAX_DRAINED = 4096
_CREDENTIALS = struct.Struct("3i")
_CREDENTIALS_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size)
"""No space for more: the kernel closes descriptors that are sent along, so that they never reach
us.
"""


class NotifySocket:
    """Binds a datagram socket at `path` and passes each notice to `on_notice`, on the event loop.

    Only this user, root, and the user `uid` if given may send: the mode is 0600, and that user is
    the owner. That user must have access to the directories above. Datagrams of more than 4 KiB or
    without a known name are skipped. After 64 datagrams the loop gets a turn, so that a flood does
    not delay other programs.
    """

    def __init__(
        self, path: Path, on_notice: Callable[[Notice], None], *, uid: int | None = None
    ) -> None:
        self.path = path.absolute()
        self._on_notice = on_notice
        self._uid = uid
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Bind and listen. Replaces a stale socket at the path. Idempotent. Raises UsageError."""
        if self._socket is not None:
            return
        if len(os.fsencode(self.path)) > _MAX_PATH_BYTES:
            raise UsageError(
                f"the path of the notify socket is longer than {_MAX_PATH_BYTES} bytes: "
                f"{self.path}; choose a shorter one"
            )
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._bind(listening)
        except OSError as error:
            if listening.getsockname():
                self.path.unlink(missing_ok=True)
            listening.close()
            raise UsageError(
                f"the notify socket {self.path} cannot be created: {error.strerror}"
            ) from None
        self._socket = listening
        asyncio.get_running_loop().add_reader(listening, self._on_readable)

    def close(self) -> None:
        """Stop listening and remove the socket. Idempotent."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        self.path.unlink(missing_ok=True)

    def drain(self) -> None:
        """Discard queued datagrams, which are from an earlier run."""
        for _ in range(_MAX_DRAINED):
            if self._receive() is None:
                return

    def environment(self, interval: float | None) -> dict[str, str]:
        """Return the variables that the program needs; with an interval it is asked to beat at
        least that often.
        """
        address = {"NOTIFY_SOCKET": str(self.path)}
        return (
            address
            if interval is None
            else {**address, "WATCHDOG_USEC": str(max(round(interval * 1_000_000), 1))}
        )

    def _bind(self, listening: socket.socket) -> None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(self.path.lstat().st_mode):
                self.path.unlink()
        os.fchmod(
            listening.fileno(), 0o600
        )  # the file gets this mode, less the umask, so that other users can never send
        listening.bind(str(self.path))
        self.path.chmod(0o600)
        if self._uid is not None and self._uid != os.geteuid():
            os.chown(self.path, self._uid, -1)

    def _on_readable(self) -> None:
        for _ in range(_MAX_PER_TURN):
            if (received := self._receive()) is None:
                return
            datagram, pid = received
            notice = Notice.parse(datagram, pid=pid)
            if notice is not None:
                self._on_notice(notice)

    def _receive(self) -> tuple[bytes, int] | None:
        """Receive a datagram (empty if it was too long) and the pid of its sender; None if there is
        none, or if the socket is closed.
        """
        if self._socket is None:
            return None
        try:
            datagram, ancillary, flags, _ = self._socket.recvmsg(
                _MAX_DATAGRAM_BYTES, _CREDENTIALS_SPACE
            )
        except OSError:
            return None
        return (b"" if flags & socket.MSG_TRUNC else datagram), _sender_pid(ancillary)


def _sender_pid(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(
            data
        ) >= _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack_from(data)[0])
    return 0
