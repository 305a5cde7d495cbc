"""The simulator as a client over loopback sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from longwatch.errors import UsageError
from longwatch.runner.simulated_events import read_journal
from longwatch.runner.simulated_source import SimulatorSettings, StreamFaults
from longwatch.runner.simulator import Simulator
from longwatch.sse import EventStreamParser, ServerSentEvent
from loopback import free_port

TIMEOUT = 30.0


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, TIMEOUT))


class Client:
    """Reads one stream, and knows the last event id as a browser does."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.events: list[ServerSentEvent] = []
        self.parser = EventStreamParser()
        self.comments = 0
        self._session = session
        self._url = url

    async def read(self, count: int) -> None:
        """Connect and read until so many events are there in all, or the connection ends."""
        last = self.parser.last_event_id
        self.parser = EventStreamParser(last_event_id=last)
        headers = {"Last-Event-ID": last} if last else {}
        async with self._session.get(self._url, headers=headers) as response:
            assert (200, "text/event-stream") == (response.status, response.content_type)
            async for chunk in response.content.iter_any():
                self.comments += chunk.count(b": nothing new")
                self.events += self.parser.feed(chunk)
                if len(self.events) >= count:
                    return

    @property
    def ids(self) -> list[int]:
        return [int(event.id) for event in self.events]


@asynccontextmanager
async def simulated(**settings: Any) -> AsyncIterator[tuple[Simulator, aiohttp.ClientSession]]:
    """A running simulator with one source `a`, fast."""
    defaults: dict[str, Any] = {"sources": ("a",), "rate": 500.0}
    simulator = Simulator(SimulatorSettings(**(defaults | settings)))
    async with aiohttp.ClientSession() as session, simulator.opened():
        yield simulator, session


def test_sources_have_streams_of_their_own_with_rising_ids() -> None:
    async def work() -> None:
        async with simulated(sources=("a", "b")) as (simulator, session):
            clients = {name: Client(session, simulator.url(name)) for name in ("a", "b")}
            for name, client in clients.items():
                await client.read(20)
                assert list(range(1, len(client.ids) + 1)) == client.ids
                assert all(f'"cluster": "{name}"' in event.data for event in client.events)
            async with session.get(simulator.url("c")) as response:
                assert 404 == response.status

    run(work())


def test_a_client_that_comes_back_misses_nothing_and_gets_nothing_twice() -> None:
    """Connections are cut in the middle of events; the last event id says where to go on."""

    async def work() -> None:
        async with simulated(count=60, faults=StreamFaults(drop_every=7)) as (simulator, session):
            client = Client(session, simulator.url("a"))
            cuts = 0
            while len(client.ids) < 60:
                try:
                    await client.read(60)
                except aiohttp.ClientError:
                    cuts += 1
            assert list(range(1, 61)) == client.ids
            assert cuts >= 8

    run(work())


def test_after_the_last_event_the_stream_stays_open_with_comments() -> None:
    async def work() -> None:
        async with simulated(count=2, comment_interval=0.02) as (simulator, session):
            client = Client(session, simulator.url("a"))
            reader = asyncio.create_task(client.read(3))
            while client.comments < 3:  # noqa: ASYNC110 - the client counts
                await asyncio.sleep(0.01)
            reader.cancel()
            assert [1, 2] == client.ids

    run(work())


def test_the_end_of_the_simulator_is_the_clean_end_of_its_streams() -> None:
    async def work() -> None:
        async with simulated(count=1) as (simulator, session):
            client = Client(session, simulator.url("a"))
            reader = asyncio.create_task(client.read(2))
            while not client.ids:  # noqa: ASYNC110 - the client counts
                await asyncio.sleep(0.01)
        await reader

    run(work())


def test_a_restarted_simulator_goes_on_after_its_journal(tmp_path: Path) -> None:
    """Also when a client asks for events that are only in the file."""
    settings = {"journal": tmp_path / "journal", "history": 5}

    async def work() -> None:
        async with simulated(count=20, **settings) as (simulator, session):
            client = Client(session, simulator.url("a"))
            await client.read(10)
            del client.events[10:]
            client.parser.last_event_id = "10"
        async with simulated(count=30, **settings) as (simulator, session):
            again = Client(session, simulator.url("a"))
            again.parser = client.parser
            await again.read(20)
            assert list(range(11, 31)) == again.ids
        sent = {str(event.number): event.data for event in read_journal(tmp_path / "journal")}
        assert {event.id: event.data for event in client.events + again.events} == sent

    run(work())


