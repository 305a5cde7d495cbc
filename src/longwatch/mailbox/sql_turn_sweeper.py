"""Sweeps mailboxes for one engine in a SQL store that many machines share, by turns.

    turn of the table     dead owners that this host sees, and leases that have ended
    turn of a mailbox     due and expired messages, messages that wait
    lock of this host     dead owners that this host sees

`store.sweep_turns` describes the turns, `store.host_owners` the lock. An engine that has none of
them makes no call to the store, except to delete old dead letters (`mailbox.dead_retention`). One
round of an engine with turns is one transaction that reads, and a second one if there is something
to change.

A search for ended leases reads all leases of the table, because an index on their ends would make
every renewal dearer. So the time until the next search grows with the time that the last one took:
searches take at most `1 / LAPSE_PAUSE` of a connection, up to the longest pause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from longwatch.core.clock import Clock, SystemClock
from longwatch.engine.claim_source import GivenUp, SweepRound
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.dead_retention import DeadRetention
from longwatch.mailbox.sql_sweeper import (
    GivenUpHook,
    SqlSweeper,
    SweptMailbox,
    ignore_given_up_in,
)
from longwatch.store.blame import DEFAULT_BUDGET
from longwatch.store.claims import SELECTED_SQL, RowSelection
from longwatch.store.database import Database, Transaction
from longwatch.store.host_owners import sql_host_owners
from longwatch.store.named_sql import load_queries
from longwatch.store.scan_bound import LookBounds
from longwatch.store.sweep import SWEEP_BATCH, Candidates, ClaimSweeper, SweepPlan
from longwatch.store.sweep_turns import SqlTurnStorage, SweepTurns, WaitingQueues

TABLE = "longwatch_messages"
LOOK_INTERVAL = 1.0
"""Seconds between two looks of an engine that has a turn."""
LAPSE_PAUSE = 30
"""How many times longer than a search for ended leases the pause after it is."""
MAX_LAPSE_PAUSE = 30.0
"""The longest such pause, in seconds: an ended lease waits so long at most."""


class TurnMailbox(NamedTuple):
    """A mailbox that takes part: its name, the function that prepares it for a sweep, and after how
    many seconds its dead letters are deleted; None: never.
    """

    name: str
    prepare: Callable[[], SweptMailbox]
    retention: float | None

    @property
    def turn(self) -> str:
        return f"{TABLE}/{self.name}"


class _Found(NamedTuple):
    """What a look found: owners to inspect, mailboxes to change, the names of mailboxes in which
    messages wait, and the seconds until a message is due.
    """

    candidates: Candidates | None
    stale: list[SweptMailbox]
    waiting: list[str]
    next_due: float


class SqlTurnSweeper:
    """The `EngineSweeper` of an engine over these mailboxes."""

    def __init__(  # noqa: PLR0913 - a store, its sweepers, and the engine
        self,
        database: Database,
        sweeper: SqlSweeper,
        claim_sweeper: ClaimSweeper,
        mailboxes: Sequence[TurnMailbox],
        *,
        incarnation: Incarnation,
        selection: RowSelection,
        hook: GivenUpHook = ignore_given_up_in,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._sweeper = sweeper
        self._claim_sweeper = claim_sweeper
        self._mailboxes = mailboxes
        self._hook = hook
        self._clock = clock or SystemClock()
        names = [TABLE, *(each.turn for each in mailboxes)]
        self._turns = SweepTurns(
            SqlTurnStorage(database), names, holder=str(incarnation), clock=self._clock
        )
        self._owners = sql_host_owners(database, claim_sweeper, TABLE, self._clock)
        self._sql = _load(database.dialect, selection)
        self._bounds = LookBounds(database.scan_bounds, TABLE)
        self._waiting = WaitingQueues()
        retained = [each for each in mailboxes if each.retention is not None]
        self._retention = DeadRetention(
            partial(self._delete_old_dead_letters, retained) if retained else None, self._clock
        )
        self._held: frozenset[str] = frozenset()
        self._look_at = self._search_lapses_at = -inf

    def sweep(self, on_given_up: Callable[[GivenUp], None]) -> SweepRound:
        self._update_turns()
        led = [each for each in self._mailboxes if each.turn in self._held]
        changed = self._reclaim_dead(on_given_up)
        if self._held and self._clock.monotonic() >= self._look_at:
            changed += self._look_and_change(led, on_given_up)
        self._retention.apply(leads=bool(led))
        next_in = self._look_at - self._clock.monotonic() if self._held else None
        return SweepRound(changed, leads=bool(led), next_in=next_in)

    def pause(self) -> None:
        self._turns.pause()
        self._held = frozenset()
        self._owners.release()

    def close(self) -> None:
        self._owners.release()
        self._turns.release()

    def _update_turns(self) -> None:
        self._held = self._turns.update()
        if self._turns.gained:
            self._look_at = -inf
        if TABLE in self._turns.gained:  # other engines have looked meanwhile
            self._claim_sweeper.forget_lapses()
            self._search_lapses_at = -inf

    # --- a look and its changes ---

    def _look_and_change(
        self, led: Sequence[TurnMailbox], on_given_up: Callable[[GivenUp], None]
    ) -> int:
        now = self._clock.monotonic()
        mailboxes = [each.prepare() for each in led]
        searches_lapses = TABLE in self._held and now >= self._search_lapses_at
        found = self._database.read(lambda tx: self._look(tx, mailboxes, lapses=searches_lapses))
        self._look_at = now + min(LOOK_INTERVAL, found.next_due)
        self._waiting.notify(self._database, found.waiting)
        return self._change(found.candidates, found.stale, on_given_up)

    def _look(self, tx: Transaction, mailboxes: Sequence[SweptMailbox], *, lapses: bool) -> _Found:
        candidates = self._find_candidates(tx, lapses=lapses) if TABLE in self._held else None
        if not mailboxes:
            return _Found(candidates, [], [], inf)
        queues = [each.queue for each in mailboxes]
        parameters = {
            "queues": queues,
            "max_crashes": DEFAULT_BUDGET.max_crashes,
            "max_lost": DEFAULT_BUDGET.max_lost,
        }
        with self._bounds.begin_look(queues) as lows:
            rows = tx.rows(self._sql["look_at_queues"], {**parameters, "lows": lows})
        return _Found(
            candidates,
            self._sweeper.find_stale(tx, mailboxes),
            [name for name, is_waiting, _ in rows if is_waiting],
            min((float(due) for _, _, due in rows if due is not None), default=inf),
        )

    def _find_candidates(self, tx: Transaction, *, lapses: bool) -> Candidates:
        began = self._clock.monotonic()
        candidates = self._claim_sweeper.find_candidates(tx, lapses=lapses)
        if lapses:
            now = self._clock.monotonic()
            self._search_lapses_at = now + min(LAPSE_PAUSE * (now - began), MAX_LAPSE_PAUSE)
        return candidates

    def _reclaim_dead(self, on_given_up: Callable[[GivenUp], None]) -> int:
        candidates = self._owners.find_dead()
        return 0 if candidates is None else self._change(candidates, [], on_given_up)

    def _change(
        self,
        candidates: Candidates | None,
        stale: list[SweptMailbox],
        on_given_up: Callable[[GivenUp], None],
    ) -> int:
        plan = SweepPlan() if candidates is None else self._claim_sweeper.plan(candidates)
        if not stale and not any(plan):
            return 0
        dead_letters = self._mailboxes[0].prepare().dead_letters
        return self._sweeper.change(plan, stale, dead_letters, on_given_up, hook=self._hook)

    def _delete_old_dead_letters(self, mailboxes: Sequence[TurnMailbox]) -> bool:
        """Delete a batch, and return whether it was full."""
        parameters = {
            "queues": [each.prepare().queue for each in mailboxes],
            "retentions": [each.retention for each in mailboxes],
            "limit": SWEEP_BATCH,
        }
        query = self._sql["delete_old_dead_letters_of_queues"]
        return self._database.write(lambda tx: tx.execute(query, parameters)) >= SWEEP_BATCH


def _load(dialect: str, selection: RowSelection) -> dict[str, str]:
    """Load the queries. The budgets of each mailbox decide which messages are suspects."""
    selected = SELECTED_SQL[selection]
    for budget in ("max_crashes", "max_lost"):
        selected = selected.replace(f":{budget}", f"coalesce(mailbox.{budget}, :{budget})")
    return load_queries("longwatch.mailbox", "turn_queries", dialect, selected=selected)
