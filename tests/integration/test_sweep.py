"""Dead owners, found with real processes, and what their beat pages say about them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import parts
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Blame, Claims
from longwatch.store.sqlite import SqliteDatabase
from longwatch.store.sweep import FORGET_AFTER, Holder, Sweep, judge
from snippet import Snippet, running

OWNER = """
    import os, sys
    from pathlib import Path
    from longwatch.host.beatpage import BeatPage
    from longwatch.host.incarnation import Incarnation
    from longwatch.store.claims import Claims
    from longwatch.store.sqlite import SqliteDatabase

    database = SqliteDatabase(Path({path!r}))
    claims = Claims(dialect="sqlite", table="longwatch_messages", columns=())
    page = BeatPage(Path({page!r}), 4) if {page!r} else None
    owner = database.write(
        lambda tx: claims.register(tx, Incarnation.mine(), page={page!r} or None)
    )
    rows = database.write(
        lambda tx: claims.claim(tx, lane=1, owner=owner, duration=600, limit={limit})
    )
    for slot, row in enumerate(rows[:{started}]):
        page.begin(slot, row[0], 1.0)
    if {draining}:
        page.start_draining()
    print("ready", flush=True)
    input()
"""


class Place:
    """A file with ten rows, and the sweep over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = SqliteDatabase(folder / "some.db")
        self.claims = Claims(dialect="sqlite", table="longwatch_messages", columns=())
        self.sweep = Sweep(self.claims)
        self.database.write(
            lambda tx: tx.execute("INSERT INTO longwatch_mailboxes (lane, name) VALUES (1, 'one')")
        )
        sql = (
            "INSERT INTO longwatch_messages (lane, id, enqueued_at, body) VALUES (1, "
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
        with running(code) as child:
            assert "ready" == child.line()
            yield child

    def enter(self, incarnation: Incarnation, *, claims: int = 1, page: str | None = None) -> int:
        owner = self.database.write(lambda tx: self.claims.register(tx, incarnation, page=page))
        self.database.write(
            lambda tx: self.claims.claim(tx, lane=1, owner=owner, duration=600, limit=claims)
        )
        return owner

    def dead(self) -> list[Holder]:
        return self.database.read(self.sweep.dead_holders)

    def round(self) -> int:
        """Bury everybody who is dead; how many rows came back."""
        return self.database.write(
            lambda tx: sum(
                len(self.sweep.bury(tx, holder)) for holder in self.sweep.dead_holders(tx)
            )
        )

    def counts(self) -> tuple[int, int, int]:
        """Rows leased, crashes, releases."""
        sql = (
            "SELECT count(*) FILTER (WHERE held = 2), sum(crashes), sum(releases) FROM "
            "longwatch_messages"
        )
        [(leased, crashes, releases)] = self.database.read(lambda tx: tx.rows(sql))
        return leased, crashes, releases

    def owners(self) -> int:
        return int(
            self.database.read(lambda tx: tx.rows("SELECT count(*) FROM longwatch_owners"))[0][0]
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.database.close()


def killed(child: Snippet) -> None:
    child.signal(signal.SIGKILL)
    child.end()


class TestADeadOwner:
    def test_is_found_at_once_and_its_rows_come_back(self, place: Place) -> None:
        with place.owner() as child:
            assert [] == place.dead()
            killed(child)
            assert 1 == len(place.dead())
            assert 3 == place.round()
        assert (0, 3, 0) == place.counts()

    def test_is_found_before_its_parent_has_reaped_it(self, place: Place) -> None:
        with place.owner() as child:
            child.signal(signal.SIGKILL)
            os.waitid(os.P_PID, child._child.pid, os.WEXITED | os.WNOWAIT)
            assert 1 == len(place.dead())

    def test_without_a_page_is_blamed_for_every_row(self, place: Place) -> None:
        with place.owner() as child:
            killed(child)
            place.round()
        assert (0, 3, 0) == place.counts()

    def test_with_a_page_is_blamed_for_the_rows_it_had_started_alone(self, place: Place) -> None:
        with place.owner(limit=4, page="page", started=1) as child:
            killed(child)
            assert 4 == place.round()
        assert (0, 1, 3) == place.counts()

    def test_that_was_draining_is_blamed_for_nothing(self, place: Place) -> None:
        with place.owner(page="page", started=2, draining=True) as child:
            killed(child)
            place.round()
        assert (0, 0, 3) == place.counts()

    def test_whose_page_cannot_be_read_is_blamed_for_nothing(self, place: Place) -> None:
        with place.owner(page="page", started=2) as child:
            killed(child)
            (place.folder / "page").unlink()
            place.round()
        assert (0, 0, 3) == place.counts()

    def test_of_another_boot_is_blamed_for_nothing_though_its_page_is_still_there(
        self, place: Place
    ) -> None:
        """A host that went down blames nobody."""
        page = BeatPage(place.folder / "page", 1)
        page.begin(0, 1, 1.0)
        place.enter(replace(Incarnation.mine(), boot="another"), page=str(page.path))
        assert 1 == place.round()
        assert (0, 0, 1) == place.counts()
        page.close()

    def test_that_held_many_rows_gives_them_back_a_page_at_a_time(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("longwatch.store.sweep.PAGE_OF_ROWS", 4)
        with place.owner(limit=10) as child:
            killed(child)
            assert [4, 4, 2, 0] == [place.round() for _ in range(4)]

    def test_found_twice_is_buried_once(self, place: Place) -> None:
        with place.owner() as child:
            killed(child)
            dead = place.dead()
            assert [3, 0] == [
                len(place.database.write(lambda tx: place.sweep.bury(tx, dead[0])))
                for _ in range(2)
            ]
        assert (0, 3, 0) == place.counts()

    def test_is_forgotten_once_it_holds_nothing_and_its_page_goes_with_it(
        self, place: Place
    ) -> None:
        with place.owner(page="page", started=1) as child:
            killed(child)
            place.round()
            assert (1, True) == (place.owners(), (place.folder / "page").exists())
            place.round()
        assert (0, False) == (place.owners(), (place.folder / "page").exists())
        assert [] == place.dead()

    def test_whose_page_is_some_other_file_does_not_take_that_with_it(self, place: Place) -> None:
        letter = place.folder / "letter"
        letter.write_text("keep me")
        place.enter(replace(Incarnation.mine(), boot="another"), page=str(letter))
        place.round()
        place.round()
        assert (0, "keep me") == (place.owners(), letter.read_text())


class TestALiveOwner:
    def test_is_never_robbed(self, place: Place) -> None:
        with place.owner():
            assert 0 == place.round()
            assert (3, 0, 0) == place.counts()

    def test_is_not_forgotten_however_long_it_holds_nothing(self, place: Place) -> None:
        place.enter(Incarnation.mine(), claims=0)
        place.database.jump.wall = 10 * FORGET_AFTER
        assert 0 == place.round()
        assert 1 == place.owners()

    def test_that_is_stopped_is_not_robbed(self, place: Place) -> None:
        with place.owner() as child:
            child.signal(signal.SIGSTOP)
            assert [] == place.dead()

    def test_that_may_not_be_signalled_is_not_robbed(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_pid: int, _signal: int) -> None:
            raise PermissionError

        mine = Incarnation.mine()
        place.enter(replace(mine, start=mine.start + 1))
        monkeypatch.setattr(os, "kill", refuse)
        assert 0 == place.round()

    def test_in_another_namespace_is_not_robbed(self, place: Place) -> None:
        parts.require("unshare")
        code = OWNER.format(
            path=str(place.database.path), limit=2, page="", started=0, draining=False
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
        with running(wrapped) as child:
            assert "ready" == child.line()
            assert 2 == place.counts()[0]
            assert 0 == place.round()
            child.say()
            assert 0 == child.end()[0]
        assert (2, 0, 0) == place.counts()

    def test_written_down_by_another_version_is_not_robbed(self, place: Place) -> None:
        place.enter(Incarnation.mine())
        place.database.write(
            lambda tx: tx.execute("UPDATE longwatch_owners SET incarnation = 'of.tomorrow'")
        )
        assert 0 == place.round()


class TestTheSamePid:
    def test_with_another_start_time_is_a_dead_owner(self, place: Place) -> None:
        mine = Incarnation.mine()
        place.enter(replace(mine, start=mine.start + 1))
        assert 1 == place.round()


class TestTheListOfOwners:
    def test_does_not_grow_with_processes_that_come_and_go(self, place: Place) -> None:
        mine = Incarnation.mine()
        for number in range(20):
            place.enter(replace(mine, id=str(number), start=mine.start + 1), claims=0)
        place.round()
        assert 0 == place.owners()

    def test_does_not_grow_with_boots(self, place: Place) -> None:
        place.enter(replace(Incarnation.mine(), boot="another"), claims=0)
        place.round()
        assert 0 == place.owners()

    def test_does_not_grow_with_containers_either(self, place: Place) -> None:
        place.enter(replace(Incarnation.mine(), namespace=1), claims=0)
        place.round()
        assert 1 == place.owners()
        place.database.jump.wall = FORGET_AFTER + 1
        place.round()
        assert 0 == place.owners()

    def test_keeps_one_that_cannot_be_seen_while_it_holds_something(self, place: Place) -> None:
        place.enter(replace(Incarnation.mine(), namespace=1))
        place.database.jump.wall = FORGET_AFTER + 1
        assert 0 == place.round()
        assert (1, 1) == (place.owners(), place.counts()[0])

    def test_one_that_claims_just_before_it_is_forgotten_keeps_its_lease(
        self, place: Place
    ) -> None:
        owner = place.enter(replace(Incarnation.mine(), namespace=1), claims=0)
        place.database.jump.wall = FORGET_AFTER + 1
        [idle] = place.dead()
        place.database.write(
            lambda tx: place.claims.claim(tx, lane=1, owner=owner, duration=600, limit=1)
        )
        assert 0 == len(place.database.write(lambda tx: place.sweep.bury(tx, idle)))
        assert (1, 1) == (place.owners(), place.counts()[0])

    def test_one_that_claims_just_after_it_was_forgotten_is_there_again(self, place: Place) -> None:
        owner = place.enter(replace(Incarnation.mine(), namespace=1), claims=0)
        place.database.jump.wall = FORGET_AFTER + 1
        place.round()
        place.database.write(
            lambda tx: place.claims.claim(tx, lane=1, owner=owner, duration=600, limit=1)
        )
        assert 1 == place.owners()
        place.database.jump.lease = 601
        assert 1 == len(place.database.write(place.sweep.lapsed))

    def test_leaves_owners_of_another_table_alone(self, place: Place) -> None:
        place.enter(replace(Incarnation.mine(), boot="another"), claims=0)
        place.database.write(
            lambda tx: tx.execute("UPDATE longwatch_owners SET claims = 'computations'")
        )
        place.round()
        assert 1 == place.owners()


class TestALapsedLease:
    def test_of_a_bare_owner_is_a_crash(self, place: Place) -> None:
        place.enter(Incarnation.mine(), claims=2)
        place.database.jump.lease = 601
        assert 2 == len(place.database.write(place.sweep.lapsed))
        assert (0, 2, 0) == place.counts()

    def test_of_an_owner_with_a_page_is_judged_by_it(self, place: Place) -> None:
        page = BeatPage(place.folder / "page", 2)
        place.enter(Incarnation.mine(), claims=3, page=str(page.path))
        page.begin(0, 2, 1.0)
        place.database.jump.lease = 601
        assert 3 == len(place.database.write(place.sweep.lapsed))
        assert (0, 1, 2) == place.counts()
        page.close()

    def test_blames_as_the_page_says_row_by_row(self, place: Place) -> None:
        page = BeatPage(place.folder / "page", 2)
        page.begin(1, 7, 1.0)
        holder = Holder(1, str(Incarnation.mine()), str(page.path))
        assert (Blame.CRASH, Blame.RELEASE) == tuple(map(judge(holder), (7, 8)))
        page.close()
