"""What a backend stores and hands out: plain values, no behaviour."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """One message on its way into a backend. The id is the client's, so that a send that is
    retried cannot double.
    """

    id: str
    body: bytes
    delay: float = 0.0
    expires_in: float | None = None
    keep_expired: bool = False
    dedupe_key: str | None = None
    reply_to: str | None = None


class MessageRecord(NamedTuple):
    """What a backend knows about a message that it leased."""

    id: str
    body: bytes
    deliveries: int
    failures: int
    crashes: int
    enqueued_at: float
    reply_to: str | None
    lost: int = 0
    releases: int = 0


class MailboxStats(NamedTuple):
    """How a mailbox stands."""

    ready: int
    delayed: int
    leased: int
    dead: int
    oldest_age: float | None
    """Seconds since the oldest message that is ready was sent."""
    paused: bool = False
    expired: int = 0
    """How many messages were given up, in all, because nobody took them in their time."""


class DeadLetter(NamedTuple):
    """A message that was given up, with its history."""

    id: str
    mailbox: str
    reason: str
    error: str | None
    died_at: float
    enqueued_at: float
    deliveries: int
    failures: int
    crashes: int
    releases: int
    reply_to: str | None
    body: bytes
    lost: int = 0
    traceback: str | None = None
    position: int = 0
    """Its place among the dead of its mailbox: who died later has a higher one."""


def new_id() -> str:
    """32 hex digits: the time first, so that ids sort by age and indexes grow at one end, then
    chance.
    """
    return f"{time.time_ns() // 1000:016x}{os.urandom(8).hex()}"
