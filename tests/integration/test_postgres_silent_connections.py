"""Connections that stay open and are silent for good: found out within a part of the call's
time, and nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from longwatch.core.clock import Wakeup
from longwatch.core.deadline import Deadline
from longwatch.mailbox import open_mailbox
from longwatch.store.notify.listener import Received
from longwatch.store.postgres import connection, listener
from longwatch.store.postgres.connection import PostgresConnection
from longwatch.store.postgres.connector import ServerAddress
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.postgres.listener import PostgresListener
from loopback import TcpProxy
from polling import eventually
from postgres_server import shared_server


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with TcpProxy(shared_server().port) as proxy:
        yield proxy


@pytest.fixture
def url(proxy: TcpProxy) -> Iterator[str]:
    """By way of the proxy."""
    with shared_server().database() as direct:
        yield direct.replace(str(shared_server().port), str(proxy.port))


@pytest.fixture
def database(url: str) -> Iterator[PostgresDatabase]:
    with PostgresDatabase(url) as database:
        yield database


def silence_connections(proxy: TcpProxy) -> None:
    """Every connection that there is, but no new one."""
    proxy.blackhole()
    proxy.forward()


def test_a_read_on_a_silent_connection_is_made_again_on_a_new_one(
    proxy: TcpProxy, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PROBE_TIMEOUT", 0.1)
    database.read(lambda tx: tx.rows("SELECT 1"))
    silence_connections(proxy)
    assert [(1,)] == database.read(lambda tx: tx.rows("SELECT 1"))
    assert [(1,)] == database.write(lambda tx: tx.rows("SELECT 1"))


def test_a_quarter_of_the_time_is_the_most_that_is_waited_for_it(
    proxy: TcpProxy, database: PostgresDatabase
) -> None:
    database.read(lambda tx: tx.rows("SELECT 1"))
    silence_connections(proxy)
    assert [(1,)] == database.read(lambda tx: tx.rows("SELECT 1"), timeout=4.0)


def test_messages_sent_on_connections_that_fall_silent_again_and_again_are_there_once(
    proxy: TcpProxy, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PROBE_TIMEOUT", 0.1)
    mailbox = open_mailbox(database, "work", int)
    for number in range(5):
        mailbox.send(number)
        silence_connections(proxy)
    assert list(range(5)) == [message.body for message in mailbox.receive(max_messages=10)]


def test_a_statement_may_take_longer_than_the_proof(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.read(lambda tx: tx.rows("SELECT 1"))
    monkeypatch.setattr(connection, "PROBE_TIMEOUT", 0.2)
    pids = [
        database.read(lambda tx: tx.rows("SELECT pg_backend_pid(), pg_sleep(0.6)"))[0][0]
        for _ in range(2)
    ]
    assert pids[0] == pids[1], "it was not given up"


def test_a_send_is_one_round_trip_though_its_connection_has_to_prove_itself(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = open_mailbox(database, "work", int)
    mailbox.send(1)
    answers: list[int] = []
    real = PostgresConnection.sync

    def answer(wire: PostgresConnection, *arguments: Any, **options: Any) -> Any:
        answers.append(1)
        return real(wire, *arguments, **options)

    monkeypatch.setattr(PostgresConnection, "sync", answer)
    mailbox.send(2)
    assert [1] == answers


class TestTheListener:
    @pytest.fixture
    def wires(self) -> list[PostgresConnection]:
        return []

    @pytest.fixture
    def ear(
        self, url: str, wires: list[PostgresConnection], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[PostgresListener]:
        """One that asks after a moment of silence."""
        monkeypatch.setattr(listener, "SILENT_INTERVALS", 2)
        monkeypatch.setattr(listener, "_ANSWER_TIMEOUT", 0.3)

        def connect(deadline: Deadline) -> PostgresConnection:
            wires.append(ServerAddress(url).connect(deadline))
            return wires[-1]

        ear = PostgresListener(connect, client_id="me", wake_interval=0.01)
        with ExitStack() as ends:
            ends.callback(ear.close)
            ear.listen("x", Wakeup())
            yield ear

    @pytest.mark.usefixtures("ear")
    def test_asks_a_silent_server_whether_it_is_there_and_keeps_what_answers(
        self, url: str, wires: list[PostgresConnection]
    ) -> None:
        name = url.rpartition("/")[2]
        asked = (
            f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND query = 'SELECT 1'"
        )
        for _ in range(3):
            assert eventually(lambda: shared_server().sql(asked) == [(1,)])
        assert 1 == len(wires)

    @pytest.mark.usefixtures("ear")
    def test_makes_a_new_connection_when_its_own_is_silent_and_hears_on(
        self,
        proxy: TcpProxy,
        wires: list[PostgresConnection],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        assert eventually(lambda: len(wires) == 1)
        silence_connections(proxy)
        assert eventually(lambda: len(wires) == 2)
        heard: list[list[str]] = []

        def decode(_: str, payloads: list[str]) -> Received:
            heard.append(payloads)
            return Received()

        monkeypatch.setattr(listener, "decode_payloads", decode)
        assert eventually(lambda: _announced(heard))


def _announced(heard: list[list[str]]) -> bool:
    shared = shared_server()
    for (name,) in shared.sql(
        "SELECT datname FROM pg_stat_activity WHERE query IN ('LISTEN longwatch', 'SELECT 1')"
    ):
        shared.sql("SELECT pg_notify('longwatch', 'other/x')", name)
    return ["other/x"] in heard
