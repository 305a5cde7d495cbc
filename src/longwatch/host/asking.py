"""Checks and other questions that may take their time, asked from a loop that may not.

A question has a thread of its own, started when it is first asked. Whoever asks while it is being
answered waits for that answer; once it has taken longer than it may, everybody is told so at once,
until it comes back. A thread that never comes back is left behind: it is a daemon, and nobody waits
for it.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import Generic, TypeVar

from longwatch.host.errand import Errand

T = TypeVar("T")


class Question(Generic[T]):
    """`ask` gives the answer, or raises what it raised; TimeoutError when that takes longer than
    `within`. Used on one loop.
    """

    def __init__(self, call: Callable[[], T], *, name: str, within: float) -> None:
        self._call = call
        self._name = name
        self._within = within
        self._asked: queue.SimpleQueue[asyncio.Future[T] | None] = queue.SimpleQueue()
        self._pending: asyncio.Future[T] | None = None
        self._overran = False
        self._errand: Errand | None = None

    async def ask(self) -> T:
        if self._pending is None:
            self._begin()
        elif self._overran:
            raise TimeoutError
        assert self._pending is not None
        answered, _ = await asyncio.wait({self._pending}, timeout=self._within)
        if not answered:
            self._overran = True
            raise TimeoutError
        return next(iter(answered)).result()

    def close(self) -> None:
        """End the thread, when it has time."""
        self._asked.put(None)
        self._errand = None

    def _begin(self) -> None:
        if self._errand is None:
            errand = Errand(self._turn, name=self._name, loud=True)
            # where there is no thread left this raises, and whoever asks next tries again
            errand.start()
            self._errand = errand
        pending = self._pending = asyncio.get_running_loop().create_future()
        pending.add_done_callback(self._answered)
        self._asked.put(pending)

    def _answered(self, pending: asyncio.Future[T]) -> None:
        if not pending.cancelled():
            pending.exception()  # it has been looked at, whoever asked may be gone
        self._pending, self._overran = None, False

    def _turn(self) -> None:
        while (pending := self._asked.get()) is not None:
            try:
                answer = self._call()
            except BaseException as error:  # noqa: BLE001 - whoever asked is told; an exit of anybody's code ends nothing here
                _settle(pending, error=error)
            else:
                _settle(pending, answer)


def _is_fit(error: BaseException) -> bool:
    """Whether a future takes it; neither an exit, which would end the loop, nor StopIteration."""
    return isinstance(error, Exception) and not isinstance(error, StopIteration)


def _settle(
    pending: asyncio.Future[T], answer: T | None = None, error: BaseException | None = None
) -> None:
    def settle() -> None:
        if pending.done():
            return
        if error is None:
            pending.set_result(answer)  # type: ignore[arg-type] # without an error it is a T
        else:
            pending.set_exception(error if _is_fit(error) else RuntimeError(repr(error)))

    loop = pending.get_loop()
    if not loop.is_closed():
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            return  # closed in this very moment: nobody waits any more
