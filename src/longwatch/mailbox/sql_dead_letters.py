"""The dead letters of one mailbox in a SQL store, and the messages that become some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longwatch.mailbox.limits import EXPIRED, MailboxLimits, give_up_reason, is_kept
from longwatch.mailbox.records import DeadLetter, MessageRecord
from longwatch.store.claims import Claim, Claims
from longwatch.store.database import Row, Transaction

_EXPIRE_BATCH = 500


class SqlDeadLetters:
    """Gives messages up, and lists, replays and drops dead letters.

    Every method runs in a transaction that the caller opened.
    """

    def __init__(
        self, name: str, queries: Mapping[str, str], claims: Claims, limits: MailboxLimits
    ) -> None:
        self._name = name
        self._sql = queries
        self._claims = claims
        self._limits = limits

    def give_up_if_spent(
        self, tx: Transaction, claim: Claim, message: MessageRecord, expiry: Sequence[int]
    ) -> bool:
        """Give a claimed message up by the rule of `limits`; whether it was. Its claim does not
        count as a delivery. `expiry`: whether it has expired, and whether it is kept then.
        """
        is_expired, keep_expired = expiry
        reason = give_up_reason(
            self._limits,
            crashes=message.crashes,
            failures=message.failures,
            is_expired=bool(is_expired),
        )
        if reason is None:
            return False
        if is_kept(reason, keep_expired=bool(keep_expired)):
            self._insert(tx, claim, reason, undelivered=1)
        if reason == EXPIRED:
            tx.execute(self._sql["count_expired"], {"name": self._name, "count": 1})
        self._claims.settle(tx, [claim])
        return True

    def dead_letter(self, tx: Transaction, claim: Claim, reason: str, error: str | None) -> bool:
        """Dead-letter a message that its worker gave up; False if the claim no longer matches."""
        self._insert(tx, claim, reason, error=error)
        return self._claims.settle(tx, [claim])[0]

    def expire(self, tx: Transaction, queue: int) -> int:
        """Give up messages that expired before a claim; how many."""
        find_expired = self._sql.get("lock_expired", self._sql["find_expired"])
        return self._expire_rows(
            tx, tx.rows(find_expired, {"queue": queue, "limit": _EXPIRE_BATCH})
        )

    def expire_by_key(self, tx: Transaction, queue: int, key: str) -> None:
        """Give up the message that has this dedupe key, if it has expired."""
        self._expire_rows(
            tx, tx.rows(self._sql["find_expired_by_key"], {"queue": queue, "dedupe_key": key})
        )

    def has_stale(self, tx: Transaction, queue: int) -> bool:
        """Whether a message has expired, or a dead letter is older than the retention; a read."""
        if tx.rows(self._sql["find_expired"], {"queue": queue, "limit": 1}):
            return True
        retention = self._limits.dead_retention
        return retention is not None and bool(
            tx.rows(self._sql["has_old_dead_letters"], {"queue": queue, "retention": retention})
        )

    def delete_old(self, tx: Transaction, queue: int) -> None:
        """Delete the dead letters that are older than the retention."""
        retention = self._limits.dead_retention
        if retention is not None:
            tx.execute(
                self._sql["delete_old_dead_letters"], {"queue": queue, "retention": retention}
            )

    def page(self, tx: Transaction, queue: int, *, after: int, limit: int) -> list[DeadLetter]:
        parameters = {"queue": queue, "after": after, "limit": limit}
        return [
            self._to_dead_letter(row) for row in tx.rows(self._sql["list_dead_letters"], parameters)
        ]

    def find(self, tx: Transaction, queue: int, message_id: str) -> DeadLetter | None:
        rows = tx.rows(self._sql["find_dead_letter"], {"queue": queue, "id": message_id})
        return self._to_dead_letter(rows[0]) if rows else None

    def replay(self, tx: Transaction, queue: int, message_id: str) -> bool:
        parameters = {"queue": queue, "id": message_id}
        is_replayed = tx.execute(self._sql["replay_dead_letter"], parameters) == 1
        return is_replayed and self.drop(tx, queue, message_id)

    def drop(self, tx: Transaction, queue: int, message_id: str) -> bool:
        parameters = {"queue": queue, "id": message_id}
        return tx.execute(self._sql["drop_dead_letter"], parameters) == 1

    def _insert(
        self,
        tx: Transaction,
        claim: Claim,
        reason: str,
        *,
        error: str | None = None,
        undelivered: int = 0,
    ) -> None:
        facts = {"reason": reason, "error": error, "undelivered": undelivered}
        tx.execute(self._sql["insert_dead_letter"], {**claim._asdict(), **facts})

    def _expire_rows(self, tx: Transaction, rows: Sequence[Row]) -> int:
        if kept := [{"seq": seq} for seq, keep in rows if is_kept(EXPIRED, keep_expired=keep)]:
            tx.execute_many(self._sql["insert_expired_dead_letters"], kept)
        if rows:
            tx.execute_many(self._sql["delete_messages"], [{"seq": seq} for seq, _ in rows])
            tx.execute(self._sql["count_expired"], {"name": self._name, "count": len(rows)})
        return len(rows)

    def _to_dead_letter(self, row: Row) -> DeadLetter:
        return DeadLetter(row[0], self._name, *row[1:])
