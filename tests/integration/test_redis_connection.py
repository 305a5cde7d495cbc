"""What a caller is told when the server refuses, cannot be reached, or does not answer; and what
happens when it is back.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import redis
from redis.connection import Connection

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import (
    LongwatchError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreLocationError,
    StoreReadOnlyError,
    StoreUnreachableError,
    UnsafeSettingsWarning,
    UsageError,
)
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.redis.backend import RedisBackend
from longwatch.mailbox.redis.errors import ResponseLostError
from longwatch.mailbox.redis.listener import RedisListener
from longwatch.mailbox.redis.store import RedisStore
from longwatch.mailbox.redis.transport import RedisConnection, RedisNode, unsafe_settings
from longwatch.store.notify.listener import WakePipe
from loopback import free_port
from redis_server import RedisServer, running_server, wait_until

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
def backend(store: RedisStore) -> RedisBackend:
    return store.backend("work")


def new_message(body: bytes = b"1") -> NewMessage:
    return NewMessage(id=new_id(), body=body)


class LostReplies:
    """Loses answers of the server: they arrive, and nobody hears of it."""

    def __init__(self) -> None:
        self.left = 0
        self.lost = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self._read = RedisConnection.read_response

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def answer_of(line: RedisConnection) -> Any:
            answer = self._read(line)
            if not self.left:
                return answer
            self.left -= 1
            self.lost += 1
            line.close()
            left, self.left = self.left, 0
            self.meanwhile()
            self.left = left
            raise redis.ConnectionError("Connection closed by server.")

        monkeypatch.setattr(RedisConnection, "read_response", answer_of)


@pytest.fixture
def lost_replies(monkeypatch: pytest.MonkeyPatch) -> LostReplies:
    lost = LostReplies()
    lost.install(monkeypatch)
    return lost


# --- lost answers ---


def test_a_put_whose_answers_are_lost_is_stored_once(
    backend: RedisBackend, lost_replies: LostReplies
) -> None:
    backend.put([new_message()])
    lost_replies.left = 3
    sent = new_message(b"once")
    assert [sent.id] == backend.put([sent])
    assert (3, 2) == (lost_replies.lost, backend.stats().ready)


def test_a_put_whose_answer_is_lost_is_stored_once_even_if_it_was_consumed_meanwhile(
    backend: RedisBackend, lost_replies: LostReplies
) -> None:
    owner = backend.register_owner(Incarnation.current())

    def consume() -> None:
        [leased] = backend.exchange((), owner=owner, limit=1, lease_seconds=FOREVER).claimed
        assert [True] == backend.settle([Settlement(leased.claim, RowOutcome.DONE)])

    backend.stats()
    lost_replies.meanwhile = consume
    lost_replies.left = 1
    backend.put([new_message()])
    assert (0, 0) == (backend.stats().ready, backend.stats().leased)


def test_a_put_with_keys_is_answered_as_before(
    backend: RedisBackend, lost_replies: LostReplies
) -> None:
    [first] = backend.put([NewMessage(id=new_id(), body=b"", dedupe_key="k")])
    lost_replies.left = 1
    second = new_message()
    assert [first, second.id] == backend.put(
        [NewMessage(id=new_id(), body=b"", dedupe_key="k"), second]
    )


def test_a_settlement_whose_answer_is_lost_is_unknown_and_may_be_repeated(
    backend: RedisBackend, lost_replies: LostReplies
) -> None:
    owner = backend.register_owner(Incarnation.current())
    backend.put([new_message(), new_message()])
    [leased] = backend.exchange((), owner=owner, limit=1, lease_seconds=FOREVER).claimed
    done = Settlement(leased.claim, RowOutcome.DONE)
    lost_replies.left = 1
    with pytest.raises(StoreError, match="whether it was written is unknown"):
        backend.settle([done])
    assert ([False], 1) == (backend.settle([done]), backend.stats().ready)


def test_what_an_exchange_leased_whose_answer_is_lost_is_told_by_held(
    backend: RedisBackend, lost_replies: LostReplies
) -> None:
    owner = backend.register_owner(Incarnation.current())
    backend.put([new_message(), new_message()])
    lost_replies.left = 1
    with pytest.raises(StoreError, match="unknown"):
        backend.exchange((), owner=owner, limit=5, lease_seconds=FOREVER)
    held = backend.held(owner=owner)
    assert (2, 1) == (len(held), lost_replies.lost)
    assert [True, True] == backend.settle(
        [Settlement(claim, RowOutcome.RELEASED) for claim in held]
    )


def test_a_read_whose_answer_is_lost_is_asked_again_once(
    backend: RedisBackend, lost_replies: LostReplies
) -> None:
    backend.put([new_message()])
    lost_replies.left = 1
    assert 1 == backend.stats().ready
    lost_replies.left = 2
    with pytest.raises(StoreUnreachableError, match="try again"):
        backend.stats()


# --- interrupted calls ---


def interrupt_after(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """The next time this command was sent, a signal handler raises before its answer is read."""
    asked: Callable[..., None] = RedisConnection.send
    greeted: Callable[..., None] = Connection.send_command

    def interrupt(words: Sequence[Any]) -> None:
        if words[0] == word:
            monkeypatch.setattr(RedisConnection, "send", asked)
            monkeypatch.setattr(Connection, "send_command", greeted)
            raise KeyboardInterrupt

    def send(line: RedisConnection, words: Sequence[Any]) -> None:
        asked(line, words)
        interrupt(words)

    def send_command(connection: Any, *words: Any, **options: Any) -> None:
        greeted(connection, *words, **options)
        interrupt(words)

    monkeypatch.setattr(RedisConnection, "send", send)
    monkeypatch.setattr(Connection, "send_command", send_command)


def with_late_answers(server: RedisServer, milliseconds: int = 200) -> None:
    """So that what is still to come has not arrived when the next question is asked."""
    with server.client() as client:
        client.client_pause(milliseconds)


def test_the_answer_to_an_interrupted_question_is_not_taken_for_the_next(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RedisNode(server.url)
    asked.execute("PING")
    with_late_answers(server)
    interrupt_after(monkeypatch, "ECHO")
    with pytest.raises(KeyboardInterrupt):
        asked.execute("ECHO", "first")
    assert b"second" == asked.execute("ECHO", "second")
    assert b"third" == asked.execute("ECHO", "third")
    assert (1, 1) == (len(asked._idle), len(asked._connections))
    asked.close()


def test_a_question_whose_health_check_is_interrupted_leaves_no_answer_behind(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RedisNode(server.url)
    asked.execute("PING")
    asked._idle[0].connection.next_health_check = 0.0
    with_late_answers(server)
    interrupt_after(monkeypatch, "PING")
    with pytest.raises(KeyboardInterrupt):
        asked.execute("ECHO", "first")
    assert b"second" == asked.execute("ECHO", "second")
    asked.close()


def test_a_login_that_is_interrupted_is_begun_anew(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RedisNode(server.url.removesuffix("/0") + "/3")
    with_late_answers(server)
    interrupt_after(monkeypatch, "SELECT")
    with pytest.raises(KeyboardInterrupt):
        asked.execute("ECHO", "first")
    assert [] == asked._idle
    assert b"second" == asked.execute("ECHO", "second")
    assert b"db=3" in asked.execute("CLIENT", "INFO").split()
    asked.close()


@pytest.mark.parametrize("point", ["ensure_alive", "send", "read_response"])
def test_whatever_is_interrupted_leaves_no_connection_behind(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    asked = RedisNode(f"{server.url}?client_name=interrupted")
    asked.execute("PING")
    real: Callable[..., Any] = getattr(RedisConnection, point)

    def interrupted(line: RedisConnection, *words: Any) -> None:
        real(line, *words)
        monkeypatch.setattr(RedisConnection, point, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(RedisConnection, point, interrupted)
    with pytest.raises(KeyboardInterrupt):
        asked.execute("PING")
    wait_until(lambda: 0 == connections_named(server, "interrupted"), "its connection is closed")
    assert (b"PONG", 1) == (asked.execute("PING"), connections_named(server, "interrupted"))
    asked.close()


def test_a_line_that_nobody_has_any_more_closes_itself(server: RedisServer) -> None:
    """As when an interrupt comes between its taking and its use."""
    asked = RedisNode(f"{server.url}?client_name=forgotten")
    asked.execute("PING")
    asked._acquire()
    wait_until(lambda: 0 == connections_named(server, "forgotten"), "it is closed")
    assert (0, b"PONG") == (len(asked._connections), asked.execute("PING"))
    asked.close()


def connections_named(server: RedisServer, name: str) -> int:
    with server.client() as client:
        return sum(each["name"] == name for each in client.client_list())


def test_more_connections_than_the_url_allows_are_refused(server: RedisServer) -> None:
    asked = RedisNode(f"{server.url}?max_connections=1")
    taken = asked._acquire()
    assert "Too many connections" in told(StoreUnreachableError, lambda: asked.execute("PING"))
    asked._idle.append(taken)
    assert b"PONG" == asked.execute("PING")
    asked.close()


def test_an_answer_that_does_not_come_is_the_end_of_the_idle_connections_too(
    server: RedisServer,
) -> None:
    asked = RedisNode(f"{server.url}?socket_timeout=0.2")
    asked.execute("PING")
    lines = [asked._acquire(), asked._acquire()]
    for line in lines:
        line.ensure_alive()
        asked._idle.append(line)
    with_late_answers(server, 1000)
    with pytest.raises(ResponseLostError):
        asked.execute("PING")
    assert ([], [None, None]) == (asked._idle, [line.connection._sock for line in lines])
    asked.close()


def test_a_call_that_waits_fails_at_once_when_its_node_is_closed(server: RedisServer) -> None:
    asked, caught = RedisNode(f"{server.url}?client_name=waiting"), list[Exception]()

    def wait() -> None:
        try:
            asked.execute("BLPOP", "never", 0)
        except ResponseLostError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: is_blocked(server), "it waits")
    asked.close()
    waiting.join(5.0)
    assert (False, 1) == (waiting.is_alive(), len(caught))
    wait_until(lambda: 0 == connections_named(server, "waiting"), "its connection is closed")


def is_blocked(server: RedisServer) -> bool:
    with server.client() as client:
        return bool(client.info("clients")["blocked_clients"])


def test_a_refusal_keeps_the_connection(server: RedisServer) -> None:
    asked = RedisNode(server.url)
    before = asked.execute("CLIENT", "ID")
    with pytest.raises(redis.ResponseError):
        asked.execute("ECHO")
    assert before == asked.execute("CLIENT", "ID")
    asked.close()


# --- refusals ---


def told(error: type[LongwatchError], call: Callable[[], object]) -> str:
    with pytest.raises(error) as raised:
        call()
    return str(raised.value)


def test_a_server_that_is_not_there_is_unreachable_at_once() -> None:
    store = RedisStore(f"redis://user:hunter2@127.0.0.1:{free_port()}/0")
    text = told(StoreUnreachableError, lambda: store.backend("work").put([new_message()]))
    assert " cannot be reached (connection refused); nothing was written; check host" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "url",
    ["redis://h:hunter2@x:port/0", "redis://:hunter2@h/0?nonsense=1", "redis://:hunter2@h/0?db=x"],
)
def test_a_url_that_cannot_be_is_refused_without_its_password(url: str) -> None:
    assert "hunter2" not in told(UsageError, lambda: RedisStore(url))


@pytest.mark.parametrize("mark", "/#?")
@pytest.mark.parametrize("password", ["sec{}ret", "12{}ret", "12{}ret=4", "ann:12{}3"])
def test_a_password_that_is_not_encoded_is_refused_with_the_cure_and_without_a_part_of_it(
    password: str, mark: str
) -> None:
    text = told(
        UsageError, lambda: RedisStore(f"redis://:{password.format(mark)}@127.0.0.1:6379/0")
    )
    said = text.replace("%23 %3F", "").replace("%25", "")
    assert (True, []) == (
        "%2F" in text,
        [part for part in ("sec", "ret", "12", "ann") if part in said],
    )


def test_a_password_that_is_encoded_is_taken() -> None:
    options = RedisNode("redis://:%2F%23%3F%40%25@h:1/2").options
    assert ("/#?@%", "h", 1, 2) == (
        options["password"],
        options["host"],
        options["port"],
        options["db"],
    )


@pytest.mark.parametrize("database", ["abc", "-1", "1/2", "0?db=-1", "0?db=x"])
def test_a_database_that_is_no_number_is_refused(database: str) -> None:
    assert "PORT/DATABASE" in told(UsageError, lambda: RedisStore(f"redis://127.0.0.1/{database}"))


def test_a_database_that_the_server_does_not_have_is_refused_with_the_cure(
    server: RedisServer,
) -> None:
    store = RedisStore(server.url.removesuffix("/0") + "/99")
    with pytest.raises(StoreLocationError, match="PORT/0") as raised:
        store.backend("work").stats()
    assert 2 == raised.value.exit_code


def test_a_client_that_is_too_old_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "__version__", "4.6.0")
    text = told(UsageError, lambda: RedisStore("redis://127.0.0.1/0"))
    assert ("4.6.0" in text, re.search(r"pip install 'redis\S*>=6'", text) is not None) == (
        True,
        True,
    )


@pytest.mark.parametrize("user", ["ann:hunter2", "nobody:hunter2", ":hunter2"])
def test_a_login_that_is_refused_is_wrong_usage(server: RedisServer, user: str) -> None:
    with server.client() as client:
        client.acl_setuser(
            "ann", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"]
        )
    store = RedisStore(server.url.replace("//", f"//{user}@"))
    with pytest.raises(StoreUnreachableError) as raised:
        store.backend("work").stats()
    assert 2 == raised.value.exit_code


def test_a_wrong_password_is_named_but_not_shown(server: RedisServer) -> None:
    with server.client() as client:
        client.acl_setuser(
            "ann", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"]
        )
    store = RedisStore(server.url.replace("//", "//ann:hunter2@"))
    text = told(StoreUnreachableError, lambda: store.backend("work").stats())
    assert ("password" in text, "hunter2" in text) == (True, False)


@pytest.mark.parametrize(
    "rights",
    [
        {"categories": ["+@read"]},
        {"categories": ["+@all"], "commands": ["-hset"]},
        {"categories": ["+@all"], "keys": ["x*"]},
    ],
)
@pytest.mark.parametrize("is_known", [False, True], ids=["new mailbox", "known mailbox"])
def test_a_user_without_the_rights_is_refused_with_the_cure_and_stores_nothing(
    server: RedisServer, backend: RedisBackend, rights: dict[str, Any], *, is_known: bool
) -> None:
    if is_known:
        backend.put([new_message()])
        assert 1 == backend.purge()
    with server.client() as client:
        client.acl_setuser(
            "bob", enabled=True, reset=True, passwords=["+pw"], **{"keys": ["*"], **rights}
        )
    store = RedisStore(server.url.replace("//", "//bob:pw@"))
    assert "~longwatch:*" in told(
        StoreReadOnlyError, lambda: store.backend("work").put([new_message()])
    )
    store.close()
    assert (0, []) == (backend.stats().ready, backend.peek(limit=5))


COMMANDS = ["hdel", "hincrby", "hset", "hsetnx", "zadd", "zrem", "zremrangebyrank"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_script_that_fails_half_way_loses_nothing(
    server: RedisServer, backend: RedisBackend, command: str
) -> None:
    """A user without the right to one command; what it could not do somebody else can."""
    backend.put([NewMessage(id=new_id(), body=b"", expires_in=FOREVER) for _ in range(4)])
    with server.client() as client:
        client.acl_setuser(
            "bob", enabled=True, reset=True, passwords=["+pw"], keys=["*"], categories=["+@all"]
        )
        store = RedisStore(server.url.replace("//", "//bob:pw@"))
        poor = store.backend("work")
        owner = poor.register_owner(Incarnation.current())
        claims = [
            each.claim
            for each in poor.exchange((), owner=owner, limit=3, lease_seconds=1.0).claimed
        ]
        client.acl_setuser("bob", commands=[f"-{command}"])
    for outcome, claim in zip(
        (RowOutcome.FAILED, RowOutcome.DEAD, RowOutcome.RELEASED), claims, strict=True
    ):
        with suppress(StoreReadOnlyError):
            poor.settle([Settlement(claim, outcome, reason="failed", delay=1.0)])
    with suppress(StoreReadOnlyError):
        poor.exchange((), owner=owner, limit=5, lease_seconds=1.0)
    store.close()
    backend.store.jump.lease = backend.store.jump.wall = 10.0
    for _ in range(2):
        backend.sweep()
    backend.replay([dead.id for dead in backend.dead_letters()])
    found = {delivery.id for delivery in backend.peek(limit=10)}
    assert 4 == len(found)


def test_a_user_without_the_right_to_publish_is_only_not_heard(
    server: RedisServer, backend: RedisBackend
) -> None:
    with server.client() as client:
        client.acl_setuser(
            "bob",
            enabled=True,
            reset=True,
            passwords=["+pw"],
            keys=["*"],
            categories=["+@all"],
            commands=["-publish"],
        )
    store = RedisStore(server.url.replace("//", "//bob:pw@"))
    store.backend("work").put([new_message()])
    store.close()
    assert 1 == backend.stats().ready


def test_a_replica_is_read_only() -> None:
    with running_server() as master, running_server() as replica:
        with replica.client() as client:
            client.replicaof("127.0.0.1", str(master.port))
        store = RedisStore(replica.url)
        assert "replica" in told(
            StoreReadOnlyError, lambda: store.backend("work").put([new_message()])
        )
        store.close()


def test_a_server_that_is_busy_with_a_script_is_busy(
    server: RedisServer, backend: RedisBackend
) -> None:
    backend.stats()
    with server.client() as client:
        client.config_set("lua-time-limit", "1")
        spinning = threading.Thread(target=lambda: spin(server))
        spinning.start()
        wait_until(lambda: is_busy(server), "the server is busy")
        assert "busy with a script" in told(StoreBusyError, lambda: backend.put([new_message()]))
        client.script_kill()
        spinning.join()
        client.config_set("lua-time-limit", "5000")
    assert 0 == backend.stats().ready


def spin(server: RedisServer) -> None:
    with server.client() as client, pytest.raises(redis.ResponseError):
        client.eval("while true do end", 0)


def is_busy(server: RedisServer) -> bool:
    with server.client() as client:
        try:
            client.get("x")
        except redis.ResponseError:
            return True
    return False


# --- settings ---


def test_settings_that_may_lose_messages_are_warned_of_once() -> None:
    with running_server(
        {"appendonly": "no", "save": "", "maxmemory-policy": "allkeys-lru"}
    ) as unsafe:
        store = RedisStore(unsafe.url)
        with pytest.warns(UnsafeSettingsWarning) as caught:
            store.backend("work").put([new_message()])
        assert [
            "allkeys-lru" in str(caught[0].message),
            "appendonly is off" in str(caught[1].message),
        ] == [True, True]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.backend("work").put([new_message()])
        store.close()


def test_settings_are_checked_again_if_the_connection_is_lost_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = RedisConnection.read_response

    def lose_connection(_: RedisConnection) -> bytes:
        monkeypatch.setattr(RedisConnection, "read_response", real)
        raise redis.ConnectionError("lost while INFO was read")

    with running_server({"appendonly": "no", "save": ""}) as unsafe:
        asked = RedisNode(unsafe.url)
        monkeypatch.setattr(RedisConnection, "read_response", lose_connection)
        assert "lost while INFO" in told(StoreUnreachableError, lambda: asked.execute("PING"))
        with pytest.warns(UnsafeSettingsWarning, match="appendonly is off"):
            assert asked.execute("PING") == b"PONG"
        asked.close()


def test_a_server_that_does_not_tell_its_settings_is_used_in_silence(server: RedisServer) -> None:
    with server.client() as client:
        client.acl_setuser(
            "bob",
            enabled=True,
            reset=True,
            passwords=["+pw"],
            keys=["*"],
            categories=["+@all"],
            commands=["-info"],
        )
    store = RedisStore(server.url.replace("//", "//bob:pw@"))
    assert 0 == store.backend("silent").stats().ready
    store.close()


def test_facts_that_are_missing_are_no_fault() -> None:
    assert [] == unsafe_settings({})
    assert [] == unsafe_settings({"maxmemory_policy": "noeviction", "aof_enabled": "1"})


# --- servers that go and come back ---


def test_making_a_store_opens_nothing_and_a_closed_one_refuses(server: RedisServer) -> None:
    store = RedisStore(server.url)
    assert {} == store._resources
    backend = store.backend("work")
    backend.stats()
    store.close()
    store.close()
    assert "was closed" in told(StoreClosedError, backend.stats)
    assert "was closed" in told(StoreClosedError, lambda: backend.listen(Wakeup()))


def test_a_restarted_server_is_found_again_with_its_messages() -> None:
    with running_server() as server:
        store = RedisStore(server.url)
        backend = store.backend("work")
        backend.put([new_message(b"kept")])
        server.stop()
        assert "cannot be reached" in told(StoreUnreachableError, backend.stats)
        server.start()
        backend.put([new_message(b"new")])
        assert [b"kept", b"new"] == [delivery.body for delivery in backend.peek(limit=5)]
        store.close()


def test_a_server_that_does_not_answer_is_given_up_in_time() -> None:
    with running_server() as server:
        store = RedisStore(f"{server.url}?socket_timeout=0.2")
        backend = store.backend("work")
        backend.stats()
        server.freeze()
        with pytest.raises((StoreBusyError, StoreUnreachableError)):
            backend.stats()
        server.thaw()
        assert 0 == backend.stats().ready
        store.close()


def test_an_idle_connection_has_to_answer_before_it_is_used(backend: RedisBackend) -> None:
    backend.stats()
    [line] = backend.store.resources().client._default_node._idle
    connection = line.connection
    connection.next_health_check = 0.0
    dead, connection._sock = connection._sock, DeadSocket(connection._sock)
    connection._parser._sock = line._sock = connection._sock
    assert [] == backend.held(owner=1)
    assert connection._sock is not dead
    dead.close()


class DeadSocket:
    """The other end is gone, and nobody has said so."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def sendall(self, _data: bytes) -> None:
        raise TimeoutError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_who_listens_hears_again_after_a_restart() -> None:
    with running_server() as server:
        wakeups, wakeup = (
            RedisListener(RedisNode(server.url).connect, wake_interval=1000.0),
            Wakeup(),
        )
        end = wakeups.listen("channel", wakeup)
        assert wakeup.block(20.0), "it is subscribed"
        server.kill()
        wakeup.clear()
        server.start()
        assert wakeup.block(20.0), "it is subscribed again"
        wakeup.clear()
        with server.client() as client:
            client.publish("channel", "")
        assert wakeup.block(20.0)
        end()
        wakeups.close()


