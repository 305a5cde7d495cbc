"""The server dies with work in flight: nothing is lost and nothing is done twice."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from chaos_plan import ChaosPlan
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.errors import MailboxConnectionError
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.mailbox.redis.store import RedisStore
from redis_server import FSYNC_ALWAYS, RedisServer, running_server, wait_until

ENOUGH = 100
"""Messages that are stored at the least."""


class Sender:
    """Sends numbers until it is told to stop; knows which were stored for certain, and which
    perhaps.
    """

    def __init__(self, mailbox: Mailbox[Any]) -> None:
        self.stored: list[int] = []
        self.possibly_stored: list[int] = []
        self._mailbox = mailbox
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()

    def _send(self) -> None:
        number = 0
        while not self._ending.is_set():
            batch = list(range(number, number + 20))
            number += 20
            try:
                self._mailbox.send_many(batch)
                self.stored += batch
            except MailboxConnectionError as error:
                self.possibly_stored += batch if "unknown" in str(error) else []
                self._ending.wait(0.01)


@pytest.mark.chaos
def test_a_server_killed_again_and_again_loses_no_message_and_doubles_none(
    chaos: ChaosPlan,
) -> None:
    """Every write is on disk before it is answered (appendfsync always), so a kill takes nothing
    that was promised.
    """
    dice, ran = chaos.random(), Counter[int]()
    with running_server(FSYNC_ALWAYS) as server:
        store = RedisStore(server.url)
        mailbox: Mailbox[Any] = partial(open_mailbox, store)("work", int)
        runner = MessageRunner(mailbox, lambda message, _: ran.update([message.body]))
        sender = Sender(mailbox)
        with Engine(mailbox.backend, runner, policy=EnginePolicy(slots=4)):
            kill_for(server, chaos.seconds, dice)
            wait_until(lambda: len(sender.stored) > ENOUGH, "enough is sent on a slow machine, too")
            sender.stop()
            wait_until(lambda: is_empty(mailbox), "all that was sent is settled")
        store.close()
    doubled = {number: times for number, times in ran.items() if times > 1}
    assert ({}, set()) == (doubled, set(sender.stored) - set(ran))
    assert set() == set(ran) - set(sender.stored) - set(sender.possibly_stored)


def kill_for(server: RedisServer, seconds: float, dice: random.Random) -> None:
    clock = SystemClock()
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        clock.wait(Wakeup(), dice.uniform(0.05, 0.8))
        server.kill()
        clock.wait(Wakeup(), dice.uniform(0.0, 0.5))
        server.start()


def is_empty(mailbox: Mailbox[Any]) -> bool:
    with suppress(MailboxConnectionError):
        return mailbox.approximate_count() == 0
    return False
