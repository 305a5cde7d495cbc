"""Deletes old dead letters for one engine, with the `dead_retention` that its process has set.

Engines take turns to sweep a mailbox (`store.sweep_turns`), but a retention is not stored with the
mailbox. The engine with the turn may have none. So an engine with a retention also checks without
the turn, but rarely, because a fleet has many such engines.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from longwatch.core.clock import Clock
from longwatch.core.jitter import random_fraction

LEADER_INTERVAL = 60.0
"""Seconds between two checks of an engine that has a turn."""
FOLLOWER_INTERVAL = 3600.0
"""Mean seconds between two checks of an engine without a turn. The jitter is a half of it."""


class DeadRetention:
    """Decides when an engine deletes a batch of old dead letters. Not thread-safe.

    `delete_batch` blocks on the store, and returns whether the batch was full. None: the engine has
    no retention.
    """

    def __init__(self, delete_batch: Callable[[], bool] | None, clock: Clock) -> None:
        self._delete_batch = delete_batch
        self._clock = clock
        self._leader_due = -inf
        self._follower_due = clock.monotonic() + FOLLOWER_INTERVAL * random_fraction()

    def apply(self, *, leads: bool) -> None:
        """Delete a batch if a check is due. After a full batch the next call deletes another one.

        `leads`: whether the engine has a turn. Raises the errors of the store.
        """
        now = self._clock.monotonic()
        due = min(self._leader_due, self._follower_due) if leads else self._follower_due
        if self._delete_batch is None or now < due:
            return
        is_full = self._delete_batch()
        self._leader_due = now + (0.0 if is_full else LEADER_INTERVAL)
        self._follower_due = now + (
            0.0 if is_full else FOLLOWER_INTERVAL * (0.5 + random_fraction())
        )
