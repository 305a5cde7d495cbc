"""Mailboxes on a Redis server: the rules of a SQL store in Lua scripts, each of which is atomic.

The server's clock decides leases, delays and expiry. All keys of a mailbox share one hash tag, so a
script finds them on one node of a Cluster; only the list of mailboxes has no tag. A server without
`appendonly yes` and `maxmemory-policy noeviction` may lose messages: opening it warns. Redis 6.2 or
later.

    store.py        the store: connections of a process, numbers of mailboxes, registered owners
    backend.py      one mailbox
    sweep.py        reclaims the messages of dead owners and of ended leases
    turn_sweeper.py decides when an engine sweeps: engines take turns
    listener.py     receives notifications
    client.py       chooses the node, sets the deadline and retries
    transport.py    the connections to one server: one request, one reply
    url.py          the options in a URL
    errors.py       turns errors of the server into store errors that say what to do
    codec.py        the bytes between backend and scripts
    scripts.py      loads lua/, where the rules are
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, Self
from weakref import finalize

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.masking import mask_text
from longwatch.errors import (
    SchemaTooNewError,
    SchemaTooOldError,
    StoreClosedError,
    UnsupportedError,
)
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.redis.backend import NO_TRANSACTION, RedisBackend
from longwatch.mailbox.redis.client import RedisClient, RetryMode
from longwatch.mailbox.redis.codec import NUMBER_BITS, RedisOwner
from longwatch.mailbox.redis.errors import NEWER_SCHEMA, OTHER_SCHEMA
from longwatch.mailbox.redis.listener import RedisListener
from longwatch.mailbox.redis.transport import RedisNode
from longwatch.mailbox.redis.url import invalid_url, sentinel_location
from longwatch.store.database import NO_SCHEMA, ClockJump, OwnerRegistry, StoredSchema
from longwatch.store.forks import register_fork_hooks

MAILBOXES_KEY = "longwatch:mailboxes"
"""The hash number -> name of every mailbox; the only key without the tag of a mailbox."""
SCHEMA_FIELD = "schema"
SCHEMA_VERSION = 5
"""The layout of the keys (lua/keys.lua), kept in the hash of mailboxes."""
MIN_READER = 5
"""The lowest layout whose processes can share the keys with this version. It stays when a layout
expands, and is raised a release later: the rule of `store.migrations`, except that no layout is
migrated from one below `MIN_READER`. Processes from before the rule refuse every other layout.
"""
MAX_MAILBOXES = 1 << (63 - NUMBER_BITS)


class RedisResources:
    """The connections and the listener of one process. The constructor opens nothing."""

    def __init__(self, url: str) -> None:
        self.client = RedisClient(url)
        self.listener = RedisListener(self.client.connect)
        self._pid = os.getpid()

    def close(self) -> None:
        """Close them. Does nothing in a forked child, because they belong to the parent."""
        if self._pid == os.getpid():
            self.listener.close()
            self.client.close()

    def close_after_fork(self) -> None:
        """In a forked child: close its copies of the parent's connections."""
        self.listener.abandon()
        self.client.close_after_fork()


def parse_layout(text: str) -> StoredSchema:
    """Read the field `schema`: a version, and its `min_reader` where that differs."""
    match text.split():
        case [version] if version.isdecimal():
            return StoredSchema(int(version), int(version))
        case [version, least] if version.isdecimal() and least.isdecimal():
            return StoredSchema(int(version), int(least))
        case _:
            return NO_SCHEMA


