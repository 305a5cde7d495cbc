"""The context of one claimed row: what its code can read, and what it can report."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, MutableMapping
from typing import Any

from longwatch.core.cancel import CancelToken
from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.heartbeat import Heartbeat
from longwatch.engine.claim_source import ClaimedRow, Settlement
from longwatch.host.beatpage import BeatPage


class SlotActivity:
    """The sign of life of one slot: its heartbeat and its place on the beat page, which is
    readable from outside. `begin` is for the slot's thread, the rest for any.
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
        """From here on this row is to blame if the process dies."""
        self.heartbeat.beat()
        with self._page_lock:
            self._row = row
            self._page.begin(self._slot, row, now)

    def end(self) -> None:
        """From here on no row is."""
        with self._page_lock:
            self._row = 0
            self._page.end(self._slot)

    def mark_silent(self, row: int) -> None:
        """Declare that the code of this row gives no beat; nothing if it has ended."""
        with self._page_lock:
            if row == self._row:
                self._page.mark_silent(self._slot)


class RowContext:
    """The context of one run of one row.

    `cancelled` and `lease_lost` are for code that looks up now and then: the first says stop, the
    second says that whatever it does will not count. `settled`: the row was settled while the code
    ran, there is no lease any more that could be lost. `forced_settlement`: how the
    row is settled, whatever the code says in the end.
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
        self._token_lock = activity.token_lock
        self._activity: SlotActivity | None = activity
        self._token: CancelToken | None = None

    def beat(self, progress: object = None) -> None:
        """Say that the work is alive, and how far it is."""
        if (activity := self._activity) is not None:
            activity.beat(progress)

    @property
    def attempt(self) -> int:
        """1 for the first delivery of the row."""
        return self.claimed.attempt

    @property
    def fencing_token(self) -> int:
        """Rises with every delivery of the row; give it to systems that can refuse a smaller
        one.
        """
        return self.claimed.claim.term

    @property
    def cancel(self) -> CancelToken:
        """What to wait for, or to pass on, to be stopped in time. Made when it is first asked
        for: most rows need none.
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
        """The right to this row is gone: stop, nothing more counts."""
        self.lease_lost = True
        self.cancel.cancel("lease_lost")

    def close(self) -> None:
        """The run is over; a beat from a thread that was left behind is nobody's sign of life."""
        self._activity = None


class UserContext:
    """The part of a `RowContext` that is for users."""

    __slots__ = ("_row_context",)

    def __init__(self, row_context: RowContext) -> None:
        self._row_context = row_context

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._row_context.attempt

    @property
    def fencing_token(self) -> int:
        """Rises with every attempt; give it to systems that can refuse a smaller one."""
        return self._row_context.fencing_token

    @property
    def lease_lost(self) -> bool:
        """Whether nothing that the code does counts any more."""
        return self._row_context.lease_lost

    @property
    def cancelled(self) -> bool:
        """Whether it should stop."""
        return self._row_context.cancelled

    @property
    def cancel(self) -> CancelToken:
        """What to wait for, or to pass on, to be stopped in time."""
        return self._row_context.cancel


class IdentifiedLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds ids to whatever the caller adds to a record."""

    def __init__(self, logger: logging.Logger, ids: Mapping[str, object]) -> None:
        super().__init__(logger, ids)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
