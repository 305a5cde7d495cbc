"""The notify socket of a program: how a child in any language says that it is ready, alive,
stopping, or needs more time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from longwatch.errors import UsageError
from longwatch.supervisor.notices import Notice

__all__ = ["Notice", "NotifySocket"]

_LONGEST_PATH = 107
_LONGEST_DATAGRAM = 4096
_AT_A_TIME = 64
_MOST_DRAINED = 4096
_CREDENTIALS = struct.Struct("3i")
_ROOM_FOR_CREDENTIALS = socket.CMSG_SPACE(_CREDENTIALS.size)
"""And for nothing else: the kernel closes descriptors that come along, and they never become
ours.
"""


class NotifySocket:
    """Binds a datagram socket at `path` and hands what is said there to `heard`, on the loop.

    Only we, root, and the user `uid` if given may speak: its mode is 0600 and that user its owner.
    (To get there, that user must be able to pass the directories above.) Datagrams of more than 4
    KiB and those that say nothing we know are passed over; after 64 the loop has its turn, so that
    a flood delays nobody.
    """

    def __init__(
        self, path: Path, heard: Callable[[Notice], None], *, uid: int | None = None
    ) -> None:
        self.path = path.absolute()
        self._heard = heard
        self._uid = uid
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Bind and listen; nothing if that is done. A socket that was left behind at the path is
        replaced.
        """
        if self._socket is not None:
            return
        if len(os.fsencode(self.path)) > _LONGEST_PATH:
            raise UsageError(
                f"the path of the notify socket is longer than {_LONGEST_PATH} bytes: "
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
                f"the notify socket {self.path} cannot be made: {error.strerror}"
            ) from None
        self._socket = listening
        asyncio.get_running_loop().add_reader(listening, self._readable)

    def close(self) -> None:
        """Stop listening and remove the socket; idempotent."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        self.path.unlink(missing_ok=True)

    def drain(self) -> None:
        """Throw away what is queued: words of a run that is over."""
        for _ in range(_MOST_DRAINED):
            if self._receive() is None:
                return

    def environment(self, interval: float | None) -> dict[str, str]:
        """What the program has to find in its environment; with an interval it is asked to beat
        at least that often.
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
        )  # the file gets this mode, less the umask: at no moment may others speak
        listening.bind(str(self.path))
        self.path.chmod(0o600)
        if self._uid is not None and self._uid != os.geteuid():
            os.chown(self.path, self._uid, -1)

    def _readable(self) -> None:
        for _ in range(_AT_A_TIME):
            if (received := self._receive()) is None:
                return
            datagram, pid = received
            notice = Notice.parse(datagram, pid=pid)
            if notice is not None:
                self._heard(notice)

    def _receive(self) -> tuple[bytes, int] | None:
        """A datagram, empty if it was too long, and who sent it; None if there is none, also
        because we were closed meanwhile.
        """
        if self._socket is None:
            return None
        try:
            datagram, ancillary, flags, _ = self._socket.recvmsg(
                _LONGEST_DATAGRAM, _ROOM_FOR_CREDENTIALS
            )
        except OSError:
            return None
        return (b"" if flags & socket.MSG_TRUNC else datagram), _sender(ancillary)


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(
            data
        ) >= _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack_from(data)[0])
    return 0
