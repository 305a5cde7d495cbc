"""The protocol of one queue in one store, which the memory, SQL and Redis backends implement.

A backend is a `ClaimSource` (register_owner, exchange, renew, sweep, next_due, listen) whose items
are `MessageRecord` values, and has the methods below. `Mailbox` does everything else.
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
    """One queue of one store. Every method is thread-safe."""

    limits: MailboxLimits

    @property
    def store_identity(self) -> object:
        """Identifies the store: mailboxes whose identities are equal reach each other by name."""

    def default_owner(self) -> int:
        """Return the owner that `Mailbox.receive` calls of this process share in this store. The
        first call registers it, and so does the first call after a fork.
        """

    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        """Store all messages or none, durably, and return their ids. If a message with the same
        `dedupe_key` is still queued or leased, return its id and store nothing for this one.

        Raises MailboxFullError if they do not all fit. With `tx` they are stored when that
        transaction commits.
        """

    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        """Settle without claiming. Return for each settlement whether its claim still matched."""

    def renew_one(self, claim: Claim, *, lease_seconds: float) -> bool:
        """Extend one lease to `lease_seconds` from now, never shortening it. Return False if the
        claim no longer matches.
        """

    def stats(self) -> MailboxStats: ...

    def peek(self, *, limit: int) -> list[MessageRecord]:
        """Return the messages that a claim would return next, in order, without leasing them."""

    def cancel(self, message_id: str) -> bool:
        """Remove a message that is not leased. Return False if there is none with this id."""

    def pause(self, *, paused: bool) -> None:
        """Pause or resume claims, for every process."""

    def notify(self) -> None:
        """Wake those that wait for messages, after the commit of a user's own transaction."""

    def purge(self) -> int:
        """Remove every message that is not leased. Return how many."""

    def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Return the dead letters whose position is above `after`, oldest first."""

    def find_dead_letter(self, message_id: str) -> DeadLetter | None: ...

    def replay(self, ids: Sequence[str]) -> list[bool]:
        """Put dead letters back at the end of the queue, with their counters at zero. Return for
        each whether it existed.
        """

    def drop(self, ids: Sequence[str]) -> list[bool]:
        """Delete dead letters. Return for each whether it existed."""


def mailbox_locator(url: str, name: str) -> dict[str, str]:
    """Return the value from which `url.open_source` opens this mailbox in another process."""
    return {"kind": MAILBOX_KIND, "url": url, "name": name}


@contextmanager
def mailbox_errors() -> Iterator[None]:
    """Raise a StoreError as MailboxConnectionError, with the same text and exit code."""
    try:
        yield
    except StoreError as error:
        raised = MailboxConnectionError(str(error))
        raised.exit_code = error.exit_code
        raise raised from error
