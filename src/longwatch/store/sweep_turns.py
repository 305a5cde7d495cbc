"""Turns: one engine of a fleet sweeps a queue or a table, however many engines there are.

A store that many machines share keeps for each turn its holder and when it ends, on the store's
lease clock: SQL in a row of `longwatch_sweeps`, Redis in the hash of the mailbox. Every engine asks
for the turns that its queue needs.

    waiting ──free, ended, or its holder is dead──► held ─┐
       ▲                                            │  ▲  │ EXTEND_SECONDS are left: extend
       └── released, paused, lost, not extended ────┘  └──┘

What a turn allows
    the turn of a table   search the leases of the table that have ended, and the dead owners that
                          this host can see. On Redis a mailbox has its own leases and owners, so
                          the turn of its queue allows this too.
    the turn of a queue   look at it once a second: free due rows, give up expired ones, count
                          suspects. If a free row waits, notify: this finds rows of a user's
                          transaction, and rows whose hint no engine answered (`engine.hint_gate`).
                          If rows still wait at the next look, no engine may ignore the
                          notification. Also look when the next delayed row is due. Once a minute,
                          delete old dead letters. Engines with a retention and without the turn do
                          that about once an hour (`mailbox.dead_retention`).

Invariants
    1. A turn saves work and protects nothing. Sweeps of two engines do not disturb each other
       (`sweep`), so a holder that is late by some milliseconds does no harm.
    2. The holder stops counting before the store does: from the moment before it sent the request,
       on `Clock.boottime()`. After a gap (suspend, SIGSTOP) it has no turn.
    3. An engine whose own leases are not trusted neither sweeps nor extends (`pause`).
    4. An engine that waits calls the store only when the turn that it knows of has ended, with a
       random delay. An engine on the host of the holder sees whether the holder is dead, without
       the store, and then takes the turn at once.
    5. In SQL, no transaction waits for the row of a turn. A row that another transaction has locked
       is not taken. A process that froze in the middle keeps it locked until the server ends its
       transaction (`idle_in_transaction_session_timeout`).

Failure cases
    - The holder is killed. Engines of its host take the turn within a second or so, others when it
      ends.
    - The holder stops cleanly. It releases the turn. The others ask when the turn would have ended,
      or when they see that its process has ended.
    - The holder stands still, or cannot reach the server: the turn ends. Until then the engines of
      its host wait too, because its process lives.
    - The server's clock steps forward: the turn ends early. Backward: the turn would last longer
      than any turn can, so it counts as ended.
    - The store is restored to an older state: an old turn has ended, or ends soon. The holder finds
      that it has lost the turn when it extends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple, Protocol

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.jitter import random_fraction
from longwatch.errors import StoreError
from longwatch.store.database import Database
from longwatch.store.named_sql import load_queries
from longwatch.store.sweep import parse_incarnation

TURN_SECONDS = 5.0
EXTEND_SECONDS = 3.5
"""An engine extends its turn when it has no more than this left. One that asks for the turn is told
the rest, and asks again after it. So early extensions make the many that wait ask less often.
"""
TURN_JITTER = 2.5
"""The most seconds that an engine waits beyond the end of a turn before it asks for it."""
RELEASE_TIMEOUT = 1.0
"""The most seconds that an engine that stops waits for the store to release its turns."""


class StoredTurn(NamedTuple):
    """A turn as the store has it: its holder, empty if there is none, and when it ends."""

    holder: str = ""
    seconds_left: float = 0.0


class TurnStorage(Protocol):
    """Keeps turns for all engines of a store. Methods block on the store and raise its errors."""

    def find(self, names: Sequence[str]) -> dict[str, StoredTurn]:
        """Return these turns. A turn that no engine has ever had may be missing."""

    def take(
        self, names: Sequence[str], *, holder: str, ended: Sequence[str], seconds: float
    ) -> set[str]:
        """Give these turns to the holder for some seconds, and return those that it got.

        It gets a turn that is free, is its own, has ended, would last longer than two turns, or is
        that of a holder in `ended`. Idempotent.
        """

    def release(self, names: Sequence[str], *, holder: str) -> None:
        """Free those of these turns that the holder has. Waits only briefly. Idempotent."""


class SqlTurnStorage:
    """Turns as rows of a SQL database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = load_queries("longwatch.store", "sweep_turns", database.dialect)

    def find(self, names: Sequence[str]) -> dict[str, StoredTurn]:
        query, parameters = self._sql["find_turns"], {"sweeps": list(names)}
        rows = self._database.read(lambda tx: tx.rows(query, parameters))
        found = {name: StoredTurn(holder or "", float(left or 0.0)) for name, holder, left in rows}
        if missing := sorted({*names} - {*found}):
            insert = self._sql["insert_turns"]
            self._database.write(lambda tx: tx.execute(insert, {"sweeps": missing}))
        return found

    def take(
        self, names: Sequence[str], *, holder: str, ended: Sequence[str], seconds: float
    ) -> set[str]:
        parameters = {
            "sweeps": list(names),
            "ended": list(ended),
            "holder": holder,
            "seconds": seconds,
        }
        query = self._sql["take_turns"]
        return {name for (name,) in self._database.write(lambda tx: tx.rows(query, parameters))}

    def release(self, names: Sequence[str], *, holder: str) -> None:
        query, parameters = self._sql["release_turns"], {"sweeps": list(names), "holder": holder}
        self._database.write(lambda tx: tx.execute(query, parameters), timeout=RELEASE_TIMEOUT)


