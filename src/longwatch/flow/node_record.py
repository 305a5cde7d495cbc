"""The stored state of a node, with the budgets of its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longwatch.flow.attempt import AttemptEndCause
from longwatch.store.blame import DEFAULT_BUDGET

_OWN_BUDGET_CAUSES = frozenset({AttemptEndCause.CRASH, AttemptEndCause.LOST})
"""Causes that do not count as a failed attempt."""


class GiveUpReason(StrEnum):
    """Why a node was given up: which of its budgets is spent."""

    FAILED = "failed"
    POISON = "poison"
    LOST = "lost"


@dataclass(slots=True)
class NodeRecord:
    """The stored state of a node: its value as JSON, and the attempts that were spent on its
    present inputs.
    """

    is_set: bool = False
    value: str | None = None
    revision: int = 0
    computed_with: str | None = None
    attempted_with: str | None = None
    failed_attempts: int = 0
    crashes: int = 0
    failed: bool = False
    error: str | None = None
    term: int = 0
    """The highest term of its ended attempts."""
    lost: int = 0
    traceback: str | None = None
    """The traceback of the last attempt that raised."""
    paused: bool = False
    """Whether a recurring tick is paused."""

    @property
    def spent_attempts(self) -> int:
        """How many attempts have ended without a result, for any cause."""
        return self.failed_attempts + self.crashes + self.lost

    @property
    def give_up_reason(self) -> GiveUpReason | None:
        """Why the node was given up; None if it was not."""
        if not self.failed:
            return None
        if self.crashes >= DEFAULT_BUDGET.max_crashes:
            return GiveUpReason.POISON
        return GiveUpReason.LOST if self.lost >= DEFAULT_BUDGET.max_lost else GiveUpReason.FAILED

    def reset_attempts(self, inputs: str | None) -> None:
        """Reset all budgets, for attempts with these inputs."""
        self.attempted_with, self.failed, self.error, self.traceback = inputs, False, None, None
        self.failed_attempts = self.crashes = self.lost = 0

    def count(self, cause: AttemptEndCause) -> None:
        """Count an ended attempt against the budget of this cause."""
        self.crashes += cause is AttemptEndCause.CRASH
        self.lost += cause is AttemptEndCause.LOST
        self.failed_attempts += cause not in _OWN_BUDGET_CAUSES
