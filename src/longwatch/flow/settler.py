"""How attempts are concluded, all in one transaction: the execution is locked and read, or known to
be as it was left → the claim is looked at, and one that does not hold any more changes nothing →
the result is kept, or the attempt is spent → what follows from that is opened. So a result is never
there without what follows from it, and a late one never counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.flow.eager_lease import EagerLease, ExecutionCache
from longwatch.flow.execution_state import AttemptEndCause, ExecutionState
from longwatch.flow.propagation import propagate
from longwatch.flow.records import GraphId, LoadedExecutions, Records, ValidClaim, notify_workers
from longwatch.flow.registry import Registry
from longwatch.flow.waiters import Waiters
from longwatch.store.claims import Blame, Claim, Claims
from longwatch.store.database import PreconditionFailedError, Transaction


@dataclass(frozen=True, slots=True)
class SettledAttempts:
    """For each settlement whether it was still the claimant's; what was written; of which graphs
    something is in line now.
    """

    settled: dict[Claim, bool]
    written: list[tuple[ExecutionState, GraphId]] = field(default_factory=list)
    ready: set[GraphId] = field(default_factory=set)


class AttemptSettler:
    """Settles attempts."""

    def __init__(
        self, records: Records, registry: Registry, claims: Claims, waiters: Waiters
    ) -> None:
        self.cache = ExecutionCache()
        self._records = records
        self._registry = registry
        self._claims = claims
        self._waiters = waiters
        self._executions: dict[Claim, int] = {}

    def remember(self, claimed: Sequence[ClaimedRow]) -> None:
        """Remember whose attempts these are."""
        self._executions.update((each.claim, each.item.execution) for each in claimed)

    def forget(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            self._executions.pop(settlement.claim, None)

    def settle(
        self,
        tx: Transaction,
        settlements: Sequence[Settlement],
        eager_lease: EagerLease | None = None,
        *,
        use_cache: bool = False,
    ) -> SettledAttempts:
        """All of them together: as many statements as for one. `use_cache`: executions may be
        taken from the cache; ChangedError comes out of the transaction if one is
        not.
        """
        ending = [each for each in settlements if each.outcome is not RowOutcome.RELEASED]
        released = [each for each in settlements if each.outcome is RowOutcome.RELEASED]
        result = (
            self._end_attempts(tx, ending, eager_lease, use_cache=use_cache)
            if ending
            else SettledAttempts({})
        )
        result.settled.update((each.claim, self._release(tx, each)) for each in released)
        if released:
            notify_workers(tx, self._registry.graphs)
        return result

    def _release(self, tx: Transaction, settlement: Settlement) -> bool:
        return self._claims.release(
            tx, [settlement.claim], blame=Blame.RELEASE, delay=settlement.delay
        )[0]

    def _end_attempts(
        self,
        tx: Transaction,
        settlements: Sequence[Settlement],
        eager_lease: EagerLease | None,
        *,
        use_cache: bool,
    ) -> SettledAttempts:
        claims = [settlement.claim for settlement in settlements]
        cached = self._from_cache(tx, claims) if use_cache else None
        loaded, valid = cached or self._records.load_with_claims(
            tx, self._executions_of(tx, claims), claims
        )
        settled = {
            settlement.claim: _end_if_valid(settlement, valid, loaded) for settlement in settlements
        }
        written = [
            loaded[number]
            for number in {
                valid[claim].execution for claim, is_valid in settled.items() if is_valid
            }
        ]
        for state, graph_id in written:
            self._propagate(tx, state, graph_id)
        if cached is not None:
            _require_only(written, claims)
        graph_ids = {state.number: graph_id for state, graph_id in written}
        ready = self._records.save(tx, (state for state, _ in written), graph_ids, eager_lease)
        return SettledAttempts(settled, written, ready)

    def _propagate(self, tx: Transaction, state: ExecutionState, graph_id: GraphId) -> None:
        registered = self._registry.registered().get(graph_id)
        if registered is not None:
            propagate(registered.graph, state, registered.queue_by_node)
            self._waiters.deliver_on_commit(tx, registered.graph, state)
            if registered.is_capped:  # one that ended makes room for one that may wait elsewhere
                notify_workers(tx, [graph_id])

    def _from_cache(
        self, tx: Transaction, claims: Sequence[Claim]
    ) -> tuple[LoadedExecutions, dict[Claim, ValidClaim]] | None:
        """What `Records.load_with_claims` would find, if all of it is as it was left."""
        numbers = [
            number for claim in claims if (number := self._executions.get(claim)) is not None
        ]
        cached = self.cache.take(numbers)
        if cached is None or len(numbers) < len(claims):
            return None
        open_attempts = (
            (number, attempt)
            for number, (state, _) in cached.items()
            for attempt in state.open_attempts.values()
        )
        attempts = {
            (attempt.seq, attempt.owner, attempt.term): (number, attempt.node)
            for number, attempt in open_attempts
        }
        if any(
            claim not in attempts for claim in claims
        ):  # given back meanwhile, and claimed again
            return None
        valid = {
            claim: ValidClaim(claim, *attempts[claim], is_past_deadline=False, has_lapsed=False)
            for claim in claims
        }
        self._records.require_unchanged(tx, cached, valid.values())
        return cached, valid

    def _executions_of(self, tx: Transaction, claims: Sequence[Claim]) -> list[int]:
        known = [self._executions.get(claim) for claim in claims]
        if None in known:
            return list(self._records.executions_of(tx, claims).values())
        return [number for number in known if number is not None]


def _end_if_valid(
    settlement: Settlement, valid: Mapping[Claim, ValidClaim], loaded: LoadedExecutions
) -> bool:
    """Whether it is the claimant's to end; then it is ended."""
    found = valid.get(settlement.claim)
    if found is None:
        return False
    state = loaded[found.execution][0]
    attempt = state.open_attempts.get(found.node)
    if attempt is None or attempt.seq != settlement.claim.seq:
        return False
    if settlement.outcome is RowOutcome.DONE:
        state.succeed(attempt, (settlement.result or b"null").decode())
    else:
        state.fail(attempt, _end_cause(settlement), error=settlement.error, delay=settlement.delay)
    return True


def _require_only(
    written: Sequence[tuple[ExecutionState, GraphId]], claims: Sequence[Claim]
) -> None:
    """Who is at the other attempts, and with which term, is not recalled: to call one off it has
    to be read.
    """
    ours = {claim.seq for claim in claims}
    if any(
        attempt_end.seq not in ours for state, _ in written for attempt_end in state.attempt_ends
    ):
        raise PreconditionFailedError


def _end_cause(settlement: Settlement) -> AttemptEndCause:
    """Why an attempt came to nothing; `reason` says it, where it was not the code that raised."""
    if settlement.outcome is RowOutcome.DEAD:
        return AttemptEndCause.PERMANENT
    return AttemptEndCause(settlement.reason) if settlement.reason else AttemptEndCause.RAISED
