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
from longwatch.errors import StoreFullError, UnsupportedError
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import Limits
from longwatch.mailbox.letters import Letter, new_id
from longwatch.mailbox.redis import MAILBOXES, MOST_MAILBOXES, RedisStore, first_number
from longwatch.mailbox.redis_lane import RedisBackend
from longwatch.mailbox.redis_rows import NUMBER_BITS
from longwatch.mailbox.redis_scripts import NAMES, load_script
from longwatch.store.claims import Claim
from longwatch.work.source import Leased, Outcome, Settlement
from redis_server import RedisServer, running_server

FOREVER = 40_000.0


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_server() as started:
        yield started


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    opened = RedisStore(server.url)
    yield opened
    opened.close()
    with server.client() as client:
        client.flushall()


@pytest.fixture
def lane(store: RedisStore) -> RedisBackend:
    return store.lane("work")


def letters(count: int, body: bytes = b"1", **options: Any) -> list[Letter]:
    return [Letter(id=new_id(), body=body, **options) for _ in range(count)]


def claim(lane: RedisBackend, owner: int, want: int = 1, duration: float = FOREVER) -> list[Leased]:
    return lane.exchange((), owner=owner, want=want, duration=duration).leased


def settled(
    lane: RedisBackend, *claims: Claim, outcome: Outcome = Outcome.DONE, **facts: Any
) -> list[bool]:
    return lane.settle([Settlement(each, outcome, **facts) for each in claims])


def enter(
    lane: RedisBackend, incarnation: Incarnation | None = None, page: str | None = None
) -> int:
    return lane.enter(incarnation or Incarnation.mine(), page=page)


def busy_mailbox(lane: RedisBackend) -> None:
    """Something in every one of its keys."""
    owner = enter(lane)
    lane.put(
        letters(3) + letters(1, delay=60) + letters(1, expires_in=60) + letters(1, dedupe_key="k")
    )
    first, second, _third = claim(lane, owner, 3)
    settled(lane, first.claim, outcome=Outcome.DEAD, reason="failed", error="no")
    settled(lane, second.claim, outcome=Outcome.FAILED, error="no")
    lane.pause(paused=True)


# --- keys ---


def test_nothing_is_forgotten_by_redis_but_answers_to_puts(
    server: RedisServer, lane: RedisBackend
) -> None:
    busy_mailbox(lane)
    with server.client() as client:
        lasting = {key.decode() for key in client.keys("*") if client.ttl(key) == -1}
        fleeting = {
            key.decode(): client.ttl(key) for key in client.keys("*") if client.ttl(key) != -1
        }
    [owner] = lane.store.owners
    parts = [
        f"held:{owner}",
        "dead",
        "deaths",
        "delayed",
        "expiring",
        "free",
        "keys",
        "owners",
        "past",
        "rows",
        "until",
    ]
    assert {
        MAILBOXES,
        "longwatch:{work}",
        *(f"longwatch:{{work}}:{part}" for part in parts),
    } == lasting
    assert [True] == [
        key.startswith("longwatch:{work}:answer:") and 0 < ttl <= 600
        for key, ttl in fleeting.items()
    ]


def test_an_answer_that_arrived_is_forgotten_with_the_next_put(
    server: RedisServer, lane: RedisBackend
) -> None:
    for _ in range(50):
        lane.put(letters(1))
    with server.client() as client:
        assert 1 == len(client.keys("longwatch:{work}:answer:*"))


def test_an_emptied_mailbox_leaves_nothing_but_its_counters_and_owners(
    server: RedisServer, lane: RedisBackend
) -> None:
    busy_mailbox(lane)
    lane.pause(paused=False)
    [owner] = lane.store.owners
    settled(lane, *lane.held(owner=owner))
    lane.purge()
    lane.drop([letter.id for letter in lane.dead()])
    with server.client() as client:
        left = {key.decode() for key in client.keys("*") if b":answer:" not in key}
    assert {MAILBOXES, "longwatch:{work}", "longwatch:{work}:owners"} == left


