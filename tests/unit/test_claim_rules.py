"""The invariants of the store's prose, over numbers: a table in memory and a clock that a test
moves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from longwatch.host.incarnation import Incarnation
from longwatch.store.blame import DEFAULT_BUDGET, Blame
from longwatch.store.claims import Claim, Claims, RowSelection
from longwatch.store.database import Parameters
from longwatch.store.migrations import load_migrations, migrate
from longwatch.store.sqlite.connection import SqliteTransaction
from longwatch.store.sweep import ClaimSweeper

SECONDS = st.floats(min_value=0, max_value=40_000, allow_nan=False)
HOUR = 3600.0


@dataclass
class Clocks:
    """The store's clocks, moved by hand."""

    lease: float = 1000.0
    wall: float = 1_800_000_000.0


class ManualClockTransaction(SqliteTransaction):
    """A transaction whose clocks stand where a test put them."""

    def __init__(self, raw: sqlite3.Connection, clock: Clocks) -> None:
        super().__init__(raw)
        self.clock = clock

    def _with_clocks(self, parameters: Parameters) -> dict[str, object]:
        return {**parameters, "lease_now": self.clock.lease, "wall_now": self.clock.wall}


@dataclass
class Table:
    """One claimable table, in memory."""

    clock: Clocks = field(default_factory=Clocks)
    raw: sqlite3.Connection = field(
        default_factory=lambda: sqlite3.connect(":memory:", isolation_level=None)
    )

    def __post_init__(self) -> None:
        self.tx = ManualClockTransaction(self.raw, self.clock)
        migrate(self.tx, load_migrations("sqlite"))
        self.tx.execute("INSERT INTO longwatch_mailboxes (queue, name) VALUES (1, 'one')")
        self.claims = Claims(
            dialect="sqlite", table="longwatch_messages", columns=("deliveries", "crashes")
        )
        self.sweep = ClaimSweeper(self.claims)
        self.owner = self.enter()

    def enter(self, **changes: str | int) -> int:
        return self.claims.register_owner(self.tx, replace(Incarnation.current(), **changes))  # type: ignore[arg-type]

    def add(self, count: int = 1) -> list[int]:
        sql = (
            "INSERT INTO longwatch_messages (queue, id, enqueued_at, body) VALUES (1, "
            "hex(randomblob(8)), 0, x'') RETURNING seq"
        )
        return [self.tx.rows(sql)[0][0] for _ in range(count)]

    def claim(
        self,
        limit: int = 1,
        *,
        owner: int | None = None,
        duration: float = 30.0,
        selection: RowSelection = RowSelection.ANY,
    ) -> list[Claim]:
        rows = self.claims.claim(
            self.tx,
            queue=1,
            owner=owner or self.owner,
            lease_seconds=duration,
            limit=limit,
            selection=selection,
        )
        return [Claim(*row[:3]) for row in rows]

    def release(self, claim: Claim, blame: Blame = Blame.RELEASE, *, delay: float = 0.0) -> bool:
        return self.claims.release(self.tx, [claim], blame=blame, delay=delay)[0]

    def settle(self, claim: Claim) -> bool:
        return self.claims.settle(self.tx, [claim])[0]

    def read(self, work: Callable[[SqliteTransaction], Any]) -> Any:
        """As a database reads, for the look of a sweep."""
        return work(self.tx)

    def has_lapsed(self) -> bool:
        return bool(self.sweep.look(cast("Any", self)).lapsed)

    def swept(self) -> int:
        """How many rows a sweep releases."""
        return len(self.sweep.reclaim(self.tx, self.sweep.look(cast("Any", self))).rows)

    def row(self, seq: int) -> dict[str, object]:
        cursor = self.raw.execute("SELECT * FROM longwatch_messages WHERE seq = ?", (seq,))
        names = [column[0] for column in cursor.description]
        return dict(zip(names, cursor.fetchone(), strict=True))

    def is_suspect(self, seq: int) -> bool:
        row = self.row(seq)
        return DEFAULT_BUDGET.is_suspect(
            crashes=cast("int", row["crashes"]), lost=cast("int", row["lost"])
        )

    def contents(self) -> list[tuple[object, ...]]:
        return self.tx.rows("SELECT * FROM longwatch_messages ORDER BY seq")


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table()
    yield made
    made.raw.close()


