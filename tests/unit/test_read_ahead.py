"""The batch that is read while another one is being stored."""

from __future__ import annotations

import asyncio

from longwatch.runner.read_ahead import MAX_BYTES, MAX_ITEMS, ReadAhead
from longwatch.runner.seams import StreamBatch, StreamItem

ITEM = StreamItem("data", "7")


def test_reads_are_joined_until_they_are_handed_over() -> None:
    async def scenario() -> None:
        ahead = ReadAhead("0")
        assert ahead.add(StreamBatch([ITEM], "7", 1, 10))
        assert ahead.add(StreamBatch([ITEM], "8", 2, 10))
        assert StreamBatch([ITEM, ITEM], "8", 3, 20) == await ahead.next_batch()
        ahead.end()
        assert await ahead.next_batch() is None

    asyncio.run(scenario())


def test_a_full_batch_stops_the_reader_until_it_is_handed_over() -> None:
    async def scenario() -> None:
        ahead = ReadAhead("")
        assert not ahead.add(StreamBatch([ITEM] * MAX_ITEMS, "7", 0, 10))
        reader = asyncio.create_task(ahead.room())
        await asyncio.sleep(0)
        assert not reader.done()
        await ahead.next_batch()
        await reader
        assert not ahead.add(StreamBatch([ITEM], "7", 0, MAX_BYTES))

    asyncio.run(scenario())


def test_comments_alone_never_fill_a_batch() -> None:
    ahead = ReadAhead("")
    assert all(ahead.add(StreamBatch([], "", 0, MAX_BYTES)) for _ in range(3))


def test_a_cursor_without_items_is_handed_over_at_the_end() -> None:
    async def scenario() -> None:
        ahead = ReadAhead("7")
        ahead.add(StreamBatch([], "8", 0, 10))
        waiting = asyncio.create_task(ahead.next_batch())
        await asyncio.sleep(0)
        assert not waiting.done()
        ahead.end()
        assert StreamBatch([], "8", 0, 0) == await waiting
        assert await ahead.next_batch() is None

    asyncio.run(scenario())
