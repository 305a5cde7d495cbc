"""What one process has open of a PostgreSQL server: connections, and the hints to and from others.

Here a piece of work is tried once; who tries again, and for how long, is `postgres.py`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg

from longwatch.core.clock import Wakeup
from longwatch.errors import StoreBusyError, StoreMisplacedError, UsageError
from longwatch.store.database import Channels, Jump, Transaction
from longwatch.store.migrations import Migration, migrate, migrations, require_known
from longwatch.store.postgres_address import Address
from longwatch.store.postgres_ear import Ear
from longwatch.store.postgres_errors import CallTimeoutError, ConnectionLostError, first_line
from longwatch.store.postgres_hints import Hints
from longwatch.store.postgres_pool import Pool
from longwatch.store.postgres_session import begin_session, warn_of
from longwatch.store.postgres_transaction import NOTIFY, READ_ONLY, READ_WRITE, PostgresTransaction
from longwatch.store.postgres_wire import Wire
from longwatch.store.postgres_witness import Witness, was_committed

T = TypeVar("T")

_SCHEMA_LOCK = 7_303_014_620_157_292_921
"""Whoever changes the schema holds this advisory lock."""


_MIGRATE = (
    "run `longwatch db migrate --store URL`, or open it with open_store(url, auto_migrate=True)"
)
_A_PLACE = "run CREATE SCHEMA longwatch, and add options=-csearch_path=longwatch to the URL"


class UnsureError(Exception):
    """The answer to a commit was lost: what is needed to find out, and what to return if it was
    made.
    """

    def __init__(self, transaction: PostgresTransaction, witness: Witness, result: Any) -> None:
        super().__init__("the answer to the commit was lost")
        self.transaction = transaction
        self.line = witness.line
        self.number = witness.number
        self.result = result


class OpenedServer:
    """Connections and threads of one process; every method may be called from any thread. A
    deadline is on `time.monotonic()`.
    """

    def __init__(self, address: Address, *, jump: Jump, size: int, auto_migrate: bool) -> None:
        self.was_reached = False
        self._has_warned = False
        self._address = address
        self._jump = jump
        self._auto_migrate = auto_migrate
        self._who = os.urandom(6).hex()
        self._pool = Pool(self._connect, size=size)
        self._ear = Ear(lambda deadline: self._connect(deadline, warns=False), who=self._who)
        self._hints = Hints(self._tell)
        self._witnesses: WeakKeyDictionary[Wire, Witness] = WeakKeyDictionary()
        self._preparing = threading.Lock()
        self._is_prepared = False

    # --- work ---

    def write(
        self, work: Callable[[Any], T], deadline: float, *, begin: Sequence[bytes] = READ_WRITE
    ) -> T:
        """Run work and commit it; UnsureError when the answer to the commit was lost."""
        began = time.monotonic()
        with self._pool.one(deadline) as wire:
            transaction = self._transaction(wire, deadline, begin)
            try:
                result = work(transaction)
                self._commit(transaction, wire, result)
            except BaseException as error:
                transaction.roll_back()
                _give_up_if_read_only(wire, error, since=began)
                raise
            finally:
                transaction.end()
        self._committed(transaction)
        return result

    def read(self, work: Callable[[Any], T], deadline: float) -> T:
        """Run work on one view of the data; the end of it is not waited for."""
        with self._pool.one(deadline) as wire:
            transaction = self._transaction(wire, deadline, READ_ONLY)
            try:
                return work(transaction)
            except psycopg.errors.ReadOnlySqlTransaction:
                raise UsageError("a read cannot write; use write(), or transact()") from None
            finally:
                transaction.roll_back()
                transaction.end()

    def was_committed(self, unsure: UnsureError, deadline: float) -> bool:
        """What became of a commit; if it was not made, it never will be."""
        with self._pool.one(deadline) as wire:
            found = was_committed(wire, unsure.line, unsure.number, deadline)
        if found:
            self._hints.owe(self._to_tell(unsure.transaction))
            self._committed(unsure.transaction)
        return found

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        return self._ear.listen(channels, wakeup)

    def _transaction(
        self, wire: Wire, deadline: float, begin: Sequence[bytes]
    ) -> PostgresTransaction:
        return PostgresTransaction(
            wire, home=self._address.identity, jump=self._jump, deadline=deadline, begin=begin
        )

    def _commit(self, transaction: PostgresTransaction, wire: Wire, result: Any) -> None:
        witness = self._witnesses.setdefault(wire, Witness())
        testimony = witness.next()
        told = self._hints.due(self._to_tell(transaction))
        hints = [(NOTIFY, (self._payload(channel),)) for channel in told]
        try:
            transaction.commit(testimony, behind=[*hints, *witness.behind()])
        except (ConnectionLostError, CallTimeoutError) as error:
            if transaction.has_written:
                raise UnsureError(transaction, witness, result) from error
        self._hints.owe(self._to_tell(transaction).difference(told))

    def _to_tell(self, transaction: PostgresTransaction) -> frozenset[str]:
        """What other processes are to be told. Asked before the commit and after it: one that
        began meanwhile has been answered.
        """
        return frozenset(transaction.channels) if self._ear.presence.may_be_others else frozenset()

    def _committed(self, transaction: PostgresTransaction) -> None:
        for callback in transaction.callbacks:
            callback()
        self._ear.listeners.wake(transaction.channels)

    # --- the schema ---

    def prepare(self, deadline: float) -> None:
        """Once a process: see that the schema is there, make it if it is not."""
        if self._is_prepared:
            return
        if not self._preparing.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise StoreBusyError(
                "the schema was looked at all the time; nothing was written, try again"
            )
        try:
            if not self._is_prepared:
                self._bring_up_to_date(deadline)
            self._is_prepared = True
        finally:
            self._preparing.release()

    def _bring_up_to_date(self, deadline: float) -> None:
        """Look first: where nothing is to be done, nothing is locked, and a user who may not
        change the schema need not.
        """
        known = migrations("postgresql")
        version = self.read(schema_version, deadline)
        newest = known[-1].version
        if version == newest:
            return
        require_known(version, known, store=self._address.shown)
        if not self._auto_migrate:
            raise StoreMisplacedError(
                f"{self._address.shown} is at schema {version} of {newest}; {_MIGRATE}"
            )
        try:
            self.write(lambda transaction: _migrate(transaction, known), deadline)
        except (psycopg.errors.DuplicateTable, psycopg.errors.InvalidSchemaName) as error:
            raise UsageError(
                f"{self._address.shown} has no place for our tables ({first_line(error)}); "
                f"{_A_PLACE}"
            ) from error

    # --- connections ---

    def _connect(self, deadline: float, *, warns: bool = True) -> Wire:
        wire = self._address.connect(deadline)
        try:
            faults = begin_session(wire, self._address.shown, deadline)
            self.was_reached = True
            if warns and not self._has_warned:
                self._has_warned = True
                warn_of(self._address.shown, faults)
        except BaseException:
            wire.close()
            raise
        return wire

    def _tell(self, channels: list[str]) -> None:
        deadline = time.monotonic() + 1.0
        with self._pool.one(deadline) as wire:
            for channel in channels:
                wire.send(NOTIFY, (self._payload(channel),))
            wire.answer(deadline)

    def _payload(self, channel: str) -> str:
        return f"{self._who}/{channel}"

    def close(self) -> None:
        """Tell what is still to be told, then let go of everything; idempotent."""
        self._hints.close()
        self._ear.close()
        self._pool.close()

    def leave_behind(self) -> None:
        """In a forked child: close the copies of the parent's sockets, without a word."""
        self._ear.leave_behind()
        self._pool.leave_behind()


def _give_up_if_read_only(wire: Wire, error: BaseException, *, since: float) -> None:
    """The server may have been demoted: then its address leads to another one, but only for a new
    connection.

    What an older connection says proves nothing about the server of today; a new one is asked.
    """
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        wire.close("it is read-only")
        if wire.made_at < since:
            raise ConnectionLostError("it has become read-only") from error


def schema_version(transaction: Transaction) -> int:
    """The version of the schema; 0 if there is none. A read, unlike that of `migrations`."""
    [(is_there,)] = transaction.rows("SELECT to_regclass('longwatch_schema') IS NOT NULL")
    if not is_there:
        return 0
    [(version,)] = transaction.rows("SELECT coalesce(max(version), 0) FROM longwatch_schema")
    return int(version)


def _migrate(transaction: Transaction, known: list[Migration]) -> list[Migration]:
    """Make the steps that are pending; whoever comes at the same time waits, and finds them
    made.
    """
    transaction.rows("SELECT pg_advisory_xact_lock(:key)", {"key": _SCHEMA_LOCK})
    return migrate(transaction, known)
