"""`longwatch page`: the status page as a process, alone or as a program of `longwatch up`.

In order: open the logs, bind the port, publish the address, serve until a signal. A second signal
is not needed: the stop takes less than a second.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from longwatch.app.console import Console, fill_standard_streams
from longwatch.app.page_plan import (
    DEFAULT_PORT,
    LAST_PORT,
    link_to,
    page_token,
    ports_to_try,
    publish_address,
)
from longwatch.config.settings import PAGE_PROGRAM, LogSettings
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.error_text import os_reason
from longwatch.core.events.base import Events
from longwatch.core.events.page import PageStarted, PageStopped
from longwatch.errors import TryAgainError, UsageError
from longwatch.host.parent_channel import ParentChannel
from longwatch.host.sdnotify import SdNotifier
from longwatch.page.access import make_policy
from longwatch.page.data import PageData
from longwatch.page.routes import ACTIONS, ROUTES
from longwatch.page.server import PageServer
from longwatch.page.stores import StoreCatalog
from longwatch.workers.program_relay import ProgramRelay

BEAT_INTERVAL = 5.0
LINK_COMMAND = "longwatch page --link"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_ANY_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - shown, not bound


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """What `longwatch page` shows, and where. Without a `port`: that of the last page of the state
    directory, or the first free one of a few.
    """

    state: Path | None
    stores: Sequence[Mapping[str, str]] = ()
    """Stores as `{"url": …, "kind": …}`; the kind may be missing."""
    host: str = "127.0.0.1"
    port: int | None = None
    allowed_hosts: Sequence[str] = ()
    log: LogSettings = field(default_factory=LogSettings)


def run_page(options: PageOptions, environ: MutableMapping[str, str]) -> int:
    """Serve the page until a signal; returns the exit code."""
    fill_standard_streams()
    clock = SystemClock()
    parent = ParentChannel.from_environment(environ)
    kept = options.state if parent is None else None  # a parent has our events and our output
    with closing(
        Console(
            options.log,
            state=kept,
            clock=clock,
            environ=environ,
            program="" if kept is None else PAGE_PROGRAM,
        )
    ) as console:
        console.redirect_logging()
        events = Events(console.log)
        with _relaying(parent, events, clock):
            token = page_token(options.state)
            asyncio.run(_serve(options, token, clock, events, SdNotifier.from_environment(environ)))
        console.flush()
    return 0


@contextmanager
def _relaying(parent: ParentChannel | None, events: Events, clock: Clock) -> Iterator[None]:
    """Relay all events to the process that keeps this one up, if there is one."""
    if parent is None:
        yield
        return
    with closing(ProgramRelay(parent, events=events, clock=clock)) as relay:
        relay.start()
        yield


async def _serve(
    options: PageOptions, token: str, clock: Clock, events: Events, notifier: SdNotifier
) -> None:
    began = time.monotonic()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in _STOP_SIGNALS:
        if signum == signal.SIGTERM or signal.getsignal(signum) is not signal.SIG_IGN:
            loop.add_signal_handler(signum, stopping.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
    server = _make_server(options, token, clock, events)
    address = _address(options.host, await _listen(server, options))
    published = None if options.state is None else publish_address(options.state, address)
    try:
        events.emit(PageStarted(address=address, link_command=_link_command(options.state)))
        if options.state is None or os.isatty(2):  # without a directory nothing else has the token
            sys.stderr.write(f"status page: {link_to(address, token)}\n")
        notifier.ready(f"serves {address}")
        while not stopping.is_set():
            notifier.beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_INTERVAL):
                    await stopping.wait()
        notifier.stopping()
    finally:
        if published is not None:
            os.close(published)
        await server.stop()
    events.emit(PageStopped(lasted=time.monotonic() - began))


def _make_server(options: PageOptions, token: str, clock: Clock, events: Events) -> PageServer:
    catalog = StoreCatalog()
    catalog.update(options.stores)
    return PageServer(
        PageData(options.state, catalog),
        make_policy(token, bind=options.host, allowed_hosts=options.allowed_hosts),
        routes=ROUTES,
        actions=ACTIONS,
        clock=clock,
        events=events,
    )


async def _listen(server: PageServer, options: PageOptions) -> int:
    """Start the server; returns its port. Raises TryAgainError if every port is in use."""
    chosen = options.port
    for port in ports_to_try(chosen, options.state):
        try:
            return await server.start(options.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(
                    f"the status page cannot listen on {options.host} port {port} "
                    f"({os_reason(error)}); give another --host or --port, or correct [page]"
                ) from None
    tried = (
        f"port {chosen} is" if chosen is not None else f"ports {DEFAULT_PORT} to {LAST_PORT} are"
    )
    raise TryAgainError(
        f"{tried} in use on {options.host}; give the status page another with --port, or with port "
        "of [page]"
    )


def _link_command(state: Path | None) -> str:
    """The command that prints the link, from any directory; empty without a state directory."""
    if state is None:
        return ""
    return f"{LINK_COMMAND} --state-dir {shlex.quote(str(state.absolute()))}"


def _address(host: str, port: int) -> str:
    shown = _ANY_ADDRESSES.get(host, host)
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
