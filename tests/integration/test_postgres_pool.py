"""When a pool makes another connection, and when a call waits for one in use."""

from __future__ import annotations

import threading
import time

import pytest

from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.store.postgres import pool as pool_module
from longwatch.store.postgres.pool import ConnectionPool
from polling import eventually

NEVER = Deadline.never(SystemClock())
FOREVER = 1000.0


class FakeConnection:
    """A connection to nothing."""

    is_idle = True

    def __init__(self) -> None:
        self.used_at = time.monotonic()

    def is_alive(self) -> bool:
        return True

    def close(self, reason: str = "") -> None:
        self.is_idle = False


@pytest.fixture
def pool() -> ConnectionPool:
    return ConnectionPool(lambda _: FakeConnection())  # type: ignore[arg-type, return-value]


def test_a_call_waits_for_a_connection_in_use_instead_of_making_another(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "OVERLAP_WAIT", FOREVER)
    used: list[object] = []

    def call() -> None:
        with pool.connection(NEVER) as connection:
            used.append(connection)

    with pool.connection(NEVER) as first:
        other = threading.Thread(target=call)
        other.start()
        assert eventually(lambda: len(pool._changed._waiters) == 1)  # type: ignore[attr-defined]
    other.join()
    assert [first] == used


def test_a_call_makes_another_connection_when_it_has_waited_in_vain(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "OVERLAP_WAIT", 0.0)
    with pool.connection(NEVER) as first, pool.connection(NEVER) as second:
        assert first is not second


def test_calls_that_overlap_often_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FREQUENT_OVERLAPS", 2)
    monkeypatch.setattr(pool_module, "OVERLAP_WAIT", 0.0)
    monkeypatch.setattr(pool_module, "OVERLAP_PERIOD", FOREVER)
    pool = ConnectionPool(lambda _: FakeConnection())  # type: ignore[arg-type, return-value]
    with pool.connection(NEVER), pool.connection(NEVER), pool.connection(NEVER):
        monkeypatch.setattr(pool_module, "OVERLAP_WAIT", FOREVER)
        with pool.connection(NEVER) as another:
            assert another.is_idle


def test_a_call_does_not_wait_longer_than_its_deadline(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "OVERLAP_WAIT", FOREVER)
    over = Deadline.after(0.0, SystemClock())
    with pool.connection(NEVER) as first, pool.connection(over) as second:
        assert first is not second


def test_rare_overlaps_do_not_keep_a_second_connection_open(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single calls always use the other one, so that the second one ages and is closed."""
    monkeypatch.setattr(pool_module, "OVERLAP_WAIT", 0.0)
    with pool.connection(NEVER) as first, pool.connection(NEVER) as second:
        pass
    first.used_at = second.used_at + 1.0
    ages = second.used_at
    monkeypatch.setattr(pool_module, "OVERLAP_WAIT", FOREVER)  # no call takes so long
    for _ in range(3):
        with pool.connection(NEVER) as outer, pool.connection(NEVER) as inner:
            assert (first, second) == (outer, inner)
        first.used_at = max(first.used_at, ages + 1.0)
    assert ages == second.used_at


def test_frequent_overlaps_count_as_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FREQUENT_OVERLAPS", 1)
    monkeypatch.setattr(pool_module, "OVERLAP_WAIT", 0.0)
    monkeypatch.setattr(pool_module, "OVERLAP_PERIOD", FOREVER)
    pool = ConnectionPool(lambda _: FakeConnection())  # type: ignore[arg-type, return-value]
    with pool.connection(NEVER), pool.connection(NEVER) as rare, pool.connection(NEVER) as frequent:
        monkeypatch.setattr(pool_module, "OVERLAP_WAIT", FOREVER)  # no call takes so long
        rare.used_at = frequent.used_at = -1.0
    assert (-1.0, True) == (rare.used_at, frequent.used_at >= 0)


def test_a_long_call_in_a_rare_overlap_counts_as_use(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "OVERLAP_WAIT", 0.0)
    with pool.connection(NEVER), pool.connection(NEVER) as second:
        second.used_at = -1.0
        monkeypatch.setattr(pool_module, "OVERLAP_WAIT", -1.0)  # every call takes longer
    assert second.used_at >= 0