def test_a_mailbox_keeps_its_number_and_is_listed_by_name(
    server: RedisServer, store: RedisStore
) -> None:
    for name in ("b/2", "a:1", "c"):
        store.lane(name).put(letters(1))
    other = RedisStore(server.url)
    assert ["a:1", "b/2", "c"] == other.mailbox_names()
    assert store.number("c") == other.number("c")
    other.close()


def test_two_names_that_lead_to_one_number_get_two(server: RedisServer, store: RedisStore) -> None:
    with server.client() as client:
        client.hset(MAILBOXES, str(first_number("work")), "somebody else")
    assert (first_number("work") + 1) % MOST_MAILBOXES == store.number("work")


def test_rows_of_two_mailboxes_never_share_a_number(store: RedisStore) -> None:
    one, two = store.lane("one"), store.lane("two")
    one.put(letters(1, b"one"))
    two.put(letters(1, b"two"))
    owner = enter(one)
    [first], [second] = claim(one, owner), claim(two, owner)
    assert first.claim.seq != second.claim.seq
    assert [True, True] == settled(one, second.claim, first.claim)
    assert (0, 0) == (one.stats().leased, two.stats().leased)


# --- fencing ---


def test_owners_that_differ_in_their_last_bit_are_two(lane: RedisBackend) -> None:
    lane.put(letters(2))
    owner = (1 << 62) - 1
    lane.store.owners[owner] = lane.store.owners[enter(lane)]
    [leased] = claim(lane, owner)
    seq, _, term = leased.claim
    assert [False] == settled(lane, Claim(seq, owner - 1, term))
    assert not lane.extend(Claim(seq, owner - 1, term), duration=FOREVER)
    assert ([], [leased.claim]) == (lane.held(owner=owner - 1), lane.held(owner=owner))
    assert [True] == settled(lane, leased.claim)


def test_a_repeated_settlement_in_another_order_is_refused(lane: RedisBackend) -> None:
    lane.put(letters(1))
    [leased] = claim(lane, enter(lane))
    back, done = Settlement(leased.claim, Outcome.BACK), Settlement(leased.claim, Outcome.DONE)
    assert [True, False] == lane.settle([back, done])
    assert 1 == lane.stats().ready


def test_a_claim_of_a_mailbox_that_this_store_never_saw_settles_nothing(lane: RedisBackend) -> None:
    lane.put(letters(1))
    owner = enter(lane)
    [leased] = claim(lane, owner)
    elsewhere = Claim(leased.claim.seq ^ 1 << NUMBER_BITS, owner, leased.claim.term)
    assert ([False], False) == (settled(lane, elsewhere), lane.extend(elsewhere, duration=1.0))


def test_a_term_does_not_come_again_with_an_older_state(
    server: RedisServer, lane: RedisBackend
) -> None:
    owner = enter(lane)
    with server.client() as client:
        lane.put(letters(1, b"before"))
        older = {key: client.dump(key) for key in client.keys("*")}
        [lost] = claim(lane, owner)
        client.flushall()
        for key, value in older.items():
            client.restore(key, 0, value)
    [again] = claim(lane, owner)
    assert lost.claim.seq == again.claim.seq
    assert [False, True] == settled(lane, lost.claim, again.claim)


def test_a_number_that_comes_again_with_an_older_state_leads_no_settlement_astray(
    server: RedisServer, lane: RedisBackend
) -> None:
    owner = enter(lane)
    lane.put(letters(1, b"forgotten"))
    [lost] = claim(lane, owner)
    with server.client() as client:
        client.flushall()
    lane.put(letters(1, b"new"))
    [fresh] = claim(lane, owner)
    assert lost.claim.seq == fresh.claim.seq
    assert [False] == settled(lane, lost.claim)
    assert 1 == lane.stats().leased


# --- sweeping ---


def elsewhere() -> Incarnation:
    """This process, as if on another machine."""
    mine = Incarnation.mine()
    return Incarnation(mine.id, "another-boot", mine.namespace, mine.pid, mine.start)


