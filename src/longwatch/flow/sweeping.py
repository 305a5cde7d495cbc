"""What brings an execution on when nobody else does: sweeps, made by every worker, each apart from
the others' errors.

    dead        at every look: owners that have certainly ended; what they had begun is abandoned
                and tried again, at once
    abandoned   every 10 s: attempts whose heartbeat has lapsed, or whose deadline has passed
    stalled     every 60 s: executions of a graph of which nothing waits or runs, though something
                could; a page at a time

A sweep with an interval is made by whoever comes first when it is due; the others pass. What it
came to is on record. Rows are found by a read, and changed only if they are still so once their
execution is locked; what somebody else has locked is passed over: sweepers that meet do not fight,
and one that froze in the middle holds up nobody. An attempt that its worker had not begun goes back
unspent. Where nobody can tell (another machine's page), it counts as begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from longwatch.core.chance import fraction
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.events import AttemptAbandoned, Events
from longwatch.flow.advancing import advance
from longwatch.flow.records import Kind, Loaded, Mine, Records, work_of
from longwatch.flow.registry import Registry
from longwatch.flow.standing import Cause, Standing
from longwatch.host.incarnation import boot_id
from longwatch.store.claims import Blame, Claim, Claims
from longwatch.store.database import Database, Parameters, Row, Transaction
from longwatch.store.sweep import Holder, Sweep, judge
from longwatch.work.judging import described

SWEEP_EVERY = 10.0
STALLED_EVERY = 60.0
PAGE = 200
"""Attempts or executions in one transaction: a sweep never holds the store for long."""
_KEPT_RUNS = 1000

T = TypeVar("T")


class Run(NamedTuple):
    """One run of a sweep, as it is on record."""

    sweep: str
    began_at: float
    lasted: float
    found: int
    error: str | None


class _Lost(NamedTuple):
    """A lease whose owner is gone, or late."""

    claim: Claim
    execution: int
    blame: Blame


class Sweeping:
    """The sweeps over one store. Only those over executions need their graphs."""

    def __init__(  # noqa: PLR0913 - a store, what knows it, and what is told
        self,
        database: Database,
        records: Records,
        claims: Claims,
        registry: Registry,
        *,
        every: float = SWEEP_EVERY,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.events = events or Events()
        self.every = every
        self._database = database
        self._records = records
        self._claims = claims
        self._registry = registry
        self._clock = clock or SystemClock()
        self._sweep = Sweep(claims, is_shared=database.is_shared)
        self._not_before: dict[str, float] = {}

    def look(self) -> int:
        """Make the sweeps that are due; how many rows they have moved. One that fails does not
        keep the others.
        """
        return self._all([self.bury_the_dead, *self._timed_ones(self.every, STALLED_EVERY)])

    def make_all(self) -> int:
        """Make every sweep, due or not."""
        return self._all([self.bury_the_dead, *self._timed_ones(0.0, 0.0)])

    def runs(self, *, limit: int) -> list[Run]:
        """The newest first."""
        rows = self._database.read(
            lambda tx: tx.rows(self._records.sql["sweep_runs"], {"limit": limit})
        )
        return [Run(*row) for row in rows]

    # --- owners that have ended ---

    def bury_the_dead(self) -> int:
        """Bring back what they held; one that holds nothing any more is forgotten."""
        return sum(map(self._bury, self._database.read(self._sweep.dead_holders)))

    def _bury(self, holder: Holder) -> int:
        held = self._database.read(
            lambda tx: tx.rows(self._records.sql["held_by"], {"owner": holder.owner, "limit": PAGE})
        )
        if not held:
            self._database.write(lambda tx: self._sweep.forget(tx, holder))
            return 0
        if not self._sweep.has_ended(holder.incarnation):
            return 0
        blame = judge(holder, unread=Blame.CRASH)
        return self._bring_back(
            [_Lost(Claim(*row[:3]), row[3], blame(row[0])) for row in held], recheck=False
        )

    # --- leases that have ended ---

    def _abandoned(self) -> int:
        """All of them, a page at a time; a row that cannot be brought back is passed over, and
        told of in the end.
        """
        found, seen, errors = 0, list[int](), []
        while True:
            lapsed = {"boot": boot_id(), "seen": self._records.listed(seen), "limit": PAGE}
            rows = self._database.read(
                lambda tx, lapsed=lapsed: tx.rows(self._records.sql["lapsed"], lapsed)  # type: ignore[misc]
            )
            try:
                found += self._bring_back(_judged(rows), recheck=self._database.is_shared)
            except Exception as error:  # noqa: BLE001 - the next page has nothing to do with it
                errors.append(error)
            if len(rows) < PAGE:
                break
            seen += [row[0] for row in rows]
        if errors:
            raise errors[0]
        return found

    def _bring_back(self, lost: Sequence[_Lost], *, recheck: bool) -> int:
        """In one transaction; if that cannot be, one row at a time, so that a bad one keeps
        nobody else.
        """
        return self._apart(lost, lambda some: self._give_back(some, recheck=recheck))

    def _give_back(self, lost: Sequence[_Lost], *, recheck: bool) -> int:
        def work(tx: Transaction) -> tuple[int, list[AttemptAbandoned]]:
            loaded, gone = self._records.load_free(tx, (each.execution for each in lost))
            mine = self._records.free_claims(
                tx,
                [each.claim for each in lost if each.execution in loaded or each.execution in gone],
            )
            due = [
                (each, found)
                for each in lost
                if (found := mine.get(each.claim)) and (found.has_lapsed or not recheck)
            ]
            self._records.close_orphans(tx, [found for _, found in due if found.execution in gone])
            due = [(each, found) for each, found in due if found.execution in loaded]
            unbegun = [each.claim for each, _ in due if each.blame is Blame.RELEASE]
            self._claims.release(tx, unbegun, blame=Blame.RELEASE)
            for kind in {
                loaded[found.execution][1] for each, found in due if each.claim in set(unbegun)
            }:
                tx.announce(work_of(kind))
            told = [
                said
                for each, found in due
                if each.claim not in set(unbegun)
                and (said := _abandoned(each, found, loaded[found.execution][0]))
            ]
            self._save(tx, loaded)
            return len(unbegun) + len(told), told

        count, told = self._database.write(work)
        for event in told:
            self.events.emit(event)
        return count

    # --- executions that nobody goes on with ---

    def _stalled(self, kind: Kind) -> int:
        """Go through those of a graph, a page at a time, from where the last run has come to."""
        name = {"sweep": _turn_of(kind)}
        [(position,)] = self._database.read(
            lambda tx: tx.rows(self._records.sql["sweep_position"], name)
        ) or [(0,)]
        asked = {**kind._asdict(), "after": position, "limit": PAGE}
        page = [
            row[0]
            for row in self._database.read(lambda tx: tx.rows(self._records.sql["quiet"], asked))
        ]
        found = self._apart(page, self._go_on)
        following = page[-1] if len(page) == PAGE else 0
        if following != position:
            self._database.write(
                lambda tx: tx.execute(
                    self._records.sql["move_sweep"], {**name, "position": following}
                )
            )
        return found

    def _go_on(self, executions: Sequence[int]) -> int:
        graphs = self._registry.registered()

        def work(tx: Transaction) -> int:
            loaded, _ = self._records.load_free(tx, executions)
            for standing, kind in loaded.values():
                registered = graphs[kind]
                advance(registered.graph, standing, registered.lanes)
            self._save(tx, loaded)
            return sum(standing.is_touched for standing, _ in loaded.values())

        return self._database.write(work) if executions else 0

    def _save(self, tx: Transaction, loaded: Loaded) -> None:
        kinds = {number: kind for number, (_, kind) in loaded.items()}
        for kind in self._records.save(tx, (standing for standing, _ in loaded.values()), kinds):
            tx.announce(work_of(kind))

    # --- how sweeps are made ---

    def _all(self, sweeps: Iterable[Callable[[], int]]) -> int:
        found, errors = 0, []
        for sweep in sweeps:
            try:
                found += sweep()
            except Exception as error:  # noqa: BLE001 - the others are made, then it is told
                errors.append(error)
        if errors:
            raise errors[0]
        return found

    def _timed_ones(self, abandoned: float, stalled: float) -> Iterator[Callable[[], int]]:
        """Those over executions are made graph by graph: whoever makes one has to know the
        graph.
        """
        yield lambda: self._timed("abandoned", "abandoned", abandoned, self._abandoned)
        for kind in self._registry.graphs:
            yield lambda kind=kind: self._timed(  # type: ignore[misc]
                "stalled", _turn_of(kind), stalled, lambda: self._stalled(kind)
            )

    def _timed(self, name: str, turn: str, every: float, sweep: Callable[[], int]) -> int:
        """Make one if it is its turn and nobody else is at it, and put on record what came of
        it.
        """
        now = self._clock.monotonic()
        if every and now < self._not_before.get(turn, 0.0):
            return 0
        self._not_before[turn] = now + every * (0.8 + 0.2 * fraction())
        spaced = {"sweep": turn, "every": every * 0.75}
        if not self._database.write(lambda tx: self._is_ours(tx, spaced)):
            return 0
        try:
            found = sweep()
        except Exception as error:
            self._log(name, now, 0, described(error))
            raise
        self._log(name, now, found, None)
        return found

    def _is_ours(self, tx: Transaction, spaced: Parameters) -> bool:
        if (make := self._records.sql.get("make_turn")) is not None:
            tx.execute(make, {"sweep": spaced["sweep"]})
        return bool(tx.rows(self._records.sql["begin_sweep"], spaced))

    def _log(self, name: str, began: float, found: int, error: str | None) -> None:
        run = {
            "sweep": name,
            "lasted": self._clock.monotonic() - began,
            "found": found,
            "error": error,
        }

        def work(tx: Transaction) -> None:
            tx.execute(self._records.sql["log_sweep"], run)
            tx.execute(self._records.sql["trim_log"], {"keep": _KEPT_RUNS})

        self._database.write(work)

    def _apart(self, rows: Sequence[T], work: Callable[[Sequence[T]], int]) -> int:
        if not rows:
            return 0
        try:
            return work(rows)
        except Exception:
            if len(rows) == 1:
                raise
            return self._all([lambda row=row: work([row]) for row in rows])  # type: ignore[misc]


def _abandoned(lost: _Lost, found: Mine, standing: Standing) -> AttemptAbandoned | None:
    """Abandon one, to be tried again if it may be: what is to be told of it."""
    attempt = standing.open.get(found.node)
    if attempt is None or attempt.seq != lost.claim.seq:
        return None
    cause = _cause(found)
    standing.end(attempt, cause, error=_WORDS[cause])
    return AttemptAbandoned(
        execution=standing.id, node=attempt.node, attempt=attempt.number, cause=str(cause)
    )


def _cause(found: Mine) -> Cause:
    if found.is_late:
        return Cause.DEADLINE
    return Cause.HEARTBEAT if found.has_lapsed else Cause.CRASH


_WORDS = {
    Cause.DEADLINE: "it took longer than it may (abandon_after_seconds)",
    Cause.HEARTBEAT: "its worker gave no sign of life (heartbeat_timeout_seconds)",
    Cause.CRASH: "its worker ended while it ran",
}


def _judged(rows: Sequence[Row]) -> list[_Lost]:
    judges = {
        holder: judge(holder, unread=Blame.CRASH) for holder in {_holder(row) for row in rows}
    }
    return [_Lost(Claim(*row[:3]), row[3], judges[_holder(row)](row[0])) for row in rows]


def _turn_of(kind: Kind) -> str:
    return f"stalled/{kind.graph}/{kind.version}"


def _holder(row: Row) -> Holder:
    return Holder(row[1], row[4], row[5])
