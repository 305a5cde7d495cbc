"""`ExecutionSummary`: an execution in a list."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from longwatch.flow.execution_state import ExecutionStatus
from longwatch.store.database import Row


@dataclass(frozen=True, slots=True)
class ExecutionSummary:
    """An execution in a list. `number` rises with every new execution."""

    id: str
    graph: str
    version: str
    revision: int
    cancelled: bool
    created_at: float
    updated_at: float
    number: int
    waiting: int
    running: int
    failed: int
    values: int
    status: ExecutionStatus = ExecutionStatus.ACTIVE
    cursor: str = ""
    """A search with the same order continues after it: `flow.executions(after=cursor)`."""

    @classmethod
    def from_row(cls, row: Row) -> Self:
        return replace(cls(*row), cancelled=bool(row[4]), status=ExecutionStatus(row[12]))

    @property
    def state(self) -> str:
        """One word.

        archived    it was archived
        cancelled   `cancel` ended it
        running     a worker computes a node
        waiting     an attempt waits for a worker, or for its time
        failed      a node was given up
        done        nothing is left to compute
        idle        a node waits for an input
        """
        if self.status is ExecutionStatus.ACTIVE:
            return "running" if self.running else "waiting"
        return self.status.name.lower()
