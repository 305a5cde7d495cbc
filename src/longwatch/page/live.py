"""Live updates: renders each watched path once per change, and sends what changed to its clients.

A client holds at most the newest HTML of each section of one page. What it has not read yet is
replaced by newer HTML, so a slow client misses states in between and nothing else. A client that
reads nothing for `SEND_TIMEOUT` is disconnected.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from longwatch.core.clock import Clock
from longwatch.errors import TryAgainError
from longwatch.page.rendering import RenderedSection

Sections = Mapping[str, RenderedSection]
RenderSections = Callable[[str], Awaitable[Sections]]
"""Returns the live sections of a path with its query."""

MAX_CLIENTS = 200
POLL_INTERVAL = 2.0
"""Seconds after which a path is rendered again, without a new event."""
MIN_INTERVAL = 0.5
"""Seconds between two renderings of a path, however many events come."""
SEND_TIMEOUT = 10.0
PING_INTERVAL = 15.0


class LiveClient:
    """The stream of one browser: the sections that it has not been sent yet."""

    def __init__(self) -> None:
        self._pending: dict[str, str] = {}
        self._state = "ok"
        self._sent_state = "ok"
        self._wake = asyncio.Event()
        self.closed = False

    def offer(self, sections: Sections, names: set[str]) -> None:
        """Have these sections sent, in place of older HTML of theirs."""
        for name in names & sections.keys():
            self._pending[name] = sections[name].html
        if self._pending or self._state != "ok":
            self._state = "ok"
            self._wake.set()

    def fail(self, reason: str) -> None:
        """Have a notice sent that the page cannot be rendered at the moment."""
        self._state = reason
        self._wake.set()

    def close(self) -> None:
        """End the stream."""
        self.closed = True
        self._wake.set()

    async def next_chunk(self) -> bytes | None:
        """What to send next; a comment if nothing has happened for a while, None at the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PING_INTERVAL):
                await self._wake.wait()
        self._wake.clear()
        if self.closed:
            return None
        chunks = []
        if self._state != self._sent_state:
            self._sent_state = self._state
            chunks.append(sse_event("state", {"state": self._state}))
        if self._pending:
            pending, self._pending = self._pending, {}
            chunks.append(sse_event("sections", pending))
        return b"".join(chunks) or b": ping\n\n"


@dataclass(slots=True)
class _WatchedPath:
    """A path that is open in browsers, and how it looked last."""

    clients: set[LiveClient] = field(default_factory=set)
    newcomers: set[LiveClient] = field(default_factory=set)
    """Clients that get everything from the next rendering, and nothing before: their page may be
    newer than what was rendered last, for example after an action.
    """
    digests: dict[str, str] = field(default_factory=dict)
    rendered_at: float = float("-inf")
    is_rendering: bool = False
    is_dirty: bool = True


class LiveHub:
    """Renders the watched paths and hands changes to their clients. Used on the event loop."""

    def __init__(self, render: RenderSections, *, clock: Clock) -> None:
        self._render = render
        self._clock = clock
        self._paths: dict[str, _WatchedPath] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def client_count(self) -> int:
        return sum(len(watched.clients) for watched in self._paths.values())

    def join(self, path: str) -> LiveClient:
        """Add a client of a path. Raises TryAgainError if there are too many."""
        if self.client_count >= MAX_CLIENTS:
            raise TryAgainError(f"the page has {MAX_CLIENTS} live clients; reload to update")
        watched = self._paths.setdefault(path, _WatchedPath())
        client = LiveClient()
        watched.clients.add(client)
        watched.newcomers.add(client)
        watched.is_dirty = True
        self._refresh(path, watched)
        return client

    def leave(self, path: str, client: LiveClient) -> None:
        """Remove a client; its path is no longer rendered once the last one has left."""
        watched = self._paths.get(path)
        if watched is None:
            return
        watched.clients.discard(client)
        watched.newcomers.discard(client)
        if not watched.clients:
            del self._paths[path]

    def changed(self) -> None:
        """Render every watched path now or soon, because something has happened."""
        for watched in self._paths.values():
            watched.is_dirty = True
        self.tick()

    def tick(self) -> None:
        """Render the paths whose time has come. Called a few times a second."""
        for path, watched in self._paths.items():
            self._refresh(path, watched)

    def close(self) -> None:
        """End all streams."""
        for task in self._tasks:
            task.cancel()
        for watched in self._paths.values():
            for client in watched.clients:
                client.close()

    def _refresh(self, path: str, watched: _WatchedPath) -> None:
        passed = self._clock.monotonic() - watched.rendered_at
        is_due = passed >= POLL_INTERVAL or (watched.is_dirty and passed >= MIN_INTERVAL)
        if watched.is_rendering or not is_due:
            return
        watched.is_rendering, watched.is_dirty = True, False
        task = asyncio.get_running_loop().create_task(self._update(path, watched))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _update(self, path: str, watched: _WatchedPath) -> None:
        newcomers, watched.newcomers = watched.newcomers, set()
        try:
            sections = await self._render(path)
        except Exception as error:  # noqa: BLE001 - the clients get a notice, and the next round tries again
            watched.newcomers |= newcomers
            for client in watched.clients:
                client.fail(str(error) or type(error).__name__)
        else:
            changed = {
                name
                for name, section in sections.items()
                if watched.digests.get(name) != section.digest
            }
            watched.digests = {name: section.digest for name, section in sections.items()}
            for client in watched.clients - watched.newcomers:
                client.offer(sections, set(sections) if client in newcomers else changed)
        finally:
            watched.rendered_at = self._clock.monotonic()
            watched.is_rendering = False


def sse_event(name: str, data: object) -> bytes:
    """A stream event. JSON has no line ends, so the data is one line."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
