"""The parent's end of the line on which worker processes speak to it; `host.parent` is theirs."""

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
from longwatch.host.errand import Errand
from longwatch.host.parent import LONGEST_WORD


class Line:
    """A socket that workers speak to, read by a thread of its own."""

    def __init__(self, path: Path, heard: Callable[[Mapping[str, Any]], None]) -> None:
        self._path = path
        self._heard = heard
        self._socket = _bound(path)
        self._closing = False
        self._listening = Errand(self._listen, name="overseer-line", loud=True)
        self._listening.start()

    def close(self, clock: Clock, deadline: Deadline) -> None:
        self._closing = True
        self._socket.shutdown(socket.SHUT_RDWR)
        self._listening.wait(clock, deadline)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _listen(self) -> None:
        while not self._closing:
            data = self._socket.recv(LONGEST_WORD)
            with suppress(Exception):  # whatever a word does to us, the next one is heard
                self._heard(json.loads(data))


def _bound(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path.unlink(missing_ok=True)
    os.fchmod(listening.fileno(), 0o600)
    listening.bind(str(path))
    path.chmod(0o600)
    return listening
