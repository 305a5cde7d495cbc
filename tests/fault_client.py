"""Producers and workers whose server fails: `fault_client.py ROLE URL JOURNAL NUMBER` runs one
until something ends it.

No process restarts them: whatever happens to the server, they have to recover by themselves. Each
writes to its journal:
    intend N · sent N · failed N      before a send, and how it ended
    took N CRASHES                    a delivery to a worker, and how many processes died of it
                                      before
    ran N · acked N                   its work is done; the engine has acknowledged it
    traded                            the engine has reached the server, at most every 50 ms
    lost CALL FAILURES · found CALL FAILURES    the engine's events of calls that failed, and that
                                                succeed again
    told EVENT                        any other event of the engine
In the environment, besides what `fault_environment` reads: FAULT_LEASE, the seconds of a worker's
lease.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import fault_environment  # noqa: F401 - the clock is shifted before anything else is imported
from longwatch.core.events.base import Event, Events
from longwatch.core.events.engine import ClaimSourceFailed, ClaimSourceRecovered
from longwatch.core.lease import LeasePolicy
from longwatch.engine.claim_source import ExchangeResult, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.errors import MailboxConnectionError
from longwatch.mailbox import Mailbox, Message, open_mailbox
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.store.claims import Claim

MAILBOX = "jobs"
MAX_SECONDS = 900.0
"""A test that went wrong leaves nothing for good."""
_SEND_INTERVAL = 0.01
_FAILURE_PAUSE = 0.1
_EXCHANGE_LOG_INTERVAL = 0.05
_NEVER = threading.Event()


class Journal:
    """A file that lines are appended to; each is there in full or not at all."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())

    def write_each(self, word: str, bodies: Sequence[int]) -> None:
        os.write(self._descriptor, "".join(f"{word} {body}\n" for body in bodies).encode())


class FaultClient:
    """One role in one process."""

    def __init__(self, url: str, journal: str, number: int) -> None:
        self.mailbox: Mailbox[Any] = open_mailbox(url, MAILBOX, int)
        self.journal = Journal(journal)
        self.number = number

    def produce(self) -> None:
        """One message, and three at once, in turn, at a pace that leaves the machine to others."""
        for n in range(self.number * 10_000_000, sys.maxsize, 3):
            bodies = [n, n + 1, n + 2] if n % 2 else [n]
            self.journal.write_each("intend", bodies)
            try:
                self.mailbox.send_many(bodies) if len(bodies) > 1 else self.mailbox.send(n)
            except MailboxConnectionError:
                self.journal.write_each("failed", bodies)
                _NEVER.wait(_FAILURE_PAUSE)
            else:
                self.journal.write_each("sent", bodies)
                _NEVER.wait(_SEND_INTERVAL)

    def work(self) -> None:
        self._run(self._handle, slots=3 + self.number % 6)

    def hold(self) -> None:
        """Work that never ends: what it took it has until its end."""
        self._run(self._hold_message, slots=4)

    def _run(self, handle: Callable[[Message[Any], RowContext], None], *, slots: int) -> None:
        policy = EnginePolicy(
            slots=slots, lease=LeasePolicy(float(os.environ.get("FAULT_LEASE", "30")))
        )
        engine = Engine(
            RecordingSource(self),
            MessageRunner(self.mailbox, handle),
            policy=policy,
            events=Events(self._record_event),
        )
        engine.start()
        _NEVER.wait()

    def _handle(self, message: Message[Any], context: RowContext) -> None:
        """Most are short; some last long enough to be in flight when something happens."""
        self.journal.write("took", message.body, context.claimed.item.crashes)
        _NEVER.wait(0.2 if message.body % 50 == 0 else 0.001)
        self.journal.write("ran", message.body)

    def _hold_message(self, message: Message[Any], context: RowContext) -> None:
        self.journal.write("took", message.body, context.claimed.item.crashes)
        _NEVER.wait()

    def _record_event(self, event: Event) -> None:
        match event:
            case ClaimSourceFailed():
                self.journal.write(
                    "lost", event.call, event.failures, event.error.replace("\n", " ")
                )
            case ClaimSourceRecovered():
                self.journal.write("found", event.call, event.failures)
            case _:
                self.journal.write("told", event.name)


class RecordingSource:
    """The mailbox as the engine sees it; what it acknowledged through it is written down."""

    def __init__(self, client: FaultClient) -> None:
        self._backend = client.mailbox.backend
        self._journal = client.journal
        self._decode = client.mailbox.decode
        self._bodies: dict[Claim, Any] = {}
        self._exchange_logged_at = 0.0

    def exchange(self, settlements: Sequence[Settlement], **options: Any) -> ExchangeResult:
        exchange = self._backend.exchange(settlements, **options)
        for settlement, settled in zip(settlements, exchange.settled, strict=True):
            body = self._bodies.pop(settlement.claim, None)
            if settled and settlement.outcome is RowOutcome.DONE:
                self._journal.write("acked", body)
        self._bodies |= {leased.claim: self._decode(leased.item) for leased in exchange.claimed}
        self._record_exchange()
        return exchange

    def _record_exchange(self) -> None:
        if time.monotonic() >= self._exchange_logged_at + _EXCHANGE_LOG_INTERVAL:
            self._exchange_logged_at = time.monotonic()
            self._journal.write("traded")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


ROLES: dict[str, Callable[[FaultClient], None]] = {
    "produce": FaultClient.produce,
    "work": FaultClient.work,
    "hold": FaultClient.hold,
}

if __name__ == "__main__":
    role, url, journal, number = sys.argv[1:]
    threading.Timer(MAX_SECONDS, os._exit, [4]).start()
    ROLES[role](FaultClient(url, journal, int(number)))