def dead_process() -> Incarnation:
    mine = Incarnation.mine()
    return Incarnation(mine.id, mine.boot, mine.namespace, mine.pid, mine.start + 1)


def test_the_leases_of_another_host_wait_for_their_end(lane: RedisBackend) -> None:
    lane.put(letters(1))
    claim(lane, enter(lane, elsewhere()), duration=100.0)
    assert (0, 1) == (lane.sweep(), lane.stats().leased)
    lane.store.jump.lease += 101.0
    assert (1, 1) == (lane.sweep(), lane.stats().ready)


def test_a_dead_owner_of_this_host_is_found_and_then_forgotten_with_its_page(
    server: RedisServer, lane: RedisBackend, tmp_path: Path
) -> None:
    page = BeatPage(tmp_path / "page", slots=2)
    owner = enter(lane, dead_process(), str(page.path))
    lane.put(letters(2))
    started, _ahead = claim(lane, owner, 2)
    page.begin(0, started.claim.seq, 0.0)
    assert 2 == lane.sweep()
    assert [1, 0] == [delivery.crashes for delivery in lane.peek(limit=2)]
    assert page.path.exists()
    assert (0, False) == (lane.sweep(), page.path.exists())
    with server.client() as client:
        assert 0 == client.hlen("longwatch:{work}:owners")


def test_an_owner_out_of_sight_is_forgotten_after_long_and_enters_again_when_it_claims(
    server: RedisServer, lane: RedisBackend
) -> None:
    owner = enter(lane, elsewhere())
    lane.store.jump.wall += 3601.0
    with server.client() as client:
        lane.sweep()
        assert 0 == client.hlen("longwatch:{work}:owners")
        lane.put(letters(1))
        [leased] = claim(lane, owner)
        assert [str(owner).encode()] == client.hkeys("longwatch:{work}:owners")
    lane.sweep()
    assert [leased.claim] == lane.held(owner=owner)


