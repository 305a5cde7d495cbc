"""Dead owners, found with real processes, and what their beat pages say about them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import requires
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.store.blame import Blame
from longwatch.store.claims import Claims
from longwatch.store.database import Transaction
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.store.sweep import (
    OWNER_RETENTION,
    ClaimSweeper,
    LeaseOwner,
    SweepPlan,
    blame_for,
)
from longwatch.testing import FakeClock
from snippet import Snippet, run_snippet

OWNER = """
    import os, sys
    from pathlib import Path
    from longwatch.host.beatpage import BeatPage
    from longwatch.host.incarnation import Incarnation
    from longwatch.store.claims import Claims
    from longwatch.store.sqlite.database import SqliteDatabase

    database = SqliteDatabase(Path({path!r}))
    claims = Claims(dialect="sqlite", table="longwatch_messages", columns=())
    page = BeatPage(Path({page!r}), 4) if {page!r} else None
    owner = database.write(
        lambda tx: claims.register_owner(tx, Incarnation.current(), page={page!r} or None)
    )
    rows = database.write(
        lambda tx: claims.claim(tx, queue=1, owner=owner, lease_seconds=600, limit={limit})
    )
    for slot, row in enumerate(rows[:{started}]):
        page.begin(slot, row[0], 1.0)
    if {draining}:
        page.start_draining()
    print("ready", flush=True)
    input()
"""


TIMEOUT = 10.0


def elsewhere() -> Incarnation:
    """A process that cannot be seen from here."""
    return replace(Incarnation.current(), namespace=1)


class SweepRig:
    """A file with ten rows, and the sweep over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = SqliteDatabase(folder / "some.db")
        self.claims = Claims(dialect="sqlite", table="longwatch_messages", columns=())
        self.sweep = ClaimSweeper(self.claims)
        self.database.write(
            lambda tx: tx.execute("INSERT INTO longwatch_mailboxes (queue, name) VALUES (1, 'one')")
        )
        sql = (
            "INSERT INTO longwatch_messages (queue, id, enqueued_at, body) VALUES (1, "
            "hex(randomblob(8)), 0, x'')"
        )
        self.database.write(lambda tx: [tx.execute(sql) for _ in range(10)])

    @contextmanager
    def owner(
        self, *, limit: int = 3, page: str = "", started: int = 0, draining: bool = False
    ) -> Iterator[Snippet]:
        """A process that holds leases."""
        place = str(self.folder / page) if page else ""
        code = OWNER.format(
            path=str(self.database.path),
            limit=limit,
            page=place,
            started=started,
            draining=draining,
        )
        with run_snippet(code) as child:
            assert "ready" == child.read_line()
            yield child

    def enter(self, incarnation: Incarnation, *, claims: int = 1, **facts: Any) -> int:
        owner = self.database.write(lambda tx: self.claims.register_owner(tx, incarnation, **facts))
        self.database.write(
            lambda tx: self.claims.claim(tx, queue=1, owner=owner, lease_seconds=600, limit=claims)
        )
        return owner

    def dead(self) -> list[LeaseOwner]:
        return [seen.owner for seen in self.sweep.look(self.database).dead]

    def swept(self, plan: SweepPlan | None = None) -> int:
        """How many rows a sweep releases."""
        found = plan or self.sweep.look(self.database)
        reclaimed = self.database.write(lambda tx: self.sweep.reclaim(tx, found))
        self.sweep.remove_pages(reclaimed.deleted)
        return len(reclaimed.rows)

    def counts(self) -> tuple[int, int, int]:
        """Rows leased, crashes, releases."""
        leased, crashes, lost, releases = self.all_counts()
        assert 0 == lost
        return leased, crashes, releases

    def all_counts(self) -> tuple[int, int, int, int]:
        """Rows leased, crashes, losses, releases."""
        sql = (
            "SELECT count(*) FILTER (WHERE lease_state = 2), sum(crashes), sum(lost), "
            "sum(releases) FROM longwatch_messages"
        )
        [(leased, crashes, lost, releases)] = self.database.read(lambda tx: tx.rows(sql))
        return leased, crashes, lost, releases

    def owners(self) -> int:
        return int(
            self.database.read(lambda tx: tx.rows("SELECT count(*) FROM longwatch_owners"))[0][0]
        )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SweepRig]:
    made = SweepRig(tmp_path)
    yield made
    made.database.close()


