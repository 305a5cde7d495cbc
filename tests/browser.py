"""Chromium, one for all tests of a session, each with a context of its own.

The synchronous API of playwright keeps an event loop running in its thread, where no other test
could use asyncio. So it lives in a thread of its own, and a test hands it functions to run there.
"""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import pytest

import requires

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import Page

T = TypeVar("T")
Scenario = Callable[["Page"], T]

TIMEOUT_MS = 20_000
_OWN_HOSTS = ("127.0.0.1", "localhost")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser:
    """Runs scenarios in Chromium. Every problem that the page reports fails the scenario."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[Chromium], None], threading.Event] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="test-browser", daemon=True)
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait()

    def run(
        self,
        scenario: Scenario[T],
        *,
        allowed_errors: tuple[str, ...] = (),
        hosts: tuple[str, ...] = (),
        **context: Any,
    ) -> T:
        """The result of a scenario on a new page, in a context with these options.

        Fails on messages of the console that begin with none of `allowed_errors`, on exceptions in
        scripts, and on requests to other hosts than the loopback address and `hosts`.
        """
        results: list[T] = []
        errors: list[BaseException] = []

        def job(chromium: Chromium) -> None:
            try:
                results.append(
                    _run(chromium, scenario, allowed_errors, {*_OWN_HOSTS, *hosts}, context)
                )
            except BaseException as error:  # noqa: BLE001 - the test raises it
                errors.append(error)

        done = threading.Event()
        self._jobs.put((job, done))
        done.wait()
        if errors:
            raise errors[0]
        return results[0]

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(30)

    def _serve(self) -> None:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - slow, and for these tests only

        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=list(_FLAGS)
            )
            self._ready.set()
            while (job := self._jobs.get()) is not None:
                work, done = job
                work(chromium)
                done.set()
            chromium.close()


def _run(
    chromium: Chromium,
    scenario: Scenario[T],
    allowed: tuple[str, ...],
    own_hosts: set[str],
    options: dict[str, Any],
) -> T:
    context = chromium.new_context(**options)
    try:
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        problems: list[str] = []
        hosts: set[str] = set()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname or ""))
        result = scenario(page)
        faults = [each for each in problems if not (allowed and each.startswith(allowed))]
        foreign = sorted(hosts - own_hosts)
        if faults or foreign:
            pytest.fail(f"the page reports {faults} and asks other hosts {foreign}")
        return result
    finally:
        context.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, started for the first test that needs it."""
    requires.require_tool("chromium")
    opened = Browser()
    yield opened
    opened.close()


__all__ = ["Browser", "browser"]
