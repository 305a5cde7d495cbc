"""Mailboxes in the memory of one process: for tests, and for work that may be forgotten when the
process ends.

The same rules as in a SQL store, kept by one lock. What is in memory belongs to one process:
another that opens the same URL has a store of its own, and so has a forked child, which starts
empty, because two processes with a copy each would both do the work.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count, dropwhile, islice
from typing import Any, NoReturn, Self

from longwatch.core.clock import Wakeup
from longwatch.errors import MailboxFullError, UnsupportedError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import Limits
from longwatch.mailbox.letters import DeadLetter, Delivery, Letter, Stats
from longwatch.mailbox.memory_lane import Held, Lane, Row
from longwatch.store.claims import Blame, Claim
from longwatch.store.database import Jump, Owners
from longwatch.store.sweep import Holder, judge
from longwatch.work.source import Exchange, Leased, Outcome, Settlement

_SHARED: dict[str, MemoryStore] = {}
_NO_TRANSACTION = (
    "messages in memory take part in no transaction; leave tx= out, or open a sqlite:/// store"
)


def shared_memory(key: str) -> MemoryStore:
    """The store that everybody in this process finds under `memory://KEY`. It lives as long as
    the process.
    """
    return _SHARED.setdefault(key, MemoryStore(f"memory://{key}"))


class MemoryStore:
    """Mailboxes by name."""

    def __init__(self, url: str = "memory://") -> None:
        self.url = url
        self.jump = Jump()
        self.owners = Owners()
        self._contents: dict[int, Contents] = {}

    def lane(self, name: str, *, limits: Limits | None = None) -> MemoryBackend:
        return MemoryBackend(self, name, limits=limits)

    def contents(self) -> Contents:
        """What this process has here; a forked child has nothing yet."""
        found = self._contents.get(os.getpid())
        return found if found is not None else self._contents.setdefault(os.getpid(), Contents())

    def lease_now(self) -> float:
        return time.monotonic() + self.jump.lease

    def wall_now(self) -> float:
        return time.time() + self.jump.wall

    def transact(self, work: Callable[[Any], Any]) -> NoReturn:  # noqa: ARG002 - the name a SQL store has for it
        raise UnsupportedError(_NO_TRANSACTION)

    def close(self) -> None:
        """Nothing is open; the messages stay."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Contents:
    """All lanes, owners and leases of a store in one process, and the lock over them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}
        self.owners: dict[int, Holder] = {}
        self.leases: dict[int, dict[int, Row]] = defaultdict(dict)
        self.numbers = count(1)

    def lane(self, name: str) -> Lane:
        found = self._lanes.get(name)
        return found if found is not None else self._lanes.setdefault(name, Lane(name))

    def enter(self, incarnation: Incarnation, page: str | None) -> int:
        owner = secrets.randbits(
            62
        )  # by chance: a receipt of another store, or of before a fork, fits nothing here
        self.owners[owner] = Holder(owner, str(incarnation), page)
        return owner

    def lease(self, row: Row, *, owner: int, until: float) -> Claim:
        row.lane.take(row)
        row.owner, row.lease_until = owner, until
        row.term += 1
        row.deliveries += 1
        self.leases[owner][row.seq] = row
        return Claim(row.seq, owner, row.term)

    def find(self, claim: Claim) -> Row | None:
        """The row a claim is about, if it is still the claimant's."""
        row = self.leases.get(claim.owner, {}).get(claim.seq)
        return row if row is not None and row.term == claim.term else None

    def unlease(self, row: Row) -> None:
        del self.leases[row.owner][row.seq]

    def lapsed(self, now: float) -> list[Row]:
        return [
            row for rows in self.leases.values() for row in rows.values() if row.lease_until < now
        ]


