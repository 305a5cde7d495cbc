"""Waiting on the loop for something, but not for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from longwatch.core.clock import Clock


async def settled_within(future: asyncio.Future[Any], seconds: float, clock: Clock) -> bool:
    """Wait until the future is done (True) or so much time has passed (False); the future is
    left as it is.
    """
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
    return future.done()
