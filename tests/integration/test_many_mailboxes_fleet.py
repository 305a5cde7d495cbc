"""Several mailboxes as one claim source: the contract of mailboxes, many processes, an engine."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flow_stores import KINDS, opened_database, store_url
from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import (
    ClaimedRow,
    ExchangeResult,
    GivenUp,
    RowOutcome,
    Settlement,
    ignore_given_up,
)
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import many_mailboxes as module
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.many_mailboxes import ManyMailboxes
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.database import Database
from longwatch.testing import check_mailbox
from polling import eventually

TIMEOUT = 120.0


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with store_url(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with opened_database(url) as opened:
        yield opened


def make_backends(database: Database, counts: Sequence[int]) -> list[SqlBackend]:
    """Mailboxes with so many messages each."""
    backends = [SqlBackend(database, f"box{place}") for place in range(len(counts))]
    for backend, count in zip(backends, counts, strict=True):
        backend.put([NewMessage(id=new_id(), body=b"{}") for _ in range(count)])
    return backends


# --- the contract of mailboxes ---


class OneOfMany(SqlBackend):
    """A mailbox that is claimed from and swept together with another one."""

    def __init__(self, database: Database, name: str, **how: Any) -> None:
        super().__init__(database, name, **how)
        self._many = ManyMailboxes([self, SqlBackend(database, "another")], max_running=10**6)

    def exchange(self, settlements: Sequence[Settlement], **how: Any) -> ExchangeResult:
        return self._many.exchange(settlements, **how)

    def count_suspects(self, *, limit: int) -> int:
        return self._many.count_suspects(limit=limit)

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:
        return self._many.sweep(on_given_up)

    def next_due(self) -> float | None:
        return self._many.next_due()

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        return self._many.listen(wakeup)


def jump(mailbox: Mailbox[Any], lease: float, wall: float) -> None:
    database = mailbox.backend.database  # type: ignore[attr-defined]
    database.jump.lease += lease
    database.jump.wall += wall


def test_a_mailbox_among_others_keeps_the_contract(
    database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longwatch.mailbox.sql.SqlBackend", OneOfMany)
    monkeypatch.setattr(module, "_RETENTION_INTERVAL", 0.0)
    check_mailbox(
        partial(open_mailbox, database),
        jump=jump,
        reopen=partial(open_mailbox, url),
        transact=database.transact,
    )


# --- several processes ---

CLAIMANT = """
import sys
import time
from pathlib import Path
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.many_mailboxes import ManyMailboxes
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.url import open_database

url, folder, cap = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

