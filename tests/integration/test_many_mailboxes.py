"""Several mailboxes of one store as one claim source."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flow_stores import KINDS, opened_store
from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import ClaimedRow, GivenUp, RowOutcome, Settlement
from longwatch.errors import InvalidParameterError, UsageError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.many_mailboxes import ManyMailboxes
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.claims import RowSelection
from longwatch.store.database import Database, Transaction
from longwatch.testing import FakeClock
from polling import eventually

LONG = 300.0


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with opened_store(request.param, tmp_path) as opened:
        yield opened


def make_backends(database: Database, count: int, **limits: Any) -> list[SqlBackend]:
    return [
        SqlBackend(database, f"box/{place}", limits=MailboxLimits(**limits))
        for place in range(count)
    ]


def put(backend: SqlBackend, count: int = 1, **facts: Any) -> list[str]:
    return backend.put([NewMessage(id=new_id(), body=b"{}", **facts) for _ in range(count)])


class Claimant:
    """Claims and settles by hand, as one owner."""

    def __init__(self, source: ManyMailboxes) -> None:
        self.source = source
        self.owner = source.register_owner(Incarnation.current())
        self.given_up: list[GivenUp] = []

    def exchange(
        self, *settlements: Settlement, limit: int = 0, selection: RowSelection = RowSelection.ANY
    ) -> list[ClaimedRow]:
        result = self.source.exchange(
            settlements, owner=self.owner, limit=limit, lease_seconds=LONG, selection=selection
        )
        assert [True] * len(settlements) == result.settled
        self.given_up += result.given_up
        return result.claimed


def end(row: ClaimedRow, outcome: RowOutcome = RowOutcome.DONE, **how: Any) -> Settlement:
    return Settlement(row.claim, outcome, **how)


def names(rows: Sequence[ClaimedRow]) -> list[str]:
    return [row.item.mailbox for row in rows]


# --- turns ---


def test_few_messages_are_claimed_within_their_turn_beside_a_thousand(database: Database) -> None:
    """A slot that becomes free goes to each mailbox once before the first has another turn."""
    backends = make_backends(database, 8)
    put(backends[3], 1000)
    for backend in backends:
        put(backend, 2)
    claimant = Claimant(ManyMailboxes(backends, max_running=1000))
    turns = [claimant.exchange(limit=1)[0] for _ in range(20)]
    everyone = {backend.name for backend in backends}
    assert everyone == {*names(turns[:8])} == {*names(turns[8:16])}
    assert {"box/3"} == {*names(turns[16:])}


def test_mailboxes_share_what_one_exchange_claims(database: Database) -> None:
    backends = make_backends(database, 4)
    put(backends[0], 100)
    put(backends[2], 2)
    put(backends[3], 1)
    claimant = Claimant(ManyMailboxes(backends, max_running=1000))
    claimed = claimant.exchange(limit=8)
    assert {"box/0": 5, "box/2": 2, "box/3": 1} == Counter(names(claimed))


def test_messages_of_a_mailbox_come_oldest_first_with_its_name(database: Database) -> None:
    [backend, _] = backends = make_backends(database, 2)
    ids = put(backend, 3)
    claimant = Claimant(ManyMailboxes(backends, max_running=9))
    claimed = claimant.exchange(limit=2) + claimant.exchange(limit=2)
    assert ids == [row.item.id for row in claimed] == [row.message_id for row in claimed]
    assert ("box/0", 1, b"{}") == (
        claimed[0].item.mailbox,
        claimed[0].attempt,
        claimed[0].item.body,
    )


# --- the cap ---


def test_a_mailbox_at_its_cap_gives_its_next_message_with_the_settlement(
    database: Database,
) -> None:
    backends = make_backends(database, 2)
    for backend in backends:
        put(backend, 5)
    claimant = Claimant(ManyMailboxes(backends, max_running=2))
    claimed = claimant.exchange(limit=10)
    assert {"box/0": 2, "box/1": 2} == Counter(names(claimed))
    assert [] == claimant.exchange(limit=10)
    first = next(row for row in claimed if row.item.mailbox == "box/1")
    assert ["box/1"] == names(claimant.exchange(end(first), limit=10))


def spy_on_transactions(
    database: Database, method: str, monkeypatch: pytest.MonkeyPatch, *, reads: bool = False
) -> list[Any]:
    """The first argument of each call of this method of transactions."""
    transact = database.read if reads else database.write
    kind = transact(type)
    original, calls = getattr(kind, method), []

    def spy(self: Any, *given: Any) -> Any:
        calls.append(given[0])
        return original(self, *given)

    monkeypatch.setattr(kind, method, spy)
    return calls


def test_room_that_a_settlement_makes_is_notified_to_other_processes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = make_backends(database, 3)
    put(backends[1], 2)
    claimant = Claimant(ManyMailboxes(backends, max_running=1))
    [row] = claimant.exchange(limit=5)
    notified = spy_on_transactions(database, "notify", monkeypatch)
    claimant.exchange(end(row))
    assert ["box/1"] == notified


def test_a_notification_of_any_mailbox_wakes_the_listener(database: Database) -> None:
    backends = make_backends(database, 3)
    wakeup = Wakeup()
    leave = ManyMailboxes(backends, max_running=1).listen(wakeup)
    for backend in backends:
        put(backend)
        assert eventually(wakeup.is_set)
        wakeup.clear()
    leave()


def test_threads_that_claim_at_once_never_exceed_the_cap(database: Database) -> None:
    """Eight claimants, three mailboxes, a cap of one: at no moment are more leased."""
    backends = make_backends(database, 3)
    for backend in backends:
        put(backend, 60)
    done: list[ClaimedRow] = []
    most: Counter[str] = Counter()
    running: Counter[str] = Counter()
    lock = threading.Lock()

    def work() -> None:
        claimant = Claimant(ManyMailboxes(backends, max_running=1))
        held: list[ClaimedRow] = []
        while len(done) < 180:
            with lock:
                running.subtract(names(held))
                done.extend(held)
            claimant.exchange(*map(end, held))
            held = claimant.exchange(limit=3)
            with lock:
                running.update(names(held))
                for name in running:
                    most[name] = max(most[name], running[name])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert 180 == len({row.item.id for row in done})
    assert 1 == max(most.values()), most


# --- admission ---


def test_nothing_is_claimed_while_nothing_is_admitted_but_messages_are_settled(
    database: Database,
) -> None:
    backends = make_backends(database, 2)
    put(backends[0], 5)
    admitted = [1]
    claimant = Claimant(
        ManyMailboxes(backends, max_running=5, admit=lambda limit: min(admitted[0], limit))
    )
    [row] = claimant.exchange(limit=4)
    admitted[0] = 0
    assert [] == claimant.exchange(limit=4)
    assert [] == claimant.exchange(end(row), limit=4)
    admitted[0] = 9
    assert 4 == len(claimant.exchange(limit=4))


# --- suspects, pauses, delays ---


def set_crashes(database: Database, message_id: str, crashes: int = 2) -> None:
    database.write(
        lambda tx: tx.execute(
            "UPDATE longwatch_messages SET crashes = :crashes WHERE id = :id",
            {"crashes": crashes, "id": message_id},
        )
    )


def test_a_selection_takes_its_own_messages(database: Database) -> None:
    backends = make_backends(database, 3)
    [suspect], [ordinary], [another] = put(backends[0]), put(backends[1]), put(backends[2])
    set_crashes(database, suspect)
    set_crashes(database, another)
    claimant = Claimant(ManyMailboxes(backends, max_running=1))
    assert 2 == claimant.source.count_suspects(limit=9)
    assert 1 == claimant.source.count_suspects(limit=1)
    [row] = claimant.exchange(limit=9, selection=RowSelection.ORDINARY)
    assert (ordinary, False) == (row.item.id, row.is_exclusive)
    [first] = claimant.exchange(limit=9, selection=RowSelection.SUSPECTS)
    assert (suspect, True) == (first.item.id, first.is_exclusive)
    assert 1 == claimant.source.count_suspects(limit=9)


def test_the_budget_of_each_mailbox_decides_on_its_suspects(database: Database) -> None:
    strict = SqlBackend(database, "strict", limits=MailboxLimits(max_crashes=2))
    backends = [strict, *make_backends(database, 1)]
    for backend in backends:
        set_crashes(database, put(backend)[0], 1)
    claimant = Claimant(ManyMailboxes(backends, max_running=9))
    assert 1 == claimant.source.count_suspects(limit=9)
    assert ["box/0"] == names(claimant.exchange(limit=9, selection=RowSelection.ORDINARY))
    assert ["strict"] == names(claimant.exchange(limit=9))


def test_nothing_is_claimed_after_a_suspect(database: Database) -> None:
    backends = make_backends(database, 2)
    set_crashes(database, put(backends[0])[0])
    put(backends[1])
    claimant = Claimant(ManyMailboxes(backends, max_running=9))
    assert ["box/0"] == names(claimant.exchange(limit=9))
    assert ["box/1"] == names(claimant.exchange(limit=9))


def test_a_paused_mailbox_is_left_out(database: Database) -> None:
    backends = make_backends(database, 2)
    for backend in backends:
        put(backend)
        put(backend, delay=0.001)
    backends[0].pause(paused=True)
    claimant = Claimant(ManyMailboxes(backends, max_running=9))
    database.jump.wall += 5
    assert ["box/1", "box/1"] == names(claimant.exchange(limit=9))
    backends[0].pause(paused=False)
    assert ["box/0", "box/0"] == names(claimant.exchange(limit=9))


def test_the_next_due_message_is_that_of_any_mailbox(database: Database) -> None:
    backends = make_backends(database, 3)
    source = ManyMailboxes(backends, max_running=1)
    assert source.next_due() is None
    put(backends[0], delay=600)
    put(backends[2], delay=60)
    assert 30 < (source.next_due() or 0) <= 60
    database.jump.wall += 61
    assert 0 == source.next_due()
    assert ["box/2"] == names(Claimant(source).exchange(limit=5))


# --- hooks ---


class Notes:
    """Hooks that write to a table of their own, and may fail."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.fails = False
        database.write(lambda tx: tx.execute("CREATE TABLE notes (text TEXT)"))

    def write(self, tx: Transaction, *texts: str) -> None:
        for text in texts:
            tx.execute("INSERT INTO notes (text) VALUES (:text)", {"text": text})
        if self.fails:
            raise RuntimeError("the hook failed")

    def on_settle(self, tx: Transaction, settled: Sequence[tuple[Settlement, bool]]) -> None:
        self.write(tx, *(f"{each.outcome} {is_settled}" for each, is_settled in settled))

    def on_given_up(self, tx: Transaction, given_up: Sequence[GivenUp]) -> None:
        self.write(tx, *(f"{each.mailbox} {each.reason}" for each in given_up))

    def read(self) -> list[str]:
        return [text for (text,) in self.database.read(lambda tx: tx.rows("SELECT * FROM notes"))]


