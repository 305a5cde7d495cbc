"""Dead owners, found with real processes, and what their beat pages say about them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import requires
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.store.blame import Blame
from longwatch.store.claims import Claims
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.store.sweep import OWNER_RETENTION, ClaimSweeper, LeaseOwner, blame_for
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

    def enter(self, incarnation: Incarnation, *, claims: int = 1, page: str | None = None) -> int:
        owner = self.database.write(
            lambda tx: self.claims.register_owner(tx, incarnation, page=page)
        )
        self.database.write(
            lambda tx: self.claims.claim(tx, queue=1, owner=owner, lease_seconds=600, limit=claims)
        )
        return owner

    def dead(self) -> list[LeaseOwner]:
        return self.database.read(self.sweep.dead_owners)

    def reclaim_dead(self) -> int:
        """Bury everybody who is dead; how many rows came back."""
        return self.database.write(
            lambda tx: sum(
                len(self.sweep.reclaim(tx, holder)) for holder in self.sweep.dead_owners(tx)
            )
        )

    def counts(self) -> tuple[int, int, int]:
        """Rows leased, crashes, releases."""
        sql = (
            "SELECT count(*) FILTER (WHERE lease_state = 2), sum(crashes), sum(releases) FROM "
            "longwatch_messages"
        )
        [(leased, crashes, releases)] = self.database.read(lambda tx: tx.rows(sql))
        return leased, crashes, releases

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
            assert 3 == rig.reclaim_dead()
        assert (0, 3, 0) == rig.counts()

    def test_is_found_before_its_parent_has_reaped_it(self, rig: SweepRig) -> None:
        with rig.owner() as child:
            child.signal(signal.SIGKILL)
            os.waitid(os.P_PID, child._child.pid, os.WEXITED | os.WNOWAIT)
            assert 1 == len(rig.dead())

    def test_without_a_page_is_blamed_for_every_row(self, rig: SweepRig) -> None:
        with rig.owner() as child:
            kill(child)
            rig.reclaim_dead()
        assert (0, 3, 0) == rig.counts()

    def test_with_a_page_is_blamed_for_the_rows_it_had_started_alone(self, rig: SweepRig) -> None:
        with rig.owner(limit=4, page="page", started=1) as child:
            kill(child)
            assert 4 == rig.reclaim_dead()
        assert (0, 1, 3) == rig.counts()

    def test_that_was_draining_is_blamed_for_nothing(self, rig: SweepRig) -> None:
        with rig.owner(page="page", started=2, draining=True) as child:
            kill(child)
            rig.reclaim_dead()
        assert (0, 0, 3) == rig.counts()

    def test_whose_page_cannot_be_read_is_blamed_for_nothing(self, rig: SweepRig) -> None:
        with rig.owner(page="page", started=2) as child:
            kill(child)
            (rig.folder / "page").unlink()
            rig.reclaim_dead()
        assert (0, 0, 3) == rig.counts()

    def test_of_another_boot_is_blamed_for_nothing_though_its_page_is_still_there(
        self, rig: SweepRig
    ) -> None:
        """A host that went down blames nobody."""
        page = BeatPage(rig.folder / "page", 1)
        page.begin(0, 1, 1.0)
        rig.enter(replace(Incarnation.current(), boot="another"), page=str(page.path))
        assert 1 == rig.reclaim_dead()
        assert (0, 0, 1) == rig.counts()
        page.close()

    def test_that_held_many_rows_gives_them_back_a_page_at_a_time(
        self, rig: SweepRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("longwatch.store.sweep.SWEEP_BATCH", 4)
        with rig.owner(limit=10) as child:
            kill(child)
            assert [4, 4, 2, 0] == [rig.reclaim_dead() for _ in range(4)]

    def test_found_twice_is_buried_once(self, rig: SweepRig) -> None:
        with rig.owner() as child:
            kill(child)
            dead = rig.dead()
            assert [3, 0] == [
                len(rig.database.write(lambda tx: rig.sweep.reclaim(tx, dead[0]))) for _ in range(2)
            ]
        assert (0, 3, 0) == rig.counts()

    def test_is_forgotten_once_it_holds_nothing_and_its_page_goes_with_it(
        self, rig: SweepRig
    ) -> None:
        with rig.owner(page="page", started=1) as child:
            kill(child)
            rig.reclaim_dead()
            assert (1, True) == (rig.owners(), (rig.folder / "page").exists())
            rig.reclaim_dead()
        assert (0, False) == (rig.owners(), (rig.folder / "page").exists())
        assert [] == rig.dead()

    def test_whose_page_is_some_other_file_does_not_take_that_with_it(self, rig: SweepRig) -> None:
        letter = rig.folder / "letter"
        letter.write_text("keep me")
        rig.enter(replace(Incarnation.current(), boot="another"), page=str(letter))
        rig.reclaim_dead()
        rig.reclaim_dead()
        assert (0, "keep me") == (rig.owners(), letter.read_text())


class TestALiveOwner:
    def test_is_never_robbed(self, rig: SweepRig) -> None:
        with rig.owner():
            assert 0 == rig.reclaim_dead()
            assert (3, 0, 0) == rig.counts()

    def test_is_not_forgotten_however_long_it_holds_nothing(self, rig: SweepRig) -> None:
        rig.enter(Incarnation.current(), claims=0)
        rig.database.jump.wall = 10 * OWNER_RETENTION
        assert 0 == rig.reclaim_dead()
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
        assert 0 == rig.reclaim_dead()

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
            assert 0 == rig.reclaim_dead()
            child.send_line()
            assert 0 == child.wait()[0]
        assert (2, 0, 0) == rig.counts()

    def test_written_down_by_another_version_is_not_robbed(self, rig: SweepRig) -> None:
        rig.enter(Incarnation.current())
        rig.database.write(
            lambda tx: tx.execute("UPDATE longwatch_owners SET incarnation = 'of.tomorrow'")
        )
        assert 0 == rig.reclaim_dead()


class TestTheSamePid:
    def test_with_another_start_time_is_a_dead_owner(self, rig: SweepRig) -> None:
        mine = Incarnation.current()
        rig.enter(replace(mine, start=mine.start + 1))
        assert 1 == rig.reclaim_dead()


class TestTheListOfOwners:
    def test_does_not_grow_with_processes_that_come_and_go(self, rig: SweepRig) -> None:
        mine = Incarnation.current()
        for number in range(20):
            rig.enter(replace(mine, id=str(number), start=mine.start + 1), claims=0)
        rig.reclaim_dead()
        assert 0 == rig.owners()

    def test_does_not_grow_with_boots(self, rig: SweepRig) -> None:
        rig.enter(replace(Incarnation.current(), boot="another"), claims=0)
        rig.reclaim_dead()
        assert 0 == rig.owners()

    def test_does_not_grow_with_containers_either(self, rig: SweepRig) -> None:
        rig.enter(replace(Incarnation.current(), namespace=1), claims=0)
        rig.reclaim_dead()
        assert 1 == rig.owners()
        rig.database.jump.wall = OWNER_RETENTION + 1
        rig.reclaim_dead()
        assert 0 == rig.owners()

    def test_keeps_one_that_cannot_be_seen_while_it_holds_something(self, rig: SweepRig) -> None:
        rig.enter(replace(Incarnation.current(), namespace=1))
        rig.database.jump.wall = OWNER_RETENTION + 1
        assert 0 == rig.reclaim_dead()
        assert (1, 1) == (rig.owners(), rig.counts()[0])

    def test_one_that_claims_just_before_it_is_forgotten_keeps_its_lease(
        self, rig: SweepRig
    ) -> None:
        owner = rig.enter(replace(Incarnation.current(), namespace=1), claims=0)
        rig.database.jump.wall = OWNER_RETENTION + 1
        [idle] = rig.dead()
        rig.database.write(
            lambda tx: rig.claims.claim(tx, queue=1, owner=owner, lease_seconds=600, limit=1)
        )
        assert 0 == len(rig.database.write(lambda tx: rig.sweep.reclaim(tx, idle)))
        assert (1, 1) == (rig.owners(), rig.counts()[0])

    def test_one_that_claims_just_after_it_was_forgotten_is_there_again(
        self, rig: SweepRig
    ) -> None:
        owner = rig.enter(replace(Incarnation.current(), namespace=1), claims=0)
        rig.database.jump.wall = OWNER_RETENTION + 1
        rig.reclaim_dead()
        rig.database.write(
            lambda tx: rig.claims.claim(tx, queue=1, owner=owner, lease_seconds=600, limit=1)
        )
        assert 1 == rig.owners()
        rig.database.jump.lease = 601
        assert 1 == len(rig.database.write(rig.sweep.reclaim_lapsed))

    def test_leaves_owners_of_another_table_alone(self, rig: SweepRig) -> None:
        rig.enter(replace(Incarnation.current(), boot="another"), claims=0)
        rig.database.write(
            lambda tx: tx.execute("UPDATE longwatch_owners SET table_name = 'computations'")
        )
        rig.reclaim_dead()
        assert 1 == rig.owners()


class TestALapsedLease:
    def test_of_a_bare_owner_is_a_crash(self, rig: SweepRig) -> None:
        rig.enter(Incarnation.current(), claims=2)
        rig.database.jump.lease = 601
        assert 2 == len(rig.database.write(rig.sweep.reclaim_lapsed))
        assert (0, 2, 0) == rig.counts()

    def test_of_an_owner_with_a_page_is_judged_by_it(self, rig: SweepRig) -> None:
        page = BeatPage(rig.folder / "page", 2)
        rig.enter(Incarnation.current(), claims=3, page=str(page.path))
        page.begin(0, 2, 1.0)
        rig.database.jump.lease = 601
        assert 3 == len(rig.database.write(rig.sweep.reclaim_lapsed))
        assert (0, 1, 2) == rig.counts()
        page.close()

    def test_blames_as_the_page_says_row_by_row(self, rig: SweepRig) -> None:
        page = BeatPage(rig.folder / "page", 2)
        page.begin(1, 7, 1.0)
        holder = LeaseOwner(1, str(Incarnation.current()), str(page.path))
        assert (Blame.CRASH, Blame.RELEASE) == tuple(map(blame_for(holder), (7, 8)))
        page.close()
