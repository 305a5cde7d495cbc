"""The parent's end of the channel to its worker processes; `host.parent_channel` is their end.

A report is *accepted* and then *handled*. Accepting is quick: it notes what has to be known at once
and never waits. Handling may open a store. A reader thread accepts reports as they arrive, and a
second thread handles them one after another, in the order of their arrival.

When a process has ended, everything that it sent is in the socket, but the reader may not have come
to it yet. `accept_arrived` accepts it in the caller's thread, so that the end is judged by all
reports. One lock covers the step from the socket to the queue of the second thread: no report is
accepted twice, and none is between the two when `accept_arrived` returns. It accepts no more than
fit into the socket, so that a program that never stops sending does not hold the caller.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.parent_channel import MAX_DATAGRAM_BYTES, decode_datagram

_DEFAULT_QUEUE_LENGTH = 512
_QUEUE_LENGTH_FILE = Path("/proc/sys/net/unix/max_dgram_qlen")

Handling = Callable[[], None]
Accept = Callable[[Mapping[str, Any]], Handling | None]
"""Notes a report without waiting. Returns the rest of its handling; None if it is done."""


class WorkerChannel:
    """The socket to which workers send reports. An error with one report does not keep the next
    from being read.
    """

    def __init__(self, path: Path, accept: Accept) -> None:
        self._path = path
        self._accept = accept
        self._socket = _bind(path)
        self._most_arrived = _read_queue_length() + 2  # the kernel accepts one more than it says
        self._lock = threading.Lock()
        self._is_closing = False
        self._handlings: queue.SimpleQueue[Handling | None] = queue.SimpleQueue()
        self._threads = [
            BackgroundThread(self._read, name="worker-channel", report_errors=True),
            BackgroundThread(self._handle, name="worker-reports", report_errors=True),
        ]
        for thread in self._threads:
            thread.start()

    def accept_arrived(self) -> None:
        """Accept the reports that have arrived. Does not wait for more; thread-safe."""
        with self._lock, suppress(BlockingIOError):
            for _ in range(self._most_arrived):
                if self._is_closing:
                    return
                data = self._socket.recv(MAX_DATAGRAM_BYTES, socket.MSG_DONTWAIT)
                with suppress(Exception):  # a report that cannot be parsed
                    self._handlings.put(self._accept(decode_datagram(data)) or _do_nothing)

    def close(self, clock: Clock, deadline: Deadline) -> None:
        self._is_closing = True
        self._socket.shutdown(socket.SHUT_RDWR)
        self._handlings.put(None)
        for thread in self._threads:
            thread.wait(clock, deadline)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        while not self._is_closing:
            self._socket.recv(1, socket.MSG_PEEK)  # waits for a report, and leaves it there
            self.accept_arrived()

    def _handle(self) -> None:
        while (handling := self._handlings.get()) is not None:
            with suppress(Exception):  # a failure must not keep the next report from being handled
                handling()


def _do_nothing() -> None:
    """The handling of a report that was complete when it was accepted."""


def _read_queue_length() -> int:
    """How many datagrams a socket holds that was just made."""
    try:
        return int(_QUEUE_LENGTH_FILE.read_text())
    except (OSError, ValueError):
        return _DEFAULT_QUEUE_LENGTH


def _bind(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path.unlink(missing_ok=True)
    os.fchmod(bound.fileno(), 0o600)
    bound.bind(str(path))
    path.chmod(0o600)
    return bound