def kill(child: Snippet) -> None:
    child.signal(signal.SIGKILL)
    child.wait()


class TestADeadOwner:
    def test_is_found_at_once_and_its_rows_come_back(self, rig: SweepRig) -> None:
        with rig.owner() as child:
            assert [] == rig.dead()
            kill(child)
            assert 1 == len(rig.dead())
            assert 3 == rig.swept()
        assert (0, 3, 0) == rig.counts()

    def test_is_found_before_its_parent_has_reaped_it(self, rig: SweepRig) -> None:
        with rig.owner() as child:
            child.signal(signal.SIGKILL)
            os.waitid(os.P_PID, child._child.pid, os.WEXITED | os.WNOWAIT)
            assert 1 == len(rig.dead())

    def test_without_a_page_is_blamed_for_every_row(self, rig: SweepRig) -> None:
        with rig.owner() as child:
            kill(child)
            rig.swept()
        assert (0, 3, 0) == rig.counts()

    def test_with_a_page_is_blamed_for_the_rows_it_had_started_alone(self, rig: SweepRig) -> None:
        with rig.owner(limit=4, page="page", started=1) as child:
            kill(child)
            assert 4 == rig.swept()
        assert (0, 1, 3) == rig.counts()

    def test_that_was_draining_is_blamed_for_nothing(self, rig: SweepRig) -> None:
        with rig.owner(page="page", started=2, draining=True) as child:
            kill(child)
            rig.swept()
        assert (0, 0, 3) == rig.counts()

    def test_whose_page_cannot_be_read_has_lost_every_row(self, rig: SweepRig) -> None:
        with rig.owner(page="page", started=2) as child:
            kill(child)
            (rig.folder / "page").unlink()
            rig.swept()
        assert (0, 0, 3, 0) == rig.all_counts()

    def test_that_had_reported_its_drain_releases_its_rows_though_its_page_is_gone(
        self, rig: SweepRig
    ) -> None:
        """A pod that is killed after its grace takes its page with it."""
        mine = Incarnation.current()
        owner = rig.enter(replace(mine, start=mine.start + 1), page=str(rig.folder / "gone"))
        rig.database.write(lambda tx: rig.claims.report_draining(tx, owner=owner))
        assert 1 == rig.swept()
        assert (0, 0, 0, 1) == rig.all_counts()

    def test_that_ended_together_with_its_parent_has_lost_its_rows(self, rig: SweepRig) -> None:
        mine = Incarnation.current()
        gone, page = replace(mine, start=mine.start + 1), BeatPage(rig.folder / "page", 1)
        page.begin(0, 1, 1.0)
        rig.enter(gone, page=str(page.path), parent=str(gone))
        rig.swept()
        assert (0, 0, 1, 0) == rig.all_counts()
        page.close()

    def test_that_ended_with_its_guardian_has_lost_its_rows_though_its_parent_lives(
        self, rig: SweepRig
    ) -> None:
        mine = Incarnation.current()
        gone, page = replace(mine, start=mine.start + 1), BeatPage(rig.folder / "page", 1)
        page.begin(0, 1, 1.0)
        rig.enter(gone, page=str(page.path), parent=f"{mine} {gone}")
        rig.swept()
        assert (0, 0, 1, 0) == rig.all_counts()
        page.close()

    def test_of_another_boot_has_lost_its_rows_though_its_page_is_still_there(
        self, rig: SweepRig
    ) -> None:
        """A host that went down blames no row."""
        page = BeatPage(rig.folder / "page", 1)
        page.begin(0, 1, 1.0)
        rig.enter(replace(Incarnation.current(), boot="another"), page=str(page.path))
        assert 1 == rig.swept()
        assert (0, 0, 1, 0) == rig.all_counts()
        page.close()

    def test_that_held_many_rows_gives_them_back_a_page_at_a_time(
        self, rig: SweepRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("longwatch.store.sweep.SWEEP_BATCH", 4)
        with rig.owner(limit=10) as child:
            kill(child)
            assert [4, 4, 2, 0] == [rig.swept() for _ in range(4)]

    def test_found_twice_is_buried_once(self, rig: SweepRig) -> None:
        with rig.owner() as child:
            kill(child)
            plan = rig.sweep.look(rig.database)
            assert [3, 0] == [rig.swept(plan) for _ in range(2)]
        assert (0, 3, 0) == rig.counts()

    def test_is_forgotten_once_it_holds_nothing_and_its_page_goes_with_it(
        self, rig: SweepRig
    ) -> None:
        with rig.owner(page="page", started=1) as child:
            kill(child)
            rig.swept()
            assert (1, True) == (rig.owners(), (rig.folder / "page").exists())
            rig.swept()
        assert (0, False) == (rig.owners(), (rig.folder / "page").exists())
        assert [] == rig.dead()

    def test_whose_page_is_some_other_file_does_not_take_that_with_it(self, rig: SweepRig) -> None:
        letter = rig.folder / "letter"
        letter.write_text("keep me")
        rig.enter(replace(Incarnation.current(), boot="another"), page=str(letter))
        rig.swept()
        rig.swept()
        assert (0, "keep me") == (rig.owners(), letter.read_text())


class TestALiveOwner:
    def test_is_never_robbed(self, rig: SweepRig) -> None:
        with rig.owner():
            assert 0 == rig.swept()
            assert (3, 0, 0) == rig.counts()

    def test_is_not_forgotten_however_long_it_holds_nothing(self, rig: SweepRig) -> None:
        rig.enter(Incarnation.current(), claims=0)
        rig.database.jump.wall = 10 * OWNER_RETENTION
        assert 0 == rig.swept()
        assert 1 == rig.owners()

    def test_that_is_stopped_is_not_robbed(self, rig: SweepRig) -> None:
        with rig.owner() as child:
            child.signal(signal.SIGSTOP)
            assert [] == rig.dead()

    def test_that_may_not_be_signalled_is_not_robbed(
        self, rig: SweepRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_pid: int, _signal: int) -> None:
            raise PermissionError

        mine = Incarnation.current()
        rig.enter(replace(mine, start=mine.start + 1))
        monkeypatch.setattr(os, "kill", refuse)
        assert 0 == rig.swept()

    def test_in_another_namespace_is_not_robbed(self, rig: SweepRig) -> None:
        requires.require_tool("unshare")
        code = OWNER.format(
            path=str(rig.database.path), limit=2, page="", started=0, draining=False
        )
        wrapped = f"""
            import subprocess, sys
            from textwrap import dedent
            argv = [
                "unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
                sys.executable, "-u", "-c", dedent({code!r})
            ]
            sys.exit(subprocess.call(argv))
        """
        with run_snippet(wrapped) as child:
            assert "ready" == child.read_line()
            assert 2 == rig.counts()[0]
            assert 0 == rig.swept()
            child.send_line()
            assert 0 == child.wait()[0]
        assert (2, 0, 0) == rig.counts()

    def test_written_down_by_another_version_is_not_robbed(self, rig: SweepRig) -> None:
        rig.enter(Incarnation.current())
        rig.database.write(
            lambda tx: tx.execute("UPDATE longwatch_owners SET incarnation = 'of.tomorrow'")
        )
        assert 0 == rig.swept()


class TestTheSamePid:
    def test_with_another_start_time_is_a_dead_owner(self, rig: SweepRig) -> None:
        mine = Incarnation.current()
        rig.enter(replace(mine, start=mine.start + 1))
        assert 1 == rig.swept()


class TestTheListOfOwners:
    def test_does_not_grow_with_processes_that_come_and_go(self, rig: SweepRig) -> None:
        mine = Incarnation.current()
        for number in range(20):
            rig.enter(replace(mine, id=str(number), start=mine.start + 1), claims=0)
        rig.swept()
        assert 0 == rig.owners()

    def test_does_not_grow_with_boots(self, rig: SweepRig) -> None:
        rig.enter(replace(Incarnation.current(), boot="another"), claims=0)
        rig.swept()
        assert 0 == rig.owners()

    def test_does_not_grow_with_containers_either(self, rig: SweepRig) -> None:
        rig.enter(replace(Incarnation.current(), namespace=1), claims=0)
        rig.swept()
        assert 1 == rig.owners()
        rig.database.jump.wall = OWNER_RETENTION + 1
        rig.swept()
        assert 0 == rig.owners()

    def test_keeps_one_that_cannot_be_seen_while_it_holds_something(self, rig: SweepRig) -> None:
        rig.enter(replace(Incarnation.current(), namespace=1))
        rig.database.jump.wall = OWNER_RETENTION + 1
        assert 0 == rig.swept()
        assert (1, 1) == (rig.owners(), rig.counts()[0])

    def test_one_that_claims_just_before_it_is_forgotten_keeps_its_lease(
        self, rig: SweepRig
    ) -> None:
        owner = rig.enter(replace(Incarnation.current(), namespace=1), claims=0)
        rig.database.jump.wall = OWNER_RETENTION + 1
        plan = rig.sweep.look(rig.database)
        assert 1 == len(plan.idle)
        rig.database.write(
            lambda tx: rig.claims.claim(tx, queue=1, owner=owner, lease_seconds=600, limit=1)
        )
        assert 0 == rig.swept(plan)
        assert (1, 1) == (rig.owners(), rig.counts()[0])

    def test_one_that_claims_just_after_it_was_forgotten_is_there_again(
        self, rig: SweepRig
    ) -> None:
        owner = rig.enter(replace(Incarnation.current(), namespace=1), claims=0)
        rig.database.jump.wall = OWNER_RETENTION + 1
        rig.swept()
        rig.database.write(
            lambda tx: rig.claims.claim(tx, queue=1, owner=owner, lease_seconds=600, limit=1)
        )
        assert 1 == rig.owners()
        rig.database.jump.lease = 601
        assert 1 == rig.swept()

    def test_leaves_owners_of_another_table_alone(self, rig: SweepRig) -> None:
        rig.enter(replace(Incarnation.current(), boot="another"), claims=0)
        rig.database.write(
            lambda tx: tx.execute("UPDATE longwatch_owners SET table_name = 'computations'")
        )
        rig.swept()
        assert 1 == rig.owners()


class TestALapsedLease:
    def test_of_a_bare_owner_is_a_crash(self, rig: SweepRig) -> None:
        rig.enter(Incarnation.current(), claims=2)
        rig.database.jump.lease = 601
        assert 2 == rig.swept()
        assert (0, 2, 0) == rig.counts()

    def test_of_an_owner_that_cannot_be_seen_is_judged_by_its_page(self, rig: SweepRig) -> None:
        page = BeatPage(rig.folder / "page", 2)
        rig.enter(elsewhere(), claims=3, page=str(page.path))
        page.begin(0, 2, 1.0)
        rig.database.jump.lease = 601
        assert 3 == rig.swept()
        assert (0, 1, 2) == rig.counts()
        page.close()

    def test_of_an_owner_that_is_alive_blames_no_row(self, rig: SweepRig) -> None:
        page = BeatPage(rig.folder / "page", 2)
        rig.enter(Incarnation.current(), claims=3, page=str(page.path))
        page.begin(0, 2, 1.0)
        rig.database.jump.lease = 601
        assert 3 == rig.swept()
        assert (0, 0, 3) == rig.counts()
        page.close()

    def test_blames_as_the_page_says_row_by_row(self, rig: SweepRig) -> None:
        page = BeatPage(rig.folder / "page", 2)
        page.begin(1, 7, 1.0)
        holder = LeaseOwner(1, str(elsewhere()), str(page.path))
        assert (Blame.CRASH, Blame.RELEASE) == tuple(map(blame_for(holder), (7, 8)))
        page.close()

    def test_of_an_owner_that_was_not_looked_at_waits_for_the_next_sweep(
        self, rig: SweepRig
    ) -> None:
        rig.enter(elsewhere())
        rig.database.jump.lease = 601
        plan = rig.sweep.look(rig.database)
        rig.database.jump.lease = 0
        rig.enter(elsewhere(), claims=2)
        rig.database.jump.lease = 1202
        assert [1, 2] == [rig.swept(plan), rig.swept()]

    def test_that_was_renewed_after_the_look_is_not_reclaimed(self, rig: SweepRig) -> None:
        owner = rig.enter(elsewhere())
        rig.database.jump.lease = 601
        plan = rig.sweep.look(rig.database)
        rig.database.write(lambda tx: rig.claims.renew(tx, owner=owner, lease_seconds=600))
        assert 0 == rig.swept(plan)
        assert (1, 0, 0) == rig.counts()


class TestABeatPage:
    """Its path comes from the store, so it may be any file."""

    def test_is_read_outside_the_write_transaction(
        self, rig: SweepRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A page that takes long to read stops no sender."""
        reads: list[int] = []

        def slow_read(_path: str) -> None:
            rig.database.write(
                lambda tx: reads.append(tx.execute("UPDATE longwatch_owners SET page = page")),
                timeout=TIMEOUT,
            )

        monkeypatch.setattr("longwatch.store.sweep.read_page", slow_read)
        monkeypatch.setattr("longwatch.store.sweep.remove_page", slow_read)
        mine = Incarnation.current()
        rig.enter(replace(mine, start=mine.start + 1), page="any")
        rig.enter(elsewhere(), page="any")
        rig.database.jump.lease = 601
        assert [2, 0] == [rig.swept(), rig.swept()]
        assert 3 == len(reads)


class TestAStepOfTheStoresClock:
    """The leases of many workers lapse at one moment, though all of them renew in time."""

    RENEW = 10.0

    @pytest.fixture
    def clock(self, rig: SweepRig) -> FakeClock:
        clock = FakeClock()
        rig.sweep = ClaimSweeper(rig.claims, clock=clock)
        return clock

    def enter(self, rig: SweepRig, count: int) -> list[int]:
        return [rig.enter(elsewhere(), page="gone", renew_seconds=self.RENEW) for _ in range(count)]

    def renew(self, rig: SweepRig, owners: Sequence[int]) -> None:
        def work(tx: Transaction) -> int:
            return sum(rig.claims.renew(tx, owner=each, lease_seconds=600) for each in owners)

        assert len(owners) == rig.database.write(work)

    def test_takes_no_lease_and_blames_no_row(self, rig: SweepRig, clock: FakeClock) -> None:
        owners = self.enter(rig, 4)
        rig.database.jump.lease = 100_000
        assert 0 == rig.swept()
        clock.advance(0.9 * self.RENEW)
        self.renew(rig, owners[:3])
        assert 0 == rig.swept()
        self.renew(rig, owners)
        clock.advance(10 * self.RENEW)
        assert 0 == rig.swept()
        assert (4, 0, 0, 0) == rig.all_counts()

    def test_is_not_assumed_when_one_worker_of_three_is_gone(
        self, rig: SweepRig, clock: FakeClock
    ) -> None:
        owners = self.enter(rig, 3)
        rig.database.jump.lease = 500
        self.renew(rig, owners[:2])
        rig.database.jump.lease = 601
        assert 1 == rig.swept()
        assert (2, 0, 1, 0) == rig.all_counts()

    def test_keeps_the_rows_of_workers_that_are_all_gone_for_one_interval(
        self, rig: SweepRig, clock: FakeClock
    ) -> None:
        self.enter(rig, 3)
        rig.database.jump.lease = 601
        assert 0 == rig.swept()
        clock.advance(0.9 * self.RENEW)
        assert 0 == rig.swept()
        clock.advance(0.1 * self.RENEW)
        assert 3 == rig.swept()
        assert (0, 0, 3, 0) == rig.all_counts()

    def test_delays_neither_dead_owners_nor_bare_receives(
        self, rig: SweepRig, clock: FakeClock
    ) -> None:
        mine = Incarnation.current()
        self.enter(rig, 3)
        rig.enter(replace(mine, start=mine.start + 1), page="gone", renew_seconds=self.RENEW)
        rig.enter(mine)
        rig.database.jump.lease = 601
        assert 2 == rig.swept()
        assert 3 == rig.all_counts()[0]

    def test_a_live_worker_that_is_seen_keeps_its_lease_for_one_interval(
        self, rig: SweepRig, clock: FakeClock
    ) -> None:
        rig.enter(Incarnation.current(), page="gone", renew_seconds=self.RENEW)
        rig.database.jump.lease = 601
        assert 0 == rig.swept()
        clock.advance(self.RENEW)
        assert 1 == rig.swept()
        assert (0, 0, 0, 1) == rig.all_counts()
