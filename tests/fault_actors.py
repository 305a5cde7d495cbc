"""Producers and workers whose server fails: `fault_actors.py ROLE URL JOURNAL NUMBER` runs one
until something ends it.

Nobody restarts them: whatever happens to the server, they have to come back by themselves. Each
writes down what it does:
    intend N · sent N · failed N      before a send, and how it ended
    took N CRASHES                    a delivery to a worker, and how many processes died of it
                                      before
    ran N · acked N                   its work is done; the engine has acknowledged it
    traded                            the engine has talked to the server, at the most every 50 ms
    lost CALL FAILURES · found CALL FAILURES    what the engine told of calls that failed, and that
                                                they work again
    told EVENT                        whatever else it told
In the environment, besides what `fault_world` reads: FAULT_LEASE, the seconds of a worker's lease.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import fault_world  # noqa: F401 - the clock is shifted before anything else is imported
from longwatch.core.events import Event, Events, SourceFailed, SourceRecovered
from longwatch.core.lease import LeasePolicy
from longwatch.errors import MailboxConnectionError
from longwatch.mailbox import Mailbox, Message, open_mailbox
from longwatch.mailbox.runner import MessageRunner
from longwatch.store.claims import Claim
from longwatch.work.context import WorkContext
from longwatch.work.engine import Engine, EnginePolicy
from longwatch.work.source import Exchange, Outcome, Settlement

MAILBOX = "jobs"
MOST_SECONDS = 900.0
"""A test that went wrong leaves nothing for good."""
_PACE = 0.01
_AFTER_A_FAILURE = 0.1
_TRADES_APART = 0.05
_NEVER = threading.Event()


class Journal:
    """A file that lines are appended to; each is there in full or not at all."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, *words: object) -> None:
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())

    def note_each(self, word: str, bodies: Sequence[int]) -> None:
        os.write(self._descriptor, "".join(f"{word} {body}\n" for body in bodies).encode())


class Actor:
    """One role in one process."""

    def __init__(self, url: str, journal: str, number: int) -> None:
        self.mailbox: Mailbox[Any] = open_mailbox(url, MAILBOX, int)
        self.journal = Journal(journal)
        self.number = number

    def produce(self) -> None:
        """One message, and three at once, in turn, at a pace that leaves the machine to others."""
        for n in range(self.number * 10_000_000, sys.maxsize, 3):
            bodies = [n, n + 1, n + 2] if n % 2 else [n]
            self.journal.note_each("intend", bodies)
            try:
                self.mailbox.send_many(bodies) if len(bodies) > 1 else self.mailbox.send(n)
            except MailboxConnectionError:
                self.journal.note_each("failed", bodies)
                _NEVER.wait(_AFTER_A_FAILURE)
            else:
                self.journal.note_each("sent", bodies)
                _NEVER.wait(_PACE)

    def work(self) -> None:
        self._run(self._handle, slots=3 + self.number % 6)

    def hold(self) -> None:
        """Work that never ends: what it took it has until its end."""
        self._run(self._keep, slots=4)

    def _run(self, handle: Callable[[Message[Any], WorkContext], None], *, slots: int) -> None:
        policy = EnginePolicy(
            slots=slots, lease=LeasePolicy(float(os.environ.get("FAULT_LEASE", "30")))
        )
        engine = Engine(
            Witness(self),
            MessageRunner(self.mailbox, handle),
            policy=policy,
            events=Events(self._hear),
        )
        engine.start()
        _NEVER.wait()

    def _handle(self, message: Message[Any], context: WorkContext) -> None:
        """Most are short; some last long enough to be in flight when something happens."""
        self.journal.note("took", message.body, context.leased.item.crashes)
        _NEVER.wait(0.2 if message.body % 50 == 0 else 0.001)
        self.journal.note("ran", message.body)

    def _keep(self, message: Message[Any], context: WorkContext) -> None:
        self.journal.note("took", message.body, context.leased.item.crashes)
        _NEVER.wait()

    def _hear(self, event: Event) -> None:
        match event:
            case SourceFailed():
                self.journal.note(
                    "lost", event.call, event.failures, event.error.replace("\n", " ")
                )
            case SourceRecovered():
                self.journal.note("found", event.call, event.failures)
            case _:
                self.journal.note("told", event.name)


class Witness:
    """The mailbox as the engine sees it; what it acknowledged through it is written down."""

    def __init__(self, actor: Actor) -> None:
        self._backend = actor.mailbox.backend
        self._journal = actor.journal
        self._decode = actor.mailbox.decode
        self._bodies: dict[Claim, Any] = {}
        self._traded_at = 0.0

    def exchange(self, settlements: Sequence[Settlement], **options: Any) -> Exchange:
        exchange = self._backend.exchange(settlements, **options)
        for settlement, settled in zip(settlements, exchange.settled, strict=True):
            body = self._bodies.pop(settlement.claim, None)
            if settled and settlement.outcome is Outcome.DONE:
                self._journal.note("acked", body)
        self._bodies |= {leased.claim: self._decode(leased.item) for leased in exchange.leased}
        self._note_trade()
        return exchange

    def _note_trade(self) -> None:
        if time.monotonic() >= self._traded_at + _TRADES_APART:
            self._traded_at = time.monotonic()
            self._journal.note("traded")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


ROLES: dict[str, Callable[[Actor], None]] = {
    "produce": Actor.produce,
    "work": Actor.work,
    "hold": Actor.hold,
}

if __name__ == "__main__":
    role, url, journal, number = sys.argv[1:]
    threading.Timer(MOST_SECONDS, os._exit, [4]).start()
    ROLES[role](Actor(url, journal, int(number)))