def take_seat(name):
    for number in range(cap):
        try:
            (folder / f"{name}.{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return folder / f"{name}.{number}"
    (folder / "exceeded").touch()
    raise SystemExit(f"{name} has more than {cap} leased messages")

with open_database(url, auto_migrate=True) as database:
    backends = [SqlBackend(database, f"box{place}") for place in range(3)]
    source = ManyMailboxes(backends, max_running=cap)
    owner = source.register_owner(Incarnation.current())
    seats, settlements = [], []
    print("ready", flush=True)
    sys.stdin.readline()
    while settlements or any(stats.ready + stats.leased for stats in (b.stats() for b in backends)):
        if (folder / "exceeded").exists():
            break
        for seat in seats:
            seat.unlink()
        settled = source.exchange(settlements, owner=owner, limit=0, lease_seconds=300.0).settled
        assert all(settled)
        time.sleep(-time.time() % 0.02)  # all processes claim at the same moment
        result = source.exchange([], owner=owner, limit=3, lease_seconds=300.0)
        seats = [take_seat(row.item.mailbox) for row in result.claimed]
        settlements = [Settlement(row.claim, RowOutcome.DONE) for row in result.claimed]
        for row in result.claimed:
            print(row.item.id)
        time.sleep(0.01)
"""


def test_processes_that_claim_at_once_never_exceed_the_cap(
    database: Database, url: str, tmp_path: Path
) -> None:
    """Each leased message takes one of as many seats as the cap allows, and frees it before its
    settlement. A message without a seat ends the process with an error. The room that a settlement
    makes is there for all processes at once.
    """
    make_backends(database, [60, 60, 60])
    seats = tmp_path / "seats"
    seats.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMANT, url, str(seats), "1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=TIMEOUT) for process in processes]
    assert [""] * 4 == [error for _, error in ended]
    ids = [line for output, _ in ended for line in output.splitlines()]
    assert (180, 180) == (len(ids), len({*ids}))


def test_a_claim_waits_for_one_that_has_counted_and_not_committed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one counts what the first has claimed, also where databases have many writers."""
    first, second = make_backends(database, [5]), [SqlBackend(database, "box0")]
    go_on, claims = threading.Event(), first[0].exchanges.claim
    has_counted = threading.Event()

    def claim_late(*given: Any, **how: Any) -> Any:
        has_counted.set()
        assert go_on.wait(TIMEOUT)
        return claims(*given, **how)

    monkeypatch.setattr(first[0].exchanges, "claim", claim_late)
    claimed: dict[str, int] = {}

    def claim(name: str, backends: Sequence[SqlBackend]) -> None:
        source = ManyMailboxes(backends, max_running=2)
        owner = source.register_owner(Incarnation.current())
        may_start[name].set()
        if name == "second":
            assert has_counted.wait(TIMEOUT)
        result = source.exchange([], owner=owner, limit=9, lease_seconds=300.0)
        claimed[name] = len(result.claimed)

    may_start = {"first": threading.Event(), "second": threading.Event()}
    threads = [
        threading.Thread(target=claim, args=given)
        for given in (("second", second), ("first", first))
    ]
    threads[0].start()
    assert may_start["second"].wait(TIMEOUT)
    threads[1].start()
    assert has_counted.wait(TIMEOUT)
    if database.dialect == "postgresql":
        assert eventually(lambda: "second" in claimed or count_lock_waits(database) > 0)
    go_on.set()
    for thread in threads:
        thread.join(TIMEOUT)
    assert {"first": 2, "second": 0} == claimed


def count_lock_waits(database: Database) -> int:
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    return int(database.read(lambda tx: tx.rows(query))[0][0])


# --- an engine ---


class Work:
    """A runner that counts what runs, in all and for each mailbox, and may be held up."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, claimed: ClaimedRow, context: RowContext) -> Settlement:
        name = claimed.item.mailbox
        with self._lock:
            self.begun.append(name)
            self.running[name] += 1
            self.most[name] = max(self.most[name], self.running[name])
        assert self.go_on.wait(TIMEOUT)
        with self._lock:
            self.running[name] -= 1
        return Settlement(claimed.claim, RowOutcome.DONE)


@pytest.mark.parametrize("cap", [1, 3])
def test_an_engine_runs_all_mailboxes_beside_one_that_floods(database: Database, cap: int) -> None:
    """The slots begin with each mailbox once, and the few messages begin long before the last of
    the many. No mailbox has more than its cap.
    """
    backends = make_backends(database, [300, 2, 2, 2])
    work, policy = Work(), EnginePolicy(slots=4, max_prefetch=0)
    source = ManyMailboxes(backends, max_running=cap)
    with Engine(source, work, policy=policy, name="runs"):
        assert eventually(lambda: len(work.begun) == 4)
        assert {"box0", "box1", "box2", "box3"} == {*work.begun}
        work.go_on.set()
        flood = backends[0]
        assert eventually(lambda: not (flood.stats().ready or flood.stats().leased), TIMEOUT)
    last_of_few = max(place for place, name in enumerate(work.begun) if name != "box0")
    assert 150 > last_of_few
    assert 306 == len(work.begun)
    assert cap >= max(work.most.values()), work.most
