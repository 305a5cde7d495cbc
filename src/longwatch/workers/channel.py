"""The parent's end of the channel to its worker processes; `host.parent_channel` is their end."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.parent_channel import MAX_DATAGRAM_BYTES


class WorkerChannel:
    """A socket that workers speak to, read by a thread of its own."""

    def __init__(self, path: Path, on_message: Callable[[Mapping[str, Any]], None]) -> None:
        self._path = path
        self._on_message = on_message
        self._socket = _bind(path)
        self._is_closing = False
        self._thread = BackgroundThread(self._receive, name="worker-channel", report_errors=True)
        self._thread.start()

    def close(self, clock: Clock, deadline: Deadline) -> None:
        self._is_closing = True
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.wait(clock, deadline)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _receive(self) -> None:
        while not self._is_closing:
            data = self._socket.recv(MAX_DATAGRAM_BYTES)
            with suppress(Exception):  # whatever a word does to us, the next one is heard
                self._on_message(json.loads(data))


def _bind(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path.unlink(missing_ok=True)
    os.fchmod(bound.fileno(), 0o600)
    bound.bind(str(path))
    path.chmod(0o600)
    return bound
