"""Producers and consumers that are killed: `crash_client.py ROLE URL JOURNAL NUMBER` runs one until
something ends it.

A client writes everything it does to a journal that survives it:
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

from longwatch.engine.claim_source import ExchangeResult, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.errors import ReceiptHandleExpiredError
from longwatch.mailbox import Mailbox, Message, SettleResult, open_mailbox
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.store.claims import Claim

POISON = "poison"
MAILBOX = "jobs"
MAX_BACKLOG = 300
"""Messages in line at which a producer waits for the consumers."""


class Journal:
    """A file that lines are appended to; each is there in full or not at all."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())


class CrashClient:
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
            self._write_each("intend", bodies)
            self.mailbox.send_many(bodies) if len(bodies) > 1 else self.mailbox.send(n)
            self._write_each("sent", bodies)

    def receive(self) -> None:
        while True:
            for message in self._receive(max_messages=5):
                self._settle_with_ledger(message)

    def hold_past_lease(self) -> None:
        """Hold a message until its lease is over and somebody has swept it, then try to
        acknowledge it all the same.
        """
        while True:
            for message in self._receive(visibility_timeout=0.3):
                if message.delivery_count > 1:
                    self._settle_with_ledger(message)
                    continue
                time.sleep(0.4)
                self.mailbox.backend.sweep()
                self._acknowledge_stale(message)

    def work(self) -> None:
        engine = Engine(
            RecordingSource(self),
            MessageRunner(self.mailbox, self._handle),
            policy=EnginePolicy(slots=3),
        )
        engine.start()
        threading.Event().wait()

    def _handle(self, message: Message[Any], context: RowContext) -> None:
        """Every other message it settles by itself, in a transaction; the rest is the engine's."""
        self._record_delivery(message)
        if message.body % 2:
            self._settle_with_ledger(message)
        else:
            self.journal.write("ran", message.body)

    def _receive(self, **options: Any) -> Sequence[Message[Any]]:
        messages = self.mailbox.receive(wait_time_seconds=5, **options)
        for message in messages:
            self._record_delivery(message)
        return messages

    def _record_delivery(self, message: Message[Any]) -> None:
        self.journal.write("took", message.body, *message.receipt)
        if isinstance(message.body, str):
            os._exit(3)

    def _settle_with_ledger(self, message: Message[Any]) -> None:
        """Acknowledge and record in one transaction; if the receipt is stale, neither."""

        def settle(tx: Any) -> bool:
            if [SettleResult.SETTLED] != self.mailbox.acknowledge_many([message], tx=tx):
                return False
            tx.execute("INSERT INTO ledger (n) VALUES (:n)", {"n": message.body})
            return True

        self.store.transact(settle)

    def _acknowledge_stale(self, message: Message[Any]) -> None:
        try:
            message.acknowledge()
        except ReceiptHandleExpiredError:
            self.journal.write("refused", message.body)
        else:
            self.journal.write("accepted-stale", message.body)

    def _wait_for_room(self) -> None:
        while self.mailbox.approximate_count() > MAX_BACKLOG:
            time.sleep(0.05)

    def _write_each(self, word: str, bodies: list[int]) -> None:
        for body in bodies:
            self.journal.write(word, body)


class RecordingSource:
    """The mailbox as the engine sees it; what it acknowledged through it is written down."""

    def __init__(self, client: CrashClient) -> None:
        self._backend = client.mailbox.backend
        self._journal = client.journal
        self._bodies: dict[Claim, Any] = {}
        self._decode = client.mailbox.decode

    def exchange(self, settlements: Sequence[Settlement], **options: Any) -> ExchangeResult:
        exchange = self._backend.exchange(settlements, **options)
        for settlement, settled in zip(settlements, exchange.settled, strict=True):
            body = self._bodies.pop(settlement.claim, None)
            if settled and settlement.outcome is RowOutcome.DONE:
                self._journal.write("acked", body)
        self._bodies |= {leased.claim: self._decode(leased.item) for leased in exchange.claimed}
        return exchange

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


ROLES: dict[str, Callable[[CrashClient], None]] = {
    "produce": CrashClient.produce,
    "receive": CrashClient.receive,
    "dawdle": CrashClient.hold_past_lease,
    "work": CrashClient.work,
}

if __name__ == "__main__":
    role, url, journal, number = sys.argv[1:]
    threading.Timer(600, os._exit, [4]).start()  # a test that went wrong leaves nothing for good
    Path(journal).parent.mkdir(exist_ok=True)
    ROLES[role](CrashClient(url, journal, int(number)))
