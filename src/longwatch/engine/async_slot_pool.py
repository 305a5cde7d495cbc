"""The slots of an engine whose user code is `async def`: many slots, few threads.

A slot is a place: a number on the beat page, a heartbeat, the context of a row. While its coroutine
waits, it needs no thread. The coroutines run on the loop thread. A few other threads do what may
block: they decode a row, call its runner, which makes the coroutine, and turn the end of the
coroutine into a settlement, with its reply.

    waiting row ─┐
                 ├─a thread takes both──► on the loop ──it ends──► a thread concludes the row
    free slot ───┘                                                        │
        ▲                                                                 ▼
        └──────────────── unless `hand_in` returns a row, which the slot runs next

How many threads
    A pool starts with `_THREADS` threads, and keeps every thread until the engine stops.
    A row that is not async keeps its thread until it ends: a `def` node beside `async def` nodes,
    or a node in a process of its own. The pool starts one more thread for each of them that runs at
    the same time, up to one for each slot.
    A reply keeps its thread until the store has committed it. The store commits waiting replies
    together. So the pool starts more threads for replies, up to `_REPLY_THREADS`. A few threads
    would make the commits small.

Invariants
    1. If a row waits and a slot is free, a job that brings them together is queued or runs. `put`
       adds its row before it queues the job. A thread that frees a slot looks for a waiting row
       after that. So either the job finds the slot, or the thread finds the row.
    2. At least `_THREADS` threads, or one for each slot if there are fewer, run no row that is not
       async, unless the system has no thread left.
    3. Jobs are done in their order, so neither ended coroutines nor waiting rows wait for ever.
    4. A row that waits for a thread is still in `waiting`. It can be released.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from longwatch.engine.async_slot import AsyncSlot, StartedRow
from longwatch.engine.claim_source import ClaimedRow
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import EngineContext
from longwatch.engine.row_life import FinishedRow, RowRunner
from longwatch.engine.slot_pool import HandIn, SlotPool
from longwatch.host.beatpage import BeatPage

_THREADS = 2
"""The threads that begin and conclude rows."""
_REPLY_THREADS = 16
"""The most threads that are started for replies. With 4 or 8, SQLite committed half as many replies
a second as with a thread for each slot; 16 made no difference to that.
"""


class AsyncSlotPool(SlotPool):
    """A pool whose slots share a few threads, for code that is `async def`."""

    _slot_type = AsyncSlot

    def __init__(
        self,
        runner: RowRunner,
        lease_trust: LeaseTrust,
        page: BeatPage,
        engine_context: EngineContext,
        *,
        hand_in: HandIn,
    ) -> None:
        super().__init__(runner, lease_trust, page, engine_context, hand_in=hand_in)
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.waiting = _WaitingRows(self._queue_start)
        self._free_slots = deque(
            slot for slot in reversed(self.slots) if isinstance(slot, AsyncSlot)
        )
        self._is_async_row: Callable[[ClaimedRow], bool] = getattr(
            runner, "is_async_row", _is_async_row
        )
        self._blocked_threads = 0
        self._thread_lock = threading.Lock()

    def start(self) -> None:
        for _ in self.slots[:_THREADS]:
            self._start_thread(self._loop)

    def _request_thread_end(self) -> None:
        self._jobs.put(None)

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    # --- jobs ---

    def _queue_start(self) -> None:
        self._jobs.put(self._start_next)

    def _start_next(self) -> None:
        """Run the first waiting row in a free slot, if there are both."""
        try:
            slot = self._free_slots.pop()
        except IndexError:
            return
        try:
            claimed = self.waiting.get_nowait()
        except queue.Empty:
            claimed = None
        self._use(slot, claimed)

    def _conclude(self, slot: AsyncSlot, row: StartedRow, future: Future[Any]) -> None:
        if row.pending.may_block:
            with self._replaced_thread(_REPLY_THREADS):
                finished = slot.conclude(row, future)
        else:
            finished = slot.conclude(row, future)
        self._use(slot, self._hand_in(finished))

    def _use(self, slot: AsyncSlot, claimed: ClaimedRow | None) -> None:
        """Run rows in this slot until one is on the loop, or the slot is free."""
        while claimed is not None:
            finished = self._run(slot, claimed)
            if finished is None:
                return
            claimed = self._hand_in(finished)
        self._free_slots.append(slot)
        if not self.waiting.empty():
            self._queue_start()

    def _run(self, slot: AsyncSlot, claimed: ClaimedRow) -> FinishedRow | None:
        if self._is_async_row(claimed):
            return slot.start(claimed, self._on_end)
        with self._replaced_thread(_THREADS + len(self.slots)):
            return slot.start(claimed, self._on_end)

    def _on_end(self, slot: AsyncSlot, row: StartedRow, future: Future[Any]) -> None:
        """Queue the end of a coroutine for a thread. Called on the loop thread."""
        self._jobs.put(partial(self._conclude, slot, row, future))

    # --- threads ---

    @contextmanager
    def _replaced_thread(self, maximum: int) -> Iterator[None]:
        """Leave enough threads for the jobs while this one blocks: start another if there are too
        few, and fewer than `maximum`. If the system has no thread left, the jobs wait.
        """
        with self._thread_lock, suppress(RuntimeError):
            self._blocked_threads += 1
            needed = len(self.slots[:_THREADS]) + self._blocked_threads
            if len(self._threads) < min(needed, maximum):
                self._start_thread(self._loop)
        try:
            yield
        finally:
            with self._thread_lock:
                self._blocked_threads -= 1


class _WaitingRows:
    """The waiting rows of the pool. Calls `on_put` after each row that is put."""

    def __init__(self, on_put: Callable[[], None]) -> None:
        self._rows: queue.SimpleQueue[ClaimedRow | None] = queue.SimpleQueue()
        self._on_put = on_put
        self.get_nowait = self._rows.get_nowait
        self.empty = self._rows.empty
        self.qsize = self._rows.qsize

    def put(self, item: ClaimedRow | None, /) -> None:
        self._rows.put(item)
        self._on_put()


def _is_async_row(_: ClaimedRow) -> bool:
    return True
