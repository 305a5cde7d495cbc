"""Copies the output of a container to a sink, and continues after a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from longwatch.errors import ContainerRuntimeError
from longwatch.host.capture import LineSink, LineSplitter
from longwatch.supervisor.containers.container_host import ContainerHost

_RETRY_SECONDS = 1.0


async def copy_logs(
    host: ContainerHost,
    container_id: str,
    sink: LineSink,
    *,
    since: float,
    has_ended: Callable[[], bool],
) -> None:
    """Copy whole lines from the wall time `since` until the container has ended and its last lines
    came.

    Waits while the sink is congested. The runtime keeps the lines meanwhile.
    """
    while True:
        runtime = await host.runtime()
        splitter = LineSplitter()
        with suppress(ContainerRuntimeError):
            async for chunk in runtime.logs(container_id, since=since):
                since = host.logged_until[container_id] = host.clock.wall()
                if block := splitter.feed(chunk):
                    await _drained(sink)
                    sink.write(block)
        if rest := splitter.flush():
            sink.write(rest)
        if has_ended():
            return
        await host.clock.sleep(_RETRY_SECONDS)


async def _drained(sink: LineSink) -> None:
    """Wait until the sink accepts lines again."""
    if not sink.congested:
        return
    loop, drained = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(drained.set)

    sink.on_drained(wake)
    await drained.wait()
