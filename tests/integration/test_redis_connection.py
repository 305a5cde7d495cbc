"""What a caller is told when the server refuses, cannot be reached, or does not answer; and what
happens when it is back.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import redis
from redis.connection import Connection

from longwatch.core.clock import Wakeup
from longwatch.errors import (
    LongwatchError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreMisplacedError,
    StoreReadOnlyError,
    StoreUnreachableError,
    UnsafeSettingsWarning,
    UsageError,
)
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.letters import Letter, new_id
from longwatch.mailbox.redis import RedisStore
from longwatch.mailbox.redis_connection import Server, unsafe_settings
from longwatch.mailbox.redis_errors import AnswerLostError
from longwatch.mailbox.redis_lane import RedisBackend
from longwatch.mailbox.redis_line import Line
from longwatch.mailbox.redis_wakeups import Bell, Wakeups
from longwatch.work.source import Outcome, Settlement
from ports import free_port
from redis_server import RedisServer, await_that, running_server

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


def letter(body: bytes = b"1") -> Letter:
    return Letter(id=new_id(), body=body)


class LostAnswers:
    """Loses answers of the server: they arrive, and nobody hears of it."""

    def __init__(self) -> None:
        self.left = 0
        self.lost = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self._read = Line.answer

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def answer_of(line: Line) -> Any:
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

        monkeypatch.setattr(Line, "answer", answer_of)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> LostAnswers:
    lost = LostAnswers()
    lost.install(monkeypatch)
    return lost


# --- lost answers ---


def test_a_put_whose_answers_are_lost_is_stored_once(
    lane: RedisBackend, answers: LostAnswers
) -> None:
    lane.put([letter()])
    answers.left = 3
    sent = letter(b"once")
    assert [sent.id] == lane.put([sent])
    assert (3, 2) == (answers.lost, lane.stats().ready)


def test_a_put_whose_answer_is_lost_is_stored_once_even_if_it_was_consumed_meanwhile(
    lane: RedisBackend, answers: LostAnswers
) -> None:
    owner = lane.enter(Incarnation.mine())

    def consume() -> None:
        [leased] = lane.exchange((), owner=owner, want=1, duration=FOREVER).leased
        assert [True] == lane.settle([Settlement(leased.claim, Outcome.DONE)])

    lane.stats()
    answers.meanwhile = consume
    answers.left = 1
    lane.put([letter()])
    assert (0, 0) == (lane.stats().ready, lane.stats().leased)


def test_a_put_with_keys_is_answered_as_before(lane: RedisBackend, answers: LostAnswers) -> None:
    [first] = lane.put([Letter(id=new_id(), body=b"", dedupe_key="k")])
    answers.left = 1
    second = letter()
    assert [first, second.id] == lane.put([Letter(id=new_id(), body=b"", dedupe_key="k"), second])


def test_a_settlement_whose_answer_is_lost_is_unknown_and_may_be_repeated(
    lane: RedisBackend, answers: LostAnswers
) -> None:
    owner = lane.enter(Incarnation.mine())
    lane.put([letter(), letter()])
    [leased] = lane.exchange((), owner=owner, want=1, duration=FOREVER).leased
    done = Settlement(leased.claim, Outcome.DONE)
    answers.left = 1
    with pytest.raises(StoreError, match="whether it was written is unknown"):
        lane.settle([done])
    assert ([False], 1) == (lane.settle([done]), lane.stats().ready)


def test_what_an_exchange_leased_whose_answer_is_lost_is_told_by_held(
    lane: RedisBackend, answers: LostAnswers
) -> None:
    owner = lane.enter(Incarnation.mine())
    lane.put([letter(), letter()])
    answers.left = 1
    with pytest.raises(StoreError, match="unknown"):
        lane.exchange((), owner=owner, want=5, duration=FOREVER)
    held = lane.held(owner=owner)
    assert (2, 1) == (len(held), answers.lost)
    assert [True, True] == lane.settle([Settlement(claim, Outcome.BACK) for claim in held])


def test_a_read_whose_answer_is_lost_is_asked_again_once(
    lane: RedisBackend, answers: LostAnswers
) -> None:
    lane.put([letter()])
    answers.left = 1
    assert 1 == lane.stats().ready
    answers.left = 2
    with pytest.raises(StoreUnreachableError, match="try again"):
        lane.stats()


# --- interrupted calls ---


def interrupt_after(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """The next time this command was sent, a signal handler raises before its answer is read."""
    asked: Callable[..., None] = Line.send
    greeted: Callable[..., None] = Connection.send_command

    def interrupt(words: Sequence[Any]) -> None:
        if words[0] == word:
            monkeypatch.setattr(Line, "send", asked)
            monkeypatch.setattr(Connection, "send_command", greeted)
            raise KeyboardInterrupt

    def send(line: Line, words: Sequence[Any]) -> None:
        asked(line, words)
        interrupt(words)

    def send_command(connection: Any, *words: Any, **options: Any) -> None:
        greeted(connection, *words, **options)
        interrupt(words)

    monkeypatch.setattr(Line, "send", send)
    monkeypatch.setattr(Connection, "send_command", send_command)


def with_late_answers(server: RedisServer, milliseconds: int = 200) -> None:
    """So that what is still to come has not arrived when the next question is asked."""
    with server.client() as client:
        client.client_pause(milliseconds)


def test_the_answer_to_an_interrupted_question_is_not_taken_for_the_next(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Server(server.url)
    asked.ask("PING")
    with_late_answers(server)
    interrupt_after(monkeypatch, "ECHO")
    with pytest.raises(KeyboardInterrupt):
        asked.ask("ECHO", "first")
    assert b"second" == asked.ask("ECHO", "second")
    assert b"third" == asked.ask("ECHO", "third")
    assert (1, 1) == (len(asked._idle), len(asked._lines))
    asked.close()


def test_a_question_whose_health_check_is_interrupted_leaves_no_answer_behind(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Server(server.url)
    asked.ask("PING")
    asked._idle[0].connection.next_health_check = 0.0
    with_late_answers(server)
    interrupt_after(monkeypatch, "PING")
    with pytest.raises(KeyboardInterrupt):
        asked.ask("ECHO", "first")
    assert b"second" == asked.ask("ECHO", "second")
    asked.close()


def test_a_login_that_is_interrupted_is_begun_anew(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Server(server.url.removesuffix("/0") + "/3")
    with_late_answers(server)
    interrupt_after(monkeypatch, "SELECT")
    with pytest.raises(KeyboardInterrupt):
        asked.ask("ECHO", "first")
    assert [] == asked._idle
    assert b"second" == asked.ask("ECHO", "second")
    assert b"db=3" in asked.ask("CLIENT", "INFO").split()
    asked.close()


@pytest.mark.parametrize("point", ["prove", "send", "answer"])
def test_whatever_is_interrupted_leaves_no_connection_behind(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    asked = Server(f"{server.url}?client_name=interrupted")
    asked.ask("PING")
    real: Callable[..., Any] = getattr(Line, point)

    def interrupted(line: Line, *words: Any) -> None:
        real(line, *words)
        monkeypatch.setattr(Line, point, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(Line, point, interrupted)
    with pytest.raises(KeyboardInterrupt):
        asked.ask("PING")
    await_that(lambda: 0 == connections_named(server, "interrupted"), "its connection is closed")
    assert (b"PONG", 1) == (asked.ask("PING"), connections_named(server, "interrupted"))
    asked.close()


def test_a_line_that_nobody_has_any_more_closes_itself(server: RedisServer) -> None:
    """As when an interrupt comes between its taking and its use."""
    asked = Server(f"{server.url}?client_name=forgotten")
    asked.ask("PING")
    asked._take()
    await_that(lambda: 0 == connections_named(server, "forgotten"), "it is closed")
    assert (0, b"PONG") == (len(asked._lines), asked.ask("PING"))
    asked.close()


def connections_named(server: RedisServer, name: str) -> int:
    with server.client() as client:
        return sum(each["name"] == name for each in client.client_list())


def test_more_connections_than_the_url_allows_are_refused(server: RedisServer) -> None:
    asked = Server(f"{server.url}?max_connections=1")
    taken = asked._take()
    assert "Too many connections" in told(StoreUnreachableError, lambda: asked.ask("PING"))
    asked._idle.append(taken)
    assert b"PONG" == asked.ask("PING")
    asked.close()


def test_an_answer_that_does_not_come_is_the_end_of_the_idle_connections_too(
    server: RedisServer,
) -> None:
    asked = Server(f"{server.url}?socket_timeout=0.2")
    asked.ask("PING")
    lines = [asked._take(), asked._take()]
    for line in lines:
        line.prove()
        asked._idle.append(line)
    with_late_answers(server, 1000)
    with pytest.raises(AnswerLostError):
        asked.ask("PING")
    assert ([], [None, None]) == (asked._idle, [line.connection._sock for line in lines])
    asked.close()


def test_a_refusal_keeps_the_connection(server: RedisServer) -> None:
    asked = Server(server.url)
    before = asked.ask("CLIENT", "ID")
    with pytest.raises(redis.ResponseError):
        asked.ask("ECHO")
    assert before == asked.ask("CLIENT", "ID")
    asked.close()


# --- refusals ---


def told(error: type[LongwatchError], call: Callable[[], object]) -> str:
    with pytest.raises(error) as raised:
        call()
    return str(raised.value)


def test_a_server_that_is_not_there_is_unreachable_at_once() -> None:
    store = RedisStore(f"redis://user:hunter2@127.0.0.1:{free_port()}/0")
    text = told(StoreUnreachableError, lambda: store.lane("work").put([letter()]))
    assert ("cannot be reached" in text, "nothing was written" in text, "hunter2" in text) == (
        True,
        True,
        False,
    )


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
    options = Server("redis://:%2F%23%3F%40%25@h:1/2").options
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
    with pytest.raises(StoreMisplacedError, match="PORT/0") as raised:
        store.lane("work").stats()
    assert 2 == raised.value.exit_code


def test_a_client_that_is_too_old_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "__version__", "4.6.0")
    text = told(UsageError, lambda: RedisStore("redis://127.0.0.1/0"))
    assert ("4.6.0" in text, "pip install -U 'longwatch[redis]'" in text) == (True, True)


@pytest.mark.parametrize("user", ["ann:hunter2", "nobody:hunter2", ":hunter2"])
def test_a_login_that_is_refused_is_wrong_usage(server: RedisServer, user: str) -> None:
    with server.client() as client:
        client.acl_setuser(
            "ann", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"]
        )
    store = RedisStore(server.url.replace("//", f"//{user}@"))
    with pytest.raises(StoreUnreachableError) as raised:
        store.lane("work").stats()
    assert 2 == raised.value.exit_code


def test_a_wrong_password_is_named_but_not_shown(server: RedisServer) -> None:
    with server.client() as client:
        client.acl_setuser(
            "ann", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"]
        )
    store = RedisStore(server.url.replace("//", "//ann:hunter2@"))
    text = told(StoreUnreachableError, lambda: store.lane("work").stats())
    assert ("password" in text, "hunter2" in text) == (True, False)


@pytest.mark.parametrize(
    "rights",
    [
        {"categories": ["+@read"]},
        {"categories": ["+@all"], "commands": ["-hset"]},
        {"categories": ["+@all"], "keys": ["x*"]},
    ],
)
def test_a_user_without_the_rights_is_refused_with_the_cure(
    server: RedisServer, lane: RedisBackend, rights: dict[str, Any]
) -> None:
    with server.client() as client:
        client.acl_setuser(
            "bob", enabled=True, reset=True, passwords=["+pw"], **{"keys": ["*"], **rights}
        )
    store = RedisStore(server.url.replace("//", "//bob:pw@"))
    assert "~longwatch:*" in told(StoreReadOnlyError, lambda: store.lane("work").put([letter()]))
    store.close()
    assert (0, []) == (lane.stats().ready, lane.peek(limit=5))


COMMANDS = ["hdel", "hincrby", "hset", "hsetnx", "zadd", "zrem", "zremrangebyrank"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_script_that_fails_half_way_loses_nothing(
    server: RedisServer, lane: RedisBackend, command: str
) -> None:
    """A user without the right to one command; what it could not do somebody else can."""
    lane.put([Letter(id=new_id(), body=b"", expires_in=FOREVER) for _ in range(4)])
    with server.client() as client:
        client.acl_setuser(
            "bob", enabled=True, reset=True, passwords=["+pw"], keys=["*"], categories=["+@all"]
        )
        store = RedisStore(server.url.replace("//", "//bob:pw@"))
        poor = store.lane("work")
        owner = poor.enter(Incarnation.mine())
        claims = [
            each.claim for each in poor.exchange((), owner=owner, want=3, duration=1.0).leased
        ]
        client.acl_setuser("bob", commands=[f"-{command}"])
    for outcome, claim in zip((Outcome.FAILED, Outcome.DEAD, Outcome.BACK), claims, strict=True):
        with suppress(StoreReadOnlyError):
            poor.settle([Settlement(claim, outcome, reason="failed", delay=1.0)])
    with suppress(StoreReadOnlyError):
        poor.exchange((), owner=owner, want=5, duration=1.0)
    store.close()
    lane.store.jump.lease = lane.store.jump.wall = 10.0
    for _ in range(2):
        lane.sweep()
    lane.replay([dead.id for dead in lane.dead()])
    found = {delivery.id for delivery in lane.peek(limit=10)}
    assert 4 == len(found)


def test_a_user_without_the_right_to_publish_is_only_not_heard(
    server: RedisServer, lane: RedisBackend
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
    store.lane("work").put([letter()])
    store.close()
    assert 1 == lane.stats().ready


def test_a_replica_is_read_only() -> None:
    with running_server() as master, running_server() as replica:
        with replica.client() as client:
            client.replicaof("127.0.0.1", str(master.port))
        store = RedisStore(replica.url)
        assert "replica" in told(StoreReadOnlyError, lambda: store.lane("work").put([letter()]))
        store.close()


def test_a_server_that_is_busy_with_a_script_is_busy(
    server: RedisServer, lane: RedisBackend
) -> None:
    lane.stats()
    with server.client() as client:
        client.config_set("lua-time-limit", "1")
        spinning = threading.Thread(target=lambda: spin(server))
        spinning.start()
        await_that(lambda: is_busy(server), "the server is busy")
        assert "busy with a script" in told(StoreBusyError, lambda: lane.put([letter()]))
        client.script_kill()
        spinning.join()
        client.config_set("lua-time-limit", "5000")
    assert 0 == lane.stats().ready


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
            store.lane("work").put([letter()])
        assert [
            "allkeys-lru" in str(caught[0].message),
            "appendonly is off" in str(caught[1].message),
        ] == [True, True]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.lane("work").put([letter()])
        store.close()


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
    assert 0 == store.lane("silent").stats().ready
    store.close()


def test_facts_that_are_missing_are_no_fault() -> None:
    assert [] == unsafe_settings({})
    assert [] == unsafe_settings({"maxmemory_policy": "noeviction", "aof_enabled": "1"})


# --- servers that go and come back ---


def test_making_a_store_opens_nothing_and_a_closed_one_refuses(server: RedisServer) -> None:
    store = RedisStore(server.url)
    assert {} == store._opened
    lane = store.lane("work")
    lane.stats()
    store.close()
    store.close()
    assert "was closed" in told(StoreClosedError, lane.stats)
    assert "was closed" in told(StoreClosedError, lambda: lane.listen(Wakeup()))


def test_a_restarted_server_is_found_again_with_its_messages() -> None:
    with running_server() as server:
        store = RedisStore(server.url)
        lane = store.lane("work")
        lane.put([letter(b"kept")])
        server.stop()
        assert "cannot be reached" in told(StoreUnreachableError, lane.stats)
        server.start()
        lane.put([letter(b"new")])
        assert [b"kept", b"new"] == [delivery.body for delivery in lane.peek(limit=5)]
        store.close()


def test_a_server_that_does_not_answer_is_given_up_in_time() -> None:
    with running_server() as server:
        store = RedisStore(f"{server.url}?socket_timeout=0.2")
        lane = store.lane("work")
        lane.stats()
        server.freeze()
        with pytest.raises((StoreBusyError, StoreUnreachableError)):
            lane.stats()
        server.thaw()
        assert 0 == lane.stats().ready
        store.close()


def test_an_idle_connection_has_to_answer_before_it_is_used(lane: RedisBackend) -> None:
    lane.stats()
    [line] = lane.store.opened().calls._first._idle
    connection = line.connection
    connection.next_health_check = 0.0
    dead, connection._sock = connection._sock, DeafSocket(connection._sock)
    connection._parser._sock = line._sock = connection._sock
    assert [] == lane.held(owner=1)
    assert connection._sock is not dead
    dead.close()


class DeafSocket:
    """The other end is gone, and nobody has said so."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def sendall(self, _data: bytes) -> None:
        raise TimeoutError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_who_listens_hears_again_after_a_restart() -> None:
    with running_server() as server:
        wakeups, wakeup = Wakeups(Server(server.url).connect, net=1000.0), Wakeup()
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
    enough, real = threading.Event(), Bell.wait

    def wait(_bell: Bell, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) >= 5:
            enough.set()
            real(_bell, FOREVER)

    def refuse() -> None:
        raise redis.ConnectionError("refused")

    monkeypatch.setattr(Bell, "wait", wait)
    wakeups = Wakeups(refuse)
    wakeups.listen("channel", Wakeup())
    assert enough.wait(20.0)
    wakeups.close()
    assert wakeups._errand is not None
    assert wakeups._errand.over.is_set()
    assert sorted(waits) == waits
    assert 0 < waits[0] < waits[-1]


def test_who_listens_is_woken_now_and_then_without_a_hint(server: RedisServer) -> None:
    wakeups, wakeup = Wakeups(Server(server.url).connect, net=0.01), Wakeup()
    wakeups.listen("channel", wakeup)
    for _ in range(3):
        assert wakeup.block(20.0)
        wakeup.clear()
    wakeups.close()


def test_one_thread_hears_for_all_and_ends_with_the_store(server: RedisServer) -> None:
    store = RedisStore(server.url)
    before = set(threading.enumerate())
    ends = [store.lane(name).listen(Wakeup()) for name in ("a", "b", "a")]
    assert 1 == len(set(threading.enumerate()) - before)
    for end in ends:
        end()
        end()
    store.close()
    await_that(lambda: set(threading.enumerate()) <= before, "the thread has ended")
