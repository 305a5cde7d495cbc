"""What an actor of another queue writes down: the words of tests/fault_client.py, by the same
rules.

intend N · sent N · failed N      before a send, and how it ended
ran N · traded                    its work is done; whoever runs something gets through to the
                                  server
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable

_SEND_INTERVAL = 0.01
_FAILURE_PAUSE = 0.1


class Journal:
    """A file that lines are appended to; each is there in full or not at all."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())

    async def handle(self, n: int) -> None:
        """The work on a message: most is short, some lasts long enough to be in flight when
        something happens.
        """
        await asyncio.sleep(0.2 if n % 50 == 0 else 0.001)
        self.write("ran", n)
        self.write("traded")

    async def produce(self, send: Callable[[int], Awaitable[object]], number: int) -> None:
        for n in itertools.count(number * 10_000_000):
            self.write("intend", n)
            try:
                await send(n)
            except Exception:  # noqa: BLE001 - each client has its own errors for a server that is gone
                self.write("failed", n)
                await asyncio.sleep(_FAILURE_PAUSE)
            else:
                self.write("sent", n)
                await asyncio.sleep(_SEND_INTERVAL)