class MemoryBackend:
    """One lane of a memory store."""

    def __init__(self, store: MemoryStore, name: str, *, limits: Limits | None = None) -> None:
        self.store = store
        self.name = name
        self.limits = limits or Limits()

    @property
    def home(self) -> object:
        return self.store

    # --- work.Source ---

    def enter(self, incarnation: Incarnation, *, page: str | None = None) -> int:
        contents = self.store.contents()
        with contents.lock:
            return contents.enter(incarnation, page)

    def guest(self) -> int:
        return self.store.owners.guest("memory", lambda: self.enter(Incarnation.mine()))

    def exchange(
        self, settlements: Sequence[Settlement], *, owner: int, want: int, duration: float
    ) -> Exchange:
        contents = self.store.contents()
        with contents.lock:
            settled, changed = self._settle(contents, settlements)
            leased = self._claim(contents, owner, want, duration)
        _announce(changed)
        return Exchange(settled, leased)

    def renew(self, *, owner: int, duration: float, skip: Collection[Claim] = ()) -> int:
        contents = self.store.contents()
        with contents.lock:
            skipped = {claim.seq for claim in skip}
            rows = [row for row in contents.leases[owner].values() if row.seq not in skipped]
            until = self.store.lease_now() + duration
            for row in rows:
                row.lease_until = max(row.lease_until, until)
            return len(rows)

    def held(self, *, owner: int) -> list[Claim]:
        contents = self.store.contents()
        with contents.lock:
            return [Claim(row.seq, owner, row.term) for row in contents.leases[owner].values()]

    def sweep(self) -> int:
        contents, wall = self.store.contents(), self.store.wall_now()
        with contents.lock:
            lane, lapsed = contents.lane(self.name), contents.lapsed(self.store.lease_now())
            blame = {
                owner: judge(contents.owners[owner]) for owner in {row.owner for row in lapsed}
            }
            for row in lapsed:
                self._release(contents, row, blame[row.owner](row.seq))
            freed = lane.free_the_due(wall)
            expired = lane.expire(wall)
            if self.limits.dead_retention is not None:
                lane.forget_the_dead(wall - self.limits.dead_retention)
        _announce({row.lane for row in lapsed} | ({lane} if freed else set()))
        return len(lapsed) + freed + expired

    def next_due(self) -> float | None:
        contents = self.store.contents()
        with contents.lock:
            moment = contents.lane(self.name).next_due()
        return None if moment is None else max(moment - self.store.wall_now(), 0.0)

    def whereabouts(self) -> dict[str, str] | None:
        """It is in this process alone."""
        return None

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        contents = self.store.contents()
        with contents.lock:
            listeners = contents.lane(self.name).listeners
            listeners.add(wakeup)
        return lambda: listeners.discard(wakeup)

    # --- the rest of a backend ---

    def put(self, letters: Sequence[Letter], *, tx: Any = None) -> list[str]:
        _require_no_transaction(tx)
        contents, wall = self.store.contents(), self.store.wall_now()
        with contents.lock:
            lane = contents.lane(self.name)
            lane.expire(wall)
            self._require_room(lane, letters)
            ids = [self._put(contents, lane, letter, wall) for letter in letters]
        _announce([lane])
        return ids

    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        _require_no_transaction(tx)
        contents = self.store.contents()
        with contents.lock:
            settled, changed = self._settle(contents, settlements)
        _announce(changed)
        return settled

    def extend(self, claim: Claim, *, duration: float) -> bool:
        contents = self.store.contents()
        with contents.lock:
            row = contents.find(claim)
            if row is not None:
                row.lease_until = max(row.lease_until, self.store.lease_now() + duration)
            return row is not None

    def stats(self) -> Stats:
        contents, wall = self.store.contents(), self.store.wall_now()
        with contents.lock:
            lane = contents.lane(self.name)
            ready, delayed, leased = (
                lane.counts[held] for held in (Held.FREE, Held.DELAYED, Held.LEASED)
            )
            oldest = lane.first()
            age = None if oldest is None else max(wall - oldest.enqueued_at, 0.0)
            return Stats(ready, delayed, leased, len(lane.dead), age, lane.paused, lane.expired)

    def peek(self, *, limit: int) -> list[Delivery]:
        contents = self.store.contents()
        with contents.lock:
            return [
                row.delivery()
                for row in contents.lane(self.name).waiting(self.store.wall_now(), limit=limit)
            ]

    def cancel(self, message_id: str) -> bool:
        contents = self.store.contents()
        with contents.lock:
            lane = contents.lane(self.name)
            row = lane.rows.get(message_id)
            if row is None or row.held is Held.LEASED:
                return False
            lane.remove(row)
            return True

    def pause(self, *, paused: bool) -> None:
        contents = self.store.contents()
        with contents.lock:
            lane = contents.lane(self.name)
            lane.paused = paused
        _announce([lane])

    def purge(self) -> int:
        contents = self.store.contents()
        with contents.lock:
            lane = contents.lane(self.name)
            idle = [row for row in lane.rows.values() if row.held is not Held.LEASED]
            for row in idle:
                lane.remove(row)
            return len(idle)

    def dead(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        contents = self.store.contents()
        with contents.lock:
            letters = contents.lane(self.name).dead.values()
            return list(islice(dropwhile(lambda letter: letter.position <= after, letters), limit))

    def find_dead(self, message_id: str) -> DeadLetter | None:
        contents = self.store.contents()
        with contents.lock:
            return contents.lane(self.name).dead.get(message_id)

    def replay(self, ids: Sequence[str]) -> list[bool]:
        contents = self.store.contents()
        with contents.lock:
            lane = contents.lane(self.name)
            replayed = [self._replay(contents, lane, each) for each in ids]
        _announce([lane])
        return replayed

    def drop(self, ids: Sequence[str]) -> list[bool]:
        contents = self.store.contents()
        with contents.lock:
            dead = contents.lane(self.name).dead
            return [dead.pop(each, None) is not None for each in ids]

    # --- under the lock ---

    def _claim(self, contents: Contents, owner: int, want: int, duration: float) -> list[Leased]:
        """Lease rows, oldest first; those that are spent go to the dead at once, one that has
        crashed before comes alone.
        """
        lane = contents.lane(self.name)
        if lane.paused or not want:
            return []
        wall, until = self.store.wall_now(), self.store.lease_now() + duration
        lane.free_the_due(wall)
        leased: list[Leased] = []
        while len(leased) < want and (row := lane.first()) is not None:
            if (reason := self._spent(row, wall)) is not None:
                lane.give_up(row, reason, wall=wall)
                continue
            if row.crashes and leased:
                break
            leased.append(
                Leased(
                    contents.lease(row, owner=owner, until=until),
                    row.delivery(),
                    alone=row.crashes > 0,
                )
            )
            if row.crashes:
                break
        return leased

    def _spent(self, row: Row, wall: float) -> str | None:
        if row.crashes >= self.limits.max_crashes:
            return "poison"
        if row.failures >= self.limits.max_failures:
            return "failed"
        return "expired" if row.is_overdue(wall) else None

    def _settle(
        self, contents: Contents, settlements: Sequence[Settlement]
    ) -> tuple[list[bool], set[Lane]]:
        """For each whether it was still the claimant's; and the lanes in which something became
        free.
        """
        changed: set[Lane] = set()
        settled = []
        for settlement in settlements:
            row = contents.find(settlement.claim)
            settled.append(row is not None)
            if row is not None and self._settle_one(contents, row, settlement):
                changed.add(row.lane)
        return settled, changed

    def _settle_one(self, contents: Contents, row: Row, settlement: Settlement) -> bool:
        """Whether the row is free again."""
        match settlement.outcome:
            case Outcome.DONE:
                contents.unlease(row)
                row.lane.remove(row)
                return False
            case Outcome.DEAD:
                contents.unlease(row)
                row.lane.give_up(
                    row, settlement.reason, wall=self.store.wall_now(), error=settlement.error
                )
                return False
            case outcome:
                blame = Blame.FAILURE if outcome is Outcome.FAILED else Blame.RELEASE
                self._release(contents, row, blame, delay=settlement.delay, error=settlement.error)
                return not settlement.delay

    def _release(
        self,
        contents: Contents,
        row: Row,
        blame: Blame,
        *,
        delay: float = 0.0,
        error: str | None = None,
    ) -> None:
        contents.unlease(row)
        row.failures += blame is Blame.FAILURE
        row.crashes += blame is Blame.CRASH
        row.releases += blame is Blame.RELEASE
        row.error = row.error if error is None else error
        row.lane.put_back(row, ready_at=self.store.wall_now() + delay if delay > 0 else 0.0)

    def _require_room(self, lane: Lane, letters: Sequence[Letter]) -> None:
        most = self.limits.max_size
        if most is None:
            return
        coming = {
            letter.dedupe_key or letter.id
            for letter in letters
            if letter.dedupe_key not in lane.keys
        }
        if len(lane) + len(coming) > most:
            raise MailboxFullError(
                f"mailbox {self.name!r} holds {len(lane)} of {most} messages; let its workers "
                f"catch up, or raise max_size"
            )

    def _put(self, contents: Contents, lane: Lane, letter: Letter, wall: float) -> str:
        """Store a message; one that is there already, by id or by key, is left as it is."""
        if (
            letter.dedupe_key is not None
            and (first := lane.keys.get(letter.dedupe_key)) is not None
        ):
            return first.id
        if letter.id not in lane.rows:
            row = Row(
                seq=next(contents.numbers),
                lane=lane,
                id=letter.id,
                body=letter.body,
                enqueued_at=wall,
                expires_at=None if letter.expires_in is None else wall + letter.expires_in,
                keep_expired=letter.keep_expired,
                dedupe_key=letter.dedupe_key,
                reply_to=letter.reply_to,
            )
            lane.add(row, ready_at=wall + letter.delay if letter.delay > 0 else 0.0)
        return letter.id

    def _replay(self, contents: Contents, lane: Lane, message_id: str) -> bool:
        letter = lane.dead.pop(message_id, None)
        if letter is None:
            return False
        lane.add(
            Row(
                seq=next(contents.numbers),
                lane=lane,
                id=letter.id,
                body=letter.body,
                enqueued_at=letter.enqueued_at,
                reply_to=letter.reply_to,
            )
        )
        return True


def _announce(lanes: Iterable[Lane]) -> None:
    for lane in lanes:
        lane.announce()


def _require_no_transaction(tx: Any) -> None:
    if tx is not None:
        raise UnsupportedError(_NO_TRANSACTION)
