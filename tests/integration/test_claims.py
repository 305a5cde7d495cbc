"""Claims over a real file, by several threads and processes at once. The rules themselves are in
test_claims_rules.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Blame, Claim, Claims
from longwatch.store.database import Transaction
from longwatch.store.sqlite import SqliteDatabase
from longwatch.store.sweep import Sweep
from snippet import running

ROWS = 300
CLAIMANT = """
    import sys
    from pathlib import Path
    from longwatch.host.incarnation import Incarnation
    from longwatch.store.claims import Claim, Claims
    from longwatch.store.sqlite import SqliteDatabase

    database = SqliteDatabase(Path({path!r}))
    claims = Claims(dialect="sqlite", table="longwatch_messages", columns=())
    owner = database.write(lambda tx: claims.register(tx, Incarnation.mine()))

    def claim(limit):
        rows = database.write(
            lambda tx: claims.claim(tx, lane=1, owner=owner, duration=60, limit=limit)
        )
        return [Claim(*row) for row in rows]
"""


class Line:
    """The table `messages` of one file, and its claims."""

    def __init__(self, path: Path) -> None:
        self.database = SqliteDatabase(path)
        self.claims = Claims(dialect="sqlite", table="longwatch_messages", columns=())
        self.sweep = Sweep(self.claims)
        self.database.write(
            lambda tx: tx.execute(
                "INSERT OR IGNORE INTO longwatch_mailboxes (lane, name) VALUES (1, 'one')"
            )
        )

    def enter(self) -> int:
        return self.database.write(lambda tx: self.claims.register(tx, Incarnation.mine()))

    def add(self, count: int) -> None:
        sql = (
            "INSERT INTO longwatch_messages (lane, id, enqueued_at, body) VALUES (1, "
            "hex(randomblob(8)), 0, x'')"
        )
        self.database.write(lambda tx: [tx.execute(sql) for _ in range(count)])

    def claim(self, owner: int, limit: int = 1) -> list[Claim]:
        rows = self.database.write(
            lambda tx: self.claims.claim(tx, lane=1, owner=owner, duration=60, limit=limit)
        )
        return [Claim(*row) for row in rows]

    def settle(self, *claims: Claim) -> list[bool]:
        return self.database.write(lambda tx: self.claims.settle(tx, claims))

    def count(self, condition: str = "1") -> int:
        return int(
            self.database.read(
                lambda tx: tx.rows("SELECT count(*) FROM longwatch_messages WHERE " + condition)
            )[0][0]
        )


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    made = Line(tmp_path / "some.db")
    yield made
    made.database.close()


def test_threads_that_claim_at_once_never_get_the_same_row(line: Line) -> None:
    line.add(ROWS)
    taken: list[Claim] = []

    def work() -> None:
        owner = line.enter()
        while claims := line.claim(owner, 7):
            taken.extend(claims)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert ROWS == len(taken) == len({claim.seq for claim in taken})


def test_processes_that_claim_and_settle_at_once_do_each_row_once(line: Line) -> None:
    line.add(ROWS)
    code = (
        CLAIMANT.format(path=str(line.database.path))
        + """
    print("ready")
    input()
    done = 0
    while held := claim(5):
        done += sum(database.write(lambda tx: claims.settle(tx, held)))
    print(done)
    """
    )
    with ExitStack() as stack:
        children = [stack.enter_context(running(code)) for _ in range(3)]
        assert ["ready"] * 3 == [child.line() for child in children]
        for child in children:
            child.say()
        assert ROWS == sum(int(child.line()) for child in children)
        assert [0] * 3 == [child.end()[0] for child in children]
    assert 0 == line.count()


def test_a_claim_and_a_settlement_in_one_transaction_happen_together_or_not_at_all(
    line: Line,
) -> None:
    line.add(2)
    owner = line.enter()
    [first] = line.claim(owner)

    def fused(tx: Transaction) -> None:
        line.claims.settle(tx, [first])
        line.claims.claim(tx, lane=1, owner=owner, duration=60, limit=1)
        raise LookupError("after both")

    with pytest.raises(LookupError):
        line.database.write(fused)
    assert (2, 1) == (line.count(), line.count("held = 2"))
    assert [True] == line.settle(first)


def test_a_process_killed_after_its_claim_leaves_a_lease_that_a_sweep_takes(line: Line) -> None:
    line.add(3)
    code = (
        CLAIMANT.format(path=str(line.database.path))
        + "    print(len(claim(2)), flush=True)\n    input()"
    )
    with running(code) as child:
        assert "2" == child.line()
        assert 2 == line.count("held = 2")
        child.signal(signal.SIGKILL)
        child.end()
        [dead] = line.database.read(line.sweep.dead_holders)
        assert 2 == len(line.database.write(lambda tx: line.sweep.bury(tx, dead)))
    assert (0, 3) == (line.count("held = 2"), line.count("held = 0"))


def test_a_claim_made_after_a_backup_is_refused_once_that_was_restored(
    line: Line, tmp_path: Path
) -> None:
    """A restored file gives out the same numbers again, also to the same owner, but never the
    same term.
    """
    line.add(1)
    copy = tmp_path / "copy.db"
    backup = sqlite3.connect(copy)
    source = sqlite3.connect(line.database.path)
    source.backup(backup)
    source.close()
    backup.close()
    owner = line.enter()
    [of_the_lost_state] = line.claim(owner)
    restored = Line(Path(shutil.copy(copy, tmp_path / "restored.db")))
    restored.claims._owners = line.claims._owners
    [of_now] = restored.claim(owner)
    assert (of_the_lost_state.seq, of_the_lost_state.owner) == (of_now.seq, of_now.owner)
    assert [False] == restored.settle(of_the_lost_state)
    assert [True] == restored.settle(of_now)
    restored.database.close()


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_wall_clock_that_jumps_an_hour_changes_no_lease(line: Line, jump: float) -> None:
    line.add(1)
    [claim] = line.claim(line.enter())
    line.database.jump.wall = jump
    assert not line.database.read(line.sweep.has_lapsed)
    assert 0 == len(line.database.write(line.sweep.lapsed))
    assert [True] == line.settle(claim)


def test_a_lease_ends_on_the_lease_clock(line: Line) -> None:
    line.add(1)
    [claim] = line.claim(line.enter())
    line.database.jump.lease = 61
    assert 1 == len(line.database.write(line.sweep.lapsed))
    assert [False] == line.settle(claim)


def test_a_lease_of_another_boot_has_ended_however_long_it_was(line: Line) -> None:
    line.add(1)
    line.claim(line.enter())
    line.database.write(lambda tx: tx.execute("UPDATE longwatch_owners SET boot = 'another'"))
    assert line.database.read(line.sweep.has_lapsed)
    assert 1 == len(line.database.write(line.sweep.lapsed))


def test_two_sweepers_at_once_give_a_row_back_once(line: Line) -> None:
    line.add(1)
    line.claim(line.enter())
    line.database.jump.lease = 61
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(len(line.database.write(line.sweep.lapsed))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [0, 0, 0, 1] == sorted(found)
    assert 1 == line.count("crashes = 1")


def test_a_release_is_refused_after_the_row_was_given_to_somebody_else(line: Line) -> None:
    line.add(1)
    [old] = line.claim(line.enter())
    line.database.jump.lease = 61
    line.database.write(line.sweep.lapsed)
    [new] = line.claim(line.enter())
    assert [False] == line.database.write(
        lambda tx: line.claims.release(tx, [old], blame=Blame.FAILURE)
    )
    assert 0 == line.count("failures > 0")
    assert [True] == line.settle(new)
