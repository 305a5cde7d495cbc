"""The protocols between the parts of the runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class StreamItem(NamedTuple):
    """One event of a stream as received. `id`: the id that the server gave to this event; None: it
    has no id, so the same event sent again counts as another event.
    """

    data: str
    id: str | None = None


class StreamBatch(NamedTuple):
    """The result of one read of a stream. `cursor`: the last event id after it. `dropped`: events
    that were too large. `size`: the bytes that were read. A read of only comments has no items.
    """

    items: Sequence[StreamItem]
    cursor: str
    dropped: int = 0
    size: int = 0


class EventStream(Protocol):
    """An open connection to an event source. Used on the event loop, by one reader."""

    @property
    def retry(self) -> float | None:
        """The reconnection time in seconds that the server requested; None: it requested none."""

    async def read(self) -> StreamBatch | None:
        """Wait for the next batch; None: the server has ended the stream. Any exception is a
        failure.
        """


class EventIntake(Protocol):
    """Decides on the items of streams and stores them. Used on the event loop."""

    async def cursor(self, source: str) -> str:
        """Return the last event id that was stored for this source; empty: none."""

    async def take(self, source: str, items: Sequence[StreamItem], *, cursor: str) -> None:
        """Decide on these items and store them and the last event id in one transaction.

        Returns after the commit. A StoreError means that nothing was stored, as far as is known.
        The connection is then closed and made again from the stored cursor. Items that were stored
        before change nothing. Blocks as long as the store does, so a caller that waits applies
        backpressure to the server.
        """

    async def report_oversize(self, source: str, count: int) -> None:
        """Count events that were too large to be parsed, as dropped with the reason `oversize`."""
