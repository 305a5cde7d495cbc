"""Claims where several write at the same time: nobody waits for anybody, nobody takes what is
another's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest

from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import MailboxFullError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.claims import Claim, RowSelection
from longwatch.store.database import StoreResetError
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.postgres.statement import bind
from longwatch.store.sweep import ReclaimedRow
from polling import eventually
from postgres_server import PostgresServer, shared_server

LONG = 1000.0


@pytest.fixture
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def database(server: PostgresServer) -> Iterator[PostgresDatabase]:
    with server.database() as url, PostgresDatabase(url) as opened:
        yield opened


@pytest.fixture
def backend(database: PostgresDatabase) -> SqlBackend:
    return SqlBackend(database, "work")


def put(backend: SqlBackend, count: int, **facts: Any) -> None:
    backend.put([NewMessage(id=new_id(), body=b"1", **facts) for _ in range(count)])


def enter(backend: SqlBackend) -> int:
    return backend.register_owner(Incarnation.current())


def take(backend: SqlBackend, owner: int, want: int = 1, *, duration: float = LONG) -> list[Claim]:
    return [
        leased.claim
        for leased in backend.exchange((), owner=owner, limit=want, lease_seconds=duration).claimed
    ]


def column(database: PostgresDatabase, sql: str) -> list[Any]:
    return [value for (value,) in database.read(lambda tx: tx.rows(sql))]


class OpenTransaction:
    """Somebody else's transaction, open until told otherwise."""

    def __init__(self, database: PostgresDatabase, *statements: str) -> None:
        self.connection = psycopg.connect(database.url)
        for statement in statements:
            self.connection.execute(statement)

    def __enter__(self) -> psycopg.Connection[Any]:
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.rollback()
        self.connection.close()


