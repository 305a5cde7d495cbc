"""Claims over a real file, by several threads and processes at once. The rules themselves are in
test_claim_rules.
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
from longwatch.store.blame import Blame
from longwatch.store.claims import Claim, Claims
from longwatch.store.database import Transaction
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.store.sweep import ClaimSweeper
from snippet import run_snippet

ROWS = 300
CLAIMANT = """
    import sys
    from pathlib import Path
    from longwatch.host.incarnation import Incarnation
    from longwatch.store.claims import Claim, Claims
    from longwatch.store.sqlite.database import SqliteDatabase

    database = SqliteDatabase(Path({path!r}))
    claims = Claims(dialect="sqlite", table="longwatch_messages", columns=())
    owner = database.write(lambda tx: claims.register_owner(tx, Incarnation.current()))

    def claim(limit):
        rows = database.write(
            lambda tx: claims.claim(tx, queue=1, owner=owner, lease_seconds=60, limit=limit)
        )
        return [Claim(*row) for row in rows]
"""


class MessageTable:
    """The table `messages` of one file, and its claims."""

    def __init__(self, path: Path) -> None:
        self.database = SqliteDatabase(path)
        self.claims = Claims(dialect="sqlite", table="longwatch_messages", columns=())
        self.sweep = ClaimSweeper(self.claims)
        self.database.write(
            lambda tx: tx.execute(
                "INSERT OR IGNORE INTO longwatch_mailboxes (queue, name) VALUES (1, 'one')"
            )
        )

    def enter(self) -> int:
        return self.database.write(lambda tx: self.claims.register_owner(tx, Incarnation.current()))

    def add(self, count: int) -> None:
        sql = (
            "INSERT INTO longwatch_messages (queue, id, enqueued_at, body) VALUES (1, "
            "hex(randomblob(8)), 0, x'')"
        )
        self.database.write(lambda tx: [tx.execute(sql) for _ in range(count)])

    def claim(self, owner: int, limit: int = 1) -> list[Claim]:
        rows = self.database.write(
            lambda tx: self.claims.claim(tx, queue=1, owner=owner, lease_seconds=60, limit=limit)
        )
        return [Claim(*row) for row in rows]

    def settle(self, *claims: Claim) -> list[bool]:
        return self.database.write(lambda tx: self.claims.settle(tx, claims))

    def swept(self) -> int:
        """How many rows a sweep releases."""
        plan = self.sweep.look(self.database)
        return len(self.database.write(lambda tx: self.sweep.reclaim(tx, plan)).rows)

    def count(self, condition: str = "1") -> int:
        return int(
            self.database.read(
                lambda tx: tx.rows("SELECT count(*) FROM longwatch_messages WHERE " + condition)
            )[0][0]
        )


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MessageTable]:
    made = MessageTable(tmp_path / "some.db")
    yield made
    made.database.close()


def test_threads_that_claim_at_once_never_get_the_same_row(table: MessageTable) -> None:
    table.add(ROWS)
    taken: list[Claim] = []

    def work() -> None:
        owner = table.enter()
        while claims := table.claim(owner, 7):
            taken.extend(claims)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert ROWS == len(taken) == len({claim.seq for claim in taken})


def test_processes_that_claim_and_settle_at_once_do_each_row_once(table: MessageTable) -> None:
    table.add(ROWS)
    code = (
        CLAIMANT.format(path=str(table.database.path))
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
        children = [stack.enter_context(run_snippet(code)) for _ in range(3)]
        assert ["ready"] * 3 == [child.read_line() for child in children]
        for child in children:
            child.send_line()
        assert ROWS == sum(int(child.read_line()) for child in children)
        assert [0] * 3 == [child.wait()[0] for child in children]
    assert 0 == table.count()


def test_a_claim_and_a_settlement_in_one_transaction_happen_together_or_not_at_all(
    table: MessageTable,
) -> None:
    table.add(2)
    owner = table.enter()
    [first] = table.claim(owner)

    def fused(tx: Transaction) -> None:
        table.claims.settle(tx, [first])
        table.claims.claim(tx, queue=1, owner=owner, lease_seconds=60, limit=1)
        raise LookupError("after both")

    with pytest.raises(LookupError):
        table.database.write(fused)
    assert (2, 1) == (table.count(), table.count("lease_state = 2"))
    assert [True] == table.settle(first)


def test_a_process_killed_after_its_claim_leaves_a_lease_that_a_sweep_takes(
    table: MessageTable,
) -> None:
    table.add(3)
    code = (
        CLAIMANT.format(path=str(table.database.path))
        + "    print(len(claim(2)), flush=True)\n    input()"
    )
    with run_snippet(code) as child:
        assert "2" == child.read_line()
        assert 2 == table.count("lease_state = 2")
        child.signal(signal.SIGKILL)
        child.wait()
        assert 1 == len(table.sweep.look(table.database).dead)
        assert 2 == table.swept()
    assert (0, 3) == (table.count("lease_state = 2"), table.count("lease_state = 0"))


def test_a_claim_made_after_a_backup_is_refused_once_that_was_restored(
    table: MessageTable, tmp_path: Path
) -> None:
    """A restored file gives out the same numbers again, also to the same owner, but never the
    same term.
    """
    table.add(1)
    copy = tmp_path / "copy.db"
    backup = sqlite3.connect(copy)
    source = sqlite3.connect(table.database.path)
    source.backup(backup)
    source.close()
    backup.close()
    owner = table.enter()
    [of_the_lost_state] = table.claim(owner)
    restored = MessageTable(Path(shutil.copy(copy, tmp_path / "restored.db")))
    restored.claims._owners = table.claims._owners
    [of_now] = restored.claim(owner)
    assert (of_the_lost_state.seq, of_the_lost_state.owner) == (of_now.seq, of_now.owner)
    assert [False] == restored.settle(of_the_lost_state)
    assert [True] == restored.settle(of_now)
    restored.database.close()


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_wall_clock_that_jumps_an_hour_changes_no_lease(table: MessageTable, jump: float) -> None:
    table.add(1)
    [claim] = table.claim(table.enter())
    table.database.jump.wall = jump
    assert 0 == table.swept()
    assert [True] == table.settle(claim)


def test_a_lease_ends_on_the_lease_clock(table: MessageTable) -> None:
    table.add(1)
    [claim] = table.claim(table.enter())
    table.database.jump.lease = 61
    assert 1 == table.swept()
    assert [False] == table.settle(claim)


def test_a_lease_of_another_boot_has_ended_however_long_it_was(table: MessageTable) -> None:
    table.add(1)
    table.claim(table.enter())
    table.database.write(lambda tx: tx.execute("UPDATE longwatch_owners SET boot = 'another'"))
    assert 1 == table.swept()


def test_two_sweepers_at_once_give_a_row_back_once(table: MessageTable) -> None:
    table.add(1)
    table.claim(table.enter())
    table.database.jump.lease = 61
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(table.swept())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [0, 0, 0, 1] == sorted(found)
    assert 1 == table.count("crashes = 1")


def test_a_release_is_refused_after_the_row_was_given_to_somebody_else(table: MessageTable) -> None:
    table.add(1)
    [old] = table.claim(table.enter())
    table.database.jump.lease = 61
    assert 1 == table.swept()
    [new] = table.claim(table.enter())
    assert [False] == table.database.write(
        lambda tx: table.claims.release(tx, [old], blame=Blame.FAILURE)
    )
    assert 0 == table.count("failures > 0")
    assert [True] == table.settle(new)
