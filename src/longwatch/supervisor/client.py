"""Sends requests to a supervisor over its control socket: one line of JSON each way. Uses blocking
sockets only, so it is quick to import.
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
    """The supervisor ended before it answered."""


READING_COMMANDS = frozenset({"status", "usage"})
"""Commands that change nothing."""
_CHUNK_BYTES = 64 * 1024
_RETRY_INTERVAL = 0.01
_CREDENTIALS = struct.Struct("iII")
"""The credentials from the kernel: pid, uid, gid."""


def send_request(socket: Path, request: Mapping[str, object], *, timeout: float) -> ControlResponse:
    """Send a request and return the answer, which may be a refusal. Blocking.

    Raises TryAgainError if the supervisor does not answer, DeadlineExceededError if it takes longer
    than `timeout`.
    """
    deadline = Deadline.after(timeout, SystemClock())
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as connection:
        try:
            _send_line(connection, socket, json.dumps(request).encode() + b"\n", deadline)
            return _parse_response(_receive_line(connection, deadline))
        except TimeoutError:
            raise DeadlineExceededError(_late_answer_text(request.get("do"), timeout)) from None
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoAnswerError(
                f"no supervisor answers at {socket}: it is ending, or its socket was removed; try "
                f"again, or start it again"
            ) from None
        except PermissionError:
            raise UsageError(
                f"{socket} belongs to another user; run as the user that started the supervisor"
            ) from None
        except ConnectionError:
            raise _disconnected_error() from None


def _late_answer_text(command: object, timeout: float) -> str:
    late = f"the supervisor did not answer within {timeout:g} s"
    if command in READING_COMMANDS:
        return f"{late}: its process is stopped, or this machine is overloaded"
    return f"{late}, but may still run the command; see `longwatch status`"


class ProcessWatch:
    """Waits for the end of the process behind a control socket. Create it before the process is
    asked to end.

    The kernel reports the pid of that process. No process is watched if it has ended, or if it is
    not visible here, for example in another PID namespace.
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
        """Wait for the end; return whether the process ended by the deadline. True if none is
        watched.
        """
        if self._descriptor < 0:
            return True
        left = deadline.remaining()
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return bool(poller.poll(None if left is None else left * 1000))

    def close(self) -> None:
        """Stop watching the process. Idempotent."""
        self._descriptor, closing = -1, self._descriptor
        if closing >= 0:
            os.close(closing)


def _send_line(connection: sockets.socket, socket: Path, line: bytes, deadline: Deadline) -> None:
    """Connect and send a line. A refusal may come before the line is sent, and can then be
    received.
    """
    while not _try_connect(connection, socket, deadline):
        deadline.clock.wait(Wakeup(), _RETRY_INTERVAL)
    with suppress(BrokenPipeError):
        connection.settimeout(_remaining(deadline))
        connection.sendall(line)


def _try_connect(connection: sockets.socket, socket: Path, deadline: Deadline) -> bool:
    """Try to connect; False if the queue of the socket is full. A Unix socket with a timeout does
    not wait for room in it.
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
    """Return the seconds for `settimeout`. Raises TimeoutError at 0, which would mean not to
    block.
    """
    left = deadline.remaining()
    if left == 0:
        raise TimeoutError
    return left


def _parse_response(line: bytes) -> ControlResponse:
    with suppress(ValueError):
        response = json.loads(line)
        if isinstance(response, dict):
            return response
    raise LongwatchError(
        "expected one JSON object from the supervisor, found something else; check that it has "
        "the same version"
    )


def _disconnected_error() -> NoAnswerError:
    return NoAnswerError(
        "the supervisor ended or disconnected before it answered; see `longwatch status`"
    )