def make_noted(database: Database, backends: Sequence[SqlBackend]) -> tuple[Claimant, Notes]:
    notes = Notes(database)
    source = ManyMailboxes(
        backends, max_running=9, on_settle=notes.on_settle, on_given_up=notes.on_given_up
    )
    return Claimant(source), notes


def test_hooks_write_in_the_transaction_that_settles(database: Database) -> None:
    """A hook that fails undoes the settlement and the claim, and they can be made again."""
    backends = make_backends(database, 2, max_failures=1)
    put(backends[0], 2)
    claimant, notes = make_noted(database, backends)
    first, second = claimant.exchange(limit=2)
    put(backends[1])
    settlements = end(first), end(second, RowOutcome.FAILED, error="x")
    notes.fails = True
    with pytest.raises(RuntimeError, match="the hook failed"):
        claimant.exchange(*settlements, limit=1)
    assert [] == notes.read()
    assert {first.claim, second.claim} == {*claimant.source.held(owner=claimant.owner)}
    assert (2, 0) == (backends[0].stats().leased, backends[0].stats().dead)
    notes.fails = False
    assert ["box/1"] == names(claimant.exchange(*settlements, limit=1))
    assert ["done True", "failed True", "box/0 failed"] == notes.read()
    assert [GivenUp(second.item.id, "box/0", "failed")] == claimant.given_up


