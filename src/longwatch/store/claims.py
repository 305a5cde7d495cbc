"""Claim, renew, settle and release leased rows, in any table that has the lease columns.

The docstring of the package describes states, invariants and failure cases. Every method runs in a
transaction that the caller opened, so that callers can combine them: settle one row and claim the
next, settle and send, dead-letter and settle.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum, auto
from typing import NamedTuple

import msgspec

from longwatch.host.incarnation import Incarnation
from longwatch.store.blame import DEFAULT_BUDGET, IS_SUSPECT_SQL, Blame, BlameBudget
from longwatch.store.database import OwnerRegistry, Parameters, Row, Transaction
from longwatch.store.named_sql import load_queries
from longwatch.store.scan_bound import DUE_MARGIN, Measurement, ScanBound, ScanBounds

NO_LIMIT = 2**62
"""A limit that no table reaches."""


class Claim(NamedTuple):
    """Proof of a lease on one row: every settle, release and renewal presents it."""

    seq: int
    owner: int
    term: int


class RowSelection(StrEnum):
    """Which free rows a claim takes."""

    ANY = auto()  # ordinary rows, or one suspect alone
    ORDINARY = auto()  # no suspects: a separate process runs them
    SUSPECTS = auto()  # one suspect


SELECTED_SQL = {
    RowSelection.ANY: "1 = 1",
    RowSelection.ORDINARY: f"NOT {IS_SUSPECT_SQL}",
    RowSelection.SUSPECTS: f"crashes + lost > 0 AND {IS_SUSPECT_SQL}",
}
"""The SQL condition on free rows for each selection. The budgets are parameters."""


class LeaseSql(NamedTuple):
    """The SQL that keeps a lease in the columns of a row: assignments for a claim (by column), a
    renewal and a release, and the condition that the lease has ended.
    """

    on_claim: Mapping[str, str]
    on_renew: str
    on_release: str
    lapsed: str

    def placeholders(self, dialect: str) -> dict[str, str]:
        """Return the values of the placeholders in queries.

        `leased_columns` and `leased_values` insert a row that is leased at once.
        """
        term = _NEXT_TERM[dialect]
        inserted = {
            "lease_state": "2",
            "owner": "owner",
            "deliveries": "1",
            "term": term,
            **self.on_claim,
        }
        return {
            **self._asdict(),
            "on_claim": ", ".join(f"{column} = {value}" for column, value in self.on_claim.items()),
            "next_term": term,
            "leased_columns": ", ".join(inserted),
            "leased_values": ", ".join(inserted.values()),
        }


_NEXT_TERM = {
    "sqlite": "max(term + 1, CAST(:wall_now * 1000000 AS INTEGER))",
    "postgresql": "greatest(term + 1, (:lease_now * 1000000)::int8)",
}
"""The store's time, or the last term plus one. After a restore of an older state a row and its
owner may get the same numbers again, but never the same term.
"""


_LEASE_UNTIL_SQL = {
    "sqlite": LeaseSql(
        on_claim={"lease_until": ":lease_now + :lease_seconds"},
        on_renew="lease_until = max(lease_until, :lease_now + :lease_seconds)",
        on_release="lease_until = NULL",
        lapsed="lease_until < :lease_now",
    ),
    "postgresql": LeaseSql(
        on_claim={"lease_until": ":lease_now + :lease_seconds::float8"},
        on_renew="lease_until = greatest(lease_until, :lease_now + :lease_seconds::float8)",
        on_release="lease_until = NULL",
        lapsed="lease_until < :lease_now",
    ),
}


class Claims:
    """Leases over one table. Keeps no state except the registry of owners and the bounds of scans.

    Rows are returned as seq, owner, term, then `columns`. `claim_condition` is an SQL condition on
    `:queue`: while it is false, no row of the queue is claimed. `lease_sql` defines how rows keep
    their leases, by default in `lease_until`. `scan_bounds` is used on PostgreSQL (`scan_bound`).
    """

    def __init__(  # noqa: PLR0913 - a table and its particulars
        self,
        *,
        dialect: str,
        table: str,
        columns: Sequence[str] = (),
        claim_condition: str = "1 = 1",
        owners: OwnerRegistry | None = None,
        lease_sql: LeaseSql | None = None,
        scan_bounds: ScanBounds | None = None,
    ) -> None:
        names = ", ".join(("seq", "owner", "term", *columns))
        placeholders = (lease_sql or _LEASE_UNTIL_SQL[dialect]).placeholders(dialect)
        self._sql_by_selection = {
            selection: load_queries(
                "longwatch.store",
                "claims",
                dialect,
                table=table,
                columns=names,
                claim_condition=claim_condition,
                selected=selected,
                is_suspect=IS_SUSPECT_SQL,
                **placeholders,
            )
            for selection, selected in SELECTED_SQL.items()
        }
        self.sql = self._sql_by_selection[RowSelection.ANY]
        self._owners = owners or OwnerRegistry()
        self._table = table
        self._scan_bounds = scan_bounds or ScanBounds()
        self._takes_arrays = dialect == "postgresql"

    def register_owner(
        self,
        transaction: Transaction,
        incarnation: Incarnation,
        *,
        page: str | None = None,
        parent: str | None = None,
        renew_seconds: float | None = None,
    ) -> int:
        """Register an owner and return its number in leases.

        `parent` is the incarnation of the process that supervises the owner. `renew_seconds` is the
        time between its renewals.
        """
        owner = secrets.randbits(62)
        self._owners.records[owner] = {
            "owner": owner,
            "incarnation": str(incarnation),
            "boot": incarnation.boot,
            "page": page,
            "parent": parent,
            "draining": 0,
            "renew_seconds": renew_seconds,
        }
        self.insert_owner(transaction, owner)
        return owner

    def report_draining(
        self, transaction: Transaction, *, owner: int, is_draining: bool = True
    ) -> None:
        """Record that an owner drains, or that it claims again.

        The end of a draining owner blames no row.
        """
        record = {**self._owners.records[owner], "draining": int(is_draining)}
        self._owners.records[owner] = record
        transaction.execute(self.sql["set_draining"], record)

    def claim(  # noqa: PLR0913 - which rows, for which owner, for how long
        self,
        transaction: Transaction,
        *,
        queue: int,
        owner: int,
        lease_seconds: float,
        limit: int,
        selection: RowSelection = RowSelection.ANY,
        budget: BlameBudget = DEFAULT_BUDGET,
    ) -> list[Row]:
        """Lease up to `limit` free rows, oldest first, in one statement. A suspect by `budget` is
        claimed alone.

        The statement finds nothing while a delayed row is due. That row may be older than the free
        rows, so it is freed first.
        """
        parameters = {
            "queue": queue,
            "owner": owner,
            "lease_seconds": lease_seconds,
            "limit": limit,
            "max_crashes": budget.max_crashes,
            "max_lost": budget.max_lost,
            "margin": DUE_MARGIN,
        }
        claim = self._sql_by_selection[selection]["claim"]
        found, due_low = self._claim_from_bound(transaction, claim, parameters, queue=queue)
        if not found and self.promote_due(transaction, queue=queue, due_low=due_low):
            found, _ = self._claim_from_bound(transaction, claim, parameters, queue=queue)
        if found and not found[0][-1]:
            self.insert_owner(transaction, owner)
        return sorted(row[:-1] for row in found)

    def _claim_from_bound(
        self, transaction: Transaction, claim: str, parameters: Parameters, *, queue: int
    ) -> tuple[list[Row], float]:
        """Run the query of a claim, on PostgreSQL from the bound of the queue on. Also returns from
        which time on it has looked for due rows.
        """
        if not self._takes_arrays:
            return transaction.rows(claim, parameters), 0.0
        bounds = self._scan_bounds
        bound = bounds.of(self._table, queue)
        low, began = bound.begin_claim(), bounds.clock.monotonic()
        due_low = bound.due_low if low else 0.0
        found = transaction.rows(claim, {**parameters, "low": low, "due_low": due_low})
        if not low:
            bound.end_full_scan(bounds.clock.monotonic() - began)
        if found and bound.has_claimed(max(row[0] for row in found)):
            self._measure_bound(transaction, bound, queue)
        return found, due_low

    def _measure_bound(self, transaction: Transaction, bound: ScanBound, queue: int) -> None:
        """Measure in the round trip of the commit, and record the result after it."""
        measured: list[Row] = []

        def record() -> None:
            for row in measured:
                bound.record(Measurement._make(row))

        parameters = {
            "queue": queue,
            "low": bound.low,
            "highest": bound.highest,
            "due_low": bound.due_low,
            "margin": DUE_MARGIN,
        }
        transaction.defer_rows(self.sql["lowest_live"], parameters, measured.extend)
        transaction.after_commit(record)

    def count_suspects(
        self,
        transaction: Transaction,
        *,
        queue: int,
        limit: int,
        budget: BlameBudget = DEFAULT_BUDGET,
    ) -> int:
        """Count the free suspects of a queue, up to `limit`. Only reads."""
        parameters = {
            "queue": queue,
            "limit": limit,
            "max_crashes": budget.max_crashes,
            "max_lost": budget.max_lost,
        }
        return len(transaction.rows(self.sql["suspects"], parameters))

    def has_selected(
        self,
        transaction: Transaction,
        *,
        queue: int,
        selection: RowSelection,
        budget: BlameBudget = DEFAULT_BUDGET,
    ) -> bool:
        """Return whether a claim of this selection would find a free row. Only reads."""
        parameters = {
            "queue": queue,
            "max_crashes": budget.max_crashes,
            "max_lost": budget.max_lost,
        }
        return bool(transaction.rows(self._sql_by_selection[selection]["has_selected"], parameters))

    def renew(
        self,
        transaction: Transaction,
        *,
        owner: int,
        lease_seconds: float,
        skip: Collection[Claim] = (),
    ) -> int:
        """Extend every lease of an owner, except those in `skip`, to `lease_seconds` from now.

        One statement. Returns how many leases it renewed.
        """
        parameters = {
            "owner": owner,
            "lease_seconds": lease_seconds,
            "skip": self.array_parameter([claim.seq for claim in skip]),
        }
        return transaction.execute(self.sql["renew"], parameters)

    def held(self, transaction: Transaction, *, owner: int) -> list[Claim]:
        """Return the claims of every lease of an owner."""
        return [
            Claim(seq, owner, term)
            for seq, term, _ in transaction.rows(
                self.sql["of_owner"], {"owner": owner, "limit": NO_LIMIT}
            )
        ]

    def renew_one(self, transaction: Transaction, claim: Claim, *, lease_seconds: float) -> bool:
        """Extend one lease. Returns False if the claim no longer matches."""
        return (
            transaction.execute(
                self.sql["renew_one"], {**claim._asdict(), "lease_seconds": lease_seconds}
            )
            == 1
        )

    def settle(self, transaction: Transaction, claims: Iterable[Claim]) -> list[bool]:
        """Delete rows, in one statement. Returns for each claim whether it still matched.

        Of two equal claims only the first matches.
        """
        listed = list(claims)
        return (
            _which_applied(listed, transaction.rows(self.sql["settle"], self._parameters(listed)))
            if listed
            else []
        )

    def release(  # noqa: PLR0913 - which rows, and their new columns
        self,
        transaction: Transaction,
        claims: Iterable[Claim],
        *,
        blame: Blame,
        delay: float = 0.0,
        error: str | None = None,
        traceback: str | None = None,
    ) -> list[bool]:
        """Release rows, which can be claimed again after the delay. Returns for each claim whether
        it still matched.
        """
        common = {
            "delay": max(delay, 0.0),
            "failures": int(blame is Blame.FAILURE),
            "crashes": int(blame is Blame.CRASH),
            "lost": int(blame is Blame.LOST),
            "releases": int(blame is Blame.RELEASE),
            "error": error,
            "traceback": traceback,
        }
        listed = list(claims)
        if self._takes_arrays and listed:
            return _which_applied(
                listed,
                transaction.rows(self.sql["release"], {**common, **self._parameters(listed)}),
            )
        return [
            transaction.execute(self.sql["release"], {**common, **claim._asdict()}) == 1
            for claim in listed
        ]

    def for_update(self, query: str) -> str:
        """Return the query that finds leases to release.

        It locks these rows where the database has several writers.
        """
        return self.sql.get(f"{query}_for_update", self.sql[query])

    def promote_due(self, transaction: Transaction, *, queue: int, due_low: float = 0.0) -> int:
        """Free the delayed rows that are due. Returns how many. `due_low`: on PostgreSQL no row was
        due before (`scan_bound`).
        """
        parameters = {"queue": queue, "due_low": due_low, "margin": DUE_MARGIN}
        return transaction.execute(self.sql["promote_due"], parameters)

    def next_due(self, transaction: Transaction, *, queue: int) -> float | None:
        """Return the seconds until the next delayed row is due, or None if none is delayed."""
        [(wait,)] = transaction.rows(self.sql["next_due"], {"queue": queue})
        return None if wait is None else max(float(wait), 0.0)

    def array_parameter(self, numbers: Iterable[float | None]) -> object:
        """Return numbers as one parameter: an array, or a JSON text where the database has no
        arrays.
        """
        return list(numbers) if self._takes_arrays else _to_json(list(numbers))

    def _parameters(self, claims: Sequence[Claim]) -> dict[str, object]:
        return claim_parameters(claims, arrays=self._takes_arrays)

    def insert_owner(self, transaction: Transaction, owner: int) -> None:
        """Insert the row of a registered owner, possibly again.

        A sweeper that cannot see whether the owner lives may have deleted the row while the owner
        held no lease.
        """
        transaction.execute(self.sql["insert_owner"], self._owners.records[owner])


def claim_parameters(claims: Sequence[Claim], *, arrays: bool) -> dict[str, object]:
    """Return claims as parameters: three arrays, or one JSON text. The arrays are sorted, so that
    two transactions lock common rows in the same order.
    """
    if not arrays:
        return {"claims": _to_json(claims)}
    seqs, owners, terms = map(list, zip(*sorted(claims), strict=True))
    return {"seqs": seqs, "owners": owners, "terms": terms}


def _to_json(value: object) -> str:
    """Encode with msgspec, because claims and numbers come by the thousand."""
    return msgspec.json.encode(value).decode()


def _which_applied(claims: Sequence[Claim], rows: Iterable[Row]) -> list[bool]:
    """Return for each claim whether its row was changed. Of two equal claims only the first
    counts.
    """
    changed = {Claim(*row) for row in rows}
    return [_discard(changed, claim) for claim in claims]


def _discard(changed: set[Claim], claim: Claim) -> bool:
    """Remove the claim. Returns whether it was there."""
    found = claim in changed
    changed.discard(claim)
    return found
