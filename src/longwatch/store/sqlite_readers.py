"""Connections for reading: as many as are ever used at once, whatever threads come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from longwatch.store.sqlite_connection import SqliteConnection


class Readers:
    """Lends connections. Every method may be called from any thread."""

    def __init__(self, connect: Callable[[], SqliteConnection]) -> None:
        self.opening = threading.Lock()
        self._connect = connect
        self._every: list[SqliteConnection] = []
        self._free: list[SqliteConnection] = []
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[SqliteConnection]:
        """A connection that nobody else uses meanwhile."""
        reader = self._take()
        try:
            yield reader
        finally:
            self._give_back(reader)

    def all(self) -> list[SqliteConnection]:
        return list(self._every)

    def close(self) -> None:
        """Close those that are free; the others are closed when they come back."""
        with self.opening:
            self._closed = True
            free, self._free = self._free, []
        for reader in free:
            reader.close()

    def _take(self) -> SqliteConnection:
        with self.opening:
            if self._free:
                return self._free.pop()
            reader = self._connect()
            self._every.append(reader)
            return reader

    def _give_back(self, reader: SqliteConnection) -> None:
        with self.opening:
            if not self._closed:
                self._free.append(reader)
                return
        reader.close()
