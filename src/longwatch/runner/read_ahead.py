"""The batch that a connection reads while the one before it is being stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from longwatch.runner.seams import StreamBatch, StreamItem

MAX_ITEMS = 2000
MAX_BYTES = 1 << 20


class ReadAhead:
    """Collects items of a reader, up to a limit, until a consumer takes them. Used on one event
    loop.

    A batch that moves only the cursor is passed on when the stream has ended. Some servers send
    blocks with an id and no data as a heartbeat, which is not worth a commit each.
    """

    def __init__(self, cursor: str) -> None:
        self._items: list[StreamItem] = []
        self._cursor = self._handed_over = cursor
        self._dropped = 0
        self._size = 0
        self._has_ended = False
        self._ready = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def items(self) -> Sequence[StreamItem]:
        """The items that were added and not taken yet."""
        return self._items

    def add(self, batch: StreamBatch) -> bool:
        """Add a batch. Return whether there is room for more."""
        self._items += batch.items
        self._cursor = batch.cursor
        self._dropped += batch.dropped
        if self._items or self._dropped:
            self._size += batch.size
            self._ready.set()
        return len(self._items) < MAX_ITEMS and self._size < MAX_BYTES

    async def room(self) -> None:
        """Wait until the added items were taken."""
        self._room.clear()
        await self._room.wait()

    def end(self) -> None:
        """End the stream: the items that were added are the last batch."""
        self._has_ended = True
        self._ready.set()

    async def next_batch(self) -> StreamBatch | None:
        """Wait for items, and return all that were added since the last call; None at the end."""
        await self._ready.wait()
        if not (self._items or self._dropped or self._cursor != self._handed_over):
            return None
        batch = StreamBatch(self._items, self._cursor, self._dropped, self._size)
        self._items, self._dropped, self._size = [], 0, 0
        self._handed_over = self._cursor
        if not self._has_ended:
            self._ready.clear()
        self._room.set()
        return batch
