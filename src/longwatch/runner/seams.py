"""The seams between the parts of the runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class StreamItem(NamedTuple):
    """One event of a stream as it came. `id`: the id that the server gave to this very event; None:
    it gave none, so the same event sent again counts as another event.
    """

    data: str
    id: str | None = None


class StreamBatch(NamedTuple):
    """What one read of a stream gave. `cursor`: the last event id after it. `dropped`: events that
    were too large. `size`: the bytes that were read; a read of comments alone has no items.
    """

    items: Sequence[StreamItem]
    cursor: str
    dropped: int = 0
    size: int = 0


class EventStream(Protocol):
    """An open connection to an event source. Used on the event loop, by one reader."""

    @property
    def retry(self) -> float | None:
        """The reconnection time in seconds that the server asked for; None: it asked for none."""

    async def read(self) -> StreamBatch | None:
        """What came next; None: the server has ended the stream. Any exception is a failure."""


class EventIntake(Protocol):
    """Decides on the items of streams and stores them. Used on the event loop."""

    async def cursor(self, source: str) -> str:
        """The last event id that was stored for this source; empty: none."""

    async def take(self, source: str, items: Sequence[StreamItem], *, cursor: str) -> None:
        """Store what becomes of these items, and the last event id, in one transaction.

        Returns after the commit. A StoreError means that nothing was stored, as far as is known:
        the connection is closed and made again from the stored cursor. Items that were stored
        before change nothing. Blocks for as long as the store does, so a caller that waits for it
        passes the pressure on to the server.
        """

    async def report_oversize(self, source: str, count: int) -> None:
        """Count events that were too large to be parsed; they are dropped as `oversize`."""
