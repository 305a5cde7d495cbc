"""Sweeps all given mailboxes of a SQL store with one search and at most one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from longwatch.engine.claim_source import GivenUp, ignore_given_up
from longwatch.mailbox.sql_dead_letters import SqlDeadLetters
from longwatch.store.blame import Blame
from longwatch.store.claims import Claims
from longwatch.store.database import Database, Transaction
from longwatch.store.sweep import ClaimSweeper, LeaseOwner, SweepPlan

GivenUpHook = Callable[[Transaction, Sequence[GivenUp]], None]
"""A function that is called in the transaction that gives messages up. It does nothing but SQL."""


def ignore_given_up_in(_: Transaction, __: Sequence[GivenUp]) -> None:
    """Do nothing: the hook of callers that write nothing about dead letters."""


class SweptMailbox(NamedTuple):
    """A mailbox to sweep. `retention`: seconds after which its dead letters are deleted; None: this
    sweep deletes none.
    """

    queue: int
    dead_letters: SqlDeadLetters
    retention: float | None


class _Swept(NamedTuple):
    """The changes of one sweep transaction."""

    rows: int
    given_up: list[GivenUp]
    deleted: list[LeaseOwner]


class SqlSweeper:
    """Reclaims messages of all mailboxes of a store, and in the given mailboxes frees due messages,
    gives up expired ones and deletes old dead letters.
    """

    def __init__(
        self,
        database: Database,
        queries: Mapping[str, str],
        claims: Claims,
        claim_sweeper: ClaimSweeper,
    ) -> None:
        self._database = database
        self._sql = queries
        self._claims = claims
        self._claim_sweeper = claim_sweeper

    def sweep(
        self,
        mailboxes: Iterable[SweptMailbox],
        on_given_up: Callable[[GivenUp], None] = ignore_given_up,
        *,
        hook: GivenUpHook = ignore_given_up_in,
    ) -> int:
        """Release messages of dead owners and ended leases, free due messages, give up expired and
        spent ones, and delete old dead letters. Return how many messages changed.

        Reads first, and writes only if there is something to change. `on_given_up` is called after
        the commit.
        """
        given = list(mailboxes)
        plan = self._claim_sweeper.look(self._database)
        stale = self._database.read(lambda tx: self.find_stale(tx, given))
        return self.change(plan, stale, given[0].dead_letters, on_given_up, hook=hook)

    def change(
        self,
        plan: SweepPlan,
        stale: Sequence[SweptMailbox],
        dead_letters: SqlDeadLetters,
        on_given_up: Callable[[GivenUp], None] = ignore_given_up,
        *,
        hook: GivenUpHook = ignore_given_up_in,
    ) -> int:
        """Make the changes of a sweep whose search is done. `dead_letters` of any mailbox gives up
        messages of all mailboxes.
        """
        if not stale and not any(plan):
            return 0
        swept = self._database.write(lambda tx: self._write(tx, plan, stale, dead_letters, hook))
        self._claim_sweeper.remove_pages(swept.deleted)
        for each in swept.given_up:
            on_given_up(each)
        return swept.rows

    def find_stale(self, tx: Transaction, mailboxes: Iterable[SweptMailbox]) -> list[SweptMailbox]:
        """Return the mailboxes with due or expired messages or old dead letters, in the order of
        their queues.
        """
        by_queue = {mailbox.queue: mailbox for mailbox in mailboxes}
        parameters = {
            "queues": self._claims.array_parameter(by_queue),
            "retentions": self._claims.array_parameter(
                each.retention for each in by_queue.values()
            ),
        }
        rows = tx.rows(self._sql["stale_queues"], parameters)
        return [by_queue[queue] for queue in sorted(queue for (queue,) in rows)]

    def _write(
        self,
        tx: Transaction,
        plan: SweepPlan,
        stale: Sequence[SweptMailbox],
        dead_letters: SqlDeadLetters,
        hook: GivenUpHook,
    ) -> _Swept:
        rows, deleted = self._claim_sweeper.reclaim(tx, plan)
        blamed = [row.claim.seq for row in rows if row.blame is not Blame.RELEASE]
        given_up = dead_letters.give_up_spent(tx, blamed)
        freed = [row.queue for row in rows]
        for mailbox in stale:
            expired = mailbox.dead_letters.expire(tx, mailbox.queue)
            given_up += expired.given_up
            promoted = self._claims.promote_due(tx, queue=mailbox.queue)
            freed += [mailbox.queue] * (promoted + expired.total)
            if mailbox.retention is not None:
                mailbox.dead_letters.delete_old(tx, mailbox.queue, retention=mailbox.retention)
        self._notify(tx, freed)
        if given_up:
            hook(tx, given_up)
        return _Swept(len(freed), given_up, deleted)

    def _notify(self, tx: Transaction, queues: Collection[int]) -> None:
        """Notify the mailboxes of these queues. A sweep also frees rows of other mailboxes."""
        for queue in set(queues):
            for (name,) in tx.rows(self._sql["mailbox_name"], {"queue": queue}):
                tx.notify(name)
