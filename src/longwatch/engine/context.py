"""The context of one claimed row: its state for the code that runs it, and its heartbeats."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, MutableMapping
from typing import Any

from longwatch.core.cancel import CancelToken
from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.heartbeat import Heartbeat
from longwatch.core.tracing import Span
from longwatch.engine.claim_source import ClaimedRow, Settlement
from longwatch.host.beatpage import BeatPage


class SlotActivity:
    """The heartbeat of one slot, and its entry on the beat page, which other processes can read.
    `begin` is for the slot's thread; the other methods are thread-safe.
    """

    __slots__ = ("_monotonic", "_page", "_page_lock", "_row", "_slot", "heartbeat", "token_lock")

    def __init__(self, clock: Clock, page: BeatPage, slot: int) -> None:
        self.heartbeat = Heartbeat(clock)
        self.token_lock = threading.Lock()
        self._monotonic = clock.monotonic
        self._row = 0
        self._page_lock = threading.Lock()
        self._page = page
        self._slot = slot

    def beat(self, progress: object = None) -> None:
        self.heartbeat.beat(progress)
        self._page.beat(self._slot, self._monotonic())

    def begin(self, row: int, now: float) -> None:
        """Record that this row runs: it is to blame if the process dies."""
        self.heartbeat.beat()
        with self._page_lock:
            self._row = row
            self._page.begin(self._slot, row, now)

    def end(self) -> None:
        """Record that no row runs."""
        with self._page_lock:
            self._row = 0
            self._page.end(self._slot)

    def mark_silent(self, row: int) -> None:
        """Mark this row as sending no heartbeat. Does nothing if the row has ended."""
        with self._page_lock:
            if row == self._row:
                self._page.mark_silent(self._slot)


class RowContext:
    """The context of one run of one row.

    Code may check `cancelled` and `lease_lost` from time to time: the first asks it to stop, the
    second means that its result will not count. `settled`: the row was settled while the code ran,
    so its lease cannot be lost. `forced_settlement`: how the row is settled, whatever the code
    returns. `span`: the span of the run; None while tracing is off.
    """

    __slots__ = (
        "_activity",
        "_token",
        "_token_lock",
        "claimed",
        "deadline",
        "forced_settlement",
        "lease_lost",
        "settled",
        "span",
        "started_at",
    )

    def __init__(
        self, claimed: ClaimedRow, activity: SlotActivity, deadline: Deadline, *, started_at: float
    ) -> None:
        self.claimed = claimed
        self.deadline = deadline
        self.started_at = started_at
        self.lease_lost = False
        self.settled = False
        self.forced_settlement: Settlement | None = None
        self.span: Span | None = None
        self._token_lock = activity.token_lock
        self._activity: SlotActivity | None = activity
        self._token: CancelToken | None = None

    def beat(self, progress: object = None) -> None:
        """Send a heartbeat, with the progress of the work."""
        if (activity := self._activity) is not None:
            activity.beat(progress)

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self.claimed.attempt

    @property
    def fencing_token(self) -> int:
        """Rises with every delivery of the row. Pass it to systems that can refuse a smaller
        one.
        """
        return self.claimed.claim.term

    @property
    def cancel(self) -> CancelToken:
        """The token to wait for, or to pass on, so that the code stops in time. Made at its first
        use, because most rows need none.
        """
        if self._token is None:
            with self._token_lock:
                if self._token is None:
                    self._token = CancelToken()
        return self._token

    @property
    def cancelled(self) -> bool:
        return self._token is not None and self._token.cancelled

    def lose_lease(self) -> None:
        """Mark the lease as lost and cancel the code: its result will not count."""
        self.lease_lost = True
        self.cancel.cancel("lease_lost")

    def close(self) -> None:
        """End the run. Later heartbeats, from threads that were left behind, are ignored."""
        self._activity = None


class UserContext:
    """The part of a `RowContext` that is for users."""

    __slots__ = ("_row_context",)

    def __init__(self, row_context: RowContext) -> None:
        self._row_context = row_context

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._row_context.attempt

    @property
    def fencing_token(self) -> int:
        """Rises with every attempt. Pass it to systems that can refuse a smaller one."""
        return self._row_context.fencing_token

    @property
    def lease_lost(self) -> bool:
        """Whether the lease is lost, so that the result will not count."""
        return self._row_context.lease_lost

    @property
    def trace_headers(self) -> dict[str, str]:
        """The headers by which another program continues the trace of this work (`traceparent` and
        so on); empty while tracing is off.
        """
        span = self._row_context.span
        return {} if span is None else span.headers()

    @property
    def cancelled(self) -> bool:
        """Whether the code should stop."""
        return self._row_context.cancelled

    @property
    def cancel(self) -> CancelToken:
        """The token to wait for, or to pass on, so that the code stops in time."""
        return self._row_context.cancel


class IdentifiedLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds ids to the `extra` of every record."""

    def __init__(self, logger: logging.Logger, ids: Mapping[str, object]) -> None:
        super().__init__(logger, ids)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
