"""The connections of a runner whose store fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.host import PeriodicTaskFailed
from longwatch.core.events.runner import SseConnectionFailed
from longwatch.host.loop import EventLoopThread
from longwatch.runner.connections import SourceConnections
from longwatch.runner.event_store import EventStore
from longwatch.runner.policy import RunnerPolicy, SourceSpec
from longwatch.runner.seams import StreamItem
from longwatch.store.url import open_database
from longwatch.testing import RecordingObserver
from polling import eventually

MANY = 20
FEW = 3
"""More than one: a slow machine may come to the next round of the writer."""


class _NoIntake:
    """Nothing is ever taken: no source answers."""

    async def cursor(self, source: str) -> str:
        return ""

    async def take(self, source: str, items: Sequence[StreamItem], *, cursor: str) -> None:
        raise AssertionError(source)

    async def report_oversize(self, source: str, count: int) -> None:
        raise AssertionError(source)


def test_a_store_that_fails_is_not_tried_at_each_change_of_a_connection(tmp_path: Path) -> None:
    """Sources that do not answer change their state all the time. The write that fails is
    reported, and the next one comes at its interval.
    """
    database = open_database(f"sqlite:///{tmp_path}/runner.db")
    assert database is not None
    database.close()  # every call fails from now on
    observer, clock = RecordingObserver(), SystemClock()
    events = Events(observer)
    policy = RunnerPolicy(reconnect_initial_delay=0.01, reconnect_max_delay=0.01)
    with (
        EventLoopThread(clock=clock) as loop,
        SourceConnections(
            [SourceSpec(name="down", url="http://127.0.0.1:1/")],
            policy,
            _NoIntake(),
            EventStore(database),
            loop=loop,
            clock=clock,
            events=events,
        ) as connections,
    ):
        connections.hold(["down"])
        assert eventually(lambda: len(observer.of(SseConnectionFailed)) >= MANY)

    assert 1 <= len(observer.of(PeriodicTaskFailed)) <= FEW
