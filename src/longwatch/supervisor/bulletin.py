"""Something has changed: everybody who waits for a condition looks again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bulletin:
    """Wakes those who wait for a condition to hold, on the loop. Posting often costs little:
    they look once a turn of the loop.
    """

    def __init__(self) -> None:
        self._readers: set[asyncio.Future[None]] = set()

    def post(self) -> None:
        """What anybody waits for may hold now."""
        readers, self._readers = self._readers, set()
        for reader in readers:
            if not reader.done():
                reader.set_result(None)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when it holds; it is looked at now and after every post."""
        while not holds():
            reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.add(reader)
            try:
                await reader
            finally:
                self._readers.discard(reader)
