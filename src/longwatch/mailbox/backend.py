"""The interface below a mailbox: one queue of one store. Memory, SQL and Redis implement it;
`Mailbox` does everything else.

It is a `ClaimSource` (register_owner, exchange, renew, sweep, next_due, listen) whose items are
`MessageRecord` values, and the methods below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from longwatch.engine.claim_source import ClaimSource, Settlement
from longwatch.errors import MailboxConnectionError, StoreError
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.records import DeadLetter, MailboxStats, MessageRecord, NewMessage
from longwatch.store.claims import Claim

MAILBOX_KIND = "mailbox"


class Backend(ClaimSource, Protocol):
    """One queue. Every method may be called from any thread; the mailbox closes it."""

    limits: MailboxLimits

    @property
    def store_identity(self) -> object:
        """Identifies the store: mailboxes whose identities are equal reach each other by name."""

    def default_owner(self) -> int:
        """The owner that bare receives of this process share in this store; registered when first
        needed, anew after a fork.
        """

    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        """Store all or none, durably; the ids. A message whose `dedupe_key` is still queued
        or leased yields the first one's id.

        MailboxFullError when they do not all fit. With `tx` they are stored when that transaction
        commits.
        """

    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        """Settle without claiming; for each whether the row was still the claimant's."""

    def renew_one(self, claim: Claim, *, lease_seconds: float) -> bool:
        """Extend one lease to `lease_seconds` from now, never shortening it; False if the claim no
        longer matches.
        """

    def stats(self) -> MailboxStats: ...

    def peek(self, *, limit: int) -> list[MessageRecord]:
        """The messages that a claim would return next, in that order, without leasing them."""

    def cancel(self, message_id: str) -> bool:
        """Remove a message that is not leased; False if there is none."""

    def pause(self, *, paused: bool) -> None:
        """Pause or resume claims, for every process."""

    def purge(self) -> int:
        """Remove every message that is not leased; how many."""

    def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """The dead letters whose position is above `after`, oldest first."""

    def find_dead_letter(self, message_id: str) -> DeadLetter | None: ...

    def replay(self, ids: Sequence[str]) -> list[bool]:
        """Put dead letters back at the end of the line with clean counters; for each whether it
        was there.
        """

    def drop(self, ids: Sequence[str]) -> list[bool]:
        """Remove dead letters for good; for each whether it was there."""


def mailbox_locator(url: str, name: str) -> dict[str, str]:
    """How another process finds a mailbox: `url.open_source` makes a claim source of it."""
    return {"kind": MAILBOX_KIND, "url": url, "name": name}


@contextmanager
def mailbox_errors() -> Iterator[None]:
    """Raise errors of the store as MailboxConnectionError."""
    try:
        yield
    except StoreError as error:
        raised = MailboxConnectionError(str(error))
        raised.exit_code = error.exit_code
        raise raised from error
