"""Claim, renew, settle, release: the one mechanism of leased rows, over any table that has the
lease columns.

The states, invariants and failure cases are in the package's prose. Everything here runs inside a
transaction that the caller opened, so that it can be combined: settle the last and claim the next,
settle and send, dead-letter and settle.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum, auto
from typing import NamedTuple

import msgspec

from longwatch.host.incarnation import Incarnation
from longwatch.store.blame import DEFAULT_BUDGET, IS_SUSPECT_SQL, Blame, BlameBudget
from longwatch.store.database import OwnerRegistry, Row, Transaction
from longwatch.store.named_sql import load_queries

NO_LIMIT = 2**62
"""A limit that limits nothing."""


class Claim(NamedTuple):
    """The right to work on one row: what every write about it has to show."""

    seq: int
    owner: int
    term: int


class RowSelection(StrEnum):
    """Which free rows a claim takes."""

    ANY = auto()  # ordinary rows, or one suspect by itself
    ORDINARY = auto()  # no suspect: a process of its own runs those
    SUSPECTS = auto()  # one suspect


SELECTED_SQL = {
    RowSelection.ANY: "1 = 1",
    RowSelection.ORDINARY: f"NOT {IS_SUSPECT_SQL}",
    RowSelection.SUSPECTS: f"crashes + lost > 0 AND {IS_SUSPECT_SQL}",
}
"""The condition on the free rows that a claim takes, with the budgets as parameters."""


class LeaseSql(NamedTuple):
    """How a lease is kept in the columns of a row, in SQL: what a claim (by column), a renewal and
    a release write, and the condition that it has ended.
    """

    on_claim: Mapping[str, str]
    on_renew: str
    on_release: str
    lapsed: str

    def placeholders(self, dialect: str) -> dict[str, str]:
        """The values of the placeholders in queries. `leased_columns` and `leased_values` insert a
        row that is leased at once.
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
"""Time, or one more than the last: in an older state that was restored a row and its owner may have
the same numbers again, but never the same term.
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
    """Leases over one table. Rows come back as the `columns` asked for; the first three are always
    seq, owner, term.

    `claim_condition` is an SQL condition on `:queue`: while it is false, no row of the queue is
    claimed. `lease_sql`: how the rows keep their leases; by default in `lease_until`.
    """

    def __init__(  # noqa: PLR0913 - a table and what is special about it
        self,
        *,
        dialect: str,
        table: str,
        columns: Sequence[str] = (),
        claim_condition: str = "1 = 1",
        owners: OwnerRegistry | None = None,
        lease_sql: LeaseSql | None = None,
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
        """Register an owner; the number that stands for it in leases. `parent`: the incarnation of
        the process that supervises it; `renew_seconds`: the time between its renewals.
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
        """Note that an owner drains, or claims again: if it drains, the end of its process blames
        no row.
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
        """Lease up to `limit` free rows, oldest first, in one statement. A suspect by `budget`
        comes alone.

        The statement finds nothing while a delayed row is due: that may be older than those that
        are free, so it is freed first.
        """
        parameters = {
            "queue": queue,
            "owner": owner,
            "lease_seconds": lease_seconds,
            "limit": limit,
            "max_crashes": budget.max_crashes,
            "max_lost": budget.max_lost,
        }
        claim = self._sql_by_selection[selection]["claim"]
        found = transaction.rows(claim, parameters)
        if not found and self.promote_due(transaction, queue=queue):
            found = transaction.rows(claim, parameters)
        if found and not found[0][-1]:
            self.insert_owner(transaction, owner)
        return sorted(row[:-1] for row in found)

    def count_suspects(
        self,
        transaction: Transaction,
        *,
        queue: int,
        limit: int,
        budget: BlameBudget = DEFAULT_BUDGET,
    ) -> int:
        """How many suspects are free, counted no further than `limit`; a read."""
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
        """Whether a claim of this selection would find a free row; a read."""
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
        """Extend every lease of an owner except those in `skip` to `lease_seconds` from now, in
        one statement; how many there are.
        """
        parameters = {
            "owner": owner,
            "lease_seconds": lease_seconds,
            "skip": self.array_parameter([claim.seq for claim in skip]),
        }
        return transaction.execute(self.sql["renew"], parameters)

    def held(self, transaction: Transaction, *, owner: int) -> list[Claim]:
        """Every lease of an owner."""
        return [
            Claim(seq, owner, term)
            for seq, term, _ in transaction.rows(
                self.sql["of_owner"], {"owner": owner, "limit": NO_LIMIT}
            )
        ]

    def renew_one(self, transaction: Transaction, claim: Claim, *, lease_seconds: float) -> bool:
        """Extend one lease; False if the claim no longer matches."""
        return (
            transaction.execute(
                self.sql["renew_one"], {**claim._asdict(), "lease_seconds": lease_seconds}
            )
            == 1
        )

    def settle(self, transaction: Transaction, claims: Iterable[Claim]) -> list[bool]:
        """Finish rows for good, in one statement; for each whether it was still the claimant's.
        Of two equal claims one was.
        """
        listed = list(claims)
        return (
            _which_applied(listed, transaction.rows(self.sql["settle"], self._parameters(listed)))
            if listed
            else []
        )

    def release(  # noqa: PLR0913 - which rows, and what is noted of them
        self,
        transaction: Transaction,
        claims: Iterable[Claim],
        *,
        blame: Blame,
        delay: float = 0.0,
        error: str | None = None,
        traceback: str | None = None,
    ) -> list[bool]:
        """Release rows, to be claimed again after the delay; for each whether its claim still
        matched.
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
        """The query that finds leases to be released; where others may write meanwhile, one that
        keeps them off these rows.
        """
        return self.sql.get(f"{query}_for_update", self.sql[query])

    def promote_due(self, transaction: Transaction, *, queue: int) -> int:
        """Free the delayed rows whose time has come; how many."""
        return transaction.execute(self.sql["promote_due"], {"queue": queue})

    def next_due(self, transaction: Transaction, *, queue: int) -> float | None:
        """Seconds until the next delayed row of the queue is due; None if none is delayed."""
        [(wait,)] = transaction.rows(self.sql["next_due"], {"queue": queue})
        return None if wait is None else max(float(wait), 0.0)

    def array_parameter(self, numbers: Iterable[float | None]) -> object:
        """Numbers as one parameter: an array, or a JSON text where the database has no arrays."""
        return list(numbers) if self._takes_arrays else _to_json(list(numbers))

    def _parameters(self, claims: Sequence[Claim]) -> dict[str, object]:
        return claim_parameters(claims, arrays=self._takes_arrays)

    def insert_owner(self, transaction: Transaction, owner: int) -> None:
        """Insert the row of an owner, also again: a sweeper that could not see whether the owner
        lives may have deleted it while it held nothing.
        """
        transaction.execute(self.sql["insert_owner"], self._owners.records[owner])


def claim_parameters(claims: Sequence[Claim], *, arrays: bool) -> dict[str, object]:
    """Claims as parameters: three arrays, or one JSON text. In the order of the rows, so that
    two that meet lock them alike.
    """
    if not arrays:
        return {"claims": _to_json(claims)}
    seqs, owners, terms = map(list, zip(*sorted(claims), strict=True))
    return {"seqs": seqs, "owners": owners, "terms": terms}


def _to_json(value: object) -> str:
    """Claims and numbers are encoded by the thousand, so by msgspec."""
    return msgspec.json.encode(value).decode()


def _which_applied(claims: Sequence[Claim], rows: Iterable[Row]) -> list[bool]:
    """For each claim whether its row was changed; of two equal ones the first did it."""
    changed = {Claim(*row) for row in rows}
    return [_discard(changed, claim) for claim in claims]


def _discard(changed: set[Claim], claim: Claim) -> bool:
    """Whether it was there; now it is not."""
    found = claim in changed
    changed.discard(claim)
    return found
