"""A status page at work: beside `longwatch up`, alone, or in this process; and a client for it."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from longwatch.app.page_plan import page_token, published_address
from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Event, Events
from longwatch.page.access import AccessPolicy, make_policy
from longwatch.page.data import PageData
from longwatch.page.routes import ACTIONS, ROUTES
from longwatch.page.server import PageServer
from longwatch.page.stores import StoreCatalog
from polling import eventually

TOKEN = "the-token-of-these-tests"
TIMEOUT = 30.0


@dataclass
class Answer:
    """An HTTP response, with its headers by name in lower case."""

    status: int
    headers: Mapping[str, str]
    body: str


@dataclass
class PageClient:
    """Sends requests to a page as a program with the token would."""

    port: int
    token: str

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def link(self) -> str:
        return f"{self.base}/?token={self.token}"

    @property
    def policy(self) -> AccessPolicy:
        return make_policy(self.token, bind="127.0.0.1")

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers={**self.authorized, **_named(headers)})

    def post(self, path: str, body: str = "", **headers: str) -> Answer:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.request(
            "POST", path, body, headers={**self.authorized, **kind, **_named(headers)}
        )

    @property
    def authorized(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def request(
        self, method: str, path: str, body: str = "", *, headers: Mapping[str, str]
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body.encode() or None, dict(headers))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read().decode())
        finally:
            connection.close()


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers from arguments: `Sec_Fetch_Site` is `Sec-Fetch-Site`."""
    return {name.replace("_", "-"): value for name, value in headers.items()}


def client_of(state: Path) -> PageClient:
    """A client of the page that runs on a state directory, once it runs."""
    assert eventually(lambda: bool(published_address(state))), f"no page runs on {state}"
    port = int(published_address(state).rstrip("/").rpartition(":")[2])
    return PageClient(port, page_token(state))


@dataclass
class ServedPage(PageClient):
    """A page in a thread of this process, with its parts."""

    data: PageData = field(default_factory=lambda: PageData(None, StoreCatalog()))
    events: list[Event] = field(default_factory=list)
    clients: Callable[[], int] = int
    """Returns the number of live clients."""


@contextmanager
def served_page(state: Path | None, stores: StoreCatalog | None = None) -> Iterator[ServedPage]:
    """Serve a page on a free port of the loopback interface within the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="test-page", daemon=True)
    thread.start()
    data, emitted = PageData(state, stores or StoreCatalog()), list[Event]()
    server = PageServer(
        data,
        make_policy(TOKEN, bind="127.0.0.1"),
        routes=ROUTES,
        actions=ACTIONS,
        clock=SystemClock(),
        events=Events(emitted.append),
    )

    port = asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", 0), loop).result(TIMEOUT)
    try:
        yield ServedPage(
            port, TOKEN, data=data, events=emitted, clients=lambda: server.live_clients
        )
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(TIMEOUT)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT)
        loop.close()