def test_threads_that_claim_at_once_never_get_the_same_row(backend: SqlBackend) -> None:
    put(backend, 400)
    taken: list[Claim] = []

    def work() -> None:
        owner = enter(backend)
        while claims := take(backend, owner, 7):
            taken.extend(claims)

    crew = [threading.Thread(target=work) for _ in range(6)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert (400, 400) == (len(taken), len({claim.seq for claim in taken}))


def test_a_claim_passes_over_what_another_has_locked(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 3)
    with OpenTransaction(database, "SELECT 1 FROM longwatch_messages WHERE seq = 1 FOR UPDATE"):
        assert [2, 3] == [claim.seq for claim in take(backend, enter(backend), 3)]


def test_a_delayed_row_that_another_is_freeing_holds_nobody_up(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 1, delay=10.0)
    put(backend, 1)
    database.jump.wall = 11.0
    with OpenTransaction(database, "UPDATE longwatch_messages SET lease_state = 0 WHERE seq = 1"):
        assert [2] == [claim.seq for claim in take(backend, enter(backend), 3)]
    assert [1] == [claim.seq for claim in take(backend, enter(backend), 3)]


def test_of_two_sweepers_at_once_one_gives_the_rows_back_and_the_other_does_not_wait(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 5)
    take(backend, enter(backend), 5, duration=1.0)
    database.jump.lease = 2.0
    meanwhile: list[int] = []

    plan = backend._sweep.look(database)

    def first(tx: Any) -> list[ReclaimedRow]:
        rows = backend._sweep.reclaim(tx, plan).rows
        other = threading.Thread(
            target=lambda: meanwhile.append(SqlBackend(database, "work").sweep())
        )
        other.start()
        other.join()
        return rows

    assert 5 == len(database.write(first))
    assert [0] == meanwhile
    assert [1] * 5 == column(database, "SELECT crashes FROM longwatch_messages")


def test_a_lease_that_is_being_swept_cannot_be_renewed_any_more(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 1)
    owner = enter(backend)
    [claim] = take(backend, owner, duration=1.0)
    database.jump.lease = 2.0
    outcomes: list[Any] = []

    def renew() -> None:
        outcomes.append(
            database.write(lambda tx: backend._claims.renew(tx, owner=owner, lease_seconds=LONG))
        )

    plan = backend._sweep.look(database)

    def sweep(tx: Any) -> None:
        parameters = {"owners": [owner], "limit": 10}
        [row] = tx.rows(backend._claims.sql["lapsed_of"], parameters)
        assert claim.seq == row[0]
        other = threading.Thread(target=renew)
        other.start()
        other.join()
        backend._sweep.reclaim(tx, plan)

    database.write(sweep)
    assert ([0], 0) == (outcomes, backend.renew(owner=owner, lease_seconds=LONG))


def test_a_lease_that_was_renewed_just_before_is_not_swept(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 1)
    owner = enter(backend)
    take(backend, owner, duration=1.0)
    database.jump.lease = 2.0
    plan = backend._sweep.look(database)
    assert 1 == len(plan.lapsed)
    backend.renew(owner=owner, lease_seconds=LONG)
    assert [] == database.write(lambda tx: backend._sweep.reclaim(tx, plan)).rows


def test_what_is_given_up_is_not_also_given_back(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 1)
    [claim] = take(backend, enter(backend), duration=1.0)
    database.jump.lease = 2.0

    def give_up(tx: Any) -> list[bool]:
        backend._dead_letters._insert(tx, claim, "permanent")
        other = threading.Thread(target=lambda: SqlBackend(database, "work").sweep())
        other.start()
        other.join()
        return backend._claims.settle(tx, [claim])

    assert [True] == database.write(give_up)
    assert (0, 1) == (backend.stats().ready, backend.stats().dead)


def test_the_server_s_clock_alone_ends_a_lease_whatever_machine_its_owner_was_on(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 1)
    take(backend, enter(backend))
    database.write(
        lambda tx: tx.execute(
            "UPDATE longwatch_owners SET boot = 'another', incarnation = 'some.thing'"
        )
    )
    assert 0 == backend.sweep()
    database.jump.lease = LONG + 1
    assert 1 == backend.sweep()


def test_leases_of_an_owner_that_was_forgotten_end_too_and_blame_nobody(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 1)
    take(backend, enter(backend))
    database.write(lambda tx: tx.execute("DELETE FROM longwatch_owners"))
    database.jump.lease = LONG + 1
    assert 1 == backend.sweep()
    assert [(0, 1)] == database.read(
        lambda tx: tx.rows("SELECT crashes, releases FROM longwatch_messages")
    )


def test_an_owner_whose_rows_another_sweeper_has_not_given_back_yet_is_not_forgotten(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 1)
    owner = enter(backend)
    take(backend, owner)
    dead = Incarnation.current()
    dead = replace(dead, start=dead.start + 1)
    database.write(
        lambda tx: tx.execute(
            "UPDATE longwatch_owners SET incarnation = :dead", {"dead": str(dead)}
        )
    )
    with OpenTransaction(database, "SELECT 1 FROM longwatch_messages FOR UPDATE"):
        assert 0 == backend.sweep()
    assert [owner] == column(database, "SELECT owner FROM longwatch_owners")
    assert [1, 0] == [backend.sweep(), backend.sweep()]
    assert [] == column(database, "SELECT owner FROM longwatch_owners")


def test_an_owner_on_another_machine_is_not_robbed_before_its_lease_ends(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    """Another boot id is another machine here, and no earlier boot of this one."""
    put(backend, 1)
    owner = backend.register_owner(replace(Incarnation.current(), boot="elsewhere"))
    take(backend, owner)
    assert (0, [owner]) == (
        backend.sweep(),
        column(database, "SELECT owner FROM longwatch_messages"),
    )
    database.jump.lease = LONG + 1
    assert 1 == backend.sweep()


def test_many_senders_at_once_fill_a_mailbox_no_further_than_it_may_be(
    database: PostgresDatabase,
) -> None:
    narrow = SqlBackend(database, "narrow", limits=MailboxLimits(max_size=10))
    stored: list[str] = []
    refused: list[int] = []

    def send() -> None:
        for _ in range(10):
            try:
                stored.extend(narrow.put([NewMessage(id=new_id(), body=b"1")]))
            except MailboxFullError:
                refused.append(1)

    crew = [threading.Thread(target=send) for _ in range(6)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert (10, 50, 10) == (len(stored), len(refused), narrow.stats().ready)


def test_a_key_whose_message_goes_while_another_is_sent_is_free(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    """One is inserted and settled again and again, while others send with the same key."""
    stop = threading.Event()

    def settle() -> None:
        owner = enter(backend)
        while not stop.is_set():
            backend.settle(
                [Settlement(claim, RowOutcome.DONE) for claim in take(backend, owner, 10)]
            )

    settling = threading.Thread(target=settle)
    settling.start()
    try:
        ids: list[str] = []

        def send() -> None:
            for _ in range(50):
                ids.extend(backend.put([letter("k")]))

        crew = [threading.Thread(target=send) for _ in range(4)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
    finally:
        stop.set()
        settling.join()
    assert 200 == len(ids)


def letter(key: str) -> NewMessage:
    return NewMessage(id=new_id(), body=b"1", dedupe_key=key)


def lose_the_mailboxes(database: PostgresDatabase) -> None:
    """As an older state that is restored under the feet of those who are connected."""
    database.write(lambda tx: tx.execute("DELETE FROM longwatch_messages"))
    database.write(lambda tx: tx.execute("DELETE FROM longwatch_mailboxes"))


def test_messages_for_a_mailbox_that_an_older_state_does_not_have_reach_a_new_one_and_no_other(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 1)
    lose_the_mailboxes(database)
    another = SqlBackend(database, "another")
    put(another, 1)
    put(backend, 2)
    assert (2, 1) == (backend.stats().ready, another.stats().ready)
    lose_the_mailboxes(database)
    assert 0 == backend.stats().ready


def test_messages_sent_with_tx_to_a_mailbox_that_is_gone_are_refused_once_with_the_cure(
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    for send in (database.transact, partial(in_own_transaction, database.url)):
        put(backend, 1)
        lose_the_mailboxes(database)
        with pytest.raises(StoreResetError, match=r"lost this mailbox.*send again"):
            send(lambda tx: backend.put([NewMessage(id=new_id(), body=b"1")], tx=tx))
        send(lambda tx: backend.put([NewMessage(id=new_id(), body=b"1")], tx=tx))
        assert 1 == backend.stats().ready


def in_own_transaction(url: str, work: Callable[[Any], object]) -> None:
    with psycopg.connect(url) as connection:
        work(connection)


def test_of_two_claims_that_differ_in_their_owner_only_the_true_one_is_told_to_be_settled_or_given_back(  # noqa: E501 - one name
    database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 2)
    owner = enter(backend)
    for claim, outcome in zip(
        take(backend, owner, 2), (RowOutcome.DONE, RowOutcome.RELEASED), strict=True
    ):
        other = claim._replace(owner=owner - 1)
        assert [False, True] == backend.settle(
            [Settlement(each, outcome) for each in (other, claim)]
        )


def test_rows_are_given_back_and_settled_by_one_statement_each(
    database: PostgresDatabase, backend: SqlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(backend, 100)
    owner = enter(backend)
    claims = take(backend, owner, 100)
    stale = Claim(claims[0].seq, owner, 99)
    ran: list[str] = []

    def counted(sql: str, *arguments: Any) -> Any:
        ran.append(sql)
        return bind(sql, *arguments)

    monkeypatch.setattr("longwatch.store.postgres.transaction.bind", counted)
    back = [Settlement(claim, RowOutcome.RELEASED) for claim in claims[:50]]
    done = [Settlement(claim, RowOutcome.DONE) for claim in [*claims[50:], claims[50], stale]]
    assert [True] * 50 + [True] * 50 + [False, False] == backend.settle([*back, *done])
    assert 2 == len(ran)


def test_renewals_touch_no_index(
    server: PostgresServer, database: PostgresDatabase, backend: SqlBackend
) -> None:
    put(backend, 2000)
    owner = enter(backend)
    while take(backend, owner, 500):
        pass
    updates = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = "
        "'longwatch_messages'"
    )

    def counted(expected: int) -> tuple[int, int]:
        found: list[tuple[int, int]] = []

        def look() -> bool:
            database.write(lambda tx: tx.rows("SELECT pg_stat_force_next_flush()"))
            found[:] = [database.read(lambda tx: tx.rows(updates))[0]]
            return found[0][0] >= expected

        assert eventually(look)
        return found[0]

    claimed, hot_before = counted(2000)
    for _ in range(5):
        assert 2000 == backend.renew(owner=owner, lease_seconds=LONG)
    renewed, hot = counted(claimed + 10_000)
    assert (hot - hot_before) / (renewed - claimed) >= 0.9


CLAIM: dict[str, object] = {
    "queue": 1,
    "owner": 1,
    "lease_seconds": 1.0,
    "limit": 100,
    "max_crashes": 3,
    "max_lost": 5,
    "low": 0,
    "due_low": 0.0,
    "margin": 60.0,
}
PLANS: dict[str, tuple[str, dict[str, object]]] = {
    "claim": ("messages_free", CLAIM),
    "suspects": ("messages_blamed", CLAIM),
    "settle": ("messages_pkey", {"seqs": [1, 2], "owners": [1, 1], "terms": [1, 1]}),
    "release": (
        "messages_pkey",
        {
            "seqs": [1, 2],
            "owners": [1, 1],
            "terms": [1, 1],
            "delay": 0.0,
            "failures": 0,
            "crashes": 0,
            "lost": 0,
            "releases": 1,
            "error": None,
            "traceback": None,
        },
    ),
    "renew": ("messages_leased", {"owner": 1, "lease_seconds": 1.0, "skip": []}),
    "lowest_live": (
        "messages_pkey",
        {"queue": 1, "low": 1, "highest": 9000, "due_low": 0.0, "margin": 60.0},
    ),
    "promote_due": ("messages_delayed", {"queue": 1, "due_low": 0.0, "margin": 60.0}),
    "lapsed_owners": ("messages_leased", {}),
    "lapsed_of": ("messages_leased", {"owners": [1], "limit": 100}),
    "count_renewing": ("messages_leased", {}),
    "of_owner": ("messages_leased", {"owner": 1, "limit": 100}),
}


@pytest.mark.parametrize("query", PLANS)
@pytest.mark.parametrize("rows", [0, 5000])
def test_a_plan_made_for_an_empty_table_or_a_full_one_goes_by_the_index_that_is_there_for_it(
    database: PostgresDatabase, backend: SqlBackend, query: str, rows: int
) -> None:
    index, parameters = PLANS[query]
    if rows:
        put(backend, rows)
    plan = explain(database, backend._claims.sql[query], parameters)
    assert index in plan
    assert "Seq Scan on longwatch_messages" not in plan
    assert "Sort" not in plan or query == "lapsed_owners"
    assert ("messages_leased" in plan) == (index == "messages_leased")


@pytest.mark.parametrize(
    ("selection", "index"),
    [
        (RowSelection.ANY, "messages_free"),
        (RowSelection.ORDINARY, "messages_free"),
        (RowSelection.SUSPECTS, "messages_blamed"),
    ],
)
@pytest.mark.parametrize("is_analyzed", [False, True])
def test_a_claim_of_a_selection_goes_by_its_index_beside_many_ready_rows(
    database: PostgresDatabase,
    backend: SqlBackend,
    selection: RowSelection,
    index: str,
    is_analyzed: bool,  # noqa: FBT001
) -> None:
    """100,000 ready rows, three of which are suspects. Where the statistics say that almost every
    row is ready, the primary key finds the oldest as fast.
    """
    parameters = {**CLAIM, "queue": backend._queue()}
    database.write(lambda tx: tx.execute(MANY_READY, parameters))
    database.write(
        lambda tx: tx.execute(
            "UPDATE longwatch_messages SET crashes = 2 WHERE seq IN (7, 8, 90000)"
        )
    )
    if is_analyzed:
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("ANALYZE longwatch_messages")
    for query in ("claim", "has_selected"):
        plan = explain(database, backend._claims._sql_by_selection[selection][query], parameters)
        assert index in plan or (is_analyzed and selection is not RowSelection.SUSPECTS)
        assert "Sort" not in plan
        assert query == "has_selected" or "Seq Scan on longwatch_messages" not in plan
    expected = {RowSelection.ORDINARY: 100, RowSelection.SUSPECTS: 1, RowSelection.ANY: 6}
    exchanged = backend.exchange(
        (), owner=enter(backend), limit=100, lease_seconds=LONG, selection=selection
    )
    assert expected[selection] == len(exchanged.claimed)


MANY_READY = (
    "INSERT INTO longwatch_messages (queue, id, enqueued_at, body) "
    "SELECT :queue, 'm' || number, 0, '1' FROM generate_series(1, 100000) AS number"
)


def explain(database: PostgresDatabase, sql: str, parameters: Mapping[str, object]) -> str:
    lines = database.write(lambda tx: tx.rows("EXPLAIN " + sql, parameters))
    return "\n".join(line for (line,) in lines)
