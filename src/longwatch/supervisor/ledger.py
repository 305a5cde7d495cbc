"""The durable ledger: stores the record of every program in a database of the supervisor's own.

A thread writes the latest record of each program, several in one transaction, so that the loop
never waits for a disk. A caller that needs a record on disk (an operator's stop) awaits `flush`. A
failed write is retried later. A ledger that cannot be read is quarantined under another name and
created anew. Neither failure stops a program.
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
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import StateFileQuarantined
from longwatch.errors import SchemaTooOldError, StoreCorruptError, StoreError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.store.database import Transaction
from longwatch.store.named_sql import load_queries
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.supervisor.program_record import ProgramRecord

RETRY_INTERVAL = 30.0
"""Seconds until a failed write is retried."""
_FILE_SUFFIXES = ("", "-wal", "-shm")

Waiters = list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]


class ProgramLedger(Service):
    """Stores program records in one file. Call `load` before `start`; call `save` and `flush` on
    the event loop.
    """

    def __init__(self, path: Path, *, clock: Clock, events: Events) -> None:
        super().__init__(name="ledger", clock=clock)
        self.path = path
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()
        self._pending: dict[str, str] = {}
        self._last_saved: dict[str, str] = {}
        self._waiters: Waiters = []
        self._sql = load_queries("longwatch.supervisor", "ledger", "sqlite")
        self._database = SqliteDatabase(path)
        self._writer = Periodic(
            self._write,
            Cadence(interval=RETRY_INTERVAL, immediately=False),
            name="longwatch-ledger",
            clock=clock,
            events=events,
        )

    def load(self, *, forget_after: float, known: Collection[str] = ()) -> dict[str, ProgramRecord]:
        """Load all records. Deletes those of programs that are not in `known` and were not written
        for `forget_after` seconds. Blocking.
        """
        try:
            return self._load(forget_after, known)
        except StoreCorruptError as error:
            self._quarantine(str(error))
        except SchemaTooOldError:
            self._quarantine("it was created by an older Longwatch")
        except (ValueError, TypeError, RecursionError) as error:
            self._quarantine(f"its records cannot be understood ({type(error).__name__})")
        return self._load(forget_after, known)

    def save(self, name: str, record: ProgramRecord) -> None:
        """Save a record soon, without blocking. An unchanged record is not written again."""
        text = json.dumps(record.to_dict())
        if text == self._last_saved.get(name):
            return
        self._last_saved[name] = text
        with self._lock:
            self._pending[name] = text
        self._writer.wake()

    async def flush(self) -> None:
        """Wait until all records saved so far are on disk. Raises StoreError if the write fails."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if not self._pending:
                return
            self._waiters.append((loop, future))
        await future

    def _start(self) -> None:
        self._last_write = BackgroundThread(self._write_and_close, name="longwatch-ledger-end")
        self._writer.start()

    def _stop(self, deadline: Deadline) -> bool:
        """Write the pending records. The thread may wait for the disk longer than the deadline."""
        if not self._writer.stop(deadline=deadline):
            return False
        self._last_write.start()
        return self._last_write.wait(self._clock, deadline)

    def _write_and_close(self) -> None:
        with suppress(StoreError):
            self._write()
        self._database.close()

    # --- the store ---

    def _load(self, forget_after: float, known: Collection[str]) -> dict[str, ProgramRecord]:
        rows = self._database.write(
            lambda transaction: self._load_pruned(transaction, forget_after, known)
        )
        return {
            name: ProgramRecord.from_dict(json.loads(record)) for name, record in rows
        }  # from_dict refuses NaN and infinity

    def _load_pruned(
        self, transaction: Transaction, older_than: float, known: Collection[str]
    ) -> list[tuple[str, str]]:
        for name, _ in transaction.rows(self._sql["all_records"]):
            if name not in known:
                transaction.execute(
                    self._sql["delete_stale_record"], {"name": name, "older_than": older_than}
                )
        return [(name, record) for name, record in transaction.rows(self._sql["all_records"])]

    def _write(self) -> None:
        """Write the pending records; if that fails, they stay pending."""
        with self._lock:
            taken, self._pending = self._pending, {}
            waiters, self._waiters = self._waiters, []
        try:
            if taken:
                self._database.write(lambda transaction: self._upsert(transaction, taken))
        except BaseException as error:
            with self._lock:
                self._pending = {**taken, **self._pending}
            _notify_waiters(
                waiters,
                error
                if isinstance(error, StoreError)
                else StoreError(f"the ledger failed: {error}"),
            )
            raise
        _notify_waiters(waiters, None)

    def _upsert(self, transaction: Transaction, records: dict[str, str]) -> None:
        for name, record in records.items():
            transaction.execute(self._sql["upsert_record"], {"name": name, "record": record})

    def _quarantine(self, reason: str) -> None:
        self._database.close()
        stamp = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y%m%dT%H%M%SZ")
        quarantined = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        for suffix in _FILE_SUFFIXES:
            with suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").rename(f"{quarantined}{suffix}")
        self._database = SqliteDatabase(self.path)
        self._events.emit(
            StateFileQuarantined(
                path=str(self.path), quarantined_as=str(quarantined), reason=reason
            )
        )


def _notify_waiters(waiters: Waiters, error: StoreError | None) -> None:
    for loop, future in waiters:
        with suppress(RuntimeError):  # the loop is closed, so no task waits on it any more
            loop.call_soon_threadsafe(_resolve, future, error)


def _resolve(future: asyncio.Future[None], error: StoreError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