class WaitingQueues:
    """Counts in how many looks in a row the holder of a turn has found rows that wait in a queue.

    Idle engines answer few hints. If most engines of a fleet are busy, the few idle ones may ignore
    every hint for seconds. So the second look that finds waiting rows notifies every engine, and so
    do the 4th, the 8th and so on. They are rare, because rows that wait for long usually wait for a
    busy fleet or a cap, and idle engines would ask for them in vain.
    """

    def __init__(self) -> None:
        self._looks: dict[str, int] = {}

    def asks_all(self, name: str) -> bool:
        """Return whether a look that finds waiting rows now has to notify every engine."""
        looks = self._looks.get(name, 0) + 1
        return looks > 1 and looks.bit_count() == 1

    def record(self, waiting: Iterable[str]) -> None:
        """Count a look. `waiting`: the queues in which it found rows that wait."""
        self._looks = {name: self._looks.get(name, 0) + 1 for name in waiting}

    def notify(self, database: Database, waiting: Sequence[str]) -> None:
        """Notify the engines of the queues in which a look found rows that wait, and count it."""
        if waiting:
            database.notify(*waiting)
        if ignored := [name for name in waiting if self.asks_all(name)]:
            database.notify(*ignored, to_all=True)
        self.record(waiting)


class SweepTurns:
    """The turns that one engine asks for. Not thread-safe. `holder` is its incarnation."""

    def __init__(
        self, storage: TurnStorage, names: Iterable[str], *, holder: str, clock: Clock | None = None
    ) -> None:
        self._storage = storage
        self._holder = holder
        self._clock = clock or SystemClock()
        self._held_until = dict.fromkeys(sorted(names), -inf)
        """By turn, when it ends if it is not extended, on `Clock.boottime()`."""
        self._ask_at = -inf
        """When to ask for the turns that others have."""
        self._other_holders: frozenset[str] = frozenset()
        self.gained: frozenset[str] = frozenset()
        """The turns that the last `update` got and that other engines may have had before it."""

    def update(self) -> frozenset[str]:
        """Return the turns that the engine has now. Calls the store only to extend a turn, and to
        ask for those of others when these may have ended.
        """
        now = self._clock.boottime()
        held = {name: until for name, until in self._held_until.items() if now < until}
        due = [name for name, until in held.items() if until - now <= EXTEND_SECONDS]
        if len(held) < len(self._held_until) and self._should_ask(now):
            self._ask([name for name in self._held_until if name not in held], due, now)
        elif due:
            self._take(due, (), now)
        now = self._clock.boottime()
        found = frozenset(name for name, until in self._held_until.items() if now < until)
        self.gained = found.difference(held)
        return found

    def pause(self) -> None:
        """Have no turn any more, without a call to the store. The next `update` asks again."""
        self._held_until = dict.fromkeys(self._held_until, -inf)
        self._ask_at = -inf

    def release(self) -> None:
        """Give the turns up, for engines that ask later. Waits for the store only briefly."""
        held = [name for name, until in self._held_until.items() if until > -inf]
        self.pause()
        if held:
            with suppress(StoreError):  # the turns end by themselves
                self._storage.release(held, holder=self._holder)

    def _should_ask(self, now: float) -> bool:
        return now >= self._ask_at or any(map(_has_ended, self._other_holders))

    def _ask(self, waiting: Sequence[str], due: Sequence[str], now: float) -> None:
        """Take those of the waiting turns that are free, and extend those that are due."""
        found = self._storage.find(waiting)
        ended = [turn.holder for turn in found.values() if _has_ended(turn.holder)]
        free = [name for name in waiting if self._is_free(found.get(name, StoredTurn()), ended)]
        self._plan_next_ask([found[name] for name in waiting if name not in free], now)
        self._take([*free, *due], ended, now)

    def _plan_next_ask(self, turns: Sequence[StoredTurn], now: float) -> None:
        """Ask when the last of these turns of other engines may have ended."""
        longest = max((turn.seconds_left for turn in turns), default=0.0)
        self._ask_at = now + longest + TURN_JITTER * random_fraction()
        self._other_holders = frozenset(turn.holder for turn in turns)

    def _is_free(self, turn: StoredTurn, ended: Sequence[str]) -> bool:
        return (
            turn.holder in {"", self._holder, *ended}
            or not 0 < turn.seconds_left <= 2 * TURN_SECONDS
        )

    def _take(self, names: Iterable[str], ended: Iterable[str], now: float) -> None:
        """Take those of the turns that are still free, or extend them. `now`: before any call."""
        wanted = sorted(names)
        if not wanted:
            return
        taken = self._storage.take(
            wanted, holder=self._holder, ended=list(ended), seconds=TURN_SECONDS
        )
        for name in wanted:
            self._held_until[name] = now + TURN_SECONDS if name in taken else -inf
        if len(taken) < len(wanted):  # another engine was faster, or froze while it took them
            self._ask_at = min(self._ask_at, now + TURN_JITTER * random_fraction())


def _has_ended(holder: str) -> bool:
    """Whether this process can see that the holder has ended."""
    incarnation = parse_incarnation(holder)
    return incarnation is not None and incarnation.is_dead()
