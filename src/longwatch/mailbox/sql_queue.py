"""Finds the queue number of a mailbox in a SQL store, and the budgets that are stored with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TypeVar

from longwatch.mailbox.limits import MailboxLimits
from longwatch.store.blame import BlameBudget
from longwatch.store.database import Database, Row, StoreResetError, Transaction

T = TypeVar("T")


class SqlQueue:
    """A queue number and the limits of this process: the values that it has set, else the stored
    ones, else the defaults.
    """

    def __init__(self, row: Row, limits: MailboxLimits) -> None:
        number, *stored = row
        self.number = int(number)
        self.limits = limits.with_stored(stored)
        self.max_failures = self.limits.max_failures
        self.must_store_budgets = limits.must_be_stored(stored)

    @cached_property
    def budget(self) -> BlameBudget:
        return BlameBudget(self.limits.max_crashes, self.limits.max_lost)


class SqlQueueFinder:
    """Finds the queue of one mailbox, and inserts a mailbox that does not exist.

    Looks it up once in each process, and again when the store may have been replaced. The first
    lookup stores the budgets that the caller has set, if the stored ones differ.
    """

    def __init__(
        self, database: Database, name: str, queries: Mapping[str, str], limits: MailboxLimits
    ) -> None:
        self._database = database
        self._sql = queries
        self._limits = limits
        self._parameters = {"name": name, **limits.set_budgets}
        self._found: dict[tuple[int, int], SqlQueue] = {}

    def find(self) -> SqlQueue:
        key = os.getpid(), self._database.generation
        queue = self._found.get(key)
        if queue is None:
            queue = self._database.read(self._find_in)
            if queue is None or queue.must_store_budgets:
                queue = self._database.write(self._store)
            self._found = {key: queue}
        return queue

    def number_in(self, tx: Transaction) -> int:
        """Return the queue number, in a transaction of the caller that may last long. Writes only
        if the mailbox does not exist, because a write locks the row until the transaction ends.
        """
        queue = self._found.get((os.getpid(), self._database.generation))
        return (queue or self._find_in(tx) or self._insert(tx)).number

    def forget(self) -> None:
        """Forget the queue, so that the next call looks it up again."""
        self._found = {}

    def retry_if_vanished(self, call: Callable[[int], T]) -> T:
        """Call with the queue number. If the mailbox is gone because the store was restored or
        emptied, call again with its new number.
        """
        try:
            return call(self.find().number)
        except StoreResetError:
            self.forget()
            return call(self.find().number)

    def _find_in(self, tx: Transaction) -> SqlQueue | None:
        rows = tx.rows(self._sql["find_queue"], self._parameters)
        return SqlQueue(rows[0], self._limits) if rows else None

    def _insert(self, tx: Transaction) -> SqlQueue:
        """Insert the mailbox. The budgets of another transaction that has inserted it meanwhile
        stay.
        """
        rows = tx.rows(self._sql["insert_queue"], self._parameters)
        [row] = rows or tx.rows(self._sql["find_queue"], self._parameters)
        return SqlQueue(row, self._limits)

    def _store(self, tx: Transaction) -> SqlQueue:
        [row] = tx.rows(self._sql["queue"], self._parameters)
        return SqlQueue(row, self._limits)
