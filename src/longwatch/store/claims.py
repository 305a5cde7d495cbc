"""Claim, renew, settle, release: the one mechanism of leased rows, over any table that has the
lease columns.

The states, invariants and failure cases are in the package's prose. Everything here runs inside a
transaction that the caller opened, so that it can be combined: settle the last and claim the next,
settle and send, bury and settle.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum, auto
from typing import NamedTuple

from longwatch.host.incarnation import Incarnation
from longwatch.store.database import Owners, Row, Transaction
from longwatch.store.named_sql import load_queries

ALL = 2**62
"""A limit that limits nothing."""


class Claim(NamedTuple):
    """The right to work on one row: what every write about it has to show."""

    seq: int
    owner: int
    term: int


class Blame(StrEnum):
    """Why a row comes back: which of its counters rises."""

    FAILURE = auto()  # the work raised: spends the retry budget
    CRASH = auto()  # the process died in it: spends the small poison budget
    RELEASE = auto()  # nobody's fault: spends nothing


class LeaseSql(NamedTuple):
    """How a lease stands in the columns of a row, in SQL: what a claim (by column), a renewal and
    giving back write, and when it has ended.
    """

    leased: Mapping[str, str]
    renewed: str
    freed: str
    lapsed: str

    def places(self, dialect: str) -> dict[str, str]:
        """What fills the places in queries; with what a row is made with that is leased from the
        first: `born` and `born_with`.
        """
        term = _NEXT_TERM[dialect]
        born = {"held": "2", "owner": "owner", "deliveries": "1", "term": term, **self.leased}
        return {
            **self._asdict(),
            "leased": ", ".join(f"{column} = {value}" for column, value in self.leased.items()),
            "next_term": term,
            "born": ", ".join(born),
            "born_with": ", ".join(born.values()),
        }


_NEXT_TERM = {
    "sqlite": "max(term + 1, CAST(:wall_now * 1000000 AS INTEGER))",
    "postgresql": "greatest(term + 1, (:lease_now * 1000000)::int8)",
}
"""Time, or one more than the last: in an older state that was restored a row and its owner may have
the same numbers again, but never the same term.
"""


_ONE_COLUMN = {
    "sqlite": LeaseSql(
        leased={"lease_until": ":lease_now + :duration"},
        renewed="lease_until = max(lease_until, :lease_now + :duration)",
        freed="lease_until = NULL",
        lapsed="lease_until < :lease_now",
    ),
    "postgresql": LeaseSql(
        leased={"lease_until": ":lease_now + :duration::float8"},
        renewed="lease_until = greatest(lease_until, :lease_now + :duration::float8)",
        freed="lease_until = NULL",
        lapsed="lease_until < :lease_now",
    ),
}


class Claims:
    """Leases over one table. Rows come back as the `columns` asked for; the first three are always
    seq, owner, term.

    `gate` is a condition in SQL on `:lane`: while it is false, nothing of the lane is handed out.
    `lease`: where the rows keep their leases; if not said, in `lease_until`.
    """

    def __init__(  # noqa: PLR0913 - a table and what is special about it
        self,
        *,
        dialect: str,
        table: str,
        columns: Sequence[str] = (),
        gate: str = "1 = 1",
        owners: Owners | None = None,
        lease: LeaseSql | None = None,
    ) -> None:
        names = ", ".join(("seq", "owner", "term", *columns))
        written = (lease or _ONE_COLUMN[dialect]).places(dialect)
        self.sql = load_queries(
            "longwatch.store", "claims", dialect, table=table, columns=names, gate=gate, **written
        )
        self._owners = owners or Owners()
        self._takes_arrays = dialect == "postgresql"

    def register(
        self, transaction: Transaction, incarnation: Incarnation, *, page: str | None = None
    ) -> int:
        """Enter an owner; the number that stands for it in leases."""
        owner = secrets.randbits(62)
        self._owners.facts[owner] = {
            "owner": owner,
            "incarnation": str(incarnation),
            "boot": incarnation.boot,
            "page": page,
        }
        self.enter(transaction, owner)
        return owner

    def claim(
        self, transaction: Transaction, *, lane: int, owner: int, duration: float, limit: int
    ) -> list[Row]:
        """Lease up to `limit` free rows, oldest first, in one statement. A row that has crashed
        before comes alone.

        The statement finds nothing while a delayed row is due: that may be older than those that
        are free, so it is freed first.
        """
        parameters = {"lane": lane, "owner": owner, "duration": duration, "limit": limit}
        found = transaction.rows(self.sql["claim"], parameters)
        if not found and self.free_the_due(transaction, lane=lane):
            found = transaction.rows(self.sql["claim"], parameters)
        if found and not found[0][-1]:
            self.enter(transaction, owner)
        return sorted(row[:-1] for row in found)

    def renew(
        self, transaction: Transaction, *, owner: int, duration: float, skip: Collection[Claim] = ()
    ) -> int:
        """Prolong every lease of an owner but those to `skip` to `duration` from now, in one
        statement; how many there are.
        """
        skipped = [claim.seq for claim in skip]
        parameters = {
            "owner": owner,
            "duration": duration,
            "skip": skipped if self._takes_arrays else json.dumps(skipped),
        }
        return transaction.execute(self.sql["renew"], parameters)

    def held(self, transaction: Transaction, *, owner: int) -> list[Claim]:
        """Every lease of an owner."""
        return [
            Claim(seq, owner, term)
            for seq, term, _ in transaction.rows(
                self.sql["held_by"], {"owner": owner, "limit": ALL}
            )
        ]

    def extend(self, transaction: Transaction, claim: Claim, *, duration: float) -> bool:
        """Prolong one lease; False if it is not the claimant's any more."""
        return (
            transaction.execute(self.sql["renew_one"], {**claim._asdict(), "duration": duration})
            == 1
        )

    def settle(self, transaction: Transaction, claims: Iterable[Claim]) -> list[bool]:
        """Finish rows for good, in one statement; for each whether it was still the claimant's.
        Of two equal claims one was.
        """
        shown = list(claims)
        return (
            _told(shown, transaction.rows(self.sql["settle"], self._show(shown))) if shown else []
        )

    def release(
        self,
        transaction: Transaction,
        claims: Iterable[Claim],
        *,
        blame: Blame,
        delay: float = 0.0,
        error: str | None = None,
    ) -> list[bool]:
        """Give rows back, to be taken again after the delay; for each whether it was still the
        claimant's.
        """
        common = {
            "delay": max(delay, 0.0),
            "failures": int(blame is Blame.FAILURE),
            "crashes": int(blame is Blame.CRASH),
            "releases": int(blame is Blame.RELEASE),
            "error": error,
        }
        shown = list(claims)
        if self._takes_arrays and shown:
            return _told(
                shown, transaction.rows(self.sql["release"], {**common, **self._show(shown)})
            )
        return [
            transaction.execute(self.sql["release"], {**common, **claim._asdict()}) == 1
            for claim in shown
        ]

    def for_release(self, query: str) -> str:
        """The query that finds leases to be released; where others may write meanwhile, one that
        keeps them off these rows.
        """
        return self.sql.get(f"{query}_for_release", self.sql[query])

    def free_the_due(self, transaction: Transaction, *, lane: int) -> int:
        """Free the delayed rows whose time has come; how many."""
        return transaction.execute(self.sql["due"], {"lane": lane})

    def next_due(self, transaction: Transaction, *, lane: int) -> float | None:
        """Seconds until the next delayed row of the lane is due; None if none is delayed."""
        [(wait,)] = transaction.rows(self.sql["next_due"], {"lane": lane})
        return None if wait is None else max(float(wait), 0.0)

    def _show(self, claims: Sequence[Claim]) -> dict[str, object]:
        return shown_claims(claims, arrays=self._takes_arrays)

    def enter(self, transaction: Transaction, owner: int) -> None:
        """Also again: one that held nothing may have been forgotten by a sweeper that could not
        see whether it lives.
        """
        transaction.execute(self.sql["register"], self._owners.facts[owner])


def shown_claims(claims: Sequence[Claim], *, arrays: bool) -> dict[str, object]:
    """Claims as parameters: three arrays, or one JSON text. In the order of the rows, so that
    two that meet lock them alike.
    """
    if not arrays:
        return {"claims": json.dumps(claims)}
    seqs, owners, terms = map(list, zip(*sorted(claims), strict=True))
    return {"seqs": seqs, "owners": owners, "terms": terms}


def _told(shown: Sequence[Claim], rows: Iterable[Row]) -> list[bool]:
    """For each claim whether its row was changed; of two equal ones the first did it."""
    changed = {Claim(*row) for row in rows}
    return [_removed(changed, claim) for claim in shown]


def _removed(changed: set[Claim], claim: Claim) -> bool:
    """Whether it was there; now it is not."""
    found = claim in changed
    changed.discard(claim)
    return found
