"""The dead letters of one mailbox in a SQL store, and the messages that become dead letters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from longwatch.engine.claim_source import GivenUp, Settlement
from longwatch.mailbox.headers import decode_headers
from longwatch.mailbox.limits import (
    COUNTED_AS_FAILURE,
    EXPIRED,
    MailboxLimits,
    give_up_reason,
    is_kept,
)
from longwatch.mailbox.records import DeadLetter
from longwatch.store.claims import Claim, Claims
from longwatch.store.database import Row, Transaction

_EXPIRE_BATCH = 500


class Expired(NamedTuple):
    """How many messages have expired, and those of them that are kept as dead letters."""

    total: int
    given_up: list[GivenUp]


class SqlDeadLetters:
    """Gives messages up, and lists, replays and drops dead letters.

    Every method runs in a transaction that the caller opened.
    """

    def __init__(self, name: str, queries: Mapping[str, str], claims: Claims) -> None:
        self._name = name
        self._sql = queries
        self._claims = claims

    def give_up(
        self, tx: Transaction, claim: Claim, message_id: str, reason: str, *, keep_expired: bool
    ) -> list[GivenUp]:
        """Give a claimed message up before it is run. Return the dead letter, if it is kept. The
        claim does not count as a delivery.
        """
        kept = is_kept(reason, keep_expired=keep_expired)
        if kept:
            self._insert(tx, claim, reason, undelivered=1)
        if reason == EXPIRED:
            tx.execute(self._sql["count_expired"], {"name": self._name, "count": 1})
        self._claims.settle(tx, [claim])
        return [GivenUp(message_id, self._name, reason)] if kept else []

    def give_up_spent(self, tx: Transaction, seqs: Collection[int]) -> list[GivenUp]:
        """Dead-letter those of the released messages that have spent a budget of their mailbox."""
        if not seqs:
            return []
        parameters = {"seqs": self._claims.array_parameter(seqs)}
        spent = [
            (seq, GivenUp(message_id, mailbox, reason))
            for seq, mailbox, message_id, *counts in tx.rows(self._sql["find_counters"], parameters)
            if (reason := _spent_reason(counts)) is not None
        ]
        self._move(tx, [(seq, given_up.reason) for seq, given_up in spent])
        return [given_up for _, given_up in spent]

    def dead_letter(self, tx: Transaction, settlement: Settlement) -> bool:
        """Dead-letter a message that its worker gave up. Return False if the claim no longer
        matches.
        """
        claim, reason = settlement.claim, settlement.reason
        self._insert(
            tx,
            claim,
            reason,
            error=settlement.error,
            traceback=settlement.traceback,
            failures=int(reason in COUNTED_AS_FAILURE),
        )
        return self._claims.settle(tx, [claim])[0]

    def expire(self, tx: Transaction, queue: int) -> Expired:
        """Give up messages that expired before a claim."""
        find_expired = self._sql.get("lock_expired", self._sql["find_expired"])
        return self._expire_rows(
            tx, tx.rows(find_expired, {"queue": queue, "limit": _EXPIRE_BATCH})
        )

    def expire_by_key(self, tx: Transaction, queue: int, key: str) -> None:
        """Give up the message that has this dedupe key, if it has expired."""
        self._expire_rows(
            tx, tx.rows(self._sql["find_expired_by_key"], {"queue": queue, "dedupe_key": key})
        )

    def delete_old(self, tx: Transaction, queue: int, *, retention: float) -> None:
        """Delete the dead letters that are older than the retention."""
        tx.execute(self._sql["delete_old_dead_letters"], {"queue": queue, "retention": retention})

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

    def _insert(  # noqa: PLR0913 - a message and the details of its end
        self,
        tx: Transaction,
        claim: Claim,
        reason: str,
        *,
        error: str | None = None,
        traceback: str | None = None,
        undelivered: int = 0,
        failures: int = 0,
    ) -> None:
        facts = {
            "reason": reason,
            "error": error,
            "traceback": traceback,
            "undelivered": undelivered,
            "failures": failures,
        }
        tx.execute(self._sql["insert_dead_letter"], {**claim._asdict(), **facts})

    def _expire_rows(self, tx: Transaction, rows: Sequence[Row]) -> Expired:
        kept = [
            (seq, message_id)
            for seq, keep, message_id in rows
            if is_kept(EXPIRED, keep_expired=bool(keep))
        ]
        if rows:
            self._move(tx, [(seq, EXPIRED) for seq, _ in kept])
            gone = {row[0] for row in rows} - {seq for seq, _ in kept}
            self._delete(tx, sorted(gone))
            tx.execute(self._sql["count_expired"], {"name": self._name, "count": len(rows)})
        given_up = [GivenUp(message_id, self._name, EXPIRED) for _, message_id in kept]
        return Expired(len(rows), given_up)

    def _move(self, tx: Transaction, reasons: Sequence[tuple[int, str]]) -> None:
        """Move messages that are not leased to the dead letters, each with its reason."""
        if reasons:
            letters = [{"seq": seq, "reason": reason} for seq, reason in reasons]
            tx.execute_many(self._sql["insert_dead_letters"], letters)
            self._delete(tx, [seq for seq, _ in reasons])

    def _delete(self, tx: Transaction, seqs: Sequence[int]) -> None:
        if seqs:
            tx.execute_many(self._sql["delete_messages"], [{"seq": seq} for seq in seqs])

    def _to_dead_letter(self, row: Row) -> DeadLetter:
        *facts, headers = row[1:]
        return DeadLetter._make((row[0], self._name, *facts, decode_headers(headers)))


def _spent_reason(counts: Sequence[int | None]) -> str | None:
    """Return why a message is given up, by its counters and the stored budgets of its mailbox."""
    failures, crashes, lost, *stored = counts
    return give_up_reason(
        MailboxLimits().with_stored(stored),
        crashes=crashes or 0,
        failures=failures or 0,
        lost=lost or 0,
        is_expired=False,
    )
