"""Short calls on one mailbox in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from longwatch.engine.claim_source import ClaimedRow, GivenUp, RowOutcome, Settlement
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.redis.backend import RedisBackend
from longwatch.mailbox.redis.store import RedisStore
from longwatch.store.claims import Claim
from redis_server import RedisServer

FOREVER = 40_000.0
LEASE = 60.0


@contextmanager
def fresh_store(server: RedisServer) -> Iterator[RedisStore]:
    """A store whose server is emptied at the end."""
    with RedisStore(server.url) as opened:
        yield opened
    with server.client() as client:
        client.flushall()


def new_messages(count: int, body: bytes = b"1", **options: Any) -> list[NewMessage]:
    return [NewMessage(id=new_id(), body=body, **options) for _ in range(count)]


def claim(
    backend: RedisBackend, owner: int, want: int = 1, duration: float = FOREVER, **options: Any
) -> list[ClaimedRow]:
    return backend.exchange((), owner=owner, limit=want, lease_seconds=duration, **options).claimed


def settled(
    backend: RedisBackend, *claims: Claim, outcome: RowOutcome = RowOutcome.DONE, **facts: Any
) -> list[bool]:
    return backend.settle([Settlement(each, outcome, **facts) for each in claims])


def enter(
    backend: RedisBackend,
    incarnation: Incarnation | None = None,
    page: str | None = None,
    **facts: Any,
) -> int:
    return backend.register_owner(incarnation or Incarnation.current(), page=page, **facts)


def elsewhere() -> Incarnation:
    """This process, as if on another machine."""
    mine = Incarnation.current()
    return Incarnation(mine.id, "another-boot", mine.namespace, mine.pid, mine.start)


def dead_process() -> Incarnation:
    mine = Incarnation.current()
    return Incarnation(mine.id, mine.boot, mine.namespace, mine.pid, mine.start + 1)


def crash(backend: RedisBackend, times: int = 1, **options: Any) -> list[GivenUp]:
    """The next message crashes: a bare lease of it lapses; the messages that the sweeps gave up."""
    given_up: list[GivenUp] = []
    for _ in range(times):
        assert claim(backend, enter(backend), duration=LEASE, **options)
        backend.store.jump.lease += 2 * LEASE
        backend.sweep(given_up.append)
    return given_up


def lose(backend: RedisBackend, times: int = 1) -> list[GivenUp]:
    """The next message is lost with its host: its owner lapses, and its page cannot be read."""
    given_up: list[GivenUp] = []
    for _ in range(times):
        assert claim(backend, enter(backend, elsewhere(), "/nowhere/page"), duration=LEASE)
        backend.store.jump.lease += 2 * LEASE
        backend.sweep(given_up.append)
    return given_up


def counters(backend: RedisBackend) -> list[tuple[int, int, int]]:
    """Crashes, lost and releases of every message."""
    return [(found.crashes, found.lost, found.releases) for found in backend.peek(limit=100)]