class TestClaiming:
    def test_leases_to_the_owner_for_the_duration_on_the_lease_clock(self, table: Table) -> None:
        [seq] = table.add()
        [claim] = table.claim(duration=12.5)
        assert (seq, table.owner) == (claim.seq, claim.owner)
        row = table.row(seq)
        assert (2, table.owner, 1012.5, 1) == (
            row["lease_state"],
            row["owner"],
            row["lease_until"],
            row["deliveries"],
        )

    def test_takes_the_oldest_first_and_no_more_than_asked(self, table: Table) -> None:
        first, second, third = table.add(3)
        assert [first, second] == [claim.seq for claim in table.claim(2)]
        assert [third] == [claim.seq for claim in table.claim(2)]
        assert [] == table.claim()

    def test_a_row_that_came_back_keeps_its_place(self, table: Table) -> None:
        first, second = table.add(2)
        [claim] = table.claim()
        table.release(claim)
        assert [first, second] == [claim.seq for claim in table.claim(2)]

    def test_raises_the_term_each_time(self, table: Table) -> None:
        table.add()
        table.clock.wall = 5.0
        for term in (5_000_000, 5_000_001, 7_000_000, 7_000_001):
            [claim] = table.claim()
            assert term == claim.term
            table.release(claim)
            table.clock.wall = 4.0 if term == 5_000_000 else 7.0

    def test_rows_of_another_queue_are_not_touched(self, table: Table) -> None:
        table.add()
        assert [] == table.claims.claim(
            table.tx, queue=2, owner=table.owner, lease_seconds=1.0, limit=10
        )

    @pytest.mark.parametrize("counters", ["crashes = 2", "lost = 4"])
    def test_a_suspect_comes_alone(self, table: Table, counters: str) -> None:
        before, suspect, after = table.add(3)
        table.tx.execute(
            f"UPDATE longwatch_messages SET {counters} WHERE seq = :seq", {"seq": suspect}
        )
        assert [[before], [suspect], [after]] == [
            [claim.seq for claim in table.claim(10)] for _ in range(3)
        ]

    def test_of_ordinary_rows_passes_over_suspects(self, table: Table) -> None:
        """Rows that have crashed once are not suspects; the claim of ordinary rows takes them."""
        first, suspect, crashed, last = table.add(4)
        table.tx.execute("UPDATE longwatch_messages SET crashes = 2 WHERE seq = 2")
        table.tx.execute("UPDATE longwatch_messages SET crashes = 1, lost = 3 WHERE seq = 3")
        claims = table.claim(10, selection=RowSelection.ORDINARY)
        assert [first, crashed, last] == [claim.seq for claim in claims]
        assert [] == table.claim(10, selection=RowSelection.ORDINARY)
        assert not self.has_selected(table, RowSelection.ORDINARY)
        assert 1 == table.claims.count_suspects(table.tx, queue=1, limit=10)
        assert [suspect] == [claim.seq for claim in table.claim(10)]

    def test_of_suspects_takes_one_at_a_time_and_no_ordinary_row(self, table: Table) -> None:
        _, first, second = table.add(3)
        table.tx.execute("UPDATE longwatch_messages SET crashes = 2 WHERE seq = 2")
        table.tx.execute("UPDATE longwatch_messages SET lost = 4 WHERE seq = 3")
        assert [1, 2, 2] == [
            table.claims.count_suspects(table.tx, queue=1, limit=limit) for limit in (1, 2, 3)
        ]
        claimed = [table.claim(10, selection=RowSelection.SUSPECTS) for _ in range(3)]
        assert [[first], [second], []] == [[claim.seq for claim in each] for each in claimed]
        assert not self.has_selected(table, RowSelection.SUSPECTS)
        assert self.has_selected(table, RowSelection.ORDINARY)

    @staticmethod
    def has_selected(table: Table, selection: RowSelection) -> bool:
        return table.claims.has_selected(table.tx, queue=1, selection=selection)

    def test_an_owner_that_drains_and_was_deleted_registers_again_as_draining(
        self, table: Table
    ) -> None:
        table.add()
        table.claims.report_draining(table.tx, owner=table.owner)
        table.tx.execute("DELETE FROM longwatch_owners")
        table.claim()
        assert [(1,)] == table.tx.rows("SELECT draining FROM longwatch_owners")
        table.claims.report_draining(table.tx, owner=table.owner, is_draining=False)
        assert [(0,)] == table.tx.rows("SELECT draining FROM longwatch_owners")

    @pytest.mark.parametrize(
        ("selection", "index"),
        [
            (RowSelection.ANY, "messages_free"),
            (RowSelection.ORDINARY, "messages_free"),
            (RowSelection.SUSPECTS, "messages_blamed"),
        ],
    )
    def test_goes_by_the_index_that_is_there_for_its_selection(
        self, table: Table, selection: RowSelection, index: str
    ) -> None:
        parameters = {"queue": 1, "owner": 1, "lease_seconds": 1.0, "limit": 10}
        budget = {"max_crashes": 3, "max_lost": 5}
        for query in ("claim", "has_selected"):
            sql = "EXPLAIN QUERY PLAN " + table.claims._sql_by_selection[selection][query]
            plan = [row[3] for row in table.tx.rows(sql, {**parameters, **budget})]
            assert any(f"longwatch_{index}" in line for line in plan), plan
            assert not any("SCAN longwatch_messages" in line for line in plan), plan
            assert not any("TEMP B-TREE" in line for line in plan), plan

    def test_an_owner_that_was_forgotten_enters_again(self, table: Table) -> None:
        table.add()
        table.tx.execute("DELETE FROM longwatch_owners")
        table.claim()
        assert [(table.owner,)] == table.tx.rows("SELECT owner FROM longwatch_owners")

    def test_two_owners_never_have_the_same_number(self, table: Table) -> None:
        table.tx.execute("DELETE FROM longwatch_owners")
        assert table.owner != table.enter()


