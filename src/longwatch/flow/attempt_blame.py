"""Decides how an attempt ends whose claim a sweeper reclaims: with which cause, or unspent.

The engine of a worker renews the heartbeats of all its attempts (`heartbeat_deadline`) in one
statement, or the parent of the worker does, whatever their code does. The attempt watchdog
beats for the slot on the beat page while the attempt keeps its limits; the code itself does so with
`context.beat`. So a missed heartbeat only proves that renewals did not arrive. The page shows
whether the attempt was silent as well:

    owner               attempt                               ends as
    gone                by `OwnerEnd.blame`: it ran, as the   `crash`; with its parent or machine,
                        page proves; or nothing is known      or unknown: `lost`
    gone, or drained    had not begun, or the owner drained   unspent
    alive               had not begun                         unspent
                        past `abandon_after_seconds`          `deadline`, a failed attempt
                        its slot gave no beat, either         `heartbeat`, a failed attempt
                        its slot beats: the engine could not  unspent
                        renew
    cannot be seen,     past `abandon_after_seconds`          `deadline`, a failed attempt
    but renews

A slot counts as silent after half of `heartbeat_timeout_seconds` without a beat. Renewals come at
least twice in one timeout. So when the heartbeat of a frozen process is missed, its last beat is
at least half a timeout old.

The firing of a tick runs no code, so it always returns to its queue unspent.

A live owner without a page cannot show that it works: a missed heartbeat is silence.
"""

from __future__ import annotations

from typing import NamedTuple

from longwatch.flow.attempt import AttemptEndCause
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.records import ValidClaim
from longwatch.store.blame import Blame, OwnerEnd
from longwatch.store.claims import Claim
from longwatch.store.database import Row

_SILENT_SHARE = 0.5
"""The share of `heartbeat_timeout_seconds` without a beat after which a slot is silent."""
_CAUSES = {
    Blame.CRASH: AttemptEndCause.CRASH,
    Blame.LOST: AttemptEndCause.LOST,
    Blame.FAILURE: AttemptEndCause.HEARTBEAT,
    Blame.RELEASE: None,
}
_CAUSES_OF_CODE = frozenset({AttemptEndCause.DEADLINE, AttemptEndCause.HEARTBEAT})
"""Causes that no renewal would have prevented."""


class OwnerLook(NamedTuple):
    """An owner as a sweeper found it. `has_ended`: it has certainly ended. `looked_at`: when its
    page was read, on the clock of the page. `is_held`: its renewals may still arrive
    (`lapsed_owners`).
    """

    end: OwnerEnd
    has_ended: bool
    looked_at: float
    is_held: bool = False

    def lease(self, row: Row) -> ReclaimedLease:
        """A lease of this owner: seq, owner, term, execution, heartbeat_timeout."""
        return ReclaimedLease(Claim(*row[:3]), row[3], row[4], self)


class ReclaimedLease(NamedTuple):
    """A lease to be reclaimed."""

    claim: Claim
    execution: int
    heartbeat_timeout: float | None
    look: OwnerLook

    def is_due(self, valid: ValidClaim) -> bool:
        """Whether to reclaim the lease now: its owner has ended, or it has lapsed. A held owner
        keeps its lapsed leases, except those of attempts that are too slow or silent.
        """
        if self.look.has_ended:
            return True
        return valid.has_lapsed and (
            not self.look.is_held or self.end_cause(valid) in _CAUSES_OF_CODE
        )

    def end_cause(self, valid: ValidClaim) -> AttemptEndCause | None:
        """The cause with which the attempt ends; None if it returns to its queue unspent."""
        if self.look.end.is_alive:
            return self._cause_if_alive(valid)
        is_renewed = not (self.look.has_ended or valid.is_heartbeat_missed)
        if is_renewed and valid.is_past_deadline and self._may_have_begun:
            return AttemptEndCause.DEADLINE
        return _CAUSES[self.look.end.blame(self.claim.seq)]

    def _cause_if_alive(self, valid: ValidClaim) -> AttemptEndCause | None:
        if not self._may_have_begun:
            return None
        if valid.is_past_deadline:
            return AttemptEndCause.DEADLINE
        return AttemptEndCause.HEARTBEAT if self._is_silent else None

    @property
    def _may_have_begun(self) -> bool:
        page = self.look.end.page
        return page is None or self.claim.seq in page.running_rows

    @property
    def _is_silent(self) -> bool:
        page = self.look.end.page
        if page is None:
            return not self.look.end.has_page
        older_than = (self.heartbeat_timeout or 0.0) * _SILENT_SHARE
        silent = (
            page.silent_rows | page.stalled_rows(self.look.looked_at, older_than=older_than).keys()
        )
        return not page.draining and self.claim.seq in silent


def end_cause(
    lease: ReclaimedLease, valid: ValidClaim, state: ExecutionState
) -> AttemptEndCause | None:
    """The cause with which an attempt of this execution ends; None if it returns to its queue
    unspent.
    """
    attempt = state.open_attempts.get(valid.node)
    is_firing = attempt is not None and attempt.due_at is not None
    return None if is_firing else lease.end_cause(valid)
