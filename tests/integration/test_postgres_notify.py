"""Hints over NOTIFY: within a process, to others, debounced, and through the loss of a
connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import takewhile
from typing import Any

import psycopg
import pytest

from longwatch.core.clock import Wakeup
from longwatch.core.deadline import Deadline
from longwatch.errors import StoreClosedError, StoreUnreachableError
from longwatch.mailbox import open_mailbox
from longwatch.store.postgres import presence
from longwatch.store.postgres.connection import PostgresConnection
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.postgres.listener import PostgresListener
from longwatch.store.postgres.notify_throttle import NotifyThrottle
from polling import eventually
from postgres_server import PostgresServer, shared_server

TIMEOUT = 30.0
LISTENING = "query = 'LISTEN longwatch'"


@pytest.fixture
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with server.database() as made:
        yield made


@pytest.fixture
def two(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[PostgresDatabase, PostgresDatabase]]:
    """Two databases that share nothing but the server, as two processes do; nobody is woken
    without a hint.
    """
    monkeypatch.setitem(PostgresListener.__init__.__kwdefaults__ or {}, "wake_interval", 1000.0)
    with PostgresDatabase(url) as first, PostgresDatabase(url) as second:
        first.write(lambda _: None)
        yield first, second


def listen_on(database: PostgresDatabase, channel: str) -> Wakeup:
    """A listener that hears already: one is woken when it begins to."""
    wakeup = Wakeup()
    database.listen(channel, wakeup)
    assert wakeup.block(TIMEOUT)
    wakeup.clear()
    return wakeup


def notify(database: PostgresDatabase, *channels: str) -> None:
    def work(tx: Any) -> None:
        tx.execute("UPDATE longwatch_schema SET name = name")
        for channel in channels:
            tx.notify(channel)

    database.write(work)


def after(database: PostgresDatabase, told: Callable[[], list[str]]) -> list[str]:
    """What was told when nothing is behind a commit any more."""
    database.read(lambda tx: tx.rows("SELECT 1"))
    return told()


Two = tuple[PostgresDatabase, PostgresDatabase]


def test_an_announcement_reaches_another_process_and_only_who_listens_to_that_channel(
    two: Two,
) -> None:
    here, there = two
    wanted, other = listen_on(there, "wanted"), Wakeup()
    there.listen("other", other)
    notify(here, "wanted")
    assert wanted.block(TIMEOUT)
    assert not other.is_set()


def test_a_listener_of_the_same_process_is_woken_before_write_returns(two: Two) -> None:
    here, _ = two
    wakeup = listen_on(here, "x")
    notify(here, "x")
    assert wakeup.is_set()


def test_what_a_process_said_itself_it_does_not_hear_again(two: Two) -> None:
    here, there = two
    mine, theirs, after = listen_on(here, "x"), listen_on(there, "x"), Wakeup()
    here.listen("after", after)
    for _ in range(2):  # the greeting of the second listener may wake all in the first round
        theirs.clear()
        after.clear()
        notify(here, "x")
        mine.clear()
        assert theirs.block(TIMEOUT)
        notify(there, "after")
        assert after.block(TIMEOUT)
    assert not mine.is_set()


def test_nothing_is_announced_that_was_not_committed(two: Two) -> None:
    here, there = two
    wakeup = listen_on(there, "x")

    def fail(tx: Any) -> None:
        tx.execute("UPDATE longwatch_schema SET name = name")
        tx.notify("x")
        raise InterruptedError

    with pytest.raises(InterruptedError):
        here.write(fail)
    after = Wakeup()
    there.listen("after", after)
    notify(here, "after")
    assert after.block(TIMEOUT)
    assert not wakeup.is_set()


def test_who_could_not_commit_owes_no_hint(two: Two) -> None:
    here, _ = two
    owed: list[str] = []
    hints = here._open()._throttle
    hints._min_interval = 60.0
    hints.defer = owed.extend  # type: ignore[method-assign,assignment] # any collection will do

    def fail(tx: Any) -> None:
        tx.notify("x")
        tx.defer_many("INSERT INTO nowhere SELECT unnest(:name::text[])", [{"name": "a"}])

    notify(here, "x")
    with pytest.raises(psycopg.errors.UndefinedTable):
        here.write(fail)
    assert [] == owed
    notify(here, "x")
    assert ["x"] == owed


def test_the_last_of_many_announcements_is_heard_too(two: Two) -> None:
    here, there = two
    wakeup = listen_on(there, "x")
    for _ in range(20):
        notify(here, "x")
        wakeup.clear()
        notify(here, "x")
        assert wakeup.block(TIMEOUT)


def test_a_lost_connection_is_made_again_and_all_are_woken_for_what_they_missed(
    server: PostgresServer, two: Two
) -> None:
    here, there = two
    wakeup = listen_on(there, "x")
    server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {LISTENING}")
    assert wakeup.block(TIMEOUT)
    wakeup.clear()
    notify(here, "x")
    assert wakeup.block(TIMEOUT)


def test_notify_of_a_mailbox_wakes_its_receivers_in_every_process(two: Two) -> None:
    here, there = two
    mailbox = open_mailbox(here, "work", int)
    theirs, mine = listen_on(there, "work"), listen_on(here, "work")
    theirs.clear()
    mailbox.notify()
    assert mine.is_set()
    assert theirs.block(TIMEOUT)


def test_what_a_user_s_commit_sent_is_found_without_a_hint(url: str) -> None:
    with PostgresDatabase(url) as database:
        mailbox = open_mailbox(database, "work", int)
        received: list[int] = []

        def receive() -> None:
            [message] = mailbox.receive(wait_time_seconds=TIMEOUT)
            received.append(message.body)

        receiver = threading.Thread(target=receive)
        receiver.start()
        with psycopg.connect(url) as connection:
            mailbox.send(1, tx=connection)
        receiver.join()
    assert [1] == received


def test_a_listener_that_left_is_not_woken(two: Two) -> None:
    here, _ = two
    wakeup = Wakeup()
    leave = here.listen("x", wakeup)
    assert wakeup.block(TIMEOUT)
    wakeup.clear()
    leave()
    leave()
    notify(here, "x")
    assert not wakeup.is_set()


def test_everybody_is_woken_now_and_then_without_a_hint(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PostgresListener.__init__.__kwdefaults__ or {}, "wake_interval", 0.01)
    with PostgresDatabase(url) as database:
        wakeup = listen_on(database, "x")
        assert wakeup.block(TIMEOUT)


def test_a_closed_database_listens_to_nobody_and_leaves_no_thread(
    server: PostgresServer, url: str
) -> None:
    database = PostgresDatabase(url)
    listen_on(database, "x")
    database.close()
    with pytest.raises(StoreClosedError):
        database.listen("x", Wakeup())
    assert "longwatch-postgres-listener" not in {thread.name for thread in threading.enumerate()}


def test_while_nobody_can_be_reached_listeners_are_woken_and_the_tries_become_rare() -> None:
    tries: list[Deadline] = []

    def connect(deadline: Deadline) -> PostgresConnection:
        tries.append(deadline)
        raise StoreUnreachableError("nobody")

    ear = PostgresListener(connect, client_id="me", wake_interval=0.001)
    wakeup = Wakeup()
    ear.listen("x", wakeup)
    with ExitStack() as ends:
        ends.callback(ear.close)
        assert eventually(lambda: len(tries) == 3)
        for _ in range(20):
            wakeup.clear()
            assert wakeup.block(TIMEOUT)
        assert len(tries) <= 4


class TestAlone:
    """Where no other process listens."""

    @pytest.fixture(autouse=True)
    def sure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(presence, "DISCOVERY_SECONDS", 0.0)

    @pytest.fixture
    def told(self, url: str) -> Iterator[Callable[[], list[str]]]:
        """What leaves the process from now on, words between ears left out; as heard by one of
        whom it does not know.
        """
        with psycopg.connect(url, autocommit=True) as spy:
            spy.execute("LISTEN longwatch")

            def told() -> list[str]:
                spy.execute("SELECT pg_notify('longwatch', 'end')")
                payloads = iter(each.payload for each in spy.notifies(timeout=TIMEOUT))
                return [
                    payload.partition("/")[2]
                    for payload in takewhile("end".__ne__, payloads)
                    if "/" in payload
                ]

            yield told

    def test_nobody_is_told(self, two: Two, told: Callable[[], list[str]]) -> None:
        here, _ = two
        listen_on(here, "x")
        notify(here, "x")
        assert [] == after(here, told)

    def test_who_does_not_listen_tells_everything(
        self, two: Two, told: Callable[[], list[str]]
    ) -> None:
        notify(two[0], "x")
        assert ["x"] == after(two[0], told)

    def test_a_user_s_commit_tells_nothing_and_notify_tells_it(
        self, two: Two, told: Callable[[], list[str]], url: str
    ) -> None:
        """The server makes commits with a NOTIFY wait for each other."""
        mailbox = open_mailbox(two[0], "work", int)
        mailbox.stats()
        told()
        with psycopg.connect(url) as connection:
            mailbox.send(1, tx=connection)
        assert [] == after(two[0], told)
        mailbox.notify()
        assert eventually(lambda: told() == ["work"])

    def test_who_begins_to_listen_is_told_from_then_on_and_looks_once_more(self, two: Two) -> None:
        here, there = two
        listen_on(here, "x")
        wakeup, wakes = Wakeup(), list[None]()
        wakeup.subscribe(lambda: wakes.append(None))
        there.listen("x", wakeup)
        assert eventually(lambda: len(wakes) == 2)  # it listens, and it is answered
        notify(here, "x")
        assert eventually(lambda: len(wakes) == 3)

    def test_who_listens_no_more_is_told_no_more(
        self, two: Two, told: Callable[[], list[str]]
    ) -> None:
        here, there = two
        listen_on(here, "x")
        listen_on(there, "x")
        presence = here._open()._listener.presence
        assert eventually(lambda: presence.may_have_peers)
        there.close()
        assert eventually(lambda: not presence.may_have_peers)
        notify(here, "x")
        assert [] == after(here, told)


class TestNotifications:
    def test_are_told_at_once_then_owed_until_the_gap_is_over_and_told_once(self) -> None:
        told: list[list[str]] = []
        heard = threading.Event()

        def tell(channels: list[str]) -> None:
            told.append(channels)
            heard.set()

        hints = NotifyThrottle(tell, min_interval=0.05)
        assert ["a"] == hints.take_due({"a"})
        assert [[], [], ["b"]] == [
            hints.take_due({"a"}),
            hints.take_due({"a"}),
            hints.take_due({"a", "b"}),
        ]
        for _ in range(2):
            hints.defer({"a"})
        assert heard.wait(TIMEOUT)
        hints.close()
        assert [["a"]] == told

    def test_that_are_owed_are_told_when_it_is_closed(self) -> None:
        told: list[list[str]] = []
        hints = NotifyThrottle(told.append, min_interval=1e9)  # longer than any machine has been up
        assert [["a"], []] == [hints.take_due({"a"}), hints.take_due({"a"})]
        hints.defer({"a"})
        hints.close()
        hints.close()
        assert [["a"]] == told

    def test_that_cannot_be_told_are_lost_and_the_next_are_told(self) -> None:
        heard = threading.Event()
        told: list[list[str]] = []

        def tell(channels: list[str]) -> None:
            told.append(channels)
            heard.set()
            if len(told) == 1:
                raise StoreUnreachableError("nobody")

        hints = NotifyThrottle(tell, min_interval=0.01)
        for expected in (1, 2):
            heard.clear()
            while hints.take_due({"a"}):
                pass
            hints.defer({"a"})
            assert heard.wait(TIMEOUT)
            assert expected <= len(told)
        hints.close()

    def test_of_channels_that_fell_silent_are_forgotten(self) -> None:
        hints = NotifyThrottle(lambda _: None, min_interval=0.0)
        for number in range(3000):
            hints.take_due({str(number)})
        assert len(hints._notified_at) <= 1001
