"""Mailboxes and dead letters of one store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

from longwatch.app.mailboxes import has_mailboxes
from longwatch.core.suggest import did_you_mean
from longwatch.mailbox.backend import Backend, mailbox_errors
from longwatch.mailbox.records import DeadLetter, MailboxStats, MessageRecord
from longwatch.mailbox.url import mailbox_names, mailbox_stats, open_mailbox
from longwatch.page.readers.texts import ShownText, error_line, show_body, show_line, show_text
from longwatch.page.view import NotFoundError

MAX_MAILBOXES = 2000
"""Mailboxes of one store whose counts are read."""
PAGE_SIZE = 100
MAX_WAITING = 20
_CHUNK = 10
"""Dead letters that are in memory at a time: a body may have many megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxCounts:
    """The counts of one mailbox. `oldest_at`: when its oldest ready message was sent, to the
    second, so that it stays the same from read to read.
    """

    name: str
    ready: int
    delayed: int
    leased: int
    dead: int
    paused: bool
    expired: int
    oldest_at: float | None

    @property
    def trouble(self) -> tuple[bool, float, int]:
        """Mailboxes with more trouble have a larger key."""
        return self.dead > 0, -inf if self.oldest_at is None else -self.oldest_at, self.ready


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessage:
    """A message that a worker claims next."""

    id: str
    sent_at: float
    deliveries: int
    failures: int
    body: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRow:
    """A dead letter in a list."""

    id: str
    reason: str
    died_at: float
    deliveries: int
    error: str
    body: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxPage:
    """A mailbox with one page of its dead letters, oldest first. `next`: the position after which
    the next page begins; None on the last page.
    """

    counts: MailboxCounts
    waiting: tuple[WaitingMessage, ...]
    letters: tuple[DeadLetterRow, ...]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLetter:
    """One dead letter, with its body and its traceback."""

    letter: DeadLetter
    error: ShownText
    body: ShownText
    traceback: ShownText | None
    headers: ShownText | None


def read_mailboxes(store: Any) -> list[MailboxCounts]:
    """The mailboxes of a store, those in trouble first: with dead letters, then by the age of the
    oldest message.
    """
    if not has_mailboxes(store):
        return []
    now = time.time()
    with mailbox_errors():
        found = [
            _counts(name, stats, now) for name, stats in mailbox_stats(store, limit=MAX_MAILBOXES)
        ]
    return sorted(found, key=lambda each: each.trouble, reverse=True)


def read_mailbox(store: Any, name: str, *, after: int = 0) -> MailboxPage:
    """One mailbox. Raises NotFoundError if the store has none of this name."""
    backend = existing_backend(store, name)
    with mailbox_errors():
        counts = _counts(name, backend.stats(), time.time())
        waiting = tuple(map(_waiting, backend.peek(limit=MAX_WAITING))) if counts.ready else ()
        letters = tuple(
            islice(map(_row, _letters(backend, after)), PAGE_SIZE + 1) if counts.dead else ()
        )
    shown = letters[:PAGE_SIZE]
    return MailboxPage(
        counts=counts,
        waiting=waiting,
        letters=shown,
        next=shown[-1].position if len(letters) > PAGE_SIZE else None,
    )


def read_letter(store: Any, name: str, message_id: str) -> ShownLetter:
    """One dead letter. Raises NotFoundError if there is none, or it was replayed or dropped."""
    backend = existing_backend(store, name)
    with mailbox_errors():
        letter = backend.find_dead_letter(message_id)
    if letter is None:
        raise NotFoundError(
            f"there is no dead letter {message_id} in mailbox {name}; it may have been replayed or "
            f"dropped"
        )
    headers = getattr(letter, "headers", None)
    return ShownLetter(
        letter=letter._replace(body=b"", traceback=None, error=None),
        error=show_text(letter.error or ""),
        body=show_body(letter.body),
        traceback=show_text(letter.traceback) if letter.traceback else None,
        headers=_show_headers(headers) if headers else None,
    )


def existing_backend(store: Any, name: str) -> Backend:
    """The backend of an existing mailbox. Raises NotFoundError, which suggests a name."""
    with mailbox_errors():
        names = mailbox_names(store) if has_mailboxes(store) else []
    if name not in names:
        hint = did_you_mean(name, names, default="its messages may be in another store")
        raise NotFoundError(f"there is no mailbox {name}; {hint}")
    return open_mailbox(store, name).backend


# --- actions ---


def replay_letters(store: Any, name: str, ids: Sequence[str]) -> int:
    """Put these dead letters back in the queue; returns how many there were."""
    backend = existing_backend(store, name)
    with mailbox_errors():
        return sum(backend.replay(ids))


def drop_letters(store: Any, name: str, ids: Sequence[str]) -> int:
    """Delete these dead letters; returns how many there were."""
    backend = existing_backend(store, name)
    with mailbox_errors():
        return sum(backend.drop(ids))


def replay_all_letters(store: Any, name: str) -> int:
    """Put the dead letters that exist now back in the queue; returns how many."""
    existing_backend(store, name)
    return open_mailbox(store, name).dead_letters.replay_all()


def drop_all_letters(store: Any, name: str) -> int:
    """Delete the dead letters that exist now; returns how many."""
    existing_backend(store, name)
    return open_mailbox(store, name).dead_letters.drop_all()


# --- rows ---


def _letters(backend: Backend, after: int) -> Iterator[DeadLetter]:
    """The dead letters after a position, read in small pages."""
    while page := backend.dead_letters(after=after, limit=_CHUNK):
        yield from page
        after = page[-1].position


def _counts(name: str, stats: MailboxStats, now: float) -> MailboxCounts:
    return MailboxCounts(
        name=name,
        ready=stats.ready,
        delayed=stats.delayed,
        leased=stats.leased,
        dead=stats.dead,
        paused=stats.paused,
        expired=stats.expired,
        oldest_at=None if stats.oldest_age is None else float(round(now - stats.oldest_age)),
    )


def _waiting(record: MessageRecord) -> WaitingMessage:
    return WaitingMessage(
        id=record.id,
        sent_at=record.enqueued_at,
        deliveries=record.deliveries,
        failures=record.failures,
        body=show_line(record.body),
        size=len(record.body),
    )


def _row(letter: DeadLetter) -> DeadLetterRow:
    return DeadLetterRow(
        id=letter.id,
        reason=letter.reason,
        died_at=letter.died_at,
        deliveries=letter.deliveries,
        error=error_line(letter.error),
        body=show_line(letter.body),
        position=letter.position,
    )


def _show_headers(headers: Any) -> ShownText:
    if isinstance(headers, bytes):
        return show_body(headers)
    items: Iterable[tuple[object, object]] = getattr(headers, "items", lambda: ())()
    text = "\n".join(f"{name}: {value}" for name, value in items)
    return show_text(text or str(headers))
