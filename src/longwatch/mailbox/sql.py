"""A mailbox in a SQL store: one queue of the table of messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import Any, TypeVar

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import (
    ClaimedRow,
    ExchangeResult,
    GivenUp,
    RowOutcome,
    Settlement,
    ignore_given_up,
)
from longwatch.errors import MailboxFullError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import mailbox_locator
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.records import DeadLetter, MailboxStats, MessageRecord, NewMessage
from longwatch.mailbox.sql_dead_letters import SqlDeadLetters
from longwatch.store.blame import Blame, BlameBudget
from longwatch.store.claims import Claim, Claims, RowSelection
from longwatch.store.database import Database, Row, StoreResetError, Transaction
from longwatch.store.named_sql import load_queries
from longwatch.store.sweep import ClaimSweeper

T = TypeVar("T")

# Whether a message has expired, one of the facts of `limits.give_up_reason`.
_IS_EXPIRED = "CASE WHEN expires_at <= :wall_now THEN 1 ELSE 0 END"
_IS_NOT_PAUSED = (
    "NOT EXISTS (SELECT 1 FROM longwatch_mailboxes WHERE longwatch_mailboxes.queue = :queue AND "
    "paused <> 0)"
)
_GIVE_UP_BATCH = 2000
_NO_CLAIM = Claim(0, 0, 0)
_DONE_SETTLEMENT = Settlement(_NO_CLAIM, RowOutcome.DONE)
_BLAME_BY_OUTCOME = {RowOutcome.FAILED: Blame.FAILURE, RowOutcome.RELEASED: Blame.RELEASE}


class SqlBackend:
    """One queue of the `longwatch_messages` table."""

    def __init__(
        self, database: Database, name: str, *, limits: MailboxLimits | None = None
    ) -> None:
        self.database = database
        self.name = name
        self.limits = limits or MailboxLimits()
        self._budget = BlameBudget(self.limits.max_crashes, self.limits.max_lost)
        self._sql = load_queries("longwatch.mailbox", "queries", database.dialect)
        columns = (*MessageRecord._fields, _IS_EXPIRED, "keep_expired")
        self._claims = Claims(
            dialect=database.dialect,
            table="longwatch_messages",
            columns=columns,
            claim_condition=_IS_NOT_PAUSED,
            owners=database.owners,
        )
        self._dead_letters = SqlDeadLetters(name, self._sql, self._claims, self.limits)
        self._sweep = ClaimSweeper(self._claims, is_shared=database.is_shared)
        self._queues: dict[tuple[int, int], int] = {}

    @property
    def store_identity(self) -> object:
        return self.database.identity

    # --- engine.ClaimSource ---

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
        queue = self._queue()
        if (
            not settlements
            and self.database.has_single_writer
            and not self.database.read(lambda tx: self._has_claimable(tx, queue))
        ):
            return ExchangeResult([], [])

        def work(tx: Transaction) -> ExchangeResult:
            settled = self._settle(tx, settlements)
            return ExchangeResult(
                settled,
                self._claim(tx, queue, owner, limit, lease_seconds, selection) if limit else [],
            )

        return self.database.write(work)

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        return self.database.write(
            lambda tx: self._claims.renew(tx, owner=owner, lease_seconds=lease_seconds, skip=skip)
        )

    def held(self, *, owner: int) -> list[Claim]:
        return self.database.read(lambda tx: self._claims.held(tx, owner=owner))

    def count_suspects(self, *, limit: int) -> int:
        queue = self._queue()
        return self.database.read(
            lambda tx: self._claims.count_suspects(
                tx, queue=queue, limit=limit, budget=self._budget
            )
        )

    def row_ids(self, seqs: Collection[int]) -> dict[int, str]:  # noqa: ARG002
        return {}

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:  # noqa: ARG002
        """Read first; write only if something is to be changed."""
        queue = self._queue()
        dead = self.database.read(self._sweep.dead_owners)
        if not dead and not self.database.read(lambda tx: self._needs_sweep(tx, queue)):
            return 0

        def work(tx: Transaction) -> int:
            freed = [
                swept for owner in dead for swept in self._sweep.reclaim(tx, owner)
            ] + self._sweep.reclaim_lapsed(tx)
            promoted = self._claims.promote_due(tx, queue=queue)
            freed += [queue] * (promoted + self._dead_letters.expire(tx, queue))
            self._dead_letters.delete_old(tx, queue)
            self._notify(tx, freed)
            return len(freed)

        return self.database.write(work)

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
        return self._retry_if_vanished(
            lambda queue: self.database.write(lambda tx: self._put(tx, queue, messages))
        )

    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        return self._in_transaction(tx, lambda tx: self._settle(tx, settlements))

    def renew_one(self, claim: Claim, *, lease_seconds: float) -> bool:
        return self.database.write(
            lambda tx: self._claims.renew_one(tx, claim, lease_seconds=lease_seconds)
        )

    def stats(self) -> MailboxStats:
        return self._retry_if_vanished(
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

    def _claim(  # noqa: PLR0913, PLR0917 - which rows, for which owner, for how long
        self,
        tx: Transaction,
        queue: int,
        owner: int,
        limit: int,
        lease_seconds: float,
        selection: RowSelection,
    ) -> list[ClaimedRow]:
        """Lease messages, and give up those that have spent their limits.

        One transaction gives up a bounded number, because other writers wait meanwhile; then it
        notifies the receivers to claim again.
        """
        given_up = 0
        while given_up < _GIVE_UP_BATCH:
            rows = self._claims.claim(
                tx,
                queue=queue,
                owner=owner,
                lease_seconds=lease_seconds,
                limit=limit,
                selection=selection,
                budget=self._budget,
            )
            claimed = [each for row in rows if (each := self._claim_row(tx, row)) is not None]
            if claimed or not rows:
                return claimed
            given_up += len(rows) + self._dead_letters.expire(tx, queue)
        tx.notify(self.name)
        return []

    def _claim_row(self, tx: Transaction, row: Row) -> ClaimedRow | None:
        claim, message = Claim(*row[:3]), MessageRecord(*row[3:-2])
        if self._dead_letters.give_up_if_spent(tx, claim, message, row[-2:]):
            return None
        return ClaimedRow(
            claim,
            message,
            is_exclusive=self._budget.is_suspect(crashes=message.crashes, lost=message.lost),
        )

    def _settle(self, tx: Transaction, settlements: Sequence[Settlement]) -> list[bool]:
        """Settle in order; neighbours with the same end in one statement."""
        settled: list[bool] = []
        for template, group in groupby(settlements, _without_claim):
            settled += self._settle_group(tx, template, [settlement.claim for settlement in group])
        return settled

    def _settle_group(
        self, tx: Transaction, template: Settlement, claims: list[Claim]
    ) -> list[bool]:
        match template.outcome:
            case RowOutcome.DONE:
                return self._claims.settle(tx, claims)
            case RowOutcome.DEAD:
                return [
                    self._dead_letters.dead_letter(tx, claim, template.reason, template.error)
                    for claim in claims
                ]
            case outcome:
                tx.notify(self.name)
                return self._claims.release(
                    tx,
                    claims,
                    blame=_BLAME_BY_OUTCOME[outcome],
                    delay=template.delay,
                    error=template.error,
                )

    def _put_in_transaction(self, tx: Transaction, messages: Sequence[NewMessage]) -> list[str]:
        try:
            return self._put(
                tx, self._queues.get(self._queue_key()) or self._queue_in(tx), messages
            )
        except StoreResetError:
            self._queues = {}
            raise

    def _put(self, tx: Transaction, queue: int, messages: Sequence[NewMessage]) -> list[str]:
        self._lock_size(tx, queue)
        keys = {message.dedupe_key for message in messages if message.dedupe_key is not None}
        repeated = sum(self._has_key(tx, queue, key) for key in keys)
        keyless = sum(message.dedupe_key is None for message in messages)
        self._require_room(tx, queue, keyless + len(keys) - repeated)
        tx.notify(self.name)
        if keys:
            return [self._put_one(tx, queue, message) for message in messages]
        tx.defer_many(self._sql["put"], [_put_parameters(queue, message) for message in messages])
        return [message.id for message in messages]

    def _put_one(self, tx: Transaction, queue: int, message: NewMessage) -> str:
        """Insert a message; its id, or that of the message that has its key. Tries again if that
        message is removed in between.
        """
        while (
            tx.execute_many(self._sql["put"], [_put_parameters(queue, message)]) == 0
            and message.dedupe_key is not None
        ):
            for (first,) in tx.rows(
                self._sql["find_by_dedupe_key"], {"queue": queue, "dedupe_key": message.dedupe_key}
            ):
                return str(first)
        return message.id

    def _has_key(self, tx: Transaction, queue: int, key: str) -> bool:
        """Whether a message has this key. An expired message does not replace a new one."""
        self._dead_letters.expire_by_key(tx, queue, key)
        return bool(tx.rows(self._sql["find_by_dedupe_key"], {"queue": queue, "dedupe_key": key}))

    def _lock_size(self, tx: Transaction, queue: int) -> None:
        """Where several transactions write at once, let those that count messages take turns."""
        if self.limits.max_size is not None and (lock := self._sql.get("lock_size")):
            tx.rows(lock, {"queue": queue})

    def _require_room(self, tx: Transaction, queue: int, added: int) -> None:
        """Raise MailboxFullError if they do not fit. Expired messages are given up first."""
        max_size = self.limits.max_size
        if max_size is None:
            return
        count = self._count(tx, queue, max_size)
        if count + added > max_size and self._dead_letters.expire(tx, queue):
            count = self._count(tx, queue, max_size)
        if count + added > max_size:
            raise MailboxFullError(
                f"mailbox {self.name!r} holds {count} of {max_size} messages; let its workers "
                f"catch up, or raise max_size"
            )

    def _count(self, tx: Transaction, queue: int, limit: int) -> int:
        [(count,)] = tx.rows(self._sql["count_messages"], {"queue": queue, "limit": limit + 1})
        return int(count)

    def _stats(self, tx: Transaction, queue: int) -> MailboxStats:
        for ready, delayed, leased, dead, age, paused, expired in tx.rows(
            self._sql["stats"], {"queue": queue}
        ):
            return MailboxStats(
                ready,
                delayed,
                leased,
                dead,
                None if age is None else max(float(age), 0.0),
                bool(paused),
                expired,
            )
        raise StoreResetError(
            f"mailbox {self.name!r} is gone, its store was restored or emptied meanwhile; ask again"
        )

    def _has_claimable(self, tx: Transaction, queue: int) -> bool:
        due = self._claims.next_due(tx, queue=queue)
        return bool(tx.rows(self._sql["has_ready"], {"queue": queue})) or (
            due is not None and due <= 0
        )

    def _needs_sweep(self, tx: Transaction, queue: int) -> bool:
        """Whether a sweep would change anything."""
        due = self._claims.next_due(tx, queue=queue)
        return (
            self._dead_letters.has_stale(tx, queue)
            or (due is not None and due <= 0)
            or self._sweep.has_lapsed(tx)
        )

    def _notify(self, tx: Transaction, queues: Collection[int]) -> None:
        """Notify the mailboxes of these queues; a sweep frees rows of other mailboxes, too."""
        for queue in set(queues):
            for (name,) in tx.rows(self._sql["mailbox_name"], {"queue": queue}):
                tx.notify(name)

    # --- helpers ---

    def _queue(self) -> int:
        """The queue number of this mailbox, looked up once a process and again when the store may
        be another one.
        """
        key = self._queue_key()
        queue = self._queues.get(key)
        if queue is None:
            found = self.database.read(
                lambda tx: tx.rows(self._sql["find_queue"], {"name": self.name})
            )
            queue = int(found[0][0]) if found else self.database.write(self._queue_in)
            self._queues = {key: queue}
        return queue

    def _retry_if_vanished(self, call: Callable[[int], T]) -> T:
        """Call with the queue number; if the mailbox is gone, because the store was restored or
        emptied, call again with its new number.
        """
        try:
            return call(self._queue())
        except StoreResetError:
            self._queues = {}
            return call(self._queue())

    def _queue_in(self, tx: Transaction) -> int:
        """Find it first: an insert locks the row until the transaction ends."""
        name = {"name": self.name}
        [(queue,)] = tx.rows(self._sql["find_queue"], name) or tx.rows(self._sql["queue"], name)
        return int(queue)

    def _queue_key(self) -> tuple[int, int]:
        return os.getpid(), self.database.generation

    def _in_transaction(self, tx: Any, work: Callable[[Transaction], T]) -> T:
        return self.database.write(work) if tx is None else work(self.database.join(tx))

    def _execute(self, query: str, **parameters: object) -> int:
        queue = self._queue()
        return self.database.write(
            lambda tx: tx.execute(self._sql[query], {"queue": queue, **parameters})
        )


def list_mailbox_names(database: Database) -> list[str]:
    """Every mailbox of a store, by name; a read."""
    names = load_queries("longwatch.mailbox", "queries", database.dialect)["mailbox_names"]
    return [name for (name,) in database.read(lambda tx: tx.rows(names))]


def _without_claim(settlement: Settlement) -> Settlement:
    """How a settlement ends, without the claim that it is about."""
    return (
        _DONE_SETTLEMENT
        if settlement.outcome is RowOutcome.DONE
        else settlement._replace(claim=_NO_CLAIM)
    )


def _put_parameters(queue: int, message: NewMessage) -> dict[str, object]:
    return {
        "queue": queue,
        "delay": message.delay,
        "id": message.id,
        "expires_in": message.expires_in,
        "keep_expired": int(message.keep_expired),
        "dedupe_key": message.dedupe_key,
        "reply_to": message.reply_to,
        "body": message.body,
    }