class TestFencing:
    """Settle, release and renew_one change nothing unless row, owner and term are all the row's
    own.
    """

    @pytest.mark.parametrize("wrong", ["seq", "owner", "term"])
    @given(by=st.integers(min_value=-3, max_value=3).filter(bool))
    def test_a_claim_that_is_not_the_row_s_own_changes_nothing(self, wrong: str, by: int) -> None:
        table = Table()
        table.add(2)
        [claim] = table.claim()
        stale = claim._replace(**{wrong: getattr(claim, wrong) + by})
        before = table.contents()
        assert not table.settle(stale)
        assert not table.release(stale, Blame.FAILURE, delay=5)
        assert not table.claims.renew_one(table.tx, stale, lease_seconds=500)
        assert before == table.contents()
        assert table.settle(claim)
        table.raw.close()

    def test_after_redelivery_the_old_claim_is_refused_and_the_new_one_holds(
        self, table: Table
    ) -> None:
        table.add()
        [old] = table.claim()
        table.release(old)
        [new] = table.claim(owner=table.enter())
        assert not table.settle(old)
        assert not table.claims.renew_one(table.tx, old, lease_seconds=1)
        assert table.claims.renew_one(table.tx, new, lease_seconds=1)
        assert table.settle(new)

    def test_a_row_is_settled_once(self, table: Table) -> None:
        table.add()
        [claim] = table.claim()
        assert [True, False] == [table.settle(claim), table.settle(claim)]

    def test_each_of_several_is_answered_for_itself(self, table: Table) -> None:
        table.add(3)
        one, two, three = table.claim(3)
        table.release(two)
        assert [True, False, True] == table.claims.settle(table.tx, [one, two, three])


