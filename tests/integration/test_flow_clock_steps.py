"""A step of the store's clock makes every attempt lapse at once. Healthy workers keep theirs, and
attempts whose code is silent do not wait. On every store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flow_rig import ManualWorker, database_fixture, on_postgres, url_fixture  # noqa: F401 - fixtures
from longwatch.engine.claim_source import ClaimedRow
from longwatch.flow import Execution, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.host.beatpage import BeatPage
from longwatch.store.database import Database
from longwatch.testing import FakeClock

ABANDON, TIMEOUT, RENEW = 1000.0, 100.0, 30.0
STEP = TIMEOUT + 10
ELSEWHERE = {"boot": "elsewhere", "page": "/nowhere", "renew_seconds": RENEW}
"""A worker on another machine."""


def url_length(url: str) -> int:
    return len(url)


@pytest.fixture
def worker(database: Database) -> ManualWorker:
    node = compute(
        "pages",
        ["url"],
        url_length,
        abandon_after_seconds=ABANDON,
        heartbeat_timeout_seconds=TIMEOUT,
        heartbeat_interval_seconds=RENEW,
    )
    return ManualWorker(database, Graph("scrape", version="1", nodes=[input("url"), node]))


class Sweeper:
    """The sweeps of one more worker, by a clock of its own."""

    def __init__(self, worker: ManualWorker) -> None:
        self.clock = FakeClock()
        self._database = worker.database
        self._source = FlowClaimSource(worker.database, worker.flow.registry, clock=self.clock)

    def sweep_after(self, seconds: float) -> int:
        """Time passes, then it sweeps if a sweep is due; how many rows it has moved."""
        self.clock.advance(seconds)
        self._database.jump.wall += seconds
        return self._source.sweep()


@pytest.fixture
def sweeper(worker: ManualWorker) -> Sweeper:
    return Sweeper(worker)


@pytest.fixture
def new_page(tmp_path: Path) -> Iterator[Callable[[], BeatPage]]:
    made: list[BeatPage] = []

    def make() -> BeatPage:
        made.append(BeatPage(tmp_path / f"page-{len(made)}", 1))
        return made[-1]

    yield make
    for page in made:
        page.close()


def claim(worker: ManualWorker, **owner: Any) -> tuple[Execution, ClaimedRow]:
    """A new execution, claimed by a worker of its own."""
    execution = worker.flow.start("scrape", url="abc")
    return execution, worker.claim_one(owner=worker.register_owner(**owner))


def causes(execution: Execution) -> list[tuple[str | None, int]]:
    return [(each.end_cause, each.releases) for each in execution.computations()]


def test_a_live_worker_that_renews_after_the_step_keeps_its_attempts(
    worker: ManualWorker, sweeper: Sweeper, new_page: Callable[[], BeatPage]
) -> None:
    page = new_page()
    execution, leased = claim(worker, page=str(page.path), renew_seconds=RENEW)
    page.begin(0, leased.claim.seq, sweeper.clock.monotonic())
    worker.database.jump.lease += STEP
    assert 0 == sweeper.sweep_after(0.0)
    assert 1 == worker.source.renew(owner=leased.claim.owner, lease_seconds=0.0)
    assert [0, 0] == [sweeper.sweep_after(RENEW) for _ in range(2)]
    assert worker.succeed(leased, 3)
    assert [("done", 0)] == causes(execution)


def test_a_live_worker_that_does_not_renew_gives_them_back_after_one_interval(
    worker: ManualWorker, sweeper: Sweeper, new_page: Callable[[], BeatPage]
) -> None:
    page = new_page()
    execution, leased = claim(worker, page=str(page.path), renew_seconds=RENEW)
    worker.database.jump.lease += STEP
    moved = []
    for seconds in (0.0, RENEW - 1.0, 1.0):
        page.begin(0, leased.claim.seq, sweeper.clock.monotonic() + seconds)
        moved.append(sweeper.sweep_after(seconds))
    assert [0, 0, 1] == moved
    assert [(None, 1)] == causes(execution)


def test_a_silent_attempt_of_a_live_worker_fails_at_once(
    worker: ManualWorker, sweeper: Sweeper, new_page: Callable[[], BeatPage]
) -> None:
    """Its slot gives no beat: renewals have nothing to do with that."""
    page = new_page()
    execution, leased = claim(worker, page=str(page.path), renew_seconds=RENEW)
    sweeper.clock.advance(TIMEOUT)
    page.begin(0, leased.claim.seq, sweeper.clock.monotonic() - TIMEOUT)
    worker.database.jump.lease += STEP
    assert 1 == sweeper.sweep_after(0.0)
    assert [("heartbeat", 0), (None, 0)] == causes(execution)


@on_postgres
class TestWorkersElsewhere:
    def test_that_all_lapse_together_are_given_one_interval_to_renew(
        self, worker: ManualWorker, sweeper: Sweeper
    ) -> None:
        claimed = [claim(worker, **ELSEWHERE) for _ in range(3)]
        worker.database.jump.lease += STEP
        assert 0 == sweeper.sweep_after(0.0)
        for _, leased in claimed[:2]:
            worker.source.renew(owner=leased.claim.owner, lease_seconds=0.0)
        assert [0, 1] == [sweeper.sweep_after(seconds) for seconds in (RENEW - 1.0, 1.0)]
        assert [[(None, 0)], [(None, 0)], [("lost", 0), (None, 0)]] == [
            causes(execution) for execution, _ in claimed
        ]

    def test_one_of_many_is_lost_at_once(self, worker: ManualWorker, sweeper: Sweeper) -> None:
        claimed = [claim(worker, **ELSEWHERE) for _ in range(3)]
        worker.database.jump.lease += STEP
        for _, leased in claimed[:2]:
            worker.source.renew(owner=leased.claim.owner, lease_seconds=0.0)
        assert 1 == sweeper.sweep_after(0.0)
        assert [("lost", 0), (None, 0)] == causes(claimed[2][0])

    def test_the_sweeper_that_holds_them_looks_again_though_others_take_the_turns(
        self, worker: ManualWorker, sweeper: Sweeper
    ) -> None:
        """Another worker has made the last sweep a moment ago, and counts its own interval."""
        for _ in range(2):
            claim(worker, **ELSEWHERE)
        worker.database.jump.lease += STEP
        assert 0 == sweeper.sweep_after(0.0)
        other = Sweeper(worker)
        worker.database.jump.wall += RENEW
        assert 0 == other.sweep_after(0.0)
        worker.database.jump.wall -= RENEW
        sweeper.clock.advance(RENEW)
        worker.database.jump.wall += RENEW
        assert 2 == sweeper.sweep_after(0.0)

    def test_that_renew_lose_what_is_past_its_deadline_at_once(
        self, worker: ManualWorker, sweeper: Sweeper
    ) -> None:
        claimed = [claim(worker, **ELSEWHERE) for _ in range(2)]
        worker.database.jump.lease += ABANDON + 10
        for _, leased in claimed:
            worker.source.renew(owner=leased.claim.owner, lease_seconds=0.0)
        assert 2 == sweeper.sweep_after(0.0)
        assert [("deadline", 0), (None, 0)] == causes(claimed[0][0])

    def test_a_sweep_by_hand_waits_for_none(self, worker: ManualWorker) -> None:
        for _ in range(2):
            claim(worker, **ELSEWHERE)
        worker.database.jump.lease += STEP
        assert 2 == worker.flow.sweep()