def test_a_lease_that_is_renewed_between_look_and_sweep_stays(
    lane: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane.put(letters(1))
    owner = enter(lane)
    claim(lane, owner, duration=10.0)
    lane.store.jump.lease += 11.0
    run = lane.run

    def renewing(script: str, **asked: Any) -> Any:
        if script == "sweep":
            lane.renew(owner=owner, duration=100.0)
        return run(script, **asked)

    monkeypatch.setattr(lane, "run", renewing)
    assert (0, 1) == (lane.sweep(), lane.stats().leased)


def test_a_sweep_takes_a_page_at_a_time(lane: RedisBackend) -> None:
    lane.put(letters(1200))
    claim(lane, enter(lane), 1200, duration=1.0)
    lane.store.jump.lease += 2.0
    assert [500, 500, 200, 0] == [lane.sweep() for _ in range(4)]


# --- large numbers ---


def test_claims_pass_over_any_number_of_spent_rows(lane: RedisBackend) -> None:
    lane.put(letters(9000, expires_in=1.0, keep_expired=True))
    lane.put(letters(1, b"good"))
    lane.store.jump.wall += 2.0
    [leased] = claim(lane, enter(lane), 10)
    assert (b"good", 9000, 9000) == (leased.item.body, lane.stats().dead, lane.stats().expired)


def test_more_rows_than_lua_can_pass_at_once_are_stored_leased_renewed_and_settled(
    lane: RedisBackend,
) -> None:
    owner = enter(lane)
    sent = lane.put(letters(9001, dedupe_key=None))
    leased = claim(lane, owner, 9001)
    while len(leased) < 9001:
        leased += claim(lane, owner, 9001)
    assert sent == [each.item.id for each in leased]
    assert 9001 == lane.renew(owner=owner, duration=FOREVER)
    assert {True} == set(settled(lane, *(each.claim for each in leased)))
    assert (0, 0) == (lane.stats().leased, lane.stats().ready)


def test_an_answer_is_bounded_in_bytes_but_gives_one_message(lane: RedisBackend) -> None:
    owner = enter(lane)
    lane.put(letters(20, b"x" * (1 << 20)))
    assert [15, 5, 0] == [len(claim(lane, owner, 20)) for _ in range(3)]
    lane.put(letters(1, b"x" * (17 << 20)))
    assert 1 == len(claim(lane, owner, 20))


# --- memory ---


@pytest.fixture
def full_lane(
    server: RedisServer, lane: RedisBackend
) -> Iterator[tuple[RedisBackend, int, list[Leased]]]:
    """A mailbox with something leased and something free, on a server that is out of memory."""
    owner = enter(lane)
    lane.put(letters(20))
    leased = claim(lane, owner, 10)
    with server.client() as client:
        client.config_set("maxmemory", "1kb")
        yield lane, owner, leased
        client.config_set("maxmemory", "0")


@pytest.mark.parametrize("options", [{}, {"dedupe_key": "k"}, {"delay": 5.0}, {"expires_in": 5.0}])
def test_a_server_that_is_out_of_memory_refuses_a_put_whole(
    full_lane: tuple[RedisBackend, int, list[Leased]], options: dict[str, Any]
) -> None:
    lane, _, _ = full_lane
    before = lane.stats()[:4]
    with pytest.raises(StoreFullError, match="out of memory; nothing was written"):
        lane.put(letters(5, **options))
    assert before == lane.stats()[:4]


def test_a_server_that_is_out_of_memory_can_be_emptied(
    full_lane: tuple[RedisBackend, int, list[Leased]],
) -> None:
    lane, owner, leased = full_lane
    done, back, failed, dead, *rest = leased
    assert [True] == settled(lane, done.claim)
    assert [True] == settled(lane, back.claim, outcome=Outcome.BACK, delay=1.0)
    assert [True] == settled(lane, failed.claim, outcome=Outcome.FAILED, error="no")
    assert [True] == settled(lane, dead.claim, outcome=Outcome.DEAD, reason="failed")
    assert (True, 6) == (
        lane.extend(rest[0].claim, duration=FOREVER),
        lane.renew(owner=owner, duration=FOREVER),
    )
    assert 11 == len(claim(lane, enter(lane), 20))
    lane.store.jump.lease += 2 * FOREVER
    assert 17 == lane.sweep()


# --- hints ---


class Published:
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


def test_a_put_announces_only_what_ends_an_empty_line_or_is_delayed(
    server: RedisServer, lane: RedisBackend
) -> None:
    hints = Published(server)
    counts = []
    for batch in (letters(1), letters(1), letters(5), letters(1, delay=5.0)):
        lane.put(batch)
        counts.append(hints.count())
    hints.close()
    assert [1, 0, 0, 1] == counts


@pytest.mark.parametrize("delay", [0.0, 5.0])
def test_what_is_given_back_is_announced(
    server: RedisServer, lane: RedisBackend, delay: float
) -> None:
    lane.put(letters(2))
    [leased] = claim(lane, enter(lane))
    hints = Published(server)
    settled(lane, leased.claim, outcome=Outcome.BACK, delay=delay)
    assert 1 == hints.count()
    hints.close()


def test_a_sweep_announces_what_it_freed_and_nothing_else(
    server: RedisServer, lane: RedisBackend
) -> None:
    lane.put(letters(1))
    claim(lane, enter(lane), duration=1.0)
    hints = Published(server)
    lane.sweep()
    assert 0 == hints.count()
    lane.store.jump.lease += 2.0
    lane.sweep()
    assert 1 == hints.count()
    hints.close()


def test_a_message_wakes_who_listens(lane: RedisBackend) -> None:
    wakeup = Wakeup()
    end = lane.listen(wakeup)
    assert wakeup.block(20.0), "subscribing wakes: what came before it was not heard"
    wakeup.clear()
    lane.put(letters(1))
    assert wakeup.block(20.0)
    end()


# --- the rest ---


def test_a_letter_whose_id_is_there_already_is_left_as_it_is(lane: RedisBackend) -> None:
    letter = Letter(id=new_id(), body=b"first")
    lane.put([letter])
    [leased] = claim(lane, enter(lane))
    assert [letter.id] == lane.put([Letter(id=letter.id, body=b"second")])
    assert (0, 1) == (lane.stats().ready, lane.stats().leased)
    assert [True] == settled(lane, leased.claim)


def test_expired_rows_of_one_key_repeated_in_a_batch_make_one_new_message(
    lane: RedisBackend,
) -> None:
    lane.put(letters(1, dedupe_key="k", expires_in=1.0))
    lane.store.jump.wall += 2.0
    first, second = lane.put(letters(2, b"new", dedupe_key="k"))
    assert first == second
    assert [b"new"] == [delivery.body for delivery in lane.peek(limit=10)]


def test_keys_errors_and_bodies_may_hold_any_text_or_bytes(lane: RedisBackend) -> None:
    body, key = bytes(range(256)), "ключ \x00 \udc80"
    [sent] = lane.put([Letter(id=new_id(), body=body, dedupe_key=key, reply_to="answers")])
    assert [sent] == lane.put([Letter(id=new_id(), body=b"", dedupe_key=key)])
    [leased] = claim(lane, enter(lane))
    assert (body, "answers") == (leased.item.body, leased.item.reply_to)
    settled(lane, leased.claim, outcome=Outcome.DEAD, reason="failed", error="grün \udc80")
    [dead] = lane.dead()
    assert (body, "grün \\udc80") == (dead.body, dead.error)
    assert [True] == lane.replay([dead.id])
    assert [body] == [delivery.body for delivery in lane.peek(limit=1)]


def test_a_key_that_is_empty_is_a_key(lane: RedisBackend) -> None:
    [first] = lane.put(letters(1, dedupe_key=""))
    assert [first] == lane.put(letters(1, dedupe_key=""))
    settled(lane, claim(lane, enter(lane))[0].claim)
    assert [first] != lane.put(letters(1, dedupe_key=""))


def test_a_purge_of_many_is_whole(lane: RedisBackend) -> None:
    lane.put(letters(4500))
    lane.put(letters(10, delay=5.0))
    assert (4510, 0) == (lane.purge(), lane.stats().ready)


def test_limits_hold_for_expired_rows_that_make_room(store: RedisStore) -> None:
    lane = store.lane("work", limits=Limits(max_size=600))
    lane.put(letters(600, expires_in=1.0))
    store.jump.wall += 2.0
    assert 500 == len(lane.put(letters(500)))


def test_a_transaction_is_refused(store: RedisStore) -> None:
    with pytest.raises(UnsupportedError, match="no transaction"):
        store.transact(lambda _: None)


def test_every_script_says_what_it_does_and_all_are_known() -> None:
    folder = Path(str(files("longwatch.mailbox") / "lua"))
    sources = {path.stem: path.read_text() for path in folder.glob("*.lua")}
    assert {*NAMES, "keys", "rows"} == set(sources)
    assert set() == {name for name, source in sources.items() if not source.startswith("-- ")}
    assert set() == {
        name for name, source in sources.items() for line in source.splitlines() if len(line) > 132
    }
    assert len(NAMES) == len({load_script(name).digest for name in NAMES})


FORKED = """
import os, stat, sys
from longwatch.core.clock import Wakeup
from longwatch.mailbox import open_mailbox, open_store
store = open_store(sys.argv[1])
mailbox = open_mailbox(store, "work")
mailbox.send("the parent's")
mailbox.backend.listen(Wakeup())
calls = store.opened().calls

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
    assert store.opened().calls is not calls, "the child has connections of its own"
    assert 1 == len(mailbox.receive()), "and is an owner of its own"
    store.close()
    os._exit(0)
assert 0 == os.waitpid(child, 0)[1]
assert store.opened().calls is calls
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