def test_the_hook_learns_that_a_claim_no_longer_holds(database: Database) -> None:
    backends = make_backends(database, 1)
    put(backends[0])
    claimant, notes = make_noted(database, backends)
    [row] = claimant.exchange(limit=1)
    claimant.exchange(end(row))
    source = claimant.source
    again = source.exchange([end(row)], owner=claimant.owner, limit=0, lease_seconds=LONG)
    assert [False] == again.settled
    assert ["done True", "done False"] == notes.read()


def test_hooks_write_in_the_transaction_of_a_claim_that_gives_up(database: Database) -> None:
    backends = make_backends(database, 2)
    put(backends[1], expires_in=1.0, keep_expired=True)
    put(backends[1])
    claimant, notes = make_noted(database, backends)
    database.jump.wall += 5
    notes.fails = True
    with pytest.raises(RuntimeError, match="the hook failed"):
        claimant.exchange(limit=5)
    assert 0 == backends[1].stats().dead
    notes.fails = False
    assert ["box/1"] == names(claimant.exchange(limit=5))
    assert ["box/1 expired"] == notes.read()
    assert ["expired"] == [each.reason for each in claimant.given_up]


def test_hooks_write_in_the_transaction_of_a_sweep(database: Database) -> None:
    backends = make_backends(database, 3, max_crashes=1)
    put(backends[1])
    put(backends[2], expires_in=1.0, keep_expired=True)
    claimant, notes = make_noted(database, backends)
    claimant.exchange(limit=1)
    database.jump.lease += LONG + 1
    database.jump.wall += 5
    notes.fails = True
    with pytest.raises(RuntimeError, match="the hook failed"):
        claimant.source.sweep()
    assert (1, 0) == (backends[1].stats().leased, backends[1].stats().dead)
    notes.fails = False
    reported: list[GivenUp] = []
    assert 2 == claimant.source.sweep(reported.append)
    assert ["box/1 poison", "box/2 expired"] == notes.read()
    assert ["poison", "expired"] == [each.reason for each in reported]


