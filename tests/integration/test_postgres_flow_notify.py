"""What an execution notifies on PostgreSQL, and that waiters in other processes are woken by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import takewhile

import psycopg
import pytest

from longwatch.flow import Flow, Graph
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.postgres.listener import PostgresListener
from longwatch.store.postgres.notify_throttle import NotifyThrottle
from postgres_server import shared_server

TIMEOUT = 30.0


def make_graph() -> Graph:
    graph = Graph("chain", version="1")
    graph.input("number")

    @graph.compute(after="number")
    def a(number: int) -> int:
        return number + 1

    @graph.compute(after="a")
    def b(a: int) -> int:
        return a + 1

    @graph.compute(after="b")
    def c(b: int) -> int:
        return b + 1

    return graph


@pytest.fixture
def url() -> Iterator[str]:
    with shared_server().database() as made:
        yield made


@pytest.fixture
def sent(url: str) -> Iterator[Callable[[], list[list[str]]]]:
    """The channels of each payload since the last call."""
    with psycopg.connect(url, autocommit=True) as spy:
        spy.execute("LISTEN longwatch")

        def sent() -> list[list[str]]:
            spy.execute("SELECT pg_notify('longwatch', 'end')")
            payloads = takewhile("end".__ne__, (each.payload for each in spy.notifies()))
            return [payload.partition("/")[2].split("\n") for payload in payloads]

        yield sent


@pytest.fixture
def flow(url: str) -> Iterator[Flow]:
    with PostgresDatabase(url) as database, Flow(database, [make_graph()]) as made:
        made.start("chain", number=0)
        yield made


def test_a_new_execution_notifies_the_workers_and_no_waiter(
    sent: Callable[[], list[list[str]]], flow: Flow
) -> None:
    """A caller can wait only for an execution that exists."""
    flow.database.read(lambda tx: tx.rows("SELECT 1"))  # answered after the notification
    flow.database._open()._throttle.close()  # type: ignore[attr-defined]
    assert [["flow/chain/1"]] == sent()


def test_quick_steps_share_notifications(
    flow: Flow, sent: Callable[[], list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NotifyThrottle.__init__.__kwdefaults__ or {}, "min_interval", 1000.0)
    with (
        PostgresDatabase(flow.database.url) as database,
        Flow(database, [make_graph()]) as other,
        other.worker(concurrency=2),
    ):
        execution = other.start("chain", number=1)
        assert 4 == execution.get("c", timeout=TIMEOUT)
        database.close()
        payloads = sent()
    assert len(payloads) <= 2
    assert f"execution/{execution.id}/c" in payloads[-1]


def test_a_waiter_of_another_process_is_woken_by_the_notification(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wake interval never passes, so that only the notification can wake it."""
    monkeypatch.setitem(PostgresListener.__init__.__kwdefaults__ or {}, "wake_interval", 1000.0)
    found: list[int] = []
    with ExitStack() as ends:
        database = ends.enter_context(PostgresDatabase(flow.database.url))
        elsewhere = ends.enter_context(Flow(database, [make_graph()]))
        execution = flow.start("chain")
        waiting = elsewhere.execution(execution.id)
        has_listened = threading.Event()
        listen = database.listen

        def listen_and_report(*arguments: object) -> Callable[[], None]:
            leave = listen(*arguments)  # type: ignore[arg-type]
            has_listened.set()
            return leave

        database.listen = listen_and_report  # type: ignore[method-assign,assignment]
        waiter = threading.Thread(target=lambda: found.append(waiting.get("c", timeout=TIMEOUT)))
        waiter.start()
        assert has_listened.wait(TIMEOUT)
        with flow.worker(concurrency=1):
            execution.set(number=1)
            waiter.join()
    assert [4] == found
