"""Claims and renews the leases of event sources for one runner.

Two runners may share a store. One of them holds each source under a lease. The other one stands by.
Each row of `longwatch_runner_sources` is the only row of its own queue. So its lease is a claim
like any other (`store.claims`), with a term that rises at each claim.

A round, several times within a lease:

    inserts sources that have no row
    reclaims the leases of runners that have ended, or that have not renewed them
    renews the leases of this runner
    claims the sources that are free

Invariants
    1. A source is written only in a transaction that has found the lease, by row, owner and term.
    2. That transaction renews the lease. A renewal skips a row that a transaction has locked, and
       the row of a busy source is locked most of the time.
    3. `held` may name a source whose lease is lost already. Its next `take` finds that out, stores
       nothing, and `forget` takes it out of the set.

Failure cases
    The runner dies       Another one on the same machine takes its sources at its next round,
                          another machine when the leases have lapsed.
    The store is down     No lease changes. `held` stays, and every `take` fails.
    A runner is stopped   It releases its leases at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.events.runner import EventSourceStandingBy
from longwatch.core.lease import LeasePolicy
from longwatch.errors import StoreError
from longwatch.host.incarnation import Incarnation
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.store.blame import Blame
from longwatch.store.claims import Claim, Claims
from longwatch.store.database import CALL_TIMEOUT, Database, Transaction
from longwatch.store.named_sql import load_queries
from longwatch.store.sweep import ClaimSweeper, LeaseOwner, SweepPlan

LEASE_SECONDS = 15.0
_LEASED = 2


class SourceLeaseLostError(StoreError):
    """This runner does not hold the source; nothing was stored."""


class _SourceRow(NamedTuple):
    """A source and its lease, as stored."""

    name: str
    seq: int
    lease_state: int
    owner: int | None
    term: int


def ignore_change(_: frozenset[str]) -> None:
    """Do nothing: the `on_change` of callers that need none."""


class SourceLeases(Service):
    """The leases of this runner. Thread-safe. `renew`, `start` and `stop` block on the store.

    `on_change` is called with the held sources whenever they change, in the thread that noticed it.
    """

    def __init__(  # noqa: PLR0913 - a set of leases and its environment
        self,
        database: Database,
        sources: Iterable[str],
        *,
        clock: Clock | None = None,
        events: Events | None = None,
        on_change: Callable[[frozenset[str]], None] = ignore_change,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        super().__init__(name="longwatch-source-leases", clock=clock)
        self.lease_seconds = lease_seconds
        self.on_change = on_change
        self._database = database
        self._wanted = frozenset(sources)
        self._events = events or Events()
        self._policy = LeasePolicy(lease_seconds)
        self._sql = load_queries("longwatch.runner", "queries", database.dialect)
        self._claims = Claims(
            dialect=database.dialect, table="longwatch_runner_sources", owners=database.owners
        )
        self._sweeper = ClaimSweeper(self._claims, is_shared=database.is_shared)
        self._owner: int | None = None
        self._held: Mapping[str, Claim] = {}
        self._standing_by: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._round_lock = threading.Lock()
        self._periodic: Periodic | None = None

    def held(self) -> frozenset[str]:
        return frozenset(self._held)

    def claim_of(self, source: str) -> Claim:
        """Return the lease of a source. Raises SourceLeaseLostError if this runner does not hold
        it.
        """
        claim = self._held.get(source)
        if claim is None:
            raise SourceLeaseLostError(
                f"this runner does not hold the source {source!r}; nothing was stored, and it is "
                f"read again when its lease is claimed"
            )
        return claim

    def forget(self, source: str, claim: Claim) -> None:
        """Record that a lease is lost. The next round tries to claim it again."""
        with self._lock:
            if self._held.get(source) != claim:
                return
            self._held = {name: held for name, held in self._held.items() if name != source}
        self.on_change(self.held())
        if self._periodic is not None:
            self._periodic.wake()

    def renew(self) -> frozenset[str]:
        """Make one round. Return the sources that are held after it."""
        with self._round_lock:
            plan = self._sweeper.look(self._database)
            before = self._held
            held, leased, deleted = self._database.write(lambda tx: self._round(tx, plan))
            self._sweeper.remove_pages(deleted)
            with self._lock:
                self._held = held
        self._announce_standing_by(leased - frozenset(held))
        if before != held:
            self.on_change(frozenset(held))
        return frozenset(held)

    # --- Service ---

    def _start(self) -> None:
        cadence = Cadence(interval=self._policy.renew_seconds, jitter=0.2)
        self._periodic = Periodic(
            self.renew, cadence, name=self.name, clock=self._clock, events=self._events
        )
        self._periodic.start()

    def _stop(self, deadline: Deadline) -> bool:
        periodic = self._periodic
        if periodic is not None and not periodic.stop(timeout=deadline.remaining()):
            return False
        self._periodic = None
        with suppress(StoreError):  # the leases lapse without this
            self.release(timeout=deadline.remaining())
        return True

    def release(self, *, timeout: float | None = None) -> None:
        """Release every lease, so that another runner can claim the sources at once. `timeout` is
        for the store, None for the usual one.
        """
        with self._round_lock:
            held, self._held = self._held, {}
            owner, self._owner = self._owner, None
            if owner is not None:
                self._database.write(
                    lambda tx: self._release(tx, owner, list(held.values())),
                    timeout=CALL_TIMEOUT if timeout is None else timeout,
                )
        if held:
            self.on_change(frozenset())

    # --- inside a transaction ---

    def _round(
        self, tx: Transaction, plan: SweepPlan
    ) -> tuple[dict[str, Claim], frozenset[str], list[LeaseOwner]]:
        """Make one round in a transaction. Return the leases of this runner, the sources that any
        runner holds, and the owners that were deleted.
        """
        rows = self._find_rows(tx)
        deleted = self._sweeper.reclaim(tx, plan).deleted if any(plan) else []
        owner = self._owner
        if owner is None:
            owner = self._claims.register_owner(
                tx, Incarnation.current(), renew_seconds=self._policy.renew_seconds
            )
            tx.after_commit(lambda: setattr(self, "_owner", owner))
        self._claims.renew(tx, owner=owner, lease_seconds=self.lease_seconds)
        for row in self._find_rows(tx) if any(plan) else rows:
            if row.name in self._wanted and row.lease_state != _LEASED:
                self._claims.claim(
                    tx, queue=row.seq, owner=owner, lease_seconds=self.lease_seconds, limit=1
                )
        leased = [row for row in self._find_rows(tx) if row.lease_state == _LEASED]
        held = {
            row.name: Claim(row.seq, owner, row.term)
            for row in leased
            if row.owner == owner and row.name in self._wanted
        }
        return held, frozenset(row.name for row in leased), deleted

    def _find_rows(self, tx: Transaction) -> list[_SourceRow]:
        """Return the rows of all sources. Inserts those that are missing."""
        rows = [_SourceRow(*row) for row in tx.rows(self._sql["find_sources"])]
        missing = self._wanted - {row.name for row in rows}
        if not missing:
            return rows
        for name in sorted(missing):
            tx.execute(self._sql["insert_source"], {"name": name})
        tx.execute(self._sql["number_sources"])
        return [_SourceRow(*row) for row in tx.rows(self._sql["find_sources"])]

    def _release(self, tx: Transaction, owner: int, claims: Sequence[Claim]) -> None:
        self._claims.release(tx, claims, blame=Blame.RELEASE)
        tx.execute(self._claims.sql["delete_owner"], {"owner": owner})

    def _announce_standing_by(self, others: frozenset[str]) -> None:
        """Emit an event for each source that another runner now holds."""
        standing_by = others & self._wanted
        for source in sorted(standing_by - self._standing_by):
            self._events.emit(EventSourceStandingBy(cluster=source))
        self._standing_by = standing_by
