"""The control socket of a supervisor: lines of JSON from those who may tell it what to do.

A connection carries one request after another, each a line of 64 KiB at the most, each answered by
one line. Connections do not wait for each other. Nobody can keep the others out: whoever says
nothing for a while, or does not take his answer, is hung up on, and when there are too many the one
that has been silent longest has to go. What a request has set going is not undone because the one
who asked has left.
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
"""As the kernel fills them in: pid, uid, gid."""
_WRONG_USE = UsageError.exit_code
_TRY_AGAIN = TryAgainError.exit_code


class ControlServer:
    """Answers requests on a unix socket, 0600, to processes of this user and of root.

    `handle` is called on the loop with each request and gives the answer, to which `"ok": true` is
    added unless it says otherwise. A LongwatchError that it raises becomes `{"ok": false, "error":
    …, "exit_code": …}`; anything else does too, with exit code 1, and is emitted as
    ControlCommandFailed.
    """

    def __init__(  # noqa: PLR0913 - a socket and its surroundings, the limits optional
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
        """Listen; a socket that a killed supervisor left behind is replaced."""
        listening = _bind(self.path)
        try:
            self._server = await asyncio.start_unix_server(
                self._accept, sock=listening, limit=MAX_REQUEST_BYTES
            )
        except BaseException:
            listening.close()
            raise

    async def close(self) -> None:
        """Hang up on everybody, also on those whose answer is not there yet; idempotent."""
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
        """Why this one is not let in; to make room for it another may have to go."""
        uid = connection.uid
        if uid not in {os.geteuid(), 0}:
            return _error_response(
                f"user {uid} may not control this supervisor; ask as the user who started it",
                _WRONG_USE,
            )
        if len(self._connections) >= self._max_connections and not self._evict_idle():
            return _error_response(
                f"the supervisor is busy with {self._max_connections} requests; try again",
                _TRY_AGAIN,
            )
        return None

    def _evict_idle(self) -> bool:
        """Hang up on those who have left while they were being answered, else on the one that
        has been silent longest.
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
            return  # it has left, or took too long
        finally:
            self._drop(connection)

    async def _serve_one(self, connection: _Connection) -> bool:
        """One request and its answer; False when there will be no other."""
        try:
            line = await self._with_idle_timeout(connection.reader.readline())
        except ValueError:
            connection.send(
                _error_response(f"a request has {MAX_REQUEST_BYTES} bytes at the most", _WRONG_USE)
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
        """What comes of waiting for the other side; TimeoutError when it lets us wait too long."""
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
                'a request is one line with one JSON object, such as {"do": "status"}', _WRONG_USE
            )
        try:
            return _encode({"ok": True, **await self._handle(request)})
        except LongwatchError as error:
            return _error_response(str(error), error.exit_code)
        except Exception as error:  # noqa: BLE001 - a fault in one command must not take the others away; the event tells
            problem = " ".join(describe_error(error).split())
            self._events.emit(ControlCommandFailed(command=str(request.get("do")), error=problem))
            return _error_response(problem, LongwatchError.exit_code)


class _Connection:
    """One client."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, last_active: float
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.last_active = last_active
        """When it was last heard of."""
        self.busy = False
        """Whether it waits for its answer, and not we for it."""
        self._socket: socket.socket = writer.get_extra_info("socket")
        writer.transport.set_write_buffer_limits(
            high=0
        )  # `drain` waits until everything is with the kernel

    @property
    def uid(self) -> int:
        _, uid, _ = _CREDENTIALS.unpack(
            self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        return int(uid)

    @property
    def is_disconnected(self) -> bool:
        """Whether nobody can read an answer any more; one who has only said his last word can."""
        if self._socket.fileno() < 0:
            return True
        poller = select.poll()
        poller.register(self._socket, 0)
        return bool(poller.poll(0))

    @contextmanager
    def processing(self) -> Iterator[None]:
        """Around the making of its answer."""
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
    """A socket of ours alone at this path."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale_socket(path)
        os.fchmod(
            listening.fileno(), 0o600
        )  # so that it is made with that mode, and is never another
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
    """The request, if it is one."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None


def _error_response(error: str, exit_code: int) -> bytes:
    return _encode({"ok": False, "error": error, "exit_code": exit_code})


def _encode(response: ControlResponse) -> bytes:
    return json.dumps(response, allow_nan=False).encode() + b"\n"