def test_who_listens_in_vain_waits_longer_each_time_and_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    enough, real = threading.Event(), WakePipe.wait

    def wait(_bell: WakePipe, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) >= 5:
            enough.set()
            real(_bell, FOREVER)

    def refuse() -> None:
        raise redis.ConnectionError("refused")

    monkeypatch.setattr(WakePipe, "wait", wait)
    wakeups = RedisListener(refuse, wake_interval=1000.0)
    wakeups.listen("channel", Wakeup())
    assert enough.wait(20.0)
    wakeups.close()
    assert wakeups._thread is not None
    assert wakeups._thread.done.is_set()
    assert sorted(waits) == waits
    assert 0 < waits[0] < waits[-1]


def test_who_listens_is_woken_now_and_then_without_a_hint(server: RedisServer) -> None:
    wakeups, wakeup = RedisListener(RedisNode(server.url).connect, wake_interval=0.01), Wakeup()
    wakeups.listen("channel", wakeup)
    for _ in range(3):
        assert wakeup.block(20.0)
        wakeup.clear()
    wakeups.close()


def test_one_thread_hears_for_all_and_ends_with_the_store(server: RedisServer) -> None:
    store = RedisStore(server.url)
    before = set(threading.enumerate())
    ends = [store.backend(name).listen(Wakeup()) for name in ("a", "b", "a")]
    assert 1 == len(set(threading.enumerate()) - before)
    for end in ends:
        end()
        end()
    store.close()
    wait_until(lambda: set(threading.enumerate()) <= before, "the thread has ended")
