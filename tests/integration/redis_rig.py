"""Short calls on one mailbox in Redis."""

from __future__ import annotations

from typing import Any

from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.redis.backend import RedisBackend
from longwatch.store.claims import Claim

FOREVER = 40_000.0


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
