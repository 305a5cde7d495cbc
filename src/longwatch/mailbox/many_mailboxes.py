"""Several mailboxes of one SQL store as one claim source: fair, and with a cap for each mailbox.

An exchange settles messages and claims the next ones in one transaction. The engine's `FairClaims`
chooses the mailboxes in turn, and shares a claim of several messages evenly between them. Inside a
mailbox the oldest message comes first. At most `max_running` messages of a mailbox are leased at
the same time, counted over all processes that claim through this class.

An idle poll costs one read statement for the exchange and one for `next_due`, however many
mailboxes there are. A sweep costs one read of the owners and one read statement.

Hooks write the caller's own data about the same messages in the same transaction:
    on_settle     after messages were settled: each settlement and whether its claim still matched
    on_given_up   after the store dead-lettered messages: by their last failure, when they were
                  claimed, or in a sweep. A sweep reclaims rows of the whole store, so it may be
                  called with messages of other mailboxes.
A hook does nothing but SQL, because a transaction may be run again. If it raises, the transaction
is rolled back.

A settled message makes room below the cap, so its mailbox is notified: another process may claim
the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple, Self

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.engine.claim_source import (
    ClaimedRow,
    EngineSweeper,
    EverySweep,
    ExchangeResult,
    GivenUp,
    Settlement,
    ignore_given_up,
)
from longwatch.engine.fair_claims import Cap, FairClaims
from longwatch.errors import UsageError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.records import MessageRecord
from longwatch.mailbox.sql import SqlBackend
from longwatch.mailbox.sql_queue import SqlQueue
from longwatch.mailbox.sql_sweeper import GivenUpHook, ignore_given_up_in
from longwatch.mailbox.validation import validate_positive_int
from longwatch.store.blame import DEFAULT_BUDGET
from longwatch.store.claims import SELECTED_SQL, Claim, Claims, RowSelection
from longwatch.store.database import Transaction
from longwatch.store.named_sql import load_queries

_RETENTION_INTERVAL = 60.0
"""Seconds between two searches for old dead letters, which cost more than the rest of a sweep."""
_AMONG = {
    "sqlite": "IN (SELECT value FROM json_each(:{0}))",
    "postgresql": "= ANY (:{0}::int8[])",
}

SettleHook = Callable[[Transaction, Sequence[tuple[Settlement, bool]]], None]


class MailboxRecord(MessageRecord):
    """A claimed message that names its mailbox."""

    mailbox: str = ""

    @classmethod
    def of(cls, mailbox: str, record: MessageRecord) -> Self:
        made = cls._make(record)
        made.mailbox = mailbox
        return made


class _MailboxQueue(NamedTuple):
    """A mailbox in the form that `FairClaims` claims from."""

    number: int
    caps: tuple[Cap, ...]
    backend: SqlBackend
    queue: SqlQueue


class _Counts(NamedTuple):
    free: int
    due: int
    leased: int

    @property
    def waiting(self) -> int:
        return self.free + self.due


_NOTHING = _Counts(0, 0, 0)


class _Backlog:
    """The last counts of messages that can be claimed; implements `fair_claims.QueueCounts`."""

    def __init__(
        self, queries: Mapping[str, str], claims: Claims, *, limit: int, max_running: int
    ) -> None:
        self._sql = queries
        self._claims = claims
        self._parameters = {
            "limit": limit,
            "max_running": max_running,
            "max_crashes": DEFAULT_BUDGET.max_crashes,
            "max_lost": DEFAULT_BUDGET.max_lost,
        }
        self._counts: dict[int, _Counts] = {}

    def count(self, tx: Transaction, numbers: Iterable[int]) -> dict[int, _Counts]:
        """Count the messages of these mailboxes in one statement. Return the counts of those from
        which a claim is possible.
        """
        parameters = {**self._parameters, "queues": self._claims.array_parameter(numbers)}
        rows = tx.rows(self._sql["claimable"], parameters)
        self._counts = {queue: _Counts(*counts) for queue, *counts in rows}
        return self._counts

    def lock_queues(self, tx: Transaction, numbers: Sequence[int]) -> None:
        """Lock mailboxes, then count again, because rows may have been claimed meanwhile."""
        if (lock := self._sql.get("lock")) is not None:
            tx.rows(lock, {"queues": self._claims.array_parameter(numbers)})
        self.count(tx, numbers)

    def count_leased(self, _: Transaction, number: int) -> int:
        return self._counts.get(number, _NOTHING).leased

    def count_waiting(self, queue: _MailboxQueue) -> int:
        return self._counts.get(queue.number, _NOTHING).waiting


def _ignore_settlements(_: Transaction, __: Sequence[tuple[Settlement, bool]]) -> None:
    """Do nothing: the `on_settle` hook of callers that have none."""


def _admit_all(limit: int) -> int:
    return limit


class ManyMailboxes:
    """A claim source over several mailboxes of one database. Thread-safe.

    Implements `engine.ClaimSource`. Its items are `MailboxRecord` values.

    `max_running`: how many messages of each mailbox may be leased at the same time.
    `admit(limit)`: how many messages may be claimed now; called once for each exchange that claims.
    """

    def __init__(  # noqa: PLR0913 - mailboxes, their cap, and the caller's hooks
        self,
        backends: Sequence[SqlBackend],
        *,
        max_running: int,
        admit: Callable[[int], int] = _admit_all,
        on_settle: SettleHook = _ignore_settlements,
        on_given_up: GivenUpHook = ignore_given_up_in,
        clock: Clock | None = None,
    ) -> None:
        validate_positive_int("max_running", max_running)
        self._backends = _validated(backends)
        self._any = self._backends[0]
        """Runs the operations that concern the whole table of messages."""
        self.database = self._any.database
        self._claims = self._any.exchanges.claims
        self._max_running = max_running
        self._admit = admit
        self._on_settle = on_settle
        self._on_given_up = on_given_up
        self._clock = clock or SystemClock()
        self._fair_claims = FairClaims()
        self._check_retention_at = -inf
        self._sql = {each: _load(self.database.dialect, each) for each in RowSelection}

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
        return self._any.register_owner(
            incarnation, page=page, parent=parent, renew_seconds=renew_seconds
        )

    def report_draining(self, *, owner: int, is_draining: bool = True) -> None:
        self._any.report_draining(owner=owner, is_draining=is_draining)

    def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        owner: int,
        limit: int,
        lease_seconds: float,
        selection: RowSelection = RowSelection.ANY,
    ) -> ExchangeResult:
        limit = max(self._admit(limit), 0) if limit else 0
        limit = min(limit, 1) if selection is RowSelection.SUSPECTS else limit
        backlog = self._backlog(selection, limit)
        queues = self._queues()
        if not settlements:
            found = self.database.read(lambda tx: backlog.count(tx, queues)) if limit else {}
            queues = {number: queue for number, queue in queues.items() if number in found}
            if not queues:
                return ExchangeResult([], [])

        def claim(tx: Transaction) -> tuple[list[ClaimedRow], list[GivenUp]]:
            candidates = backlog.count(tx, queues) if settlements else queues
            return self._claim(
                tx,
                [queue for number, queue in queues.items() if number in candidates],
                backlog,
                limit=limit,
                owner=owner,
                lease_seconds=lease_seconds,
                selection=selection,
            )

        def work(tx: Transaction) -> ExchangeResult:
            settled, given_up = self._settle(tx, settlements)
            claimed, not_run = claim(tx) if limit else ([], [])
            given_up += not_run
            if given_up:
                self._on_given_up(tx, given_up)
            return ExchangeResult(settled, claimed, given_up=given_up)

        return self.database.write(work)

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        return self._any.renew(owner=owner, lease_seconds=lease_seconds, skip=skip)

    def renew_owners(self, owners: Sequence[int], *, lease_seconds: float) -> list[int]:
        return self._any.renew_owners(owners, lease_seconds=lease_seconds)

    def held(self, *, owner: int) -> list[Claim]:
        return self._any.held(owner=owner)

    def count_suspects(self, *, limit: int) -> int:
        """Count suspects, without those that the cap does not allow to claim now."""
        backlog, queues = self._backlog(RowSelection.SUSPECTS, limit), self._queues()
        counts = self.database.read(lambda tx: backlog.count(tx, queues)).values()
        return min(sum(min(each.free, self._max_running - each.leased) for each in counts), limit)

    def row_ids(self, seqs: Collection[int]) -> dict[int, str]:
        return self._any.row_ids(seqs)

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:
        now = self._clock.monotonic()
        checks_retention = now >= self._check_retention_at
        if checks_retention:
            self._check_retention_at = now + _RETENTION_INTERVAL
        swept = [
            each.swept(each.limits.dead_retention if checks_retention else None)
            for each in self._backends
        ]
        return self._any.sweeper.sweep(swept, on_given_up, hook=self._on_given_up)

    def sweeper_for(self, incarnation: Incarnation, *, selection: RowSelection) -> EngineSweeper:
        if not self.is_shared:
            return EverySweep(self.sweep)
        return self._any.turn_sweeper(
            self._backends, incarnation, selection=selection, hook=self._on_given_up
        )

    def next_due(self) -> float | None:
        query = self._sql[RowSelection.ANY]["next_due"]
        parameters = {"queues": self._claims.array_parameter(self._queues())}
        [(wait,)] = self.database.read(lambda tx: tx.rows(query, parameters))
        return None if wait is None else max(float(wait), 0.0)

    def locator(self) -> dict[str, str] | None:
        """Return the locator of one of the mailboxes: a parent that renews the leases of an owner
        renews them in all mailboxes.
        """
        return self._any.locator()

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        return self.database.listen([each.name for each in self._backends], wakeup)

    # --- inside a transaction ---

    def _settle(
        self, tx: Transaction, settlements: Sequence[Settlement]
    ) -> tuple[list[bool], list[GivenUp]]:
        """Settle messages and notify their mailboxes, because a settlement makes room below the
        cap.
        """
        if not settlements:
            return [], []
        seqs = self._claims.array_parameter(each.claim.seq for each in settlements)
        query = self._sql[RowSelection.ANY]["names_of_messages"]
        for (name,) in tx.rows(query, {"seqs": seqs}):
            tx.notify(name)
        settled, given_up, _ = self._any.exchanges.settle(tx, settlements)
        self._on_settle(tx, list(zip(settlements, settled, strict=True)))
        return settled, given_up

    def _claim(  # noqa: PLR0913 - which rows, for which owner, for how long
        self,
        tx: Transaction,
        queues: Iterable[_MailboxQueue],
        backlog: _Backlog,
        *,
        limit: int,
        owner: int,
        lease_seconds: float,
        selection: RowSelection,
    ) -> tuple[list[ClaimedRow], list[GivenUp]]:
        """Claim from these mailboxes in turn, up to the first suspect."""
        given_up: list[GivenUp] = []
        has_suspect = False

        def claim_from(queue: _MailboxQueue, room: int) -> list[ClaimedRow]:
            nonlocal has_suspect
            if has_suspect:
                return []
            rows, not_run = queue.backend.exchanges.claim(
                tx,
                queue.queue,
                owner=owner,
                lease_seconds=lease_seconds,
                limit=room,
                selection=selection,
            )
            given_up.extend(not_run)
            has_suspect = any(row.is_exclusive for row in rows)
            name = queue.backend.name
            return [row._replace(item=MailboxRecord.of(name, row.item)) for row in rows]

        claimed = self._fair_claims.claim(
            tx,
            self._fair_claims.in_turn(queues),
            counts=backlog,
            limit=limit,
            claim_from=claim_from,
            count_waiting=backlog.count_waiting,
        )
        return claimed, given_up

    # --- helpers ---

    def _queues(self) -> dict[int, _MailboxQueue]:
        """Return the mailboxes by their queue numbers."""
        found = ((backend, backend.queue()) for backend in self._backends)
        return {
            queue.number: _MailboxQueue(
                queue.number, (((queue.number,), self._max_running),), backend, queue
            )
            for backend, queue in found
        }

    def _backlog(self, selection: RowSelection, limit: int) -> _Backlog:
        return _Backlog(
            self._sql[selection], self._claims, limit=limit, max_running=self._max_running
        )


def _load(dialect: str, selection: RowSelection) -> dict[str, str]:
    """Load the queries of one selection. The budgets of each mailbox decide which rows are
    suspects.
    """
    selected = SELECTED_SQL[selection]
    for budget in ("max_crashes", "max_lost"):
        selected = selected.replace(f":{budget}", f"coalesce(mailbox.{budget}, :{budget})")
    return load_queries(
        "longwatch.mailbox",
        "many_mailboxes",
        dialect,
        selected=selected,
        among_queues=_AMONG[dialect].format("queues"),
        among_seqs=_AMONG[dialect].format("seqs"),
    )


def _validated(backends: Sequence[SqlBackend]) -> tuple[SqlBackend, ...]:
    if not backends:
        raise UsageError("expected at least one mailbox, got none; pass a SqlBackend for each")
    if any(each.database is not backends[0].database for each in backends):
        raise UsageError(
            "expected mailboxes of one database, got several databases; make all backends with "
            "the same Database"
        )
    names = [each.name for each in backends]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"expected each mailbox once, got {', '.join(twice)} twice; remove one")
    return tuple(backends)
