"""A server that restarts under a working engine: nothing is lost, nothing is done twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sized
from functools import partial

import pytest

from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.store.postgres.database import PostgresDatabase
from polling import eventually
from postgres_server import PostgresServer, destroy_server, make_server

MESSAGES = 3000


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    made = make_server()
    made.start()
    yield made
    destroy_server(made)


def crash(server: PostgresServer) -> None:
    server.kill()


def stop_at_once(server: PostgresServer) -> None:
    server.stop("immediate")


def stop_in_order(server: PostgresServer) -> None:
    server.stop("fast")


@pytest.mark.parametrize("end", [crash, stop_at_once, stop_in_order])
def test_work_goes_on_when_the_server_is_back_and_every_message_was_handled_once(
    server: PostgresServer, end: Callable[[PostgresServer], None]
) -> None:
    handled: Counter[int] = Counter()
    lock = threading.Lock()
    sent: set[int] = set()

    def handle(message: object, _: object) -> None:
        with lock:
            handled[message.body] += 1  # type: ignore[attr-defined]

    with PostgresDatabase(server.url()) as database, PostgresDatabase(server.url()) as senders:
        work, source = open_mailbox(database, "work", int), open_mailbox(senders, "work", int)

        def send() -> None:
            for start in range(0, MESSAGES, 10):
                numbers = range(start, start + 10)
                source.send_many(numbers)
                sent.update(numbers)

        with Engine(work.backend, MessageRunner(work, handle), policy=EnginePolicy(slots=4)):
            sending = threading.Thread(target=send)
            sending.start()
            for part in (4, 2):
                assert eventually(partial(reached, handled, MESSAGES // part))
                end(server)
                server.start()
            sending.join()
            assert eventually(lambda: work.approximate_count() == 0)
        assert 0 == len(work.dead_letters)
    assert MESSAGES == len(sent)
    assert dict.fromkeys(range(MESSAGES), 1) == dict(handled)


def reached(things: Sized, count: int) -> bool:
    return len(things) > count
