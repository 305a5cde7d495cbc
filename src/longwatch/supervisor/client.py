"""Asking a supervisor over its control socket: one line of JSON there, one line back. Plain
blocking sockets, quick to import.
"""

from __future__ import annotations

import json
import os
import select
import socket as sockets
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.errors import DeadlineExceededError, LongwatchError, TryAgainError, UsageError

ControlResponse = dict[str, Any]


class NoAnswerError(TryAgainError):
    """The supervisor has ended, or ended before it answered."""


_CHUNK_BYTES = 64 * 1024
_RETRY_INTERVAL = 0.01
_CREDENTIALS = struct.Struct("iII")
"""As the kernel fills them in: pid, uid, gid."""


def send_request(socket: Path, request: Mapping[str, object], *, timeout: float) -> ControlResponse:
    """What the supervisor answers to a request, also when that is a no; TryAgainError if it does
    not answer at all.
    """
    deadline = Deadline.after(timeout, SystemClock())
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection:
        try:
            _send_line(connection, socket, json.dumps(request).encode() + b"\n", deadline)
            return _parse_response(_receive_line(connection, deadline))
        except TimeoutError:
            raise DeadlineExceededError(
                f"the supervisor has not answered within {timeout:g} s; what it was told it "
                f"may still do, `longwatch status` shows"
            ) from None
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoAnswerError(
                f"nobody answers at {socket}: the supervisor is just ending, or its socket "
                f"was removed"
            ) from None
        except PermissionError:
            raise UsageError(
                f"{socket} belongs to another user; ask as the user who started the supervisor"
            ) from None
        except ConnectionError:
            raise _disconnected_error() from None


class ProcessWatch:
    """Waits for the end of the process behind a control socket. Made before it is told to end.

    The kernel says which process that is, numbered as here. None is watched where it cannot be
    seen, as in another PID namespace, or has ended.
    """

    def __init__(self, socket: Path) -> None:
        self._descriptor = -1
        with (
            suppress(OSError),
            sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection,
        ):
            connection.connect(str(socket))
            credentials = connection.getsockopt(
                sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size
            )
            pid, _, _ = _CREDENTIALS.unpack(credentials)
            self._descriptor = os.pidfd_open(pid) if pid > 0 else -1

    def wait(self, deadline: Deadline) -> bool:
        """Whether the process has ended by then; True if none is watched."""
        if self._descriptor < 0:
            return True
        left = deadline.remaining()
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return bool(poller.poll(None if left is None else left * 1000))

    def close(self) -> None:
        """Idempotent."""
        self._descriptor, closing = -1, self._descriptor
        if closing >= 0:
            os.close(closing)


def _send_line(connection: sockets.socket, socket: Path, line: bytes, deadline: Deadline) -> None:
    """A refusal may come before everything was sent; then it is there to be read."""
    while not _try_connect(connection, socket, deadline):
        deadline.clock.wait(Wakeup(), _RETRY_INTERVAL)
    with suppress(BrokenPipeError):
        connection.settimeout(_remaining(deadline))
        connection.sendall(line)


def _try_connect(connection: sockets.socket, socket: Path, deadline: Deadline) -> bool:
    """Whether we got through; a unix socket with a timeout does not wait until there is room in
    the queue.
    """
    connection.settimeout(_remaining(deadline))
    try:
        connection.connect(str(socket))
    except BlockingIOError:
        return False
    return True


def _receive_line(connection: sockets.socket, deadline: Deadline) -> bytes:
    pieces: list[bytes] = []
    while not pieces or not pieces[-1].endswith(b"\n"):
        connection.settimeout(_remaining(deadline))
        piece = connection.recv(_CHUNK_BYTES)
        if not piece:
            raise _disconnected_error()
        pieces.append(piece)
    return b"".join(pieces)


def _remaining(deadline: Deadline) -> float | None:
    """For `settimeout`, to which 0 would mean not to wait but to fail in another way."""
    left = deadline.remaining()
    if left == 0:
        raise TimeoutError
    return left


def _parse_response(line: bytes) -> ControlResponse:
    with suppress(ValueError):
        response = json.loads(line)
        if isinstance(response, dict):
            return response
    raise LongwatchError("the supervisor's answer cannot be read; is it of another version?")


def _disconnected_error() -> NoAnswerError:
    return NoAnswerError(
        "the supervisor ended, or hung up, before it answered; look with `longwatch status`"
    )
