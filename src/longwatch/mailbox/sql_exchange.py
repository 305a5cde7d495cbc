"""Claims and settles messages of one mailbox in a SQL store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from longwatch.engine.claim_source import (
    BLAME_BY_OUTCOME,
    ClaimedRow,
    GivenUp,
    RowOutcome,
    Settlement,
)
from longwatch.mailbox.limits import give_up_reason
from longwatch.mailbox.records import MessageRecord
from longwatch.mailbox.sql_dead_letters import SqlDeadLetters
from longwatch.mailbox.sql_queue import SqlQueue
from longwatch.store.claims import Claim, Claims, RowSelection
from longwatch.store.database import Transaction

# Whether a message has expired, one of the facts that `limits.give_up_reason` checks.
_IS_EXPIRED = "CASE WHEN expires_at <= :wall_now THEN 1 ELSE 0 END"
CLAIMED_COLUMNS = (*MessageRecord._fields, _IS_EXPIRED, "keep_expired")
_GIVE_UP_BATCH = 2000
_NO_CLAIM = Claim(0, 0, 0)
_DONE_SETTLEMENT = Settlement(_NO_CLAIM, RowOutcome.DONE)
_COUNTED_OUTCOMES = frozenset({RowOutcome.FAILED, RowOutcome.CRASHED})


class SettledMessages(NamedTuple):
    """The result of settlements: for each whether its claim still matched, the messages that were
    dead-lettered because they spent a budget, and whether any message was released.
    """

    settled: list[bool]
    given_up: list[GivenUp]
    has_released: bool


class SqlExchange:
    """Claims and settles messages. Every method runs in a transaction that the caller opened.

    `claims` returns rows of `CLAIMED_COLUMNS`.
    """

    def __init__(self, name: str, claims: Claims, dead_letters: SqlDeadLetters) -> None:
        self._name = name
        self.claims = claims
        self._dead_letters = dead_letters

    def claim(  # noqa: PLR0913 - which rows, for which owner, for how long
        self,
        tx: Transaction,
        queue: SqlQueue,
        *,
        owner: int,
        lease_seconds: float,
        limit: int,
        selection: RowSelection,
    ) -> tuple[list[ClaimedRow], list[GivenUp]]:
        """Lease messages, and give up those that have expired or spent a budget.

        One transaction gives up a bounded number, because other writers wait meanwhile. At that
        bound it notifies the receivers to claim again.
        """
        claimed: list[ClaimedRow] = []
        given_up: list[GivenUp] = []
        gone = 0
        while gone < _GIVE_UP_BATCH:
            rows = self.claims.claim(
                tx,
                queue=queue.number,
                owner=owner,
                lease_seconds=lease_seconds,
                limit=limit,
                selection=selection,
                budget=queue.budget,
            )
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
        tx.notify(self._name)
        return [], given_up

    def settle(self, tx: Transaction, settlements: Sequence[Settlement]) -> SettledMessages:
        """Settle messages of any mailbox in order. Consecutive settlements with the same outcome
        take one statement. Messages that spent a budget are dead-lettered. The caller notifies the
        receivers of released messages.
        """
        settled: list[bool] = []
        has_released = False
        for template, group in groupby(settlements, _without_claim):
            settled += self._settle_group(tx, template, [settlement.claim for settlement in group])
            has_released = has_released or template.outcome in BLAME_BY_OUTCOME
        counted = [
            settlement.claim.seq
            for settlement, is_settled in zip(settlements, settled, strict=True)
            if is_settled and settlement.outcome in _COUNTED_OUTCOMES
        ]
        return SettledMessages(settled, self._dead_letters.give_up_spent(tx, counted), has_released)

    def _settle_group(
        self, tx: Transaction, template: Settlement, claims: list[Claim]
    ) -> list[bool]:
        match template.outcome:
            case RowOutcome.DONE:
                return self.claims.settle(tx, claims)
            case RowOutcome.DEAD:
                return [
                    self._dead_letters.dead_letter(tx, template._replace(claim=claim))
                    for claim in claims
                ]
            case outcome:
                return self.claims.release(
                    tx,
                    claims,
                    blame=BLAME_BY_OUTCOME[outcome],
                    delay=template.delay,
                    error=template.error,
                    traceback=template.traceback,
                )


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
    """Return the settlement without its claim, to compare outcomes."""
    return (
        _DONE_SETTLEMENT
        if settlement.outcome is RowOutcome.DONE
        else settlement._replace(claim=_NO_CLAIM)
    )