class TestRenewing:
    @given(first=SECONDS, passed=SECONDS, again=SECONDS)
    def test_never_shortens(self, first: float, passed: float, again: float) -> None:
        table = Table()
        [seq] = table.add()
        [claim] = table.claim(duration=first)
        table.clock.lease += passed
        expected = max(1000.0 + first, 1000.0 + passed + again)
        assert table.claims.renew_one(table.tx, claim, lease_seconds=again)
        assert expected == table.row(seq)["lease_until"]
        assert 1 == table.claims.renew(table.tx, owner=table.owner, lease_seconds=again)
        assert expected == table.row(seq)["lease_until"]
        table.raw.close()

    def test_prolongs_every_lease_of_the_owner_and_nobody_else_s(self, table: Table) -> None:
        other = table.enter()
        mine, mine_too, theirs = table.add(3)
        table.claim(2)
        table.claim(owner=other)
        assert 2 == table.claims.renew(table.tx, owner=table.owner, lease_seconds=100)
        assert [1100.0, 1100.0, 1030.0] == [
            table.row(seq)["lease_until"] for seq in (mine, mine_too, theirs)
        ]


class TestReleasing:
    @pytest.mark.parametrize(
        ("blame", "expected"),
        [
            (Blame.FAILURE, (1, 0, 0, 0)),
            (Blame.CRASH, (0, 1, 0, 0)),
            (Blame.LOST, (0, 0, 1, 0)),
            (Blame.RELEASE, (0, 0, 0, 1)),
        ],
    )
    def test_counts_exactly_why(
        self, table: Table, blame: Blame, expected: tuple[int, int, int, int]
    ) -> None:
        [seq] = table.add()
        [claim] = table.claim()
        assert table.release(claim, blame)
        row = table.row(seq)
        assert expected == (row["failures"], row["crashes"], row["lost"], row["releases"])
        assert (0, None, None) == (row["lease_state"], row["owner"], row["lease_until"])

    def test_with_a_delay_holds_it_back_until_wall_time_has_come(self, table: Table) -> None:
        table.add()
        [claim] = table.claim()
        table.release(claim, delay=10)
        assert [] == table.claim()
        assert 10.0 == table.claims.next_due(table.tx, queue=1)
        table.clock.wall += 9
        assert 0 == table.claims.promote_due(table.tx, queue=1)
        table.clock.wall += 1
        assert 1 == table.claims.promote_due(table.tx, queue=1)
        assert 1 == len(table.claim())

    def test_the_last_error_is_kept_when_a_later_release_brings_none(self, table: Table) -> None:
        [seq] = table.add()
        table.claims.release(table.tx, table.claim(), blame=Blame.FAILURE, error="boom")
        table.claims.release(table.tx, table.claim(), blame=Blame.RELEASE)
        assert "boom" == table.row(seq)["error"]


