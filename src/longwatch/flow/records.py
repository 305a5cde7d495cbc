"""Executions in a SQL store: read whole, changed by `standing` and `advancing`, written back, in
one transaction.

Whoever changes an execution has it to itself until the end of the transaction, so nothing is
decided on what was true a moment ago: the one writer of SQLite sees to that, a lock on the
execution's row on PostgreSQL. Several executions are loaded and saved together, with as many
statements as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from longwatch.flow.standing import Attempt, Cause, Closing, Opening, Standing, State, Stored, Terms
from longwatch.store.claims import Claim, LeaseSql, shown_claims
from longwatch.store.database import Parameters, Row, Transaction
from longwatch.store.named_sql import load_queries

TABLE = "longwatch_computations"
_FEW = 3

_FREED = (
    "heartbeat_deadline = NULL, deadline = NULL, last_heartbeat_at = NULL, started_at = NULL, "
    "state = 'not_set'"
)
_LAPSED = "(heartbeat_deadline < :lease_now OR deadline < :lease_now)"
LEASE = {
    dialect: LeaseSql(
        leased={
            "heartbeat_deadline": ":lease_now + heartbeat_timeout",
            "deadline": ":lease_now + abandon_after",
            "last_heartbeat_at": ":wall_now",
            "started_at": ":wall_now",
            "state": "'computing'",
        },
        renewed=(
            f"heartbeat_deadline = CASE WHEN heartbeat_deadline IS NOT NULL THEN"
            f" {greatest}(heartbeat_deadline, :lease_now + heartbeat_timeout) END, "
            f"last_heartbeat_at = :wall_now"
        ),
        freed=_FREED,
        lapsed=_LAPSED,
    )
    for dialect, greatest in (("sqlite", "max"), ("postgresql", "greatest"))
}
"""An attempt's lease is its heartbeat: it ends at `heartbeat_deadline`, by its own timeout, and at
its hard deadline. A row without the former, from before there were heartbeats, has only the latter.
"""


_PLACES = {
    "sqlite": {"to_change": "", "execution": ":execution"},
    "postgresql": {
        "to_change": "FOR UPDATE",
        "execution": "coalesce(:execution, currval('longwatch_executions_execution_seq'))",
    },
}


class Kind(NamedTuple):
    """What an execution is of."""

    graph: str
    version: str


class Mine(NamedTuple):
    """A claim that still holds."""

    claim: Claim
    execution: int
    node: str
    is_late: bool
    has_lapsed: bool


class Lessee(Protocol):
    """A worker that takes attempts in the statement that makes them."""

    owner: int

    def takes(self, opening: Opening) -> bool:
        """Whether it has room for this one; then that is taken."""

    def bear(self, standing: Standing, opening: Opening, rows: Sequence[Row]) -> None:
        """One is made: seq, owner, term, execution, node, and whether the owner is entered."""


Loaded = dict[int, tuple[Standing, Kind]]
"""By their numbers, executions and what they are of."""


class Records:
    """The statements. Everything here runs inside a transaction that the caller opened."""

    def __init__(self, dialect: str) -> None:
        self.sql = load_queries(
            "longwatch.flow",
            "queries",
            dialect,
            **_PLACES[dialect],
            **LEASE[dialect].places(dialect),
        )
        self._takes_arrays = dialect == "postgresql"

    # --- whole executions ---

    def load(self, tx: Transaction, executions: Iterable[int], *, to_change: bool = True) -> Loaded:
        """Those that there are; `to_change`: and nobody else changes them until the end of the
        transaction.
        """
        return self.load_for(tx, executions, (), to_change=to_change)[0]

    def load_for(
        self,
        tx: Transaction,
        executions: Iterable[int],
        claims: Sequence[Claim],
        *,
        to_change: bool = True,
    ) -> tuple[Loaded, dict[Claim, Mine]]:
        """The same, and those of these claims that still hold, and hold until the end of the
        transaction.
        """
        listed = {"executions": self.listed(sorted(set(executions)))}
        asked = self._all_of(self.sql["executions"] if to_change else self._seen, listed)
        if claims:
            asked.append((self.sql["mine"], shown_claims(claims, arrays=self._takes_arrays)))
        found, values, attempts, *mine = tx.rows_of(asked)
        return _loaded(found, values, attempts), _mine(mine[0] if mine else [])

    def load_free(self, tx: Transaction, executions: Iterable[int]) -> tuple[Loaded, set[int]]:
        """Those that nobody else has locked, and nobody changes until the end of the
        transaction; and which ones are gone.
        """
        numbers = set(executions)
        listed = {"executions": self.listed(sorted(numbers))}
        asked = [*self._all_of(self._passing(self.sql["executions"]), listed), (self._seen, listed)]
        *free, there = tx.rows_of(asked)
        return _loaded(*free), numbers - {row[0] for row in there}

    def free_claims(self, tx: Transaction, claims: Sequence[Claim]) -> dict[Claim, Mine]:
        """Those of these claims that still hold, and that nobody else has locked.

        Asked for only by whoever has their executions: of two that come at once, one locking the
        executions and the other the attempts, neither could do anything.
        """
        return (
            _mine(
                tx.rows(
                    self._passing(self.sql["mine"]), shown_claims(claims, arrays=self._takes_arrays)
                )
            )
            if claims
            else {}
        )

    def _all_of(self, executions: str, listed: Parameters) -> list[tuple[str, Parameters]]:
        return [(executions, listed), (self.sql["values"], listed), (self.sql["open"], listed)]

    @property
    def _seen(self) -> str:
        """Executions as they are seen; where nobody else writes, nothing needs locking."""
        return self.sql.get("executions_seen", self.sql["executions"])

    def _passing(self, locking: str) -> str:
        return f"{locking} SKIP LOCKED" if self._takes_arrays else locking

    def require(self, tx: Transaction, loaded: Loaded, mine: Iterable[Mine]) -> None:
        """Go on only if these executions are as they were, and these claims still hold; nobody else
        changes that until the end of the transaction. ChangedError comes out of the whole if not.
        """
        for each in sorted(mine, key=lambda each: each.execution):
            known = {
                "execution": each.execution,
                "changes": loaded[each.execution][0].changes,
                **each.claim._asdict(),
            }
            tx.require(self.sql["unchanged"], known)

    def start(
        self,
        tx: Transaction,
        standing: Standing,
        kind: Kind,
        key: str | None,
        lessee: Lessee | None,
    ) -> bool:
        """Write one that is new; False if there is one with its key. It has its number when that is
        committed.

        Where a server numbers it, what is written of it need not wait for the number: it is that of
        the last one made.
        """
        facts = {**kind._asdict(), "id": standing.id, "key": key, "revision": standing.revision}
        if (
            key is None
            and self._takes_arrays
            and max(len(standing.changed), len(standing.openings)) <= _FEW
        ):
            tx.ask(self.sql["start"], facts, partial(_number, standing))
        else:
            made = tx.rows(self.sql["start"], facts)
            if not made:
                return False
            _number(standing, made)
        self.save(tx, [standing], {standing.number: kind}, lessee)
        return True

    def save(
        self,
        tx: Transaction,
        standings: Iterable[Standing],
        kinds: Mapping[int, Kind],
        lessee: Lessee | None = None,
    ) -> set[Kind]:
        """Write what has changed, and tell who waits for it; of which graphs there is something in
        line to be computed now.

        What the `lessee` takes is its own at once, and not in line. Whoever saves takes the rest,
        or tells the workers (`work_of`).
        """
        touched = [standing for standing in standings if standing.is_touched]
        if not touched:
            return set()
        born, free = list[tuple[Standing, Opening]](), list[tuple[Standing, Opening]]()
        for standing in touched:
            for opening in standing.openings.values():
                (born if lessee is not None and lessee.takes(opening) else free).append(
                    (standing, opening)
                )
        self._post(
            tx,
            "close",
            [_closing(closing) for standing in touched for closing in standing.closings],
        )
        self._post(
            tx,
            "keep",
            [_kept(standing, node) for standing in touched for node in sorted(standing.changed)],
        )
        self._post(tx, "begin", [_opening(*each) for each in free])
        if lessee is not None:
            for standing, opening in born:
                row = {**_opening(standing, opening), "owner": lessee.owner}
                tx.ask(self.sql["begin_leased"], row, partial(lessee.bear, standing, opening))
        self._post(
            tx,
            "touch",
            [_touched(standing) for standing in touched if standing.changes is not None],
        )
        for standing in touched:
            for node in standing.changed:
                tx.announce(changes_of(standing.id, node))
            if standing.concerns_all:
                tx.announce(changes_of(standing.id))
            if standing.calls_off_running:
                tx.announce(endings_of(kinds[standing.number]))
        return {kinds[standing.number] for standing, _ in free}

    def close_orphans(self, tx: Transaction, found: Sequence[Mine]) -> None:
        """End these attempts, whose execution is gone: nobody will miss them."""
        self._post(
            tx,
            "close",
            [_closing(Closing(each.claim.seq, State.CANCELLED, Cause.EXECUTION)) for each in found],
        )

    # --- claims ---

    def executions_of(self, tx: Transaction, claims: Iterable[Claim]) -> dict[int, int]:
        """By the number of the attempt, that of its execution."""
        seqs = self.listed([claim.seq for claim in claims])
        return dict(tx.rows(self.sql["of_seqs"], {"seqs": seqs}))

    def listed(self, numbers: list[int]) -> Any:
        """Numbers as a parameter."""
        return (
            numbers if self._takes_arrays else str(numbers)
        )  # which is JSON, and takes a tenth of the time

    def lock_lane(self, tx: Transaction, lane: int) -> None:
        """Where several write at the same time, those who have to count come one after the
        other.
        """
        if (lock := self.sql.get("lock_lane")) is not None:
            tx.rows(lock, {"lane": lane})

    def _post(self, tx: Transaction, query: str, rows: list[dict[str, object]]) -> None:
        """A few one by one: a server takes longer to take arrays apart."""
        if len(rows) > _FEW or not self._takes_arrays:
            tx.post_many(self.sql.get(f"{query}_many", self.sql[query]), rows)
        else:
            for row in rows:
                tx.post(self.sql[query], row)


def announce_work(tx: Transaction, kinds: Iterable[Kind]) -> None:
    """Tell the workers of these graphs that there is something to be computed."""
    for kind in kinds:
        tx.announce(work_of(kind))


def changes_of(execution: str, node: str = "") -> str:
    """The channel that tells of changes of a node; without one: of whatever may concern all
    nodes.
    """
    return f"execution/{execution}/{node}"


def work_of(kind: Kind) -> str:
    """The channel that tells of attempts to be made."""
    return f"flow/{kind.graph}/{kind.version}"


def endings_of(kind: Kind) -> str:
    """The channel that tells of running attempts that are not wanted any more."""
    return f"flow-over/{kind.graph}/{kind.version}"


def _loaded(found: Iterable[Row], values: Iterable[Row], attempts: Iterable[Row]) -> Loaded:
    loaded = {
        number: (
            Standing(number, name, revision=revision, cancelled=bool(cancelled), changes=changes),
            Kind(graph, version),
        )
        for number, name, revision, changes, cancelled, graph, version in found
    }
    for number, node, *stored in values:
        if number in loaded:
            loaded[number][0].nodes[node] = _stored(stored)
    for number, *attempt in attempts:
        if number in loaded:
            read = _attempt(attempt)
            loaded[number][0].open[read.node] = read
    return loaded


def _mine(rows: Iterable[Row]) -> dict[Claim, Mine]:
    read = [Mine(Claim(*row[:3]), row[3], row[4], bool(row[5]), bool(row[6])) for row in rows]
    return {each.claim: each for each in read}


def _stored(row: Sequence[Any]) -> Stored:
    is_set, value, revision, computed_with, tried_with, spent, crashes, failed, error, term = row
    return Stored(
        bool(is_set),
        value,
        revision,
        computed_with,
        tried_with,
        spent,
        crashes,
        bool(failed),
        error,
        term,
    )


def _attempt(row: Sequence[Any]) -> Attempt:
    seq, node, held, computed_with, number, term, *terms, owner = row
    return Attempt(seq, node, held, computed_with, number, Terms(*terms), term, owner)


def _kept(standing: Standing, node: str) -> dict[str, object]:
    stored = standing.nodes[node]
    return {
        "execution": standing.number or None,
        "node": node,
        "is_set": int(stored.is_set),
        "value": stored.value,
        "revision": stored.revision,
        "computed_with": stored.computed_with,
        "tried_with": stored.tried_with,
        "spent": stored.spent,
        "crashes": stored.crashes,
        "failed": int(stored.failed),
        "error": stored.error,
        "term": stored.term,
    }


def _opening(standing: Standing, opening: Opening) -> dict[str, object]:
    stored = standing.nodes.get(opening.node)
    return {
        "term": 0 if stored is None else stored.term,
        "lane": opening.terms.lane,
        "delay": float(opening.delay),
        "execution": standing.number or None,
        "node": opening.node,
        "attempt": opening.number,
        "crashes": opening.crashes,
        "computed_with": opening.computed_with,
        "heartbeat_timeout": opening.terms.heartbeat_timeout,
        "abandon_after": float(opening.terms.abandon_after),
        "max_attempts": opening.terms.max_attempts,
    }


def _number(standing: Standing, rows: Sequence[Row]) -> None:
    [(standing.number,)] = rows


def _touched(standing: Standing) -> dict[str, object]:
    return {"execution": standing.number, "revision": standing.revision}


def _closing(closing: Closing) -> dict[str, object]:
    return {
        "seq": closing.seq,
        "state": str(closing.state),
        "cause": str(closing.cause),
        "error": closing.error,
    }
