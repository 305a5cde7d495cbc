"""Every backend gives a message up by the one rule of `mailbox.limits`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import Backend
from longwatch.mailbox.limits import MailboxLimits, give_up_reason
from longwatch.mailbox.memory import MemoryStore
from longwatch.mailbox.records import NewMessage
from longwatch.mailbox.redis.store import RedisStore
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.database import ClockJump, Database
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.sqlite.database import SqliteDatabase
from postgres_server import shared_server
from redis_server import running_server

LIMITS = MailboxLimits(max_failures=2, max_crashes=2, max_lost=2)
NO_LIMITS = MailboxLimits(max_failures=1000, max_crashes=1000, max_lost=1000)
LEASE = 60.0
LIFETIME = 1000.0


class Store:
    """Mailboxes of one kind, and the clock of their store."""

    def __init__(self, backend: Callable[..., Backend], jump: ClockJump) -> None:
        self.backend = backend
        self.jump = jump


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "memory":
            memory = MemoryStore()
            yield Store(memory.backend, memory.jump)
        case "sqlite":
            with SqliteDatabase(tmp_path / "some.db") as database:
                yield _sql_store(database)
        case "postgresql":
            with shared_server().database() as url, PostgresDatabase(url) as postgres:
                yield _sql_store(postgres)
        case _:
            with running_server() as server, RedisStore(server.url) as redis:
                yield Store(redis.backend, redis.jump)


def _sql_store(database: Database) -> Store:
    def backend(name: str, **options: Any) -> Backend:
        return SqlBackend(database, name, **options)

    return Store(backend, database.jump)


class History:
    """One mailbox with one message, and what happens to it before the claim that counts."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        keep_expired: bool = False,
        limits: MailboxLimits | None = NO_LIMITS,
    ) -> None:
        self.store = store
        self.unlimited = store.backend(name, limits=limits)
        self.limited = store.backend(name, limits=LIMITS)
        self.owner = self.unlimited.register_owner(Incarnation.current())
        message = NewMessage(id=name, body=b"1", expires_in=LIFETIME, keep_expired=keep_expired)
        self.unlimited.put([message])

    def fail(self) -> None:
        [row] = self.claim(self.unlimited)
        self.unlimited.settle([Settlement(row.claim, RowOutcome.FAILED, error="no")])

    def crash(self) -> None:
        """The lease of an owner without a beat page lapses."""
        assert self.claim(self.unlimited)
        self.store.jump.lease += 2 * LEASE
        self.unlimited.sweep()

    def lose(self) -> None:
        """The lease of an owner lapses whose process and beat page are gone."""
        gone = replace(Incarnation.current(), namespace=1)
        owner = self.unlimited.register_owner(gone, page="/nonexistent/page")
        assert self.unlimited.exchange((), owner=owner, limit=1, lease_seconds=LEASE).claimed
        self.store.jump.lease += 2 * LEASE
        self.unlimited.sweep()

    def expire(self) -> None:
        self.store.jump.wall += 2 * LIFETIME

    def claim(self, backend: Backend, *settlements: Settlement) -> list[ClaimedRow]:
        return backend.exchange(settlements, owner=self.owner, limit=1, lease_seconds=LEASE).claimed

    @property
    def end(self) -> tuple[bool, list[str], int]:
        """Whether it is claimed, the reasons of dead letters, how many messages expired."""
        claimed = bool(self.claim(self.limited))
        reasons = [letter.reason for letter in self.limited.dead_letters()]
        return claimed, reasons, self.limited.stats().expired


@pytest.mark.parametrize("keep_expired", [False, True])
def test_a_message_is_claimed_or_given_up_by_crashes_then_failures_then_expiry(
    store: Store, *, keep_expired: bool
) -> None:
    for crashes, failures, is_expired in product(range(4), range(4), (False, True)):
        name = f"c{crashes}-f{failures}-{is_expired}"
        history = History(store, name, keep_expired=keep_expired)
        for _ in range(failures):
            history.fail()
        for _ in range(crashes):
            history.crash()
        if is_expired:
            history.expire()
        reason = give_up_reason(LIMITS, crashes=crashes, failures=failures, is_expired=is_expired)
        expected = {
            None: (True, [], 0),
            "poison": (False, ["poison"], 0),
            "failed": (False, ["failed"], 0),
            "expired": (False, ["expired"] if keep_expired else [], 1),
        }[reason]
        assert (name, expected) == (name, history.end)


def test_losses_come_after_crashes_and_before_failures(store: Store) -> None:
    """The limits were lowered after the events, so the claim applies them."""
    for crashes, lost, failures in product((0, 2), (0, 1, 2), (0, 2)):
        name = f"c{crashes}-l{lost}-f{failures}"
        history = History(store, name)
        for event, times in ((history.fail, failures), (history.crash, crashes)):
            for _ in range(times):
                event()
        for _ in range(lost):
            history.lose()
        reason = give_up_reason(
            LIMITS, crashes=crashes, failures=failures, lost=lost, is_expired=False
        )
        expected = (True, [], 0) if reason is None else (False, [reason], 0)
        assert (name, expected) == (name, history.end)


@pytest.mark.parametrize(
    ("event", "reason"),
    [(History.fail, "failed"), (History.crash, "poison"), (History.lose, "lost")],
)
def test_the_event_that_spends_a_budget_gives_the_message_up(
    store: Store, event: Callable[[History], None], reason: str
) -> None:
    """Nothing waits for the next claim; the limits of the mailbox hold for every process."""
    assert store.backend(reason, limits=LIMITS).stats()
    history = History(store, reason, limits=None)
    ends = []
    for _ in range(2):
        event(history)
        stats = history.unlimited.stats()
        ends.append((stats.ready, [each.reason for each in history.unlimited.dead_letters()]))
    assert [(1, []), (0, [reason])] == ends


def test_the_rule_itself() -> None:
    """Crashes before losses before failures before expiry; a limit is reached, not exceeded."""
    table = {
        (0, 0, 0, False): None,
        (1, 1, 1, False): None,
        (1, 1, 1, True): "expired",
        (0, 0, 2, False): "failed",
        (0, 0, 2, True): "failed",
        (0, 2, 0, False): "lost",
        (0, 2, 2, True): "lost",
        (2, 0, 0, False): "poison",
        (2, 2, 2, True): "poison",
        (3, 3, 3, False): "poison",
    }
    assert table == {
        facts: give_up_reason(
            LIMITS, crashes=facts[0], lost=facts[1], failures=facts[2], is_expired=facts[3]
        )
        for facts in table
    }


def test_a_message_that_its_worker_dead_letters_is_kept_whatever_the_reason(store: Store) -> None:
    """Only the store's own expiry may remove a message: a worker that gives up has seen it."""
    for reason in ("expired", "failed", "cannot be decoded"):
        history = History(store, reason.replace(" ", "-"), keep_expired=False)
        [row] = history.claim(history.limited)
        settled = history.limited.settle(
            [Settlement(row.claim, RowOutcome.DEAD, reason=reason, error="late")]
        )
        [letter] = history.limited.dead_letters()
        assert ([True], reason, "late") == (settled, letter.reason, letter.error)
        assert 0 == history.limited.stats().expired
