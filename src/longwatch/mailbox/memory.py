"""Mailboxes in the memory of one process: for tests, and for work that may be lost when the process
ends.

The rules are those of a SQL store, and one lock guards them. Another process that opens the same
URL has its own store. A forked child starts with an empty store: with a copy, both processes would
do the work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import dropwhile, islice
from typing import Any, NoReturn, Self

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import (
    BLAME_BY_OUTCOME,
    ClaimedRow,
    EngineSweeper,
    EverySweep,
    ExchangeResult,
    GivenUp,
    RowOutcome,
    Settlement,
    ignore_given_up,
)
from longwatch.errors import MailboxFullError, UnsupportedError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.limits import COUNTED_AS_FAILURE, MailboxLimits
from longwatch.mailbox.memory_contents import MemoryContents
from longwatch.mailbox.memory_queue import LeaseState, MemoryQueue, StoredMessage
from longwatch.mailbox.records import DeadLetter, MailboxStats, MessageRecord, NewMessage
from longwatch.store.blame import Blame, OwnerEnd
from longwatch.store.claims import Claim, RowSelection
from longwatch.store.database import ClockJump, OwnerRegistry
from longwatch.store.lapse_guard import LapsedOwner
from longwatch.store.sweep import LeaseOwner, owner_end

_SHARED_STORES: dict[str, MemoryStore] = {}
_NO_TRANSACTION = (
    "messages in memory take part in no transaction; leave tx= out, or open a sqlite:/// store"
)


def shared_store(key: str) -> MemoryStore:
    """Return the store that this process shares under `memory://KEY`, until the process ends."""
    return _SHARED_STORES.setdefault(key, MemoryStore(f"memory://{key}"))


class MemoryStore:
    """The mailboxes of one process by name. Thread-safe."""

    def __init__(self, url: str = "memory://") -> None:
        self.url = url
        self.jump = ClockJump()
        self.owners = OwnerRegistry()
        self._contents: dict[int, MemoryContents] = {}

    def backend(self, name: str, *, limits: MailboxLimits | None = None) -> MemoryBackend:
        return MemoryBackend(self, name, limits=limits)

    def contents(self) -> MemoryContents:
        """Return the contents of this process. A forked child starts with empty contents."""
        found = self._contents.get(os.getpid())
        return (
            found if found is not None else self._contents.setdefault(os.getpid(), MemoryContents())
        )

    def lease_now(self) -> float:
        return time.monotonic() + self.jump.lease

    def wall_now(self) -> float:
        return time.time() + self.jump.wall

    def transact(self, work: Callable[[Any], Any]) -> NoReturn:  # noqa: ARG002 - the signature of a SQL store
        raise UnsupportedError(_NO_TRANSACTION)

    def close(self) -> None:
        """Do nothing: a memory store has no connections. The messages stay."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryBackend:
    """One queue of a memory store."""

    is_shared = False

    def __init__(
        self, store: MemoryStore, name: str, *, limits: MailboxLimits | None = None
    ) -> None:
        self.store = store
        self.name = name
        self.limits = limits or MailboxLimits()
        self._known: MemoryContents | None = None

    @property
    def store_identity(self) -> object:
        return self.store

    # --- ClaimSource ---

    def register_owner(
        self,
        incarnation: Incarnation,
        *,
        page: str | None = None,
        parent: str | None = None,
        renew_seconds: float | None = None,
    ) -> int:
        contents = self.store.contents()
        owner = LeaseOwner(0, str(incarnation), page, parent, renew_seconds=renew_seconds)
        with contents.lock:
            return contents.register_owner(owner)

    def default_owner(self) -> int:
        return self.store.owners.default_owner(
            "memory", lambda: self.register_owner(Incarnation.current())
        )

    def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        owner: int,
        limit: int,
        lease_seconds: float,
        selection: RowSelection = RowSelection.ANY,
    ) -> ExchangeResult:
        contents = self.store.contents()
        with contents.lock:
            settled, changed, spent = self._settle(contents, settlements)
            claimed, given_up = self._claim(contents, owner, limit, lease_seconds, selection)
        _notify(changed)
        return ExchangeResult(settled, claimed, given_up=spent + given_up)

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        contents = self.store.contents()
        with contents.lock:
            skipped = {claim.seq for claim in skip}
            rows = [row for row in contents.leases[owner].values() if row.seq not in skipped]
            until = self.store.lease_now() + lease_seconds
            for row in rows:
                row.lease_until = max(row.lease_until, until)
            return len(rows)

    def held(self, *, owner: int) -> list[Claim]:
        contents = self.store.contents()
        with contents.lock:
            return [Claim(row.seq, owner, row.term) for row in contents.leases[owner].values()]

    def report_draining(self, *, owner: int, is_draining: bool = True) -> None:
        contents = self.store.contents()
        with contents.lock:
            contents.owners[owner] = contents.owners[owner]._replace(is_draining=is_draining)

    def count_suspects(self, *, limit: int) -> int:
        contents = self.store.contents()
        with contents.lock:
            return self._queue(contents).count_suspects(limit=limit)

    def row_ids(self, seqs: Collection[int]) -> dict[int, str]:
        contents, wanted = self.store.contents(), set(seqs)
        with contents.lock:
            rows = self._queue(contents).messages.values()
            return {row.seq: row.id for row in rows if row.seq in wanted}

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:
        contents = self.store.contents()
        ends = self._look(contents)
        with contents.lock:
            swept, given_up = self._sweep(contents, ends)
        for each in given_up:
            on_given_up(each)
        return swept

    def sweeper_for(self, incarnation: Incarnation, *, selection: RowSelection) -> EngineSweeper:  # noqa: ARG002
        return EverySweep(self.sweep)

    def next_due(self) -> float | None:
        contents = self.store.contents()
        with contents.lock:
            moment = self._queue(contents).next_due()
        return None if moment is None else max(moment - self.store.wall_now(), 0.0)

    def locator(self) -> dict[str, str] | None:
        """Return None: another process cannot open this mailbox."""
        return None

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        contents = self.store.contents()
        with contents.lock:
            listeners = self._queue(contents).wakeups
            listeners.add(wakeup)
        return lambda: listeners.discard(wakeup)

    # --- the rest of a backend ---

    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        _require_no_transaction(tx)
        contents, wall = self.store.contents(), self.store.wall_now()
        with contents.lock:
            queue = self._queue(contents)
            queue.expire(wall)
            self._require_room(queue, messages)
            ids = [self._put(contents, queue, message, wall) for message in messages]
        _notify([queue])
        return ids

    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        _require_no_transaction(tx)
        contents = self.store.contents()
        with contents.lock:
            settled, changed, _ = self._settle(contents, settlements)
        _notify(changed)
        return settled

    def renew_one(self, claim: Claim, *, lease_seconds: float) -> bool:
        contents = self.store.contents()
        with contents.lock:
            row = contents.find_claimed(claim)
            if row is not None:
                row.lease_until = max(row.lease_until, self.store.lease_now() + lease_seconds)
            return row is not None

    def stats(self) -> MailboxStats:
        contents, wall = self.store.contents(), self.store.wall_now()
        with contents.lock:
            queue = self._queue(contents)
            ready, delayed, leased = (
                queue.counts[lease_state]
                for lease_state in (LeaseState.READY, LeaseState.DELAYED, LeaseState.LEASED)
            )
            oldest = queue.next_ready()
            age = None if oldest is None else max(wall - oldest.enqueued_at, 0.0)
            return MailboxStats(
                ready, delayed, leased, len(queue.dead_letters), age, queue.paused, queue.expired
            )

    def peek(self, *, limit: int) -> list[MessageRecord]:
        contents = self.store.contents()
        with contents.lock:
            return [
                row.record()
                for row in self._queue(contents).claimable(self.store.wall_now(), limit=limit)
            ]

    def cancel(self, message_id: str) -> bool:
        contents = self.store.contents()
        with contents.lock:
            queue = self._queue(contents)
            row = queue.messages.get(message_id)
            if row is None or row.lease_state is LeaseState.LEASED:
                return False
            queue.remove(row)
            return True

    def pause(self, *, paused: bool) -> None:
        contents = self.store.contents()
        with contents.lock:
            queue = self._queue(contents)
            queue.paused = paused
        _notify([queue])

    def notify(self) -> None:
        contents = self.store.contents()
        with contents.lock:
            queue = self._queue(contents)
        _notify([queue])

    def purge(self) -> int:
        contents = self.store.contents()
        with contents.lock:
            queue = self._queue(contents)
            idle = [
                row for row in queue.messages.values() if row.lease_state is not LeaseState.LEASED
            ]
            for row in idle:
                queue.remove(row)
            return len(idle)

    def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        contents = self.store.contents()
        with contents.lock:
            letters = self._queue(contents).dead_letters.values()
            return list(islice(dropwhile(lambda letter: letter.position <= after, letters), limit))

    def find_dead_letter(self, message_id: str) -> DeadLetter | None:
        contents = self.store.contents()
        with contents.lock:
            return self._queue(contents).dead_letters.get(message_id)

    def replay(self, ids: Sequence[str]) -> list[bool]:
        contents = self.store.contents()
        with contents.lock:
            queue = self._queue(contents)
            replayed = [self._replay(contents, queue, each) for each in ids]
        _notify([queue])
        return replayed

    def drop(self, ids: Sequence[str]) -> list[bool]:
        contents = self.store.contents()
        with contents.lock:
            dead = self._queue(contents).dead_letters
            return [dead.pop(each, None) is not None for each in ids]

    # --- under the lock ---

    def _queue(self, contents: MemoryContents) -> MemoryQueue:
        """Return the queue of this mailbox. The first call stores the budgets that the caller has
        set.
        """
        queue = contents.queue(self.name)
        if self._known is not contents:
            self._known = contents
            queue.set_budgets(self.limits)
        return queue

    def _look(self, contents: MemoryContents) -> dict[int, OwnerEnd]:
        """Find the owners whose lapsed leases may be reclaimed, and how each of them ended. Runs
        without the lock, because it reads beat pages.
        """
        with contents.lock:
            owners, renewing = contents.lapsed_owners(self.store.lease_now())
        ends = {owner.id: owner_end(owner) for owner in owners}
        reclaimable = contents.lapse_guard.reclaimable(
            [
                LapsedOwner(owner.id, owner.renew_seconds, is_alive=ends[owner.id].is_alive)
                for owner in owners
            ],
            renewing_holders=renewing,
            now=time.monotonic(),
        )
        return {owner: ends[owner] for owner in reclaimable}

    def _sweep(
        self, contents: MemoryContents, ends: Mapping[int, OwnerEnd]
    ) -> tuple[int, list[GivenUp]]:
        """Sweep, and return how many rows changed and the new dead letters."""
        wall, queue = self.store.wall_now(), self._queue(contents)
        lapsed = [row for row in contents.lapsed(self.store.lease_now()) if row.owner in ends]
        given_up = [
            dead
            for row in lapsed
            for dead in self._release(contents, row, ends[row.owner].blame(row.seq))
        ]
        freed = queue.promote_due(wall)
        expired, kept = queue.expire(wall)
        if self.limits.dead_retention is not None:
            queue.delete_old_dead_letters(wall - self.limits.dead_retention)
        _notify({row.queue for row in lapsed} | ({queue} if freed else set()))
        return len(lapsed) + freed + expired, given_up + kept

    def _claim(
        self,
        contents: MemoryContents,
        owner: int,
        limit: int,
        lease_seconds: float,
        selection: RowSelection,
    ) -> tuple[list[ClaimedRow], list[GivenUp]]:
        """Lease rows, oldest first, and give up rows that expired or spent a budget. A suspect is
        leased alone.
        """
        queue = self._queue(contents)
        claimed: list[ClaimedRow] = []
        given_up: list[GivenUp] = []
        if queue.paused:
            return claimed, given_up
        wall, until = self.store.wall_now(), self.store.lease_now() + lease_seconds
        queue.promote_due(wall)
        while len(claimed) < limit and (row := queue.next_ready(selection)) is not None:
            if (reason := queue.give_up_reason(row, wall)) is not None:
                given_up += queue.give_up(row, reason, wall=wall)
                continue
            is_suspect = queue.is_suspect(row)
            if is_suspect and claimed:
                break
            claimed.append(
                ClaimedRow(
                    contents.lease(row, owner=owner, until=until),
                    row.record(),
                    is_exclusive=is_suspect,
                    failures_left=queue.limits.max_failures - row.failures,
                )
            )
            if is_suspect:
                break
        return claimed, given_up

    def _settle(
        self, contents: MemoryContents, settlements: Sequence[Settlement]
    ) -> tuple[list[bool], set[MemoryQueue], list[GivenUp]]:
        """Settle, and return three results: whether each claim still matched, the queues in which
        a message became free, and the messages that spent a budget.
        """
        changed: set[MemoryQueue] = set()
        settled: list[bool] = []
        given_up: list[GivenUp] = []
        for settlement in settlements:
            row = contents.find_claimed(settlement.claim)
            settled.append(row is not None)
            if row is not None:
                given_up += self._settle_one(contents, row, settlement)
                changed |= {row.queue} if row.lease_state is LeaseState.READY else set()
        return settled, changed, given_up

    def _settle_one(
        self, contents: MemoryContents, row: StoredMessage, settlement: Settlement
    ) -> list[GivenUp]:
        """Settle one message. Return it if it has spent a budget."""
        match settlement.outcome:
            case RowOutcome.DONE:
                contents.end_lease(row)
                row.queue.remove(row)
                return []
            case RowOutcome.DEAD:
                contents.end_lease(row)
                row.failures += settlement.reason in COUNTED_AS_FAILURE
                row.note(settlement.error, settlement.traceback)
                row.queue.dead_letter(row, settlement.reason, wall=self.store.wall_now())
                return []
            case outcome:
                row.note(settlement.error, settlement.traceback)
                return self._release(
                    contents, row, BLAME_BY_OUTCOME[outcome], delay=settlement.delay
                )

    def _release(
        self, contents: MemoryContents, row: StoredMessage, blame: Blame, *, delay: float = 0.0
    ) -> list[GivenUp]:
        """Free the row, or dead-letter it if it has spent a budget."""
        contents.end_lease(row)
        row.count(blame)
        wall = self.store.wall_now()
        reason = None if blame is Blame.RELEASE else row.queue.give_up_reason(row, wall)
        if reason is not None:
            return [row.queue.dead_letter(row, reason, wall=wall)]
        row.queue.release(row, ready_at=wall + delay if delay > 0 else 0.0)
        return []

    def _require_room(self, queue: MemoryQueue, messages: Sequence[NewMessage]) -> None:
        max_size = self.limits.max_size
        if max_size is None:
            return
        added = {
            message.dedupe_key or message.id
            for message in messages
            if message.dedupe_key not in queue.by_dedupe_key
        }
        if len(queue) + len(added) > max_size:
            raise MailboxFullError(
                f"mailbox {self.name!r} holds {len(queue)} of {max_size} messages; let its workers "
                f"catch up, or raise max_size"
            )

    def _put(
        self, contents: MemoryContents, queue: MemoryQueue, message: NewMessage, wall: float
    ) -> str:
        """Store a message unless one with its id or dedupe key exists. Return the stored id."""
        if (
            message.dedupe_key is not None
            and (first := queue.by_dedupe_key.get(message.dedupe_key)) is not None
        ):
            return first.id
        if message.id not in queue.messages:
            row = StoredMessage.sent(message, queue, seq=next(contents.sequence), wall=wall)
            queue.add(row, ready_at=wall + message.delay if message.delay > 0 else 0.0)
        return message.id

    def _replay(self, contents: MemoryContents, queue: MemoryQueue, message_id: str) -> bool:
        letter = queue.dead_letters.pop(message_id, None)
        if letter is None:
            return False
        queue.add(StoredMessage.replayed(letter, queue, seq=next(contents.sequence)))
        return True


def _notify(queues: Iterable[MemoryQueue]) -> None:
    for queue in queues:
        queue.notify()


def _require_no_transaction(tx: Any) -> None:
    if tx is not None:
        raise UnsupportedError(_NO_TRANSACTION)
