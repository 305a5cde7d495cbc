"""Producers and consumers that are killed: `crash_actors.py ROLE URL JOURNAL NUMBER` runs one until
something ends it.

Everything an actor does it writes down, in a file of its own that survives it:
    intend N · sent N                 before and after a send
    took N SEQ OWNER TERM             a delivery, with its receipt
    ran N                             its work is done, the engine may acknowledge it now
    acked N                           the engine has acknowledged it
    refused N · accepted-stale N      what became of a receipt that was stale for certain
A message that was settled in a transaction of the consumer's own stands in the table `ledger`, by
that same transaction.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longwatch.errors import ReceiptHandleExpiredError
from longwatch.mailbox import Mailbox, Message, Verdict, open_mailbox
from longwatch.mailbox.runner import MessageRunner
from longwatch.store.claims import Claim
from longwatch.work.context import WorkContext
from longwatch.work.engine import Engine, EnginePolicy
from longwatch.work.source import Exchange, Outcome, Settlement

POISON = "poison"
MAILBOX = "jobs"
CROWDED = 300
"""Messages in line at which a producer waits for the consumers."""


class Journal:
    """A file that lines are appended to; each is there in full or not at all."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, *words: object) -> None:
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())


class Actor:
    """One role in one process."""

    def __init__(self, url: str, journal: str, number: int) -> None:
        self.mailbox: Mailbox[Any] = open_mailbox(url, MAILBOX)
        self.store: Any = self.mailbox.backend.database  # type: ignore[attr-defined]
        self.journal = Journal(journal)
        self.number = number

    def produce(self) -> None:
        for n in range(self.number * 1_000_000, sys.maxsize, 3):
            if n % 10 == 0:
                self._wait_for_room()
            bodies = [n, n + 1, n + 2] if n % 2 else [n]
            self._noted("intend", bodies)
            self.mailbox.send_many(bodies) if len(bodies) > 1 else self.mailbox.send(n)
            self._noted("sent", bodies)

    def receive(self) -> None:
        while True:
            for message in self._taken(max_messages=5):
                self._settle_with_ledger(message)

    def dawdle(self) -> None:
        """Hold a message until its lease is over and somebody has swept it, then try to
        acknowledge it all the same.
        """
        while True:
            for message in self._taken(visibility_timeout=0.3):
                if message.delivery_count > 1:
                    self._settle_with_ledger(message)
                    continue
                time.sleep(0.4)
                self.mailbox.backend.sweep()
                self._acknowledge_stale(message)

    def work(self) -> None:
        engine = Engine(
            Witness(self), MessageRunner(self.mailbox, self._handle), policy=EnginePolicy(slots=3)
        )
        engine.start()
        threading.Event().wait()

    def _handle(self, message: Message[Any], context: WorkContext) -> None:
        """Every other message it settles by itself, in a transaction; the rest is the engine's."""
        self._take(message)
        if message.body % 2:
            self._settle_with_ledger(message)
        else:
            self.journal.note("ran", message.body)

    def _taken(self, **options: Any) -> Sequence[Message[Any]]:
        messages = self.mailbox.receive(wait_time_seconds=5, **options)
        for message in messages:
            self._take(message)
        return messages

    def _take(self, message: Message[Any]) -> None:
        self.journal.note("took", message.body, *message.receipt)
        if isinstance(message.body, str):
            os._exit(3)

    def _settle_with_ledger(self, message: Message[Any]) -> None:
        """Acknowledge and record in one transaction; if the receipt is stale, neither."""

        def settle(tx: Any) -> bool:
            if [Verdict.SETTLED] != self.mailbox.acknowledge_many([message], tx=tx):
                return False
            tx.execute("INSERT INTO ledger (n) VALUES (:n)", {"n": message.body})
            return True

        self.store.transact(settle)

    def _acknowledge_stale(self, message: Message[Any]) -> None:
        try:
            message.acknowledge()
        except ReceiptHandleExpiredError:
            self.journal.note("refused", message.body)
        else:
            self.journal.note("accepted-stale", message.body)

    def _wait_for_room(self) -> None:
        while self.mailbox.approximate_count() > CROWDED:
            time.sleep(0.05)

    def _noted(self, word: str, bodies: list[int]) -> None:
        for body in bodies:
            self.journal.note(word, body)


class Witness:
    """The mailbox as the engine sees it; what it acknowledged through it is written down."""

    def __init__(self, actor: Actor) -> None:
        self._backend = actor.mailbox.backend
        self._journal = actor.journal
        self._bodies: dict[Claim, Any] = {}
        self._decode = actor.mailbox.decode

    def exchange(self, settlements: Sequence[Settlement], **options: Any) -> Exchange:
        exchange = self._backend.exchange(settlements, **options)
        for settlement, settled in zip(settlements, exchange.settled, strict=True):
            body = self._bodies.pop(settlement.claim, None)
            if settled and settlement.outcome is Outcome.DONE:
                self._journal.note("acked", body)
        self._bodies |= {leased.claim: self._decode(leased.item) for leased in exchange.leased}
        return exchange

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


ROLES: dict[str, Callable[[Actor], None]] = {
    "produce": Actor.produce,
    "receive": Actor.receive,
    "dawdle": Actor.dawdle,
    "work": Actor.work,
}

if __name__ == "__main__":
    role, url, journal, number = sys.argv[1:]
    threading.Timer(600, os._exit, [4]).start()  # a test that went wrong leaves nothing for good
    Path(journal).parent.mkdir(exist_ok=True)
    ROLES[role](Actor(url, journal, int(number)))
