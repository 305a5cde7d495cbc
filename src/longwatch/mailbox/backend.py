"""The seam below a mailbox: one lane of one store. Memory, SQL and Redis implement it; `Mailbox`
does everything else.

It is a `work.Source` (enter, exchange, renew, sweep, next_due, listen) whose items are `Delivery`
values, and what is below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from longwatch.errors import MailboxConnectionError, StoreError
from longwatch.mailbox import bounds
from longwatch.mailbox.letters import DeadLetter, Delivery, Letter, Stats
from longwatch.store.claims import Claim
from longwatch.work.source import Settlement, Source

KIND = "mailbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a mailbox gives a message up, and how many it takes.

    `max_failures` failures or `max_crashes` crashes and it is dead, checked when it would be handed
    out. `max_size` counts what is ready, delayed and leased; None: no limit. Dead letters older
    than `dead_retention` seconds are removed; None: never.
    """

    max_failures: int = 5
    max_crashes: int = 3
    max_size: int | None = None
    dead_retention: float | None = None

    def __post_init__(self) -> None:
        bounds.check_whole("max_failures", self.max_failures)
        bounds.check_whole("max_crashes", self.max_crashes)
        if self.max_size is not None:
            bounds.check_whole("max_size", self.max_size)
        if self.dead_retention is not None:
            bounds.check_retention(self.dead_retention)


class Backend(Source, Protocol):
    """One lane. Every method may be called from any thread; closing is the mailbox's business."""

    limits: Limits

    @property
    def home(self) -> object:
        """What stands for the store: lanes whose homes are equal reach each other by name."""

    def guest(self) -> int:
        """The owner that bare receives of this process share in this store; entered when first
        asked for, anew after a fork.
        """

    def put(self, letters: Sequence[Letter], *, tx: Any = None) -> list[str]:
        """Store all or none, durably; the ids. A letter whose `dedupe_key` is still queued or
        leased yields the first one's id.

        MailboxFullError when they do not all fit. With `tx` they are stored when that transaction
        commits.
        """

    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        """Settle without claiming; for each whether the row was still the claimant's."""

    def extend(self, claim: Claim, *, duration: float) -> bool:
        """Prolong one lease to `duration` from now, never shortening it; False if it is not the
        claimant's any more.
        """

    def stats(self) -> Stats: ...

    def peek(self, *, limit: int) -> list[Delivery]:
        """The messages that would be handed out next, in that order, without leasing them."""

    def cancel(self, message_id: str) -> bool:
        """Remove a message that is not leased; False if there is none."""

    def pause(self, *, paused: bool) -> None:
        """Stop or resume handing messages out, for every process."""

    def purge(self) -> int:
        """Remove every message that is not leased; how many."""

    def dead(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """The dead, oldest first, those whose position is above `after`, be there one with that
        or not.
        """

    def find_dead(self, message_id: str) -> DeadLetter | None: ...

    def replay(self, ids: Sequence[str]) -> list[bool]:
        """Put dead letters back at the end of the line with clean counters; for each whether it
        was there.
        """

    def drop(self, ids: Sequence[str]) -> list[bool]:
        """Remove dead letters for good; for each whether it was there."""


def whereabouts(url: str, name: str) -> dict[str, str]:
    """How another process finds a mailbox: `opening.found_source` makes a source of it."""
    return {"kind": KIND, "url": url, "name": name}


@contextmanager
def connecting() -> Iterator[None]:
    """Errors of the store, as a mailbox's users know them."""
    try:
        yield
    except StoreError as error:
        raised = MailboxConnectionError(str(error))
        raised.exit_code = error.exit_code
        raise raised from error
