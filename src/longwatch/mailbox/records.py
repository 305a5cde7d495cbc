"""The values that a backend stores and returns."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class NewMessage(NamedTuple):
    """A message to store. The client chooses the id, so that a retried send stores it only once."""

    id: str
    body: bytes
    delay: float = 0.0
    expires_in: float | None = None
    keep_expired: bool = False
    dedupe_key: str | None = None
    reply_to: str | None = None
    headers: str | None = None
    """A JSON object (`headers.encode_headers`); None: none."""


class MessageRecord(NamedTuple):
    """A leased message as the backend returns it."""

    id: str
    body: bytes
    deliveries: int
    failures: int
    crashes: int
    enqueued_at: float
    reply_to: str | None
    lost: int = 0
    releases: int = 0
    headers: str | None = None
    """A JSON object (`headers.decode_headers`); None: none."""


class MailboxStats(NamedTuple):
    """The counts of a mailbox and whether it is paused."""

    ready: int
    delayed: int
    leased: int
    dead: int
    oldest_age: float | None
    """Seconds since the oldest ready message was sent."""
    paused: bool = False
    expired: int = 0
    """How many messages in all expired before a worker claimed them."""


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
    """The place among the dead letters of its mailbox, which grows with the time of death."""
    headers: Mapping[str, str] = MappingProxyType({})


def new_id() -> str:
    """Return 32 hex digits: first the time, so that ids sort by age and indexes grow at one end,
    then random digits.
    """
    return f"{time.time_ns() // 1000:016x}{os.urandom(8).hex()}"
