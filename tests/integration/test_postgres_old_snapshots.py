"""Claims beside sessions that hold an old snapshot, and transactions that commit late."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from math import inf
from typing import Any

import psycopg
import pytest

from longwatch.core.fake_clock import FakeClock
from longwatch.engine.claim_source import RowOutcome, Settlement, ignore_given_up
from longwatch.errors import StoreUnreachableError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.claims import RowSelection
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.postgres.transaction import PostgresTransaction
from longwatch.store.scan_bound import (
    DUE_MARGIN,
    FULL_SCAN_INTERVAL,
    MEASURE_INTERVAL,
    ScanBound,
    ScanBounds,
)
from postgres_server import shared_server

INSERT = (
    "INSERT INTO longwatch_messages (queue, id, enqueued_at, body) "
    "SELECT queue, 'late', 0, '1' FROM longwatch_mailboxes RETURNING seq"
)
EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS) "


class Rig:
    """One mailbox, one owner, and the clock of their scan bound."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.clock = FakeClock()
        database.scan_bounds = ScanBounds(self.clock)
        self.database = database
        self.backend = SqlBackend(database, "work")
        self.backend.queue()
        self.owner = self.backend.register_owner(Incarnation.current())

    @property
    def bound(self) -> ScanBound:
        return self.database.scan_bounds.of("longwatch_messages", self.backend.queue().number)

    def put(self, count: int) -> None:
        self.backend.put([NewMessage(id=new_id(), body=b"1") for _ in range(count)])

    def exchange(self, *settlements: Settlement, limit: int = 100) -> list[Settlement]:
        """Settle, claim, and return how to settle what was claimed."""
        exchanged = self.backend.exchange(
            settlements, owner=self.owner, limit=limit, lease_seconds=1000.0
        )
        return [Settlement(row.claim, RowOutcome.DONE) for row in exchanged.claimed]

    def claim(self) -> list[int]:
        return [settlement.claim.seq for settlement in self.exchange()]

    def handle(self, count: int) -> None:
        """Send messages, claim and settle them, a second a batch. Confirms a measurement."""
        for _ in range(3):
            self.put(count)
            self.exchange(*self.exchange(limit=count), limit=0)
            self.clock.advance(MEASURE_INTERVAL)

    def blocks_read(self, *, low: int, due_low: float = 0.0) -> int:
        """How many pages the query of a claim reads from `low` on."""
        parameters = {
            "queue": self.backend.queue().number,
            "owner": self.owner,
            "lease_seconds": 1.0,
            "limit": 1,
            "max_crashes": 3,
            "max_lost": 5,
            "low": low,
            "due_low": due_low,
            "margin": DUE_MARGIN,
        }
        sql = EXPLAIN + self.backend._claims.sql["claim"]
        return _blocks(self.database.write(lambda tx: tx.rows(sql, parameters)))


def _blocks(plan: list[tuple[Any, ...]]) -> int:
    """The pages that an explained query has read."""
    [buffers, *_] = [line for (line,) in plan if "Buffers:" in line]
    return sum(map(int, re.findall(r"(?:hit|read)=(\d+)", buffers)))


@pytest.fixture
def rig() -> Iterator[Rig]:
    with shared_server().database() as url, PostgresDatabase(url) as database:
        yield Rig(database)


@pytest.fixture
def other(rig: Rig) -> Iterator[psycopg.Connection[Any]]:
    """A connection of another session."""
    with closing(psycopg.connect(rig.database.url)) as connection:
        yield connection


def test_a_claim_reads_no_more_behind_an_old_snapshot_after_many_messages(
    rig: Rig, other: psycopg.Connection[Any]
) -> None:
    """The dead entries of 3,000 messages cannot be removed, and a claim reads none of them."""
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.execute("SELECT 1 FROM longwatch_messages")
    rig.handle(1000)
    rig.handle(1)
    unbounded, bounded = rig.blocks_read(low=0), rig.blocks_read(low=rig.bound.low)
    assert rig.bound.low > 3000
    assert unbounded > 5 * bounded


def test_a_claim_reads_no_more_after_many_delayed_messages_either(
    rig: Rig, other: psycopg.Connection[Any]
) -> None:
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.execute("SELECT 1 FROM longwatch_messages")
    rig.database.jump.wall = -3600.0
    rig.backend.put([NewMessage(id=new_id(), body=b"1", delay=1.0) for _ in range(3000)])
    rig.database.jump.wall = 0.0
    rig.exchange(*rig.exchange(limit=3000), limit=0)
    rig.handle(1)
    low = rig.bound.low
    unbounded = rig.blocks_read(low=low)
    bounded = rig.blocks_read(low=low, due_low=rig.bound.due_low)
    assert low > 3000
    assert unbounded > 5 * bounded


def test_a_row_that_is_due_before_a_wrong_bound_is_claimed_by_the_next_full_scan(rig: Rig) -> None:
    rig.backend.put([NewMessage(id=new_id(), body=b"1", delay=1.0)])
    rig.database.jump.wall = 2.0 + DUE_MARGIN
    rig.bound.begin_claim()
    rig.bound.low, rig.bound.due_low = 1, 1e11
    assert [] == rig.claim()
    rig.clock.advance(FULL_SCAN_INTERVAL)
    assert [1] == rig.claim()


