"""A mailbox's lane in a SQL store."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import Any, TypeVar

from longwatch.core.clock import Wakeup
from longwatch.errors import MailboxFullError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import Limits, whereabouts
from longwatch.mailbox.letters import DeadLetter, Delivery, Letter, Stats
from longwatch.store.claims import Blame, Claim, Claims
from longwatch.store.database import Database, Row, Transaction, VanishedError
from longwatch.store.named_sql import load_queries
from longwatch.store.sweep import Sweep
from longwatch.work.source import Exchange, Leased, Outcome, Settlement

T = TypeVar("T")

_IS_EXPIRED = "CASE WHEN expires_at <= :wall_now THEN 1 ELSE 0 END"
_IS_OPEN = (
    "NOT EXISTS (SELECT 1 FROM longwatch_mailboxes WHERE longwatch_mailboxes.lane = :lane AND "
    "paused <> 0)"
)
_OVERDUE_AT_ONCE = 500
_SPENT_AT_ONCE = 2000
_ANYBODY = Claim(0, 0, 0)
_DONE = Settlement(_ANYBODY, Outcome.DONE)
_BLAME = {Outcome.FAILED: Blame.FAILURE, Outcome.BACK: Blame.RELEASE}


class SqlBackend:
    """One lane of the `longwatch_messages` table."""

    def __init__(self, database: Database, name: str, *, limits: Limits | None = None) -> None:
        self.database = database
        self.name = name
        self.limits = limits or Limits()
        self._sql = load_queries("longwatch.mailbox", "queries", database.dialect)
        columns = (*Delivery._fields, _IS_EXPIRED, "keep_expired")
        self._claims = Claims(
            dialect=database.dialect,
            table="longwatch_messages",
            columns=columns,
            gate=_IS_OPEN,
            owners=database.owners,
        )
        self._sweep = Sweep(self._claims, is_shared=database.is_shared)
        self._lanes: dict[tuple[int, int], int] = {}

    @property
    def home(self) -> object:
        return self.database.identity

    # --- work.Source ---

    def enter(self, incarnation: Incarnation, *, page: str | None = None) -> int:
        return self.database.write(lambda tx: self._claims.register(tx, incarnation, page=page))

    def guest(self) -> int:
        return self.database.owners.guest(
            "longwatch_messages", lambda: self.enter(Incarnation.mine())
        )

    def exchange(
        self, settlements: Sequence[Settlement], *, owner: int, want: int, duration: float
    ) -> Exchange:
        lane = self._lane()
        if (
            not settlements
            and self.database.looks_first
            and not self.database.read(lambda tx: self._anything(tx, lane))
        ):
            return Exchange([], [])

        def work(tx: Transaction) -> Exchange:
            settled = self._settle(tx, settlements)
            return Exchange(settled, self._claim(tx, lane, owner, want, duration) if want else [])

        return self.database.write(work)

    def renew(self, *, owner: int, duration: float, skip: Collection[Claim] = ()) -> int:
        return self.database.write(
            lambda tx: self._claims.renew(tx, owner=owner, duration=duration, skip=skip)
        )

    def held(self, *, owner: int) -> list[Claim]:
        return self.database.read(lambda tx: self._claims.held(tx, owner=owner))

    def sweep(self) -> int:
        """Look first, on a reader; write only if there is something to do."""
        lane = self._lane()
        dead = self.database.read(self._sweep.dead_holders)
        if not dead and not self.database.read(lambda tx: self._is_stale(tx, lane)):
            return 0

        def work(tx: Transaction) -> int:
            freed = [
                lane for holder in dead for lane in self._sweep.bury(tx, holder)
            ] + self._sweep.lapsed(tx)
            freed += [lane] * (self._claims.free_the_due(tx, lane=lane) + self._expire(tx, lane))
            if self.limits.dead_retention is not None:
                tx.execute(
                    self._sql["forget_dead"],
                    {"lane": lane, "retention": self.limits.dead_retention},
                )
            self._announce(tx, freed)
            return len(freed)

        return self.database.write(work)

    def next_due(self) -> float | None:
        lane = self._lane()
        return self.database.read(lambda tx: self._claims.next_due(tx, lane=lane))

    def whereabouts(self) -> dict[str, str] | None:
        return whereabouts(self.database.address, self.name)

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        return self.database.listen(self.name, wakeup)

    # --- the rest of a backend ---

    def put(self, letters: Sequence[Letter], *, tx: Any = None) -> list[str]:
        if tx is not None:
            return self._put_in(self.database.join(tx), letters)
        return self._anew(lambda lane: self.database.write(lambda tx: self._put(tx, lane, letters)))

    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        return self._in(tx, lambda tx: self._settle(tx, settlements))

    def extend(self, claim: Claim, *, duration: float) -> bool:
        return self.database.write(lambda tx: self._claims.extend(tx, claim, duration=duration))

    def stats(self) -> Stats:
        return self._anew(lambda lane: self.database.read(lambda tx: self._stats(tx, lane)))

    def peek(self, *, limit: int) -> list[Delivery]:
        lane = self._lane()
        rows = self.database.read(
            lambda tx: tx.rows(self._sql["peek"], {"lane": lane, "limit": limit})
        )
        return [Delivery(*row) for row in rows]

    def cancel(self, message_id: str) -> bool:
        return self._execute("cancel", id=message_id) == 1

    def pause(self, *, paused: bool) -> None:
        lane = self._lane()

        def work(tx: Transaction) -> None:
            tx.execute(self._sql["pause"], {"lane": lane, "paused": int(paused)})
            tx.announce(self.name)

        self.database.write(work)

    def purge(self) -> int:
        return self._execute("purge")

    def dead(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        lane = self._lane()
        rows = self.database.read(
            lambda tx: tx.rows(self._sql["dead"], {"lane": lane, "after": after, "limit": limit})
        )
        return [self._dead_letter(row) for row in rows]

    def find_dead(self, message_id: str) -> DeadLetter | None:
        lane = self._lane()
        rows = self.database.read(
            lambda tx: tx.rows(self._sql["find_dead"], {"lane": lane, "id": message_id})
        )
        return self._dead_letter(rows[0]) if rows else None

    def replay(self, ids: Sequence[str]) -> list[bool]:
        lane = self._lane()

        def work(tx: Transaction) -> list[bool]:
            tx.announce(self.name)
            return [self._replay(tx, lane, each) for each in ids]

        return self.database.write(work)

    def drop(self, ids: Sequence[str]) -> list[bool]:
        lane = self._lane()
        return self.database.write(
            lambda tx: [
                tx.execute(self._sql["drop"], {"lane": lane, "id": each}) == 1 for each in ids
            ]
        )

    # --- inside a transaction ---

    def _claim(
        self, tx: Transaction, lane: int, owner: int, want: int, duration: float
    ) -> list[Leased]:
        """Lease rows; those that are spent go to the dead at once, before anybody runs them.

        So many of them at the most, because everybody else waits meanwhile; then those who receive
        are told to look again.
        """
        spent = 0
        while spent < _SPENT_AT_ONCE:
            rows = self._claims.claim(tx, lane=lane, owner=owner, duration=duration, limit=want)
            leased = [self._leased(row) for row in rows if not self._buried(tx, row)]
            if leased or not rows:
                return leased
            spent += len(rows) + self._expire(tx, lane)
        tx.announce(self.name)
        return []

    def _leased(self, row: Row) -> Leased:
        delivery = Delivery(*row[3:-2])
        return Leased(Claim(*row[:3]), delivery, alone=delivery.crashes > 0)

    def _buried(self, tx: Transaction, row: Row) -> bool:
        """Whether this row is spent; then it is buried, and this delivery never happened."""
        claim, delivery, (is_expired, is_kept) = Claim(*row[:3]), Delivery(*row[3:-2]), row[-2:]
        reason = self._spent(delivery, is_expired=bool(is_expired))
        if reason is None:
            return False
        if reason != "expired" or is_kept:
            self._bury(tx, claim, reason, undelivered=1)
        if reason == "expired":
            tx.execute(self._sql["count_expired"], {"name": self.name, "count": 1})
        self._claims.settle(tx, [claim])
        return True

    def _spent(self, delivery: Delivery, *, is_expired: bool) -> str | None:
        if delivery.crashes >= self.limits.max_crashes:
            return "poison"
        if delivery.failures >= self.limits.max_failures:
            return "failed"
        return "expired" if is_expired else None

    def _settle(self, tx: Transaction, settlements: Sequence[Settlement]) -> list[bool]:
        """In their order; those that end alike, side by side, together."""
        settled: list[bool] = []
        for manner, group in groupby(settlements, _manner):
            settled += self._settle_alike(tx, manner, [settlement.claim for settlement in group])
        return settled

    def _settle_alike(self, tx: Transaction, manner: Settlement, claims: list[Claim]) -> list[bool]:
        match manner.outcome:
            case Outcome.DONE:
                return self._claims.settle(tx, claims)
            case Outcome.DEAD:
                return [self._give_up(tx, claim, manner) for claim in claims]
            case outcome:
                tx.announce(self.name)
                return self._claims.release(
                    tx, claims, blame=_BLAME[outcome], delay=manner.delay, error=manner.error
                )

    def _give_up(self, tx: Transaction, claim: Claim, manner: Settlement) -> bool:
        self._bury(tx, claim, manner.reason, error=manner.error)
        return self._claims.settle(tx, [claim])[0]

    def _bury(
        self,
        tx: Transaction,
        claim: Claim,
        reason: str,
        *,
        error: str | None = None,
        undelivered: int = 0,
    ) -> None:
        facts = {"reason": reason, "error": error, "undelivered": undelivered}
        tx.execute(self._sql["bury"], {**claim._asdict(), **facts})

    def _expire(self, tx: Transaction, lane: int) -> int:
        """Messages that nobody took in their time: removed, or kept among the dead if that was
        asked for.
        """
        overdue = self._sql.get("overdue_for_burial", self._sql["overdue"])
        return self._expire_rows(tx, tx.rows(overdue, {"lane": lane, "limit": _OVERDUE_AT_ONCE}))

    def _expire_rows(self, tx: Transaction, rows: Sequence[Row]) -> int:
        if kept := [{"seq": seq} for seq, keep in rows if keep]:
            tx.execute_many(self._sql["bury_overdue"], kept)
        if rows:
            tx.execute_many(self._sql["remove"], [{"seq": seq} for seq, _ in rows])
            tx.execute(self._sql["count_expired"], {"name": self.name, "count": len(rows)})
        return len(rows)

    def _put_in(self, tx: Transaction, letters: Sequence[Letter]) -> list[str]:
        try:
            return self._put(tx, self._lanes.get(self._here()) or self._lane_in(tx), letters)
        except VanishedError:
            self._lanes = {}
            raise

    def _put(self, tx: Transaction, lane: int, letters: Sequence[Letter]) -> list[str]:
        self._lock_room(tx, lane)
        keys = {letter.dedupe_key for letter in letters if letter.dedupe_key is not None}
        repeated = sum(self._is_there(tx, lane, key) for key in keys)
        keyless = sum(letter.dedupe_key is None for letter in letters)
        self._require_room(tx, lane, keyless + len(keys) - repeated)
        tx.announce(self.name)
        if keys:
            return [self._put_one(tx, lane, letter) for letter in letters]
        tx.post_many(self._sql["put"], [_row(lane, letter) for letter in letters])
        return [letter.id for letter in letters]

    def _put_one(self, tx: Transaction, lane: int, letter: Letter) -> str:
        """Its id, or that of the one that bears its key; again if that one goes between the two
        looks.
        """
        while (
            tx.execute_many(self._sql["put"], [_row(lane, letter)]) == 0
            and letter.dedupe_key is not None
        ):
            for (first,) in tx.rows(
                self._sql["first_with_key"], {"lane": lane, "dedupe_key": letter.dedupe_key}
            ):
                return str(first)
        return letter.id

    def _is_there(self, tx: Transaction, lane: int, key: str) -> bool:
        """Whether a message bears this key; one that has expired, swept or not, does not stand
        for a new one.
        """
        self._expire_rows(
            tx, tx.rows(self._sql["overdue_with_key"], {"lane": lane, "dedupe_key": key})
        )
        return bool(tx.rows(self._sql["first_with_key"], {"lane": lane, "dedupe_key": key}))

    def _lock_room(self, tx: Transaction, lane: int) -> None:
        """Where several write at the same time, those who have to count come one after the
        other.
        """
        if self.limits.max_size is not None and (lock := self._sql.get("lock_room")):
            tx.rows(lock, {"lane": lane})

    def _require_room(self, tx: Transaction, lane: int, coming: int) -> None:
        """What has expired makes room."""
        most = self.limits.max_size
        if most is None:
            return
        present = self._present(tx, lane, most)
        if present + coming > most and self._expire(tx, lane):
            present = self._present(tx, lane, most)
        if present + coming > most:
            raise MailboxFullError(
                f"mailbox {self.name!r} holds {present} of {most} messages; let its workers "
                f"catch up, or raise max_size"
            )

    def _present(self, tx: Transaction, lane: int, most: int) -> int:
        [(present,)] = tx.rows(self._sql["room"], {"lane": lane, "most": most + 1})
        return int(present)

    def _stats(self, tx: Transaction, lane: int) -> Stats:
        for ready, delayed, leased, dead, age, paused, expired in tx.rows(
            self._sql["counts"], {"lane": lane}
        ):
            return Stats(
                ready,
                delayed,
                leased,
                dead,
                None if age is None else max(float(age), 0.0),
                bool(paused),
                expired,
            )
        raise VanishedError(
            f"mailbox {self.name!r} is gone, its store was restored or emptied meanwhile; ask again"
        )

    def _replay(self, tx: Transaction, lane: int, message_id: str) -> bool:
        parameters = {"lane": lane, "id": message_id}
        return (
            tx.execute(self._sql["replay"], parameters) == 1
            and tx.execute(self._sql["drop"], parameters) == 1
        )

    def _anything(self, tx: Transaction, lane: int) -> bool:
        due = self._claims.next_due(tx, lane=lane)
        return bool(tx.rows(self._sql["anything"], {"lane": lane})) or (
            due is not None and due <= 0
        )

    def _is_stale(self, tx: Transaction, lane: int) -> bool:
        """Whether a sweep would find something."""
        due = self._claims.next_due(tx, lane=lane)
        overdue = tx.rows(self._sql["overdue"], {"lane": lane, "limit": 1})
        return (
            bool(overdue)
            or (due is not None and due <= 0)
            or self._sweep.has_lapsed(tx)
            or self._has_old_dead(tx, lane)
        )

    def _has_old_dead(self, tx: Transaction, lane: int) -> bool:
        if self.limits.dead_retention is None:
            return False
        return bool(
            tx.rows(self._sql["old_dead"], {"lane": lane, "retention": self.limits.dead_retention})
        )

    def _announce(self, tx: Transaction, lanes: Collection[int]) -> None:
        """Rows of these lanes are free again; a sweep frees those of other mailboxes too."""
        for lane in set(lanes):
            for (name,) in tx.rows(self._sql["name_of"], {"lane": lane}):
                tx.announce(name)

    # --- small words ---

    def _lane(self) -> int:
        """The number of this mailbox, looked up once a process, and again when the store was
        found anew.
        """
        key = self._here()
        lane = self._lanes.get(key)
        if lane is None:
            found = self.database.read(
                lambda tx: tx.rows(self._sql["find_lane"], {"name": self.name})
            )
            lane = int(found[0][0]) if found else self.database.write(self._lane_in)
            self._lanes = {key: lane}
        return lane

    def _anew(self, call: Callable[[int], T]) -> T:
        """Call with the number of this mailbox; if that is gone, because the store was restored
        or emptied, with its new one.
        """
        try:
            return call(self._lane())
        except VanishedError:
            self._lanes = {}
            return call(self._lane())

    def _lane_in(self, tx: Transaction) -> int:
        """Looked for first: making it locks it until the transaction ends."""
        name = {"name": self.name}
        [(lane,)] = tx.rows(self._sql["find_lane"], name) or tx.rows(self._sql["lane"], name)
        return int(lane)

    def _here(self) -> tuple[int, int]:
        return os.getpid(), self.database.generation

    def _in(self, tx: Any, work: Callable[[Transaction], T]) -> T:
        return self.database.write(work) if tx is None else work(self.database.join(tx))

    def _execute(self, query: str, **parameters: object) -> int:
        lane = self._lane()
        return self.database.write(
            lambda tx: tx.execute(self._sql[query], {"lane": lane, **parameters})
        )

    def _dead_letter(self, row: Row) -> DeadLetter:
        return DeadLetter(row[0], self.name, *row[1:])


def names_in(database: Database) -> list[str]:
    """Every mailbox of a store, by name; a read."""
    names = load_queries("longwatch.mailbox", "queries", database.dialect)["names"]
    return [name for (name,) in database.read(lambda tx: tx.rows(names))]


def _manner(settlement: Settlement) -> Settlement:
    """How it ends, whoever it is about; those that are done are all alike."""
    return _DONE if settlement.outcome is Outcome.DONE else settlement._replace(claim=_ANYBODY)


def _row(lane: int, letter: Letter) -> dict[str, object]:
    return {
        "lane": lane,
        "delay": letter.delay,
        "id": letter.id,
        "expires_in": letter.expires_in,
        "keep_expired": int(letter.keep_expired),
        "dedupe_key": letter.dedupe_key,
        "reply_to": letter.reply_to,
        "body": letter.body,
    }
