"""What the Redis backend promises beyond the contract of every mailbox: how it keeps it in a
store without transactions.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.errors import (
    SchemaTooNewError,
    SchemaTooOldError,
    StoreFullError,
    UnsupportedError,
)
from longwatch.host.beatpage import BeatPage
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.redis.backend import RedisBackend
from longwatch.mailbox.redis.codec import NUMBER_BITS
from longwatch.mailbox.redis.scripts import SCRIPT_NAMES, load_script
from longwatch.mailbox.redis.store import (
    MAILBOXES_KEY,
    MAX_MAILBOXES,
    SCHEMA_FIELD,
    SCHEMA_VERSION,
    RedisStore,
    preferred_number,
)
from longwatch.store.claims import Claim
from redis_rig import (
    FOREVER,
    claim,
    dead_process,
    elsewhere,
    enter,
    fresh_store,
    new_messages,
    settled,
)
from redis_server import RedisServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_server() as started:
        yield started


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    with fresh_store(server) as opened:
        yield opened


@pytest.fixture
def backend(store: RedisStore) -> RedisBackend:
    return store.backend("work")


def busy_mailbox(backend: RedisBackend) -> None:
    """Something in every one of its keys."""
    owner = enter(backend)
    backend.put(
        new_messages(3)
        + new_messages(1, delay=60)
        + new_messages(1, expires_in=60)
        + new_messages(1, dedupe_key="k")
    )
    first, second, _third = claim(backend, owner, 3)
    settled(backend, first.claim, outcome=RowOutcome.DEAD, reason="failed", error="no")
    settled(backend, second.claim, outcome=RowOutcome.FAILED, error="no")
    backend.pause(paused=True)


# --- keys ---


def test_nothing_is_forgotten_by_redis_but_answers_to_puts(
    server: RedisServer, backend: RedisBackend
) -> None:
    busy_mailbox(backend)
    with server.client() as client:
        lasting = {key.decode() for key in client.keys("*") if client.ttl(key) == -1}
        fleeting = {
            key.decode(): client.ttl(key) for key in client.keys("*") if client.ttl(key) != -1
        }
    [owner] = backend.store.owners
    parts = [
        f"leases:{owner}",
        "dead",
        "dead_order",
        "dedupe",
        "delayed",
        "expiring",
        "history",
        "lease_ends",
        "messages",
        "owners",
        "ready",
    ]
    assert {
        MAILBOXES_KEY,
        "longwatch:{work}",
        *(f"longwatch:{{work}}:{part}" for part in parts),
    } == lasting
    assert [True] == [
        key.startswith("longwatch:{work}:put:") and 0 < ttl <= 600 for key, ttl in fleeting.items()
    ]


def test_an_answer_that_arrived_is_forgotten_with_the_next_put(
    server: RedisServer, backend: RedisBackend
) -> None:
    for _ in range(50):
        backend.put(new_messages(1))
    with server.client() as client:
        assert 1 == len(client.keys("longwatch:{work}:put:*"))


def test_an_emptied_mailbox_leaves_nothing_but_its_counters_and_owners(
    server: RedisServer, backend: RedisBackend
) -> None:
    busy_mailbox(backend)
    backend.pause(paused=False)
    [owner] = backend.store.owners
    settled(backend, *backend.held(owner=owner))
    backend.purge()
    backend.drop([letter.id for letter in backend.dead_letters()])
    with server.client() as client:
        left = {key.decode() for key in client.keys("*") if b":put:" not in key}
    assert {MAILBOXES_KEY, "longwatch:{work}", "longwatch:{work}:owners"} == left


def test_a_mailbox_keeps_its_number_and_is_listed_by_name(
    server: RedisServer, store: RedisStore
) -> None:
    for name in ("b/2", "a:1", "c"):
        store.backend(name).put(new_messages(1))
    other = RedisStore(server.url)
    assert ["a:1", "b/2", "c"] == other.mailbox_names()
    assert store.mailbox_number("c") == other.mailbox_number("c")
    other.close()


def test_two_names_that_lead_to_one_number_get_two(server: RedisServer, store: RedisStore) -> None:
    with server.client() as client:
        taken = {SCHEMA_FIELD: SCHEMA_VERSION, str(preferred_number("work")): "somebody else"}
        client.hset(MAILBOXES_KEY, mapping=taken)
    assert (preferred_number("work") + 1) % MAX_MAILBOXES == store.mailbox_number("work")


def test_mailboxes_of_an_older_version_are_refused_with_the_cure(
    server: RedisServer, store: RedisStore
) -> None:
    with server.client() as client:
        client.hset(MAILBOXES_KEY, "7", "work")  # as before the layout had a version
        with pytest.raises(SchemaTooOldError, match="empty them with that version"):
            store.backend("new").put(new_messages(1))
        with pytest.raises(SchemaTooOldError, match="empty them with that version"):
            store.mailbox_names()
        assert {b"7": b"work"} == client.hgetall(MAILBOXES_KEY)


def use_layout(patch: pytest.MonkeyPatch, version: int, min_reader: int) -> None:
    """Have this process work like a release with this layout."""
    patch.setattr("longwatch.mailbox.redis.store.SCHEMA_VERSION", version)
    patch.setattr("longwatch.mailbox.redis.store.MIN_READER", min_reader)


def stored_layout(server: RedisServer) -> bytes | None:
    with server.client() as client:
        found: bytes | None = client.hget(MAILBOXES_KEY, SCHEMA_FIELD)
    return found


def test_a_layout_that_was_expanded_is_shared_by_old_and_new_processes(
    server: RedisServer, store: RedisStore
) -> None:
    old = store.backend("jobs")
    old.put(new_messages(1, b"old"))
    assert b"5" == stored_layout(server)
    with pytest.MonkeyPatch.context() as patch:
        use_layout(patch, 6, 5)
        new = RedisStore(server.url)
        new.backend("jobs").put(new_messages(1, b"new"))
    assert b"6 5" == stored_layout(server)
    again = RedisStore(server.url)
    again.backend("jobs").put(new_messages(1, b"again"))
    assert ["jobs"] == again.mailbox_names()
    assert b"6 5" == stored_layout(server)
    assert [b"old", b"new", b"again"] == [row.item.body for row in claim(old, enter(old), 3)]
    new.close()
    again.close()


def test_a_layout_that_was_contracted_is_refused_with_the_cure(
    server: RedisServer, store: RedisStore
) -> None:
    store.backend("jobs").put(new_messages(1))
    with pytest.MonkeyPatch.context() as patch:
        for version, least in ((6, 5), (7, 6)):
            use_layout(patch, version, least)
            newer = RedisStore(server.url)
            newer.backend("jobs").put(new_messages(1))
            newer.close()
    assert b"7 6" == stored_layout(server)
    older = RedisStore(server.url)
    with pytest.raises(SchemaTooNewError, match="upgrade Longwatch here"):
        older.backend("jobs").put(new_messages(1))
    with pytest.raises(SchemaTooNewError, match="upgrade Longwatch here"):
        older.mailbox_names()
    older.close()
    assert b"7 6" == stored_layout(server)


def test_a_layout_below_what_a_release_can_share_is_refused(
    server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.backend("jobs").put(new_messages(1))
    use_layout(monkeypatch, 7, 6)
    newer = RedisStore(server.url)
    with pytest.raises(SchemaTooOldError, match="empty them with that version"):
        newer.backend("jobs").put(new_messages(1))
    newer.close()
    assert b"5" == stored_layout(server)


def test_rows_of_two_mailboxes_never_share_a_number(store: RedisStore) -> None:
    one, two = store.backend("one"), store.backend("two")
    one.put(new_messages(1, b"one"))
    two.put(new_messages(1, b"two"))
    owner = enter(one)
    [first], [second] = claim(one, owner), claim(two, owner)
    assert first.claim.seq != second.claim.seq
    assert [True, True] == settled(one, second.claim, first.claim)
    assert (0, 0) == (one.stats().leased, two.stats().leased)


# --- fencing ---


def test_owners_that_differ_in_their_last_bit_are_two(backend: RedisBackend) -> None:
    backend.put(new_messages(2))
    owner = (1 << 62) - 1
    backend.store.owners[owner] = backend.store.owners[enter(backend)]
    [leased] = claim(backend, owner)
    seq, _, term = leased.claim
    assert [False] == settled(backend, Claim(seq, owner - 1, term))
    assert not backend.renew_one(Claim(seq, owner - 1, term), lease_seconds=FOREVER)
    assert ([], [leased.claim]) == (backend.held(owner=owner - 1), backend.held(owner=owner))
    assert [True] == settled(backend, leased.claim)


def test_a_repeated_settlement_in_another_order_is_refused(backend: RedisBackend) -> None:
    backend.put(new_messages(1))
    [leased] = claim(backend, enter(backend))
    back, done = (
        Settlement(leased.claim, RowOutcome.RELEASED),
        Settlement(leased.claim, RowOutcome.DONE),
    )
    assert [True, False] == backend.settle([back, done])
    assert 1 == backend.stats().ready


def test_a_claim_of_a_mailbox_that_this_store_never_saw_settles_nothing(
    backend: RedisBackend,
) -> None:
    backend.put(new_messages(1))
    owner = enter(backend)
    [leased] = claim(backend, owner)
    elsewhere = Claim(leased.claim.seq ^ 1 << NUMBER_BITS, owner, leased.claim.term)
    assert ([False], False) == (
        settled(backend, elsewhere),
        backend.renew_one(elsewhere, lease_seconds=1.0),
    )


def test_a_term_does_not_come_again_with_an_older_state(
    server: RedisServer, backend: RedisBackend
) -> None:
    owner = enter(backend)
    with server.client() as client:
        backend.put(new_messages(1, b"before"))
        older = {key: client.dump(key) for key in client.keys("*")}
        [lost] = claim(backend, owner)
        client.flushall()
        for key, value in older.items():
            client.restore(key, 0, value)
    [again] = claim(backend, owner)
    assert lost.claim.seq == again.claim.seq
    assert [False, True] == settled(backend, lost.claim, again.claim)


def test_a_number_that_comes_again_with_an_older_state_leads_no_settlement_astray(
    server: RedisServer, backend: RedisBackend
) -> None:
    owner = enter(backend)
    backend.put(new_messages(1, b"forgotten"))
    [lost] = claim(backend, owner)
    with server.client() as client:
        client.flushall()
    backend.put(new_messages(1, b"new"))
    [fresh] = claim(backend, owner)
    assert lost.claim.seq == fresh.claim.seq
    assert [False] == settled(backend, lost.claim)
    assert 1 == backend.stats().leased


# --- sweeping ---


def test_the_leases_of_another_host_wait_for_their_end(backend: RedisBackend) -> None:
    backend.put(new_messages(1))
    claim(backend, enter(backend, elsewhere()), duration=100.0)
    assert (0, 1) == (backend.sweep(), backend.stats().leased)
    backend.store.jump.lease += 101.0
    assert (1, 1) == (backend.sweep(), backend.stats().ready)


def test_a_dead_owner_of_this_host_is_found_and_then_forgotten_with_its_page(
    server: RedisServer, backend: RedisBackend, tmp_path: Path
) -> None:
    page = BeatPage(tmp_path / "page", slots=2)
    owner = enter(backend, dead_process(), str(page.path))
    backend.put(new_messages(2))
    started, _ahead = claim(backend, owner, 2)
    page.begin(0, started.claim.seq, 0.0)
    assert 2 == backend.sweep()
    assert [1, 0] == [delivery.crashes for delivery in backend.peek(limit=2)]
    assert page.path.exists()
    assert (0, False) == (backend.sweep(), page.path.exists())
    with server.client() as client:
        assert 0 == client.hlen("longwatch:{work}:owners")


def test_an_owner_out_of_sight_is_forgotten_after_long_and_enters_again_when_it_claims(
    server: RedisServer, backend: RedisBackend
) -> None:
    owner = enter(backend, elsewhere())
    backend.store.jump.wall += 3601.0
    with server.client() as client:
        backend.sweep()
        assert 0 == client.hlen("longwatch:{work}:owners")
        backend.put(new_messages(1))
        [leased] = claim(backend, owner)
        assert [str(owner).encode()] == client.hkeys("longwatch:{work}:owners")
    backend.sweep()
    assert [leased.claim] == backend.held(owner=owner)


def test_a_lease_that_is_renewed_between_look_and_sweep_stays(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.put(new_messages(1))
    owner = enter(backend)
    claim(backend, owner, duration=10.0)
    backend.store.jump.lease += 11.0
    run = backend.run_script

    def renewing(script: str, **asked: Any) -> Any:
        if script == "sweep":
            backend.renew(owner=owner, lease_seconds=100.0)
        return run(script, **asked)

    monkeypatch.setattr(backend, "run_script", renewing)
    assert (0, 1) == (backend.sweep(), backend.stats().leased)


def test_a_sweep_takes_a_page_at_a_time(backend: RedisBackend) -> None:
    backend.put(new_messages(1200))
    claim(backend, enter(backend), 1200, duration=1.0)
    backend.store.jump.lease += 2.0
    assert [500, 500, 200, 0] == [backend.sweep() for _ in range(4)]


# --- large numbers ---


def test_claims_pass_over_any_number_of_spent_rows(backend: RedisBackend) -> None:
    backend.put(new_messages(9000, expires_in=1.0, keep_expired=True))
    backend.put(new_messages(1, b"good"))
    backend.store.jump.wall += 2.0
    [leased] = claim(backend, enter(backend), 10)
    assert (b"good", 9000, 9000) == (
        leased.item.body,
        backend.stats().dead,
        backend.stats().expired,
    )


def test_more_rows_than_lua_can_pass_at_once_are_stored_leased_renewed_and_settled(
    backend: RedisBackend,
) -> None:
    owner = enter(backend)
    sent = backend.put(new_messages(9001, dedupe_key=None))
    leased = claim(backend, owner, 9001)
    while len(leased) < 9001:
        leased += claim(backend, owner, 9001)
    assert sent == [each.item.id for each in leased]
    assert 9001 == backend.renew(owner=owner, lease_seconds=FOREVER)
    assert {True} == set(settled(backend, *(each.claim for each in leased)))
    assert (0, 0) == (backend.stats().leased, backend.stats().ready)


def test_an_answer_is_bounded_in_bytes_but_gives_one_message(backend: RedisBackend) -> None:
    owner = enter(backend)
    backend.put(new_messages(20, b"x" * (1 << 20)))
    assert [15, 5, 0] == [len(claim(backend, owner, 20)) for _ in range(3)]
    backend.put(new_messages(1, b"x" * (17 << 20)))
    assert 1 == len(claim(backend, owner, 20))


# --- memory ---


@pytest.fixture
def full_backend(
    server: RedisServer, backend: RedisBackend
) -> Iterator[tuple[RedisBackend, int, list[ClaimedRow]]]:
    """A mailbox with something leased and something free, on a server that is out of memory."""
    owner = enter(backend)
    backend.put(new_messages(20))
    leased = claim(backend, owner, 10)
    with server.client() as client:
        client.config_set("maxmemory", "1kb")
        yield backend, owner, leased
        client.config_set("maxmemory", "0")


@pytest.mark.parametrize("options", [{}, {"dedupe_key": "k"}, {"delay": 5.0}, {"expires_in": 5.0}])
def test_a_server_that_is_out_of_memory_refuses_a_put_whole(
    full_backend: tuple[RedisBackend, int, list[ClaimedRow]], options: dict[str, Any]
) -> None:
    backend, _, _ = full_backend
    before = backend.stats()[:4]
    with pytest.raises(StoreFullError, match="out of memory; nothing was written"):
        backend.put(new_messages(5, **options))
    assert before == backend.stats()[:4]


def test_a_server_that_is_out_of_memory_can_be_emptied(
    full_backend: tuple[RedisBackend, int, list[ClaimedRow]],
) -> None:
    backend, owner, leased = full_backend
    done, back, failed, dead, *rest = leased
    assert [True] == settled(backend, done.claim)
    assert [True] == settled(backend, back.claim, outcome=RowOutcome.RELEASED, delay=1.0)
    assert [True] == settled(backend, failed.claim, outcome=RowOutcome.FAILED, error="no")
    assert [True] == settled(backend, dead.claim, outcome=RowOutcome.DEAD, reason="failed")
    assert (True, 6) == (
        backend.renew_one(rest[0].claim, lease_seconds=FOREVER),
        backend.renew(owner=owner, lease_seconds=FOREVER),
    )
    assert 11 == len(claim(backend, enter(backend), 20))
    backend.store.jump.lease += 2 * FOREVER
    assert 17 == backend.sweep()


# --- hints ---


class NotificationCounter:
    """How often a mailbox was announced while something was done."""

    def __init__(self, server: RedisServer) -> None:
        self._client = server.client()
        self._hearing = self._client.pubsub()
        self._hearing.subscribe("longwatch:{work}")
        self._hearing.get_message(timeout=5.0)

    def count(self) -> int:
        self._client.publish("longwatch:{work}", "the end")
        heard = [self._hearing.get_message(timeout=5.0)]
        while heard[-1] is not None and heard[-1]["data"] != b"the end":
            heard.append(self._hearing.get_message(timeout=5.0))
        return len(heard) - 1

    def close(self) -> None:
        self._hearing.close()
        self._client.close()


def test_a_put_notifies_if_the_queue_was_empty_or_a_message_is_delayed(
    server: RedisServer, backend: RedisBackend
) -> None:
    hints = NotificationCounter(server)
    counts = []
    for batch in (new_messages(1), new_messages(1, delay=5.0)):
        backend.put(batch)
        counts.append(hints.count())
    hints.close()
    assert [1, 1] == counts


def test_puts_behind_other_messages_notify_at_most_ten_times_a_second(
    server: RedisServer, backend: RedisBackend
) -> None:
    """The engines that answered the first notification may have room for a few messages only."""
    backend.put(new_messages(1))
    hints = NotificationCounter(server)
    for _ in range(200):
        backend.put(new_messages(1))
    assert hints.count() < 100
    backend.store.jump.lease += 1.0
    backend.put(new_messages(1))
    assert 1 == hints.count()
    hints.close()


@pytest.mark.parametrize("delay", [0.0, 5.0])
def test_what_is_given_back_is_announced(
    server: RedisServer, backend: RedisBackend, delay: float
) -> None:
    backend.put(new_messages(2))
    [leased] = claim(backend, enter(backend))
    hints = NotificationCounter(server)
    settled(backend, leased.claim, outcome=RowOutcome.RELEASED, delay=delay)
    assert 1 == hints.count()
    hints.close()


def test_a_sweep_announces_what_it_freed_and_nothing_else(
    server: RedisServer, backend: RedisBackend
) -> None:
    backend.put(new_messages(1))
    claim(backend, enter(backend), duration=1.0)
    hints = NotificationCounter(server)
    backend.sweep()
    assert 0 == hints.count()
    backend.store.jump.lease += 2.0
    backend.sweep()
    assert 1 == hints.count()
    hints.close()


def test_a_message_wakes_who_listens(backend: RedisBackend) -> None:
    wakeup = Wakeup()
    end = backend.listen(wakeup)
    assert wakeup.block(20.0), "subscribing wakes: what came before it was not heard"
    wakeup.clear()
    backend.put(new_messages(1))
    assert wakeup.block(20.0)
    end()


# --- the rest ---


def test_a_letter_whose_id_is_there_already_is_left_as_it_is(backend: RedisBackend) -> None:
    letter = NewMessage(id=new_id(), body=b"first")
    backend.put([letter])
    [leased] = claim(backend, enter(backend))
    assert [letter.id] == backend.put([NewMessage(id=letter.id, body=b"second")])
    assert (0, 1) == (backend.stats().ready, backend.stats().leased)
    assert [True] == settled(backend, leased.claim)


def test_expired_rows_of_one_key_repeated_in_a_batch_make_one_new_message(
    backend: RedisBackend,
) -> None:
    backend.put(new_messages(1, dedupe_key="k", expires_in=1.0))
    backend.store.jump.wall += 2.0
    first, second = backend.put(new_messages(2, b"new", dedupe_key="k"))
    assert first == second
    assert [b"new"] == [delivery.body for delivery in backend.peek(limit=10)]


def test_keys_errors_and_bodies_may_hold_any_text_or_bytes(backend: RedisBackend) -> None:
    body, key = bytes(range(256)), "ключ \x00 \udc80"
    [sent] = backend.put([NewMessage(id=new_id(), body=body, dedupe_key=key, reply_to="answers")])
    assert [sent] == backend.put([NewMessage(id=new_id(), body=b"", dedupe_key=key)])
    [leased] = claim(backend, enter(backend))
    assert (body, "answers") == (leased.item.body, leased.item.reply_to)
    settled(backend, leased.claim, outcome=RowOutcome.DEAD, reason="failed", error="grün \udc80")
    [dead] = backend.dead_letters()
    assert (body, "grün \\udc80") == (dead.body, dead.error)
    assert [True] == backend.replay([dead.id])
    assert [body] == [delivery.body for delivery in backend.peek(limit=1)]


def test_a_key_that_is_empty_is_a_key(backend: RedisBackend) -> None:
    [first] = backend.put(new_messages(1, dedupe_key=""))
    assert [first] == backend.put(new_messages(1, dedupe_key=""))
    settled(backend, claim(backend, enter(backend))[0].claim)
    assert [first] != backend.put(new_messages(1, dedupe_key=""))


def test_a_purge_of_many_is_whole(backend: RedisBackend) -> None:
    backend.put(new_messages(4500))
    backend.put(new_messages(10, delay=5.0))
    assert (4510, 0) == (backend.purge(), backend.stats().ready)


def test_limits_hold_for_expired_rows_that_make_room(store: RedisStore) -> None:
    backend = store.backend("work", limits=MailboxLimits(max_size=600))
    backend.put(new_messages(600, expires_in=1.0))
    store.jump.wall += 2.0
    assert 500 == len(backend.put(new_messages(500)))


def test_a_transaction_is_refused(store: RedisStore) -> None:
    with pytest.raises(UnsupportedError, match="no transaction"):
        store.transact(lambda _: None)


def test_every_script_says_what_it_does_and_all_are_known() -> None:
    folder = Path(str(files("longwatch.mailbox.redis") / "lua"))
    sources = {path.stem: path.read_text() for path in folder.glob("*.lua")}
    assert {*SCRIPT_NAMES, "keys", "messages", "blame", "claim", "retention"} == set(sources)
    assert set() == {name for name, source in sources.items() if not source.startswith("-- ")}
    assert set() == {
        name for name, source in sources.items() for line in source.splitlines() if len(line) > 100
    }
    assert len(SCRIPT_NAMES) == len({load_script(name).digest for name in SCRIPT_NAMES})


FORKED = """
import os, stat, sys
from longwatch.core.clock import Wakeup
from longwatch.mailbox import open_mailbox, open_store
store = open_store(sys.argv[1])
mailbox = open_mailbox(store, "work")
mailbox.send("the parent's")
mailbox.backend.listen(Wakeup())
client = store.resources().client

def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False

def sockets():
    return [number for number in range(3, 256) if is_socket(number)]

heard = Wakeup()
mailbox.backend.listen(heard)
assert heard.block(20.0)
assert 2 == len(sockets()), "one that asks, one that listens"
child = os.fork()
if child == 0:
    assert [] == sockets(), "the parent's are the parent's"
    mailbox.send("the child's")
    assert store.resources().client is not client, "the child has connections of its own"
    assert 1 == len(mailbox.receive()), "and is an owner of its own"
    store.close()
    os._exit(0)
assert 0 == os.waitpid(child, 0)[1]
assert store.resources().client is client
received = [message.body for _ in range(2) for message in mailbox.receive(wait_time_seconds=5)]
assert ["the child's", "the parent's"] == sorted(received), "what the child held is back"
store.close()
"""


def test_a_forked_child_opens_connections_of_its_own(
    server: RedisServer, store: RedisStore
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, store.url]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stderr)
