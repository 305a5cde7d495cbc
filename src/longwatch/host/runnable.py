"""What a group runs: anything with this shape."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self, runtime_checkable


@runtime_checkable
class Runnable(Protocol):
    """Something that runs until it is told to stop. A group calls `run` in a thread of its own.

    `heartbeat` and `name` are optional, and taken by getattr; so are `drain` and `resume`, which
    stop and resume taking new work.
    """

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Work until `max_iterations` polls are made, or `shutdown` is called; blocks."""

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Have `run` return: finish what is in flight. True when it has, within the timeout. May
        be called from any thread.
        """

    @property
    def running(self) -> bool: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Shut down."""