def test_a_delayed_row_is_due_at_its_time_although_the_clock_was_set_back(rig: Rig) -> None:
    rig.database.jump.wall = 3600.0
    rig.handle(2)
    rig.handle(2)
    assert rig.bound.low > 0
    rig.database.jump.wall = 0.0
    rig.backend.put([NewMessage(id=new_id(), body=b"1", delay=10.0)])
    assert [] == rig.claim()
    rig.database.jump.wall = 11.0
    assert 1 == len(rig.claim())


def test_a_delayed_row_is_due_at_its_time_with_the_bound_in_force(rig: Rig) -> None:
    rig.backend.put([NewMessage(id=new_id(), body=b"1", delay=50.0)])
    rig.handle(2)
    rig.handle(2)
    assert rig.bound.due_low > 0
    rig.database.jump.wall = 1000.0
    assert 1 in rig.claim()


def test_a_look_of_the_sweeper_reads_no_more_either_apart_from_rare_full_scans(
    rig: Rig, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine with the sweep turn looks every second. It uses the bound of the claims."""
    sweeper = rig.backend.sweeper_for(Incarnation.current(), selection=RowSelection.ANY)
    buffers: list[int] = []
    rows = PostgresTransaction.rows

    def explain(tx: Any, sql: str, parameters: Any = None) -> Any:
        if "lows" in (parameters or {}):
            buffers.append(_blocks(rows(tx, EXPLAIN + sql, parameters)))
        return rows(tx, sql, parameters)

    def look() -> None:
        sweeper._look_at = -inf  # type: ignore[attr-defined]
        sweeper.sweep(ignore_given_up)

    look()
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.execute("SELECT 1 FROM longwatch_messages")
    rig.handle(1000)
    rig.handle(1)
    monkeypatch.setattr(PostgresTransaction, "rows", explain)
    look()
    look()
    full, bounded = buffers
    assert full > 5 * bounded


def test_a_row_whose_transaction_commits_late_is_not_below_the_bound(
    rig: Rig, other: psycopg.Connection[Any]
) -> None:
    [(late,)] = other.execute(INSERT).fetchall()
    rig.handle(2)
    rig.handle(2)
    assert rig.bound.low <= late
    other.commit()
    assert [late] == rig.claim()


def test_a_row_that_was_committed_late_and_is_leased_elsewhere_is_not_below_the_bound(
    rig: Rig, other: psycopg.Connection[Any]
) -> None:
    """Its worker may release it, and then it is claimed first."""
    [(late,)] = other.execute(INSERT).fetchall()
    rig.handle(2)
    other.commit()
    [held] = rig.exchange(limit=1)
    assert late == held.claim.seq
    assert rig.bound.low <= late
    rig.put(1)
    rig.exchange(held._replace(outcome=RowOutcome.RELEASED), limit=0)
    assert late == rig.claim()[0]


def test_the_bound_rises_again_after_the_late_transaction(
    rig: Rig, other: psycopg.Connection[Any]
) -> None:
    [(late,)] = other.execute(INSERT).fetchall()
    rig.handle(2)
    other.rollback()
    rig.handle(2)
    assert rig.bound.low > late


@pytest.mark.parametrize("delay", [0.0, 5.0])
def test_a_released_row_is_claimed_next_with_the_bound_in_force(rig: Rig, delay: float) -> None:
    """A leased and a delayed row count as live, so the bound does not pass them."""
    rig.put(1)
    [held] = rig.exchange()
    release = held._replace(outcome=RowOutcome.RELEASED, delay=delay)
    if delay:
        rig.exchange(release, limit=0)
    rig.handle(2)
    rig.handle(2)
    if not delay:
        rig.exchange(release, limit=0)
    rig.database.jump.wall = delay + 1.0
    rig.put(1)
    assert rig.bound.low == held.claim.seq
    assert held.claim.seq == rig.claim()[0]


def test_rows_of_other_mailboxes_do_not_hold_the_bound_back(rig: Rig) -> None:
    SqlBackend(rig.database, "other").put([NewMessage(id=new_id(), body=b"1")])
    rig.handle(2)
    rig.handle(2)
    assert rig.bound.low > 4


def test_a_claim_that_is_rolled_back_measures_nothing(rig: Rig) -> None:
    """Its snapshot shows rows as settled that are live again after the rollback."""
    rig.put(1)
    held = rig.exchange()
    rig.clock.advance(MEASURE_INTERVAL)
    rig.put(1)

    def work(tx: Any) -> None:
        rig.backend.exchanges.settle(tx, held)
        rig.backend.exchanges.claim(
            tx,
            rig.backend.queue(),
            owner=rig.owner,
            lease_seconds=1.0,
            limit=1,
            selection=RowSelection.ANY,
        )
        tx.rows("SELECT 1")  # delivers the measurement
        raise RuntimeError

    with pytest.raises(RuntimeError):
        rig.database.write(work)
    rig.handle(2)
    rig.handle(2)
    assert rig.bound.low == held[0].claim.seq


def test_a_row_below_a_wrong_bound_is_claimed_by_the_next_full_scan(rig: Rig) -> None:
    rig.put(1)
    rig.bound.begin_claim()
    rig.bound.low = 1000
    assert [] == rig.claim()
    rig.clock.advance(FULL_SCAN_INTERVAL)
    assert [1] == rig.claim()


def test_a_store_that_may_be_another_one_is_scanned_in_full(rig: Rig) -> None:
    rig.put(1)
    rig.bound.begin_claim()
    rig.bound.low = 1000

    rig.database._learn(StoreUnreachableError("the server is gone"), [])
    assert [1] == rig.claim()
