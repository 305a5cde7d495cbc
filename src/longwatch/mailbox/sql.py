"""A mailbox in a SQL store: one queue of the table of messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import (
    EngineSweeper,
    EverySweep,
    ExchangeResult,
    GivenUp,
    Settlement,
    ignore_given_up,
)
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import mailbox_locator
from longwatch.mailbox.group_send import GroupSend
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.records import DeadLetter, MailboxStats, MessageRecord, NewMessage
from longwatch.mailbox.sql_dead_letters import SqlDeadLetters
from longwatch.mailbox.sql_exchange import CLAIMED_COLUMNS, SqlExchange
from longwatch.mailbox.sql_queue import SqlQueue, SqlQueueFinder
from longwatch.mailbox.sql_sender import SqlSender
from longwatch.mailbox.sql_sweeper import (
    GivenUpHook,
    SqlSweeper,
    SweptMailbox,
    ignore_given_up_in,
)
from longwatch.mailbox.sql_turn_sweeper import SqlTurnSweeper, TurnMailbox
from longwatch.store.claims import Claim, Claims, RowSelection
from longwatch.store.database import CALL_TIMEOUT, Database, StoreResetError, Transaction
from longwatch.store.named_sql import load_queries
from longwatch.store.sweep import ClaimSweeper

T = TypeVar("T")

_IS_NOT_PAUSED = (
    "NOT EXISTS (SELECT 1 FROM longwatch_mailboxes WHERE longwatch_mailboxes.queue = :queue AND "
    "paused <> 0)"
)


class SqlBackend:
    """One queue of the `longwatch_messages` table."""

    def __init__(
        self, database: Database, name: str, *, limits: MailboxLimits | None = None
    ) -> None:
        self.database = database
        self.name = name
        self.limits = limits or MailboxLimits()
        self._sql = load_queries("longwatch.mailbox", "queries", database.dialect)
        self._claims = Claims(
            dialect=database.dialect,
            table="longwatch_messages",
            columns=CLAIMED_COLUMNS,
            claim_condition=_IS_NOT_PAUSED,
            owners=database.owners,
            scan_bounds=database.scan_bounds,
        )
        self._dead_letters = SqlDeadLetters(name, self._sql, self._claims)
        self.exchanges = SqlExchange(name, self._claims, self._dead_letters)
        self._sender = SqlSender(name, self._sql, self._dead_letters, max_size=self.limits.max_size)
        self._group_send = GroupSend(self._put, max_leaders=1 if database.has_single_writer else 2)
        self._sweep = ClaimSweeper(self._claims, is_shared=database.is_shared)
        self.sweeper = SqlSweeper(database, self._sql, self._claims, self._sweep)
        self._finder = SqlQueueFinder(database, name, self._sql, self.limits)

    @property
    def store_identity(self) -> object:
        return self.database.identity

    # --- engine.ClaimSource ---

    @property
    def is_shared(self) -> bool:
        return self.database.is_shared

    def register_owner(
        self,
        incarnation: Incarnation,
        *,
        page: str | None = None,
        parent: str | None = None,
        renew_seconds: float | None = None,
    ) -> int:
        return self.database.write(
            lambda tx: self._claims.register_owner(
                tx, incarnation, page=page, parent=parent, renew_seconds=renew_seconds
            )
        )

    def report_draining(self, *, owner: int, is_draining: bool = True) -> None:
        self.database.write(
            lambda tx: self._claims.report_draining(tx, owner=owner, is_draining=is_draining)
        )

    def default_owner(self) -> int:
        return self.database.owners.default_owner(
            "longwatch_messages", lambda: self.register_owner(Incarnation.current())
        )

    def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        owner: int,
        limit: int,
        lease_seconds: float,
        selection: RowSelection = RowSelection.ANY,
    ) -> ExchangeResult:
        queue = self._finder.find()
        if (
            not settlements
            and self.database.has_single_writer
            and not self.database.read(lambda tx: self._has_claimable(tx, queue, selection))
        ):
            return ExchangeResult([], [])

        def work(tx: Transaction) -> ExchangeResult:
            settled, given_up = self._settle(tx, settlements)
            if not limit:
                return ExchangeResult(settled, [], given_up=given_up)
            claimed, not_run = self.exchanges.claim(
                tx,
                queue,
                owner=owner,
                lease_seconds=lease_seconds,
                limit=limit,
                selection=selection,
            )
            return ExchangeResult(settled, claimed, given_up=given_up + not_run)

        return self.database.write(work)

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        return self.database.write(
            lambda tx: self._claims.renew(tx, owner=owner, lease_seconds=lease_seconds, skip=skip)
        )

    def renew_owners(self, owners: Sequence[int], *, lease_seconds: float) -> list[int]:
        return self.database.write(
            lambda tx: [
                self._claims.renew(tx, owner=owner, lease_seconds=lease_seconds) for owner in owners
            ]
        )

    def held(self, *, owner: int) -> list[Claim]:
        return self.database.read(lambda tx: self._claims.held(tx, owner=owner))

    def count_suspects(self, *, limit: int) -> int:
        queue = self._finder.find()
        return self.database.read(
            lambda tx: self._claims.count_suspects(
                tx, queue=queue.number, limit=limit, budget=queue.budget
            )
        )

    def row_ids(self, seqs: Collection[int]) -> dict[int, str]:
        parameters = {"seqs": self._claims.array_parameter(seqs)}
        return dict(self.database.read(lambda tx: tx.rows(self._sql["find_ids"], parameters)))

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:
        return self.sweeper.sweep([self.swept(self.limits.dead_retention)], on_given_up)

    def sweeper_for(self, incarnation: Incarnation, *, selection: RowSelection) -> EngineSweeper:
        if not self.is_shared:
            return EverySweep(self.sweep)
        return self.turn_sweeper([self], incarnation, selection=selection)

    def next_due(self) -> float | None:
        queue = self._queue()
        return self.database.read(lambda tx: self._claims.next_due(tx, queue=queue))

    def locator(self) -> dict[str, str] | None:
        return mailbox_locator(self.database.absolute_url, self.name)

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        return self.database.listen(self.name, wakeup)

    # --- the rest of a backend ---

    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        if tx is not None:
            return self._put_in_transaction(self.database.join(tx), messages)
        if self._sender.can_share(messages) and not self.database.is_writing:
            self._group_send.send(messages)
            return [message.id for message in messages]
        return self._put(messages)

    def _put(self, messages: Sequence[NewMessage], timeout: float = CALL_TIMEOUT) -> list[str]:
        return self._finder.retry_if_vanished(
            lambda queue: self.database.write(
                lambda tx: self._sender.put(tx, queue, messages), timeout=timeout
            )
        )

    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        return self._in_transaction(tx, lambda tx: self._settle(tx, settlements)[0])

    def renew_one(self, claim: Claim, *, lease_seconds: float) -> bool:
        return self.database.write(
            lambda tx: self._claims.renew_one(tx, claim, lease_seconds=lease_seconds)
        )

    def stats(self) -> MailboxStats:
        return self._finder.retry_if_vanished(
            lambda queue: self.database.read(lambda tx: self._stats(tx, queue))
        )

    def peek(self, *, limit: int) -> list[MessageRecord]:
        queue = self._queue()
        rows = self.database.read(
            lambda tx: tx.rows(self._sql["peek"], {"queue": queue, "limit": limit})
        )
        return [MessageRecord(*row) for row in rows]

    def cancel(self, message_id: str) -> bool:
        return self._execute("cancel", id=message_id) == 1

    def pause(self, *, paused: bool) -> None:
        queue = self._queue()

        def work(tx: Transaction) -> None:
            tx.execute(self._sql["pause"], {"queue": queue, "paused": int(paused)})
            tx.notify(self.name)

        self.database.write(work)

    def notify(self) -> None:
        self.database.notify(self.name)

    def purge(self) -> int:
        return self._execute("purge")

    def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        queue = self._queue()
        return self.database.read(
            lambda tx: self._dead_letters.page(tx, queue, after=after, limit=limit)
        )

    def find_dead_letter(self, message_id: str) -> DeadLetter | None:
        queue = self._queue()
        return self.database.read(lambda tx: self._dead_letters.find(tx, queue, message_id))

    def replay(self, ids: Sequence[str]) -> list[bool]:
        queue = self._queue()

        def work(tx: Transaction) -> list[bool]:
            tx.notify(self.name)
            return [self._dead_letters.replay(tx, queue, each) for each in ids]

        return self.database.write(work)

    def drop(self, ids: Sequence[str]) -> list[bool]:
        queue = self._queue()
        return self.database.write(
            lambda tx: [self._dead_letters.drop(tx, queue, each) for each in ids]
        )

    # --- inside a transaction ---

    def _settle(
        self, tx: Transaction, settlements: Sequence[Settlement]
    ) -> tuple[list[bool], list[GivenUp]]:
        settled, given_up, has_released = self.exchanges.settle(tx, settlements)
        if has_released:
            tx.notify(self.name)
        return settled, given_up

    def _put_in_transaction(self, tx: Transaction, messages: Sequence[NewMessage]) -> list[str]:
        try:
            return self._sender.put(tx, self._finder.number_in(tx), messages)
        except StoreResetError:
            self._finder.forget()
            raise

    def _stats(self, tx: Transaction, queue: int) -> MailboxStats:
        for row in tx.rows(self._sql["stats"], {"queue": queue}):
            return _make_stats(row)
        raise StoreResetError(
            f"mailbox {self.name!r} is gone, its store was restored or emptied meanwhile; try again"
        )

    def _has_claimable(self, tx: Transaction, queue: SqlQueue, selection: RowSelection) -> bool:
        """Return whether a claim of this selection would write. A claim frees every due row, of
        any selection.
        """
        due = self._claims.next_due(tx, queue=queue.number)
        return (due is not None and due <= 0) or self._claims.has_selected(
            tx, queue=queue.number, selection=selection, budget=queue.budget
        )

    # --- for `ManyMailboxes` ---

    def queue(self) -> SqlQueue:
        """Return the queue of this mailbox, which is looked up once in each process."""
        return self._finder.find()

    def swept(self, retention: float | None) -> SweptMailbox:
        """Return this mailbox in the form that a sweep needs. With a retention, the sweep deletes
        old dead letters.
        """
        return SweptMailbox(self._queue(), self._dead_letters, retention)

    def turn_sweeper(
        self,
        backends: Sequence[SqlBackend],
        incarnation: Incarnation,
        *,
        selection: RowSelection,
        hook: GivenUpHook = ignore_given_up_in,
    ) -> SqlTurnSweeper:
        """Return the sweeper of an engine over these mailboxes of the same store."""
        return SqlTurnSweeper(
            self.database,
            self.sweeper,
            self._sweep,
            [
                TurnMailbox(each.name, partial(each.swept, None), each.limits.dead_retention)
                for each in backends
            ],
            incarnation=incarnation,
            selection=selection,
            hook=hook,
        )

    # --- helpers ---

    def _queue(self) -> int:
        return self._finder.find().number

    def _in_transaction(self, tx: Any, work: Callable[[Transaction], T]) -> T:
        return self.database.write(work) if tx is None else work(self.database.join(tx))

    def _execute(self, query: str, **parameters: object) -> int:
        queue = self._queue()
        return self.database.write(
            lambda tx: tx.execute(self._sql[query], {"queue": queue, **parameters})
        )


def list_mailbox_names(database: Database) -> list[str]:
    """Return the names of all mailboxes of a store. Writes nothing."""
    names = load_queries("longwatch.mailbox", "queries", database.dialect)["mailbox_names"]
    return [name for (name,) in database.read(lambda tx: tx.rows(names))]


def list_mailbox_stats(database: Database, *, limit: int) -> list[tuple[str, MailboxStats]]:
    """Return the statistics of the first mailboxes by name, in one query. Writes nothing."""
    query = load_queries("longwatch.mailbox", "queries", database.dialect)["stats_of_mailboxes"]
    rows = database.read(lambda tx: tx.rows(query, {"limit": limit}))
    return [(name, _make_stats(row)) for name, *row in rows]


def _make_stats(row: Sequence[Any]) -> MailboxStats:
    ready, delayed, leased, dead, age, paused, expired = row
    oldest_age = None if age is None else max(float(age), 0.0)
    return MailboxStats(ready, delayed, leased, dead, oldest_age, bool(paused), expired)
