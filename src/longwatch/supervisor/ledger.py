"""The durable ledger: what is remembered of every program, in a store of the supervisor's own.

Notes are written by a thread of the ledger's, several in one transaction, each program's latest
only: the loop never waits for a disk. Who has to know that a note is on disk (an operator's stop)
awaits `settled`. A store that cannot be written now is written later, and a ledger that cannot be
read is put aside under another name and begun anew; neither stops a program.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events import Events, LedgerSetAside
from longwatch.errors import StoreCorruptError, StoreError
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.store.database import Transaction
from longwatch.store.named_sql import load_queries
from longwatch.store.sqlite import SqliteDatabase
from longwatch.supervisor.memory import Memory

AGAIN_AFTER = 30.0
"""How long after a failed write the next is tried, in seconds."""
_BESIDE = ("", "-wal", "-shm")

Waiting = list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]


class Ledger(Service):
    """Remembers programs in one file. `read` before `start`; `note` and `settled` are called on
    the loop.
    """

    def __init__(self, path: Path, *, clock: Clock, events: Events) -> None:
        super().__init__(name="ledger", clock=clock)
        self.path = path
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()
        self._unwritten: dict[str, str] = {}
        self._noted: dict[str, str] = {}
        self._waiting: Waiting = []
        self._sql = load_queries("longwatch.supervisor", "queries", "sqlite")
        self._database = SqliteDatabase(path)
        self._writer = Periodic(
            self._write,
            Cadence(interval=AGAIN_AFTER, immediately=False),
            name="longwatch-ledger",
            clock=clock,
            events=events,
        )

    def read(self, *, forget_after: float, known: Collection[str] = ()) -> dict[str, Memory]:
        """Everything that is remembered, less what is about programs that are not known and was
        not touched for so long.
        """
        try:
            return self._read(forget_after, known)
        except StoreCorruptError as error:
            self._begin_anew(str(error))
        except (ValueError, TypeError, RecursionError) as error:
            self._begin_anew(f"it holds what no ledger does ({type(error).__name__})")
        return self._read(forget_after, known)

    def note(self, name: str, memory: Memory) -> None:
        """Remember this; on disk soon. What was noted before costs nothing."""
        text = json.dumps(memory.to_dict())
        if text == self._noted.get(name):
            return
        self._noted[name] = text
        with self._lock:
            self._unwritten[name] = text
        self._writer.wake()

    async def settled(self) -> None:
        """Wait until everything that was noted so far is on disk; StoreError if it could not be
        written just now.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if not self._unwritten:
                return
            self._waiting.append((loop, future))
        await future

    def _start(self) -> None:
        self._writer.start()

    def _stop(self, deadline: Deadline) -> bool:
        gone = self._writer.stop(deadline=deadline)
        with suppress(StoreError):
            self._write()
        self._database.close()
        return gone

    # --- the store ---

    def _read(self, forget_after: float, known: Collection[str]) -> dict[str, Memory]:
        rows = self._database.write(
            lambda transaction: self._pruned(transaction, forget_after, known)
        )
        return {
            name: Memory.from_dict(json.loads(memory)) for name, memory in rows
        }  # NaN and its like are refused there

    def _pruned(
        self, transaction: Transaction, age: float, known: Collection[str]
    ) -> list[tuple[str, str]]:
        for name, _ in transaction.rows(self._sql["all"]):
            if name not in known:
                transaction.execute(self._sql["forget"], {"name": name, "age": age})
        return [(name, memory) for name, memory in transaction.rows(self._sql["all"])]

    def _write(self) -> None:
        """Write what is unwritten; what cannot be written now stays so."""
        with self._lock:
            taken, self._unwritten = self._unwritten, {}
            waiting, self._waiting = self._waiting, []
        try:
            if taken:
                self._database.write(lambda transaction: self._keep(transaction, taken))
        except BaseException as error:
            with self._lock:
                self._unwritten = {**taken, **self._unwritten}
            _tell(
                waiting,
                error
                if isinstance(error, StoreError)
                else StoreError(f"the ledger failed: {error}"),
            )
            raise
        _tell(waiting, None)

    def _keep(self, transaction: Transaction, notes: dict[str, str]) -> None:
        for name, memory in notes.items():
            transaction.execute(self._sql["keep"], {"name": name, "memory": memory})

    def _begin_anew(self, reason: str) -> None:
        self._database.close()
        stamp = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y%m%dT%H%M%SZ")
        aside = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        for suffix in _BESIDE:
            with suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").rename(f"{aside}{suffix}")
        self._database = SqliteDatabase(self.path)
        self._events.emit(LedgerSetAside(path=str(self.path), kept_as=str(aside), reason=reason))


def _tell(waiting: Waiting, error: StoreError | None) -> None:
    for loop, future in waiting:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits on it any more
            loop.call_soon_threadsafe(_resolve, future, error)


def _resolve(future: asyncio.Future[None], error: StoreError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
