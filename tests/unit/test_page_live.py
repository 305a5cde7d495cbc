"""Live updates: one rendering for all clients of a path, and no client that others wait for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from longwatch.core.fake_clock import FakeClock
from longwatch.errors import TryAgainError
from longwatch.page.live import MAX_CLIENTS, MIN_INTERVAL, POLL_INTERVAL, LiveClient, LiveHub
from longwatch.page.rendering import RenderedSection


class Pages:
    """The pages behind a hub: the text of each section, which a test changes."""

    def __init__(self) -> None:
        self.sections = {"a": "1", "b": "1"}
        self.rendered: list[str] = []
        self.error: Exception | None = None

    async def render(self, path: str) -> dict[str, RenderedSection]:
        self.rendered.append(path)
        if self.error is not None:
            raise self.error
        return {name: RenderedSection(text, text) for name, text in self.sections.items()}


def run(scenario: Callable[[LiveHub, Pages, FakeClock], Awaitable[None]]) -> None:
    clock, pages = FakeClock(), Pages()

    async def main() -> None:
        await scenario(LiveHub(pages.render, clock=clock), pages, clock)

    asyncio.run(main())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def received(client: LiveClient) -> dict[str, str]:
    """The sections of the next chunk."""
    await settle()
    chunk = await client.next_chunk()
    assert chunk is not None
    found: dict[str, str] = {}
    for part in chunk.decode().split("\n\n"):
        kind, _, data = part.partition("\n")
        if kind == "event: sections":
            found |= json.loads(data.removeprefix("data: "))
    return found


def test_a_new_client_gets_everything_and_then_only_what_changes() -> None:
    async def scenario(hub: LiveHub, pages: Pages, clock: FakeClock) -> None:
        client = hub.join("/")
        assert {"a": "1", "b": "1"} == await received(client)

        pages.sections["b"] = "2"
        clock.advance(POLL_INTERVAL)
        hub.tick()
        assert {"b": "2"} == await received(client)

    run(scenario)


def test_a_path_is_rendered_once_for_all_of_its_clients() -> None:
    async def scenario(hub: LiveHub, pages: Pages, clock: FakeClock) -> None:
        clients = [hub.join("/") for _ in range(50)]
        for client in clients:
            assert {"a": "1", "b": "1"} == await received(client)
        clock.advance(POLL_INTERVAL)
        hub.tick()
        await settle()

        assert ["/", "/"] == pages.rendered

    run(scenario)


def test_an_event_is_shown_before_the_poll_but_not_more_often_than_allowed() -> None:
    async def scenario(hub: LiveHub, pages: Pages, clock: FakeClock) -> None:
        hub.join("/")
        await settle()
        hub.changed()
        hub.tick()
        await settle()
        assert 1 == len(pages.rendered)

        clock.advance(MIN_INTERVAL)
        hub.tick()
        hub.tick()
        await settle()
        assert 2 == len(pages.rendered)

    run(scenario)


def test_a_client_that_does_not_read_keeps_the_newest_of_each_section_alone() -> None:
    async def scenario(hub: LiveHub, pages: Pages, clock: FakeClock) -> None:
        slow, quick = hub.join("/"), hub.join("/")
        for number in range(2, 100):
            pages.sections["a"] = str(number)
            clock.advance(POLL_INTERVAL)
            hub.tick()
            await settle()

        assert {"a": "99", "b": "1"} == await received(slow)
        assert {"a": "99", "b": "1"} == await received(quick)

    run(scenario)


def test_a_client_that_comes_later_gets_the_present_state() -> None:
    async def scenario(hub: LiveHub, pages: Pages, clock: FakeClock) -> None:
        hub.join("/")
        await settle()
        pages.sections["a"] = "2"
        clock.advance(POLL_INTERVAL)
        hub.tick()
        await settle()

        client = hub.join("/")
        clock.advance(MIN_INTERVAL)
        hub.tick()
        assert {"a": "2", "b": "1"} == await received(client)

    run(scenario)


def test_a_client_gets_nothing_that_was_rendered_before_it_came() -> None:
    async def scenario(hub: LiveHub, pages: Pages, clock: FakeClock) -> None:
        before = hub.join("/")
        assert {"a": "1", "b": "1"} == await received(before)
        pages.sections["a"] = "2"  # by an action, after which the browser loads the page again
        after = hub.join("/")
        hub.tick()
        await settle()
        assert 1 == len(pages.rendered)
        clock.advance(MIN_INTERVAL)
        hub.tick()
        assert {"a": "2", "b": "1"} == await received(after)
        assert {"a": "2"} == await received(before)

    run(scenario)


def test_a_page_that_fails_says_so_and_recovers() -> None:
    async def scenario(hub: LiveHub, pages: Pages, clock: FakeClock) -> None:
        client = hub.join("/")
        await received(client)
        pages.error = TryAgainError("the page cannot be shown")
        clock.advance(POLL_INTERVAL)
        hub.tick()
        await settle()
        assert b"the page cannot be shown" in (await client.next_chunk() or b"")

        pages.error = None
        clock.advance(POLL_INTERVAL)
        hub.tick()
        await settle()
        assert b'"state": "ok"' in (await client.next_chunk() or b"")

    run(scenario)


def test_a_path_without_clients_is_not_rendered() -> None:
    async def scenario(hub: LiveHub, pages: Pages, clock: FakeClock) -> None:
        client = hub.join("/")
        await settle()
        hub.leave("/", client)
        hub.leave("/", client)
        clock.advance(POLL_INTERVAL)
        hub.tick()
        await settle()

        assert 1 == len(pages.rendered)
        assert 0 == hub.client_count

    run(scenario)


def test_the_number_of_clients_is_limited_and_all_end_with_the_hub() -> None:
    async def scenario(hub: LiveHub, pages: Pages, clock: FakeClock) -> None:
        del pages, clock
        clients = [hub.join(f"/{number}") for number in range(MAX_CLIENTS)]
        with pytest.raises(TryAgainError, match="live clients"):
            hub.join("/one-more")

        hub.close()
        assert [None] * MAX_CLIENTS == [await client.next_chunk() for client in clients]

    run(scenario)
