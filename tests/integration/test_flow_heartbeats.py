"""The heartbeat contract in the columns of the store: two limits, one statement for all, and
what a sweep makes of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    NO_SUCH_PID,
    ManualWorker,
    database_fixture,
    on_postgres,
    on_sqlite,
    url_fixture,
)
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.flow import Execution, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.host.beatpage import BeatPage
from longwatch.store.database import Database

ABANDON, TIMEOUT, INTERVAL = 1000.0, 100.0, 50.0
OPTIONS = {
    "abandon_after_seconds": ABANDON,
    "heartbeat_timeout_seconds": TIMEOUT,
    "heartbeat_interval_seconds": INTERVAL,
}
LIMITS = (
    "heartbeat_deadline - :lease_now",
    "deadline - :lease_now",
    "last_heartbeat_at - :wall_now",
    "started_at - :wall_now",
)
RETRIED = [("pages", "abandoned", "heartbeat"), ("pages", "not_set", None)]
LOST = [("pages", "abandoned", "lost"), ("pages", "not_set", None)]


@pytest.fixture
def worker(database: Database) -> ManualWorker:
    nodes = [
        input("url"),
        compute("pages", ["url"], url_length, **OPTIONS),
        compute("titles", "pages", lambda pages: pages),
    ]
    return ManualWorker(database, Graph("scrape", version="1", nodes=nodes))


@pytest.fixture
def execution(worker: ManualWorker) -> Execution:
    return worker.flow.start("scrape", url="abc")


@pytest.fixture
def leased(worker: ManualWorker, execution: Execution) -> ClaimedRow:
    return worker.claim_one()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[BeatPage]:
    made = BeatPage(tmp_path / "page", 2)
    yield made
    made.close()


def url_length(url: str) -> int:
    return len(url)


def about(*expected: float | None) -> Any:
    """A moment passes between one statement and the next."""
    return tuple(None if each is None else pytest.approx(each, abs=5.0) for each in expected)


class TestColumns:
    def test_at_the_claim_both_limits_are_counted_from_the_start(
        self, worker: ManualWorker, leased: ClaimedRow
    ) -> None:
        assert about(TIMEOUT, ABANDON, 0, 0) == worker.row(leased.claim.seq, *LIMITS)
        assert ("computing", 2, worker.owner) == worker.row(
            leased.claim.seq, "state", "lease_state", "owner"
        )

    def test_before_it_there_is_none(self, worker: ManualWorker, execution: Execution) -> None:
        assert [(None, None, None, "not_set")] == worker.rows(
            "SELECT heartbeat_deadline, deadline, last_heartbeat_at, state FROM "
            "longwatch_computations"
        )
        assert execution.computations()[0].heartbeat_in is None

    def test_are_on_the_clocks_of_the_store(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        worker.database.jump.lease += 10_000
        worker.database.jump.wall -= 10_000
        leased = worker.claim_one()
        worker.database.jump.lease -= 10_000
        worker.database.jump.wall += 10_000
        assert about(TIMEOUT + 10_000, ABANDON + 10_000, -10_000, -10_000) == worker.row(
            leased.claim.seq, *LIMITS
        )
        assert execution.computations()

    def test_a_pulse_moves_the_first_and_leaves_the_second(
        self, worker: ManualWorker, leased: ClaimedRow
    ) -> None:
        for clock in ("lease", "wall"):
            setattr(worker.database.jump, clock, 60.0)
        assert 1 == worker.source.renew(owner=worker.owner, lease_seconds=1.0)
        assert about(TIMEOUT, ABANDON - 60, 0, -60) == worker.row(leased.claim.seq, *LIMITS)

    def test_a_pulse_never_brings_it_nearer(self, worker: ManualWorker, leased: ClaimedRow) -> None:
        worker.database.jump.lease = -60.0
        worker.source.renew(owner=worker.owner, lease_seconds=1.0)
        assert about(TIMEOUT + 60, ABANDON + 60) == worker.row(leased.claim.seq, *LIMITS[:2])

    def test_given_back_there_is_none_any_more(
        self, worker: ManualWorker, leased: ClaimedRow
    ) -> None:
        assert worker.release(leased)
        assert (None, None, None, None, "not_set", 0) == worker.row(
            leased.claim.seq, *LIMITS, "state", "lease_state"
        )

    def test_one_statement_renews_all_of_an_owner_each_by_its_own_timeout(
        self, database: Database
    ) -> None:
        nodes = [
            input("a"),
            compute("b", "a", lambda a: a, **OPTIONS),
            compute("c", "a", lambda a: a),
        ]
        worker = ManualWorker(database, Graph("two", version="1", nodes=nodes))
        for _ in range(5):
            worker.flow.start("two", a=1)
        taken = worker.claim()
        other = worker.register_owner()
        worker.flow.start("two", a=1)
        theirs = worker.claim(owner=other)
        worker.database.jump.lease = 60.0
        assert 10 == worker.source.renew(owner=worker.owner, lease_seconds=1.0)
        for leased in taken:
            expected = TIMEOUT if leased.item.node == "b" else 240.0
            assert about(expected) == worker.row(leased.claim.seq, LIMITS[0])
        assert about(*[TIMEOUT - 60, 180.0]) == tuple(
            worker.row(each.claim.seq, LIMITS[0])[0] for each in sorted(theirs)
        )

    def test_of_a_row_that_does_not_beat_stay_empty(
        self, worker: ManualWorker, leased: ClaimedRow
    ) -> None:
        worker.write("UPDATE longwatch_computations SET heartbeat_deadline = NULL")
        assert 1 == worker.source.renew(owner=worker.owner, lease_seconds=1.0)
        assert about(None, ABANDON) == worker.row(leased.claim.seq, *LIMITS[:2])


class TestSweep:
    def test_what_beats_is_left_alone(
        self, worker: ManualWorker, execution: Execution, leased: ClaimedRow
    ) -> None:
        worker.database.jump.lease = TIMEOUT - 10
        worker.source.renew(owner=worker.owner, lease_seconds=1.0)
        worker.database.jump.lease += TIMEOUT - 10
        assert 0 == worker.flow.sweep()
        assert worker.succeed(leased, 3)
        assert 3 == execution.get("pages", wait=False)

    def test_what_has_gone_silent_is_abandoned_and_tried_again(
        self, worker: ManualWorker, execution: Execution, leased: ClaimedRow
    ) -> None:
        worker.database.jump.lease = TIMEOUT + 10
        assert 1 == worker.flow.sweep()
        assert RETRIED == worker.states(execution)
        again = worker.claim_one()
        assert (2, 1) == (again.item.number, again.item.failures)
        assert again.claim.term > leased.claim.term
        assert "its worker sent no heartbeat" in str(execution.computations()[0].error)

    def test_what_beats_past_its_deadline_is_abandoned_and_tried_again(
        self, worker: ManualWorker, execution: Execution, leased: ClaimedRow
    ) -> None:
        worker.database.jump.lease = ABANDON + 10
        worker.source.renew(owner=worker.owner, lease_seconds=1.0)
        assert about(TIMEOUT, -10) == worker.row(leased.claim.seq, *LIMITS[:2])
        assert 1 == worker.flow.sweep()
        assert [("pages", "abandoned", "deadline"), ("pages", "not_set", None)] == worker.states(
            execution
        )

    def test_a_row_without_a_heartbeat_has_only_its_deadline(
        self, worker: ManualWorker, execution: Execution, leased: ClaimedRow
    ) -> None:
        worker.write("UPDATE longwatch_computations SET heartbeat_deadline = NULL")
        worker.database.jump.lease = ABANDON - 10
        assert 0 == worker.flow.sweep()
        assert leased.claim in worker.source.held(owner=worker.owner)
        worker.database.jump.lease = ABANDON + 10
        assert 1 == worker.flow.sweep()
        assert [("pages", "abandoned", "deadline"), ("pages", "not_set", None)] == worker.states(
            execution
        )

    @pytest.mark.usefixtures("leased")
    def test_a_row_without_limits_is_never_swept(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        worker.write("UPDATE longwatch_computations SET heartbeat_deadline = NULL, deadline = NULL")
        worker.database.jump.lease = 1e9
        assert 0 == worker.flow.sweep()
        assert [("pages", "computing", None)] == worker.states(execution)

    def test_the_last_attempt_is_the_end(self, worker: ManualWorker, execution: Execution) -> None:
        for number in (1, 2, 3):
            assert number == worker.claim_one().item.number
            worker.database.jump.lease += TIMEOUT + 10
            assert 1 == worker.flow.sweep()
        assert [("pages", "abandoned", "heartbeat")] * 3 == worker.states(execution)
        assert "failed" == execution.explain().nodes[1].state
        worker.database.jump.lease += 10_000
        assert 0 == worker.flow.sweep()
        assert [] == worker.claim()

    def test_failures_and_silence_spend_one_budget(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        worker.fail(worker.claim_one())
        worker.claim_one()
        worker.database.jump.lease += TIMEOUT + 10
        worker.flow.sweep()
        worker.fail(worker.claim_one())
        assert ["raised", "heartbeat", "raised"] == [
            each.end_cause for each in execution.computations()
        ]
        assert [] == worker.claim()

    def test_a_new_value_makes_the_budget_whole(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        for _ in range(3):
            worker.claim_one()
            worker.database.jump.lease += TIMEOUT + 10
            worker.flow.sweep()
        execution.set(url="abcd")
        assert 1 == worker.claim_one().item.number


class TestALateResult:
    @pytest.mark.parametrize("lateness", [TIMEOUT, ABANDON])
    def test_changes_nothing(
        self, worker: ManualWorker, execution: Execution, leased: ClaimedRow, lateness: float
    ) -> None:
        worker.database.jump.lease = lateness + 10
        worker.flow.sweep()
        before = execution.revision, worker.states(execution)
        assert not worker.succeed(leased, 99)
        assert not worker.fail(leased)
        assert not worker.release(leased)
        assert [False] == worker.source.settle(
            [Settlement(leased.claim, RowOutcome.DONE, result=b"99")]
        )
        assert before == (execution.revision, worker.states(execution))
        assert "pages" not in execution.values()

    def test_changes_nothing_though_the_next_attempt_runs(
        self, worker: ManualWorker, execution: Execution, leased: ClaimedRow
    ) -> None:
        worker.database.jump.lease = TIMEOUT + 10
        worker.flow.sweep()
        again = worker.claim_one()
        assert not worker.succeed(leased, 99)
        assert worker.succeed(again, 3)
        assert not worker.succeed(leased, 99)
        assert 3 == execution.get("pages", wait=False)

    def test_of_inputs_that_have_changed_changes_nothing(
        self, worker: ManualWorker, execution: Execution, leased: ClaimedRow
    ) -> None:
        execution.set(url="abcd")
        assert not worker.succeed(leased, 99)
        assert {"pages": 1, "titles": 1} == worker.run_all()
        assert 4 == execution.get("pages", wait=False)

    def test_the_same_result_told_twice_counts_once(
        self, worker: ManualWorker, execution: Execution, leased: ClaimedRow
    ) -> None:
        assert [True, False] == [worker.succeed(leased, 3) for _ in range(2)]
        assert [("pages", "success", "done"), ("titles", "not_set", None)] == worker.states(
            execution
        )


class TestAWorkerThatDied:
    def test_on_this_machine_is_found_at_once_and_what_it_had_begun_is_spent(
        self, worker: ManualWorker, execution: Execution, page: BeatPage
    ) -> None:
        dead = worker.register_owner(pid=NO_SUCH_PID, page=str(page.path))
        leased = worker.claim_one(owner=dead)
        page.begin(0, leased.claim.seq, 1.0)
        assert 1 == worker.source.sweep()
        assert [("pages", "abandoned", "crash"), ("pages", "not_set", None)] == worker.states(
            execution
        )
        again = worker.claim_one()
        assert (2, 1, 0, False) == (
            again.item.number,
            again.item.crashes,
            again.item.failures,
            again.is_exclusive,
        )

    def test_what_it_had_not_begun_goes_back_unspent(
        self, worker: ManualWorker, execution: Execution, page: BeatPage
    ) -> None:
        dead = worker.register_owner(pid=NO_SUCH_PID, page=str(page.path))
        leased = worker.claim_one(owner=dead)
        assert 1 == worker.source.sweep()
        assert [("pages", "not_set", None)] == worker.states(execution)
        again = worker.claim_one()
        assert (leased.claim.seq, 1, 0) == (again.claim.seq, again.item.number, again.item.crashes)
        assert 1 == execution.computations()[0].releases
        assert not worker.succeed(leased, 99)

    def test_what_it_had_begun_while_draining_goes_back_unspent(
        self, worker: ManualWorker, execution: Execution, page: BeatPage
    ) -> None:
        dead = worker.register_owner(pid=NO_SUCH_PID, page=str(page.path))
        page.begin(0, worker.claim_one(owner=dead).claim.seq, 1.0)
        page.start_draining()
        assert 1 == worker.source.sweep()
        assert [("pages", "not_set", None)] == worker.states(execution)

    def test_without_a_page_that_can_be_read_it_is_lost(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        worker.claim_one(owner=worker.register_owner(pid=NO_SUCH_PID, page="/nowhere"))
        assert 1 == worker.source.sweep()
        assert LOST == worker.states(execution)

    @on_postgres
    def test_of_another_machine_is_found_by_its_missing_pulse(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        worker.claim_one(owner=worker.register_owner(boot="elsewhere", page="/nowhere"))
        assert 0 == worker.flow.sweep()
        worker.database.jump.lease = TIMEOUT + 10
        assert 1 == worker.flow.sweep()
        assert LOST == worker.states(execution)

    @on_sqlite
    def test_of_an_earlier_boot_of_this_machine_is_found_at_once(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        worker.claim_one(owner=worker.register_owner(boot="earlier", page="/nowhere"))
        assert 1 == worker.source.sweep()
        assert LOST == worker.states(execution)

    def test_silent_with_a_page_that_says_not_begun_goes_back_unspent(
        self, worker: ManualWorker, execution: Execution, page: BeatPage
    ) -> None:
        """It lives, but is frozen or cannot reach the store."""
        leased = worker.claim_one(owner=worker.register_owner(page=str(page.path)))
        worker.database.jump.lease = TIMEOUT + 10
        assert 1 == worker.flow.sweep()
        assert [("pages", "not_set", None)] == worker.states(execution)
        assert (1, 1) == (worker.claim_one().item.number, execution.computations()[0].releases)
        assert not worker.succeed(leased, 99)


class TestFencing:
    def test_the_token_rises_with_every_attempt_of_a_node(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        tokens = []
        for _ in range(3):
            leased = worker.claim_one()
            tokens.append(leased.claim.term)
            worker.fail(leased)
        execution.set(url="abcd")
        tokens.append(worker.claim_one().claim.term)
        assert sorted(set(tokens)) == tokens

    def test_it_rises_though_the_clocks_go_back(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        first = worker.claim_one()
        worker.fail(first)
        worker.database.jump.wall = worker.database.jump.lease = -3600.0
        second = worker.claim_one()
        assert second.claim.term > first.claim.term
        execution.set(url="abcd")
        assert worker.claim_one().claim.term > second.claim.term
