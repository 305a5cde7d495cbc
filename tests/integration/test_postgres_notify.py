"""Hints over NOTIFY: within a process, to others, debounced, and through the loss of a
connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from itertools import takewhile
from typing import Any

import psycopg
import pytest

from longwatch.core.clock import Wakeup
from longwatch.core.deadline import Deadline
from longwatch.engine.hint_gate import HintGate
from longwatch.errors import StoreClosedError, StoreUnreachableError
from longwatch.mailbox import open_mailbox
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


def test_a_process_does_not_receive_its_own_notifications(two: Two) -> None:
    here, there = two
    mine, theirs, after = listen_on(here, "x"), listen_on(there, "x"), Wakeup()
    here.listen("after", after)
    notify(here, "x")
    mine.clear()
    assert theirs.block(TIMEOUT)
    notify(there, "after")
    assert after.block(TIMEOUT)
    assert not mine.is_set()


def test_an_engine_that_ignores_hints_is_woken_by_a_notification_for_all(two: Two) -> None:
    here, there = two
    behind, gate = listen_on(there, "behind"), HintGate(is_shared=True, fraction=lambda: 1.0)
    there.listen("x", gate)
    here.notify("x", "behind")
    assert behind.block(TIMEOUT)
    assert not gate.is_set()
    here.notify("x", to_all=True)
    assert gate.block(TIMEOUT)


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


def test_a_failed_commit_defers_the_notifications_of_earlier_commits_alone(two: Two) -> None:
    here, _ = two
    deferred: list[str] = []
    throttle = here._open()._throttle
    throttle.take_due = {"earlier"}.union  # type: ignore[method-assign,assignment]
    throttle.defer = deferred.extend  # type: ignore[method-assign,assignment] # any collection will do

    def fail(tx: Any) -> None:
        tx.notify("x")
        tx.defer_many("INSERT INTO nowhere SELECT unnest(:name::text[])", [{"name": "a"}])

    with pytest.raises(psycopg.errors.UndefinedTable):
        here.write(fail)
    assert ["earlier"] == deferred
    notify(here, "x")
    assert ["earlier"] == deferred


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


class TestPayloads:
    """What leaves the process, as a connection of the test receives it."""

    @pytest.fixture
    def sent(self, url: str) -> Iterator[Callable[[], list[str]]]:
        """The channels of each payload since the last call."""
        with psycopg.connect(url, autocommit=True) as spy:
            spy.execute("LISTEN longwatch")

            def sent() -> list[str]:
                spy.execute("SELECT pg_notify('longwatch', 'end')")
                payloads = iter(each.payload for each in spy.notifies(timeout=TIMEOUT))
                return [payload.partition("/")[2] for payload in takewhile("end".__ne__, payloads)]

            yield sent

    def test_processes_that_begin_and_cease_to_listen_send_none(
        self, url: str, sent: Callable[[], list[str]]
    ) -> None:
        """The start of a fleet costs no notification: processes do not know of each other."""
        with ExitStack() as databases:
            for _ in range(3):
                listen_on(databases.enter_context(PostgresDatabase(url)), "x")
        assert [] == sent()

    def test_a_commit_sends_one_for_all_its_channels(
        self, two: Two, sent: Callable[[], list[str]]
    ) -> None:
        notify(two[0], "x", "y")
        assert ["x\ny"] == after(two[0], sent)

    def test_commits_within_the_interval_share_one(
        self, two: Two, sent: Callable[[], list[str]]
    ) -> None:
        here, _ = two
        here._open()._throttle._min_interval = 60.0
        for channel in ("a", "b", "c", "b"):
            notify(here, channel)
        here._open()._throttle.close()
        assert ["a", "b\nc"] == sent()

    def test_a_user_s_commit_sends_none_and_notify_sends_it(
        self, two: Two, sent: Callable[[], list[str]], url: str
    ) -> None:
        """The server makes commits with a NOTIFY wait for each other."""
        mailbox = open_mailbox(two[0], "work", int)
        mailbox.stats()
        sent()
        with psycopg.connect(url) as connection:
            mailbox.send(1, tx=connection)
        assert [] == after(two[0], sent)
        mailbox.notify()
        assert eventually(lambda: sent() == ["work"])

    def test_more_channels_than_fit_wake_every_channel_of_other_processes(self, two: Two) -> None:
        here, there = two
        wakeup = listen_on(there, "another")
        notify(here, *(f"{number:0200}" for number in range(200)))
        assert wakeup.block(TIMEOUT)


class TestThrottle:
    def test_the_first_is_due_and_later_ones_are_collected_for_the_thread(self) -> None:
        sent: list[set[str]] = []
        has_sent = threading.Event()

        def send(channels: AbstractSet[str]) -> None:
            sent.append(set(channels))
            has_sent.set()

        throttle = NotifyThrottle(send, min_interval=0.05)
        assert {"a"} == throttle.take_due({"a"})
        assert [set(), set()] == [throttle.take_due({"a"}), throttle.take_due({"a", "b"})]
        for channels in ({"a"}, {"b"}, {"a"}):
            throttle.defer(channels)
        assert has_sent.wait(TIMEOUT)
        throttle.close()
        assert [{"a", "b"}] == sent

    def test_a_commit_after_the_interval_takes_the_deferred_ones_along(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(NotifyThrottle, "_start_thread", lambda _: None)
        throttle = NotifyThrottle(lambda _: None, min_interval=1e9)
        assert {"a"} == throttle.take_due({"a"})
        throttle.defer({"b"})
        throttle._notified_at = -1e9
        assert {"b", "c"} == throttle.take_due({"c"})
        throttle._notified_at = -1e9
        assert {"d"} == throttle.take_due({"d"})

    def test_deferred_ones_are_sent_at_close(self) -> None:
        sent: list[set[str]] = []
        throttle = NotifyThrottle(lambda each: sent.append(set(each)), min_interval=1e9)
        assert [{"a"}, set()] == [throttle.take_due({"a"}), throttle.take_due({"a"})]
        throttle.defer({"a"})
        throttle.close()
        throttle.close()
        assert [{"a"}] == sent

    def test_those_that_cannot_be_sent_are_lost_and_the_next_are_sent(self) -> None:
        has_tried = threading.Event()
        sent: list[AbstractSet[str]] = []

        def send(channels: AbstractSet[str]) -> None:
            sent.append(channels)
            has_tried.set()
            if len(sent) == 1:
                raise StoreUnreachableError("away")

        throttle = NotifyThrottle(send, min_interval=0.01)
        for expected in (1, 2):
            has_tried.clear()
            throttle.defer({"a"})
            assert has_tried.wait(TIMEOUT)
            assert expected <= len(sent)
        throttle.close()