def test_bad_bytes_and_the_retry_hint_arrive() -> None:
    async def work() -> None:
        faults = StreamFaults(bad_bytes_every=2, retry_ms=1234)
        async with simulated(count=4, faults=faults) as (simulator, session):
            client = Client(session, simulator.url("a"))
            await client.read(4)
            assert [False, True, False, True] == [
                "\ufffd\ufffd" in event.data for event in client.events
            ]
            assert 1234 == client.parser.retry_ms

    run(work())


def test_a_stall_sends_nothing_until_it_is_over() -> None:
    async def work() -> None:
        faults = StreamFaults(stall_every=2, stall_seconds=1000)
        async with simulated(count=4, faults=faults) as (simulator, session):
            client = Client(session, simulator.url("a"))
            reader = asyncio.create_task(client.read(4))
            source = simulator.sources["a"]
            while source.delivered < 2:  # noqa: ASYNC110 - the source counts
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert len(client.ids) < 4
            async with session.post(
                simulator.control_url, json={"stall_every": 0, "stall": 0}
            ) as response:
                assert 200 == response.status
            await reader
            assert [1, 2, 3, 4] == client.ids

    run(work())


def test_control_changes_a_running_simulator() -> None:
    async def work() -> None:
        async with simulated(sources=("a", "b"), rate=0.0) as (simulator, session):

            async def control(**change: object) -> tuple[int, Any]:
                async with session.post(simulator.control_url, json=change) as response:
                    text = response.content_type.startswith("text/")
                    return response.status, await (response.text() if text else response.json())

            client = Client(session, simulator.url("a"))
            reader = asyncio.create_task(client.read(2))
            await control(source="a", send={"severity": "error", "resource": "r"})
            await control(source="a", send="no\r\njson")
            await reader
            assert ['{"severity": "error", "resource": "r"}', "no\njson"] == [
                event.data for event in client.events
            ]
            await control(source="b", status=503)
            async with session.get(simulator.url("b")) as response:
                assert 503 == response.status
            async with session.get(simulator.control_url) as response:
                shown = await response.json()
            assert (2, 1, 503) == (shown["a"]["sent"], shown["a"]["requests"], shown["b"]["status"])
            for change, word in (
                ({"source": "c"}, "the sources are a, b"),
                ({"drop_every": 1}, "at least 2"),
                ({"droop": 1}, "unknown: droop"),
                ({"rate": "fast"}, "could not convert"),
            ):
                status, text = await control(**change)
                assert 400 == status
                assert word in text
            async with session.post(simulator.control_url, data=b"{}") as response:
                assert 400 == response.status

    run(work())


def test_control_cuts_the_connections_there_are() -> None:
    async def work() -> None:
        async with simulated(count=1) as (simulator, session):
            client = Client(session, simulator.url("a"))
            reader = asyncio.create_task(client.read(2))
            while not client.ids:  # noqa: ASYNC110 - the client counts
                await asyncio.sleep(0.01)
            async with session.post(simulator.control_url, json={"drop": True}):
                pass
            with pytest.raises(aiohttp.ClientError):
                await reader

    run(work())


def test_a_port_in_use_is_named_with_the_cure() -> None:
    async def work() -> None:
        async with simulated(port=free_port()) as (simulator, _):
            with pytest.raises(UsageError, match="--port a free port, or 0 for any"):
                async with simulated(port=simulator.port):
                    pass

    run(work())


@pytest.mark.parametrize(
    "faults",
    [
        StreamFaults(drop_every=1),
        StreamFaults(stall_every=-1),
        StreamFaults(stall_seconds=0),
        StreamFaults(retry_ms=-1),
        StreamFaults(status=99),
    ],
)
def test_faults_that_no_stream_can_have_are_refused(faults: StreamFaults) -> None:
    with pytest.raises(UsageError):
        Simulator(SimulatorSettings(sources=("a",), faults=faults))
    with pytest.raises(UsageError, match="at least one source"):
        Simulator(SimulatorSettings(sources=()))
