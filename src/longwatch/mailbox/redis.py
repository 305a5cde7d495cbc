"""Mailboxes on a Redis server: the same rules as in a SQL store, kept by Lua scripts that each run
as one step.

The server's clock judges leases, delays and expiry. All keys of a mailbox share one hash tag, so
that a script finds them on one node of a Cluster; only the list of mailboxes stands alone. A server
without `appendonly yes` and `maxmemory-policy noeviction` may lose messages, and is warned of.
Redis 6.2 or later.

    redis.py             the store: what one process has open, the numbers of mailboxes, the owners
                         it has entered
    redis_lane.py        one mailbox: the backend
    redis_sweep.py       what dead owners and ended leases held
    redis_wakeups.py     hints to those who wait
    redis_calls.py       which node, under which deadline, and whether again
    redis_connection.py  one server: a question and its answer
    redis_line.py        one connection to it
    redis_reader.py      what comes over it
    redis_url.py         what a URL says
    redis_errors.py      what goes wrong, and its cure
    redis_rows.py        what crosses the wire
    redis_scripts.py     and lua/, where the rules are
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, Self
from weakref import finalize

from longwatch.core.masking import mask_text
from longwatch.errors import StoreClosedError, UnsupportedError
from longwatch.mailbox.backend import Limits
from longwatch.mailbox.redis_calls import Again, Calls
from longwatch.mailbox.redis_connection import Server
from longwatch.mailbox.redis_lane import NO_TRANSACTION, Owner, RedisBackend
from longwatch.mailbox.redis_rows import NUMBER_BITS
from longwatch.mailbox.redis_url import wrong_url
from longwatch.mailbox.redis_wakeups import Wakeups
from longwatch.store.claims import Claim
from longwatch.store.database import Jump, Owners
from longwatch.store.forks import survive_forks

MAILBOXES = "longwatch:mailboxes"
"""The hash number -> name of every mailbox; the one key outside the tags of the mailboxes."""
MOST_MAILBOXES = 1 << (63 - NUMBER_BITS)


class Opened:
    """What one process has open. Making it opens nothing."""

    def __init__(self, url: str) -> None:
        self.calls = Calls(url)
        self.wakeups = Wakeups(self.calls.connect)
        self._pid = os.getpid()

    def close(self) -> None:
        """In a forked child nothing happens: what is open is the parent's."""
        if self._pid == os.getpid():
            self.wakeups.close()
            self.calls.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of what the parent has open."""
        self.wakeups.abandon()
        self.calls.abandon()


class RedisStore:
    """Mailboxes by name, on one server. Lazy: making it opens nothing, and a forked child opens
    connections of its own.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.jump = Jump()
        self.owners: dict[int, Owner] = {}
        self.guests = Owners()
        self._names: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._opened: dict[int, Opened] = {}
        self._closed = False
        self.identity = _identity(url)
        survive_forks(self)

    def lane(self, name: str, *, limits: Limits | None = None) -> RedisBackend:
        return RedisBackend(self, name, limits=limits)

    def opened(self) -> Opened:
        """What this process has open."""
        if self._closed:
            raise StoreClosedError(f"{mask_text(self.url)} was closed; open it again")
        return self._opened.get(os.getpid()) or self._open()

    def number(self, name: str) -> int:
        """The number of a mailbox in this store: a row's number begins with it."""
        number = self._numbers.get(name)
        if number is None:
            arguments = (name, first_number(name), MOST_MAILBOXES)
            number = int(
                self.opened().calls.script("register", MAILBOXES, arguments, again=Again.ONCE)
            )
            self._names[number] = name
            self._numbers[name] = number
        return number

    def mailbox_of(self, claim: Claim) -> str | None:
        """The mailbox whose row a claim is about; None if it is none that this store has given
        rows of.
        """
        return self._names.get(claim.seq >> NUMBER_BITS)

    def mailbox_names(self) -> list[str]:
        """Every mailbox, by name."""
        return sorted(name.decode() for name in self.opened().calls.read("HVALS", MAILBOXES))

    def transact(self, work: Callable[[Any], Any]) -> NoReturn:  # noqa: ARG002 - the name a SQL store has for it
        raise UnsupportedError(NO_TRANSACTION)

    def close(self) -> None:
        """Let go of connections and threads; idempotent. The messages stay."""
        self._closed = True
        opened = self._opened.get(os.getpid())
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RedisStore {mask_text(self.url)}>"

    # --- forks ---

    def hold(self) -> None:
        """Nothing waits for a fork: the child uses nothing of the parent's."""

    def go_on(self) -> None:
        """And nothing was held."""

    def leave_behind(self) -> None:
        """In the child: let go of what the parent has open, which goes on there."""
        opened, self._opened = self._opened, {}
        for each in opened.values():
            with suppress(OSError):
                each.abandon()

    def _open(self) -> Opened:
        """No lock, which a fork could find taken: of two that open at once one wins, and none
        has connected yet.
        """
        mine = Opened(self.url)
        opened = self._opened.setdefault(os.getpid(), mine)
        if opened is mine:
            finalize(self, opened.close)
        return opened


def first_number(name: str) -> int:
    """Where a name leads; it gets this number, or the next that is not taken. So a mailbox has
    the same one after a restore.
    """
    return (
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
        % MOST_MAILBOXES
    )


def _identity(url: str) -> object:
    """Equal for two URLs of one server and database; UsageError for one that cannot be."""
    try:
        place = Server(url).check().options
    except (ValueError, TypeError):
        raise wrong_url(url) from None
    return (
        "redis",
        place.get("path"),
        place.get("host", "localhost"),
        place.get("port", 6379),
        place.get("db", 0),
    )
