"""Who else listens: the sockets of one database in the runtime directory, listed again only when
the directory has changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_SETTLED = 0.05
"""A directory's time of change is as coarse as a tick of the kernel, so for so many seconds
after a change it proves nothing.
"""


class Neighbours:
    """The sockets whose names begin with a prefix. One owner; not thread-safe."""

    def __init__(
        self, directory: Path, prefix: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._prefix = prefix
        self._now = now
        self._changed = -1
        self._changed_seen = 0.0
        self._sockets: list[str] = []
        self._settled = False

    def sockets(self) -> list[str]:
        """Their paths; none when the directory is gone."""
        try:
            changed = os.stat(self._directory).st_mtime_ns  # noqa: PTH116 - a third of the time, on every commit
        except OSError:
            return []
        if changed != self._changed:
            self._changed, self._changed_seen, self._settled = changed, self._now(), False
        if not self._settled:
            self._list()
        return self._sockets

    def remove(self, socket: str) -> None:
        """Nobody hears that one any more."""
        with suppress(OSError):
            Path(socket).unlink()

    def _list(self) -> None:
        now = self._now()
        with suppress(OSError), os.scandir(self._directory) as entries:
            self._sockets = [entry.path for entry in entries if entry.name.startswith(self._prefix)]
            self._settled = now - self._changed_seen > _SETTLED
