"""saq on Redis: 8 jobs at once on one loop; it has no batch send, so a hundred are sent at the
same time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from saq import Queue

import client
import marks

queue = Queue.from_url(os.environ["BENCH_URL"])


async def noop(_context: dict[str, Any], *, sent: float) -> None:
    marks.mark(sent)


settings = {"queue": queue, "functions": [noop], "concurrency": 8}


async def send(sent: float) -> None:
    await queue.enqueue("noop", sent=sent, ttl=-1)


async def send_many(moments: Sequence[float]) -> None:
    await asyncio.gather(*map(send, moments))


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        runner.run(queue.connect())
        client.send(
            lambda sent: runner.run(send(sent)), lambda moments: runner.run(send_many(moments))
        )
        runner.run(queue.disconnect())