class RedisStore:
    """The mailboxes of one Redis server by name. Thread-safe.

    The constructor opens nothing. A forked child opens its own connections.
    """

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.url = url
        self.clock = clock or SystemClock()
        self.jump = ClockJump()
        self.owners: dict[int, RedisOwner] = {}
        self.owner_registry = OwnerRegistry()
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._resources: dict[int, RedisResources] = {}
        self._closed = False
        self.identity = _identity(url)
        register_fork_hooks(self)

    def backend(self, name: str, *, limits: MailboxLimits | None = None) -> RedisBackend:
        return RedisBackend(self, name, limits=limits)

    def resources(self) -> RedisResources:
        """Return the connections of this process. Raises StoreClosedError after close()."""
        if self._closed:
            raise StoreClosedError(f"{mask_text(self.url)} was closed; open it again")
        return self._resources.get(os.getpid()) or self._open()

    def mailbox_number(self, name: str) -> int:
        """Return the number of a mailbox in this store, with which its row numbers begin."""
        number = self._numbers.get(name)
        if number is None:
            arguments = (
                name,
                preferred_number(name),
                MAX_MAILBOXES,
                SCHEMA_VERSION,
                MIN_READER,
            )
            number = int(
                self.resources().client.run_script(
                    "register_mailbox", MAILBOXES_KEY, arguments, retry=RetryMode.ONCE
                )
            )
            self._names[number] = name
            self._numbers[name] = number
        return number

    def mailbox_of_seq(self, seq: int) -> str | None:
        """Return the mailbox of a row number; None if this object has not used that mailbox."""
        return self._names.get(seq >> NUMBER_BITS)

    def mailbox_names(self) -> list[str]:
        """Return the names of all mailboxes, sorted."""
        found = self.resources().client.read("HGETALL", MAILBOXES_KEY)
        names = dict(zip(found[::2], found[1::2], strict=True))
        layout = parse_layout(names.pop(SCHEMA_FIELD.encode(), b"").decode())
        if layout.min_reader > SCHEMA_VERSION:
            raise SchemaTooNewError(f"{mask_text(self.url)} {NEWER_SCHEMA}")
        if names and layout.version < MIN_READER:
            raise SchemaTooOldError(f"{mask_text(self.url)} {OTHER_SCHEMA}")
        return sorted(name.decode() for name in names.values())

    def transact(self, work: Callable[[Any], Any]) -> NoReturn:  # noqa: ARG002 - the signature of a SQL store
        raise UnsupportedError(NO_TRANSACTION)

    def close(self) -> None:
        """Close connections and stop threads. Idempotent. The messages stay."""
        self._closed = True
        resources = self._resources.get(os.getpid())
        if resources is not None:
            resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RedisStore {mask_text(self.url)}>"

    # --- forks ---

    def before_fork(self) -> None:
        """Do nothing: the child uses no connection of the parent."""

    def after_fork_in_parent(self) -> None:
        """Do nothing: `before_fork` takes no lock."""

    def after_fork_in_child(self) -> None:
        """In the child: close its copies of the parent's connections. The parent keeps its own."""
        resources, self._resources = self._resources, {}
        for each in resources.values():
            with suppress(OSError):
                each.close_after_fork()

    def _open(self) -> RedisResources:
        """Make the connections of this process. Takes no lock, because a fork could leave it locked
        in the child. If two threads call it at once, both use the first result.
        """
        made = RedisResources(self.url)
        resources = self._resources.setdefault(os.getpid(), made)
        if resources is made:
            finalize(self, resources.close)
        return resources


def preferred_number(name: str) -> int:
    """Return the number that a mailbox gets unless it is taken. It depends only on the name, so the
    mailbox has the same number after a restore.
    """
    return (
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
        % MAX_MAILBOXES
    )


def _identity(url: str) -> object:
    """Return a value that is equal for two URLs of one server and database. Raises UsageError for
    an invalid URL.
    """
    try:
        options = RedisNode(url).validate().options
    except (ValueError, TypeError):
        raise invalid_url(url) from None
    if location := sentinel_location(url):
        return ("redis", *sorted(location.sentinels), location.service, options.get("db", 0))
    return (
        "redis",
        options.get("path"),
        options.get("host", "localhost"),
        options.get("port", 6379),
        options.get("db", 0),
    )
