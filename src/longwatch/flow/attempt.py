"""Attempts as values: their states, their ends, and what a transaction inserts and ends."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from longwatch.store.blame import DEFAULT_BUDGET

ENDED = 3
"""The `lease_state` of an ended attempt; the lower values are those of every claimable row."""
DELAYED = 1
LEASED = 2
MAP_OPEN = -1
"""The `lease_state` of the open attempt of a map: no claim takes it."""


class AttemptState(StrEnum):
    """The state of one attempt. The first two are open."""

    NOT_SET = "not_set"
    COMPUTING = "computing"
    SUCCESS = "success"
    FAILED = "failed"
    ABANDONED = "abandoned"
    CANCELLED = "cancelled"


class AttemptEndCause(StrEnum):
    """Why an attempt has ended."""

    DONE = "done"
    RAISED = "raised"
    PERMANENT = "permanent"
    DEADLINE = "deadline"
    HEARTBEAT = "heartbeat"
    CRASH = "crash"
    LOST = "lost"
    STALLED = "stalled"
    MEMORY = "memory"
    KILLED = "killed"
    ASKED = "asked"
    SUPERSEDED = "superseded"
    GATE = "gate"
    EXECUTION = "execution"


ABANDONING_CAUSES = frozenset(
    {
        AttemptEndCause.DEADLINE,
        AttemptEndCause.HEARTBEAT,
        AttemptEndCause.CRASH,
        AttemptEndCause.LOST,
        AttemptEndCause.STALLED,
        AttemptEndCause.MEMORY,
        AttemptEndCause.KILLED,
        AttemptEndCause.ASKED,
    }
)
"""Causes that make an attempt abandoned rather than failed: its progress is unknown."""


class AttemptSpec(NamedTuple):
    """The queue and the limits of an attempt."""

    queue: int
    heartbeat_timeout: float | None
    abandon_after: float
    max_attempts: int


class Attempt(NamedTuple):
    """An open attempt."""

    seq: int
    node: str
    lease_state: int
    computed_with: str
    number: int
    spec: AttemptSpec
    term: int = 0
    owner: int | None = None
    due_at: float | None = None
    """When a tick fires, as wall time; None for an attempt that computes."""


class NewAttempt(NamedTuple):
    """An attempt that the next save inserts."""

    node: str
    computed_with: str
    number: int
    failures: int
    crashes: int
    lost: int
    delay: float
    spec: AttemptSpec
    due_at: float | None = None
    pending: int | None = None
    """The elements of a map that are left to compute; None for the attempt of another node, and
    until they are planned.
    """
    element: int | None = None
    """The element of a map that it computes; None: a node."""

    @property
    def is_suspect(self) -> bool:
        return DEFAULT_BUDGET.is_suspect(crashes=self.crashes, lost=self.lost)

    def columns(self) -> dict[str, object]:
        """The columns of its row, without those of its execution."""
        return {
            "queue": self.spec.queue,
            "delay": float(self.delay),
            "node": self.node,
            "attempt": self.number,
            "failures": self.failures,
            "crashes": self.crashes,
            "lost": self.lost,
            "computed_with": self.computed_with,
            "heartbeat_timeout": self.spec.heartbeat_timeout,
            "abandon_after": float(self.spec.abandon_after),
            "max_attempts": self.spec.max_attempts,
            "due_at": self.due_at,
            "element": self.element,
        }


class AttemptEnd(NamedTuple):
    """The end of an open attempt."""

    seq: int
    state: AttemptState
    cause: AttemptEndCause
    error: str | None = None
    traceback: str | None = None
    node: str = ""