class TestTheEndOfALease:
    def test_a_late_settle_before_the_sweep_counts(self, table: Table) -> None:
        table.add()
        [claim] = table.claim(duration=5)
        table.clock.lease += 6
        assert table.settle(claim)
        assert 0 == table.swept()

    def test_a_late_settle_after_the_sweep_changes_nothing(self, table: Table) -> None:
        [seq] = table.add()
        [claim] = table.claim(duration=5)
        table.clock.lease += 6
        assert 1 == table.swept()
        assert not table.settle(claim)
        assert 0 == table.row(seq)["lease_state"]

    def test_a_late_renewal_before_the_sweep_keeps_the_lease(self, table: Table) -> None:
        table.add()
        [claim] = table.claim(duration=5)
        table.clock.lease += 6
        table.claims.renew(table.tx, owner=table.owner, lease_seconds=5)
        assert 0 == table.swept()
        assert table.settle(claim)

    @given(duration=SECONDS, passed=SECONDS)
    def test_comes_when_its_duration_has_passed_on_the_lease_clock(
        self, duration: float, passed: float
    ) -> None:
        table = Table()
        table.add()
        table.claim(duration=duration)
        table.clock.lease += passed
        ended = 1000.0 + duration < 1000.0 + passed
        assert ended == table.has_lapsed()
        assert int(ended) == table.swept()
        table.raw.close()

    @pytest.mark.parametrize("jump", [HOUR, -HOUR])
    def test_does_not_notice_that_the_wall_clock_jumps(self, table: Table, jump: float) -> None:
        table.add()
        [claim] = table.claim(duration=5)
        table.clock.wall += jump
        assert not table.has_lapsed()
        table.clock.lease += 6
        table.clock.wall += jump
        assert table.has_lapsed()
        assert table.settle(claim)

    def test_a_lease_of_another_boot_has_ended(self, table: Table) -> None:
        owner = table.enter(boot="another")
        table.add()
        [claim] = table.claim(owner=owner, duration=10 * HOUR)
        assert 1 == table.swept()
        assert not table.settle(claim)

    def test_the_sweep_takes_a_page_at_a_time(
        self, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("longwatch.store.sweep.SWEEP_BATCH", 2)
        table.add(3)
        table.claim(3, duration=1)
        table.clock.lease += 2
        assert [2, 1, 0] == [table.swept() for _ in range(3)]


class ClaimsAgainstAModel(RuleBasedStateMachine):
    """Any order of claims, renewals, settlements (also stale ones), releases and sweeps by any
    owners agrees with a model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.owners = [self.table.owner, self.table.enter()]
        self.free: set[int] = set()
        self.leases: dict[int, tuple[Claim, float]] = {}
        self.given_out: list[Claim] = []

    @rule(count=st.integers(1, 3))
    def add(self, count: int) -> None:
        self.free.update(self.table.add(count))

    @rule(who=st.integers(0, 1), limit=st.integers(1, 4), duration=st.integers(0, 20))
    def claim(self, who: int, limit: int, duration: int) -> None:
        claims = self.table.claim(limit, owner=self.owners[who], duration=duration)
        suspect = [self.table.is_suspect(seq) for seq in sorted(self.free)[:limit]]
        alone = suspect.index(True) if True in suspect else len(suspect)
        assert sorted(self.free)[: max(alone, 1)][:limit] == [claim.seq for claim in claims]
        for claim in claims:
            assert claim not in self.given_out
            self.given_out.append(claim)
            self.free.discard(claim.seq)
            self.leases[claim.seq] = claim, self.table.clock.lease + duration

    @precondition(lambda self: self.given_out)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.given_out))
        assert self._is_held(claim) == self.table.settle(claim)
        if self._is_held(claim):
            del self.leases[claim.seq]

    @precondition(lambda self: self.given_out)
    @rule(data=st.data(), blame=st.sampled_from(Blame))
    def release(self, data: st.DataObject, blame: Blame) -> None:
        claim = data.draw(st.sampled_from(self.given_out))
        assert self._is_held(claim) == self.table.release(claim, blame)
        if self._is_held(claim):
            del self.leases[claim.seq]
            self.free.add(claim.seq)

    @rule(who=st.integers(0, 1), duration=st.integers(0, 20))
    def renew(self, who: int, duration: int) -> None:
        until = self.table.clock.lease + duration
        mine = [seq for seq, (claim, _) in self.leases.items() if claim.owner == self.owners[who]]
        assert len(mine) == self.table.claims.renew(
            self.table.tx, owner=self.owners[who], lease_seconds=duration
        )
        for seq in mine:
            claim, before = self.leases[seq]
            self.leases[seq] = claim, max(before, until)

    @rule(seconds=st.integers(1, 15))
    def wait(self, seconds: int) -> None:
        self.table.clock.lease += seconds

    @rule(jump=st.sampled_from([HOUR, -HOUR]))
    def jump(self, jump: float) -> None:
        self.table.clock.wall += jump

    @rule()
    def sweep(self) -> None:
        ended = {seq for seq, (_, until) in self.leases.items() if until < self.table.clock.lease}
        assert len(ended) == self.table.swept()
        for seq in ended:
            del self.leases[seq]
        self.free |= ended

    @invariant()
    def the_table_agrees(self) -> None:
        held = self.table.tx.rows(
            "SELECT seq, owner, term, lease_until FROM longwatch_messages WHERE lease_state = 2"
        )
        assert {seq: (tuple(claim), until) for seq, (claim, until) in self.leases.items()} == {
            row[0]: (row[:3], row[3]) for row in held
        }
        assert self.free == {
            seq
            for (seq,) in self.table.tx.rows(
                "SELECT seq FROM longwatch_messages WHERE lease_state = 0"
            )
        }

    def teardown(self) -> None:
        self.table.raw.close()

    def _is_held(self, claim: Claim) -> bool:
        return claim.seq in self.leases and self.leases[claim.seq][0] == claim


TestClaimsAgainstAModel = ClaimsAgainstAModel.TestCase
