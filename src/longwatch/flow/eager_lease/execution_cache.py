"""Executions as this worker left them: settling its next attempt need not load them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from longwatch.core.clock import Clock
from longwatch.flow.attempt import Attempt
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.records import LoadedClaims, Records, ValidClaim
from longwatch.store.claims import Claim
from longwatch.store.database import Database, PreconditionFailedError, Transaction

_MAX_CACHED = 1000
_MAX_CACHED_CHARACTERS = 64 << 10
_CURRENT_FOR = 0.05
"""Seconds after its commit for which a cached execution counts as its present state."""

T = TypeVar("T")
LeasedAttempts = Mapping[str, Mapping[str, Attempt]]
"""The attempts that a transaction has leased as it inserted them, by execution id and node."""


class CachedExecution(NamedTuple):
    """An execution as a commit left it."""

    state: ExecutionState
    committed_at: float


class ExecutionCache:
    """Executions whose open attempts are all leased by one worker of this process.

    Each is taken out to be used once. Thread-safe.
    """

    def __init__(self, records: Records, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._cached: dict[int, CachedExecution] = {}

    def is_computing(self, number: int, node: str, *, known_nodes: int) -> bool:
        """Whether this worker leases all open attempts of an execution that was committed a moment
        ago, with no value of this node, no failed node, and all nodes of its graph.

        A caller that waits for the node then needs no read. Its value can only come from an attempt
        that this worker settles later, and that settlement finds the caller waiting.
        """
        cached = self._cached.get(number)
        if cached is None or self._clock.monotonic() - cached.committed_at >= _CURRENT_FOR:
            return False
        state = cached.state
        return (
            not state.is_set(node)
            and state.progress.known_nodes >= known_nodes
            and not any(record.failed for record in list(state.nodes.values()))
        )

    def forget(self, number: int) -> None:
        """Drop an execution that is about to change."""
        self._cached.pop(number, None)

    def recall(
        self, tx: Transaction, executions: Mapping[Claim, int | None]
    ) -> LoadedClaims | None:
        """What `Records.load_with_claims` would return, if all executions are cached. The
        transaction ends with PreconditionFailedError if one of them has changed in the store.
        """
        cached = {
            number: self._cached.pop(number or 0, None) for number in set(executions.values())
        }
        loaded = {each.state.number: each.state for each in cached.values() if each is not None}
        if len(loaded) < len(cached):
            return None
        leased = {
            Claim(attempt.seq, attempt.owner or 0, attempt.term): (state.number, attempt.node)
            for state in loaded.values()
            for attempt in state.open_attempts.values()
        }
        if any(claim not in leased for claim in executions):  # released and claimed again
            return None
        valid = {
            claim: ValidClaim(
                claim, *leased[claim], is_past_deadline=False, is_heartbeat_missed=False
            )
            for claim in executions
        }
        self._records.require_unchanged(tx, loaded, valid.values())
        return loaded, valid

    def put(self, written: Iterable[ExecutionState], owner: int, leased: LeasedAttempts) -> None:
        """Keep those of these executions, whose changes were just committed, that only this owner
        works on. `leased` are the new attempts that it holds already.
        """
        committed_at = self._clock.monotonic()
        for state in written:
            opened = leased.get(state.id, {})
            if len(opened) == len(state.new_attempts):
                state.mark_written(opened)
                if _is_cacheable(state, owner):
                    self._cached[state.number] = CachedExecution(state, committed_at)
        for number in list(self._cached)[:-_MAX_CACHED]:
            self._cached.pop(number, None)


def write_recalling(database: Database, work: Callable[..., T]) -> T:
    """Run `work(tx, recall=True)`, and with `recall=False` if a recalled execution has changed."""
    try:
        return database.write_inline(partial(work, recall=True))
    except PreconditionFailedError:
        return database.write_inline(partial(work, recall=False))


def require_own_ends(written: Sequence[ExecutionState], claims: Iterable[Claim]) -> None:
    """Raise PreconditionFailedError if a recalled execution cancels an attempt that is not settled
    here: its present term is unknown, so the execution has to be loaded.
    """
    own = {claim.seq for claim in claims}
    if any(end.seq not in own for state in written for end in state.attempt_ends):
        raise PreconditionFailedError


def _is_cacheable(state: ExecutionState, owner: int) -> bool:
    if (
        state.cancelled
        or not state.open_attempts
        or any(attempt.owner != owner for attempt in state.open_attempts.values())
    ):
        return False
    return sum(len(record.value or "") for record in state.nodes.values()) <= _MAX_CACHED_CHARACTERS
