"""Threads of a loop whose handlers are coroutines that wait."""

from __future__ import annotations

import asyncio
import threading
import time

from fleet_bench.figure import Figure
from fleet_bench.site import Site
from longwatch.mailbox import open_mailbox
from longwatch.runtime import MainLoop, MainLoopContext

HANDLERS = 2_000
TIMEOUT = 60.0
HOLD_SECONDS = 5.0


class Waiting(MainLoop[int, None]):
    """Its handlers wait long enough for all of them to begin."""

    begun = 0

    async def handle(self, request: int, context: MainLoopContext) -> None:
        del request, context
        Waiting.begun += 1
        await asyncio.sleep(HOLD_SECONDS)


def measure_threads(site: Site) -> list[Figure]:
    del site
    mailbox = open_mailbox("memory://threads", "waiting", int)
    mailbox.send_many(range(HANDLERS))
    loop = Waiting(requests=mailbox, concurrency=HANDLERS)
    began = time.monotonic()
    threading.Thread(target=loop.run, daemon=True).start()
    while Waiting.begun < HANDLERS:
        if time.monotonic() > began + TIMEOUT:
            raise RuntimeError(f"{Waiting.begun} of {HANDLERS} handlers run")
        time.sleep(0.05)
    took, threads = time.monotonic() - began, threading.active_count()
    return [
        Figure(f"threads of a process with {HANDLERS:,} waiting async handlers", threads, 0),
        Figure(f"seconds until all {HANDLERS:,} run", took, 1),
    ]
