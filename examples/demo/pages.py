"""A worker that fetches pages. Every 15th page hangs at its first attempt, without a heartbeat.

After five silent seconds the watchdog saves the stacks of the process and has it killed. The other
process goes on with the messages, and the page that hung gets a second attempt.
"""

from __future__ import annotations

import os
import time
from typing import Any

from longwatch import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop, MainLoopContext

HANGS_EVERY = 15
PARTS = 8

pages = open_mailbox("sqlite:///demo.db", "pages")


class Fetch(MainLoop[dict[str, Any], None]):
    def handle(self, request: dict[str, Any], context: MainLoopContext) -> None:
        if request["page"] % HANGS_EVERY == 0 and context.attempt == 1:
            wait_for_a_server_that_never_answers()
        for part in range(PARTS):
            time.sleep(0.1)
            context.beat(f"part {part + 1} of {PARTS}")
        record("pages-done.txt", request["page"])


def wait_for_a_server_that_never_answers() -> None:
    time.sleep(3600)


def record(file: str, number: object) -> None:
    """Append a line in one write, so that lines of several processes stay whole."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{number}\n".encode())
    os.close(descriptor)


group = LoopGroup(
    [Fetch(requests=pages, name="pages", concurrency=4)],
    watchdog_threshold=5.0,
    watchdog_interval=1.0,
    max_processing_seconds=2.0,
    shutdown_timeout=5.0,
)
