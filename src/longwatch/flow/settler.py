"""Settles attempts: load or recall, validate, apply, propagate, save, notify, in one transaction.

    load        lock the executions of the attempts, or recall them from the cache, unchanged
    validate    keep the settlements whose claim still holds; a late one changes nothing
    apply       keep the result of an attempt, or count its failure
    propagate   open, cancel and clear what follows from that
    save        write all of it, with as many statements as for one attempt
    notify      deliver values to waiters of this process, and wake workers for freed capacity

So a result is never stored without its consequences. A released attempt is no result: its claim
ends and it goes back to its queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from longwatch.core.events.base import Events
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.flow.attempt import Attempt, AttemptEndCause
from longwatch.flow.eager_lease.execution_cache import (
    ExecutionCache,
    LeasedAttempts,
    require_own_ends,
)
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.node_record import GiveUpReason
from longwatch.flow.records import (
    AttemptTaker,
    LoadedClaims,
    LoadedExecutions,
    Records,
    ValidClaim,
    notify_workers,
)
from longwatch.flow.registry import Registry
from longwatch.flow.ticks import settle_tick
from longwatch.flow.waiters import Waiters
from longwatch.flow.work_reports import emit_ends_on_commit
from longwatch.store.blame import Blame
from longwatch.store.claims import Claim, Claims
from longwatch.store.database import Transaction


@dataclass(frozen=True, slots=True)
class SettledAttempts:
    """What `settle` did: whether each claim still held, the executions that it saved, and the
    graphs that have new attempts in their queues.
    """

    settled: dict[Claim, bool]
    written: Sequence[ExecutionState] = ()
    ready: set[GraphId] = field(default_factory=set)


class AttemptSettler:
    """Settles attempts in a transaction of the caller."""

    def __init__(
        self, records: Records, registry: Registry, claims: Claims, waiters: Waiters
    ) -> None:
        self.cache = ExecutionCache(records)
        self.events = Events()
        self._records = records
        self._registry = registry
        self._claims = claims
        self._waiters = waiters
        self._executions: dict[Claim, int] = {}

    def record_commit(
        self,
        settlements: Iterable[Settlement],
        claimed: Iterable[ClaimedRow],
        written: Iterable[ExecutionState],
        *,
        owner: int,
        leased: LeasedAttempts = MappingProxyType({}),
    ) -> None:
        """Remember the claims and executions of an exchange, after the commit."""
        self.forget(settlements)
        self._executions.update((each.claim, each.item.execution) for each in claimed)
        self.cache.put(written, owner, leased)

    def forget(self, settlements: Iterable[Settlement]) -> None:
        """Forget settled attempts, after the commit."""
        for settlement in settlements:
            self._executions.pop(settlement.claim, None)

    def settle(
        self,
        tx: Transaction,
        settlements: Sequence[Settlement],
        taker: AttemptTaker | None = None,
        *,
        recall: bool = False,
    ) -> SettledAttempts:
        """Settle these attempts together; `taker` may take over the attempts that they open.

        With `recall`, executions may come from the cache, and the transaction ends with
        PreconditionFailedError if one of them has changed.
        """
        released = [each for each in settlements if each.outcome is RowOutcome.RELEASED]
        ended = {
            each.claim: each for each in settlements if each.outcome is not RowOutcome.RELEASED
        }
        result = (
            self._end_attempts(tx, ended, taker, recall=recall) if ended else SettledAttempts({})
        )
        for each in released:
            result.settled[each.claim] = self._release(tx, each)
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
        settlements: Mapping[Claim, Settlement],
        taker: AttemptTaker | None,
        *,
        recall: bool,
    ) -> SettledAttempts:
        executions = {claim: self._executions.get(claim) for claim in settlements}
        recalled = self.cache.recall(tx, executions) if recall else None
        loaded, valid = recalled or self._load(tx, executions)
        attempts = _validate(settlements, loaded, valid)
        for claim, (state, attempt) in attempts.items():
            self._apply(settlements[claim], state, attempt)
        written = list({state.number: state for state, _ in attempts.values()}.values())
        for state in written:
            self._registry.propagate(tx, state)
        if recalled is not None:
            require_own_ends(written, settlements)
        ready = self._records.save(tx, written, taker)
        seconds = {claim.seq: each.seconds for claim, each in settlements.items()}
        emit_ends_on_commit(tx, self.events, written, seconds)
        for state in written:
            self._notify(tx, state)
        return SettledAttempts({claim: claim in attempts for claim in settlements}, written, ready)

    def _load(self, tx: Transaction, executions: Mapping[Claim, int | None]) -> LoadedClaims:
        numbers = [number for number in executions.values() if number is not None]
        if len(numbers) < len(executions):
            numbers = list(self._records.executions_of(tx, executions).values())
        return self._records.load_with_claims(tx, numbers, list(executions))

    def _apply(self, settlement: Settlement, state: ExecutionState, attempt: Attempt) -> None:
        if settlement.outcome is not RowOutcome.DONE:
            state.fail(
                attempt,
                _end_cause(settlement),
                error=settlement.error,
                traceback=settlement.traceback,
                delay=settlement.delay,
            )
            return
        result = (settlement.result or b"null").decode()
        node = self._registry.graphs[state.graph_id].nodes[attempt.node]
        if node.is_tick:
            settle_tick(node, state, attempt, result, now=self._registry.clock.wall())
        else:
            state.succeed(attempt, result)

    def _notify(self, tx: Transaction, state: ExecutionState) -> None:
        registered = self._registry.registered().get(state.graph_id)
        if registered is not None:
            self._waiters.deliver_on_commit(tx, registered.graph, state)
            if registered.is_capped:  # the ended attempt makes room for one of another worker
                notify_workers(tx, [state.graph_id])


def _validate(
    settlements: Iterable[Claim], loaded: LoadedExecutions, valid: Mapping[Claim, ValidClaim]
) -> dict[Claim, tuple[ExecutionState, Attempt]]:
    """The open attempts, with their executions, of the claims that still hold."""
    attempts = {}
    for claim in settlements:
        found = valid.get(claim)
        if found is not None:
            state = loaded[found.execution]
            attempt = state.open_attempts.get(found.node)
            if attempt is not None and attempt.seq == claim.seq:
                attempts[claim] = state, attempt
    return attempts


def _end_cause(settlement: Settlement) -> AttemptEndCause:
    """The cause of a failed attempt: `reason`, or else that the code raised. A row that the engine
    gives up because it failed counts as one failure, and `max_attempts` decides.
    """
    if settlement.outcome is RowOutcome.DEAD:
        is_last_failure = settlement.reason == GiveUpReason.FAILED
        return AttemptEndCause.RAISED if is_last_failure else AttemptEndCause.PERMANENT
    if settlement.outcome is RowOutcome.CRASHED:
        return AttemptEndCause.CRASH
    return AttemptEndCause(settlement.reason) if settlement.reason else AttemptEndCause.RAISED
