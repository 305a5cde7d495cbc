"""A mailbox in a SQL store: one queue of the table of messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
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
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import mailbox_locator
from longwatch.mailbox.limits import MailboxLimits, give_up_reason
from longwatch.mailbox.records import DeadLetter, MailboxStats, MessageRecord, NewMessage
from longwatch.mailbox.sql_dead_letters import SqlDeadLetters
from longwatch.mailbox.sql_queue import SqlQueue, SqlQueueFinder
from longwatch.mailbox.sql_sender import SqlSender
from longwatch.store.blame import Blame
from longwatch.store.claims import Claim, Claims, RowSelection
from longwatch.store.database import Database, Row, StoreResetError, Transaction
from longwatch.store.named_sql import load_queries
from longwatch.store.sweep import ClaimSweeper, LeaseOwner

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
        self._sql = load_queries("longwatch.mailbox", "queries", database.dialect)
        columns = (*MessageRecord._fields, _IS_EXPIRED, "keep_expired")
        self._claims = Claims(
            dialect=database.dialect,
            table="longwatch_messages",
            columns=columns,
            claim_condition=_IS_NOT_PAUSED,
            owners=database.owners,
        )
        self._dead_letters = SqlDeadLetters(
            name, self._sql, self._claims, retention=self.limits.dead_retention
        )
        self._sender = SqlSender(name, self._sql, self._dead_letters, max_size=self.limits.max_size)
        self._sweep = ClaimSweeper(self._claims, is_shared=database.is_shared)
        self._finder = SqlQueueFinder(database, name, self._sql, self.limits)

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
        queue = self._finder.find()
        if (
            not settlements
            and self.database.has_single_writer
            and not self.database.read(lambda tx: self._has_claimable(tx, queue, selection))
        ):
            return ExchangeResult([], [])
        claim_rows = partial(
            self._claims.claim,
            queue=queue.number,
            owner=owner,
            lease_seconds=lease_seconds,
            limit=limit,
            selection=selection,
            budget=queue.budget,
        )

        def work(tx: Transaction) -> ExchangeResult:
            settled, spent = self._settle(tx, settlements)
            claimed, given_up = self._claim(tx, queue, claim_rows) if limit else ([], [])
            return ExchangeResult(settled, claimed, given_up=spent + given_up)

        return self.database.write(work)

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        return self.database.write(
            lambda tx: self._claims.renew(tx, owner=owner, lease_seconds=lease_seconds, skip=skip)
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
        """Read and look first; write only if something is to be changed."""
        queue = self._queue()
        plan = self._sweep.look(self.database)
        if not any(plan) and not self.database.read(lambda tx: self._needs_sweep(tx, queue)):
            return 0

        def work(tx: Transaction) -> tuple[int, list[GivenUp], list[LeaseOwner]]:
            rows, deleted = self._sweep.reclaim(tx, plan)
            blamed = [row.claim.seq for row in rows if row.blame is not Blame.RELEASE]
            given_up = self._dead_letters.give_up_spent(tx, blamed)
            expired = self._dead_letters.expire(tx, queue)
            promoted = self._claims.promote_due(tx, queue=queue) + expired.total
            self._dead_letters.delete_old(tx, queue)
            freed = [row.queue for row in rows] + [queue] * promoted
            self._notify(tx, freed)
            return len(freed), given_up + expired.given_up, deleted

        count, given_up, deleted = self.database.write(work)
        self._sweep.remove_pages(deleted)
        for each in given_up:
            on_given_up(each)
        return count

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
        return self._finder.retry_if_vanished(
            lambda queue: self.database.write(lambda tx: self._sender.put(tx, queue, messages))
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

    def _claim(
        self, tx: Transaction, queue: SqlQueue, claim_rows: Callable[[Transaction], list[Row]]
    ) -> tuple[list[ClaimedRow], list[GivenUp]]:
        """Lease messages, and give up those that have spent their limits.

        One transaction gives up a bounded number, because other writers wait meanwhile; then it
        notifies the receivers to claim again.
        """
        claimed: list[ClaimedRow] = []
        given_up: list[GivenUp] = []
        gone = 0
        while gone < _GIVE_UP_BATCH:
            rows = claim_rows(tx)
            for row in rows:
                claim, message = Claim._make(row[:3]), MessageRecord._make(row[3:-2])
                is_expired, keep_expired = row[-2:]
                reason = None
                if message.failures or message.crashes or message.lost or is_expired:
                    reason = _give_up_reason(queue, message, is_expired=bool(is_expired))
                if reason is None:
                    claimed.append(_claimed_row(queue, claim, message))
                    continue
                given_up += self._dead_letters.give_up(
                    tx, claim, message.id, reason, keep_expired=bool(keep_expired)
                )
            if claimed or not rows:
                return claimed, given_up
            expired = self._dead_letters.expire(tx, queue.number)
            given_up += expired.given_up
            gone += len(rows) + expired.total
        tx.notify(self.name)
        return [], given_up

    def _settle(
        self, tx: Transaction, settlements: Sequence[Settlement]
    ) -> tuple[list[bool], list[GivenUp]]:
        """Settle in order; neighbours with the same end in one statement. Messages that failed for
        the last time are dead-lettered.
        """
        settled: list[bool] = []
        for template, group in groupby(settlements, _without_claim):
            settled += self._settle_group(tx, template, [settlement.claim for settlement in group])
        failed = [
            settlement.claim.seq
            for settlement, is_settled in zip(settlements, settled, strict=True)
            if is_settled and settlement.outcome is RowOutcome.FAILED
        ]
        return settled, self._dead_letters.give_up_spent(tx, failed)

    def _settle_group(
        self, tx: Transaction, template: Settlement, claims: list[Claim]
    ) -> list[bool]:
        match template.outcome:
            case RowOutcome.DONE:
                return self._claims.settle(tx, claims)
            case RowOutcome.DEAD:
                return [
                    self._dead_letters.dead_letter(tx, template._replace(claim=claim))
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
                    traceback=template.traceback,
                )

    def _put_in_transaction(self, tx: Transaction, messages: Sequence[NewMessage]) -> list[str]:
        try:
            return self._sender.put(tx, self._finder.number_in(tx), messages)
        except StoreResetError:
            self._finder.forget()
            raise

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

    def _has_claimable(self, tx: Transaction, queue: SqlQueue, selection: RowSelection) -> bool:
        """Whether a claim of this selection would write. A row that is due is freed by it, of
        whatever selection it is.
        """
        due = self._claims.next_due(tx, queue=queue.number)
        return (due is not None and due <= 0) or self._claims.has_selected(
            tx, queue=queue.number, selection=selection, budget=queue.budget
        )

    def _needs_sweep(self, tx: Transaction, queue: int) -> bool:
        """Whether a sweep that has nothing to reclaim would change anything."""
        due = self._claims.next_due(tx, queue=queue)
        return self._dead_letters.has_stale(tx, queue) or (due is not None and due <= 0)

    def _notify(self, tx: Transaction, queues: Collection[int]) -> None:
        """Notify the mailboxes of these queues; a sweep frees rows of other mailboxes, too."""
        for queue in set(queues):
            for (name,) in tx.rows(self._sql["mailbox_name"], {"queue": queue}):
                tx.notify(name)

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
    """Every mailbox of a store, by name; a read."""
    names = load_queries("longwatch.mailbox", "queries", database.dialect)["mailbox_names"]
    return [name for (name,) in database.read(lambda tx: tx.rows(names))]


def _give_up_reason(queue: SqlQueue, message: MessageRecord, *, is_expired: bool) -> str | None:
    return give_up_reason(
        queue.limits,
        crashes=message.crashes,
        failures=message.failures,
        lost=message.lost,
        is_expired=is_expired,
    )


def _claimed_row(queue: SqlQueue, claim: Claim, message: MessageRecord) -> ClaimedRow:
    is_exclusive = bool(message.crashes or message.lost) and queue.budget.is_suspect(
        crashes=message.crashes, lost=message.lost
    )
    failures_left = queue.max_failures - message.failures
    return ClaimedRow(claim, message, is_exclusive, failures_left=failures_left)


def _without_claim(settlement: Settlement) -> Settlement:
    """How a settlement ends, without the claim that it is about."""
    return (
        _DONE_SETTLEMENT
        if settlement.outcome is RowOutcome.DONE
        else settlement._replace(claim=_NO_CLAIM)
    )
