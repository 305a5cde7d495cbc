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
from itertools import chain
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
from longwatch.flow.map_settler import ElementEnding, EndedMaps, end_elements, finish_map
from longwatch.flow.mutations import MutateNode, write_target
from longwatch.flow.node_record import GiveUpReason
from longwatch.flow.records import (
    AttemptPlace,
    AttemptTaker,
    LoadedClaims,
    LoadedExecutions,
    Records,
    ValidClaim,
    notify_workers,
)
from longwatch.flow.registry import Registry
from longwatch.flow.save_callbacks import SaveCallbacks
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
        self,
        records: Records,
        registry: Registry,
        claims: Claims,
        waiters: Waiters,
        save_callbacks: SaveCallbacks,
    ) -> None:
        self.cache = ExecutionCache(records, registry.clock)
        self.events = Events()
        self._records = records
        self._registry = registry
        self._claims = claims
        self._waiters = waiters
        self._save_callbacks = save_callbacks
        self._places: dict[Claim, AttemptPlace] = {}

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
        self._places.update(
            (each.claim, AttemptPlace(each.item.execution, each.item.element)) for each in claimed
        )
        self.cache.put(written, owner, leased)

    def forget(self, settlements: Iterable[Settlement]) -> None:
        """Forget settled attempts, after the commit."""
        for settlement in settlements:
            self._places.pop(settlement.claim, None)

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
        places = self._find_places(tx, settlements)
        of_elements = {claim for claim, place in places.items() if place.element is not None}
        executions = {
            claim: place.execution if (place := places.get(claim)) else None
            for claim in settlements
            if claim not in of_elements
        }
        ended = self._end_elements(tx, [settlements[each] for each in of_elements], places)
        recalled = (
            self.cache.recall(tx, executions) if recall and not of_elements and executions else None
        )
        loaded, valid = recalled or self._load(tx, executions, ended)
        attempts = _validate(settlements, loaded, valid)
        for claim, (state, attempt) in attempts.items():
            self._apply(settlements[claim], state, attempt)
        for execution, node in ended.finished:
            finish_map(tx, self._records, loaded[execution], node)
        changed = {state.number: state for state, _ in attempts.values()}
        changed |= {number: loaded[number] for number, _ in ended.finished}
        written = list(changed.values())
        for state in written:
            self._registry.propagate(tx, state)
        if recalled is not None:
            require_own_ends(written, settlements)
        ready = self._records.save(tx, written, taker)
        seconds = {claim.seq: each.seconds for claim, each in settlements.items()}
        emit_ends_on_commit(tx, self.events, chain(written, ended.by_execution.values()), seconds)
        for state in written:
            self._notify(tx, state)
        self._notify_capped(tx, {each.graph_id for each in ended.by_execution.values()})
        held = attempts.keys() | ended.claims
        return SettledAttempts(
            {claim: claim in held for claim in settlements}, written, ready | ended.ready
        )

    def _find_places(
        self, tx: Transaction, claims: Mapping[Claim, Settlement]
    ) -> dict[Claim, AttemptPlace]:
        """The place of each attempt that is known here or in the store."""
        places = {claim: self._places[claim] for claim in claims if claim in self._places}
        unknown = [claim for claim in claims if claim not in places]
        found = self._records.places_of(tx, unknown) if unknown else {}
        return places | {claim: found[claim.seq] for claim in unknown if claim.seq in found}

    def _end_elements(
        self,
        tx: Transaction,
        settlements: Sequence[Settlement],
        places: Mapping[Claim, AttemptPlace],
    ) -> EndedMaps:
        """End the attempts of elements. It locks the executions of the others, too."""
        if not settlements:
            return EndedMaps()
        return end_elements(
            tx,
            self._records,
            [_element_ending(each) for each in settlements],
            [place.execution for place in places.values()],
        )

    def _load(
        self, tx: Transaction, executions: Mapping[Claim, int | None], ended: EndedMaps
    ) -> LoadedClaims:
        numbers = [number for number in executions.values() if number is not None]
        numbers += [number for number, _ in ended.finished]
        if not numbers:
            return {}, {}
        return self._records.load_with_claims(tx, numbers, list(executions))

    def _notify_capped(self, tx: Transaction, graph_ids: Iterable[GraphId]) -> None:
        registered = self._registry.registered()
        notify_workers(
            tx, [each for each in graph_ids if each in registered and registered[each].is_capped]
        )

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
            settle_tick(node, state, attempt, result, now=self._registry.wall())
            return
        state.succeed(attempt, result)
        if isinstance(node, MutateNode):
            write_target(node, state, result)

    def _notify(self, tx: Transaction, state: ExecutionState) -> None:
        registered = self._registry.registered().get(state.graph_id)
        if registered is not None:
            self._waiters.deliver_on_commit(tx, registered.graph, state)
            self._save_callbacks.call_on_commit(tx, registered.graph, state, self.events)
        # the ended attempt makes room under a cap for one of another worker
        self._notify_capped(tx, [state.graph_id])


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


def _element_ending(settlement: Settlement) -> ElementEnding:
    if settlement.outcome is RowOutcome.DONE:
        result = (settlement.result or b"null").decode()
        return ElementEnding(settlement.claim, AttemptEndCause.DONE, result)
    return ElementEnding(
        settlement.claim,
        _end_cause(settlement),
        error=settlement.error,
        traceback=settlement.traceback,
        delay=settlement.delay,
    )


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
