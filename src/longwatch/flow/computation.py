"""What an execution shows of its nodes: values and attempts."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import msgspec

from longwatch.store.database import Row


class Value(NamedTuple):
    """The value of a node. `fresh`: it was computed from the present inputs."""

    value: Any
    revision: int
    fresh: bool


class Computation(NamedTuple):
    """One attempt. Times are wall time.

    `heartbeat_in` and `deadline_in` are the seconds left of a running attempt, `ready_in` those of
    a delayed one. `failures`, `crashes` and `lost` count the earlier attempts with the same inputs.
    """

    number: int
    node: str
    state: str
    attempt: int
    computed_with: dict[str, int]
    created_at: float
    started_at: float | None
    ended_at: float | None
    owner: int | None
    term: int
    end_cause: str | None
    error: str | None
    last_heartbeat_at: float | None
    heartbeat_in: float | None
    deadline_in: float | None
    ready_in: float | None
    crashes: int
    releases: int
    lost: int = 0
    failures: int = 0
    traceback: str | None = None
    """The traceback of the exception that the code raised."""
    element: int | None = None
    """The index of the element of a map that it computes; None: a node."""

    @classmethod
    def from_row(cls, row: Row) -> Self:
        return cls(*row)._replace(computed_with=msgspec.json.decode(row[4]))