# --- sweeps ---


def test_a_sweep_frees_what_is_due_and_deletes_old_dead_letters_of_all(
    database: Database,
) -> None:
    backends = make_backends(database, 3, dead_retention=100.0)
    clock = FakeClock()
    claimant = Claimant(ManyMailboxes(backends, max_running=9, clock=clock))
    for backend in backends:
        put(backend)
    rows = claimant.exchange(limit=3)
    claimant.exchange(*(end(row, RowOutcome.DEAD, reason="permanent") for row in rows))
    for backend in backends:
        put(backend, delay=10.0)
    assert 0 == claimant.source.sweep()
    database.jump.wall += 101
    assert 3 == claimant.source.sweep()
    assert [1, 1, 1] == [backend.stats().ready for backend in backends]
    assert [1, 1, 1] == [backend.stats().dead for backend in backends], "looked at once a minute"
    clock.advance(61)
    claimant.source.sweep()
    assert [0, 0, 0] == [backend.stats().dead for backend in backends]


# --- what idleness costs ---


def test_an_idle_poll_of_64_mailboxes_is_one_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = make_backends(database, 64)
    claimant = Claimant(ManyMailboxes(backends, max_running=1))
    put(backends[5], 2)
    assert 1 == len(claimant.exchange(limit=5))
    claimant.source.sweep()
    monkeypatch.setattr(type(database), "write", no_write)
    reads = spy_on_transactions(database, "rows", monkeypatch, reads=True)
    assert [] == claimant.exchange(limit=5), "one waits behind the cap"
    assert 1 == len(reads)
    claimant.source.next_due()
    assert 2 == len(reads)
    reads.clear()
    claimant.source.sweep()
    several = len(reads)
    reads.clear()
    backends[0].sweep()
    assert len(reads) == several, "as many as for one mailbox"


def no_write(*_: Any, **__: Any) -> None:
    raise AssertionError("nothing is to be written")


# --- wrong use ---


def test_wrong_mailboxes_are_refused(database: Database, tmp_path: Path) -> None:
    [backend] = make_backends(database, 1)
    with pytest.raises(UsageError, match="at least one mailbox"):
        ManyMailboxes([], max_running=1)
    with pytest.raises(UsageError, match="got box/0 twice"):
        ManyMailboxes([backend, backend], max_running=1)
    with (
        opened_store("sqlite", tmp_path) as another,
        pytest.raises(UsageError, match="several databases"),
    ):
        ManyMailboxes([backend, SqlBackend(another, "other")], max_running=1)
    with pytest.raises(InvalidParameterError, match="max_running"):
        ManyMailboxes([backend], max_running=0)
