"""The control socket of a supervisor: receives requests as lines of JSON, and answers each.

A connection carries one request after another, each one line of at most 64 KiB, answered by one
line. Connections do not wait for each other, and no client can keep others out. A client that is
idle for a while, or does not read its answer, is disconnected. When there are too many connections,
the one that has been idle longest is closed. A command that was started continues even if its
client disconnects.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from longwatch.core.clock import Clock
from longwatch.core.error_text import describe_error, os_reason
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import ControlCommandFailed
from longwatch.errors import LongwatchError, TryAgainError, UsageError
from longwatch.host.loop import wait_until_done

T = TypeVar("T")
ControlRequest = dict[str, Any]
ControlResponse = dict[str, Any]

MAX_REQUEST_BYTES = 64 * 1024
MAX_CONNECTIONS = 64
IDLE_TIMEOUT = 60.0
_CREDENTIALS = struct.Struct("iII")
"""The credentials from the kernel: pid, uid, gid."""
_WRONG_USE = UsageError.exit_code
_TRY_AGAIN = TryAgainError.exit_code


class ControlServer:
    """Answers requests on a Unix socket (mode 0600), from processes of this user and of root.

    `handle` is called on the event loop with each request and returns the answer, to which `"ok":
    true` is added unless the answer has an `ok`. A LongwatchError that it raises becomes `{"ok":
    false, "error": …, "exit_code": …}`. Any other error does too, with exit code 1, and is emitted
    as ControlCommandFailed.
    """

    def __init__(  # noqa: PLR0913 - a socket and its dependencies, the limits optional
        self,
        path: Path,
        handle: Callable[[ControlRequest], Awaitable[ControlResponse]],
        *,
        clock: Clock,
        events: Events,
        idle_timeout: float = IDLE_TIMEOUT,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.path = path
        self._handle = handle
        self._clock = clock
        self._events = events
        self._idle_timeout = idle_timeout
        self._max_connections = max_connections
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen. Replaces the socket of a killed supervisor. Raises UsageError if the path cannot
        be used.
        """
        listening = _bind(self.path)
        try:
            self._server = await asyncio.start_unix_server(
                self._accept, sock=listening, limit=MAX_REQUEST_BYTES
            )
        except BaseException:
            listening.close()
            raise

    async def close(self) -> None:
        """Close all connections, also those that wait for an answer. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self.path.unlink(missing_ok=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer, last_active=self._clock.monotonic())
        refusal = self._refusal(connection)
        if refusal is not None:
            connection.send(refusal)
            connection.abort()
            return
        self._connections.add(connection)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refusal(self, connection: _Connection) -> bytes | None:
        """Return the error for a connection that is refused, else None. May close another to make
        room.
        """
        uid = connection.uid
        if uid not in {os.geteuid(), 0}:
            return _error_response(
                f"user {uid} may not control this supervisor; run as the user that started it",
                _WRONG_USE,
            )
        if len(self._connections) >= self._max_connections and not self._evict_idle():
            return _error_response(
                f"the supervisor is busy with {self._max_connections} requests; try again",
                _TRY_AGAIN,
            )
        return None

    def _evict_idle(self) -> bool:
        """Close connections whose client disconnected while it waited for an answer, else the one
        that has been idle longest. Returns whether any was closed.
        """
        left = [connection for connection in self._connections if connection.is_disconnected]
        silent = [connection for connection in self._connections if not connection.busy]
        for connection in left or sorted(silent, key=lambda each: each.last_active)[:1]:
            self._drop(connection)
        return bool(left or silent)

    def _drop(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        connection.abort()

    async def _serve(self, connection: _Connection) -> None:
        try:
            while await self._serve_one(connection):
                connection.last_active = self._clock.monotonic()
        except OSError:
            return  # the client disconnected or timed out
        finally:
            self._drop(connection)

    async def _serve_one(self, connection: _Connection) -> bool:
        """Read one request and answer it; False if no other follows."""
        try:
            line = await self._with_idle_timeout(connection.reader.readline())
        except ValueError:
            connection.send(
                _error_response(
                    f"expected a request of at most {MAX_REQUEST_BYTES} bytes, got more", _WRONG_USE
                )
            )
            await self._with_idle_timeout(connection.writer.drain())
            return False
        if not line.endswith(b"\n"):
            return False
        with connection.processing():
            connection.send(await self._respond(line))
        await self._with_idle_timeout(connection.writer.drain())
        return True

    async def _with_idle_timeout(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of waiting for the client. Raises TimeoutError after the idle
        timeout.
        """
        waiting = asyncio.ensure_future(work)
        try:
            if await wait_until_done(waiting, self._idle_timeout, self._clock):
                return waiting.result()
            raise TimeoutError
        finally:
            waiting.cancel()

    async def _respond(self, line: bytes) -> bytes:
        request = _parse_request(line)
        if request is None:
            return _error_response(
                'expected one line with one JSON object, such as {"do": "status"}', _WRONG_USE
            )
        try:
            return _encode({"ok": True, **await self._handle(request)})
        except LongwatchError as error:
            return _error_response(str(error), error.exit_code)
        except Exception as error:  # noqa: BLE001 - a failed command must not stop the server; the event has the error
            problem = " ".join(describe_error(error).split())
            self._events.emit(ControlCommandFailed(command=str(request.get("do")), error=problem))
            return _error_response(problem, LongwatchError.exit_code)


class _Connection:
    """The connection of one client."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, last_active: float
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.last_active = last_active
        """When its last request was answered, or it connected."""
        self.busy = False
        """Whether a request of it is being processed."""
        self._socket: socket.socket = writer.get_extra_info("socket")
        writer.transport.set_write_buffer_limits(
            high=0
        )  # so that `drain` waits until the kernel has all data

    @property
    def uid(self) -> int:
        _, uid, _ = _CREDENTIALS.unpack(
            self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        return int(uid)

    @property
    def is_disconnected(self) -> bool:
        """Whether the client cannot read an answer any more. A client that only closed its writing
        side can.
        """
        if self._socket.fileno() < 0:
            return True
        poller = select.poll()
        poller.register(self._socket, 0)
        return bool(poller.poll(0))

    @contextmanager
    def processing(self) -> Iterator[None]:
        """Mark the connection as busy while its request is processed."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def send(self, line: bytes) -> None:
        self.writer.write(line)

    def abort(self) -> None:
        self.writer.transport.abort()


def _bind(path: Path) -> socket.socket:
    """Bind a socket with mode 0600 at this path."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale_socket(path)
        os.fchmod(listening.fileno(), 0o600)  # the file has this mode from the start
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        raise UsageError(f"cannot listen at {path}: {os_reason(error)}") from None
    return listening


def _remove_stale_socket(path: Path) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def _parse_request(line: bytes) -> ControlRequest | None:
    """Parse a request; None if it is not a JSON object."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None


def _error_response(error: str, exit_code: int) -> bytes:
    return _encode({"ok": False, "error": error, "exit_code": exit_code})


def _encode(response: ControlResponse) -> bytes:
    return json.dumps(response, allow_nan=False).encode() + b"\n"
