"""How an attempt ends whose claim a sweeper reclaims: by which cause, or unspent.

The heartbeat of an attempt in the store (`heartbeat_deadline`) is renewed by the engine of its
worker, or by the parent of that, for all its attempts in one statement, whatever their code does.
The beats of the slot on the beat page are made by the attempt watchdog of the worker while the
attempt keeps its limits, or by the code itself (`context.beat`). So a missed heartbeat says that
renewals did not arrive, and only the page says whether the attempt was silent as well:

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
least twice in that time, so a process that froze between two of them has not beaten for half of it
or longer when its heartbeat is missed.

A live owner without a page cannot show that it works: a missed heartbeat is silence.
"""

from __future__ import annotations

from typing import NamedTuple

from longwatch.flow.execution_state import AttemptEndCause
from longwatch.flow.records import ValidClaim
from longwatch.store.blame import Blame, OwnerEnd
from longwatch.store.claims import Claim
from longwatch.store.database import Row

_SILENT_SHARE = 0.5
"""Of `heartbeat_timeout_seconds`: a slot without a beat for so long is silent."""
_CAUSES = {
    Blame.CRASH: AttemptEndCause.CRASH,
    Blame.LOST: AttemptEndCause.LOST,
    Blame.FAILURE: AttemptEndCause.HEARTBEAT,
    Blame.RELEASE: None,
}
_CAUSES_OF_CODE = frozenset({AttemptEndCause.DEADLINE, AttemptEndCause.HEARTBEAT})
"""Causes that no renewal would have prevented."""


class OwnerLook(NamedTuple):
    """What was seen of an owner. `has_ended`: for certain. `looked_at`: when its page was read, on
    the clock of the page. `is_held`: its renewals may still arrive (`lapsed_owners`).
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
        """Whether it is reclaimed now: its owner has ended, or it has lapsed. An owner that is held
        keeps what it has not renewed, but for attempts that are too slow or silent.
        """
        if self.look.has_ended:
            return True
        return valid.has_lapsed and (
            not self.look.is_held or self.end_cause(valid) in _CAUSES_OF_CODE
        )

    def end_cause(self, valid: ValidClaim) -> AttemptEndCause | None:
        """The cause that its attempt ends with; None: it goes back to its queue unspent."""
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
