"""Blame for attempts of computations: which budget each end of a worker spends, and who runs the
last chance. With owners of every kind, made by hand, on every store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    NO_SUCH_PID,
    ManualWorker,
    database_fixture,
    on_postgres,
    url_fixture,
)
from longwatch.core.clock import SystemClock
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.errors import ComputationFailedError
from longwatch.flow import Execution, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.store.database import Database

ABANDON, TIMEOUT, INTERVAL = 1000.0, 100.0, 50.0


def url_length(url: str) -> int:
    return len(url)


@pytest.fixture
def worker(database: Database) -> ManualWorker:
    """One that may fail once: whatever is tried again was no failed attempt."""
    node = compute(
        "pages",
        ["url"],
        url_length,
        max_attempts=1,
        abandon_after_seconds=ABANDON,
        heartbeat_timeout_seconds=TIMEOUT,
        heartbeat_interval_seconds=INTERVAL,
    )
    return ManualWorker(database, Graph("scrape", version="1", nodes=[input("url"), node]))


@pytest.fixture
def execution(worker: ManualWorker) -> Execution:
    return worker.flow.start("scrape", url="abc")


@pytest.fixture
def new_page(tmp_path: Path) -> Iterator[Callable[[], BeatPage]]:
    made: list[BeatPage] = []

    def make() -> BeatPage:
        made.append(BeatPage(tmp_path / f"page-{len(made)}", 1))
        return made[-1]

    yield make
    for page in made:
        page.close()


def crash(worker: ManualWorker, page: BeatPage, **owner: object) -> ClaimedRow:
    """A worker claims an attempt, begins it and dies."""
    dead = worker.register_owner(pid=NO_SUCH_PID, page=str(page.path), **owner)  # type: ignore[arg-type]
    [leased] = worker.claim(1, owner=dead)
    page.begin(0, leased.claim.seq, 1.0)
    assert 1 == worker.source.sweep()
    return leased


def lose(worker: ManualWorker) -> None:
    """A worker claims an attempt and vanishes with its page."""
    worker.claim(1, owner=worker.register_owner(pid=NO_SUCH_PID, page="/nowhere"))
    assert 1 == worker.source.sweep()


def dead_incarnation() -> str:
    return str(replace(Incarnation.current(), pid=NO_SUCH_PID))


class TestBudgets:
    def test_three_crashes_give_a_node_up_as_poison(
        self, worker: ManualWorker, execution: Execution, new_page: Callable[[], BeatPage]
    ) -> None:
        """Though one failed attempt is allowed: a crash is none."""
        numbers = [crash(worker, new_page()).item.number for _ in range(3)]
        assert [1, 2, 3] == numbers
        assert [] == worker.claim()
        assert ["crash"] * 3 == [each.end_cause for each in execution.computations()]
        assert "poison: its worker ended while it ran" == execution.computations()[-1].error
        assert "failed" == execution.explain().nodes[-1].state
        assert "given up after 3 attempts; retry it" in str(execution.explain())
        assert "last error: poison: " in str(execution.explain())
        with pytest.raises(ComputationFailedError, match="poison"):
            execution.get("pages", timeout=0)

    def test_crashes_that_a_worker_reports_give_a_node_up_as_poison(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        """As those that a sweep finds."""
        for _ in range(3):
            crashed = Settlement(worker.claim_one().claim, RowOutcome.CRASHED, error="gone")
            assert [True] == worker.source.settle([crashed])
        assert [] == worker.claim()
        assert ["crash"] * 3 == [each.end_cause for each in execution.computations()]
        with pytest.raises(ComputationFailedError, match="poison"):
            execution.get("pages", timeout=0)

    def test_five_losses_give_a_node_up_as_lost(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        for _ in range(5):
            lose(worker)
        assert [] == worker.claim()
        assert ["lost"] * 5 == [each.end_cause for each in execution.computations()]
        assert "given up after 5 attempts; retry it" in str(execution.explain())
        assert "last error: lost: its worker was lost" in str(execution.explain())
        with pytest.raises(ComputationFailedError, match="lost"):
            execution.get("pages", timeout=0)

    def test_the_budgets_are_carried_from_attempt_to_attempt_and_told_apart(
        self, worker: ManualWorker, execution: Execution, new_page: Callable[[], BeatPage]
    ) -> None:
        crash(worker, new_page())
        lose(worker)
        crash(worker, new_page())
        lose(worker)
        leased = worker.claim_one()
        item = leased.item
        assert (5, 0, 2, 2) == (item.number, item.failures, item.crashes, item.lost)
        assert "attempt 5: 0 of 1 failed, 2 of 3 crashed, 2 of 5 lost" in str(execution.explain())
        assert worker.fail(leased)
        assert "failed" == execution.explain().nodes[-1].state
        assert "poison" not in str(execution.explain())

    def test_a_retry_by_hand_and_new_inputs_make_them_whole(
        self, worker: ManualWorker, execution: Execution, new_page: Callable[[], BeatPage]
    ) -> None:
        for _ in range(3):
            crash(worker, new_page())
        execution.retry("pages")
        crash(worker, new_page())
        execution.set(url="abcd")
        item = worker.claim_one().item
        assert (1, 0, 0) == (item.number, item.crashes, item.lost)

    def test_a_lost_owner_whose_parent_has_ended_too_is_no_crash(
        self, worker: ManualWorker, execution: Execution, new_page: Callable[[], BeatPage]
    ) -> None:
        """kill -9 of a worker and of its parent: the page proves that the attempt ran, and nothing
        proves that it was the cause.
        """
        crash(worker, new_page(), parent=dead_incarnation())
        assert ["lost", None] == [each.end_cause for each in execution.computations()]

    def test_a_dead_owner_whose_parent_lives_is_a_crash(
        self, worker: ManualWorker, execution: Execution, new_page: Callable[[], BeatPage]
    ) -> None:
        crash(worker, new_page(), parent=str(Incarnation.current()))
        assert ["crash", None] == [each.end_cause for each in execution.computations()]


class TestReleases:
    def test_an_owner_that_has_reported_that_it_drains_blames_nothing(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        """A pod that is killed after its grace: its page has gone with it."""
        for count in range(1, 7):
            owner = worker.register_owner(pid=NO_SUCH_PID, page="/nowhere")
            worker.claim(1, owner=owner)
            worker.source.report_draining(owner=owner)
            assert 1 == worker.source.sweep()
            assert [(None, count)] == [
                (each.end_cause, each.releases) for each in execution.computations()
            ]

    def test_one_that_claims_again_is_blamed_again(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        owner = worker.register_owner(pid=NO_SUCH_PID, page="/nowhere")
        worker.claim(1, owner=owner)
        worker.source.report_draining(owner=owner)
        worker.source.report_draining(owner=owner, is_draining=False)
        assert 1 == worker.source.sweep()
        assert ["lost", None] == [each.end_cause for each in execution.computations()]

    def test_a_release_keeps_its_delay_and_is_counted(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        assert worker.release(worker.claim_one(), delay=60.0)
        [waiting] = execution.computations()
        assert (1, None, 1) == (waiting.attempt, waiting.end_cause, waiting.releases)
        assert waiting.ready_in is not None
        assert 30.0 < waiting.ready_in <= 60.0
        assert [] == worker.claim()
        worker.database.jump.wall += 61.0
        leased = worker.claim_one()
        assert (1, 0, 1) == (leased.item.number, leased.failures, leased.item.releases)


class TestALiveOwnerThatDoesNotRenew:
    """A missed heartbeat of a process that certainly lives: the beats of its slot decide."""

    @pytest.fixture
    def page(self, new_page: Callable[[], BeatPage]) -> BeatPage:
        return new_page()

    @pytest.fixture
    def leased(self, worker: ManualWorker, execution: Execution, page: BeatPage) -> ClaimedRow:
        assert execution is not None
        return worker.claim_one(owner=worker.register_owner(page=str(page.path)))

    def test_whose_slot_beats_gets_its_attempt_back_unspent(
        self, worker: ManualWorker, execution: Execution, page: BeatPage, leased: ClaimedRow
    ) -> None:
        page.begin(0, leased.claim.seq, SystemClock().monotonic())
        worker.database.jump.lease += TIMEOUT + 10
        assert 1 == worker.flow.sweep()
        [waiting] = execution.computations()
        assert ("not_set", 1) == (waiting.state, waiting.releases)

    def test_whose_slot_is_silent_has_failed(
        self, worker: ManualWorker, execution: Execution, page: BeatPage, leased: ClaimedRow
    ) -> None:
        """It spends `max_attempts`, of which there is one here."""
        page.begin(0, leased.claim.seq, SystemClock().monotonic() - TIMEOUT)
        worker.database.jump.lease += TIMEOUT + 10
        assert 1 == worker.flow.sweep()
        assert ["heartbeat"] == [each.end_cause for each in execution.computations()]
        assert "failed" == execution.explain().nodes[-1].state

    def test_that_is_past_its_deadline_has_failed_though_its_slot_beats(
        self, worker: ManualWorker, execution: Execution, page: BeatPage, leased: ClaimedRow
    ) -> None:
        page.begin(0, leased.claim.seq, SystemClock().monotonic())
        worker.database.jump.lease += ABANDON + 10
        assert 1 == worker.flow.sweep()
        assert ["deadline"] == [each.end_cause for each in execution.computations()]

    def test_that_has_not_begun_it_gets_it_back_though_it_is_past_its_deadline(
        self, worker: ManualWorker, execution: Execution, leased: ClaimedRow
    ) -> None:
        assert leased
        worker.database.jump.lease += ABANDON + 10
        assert 1 == worker.flow.sweep()
        assert [(None, 1)] == [(each.end_cause, each.releases) for each in execution.computations()]


@on_postgres
def test_an_owner_elsewhere_that_renews_fails_by_its_deadline(
    worker: ManualWorker, execution: Execution
) -> None:
    """It lives, or it could not renew: no loss."""
    owner = worker.register_owner(boot="elsewhere", page="/nowhere")
    worker.claim(1, owner=owner)
    worker.database.jump.lease += ABANDON + 10
    worker.source.renew(owner=owner, lease_seconds=1.0)
    assert 1 == worker.flow.sweep()
    assert ["deadline"] == [each.end_cause for each in execution.computations()]


class TestWhatAFailureLeavesBehind:
    def test_the_traceback_is_kept_with_the_attempt_and_with_the_node(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        settlement = Settlement(
            worker.claim_one().claim,
            RowOutcome.FAILED,
            error="KeyError: 'missing'",
            traceback="Traceback:\n  line 3\0\nKeyError: 'missing'",
        )
        assert [True] == worker.source.settle([settlement])
        [attempt] = execution.computations()
        where = "Traceback:\n  line 3\\x00\nKeyError: 'missing'"
        assert ("KeyError: 'missing'", where) == (attempt.error, attempt.traceback)
        assert where == execution._load_state().nodes["pages"].traceback

    def test_a_value_leaves_no_traceback_of_an_earlier_attempt(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        failed = Settlement(worker.claim_one().claim, RowOutcome.FAILED, traceback="line 3")
        worker.source.settle([failed])
        execution.retry("pages")
        worker.run_all()
        assert (3, None) == (
            execution.get("pages", wait=False),
            execution._load_state().nodes["pages"].traceback,
        )
        assert ["line 3", None] == [each.traceback for each in execution.computations()]

    def test_the_last_failure_that_the_engine_declares_dead_counts_as_raised(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        leased = worker.claim_one()
        assert 1 == leased.failures_left
        dead = Settlement(leased.claim, RowOutcome.DEAD, reason="failed", error="broken")
        assert [True] == worker.source.settle([dead])
        assert [("failed", "raised")] == [
            (each.state, each.end_cause) for each in execution.computations()
        ]
