"""The heartbeat contract in the columns of the store: two limits, one statement for all, and
what a sweep makes of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flow_rig import NO_SUCH_PID, Desk, database_fixture, on_one_machine, on_postgres, url_fixture  # noqa: F401 - fixtures
from longwatch.flow import Execution, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.host.beatpage import BeatPage
from longwatch.store.database import Database
from longwatch.work.source import Leased, Outcome, Settlement

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


@pytest.fixture
def desk(database: Database) -> Desk:
    nodes = [
        input("url"),
        compute("pages", ["url"], len_of, **OPTIONS),
        compute("titles", "pages", lambda pages: pages),
    ]
    return Desk(database, Graph("scrape", version="1", nodes=nodes))


@pytest.fixture
def execution(desk: Desk) -> Execution:
    return desk.flow.start("scrape", url="abc")


@pytest.fixture
def leased(desk: Desk, execution: Execution) -> Leased:
    return desk.take_one()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[BeatPage]:
    made = BeatPage(tmp_path / "page", 2)
    yield made
    made.close()


def len_of(url: str) -> int:
    return len(url)


def about(*expected: float | None) -> Any:
    """A moment passes between one statement and the next."""
    return tuple(None if each is None else pytest.approx(each, abs=5.0) for each in expected)


class TestColumns:
    def test_at_the_claim_both_limits_are_counted_from_the_start(
        self, desk: Desk, leased: Leased
    ) -> None:
        assert about(TIMEOUT, ABANDON, 0, 0) == desk.row(leased.claim.seq, *LIMITS)
        assert ("computing", 2, desk.owner) == desk.row(leased.claim.seq, "state", "held", "owner")

    def test_before_it_there_is_none(self, desk: Desk, execution: Execution) -> None:
        assert [(None, None, None, "not_set")] == desk.rows(
            "SELECT heartbeat_deadline, deadline, last_heartbeat_at, state FROM "
            "longwatch_computations"
        )
        assert execution.computations()[0].heartbeat_in is None

    def test_are_on_the_clocks_of_the_store(self, desk: Desk, execution: Execution) -> None:
        desk.database.jump.lease += 10_000
        desk.database.jump.wall -= 10_000
        leased = desk.take_one()
        desk.database.jump.lease -= 10_000
        desk.database.jump.wall += 10_000
        assert about(TIMEOUT + 10_000, ABANDON + 10_000, -10_000, -10_000) == desk.row(
            leased.claim.seq, *LIMITS
        )
        assert execution.computations()

    def test_a_pulse_moves_the_first_and_leaves_the_second(
        self, desk: Desk, leased: Leased
    ) -> None:
        for clock in ("lease", "wall"):
            setattr(desk.database.jump, clock, 60.0)
        assert 1 == desk.source.renew(owner=desk.owner, duration=1.0)
        assert about(TIMEOUT, ABANDON - 60, 0, -60) == desk.row(leased.claim.seq, *LIMITS)

    def test_a_pulse_never_brings_it_nearer(self, desk: Desk, leased: Leased) -> None:
        desk.database.jump.lease = -60.0
        desk.source.renew(owner=desk.owner, duration=1.0)
        assert about(TIMEOUT + 60, ABANDON + 60) == desk.row(leased.claim.seq, *LIMITS[:2])

    def test_given_back_there_is_none_any_more(self, desk: Desk, leased: Leased) -> None:
        assert desk.back(leased)
        assert (None, None, None, None, "not_set", 0) == desk.row(
            leased.claim.seq, *LIMITS, "state", "held"
        )

    def test_one_statement_renews_all_of_an_owner_each_by_its_own_timeout(
        self, database: Database
    ) -> None:
        nodes = [
            input("a"),
            compute("b", "a", lambda a: a, **OPTIONS),
            compute("c", "a", lambda a: a),
        ]
        desk = Desk(database, Graph("two", version="1", nodes=nodes))
        for _ in range(5):
            desk.flow.start("two", a=1)
        taken = desk.take()
        other = desk.enter()
        desk.flow.start("two", a=1)
        theirs = desk.take(owner=other)
        desk.database.jump.lease = 60.0
        assert 10 == desk.source.renew(owner=desk.owner, duration=1.0)
        for leased in taken:
            expected = TIMEOUT if leased.item.node == "b" else 240.0
            assert about(expected) == desk.row(leased.claim.seq, LIMITS[0])
        assert about(*[TIMEOUT - 60, 180.0]) == tuple(
            desk.row(each.claim.seq, LIMITS[0])[0] for each in sorted(theirs)
        )

    def test_of_a_row_that_does_not_beat_stay_empty(self, desk: Desk, leased: Leased) -> None:
        desk.write("UPDATE longwatch_computations SET heartbeat_deadline = NULL")
        assert 1 == desk.source.renew(owner=desk.owner, duration=1.0)
        assert about(None, ABANDON) == desk.row(leased.claim.seq, *LIMITS[:2])


class TestSweep:
    def test_what_beats_is_left_alone(
        self, desk: Desk, execution: Execution, leased: Leased
    ) -> None:
        desk.database.jump.lease = TIMEOUT - 10
        desk.source.renew(owner=desk.owner, duration=1.0)
        desk.database.jump.lease += TIMEOUT - 10
        assert 0 == desk.flow.sweep()
        assert desk.done(leased, 3)
        assert 3 == execution.get("pages", wait=False)

    def test_what_has_gone_silent_is_abandoned_and_tried_again(
        self, desk: Desk, execution: Execution, leased: Leased
    ) -> None:
        desk.database.jump.lease = TIMEOUT + 10
        assert 1 == desk.flow.sweep()
        assert RETRIED == desk.states(execution)
        again = desk.take_one()
        assert (2, 1) == (again.item.number, again.item.failures)
        assert again.claim.term > leased.claim.term
        assert "its worker gave no sign of life" in str(execution.computations()[0].error)

    def test_what_beats_past_its_deadline_is_abandoned_and_tried_again(
        self, desk: Desk, execution: Execution, leased: Leased
    ) -> None:
        desk.database.jump.lease = ABANDON + 10
        desk.source.renew(owner=desk.owner, duration=1.0)
        assert about(TIMEOUT, -10) == desk.row(leased.claim.seq, *LIMITS[:2])
        assert 1 == desk.flow.sweep()
        assert [("pages", "abandoned", "deadline"), ("pages", "not_set", None)] == desk.states(
            execution
        )

    def test_a_row_without_a_heartbeat_has_only_its_deadline(
        self, desk: Desk, execution: Execution, leased: Leased
    ) -> None:
        desk.write("UPDATE longwatch_computations SET heartbeat_deadline = NULL")
        desk.database.jump.lease = ABANDON - 10
        assert 0 == desk.flow.sweep()
        assert leased.claim in desk.source.held(owner=desk.owner)
        desk.database.jump.lease = ABANDON + 10
        assert 1 == desk.flow.sweep()
        assert [("pages", "abandoned", "deadline"), ("pages", "not_set", None)] == desk.states(
            execution
        )

    @pytest.mark.usefixtures("leased")
    def test_a_row_without_limits_is_never_swept(self, desk: Desk, execution: Execution) -> None:
        desk.write("UPDATE longwatch_computations SET heartbeat_deadline = NULL, deadline = NULL")
        desk.database.jump.lease = 1e9
        assert 0 == desk.flow.sweep()
        assert [("pages", "computing", None)] == desk.states(execution)

    def test_the_last_attempt_is_the_end(self, desk: Desk, execution: Execution) -> None:
        for number in (1, 2, 3):
            assert number == desk.take_one().item.number
            desk.database.jump.lease += TIMEOUT + 10
            assert 1 == desk.flow.sweep()
        assert [("pages", "abandoned", "heartbeat")] * 3 == desk.states(execution)
        assert "failed" == execution.explain().nodes[1].up
        desk.database.jump.lease += 10_000
        assert 0 == desk.flow.sweep()
        assert [] == desk.take()

    def test_failures_and_silence_spend_one_budget(self, desk: Desk, execution: Execution) -> None:
        desk.failed(desk.take_one())
        desk.take_one()
        desk.database.jump.lease += TIMEOUT + 10
        desk.flow.sweep()
        desk.failed(desk.take_one())
        assert ["raised", "heartbeat", "raised"] == [
            each.end_cause for each in execution.computations()
        ]
        assert [] == desk.take()

    def test_a_new_value_makes_the_budget_whole(self, desk: Desk, execution: Execution) -> None:
        for _ in range(3):
            desk.take_one()
            desk.database.jump.lease += TIMEOUT + 10
            desk.flow.sweep()
        execution.set(url="abcd")
        assert 1 == desk.take_one().item.number


class TestALateResult:
    @pytest.mark.parametrize("lateness", [TIMEOUT, ABANDON])
    def test_changes_nothing(
        self, desk: Desk, execution: Execution, leased: Leased, lateness: float
    ) -> None:
        desk.database.jump.lease = lateness + 10
        desk.flow.sweep()
        before = execution.revision, desk.states(execution)
        assert not desk.done(leased, 99)
        assert not desk.failed(leased)
        assert not desk.back(leased)
        assert [False] == desk.source.settle([Settlement(leased.claim, Outcome.DONE, result=b"99")])
        assert before == (execution.revision, desk.states(execution))
        assert "pages" not in execution.values()

    def test_changes_nothing_though_the_next_attempt_runs(
        self, desk: Desk, execution: Execution, leased: Leased
    ) -> None:
        desk.database.jump.lease = TIMEOUT + 10
        desk.flow.sweep()
        again = desk.take_one()
        assert not desk.done(leased, 99)
        assert desk.done(again, 3)
        assert not desk.done(leased, 99)
        assert 3 == execution.get("pages", wait=False)

    def test_of_inputs_that_have_changed_changes_nothing(
        self, desk: Desk, execution: Execution, leased: Leased
    ) -> None:
        execution.set(url="abcd")
        assert not desk.done(leased, 99)
        assert {"pages": 1, "titles": 1} == desk.run_all()
        assert 4 == execution.get("pages", wait=False)

    def test_the_same_result_told_twice_counts_once(
        self, desk: Desk, execution: Execution, leased: Leased
    ) -> None:
        assert [True, False] == [desk.done(leased, 3) for _ in range(2)]
        assert [("pages", "success", "done"), ("titles", "not_set", None)] == desk.states(execution)


class TestAWorkerThatDied:
    def test_on_this_machine_is_found_at_once_and_what_it_had_begun_is_spent(
        self, desk: Desk, execution: Execution, page: BeatPage
    ) -> None:
        dead = desk.enter(pid=NO_SUCH_PID, page=str(page.path))
        leased = desk.take_one(owner=dead)
        page.begin(0, leased.claim.seq, 1.0)
        assert 1 == desk.source.sweep()
        assert [("pages", "abandoned", "crash"), ("pages", "not_set", None)] == desk.states(
            execution
        )
        again = desk.take_one()
        assert (2, 1, True) == (again.item.number, again.item.crashes, again.alone)

    def test_what_it_had_not_begun_goes_back_unspent(
        self, desk: Desk, execution: Execution, page: BeatPage
    ) -> None:
        dead = desk.enter(pid=NO_SUCH_PID, page=str(page.path))
        leased = desk.take_one(owner=dead)
        assert 1 == desk.source.sweep()
        assert [("pages", "not_set", None)] == desk.states(execution)
        again = desk.take_one()
        assert (leased.claim.seq, 1, 0) == (again.claim.seq, again.item.number, again.item.crashes)
        assert 1 == execution.computations()[0].releases
        assert not desk.done(leased, 99)

    def test_what_it_had_begun_while_draining_goes_back_unspent(
        self, desk: Desk, execution: Execution, page: BeatPage
    ) -> None:
        dead = desk.enter(pid=NO_SUCH_PID, page=str(page.path))
        page.begin(0, desk.take_one(owner=dead).claim.seq, 1.0)
        page.start_draining()
        assert 1 == desk.source.sweep()
        assert [("pages", "not_set", None)] == desk.states(execution)

    def test_without_a_page_that_can_be_read_it_counts_as_begun(
        self, desk: Desk, execution: Execution
    ) -> None:
        desk.take_one(owner=desk.enter(pid=NO_SUCH_PID, page="/nowhere"))
        assert 1 == desk.source.sweep()
        assert [("pages", "abandoned", "crash"), ("pages", "not_set", None)] == desk.states(
            execution
        )

    @on_postgres
    def test_of_another_machine_is_found_by_its_missing_pulse(
        self, desk: Desk, execution: Execution
    ) -> None:
        desk.take_one(owner=desk.enter(boot="elsewhere", page="/nowhere"))
        assert 0 == desk.flow.sweep()
        desk.database.jump.lease = TIMEOUT + 10
        assert 1 == desk.flow.sweep()
        assert RETRIED == desk.states(execution)

    @on_one_machine
    def test_of_an_earlier_boot_of_this_machine_is_found_at_once(
        self, desk: Desk, execution: Execution
    ) -> None:
        desk.take_one(owner=desk.enter(boot="earlier", page="/nowhere"))
        assert 1 == desk.source.sweep()
        assert ("pages", "abandoned", "crash") == desk.states(execution)[0]

    def test_silent_with_a_page_that_says_not_begun_goes_back_unspent(
        self, desk: Desk, execution: Execution, page: BeatPage
    ) -> None:
        """It lives, but is frozen or cannot reach the store."""
        leased = desk.take_one(owner=desk.enter(page=str(page.path)))
        desk.database.jump.lease = TIMEOUT + 10
        assert 1 == desk.flow.sweep()
        assert [("pages", "not_set", None)] == desk.states(execution)
        assert (1, 1) == (desk.take_one().item.number, execution.computations()[0].releases)
        assert not desk.done(leased, 99)


class TestFencing:
    def test_the_token_rises_with_every_attempt_of_a_node(
        self, desk: Desk, execution: Execution
    ) -> None:
        tokens = []
        for _ in range(3):
            leased = desk.take_one()
            tokens.append(leased.claim.term)
            desk.failed(leased)
        execution.set(url="abcd")
        tokens.append(desk.take_one().claim.term)
        assert sorted(set(tokens)) == tokens

    def test_it_rises_though_the_clocks_go_back(self, desk: Desk, execution: Execution) -> None:
        first = desk.take_one()
        desk.failed(first)
        desk.database.jump.wall = desk.database.jump.lease = -3600.0
        second = desk.take_one()
        assert second.claim.term > first.claim.term
        execution.set(url="abcd")
        assert desk.take_one().claim.term > second.claim.term
