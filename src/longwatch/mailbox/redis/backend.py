"""One mailbox in Redis. The scripts in `lua/` make every decision about its messages."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import (
    EngineSweeper,
    ExchangeResult,
    GivenUp,
    RowOutcome,
    Settlement,
    ignore_given_up,
)
from longwatch.errors import InvalidParameterError, MailboxFullError, UnsupportedError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import mailbox_locator
from longwatch.mailbox.dead_retention import DeadRetention
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.records import DeadLetter, MailboxStats, MessageRecord, NewMessage
from longwatch.mailbox.redis import codec
from longwatch.mailbox.redis.client import RetryMode, pack_arguments
from longwatch.mailbox.redis.codec import RedisOwner
from longwatch.mailbox.redis.sweep import RedisSweeper
from longwatch.mailbox.redis.turn_sweeper import RedisTurnStorage, RedisTurnSweeper
from longwatch.store.claims import Claim, RowSelection
from longwatch.store.lapse_guard import LapseGuard
from longwatch.store.sweep import SWEEP_BATCH
from longwatch.store.sweep_turns import SweepTurns

if TYPE_CHECKING:
    from longwatch.mailbox.redis.store import RedisStore

NO_TRANSACTION = (
    "messages in Redis take part in no transaction; leave tx= out, or open a sqlite:/// or "
    "postgresql:// store"
)
PUT_RESPONSE_SECONDS = 600
"""Seconds for which the server keeps the response to a put, in case the client sends the put again.
The next put deletes it.
"""
MAX_RESPONSE_BYTES = 16 << 20
"""The size of all rows in one response. A single message may be larger."""
_MAX_BATCH_BYTES = 256 << 20
"""Redis accepts at most twice as many bytes in one argument."""
_PURGE_BATCH = 2000
_MAX_CONFIRMED = 1000
_ROW_IDS_BATCH = 1000


_UNKNOWN_OWNER = RedisOwner()
_RELEASING = {RowOutcome.FAILED, RowOutcome.CRASHED, RowOutcome.RELEASED}


class RedisBackend:
    """One mailbox of a Redis store."""

    is_shared = True

    def __init__(
        self, store: RedisStore, name: str, *, limits: MailboxLimits | None = None
    ) -> None:
        self.store = store
        self.name = name
        self.limits = limits or MailboxLimits()
        self._budgets_to_store = _set_budgets(self.limits)
        self.key = f"longwatch:{{{name}}}"
        self._confirmed_puts: deque[str] = deque()
        self._lapse_guard = LapseGuard()

    @property
    def store_identity(self) -> object:
        return self.store.identity

    # --- ClaimSource ---

    def register_owner(
        self,
        incarnation: Incarnation,
        *,
        page: str | None = None,
        parent: str | None = None,
        renew_seconds: float | None = None,
    ) -> int:
        owner = secrets.randbits(62)
        self.queue()
        registered = RedisOwner(
            str(incarnation), page, parent, renew_seconds, mailboxes={self.name}
        )
        self.store.owners[owner] = registered
        self.run_script("register_owner", owner=str(owner), record=registered.record)
        return owner

    def report_draining(self, *, owner: int, is_draining: bool = True) -> None:
        """Report whether the owner drains, to each mailbox in which it has claimed."""
        registered = self.store.owners.get(owner)
        if registered is not None:
            registered.is_draining = is_draining
        for backend in self._backends_of(owner):
            backend.run_script(
                "report_draining",
                owner=str(owner),
                is_draining=is_draining,
                record=None if registered is None else registered.record,
            )

    def default_owner(self) -> int:
        return self.store.owner_registry.default_owner(
            self.name, lambda: self.register_owner(Incarnation.current())
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
        queue = self.queue()
        claim: dict[str, Any] = {
            "owner": owner,
            "limit": limit,
            "lease_seconds": lease_seconds,
            "selection": selection,
        }
        if all(each.claim.seq >> codec.NUMBER_BITS == queue for each in settlements):
            return self.exchange_own(settlements, **claim)
        settled, given_up = self._settle_everywhere(settlements)
        result = self.exchange_own((), **claim)
        return ExchangeResult(settled, result.claimed, given_up=[*given_up, *result.given_up])

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        """Renew the leases of an owner. Makes one call for each mailbox in which it has claimed,
        because they may be on different nodes.
        """
        return sum(
            backend.renew_own(owner, lease_seconds, skip) for backend in self._backends_of(owner)
        )

    def held(self, *, owner: int) -> list[Claim]:
        return [claim for backend in self._backends_of(owner) for claim in backend.held_own(owner)]

    def count_suspects(self, *, limit: int) -> int:
        return min(int(self.run_script("count_suspects")), limit)

    def row_ids(self, seqs: Collection[int]) -> dict[int, str]:
        self.store.mailbox_number(self.name)
        found: dict[int, str] = {}
        listed = list(seqs)
        names = _positions_by_name(self.store.mailbox_of_seq(seq) for seq in listed)
        for name, positions in names.items():
            if name is not None:
                numbers = [codec.number_of(listed[position]) for position in positions]
                found |= self._backend(name).row_ids_own(numbers)
        return found

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:
        self.queue()
        retention = self.limits.dead_retention
        return self._sweeper(self._lapse_guard, retention=retention).sweep(on_given_up)

    def sweeper_for(self, incarnation: Incarnation, *, selection: RowSelection) -> EngineSweeper:
        clock, identity = self.store.clock, self.store.identity
        has_retention = self.limits.dead_retention is not None
        return RedisTurnSweeper(
            self._sweeper(LapseGuard(), retention=None),
            SweepTurns(RedisTurnStorage(self), [self.name], holder=str(incarnation), clock=clock),
            DeadRetention(self._delete_old_dead_letters if has_retention else None, clock),
            key=f"{identity} {self.name}",
            selection=selection,
            clock=clock,
        )

    def next_due(self) -> float | None:
        due = self.run_script("next_due")
        return None if due is None else float(due)

    def locator(self) -> dict[str, str] | None:
        return mailbox_locator(self.store.url, self.name)

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        return self.store.resources().listener.listen(self.key, wakeup)

    # --- the rest of a backend ---

    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        """Store messages. A put whose response was lost is sent again with the same request id. It
        stores nothing twice, even if its messages are gone by then.
        """
        _require_no_transaction(tx)
        self.queue()
        request = secrets.token_hex(8)
        arguments = {
            "request": request,
            "answered": self._take_confirmed(),
            "remember": PUT_RESPONSE_SECONDS,
            "max_size": self.limits.max_size,
        }
        response = self._run_packed(
            "put",
            pack_arguments(arguments),
            _validate_batch_size(codec.pack_messages(messages)),
            retry=RetryMode.UNTIL_KNOWN,
        )
        if response[:1] == b"!":
            raise MailboxFullError(
                f"mailbox {self.name!r} holds {int(response[1:])} of {self.limits.max_size} "
                f"messages; "
                "let its workers catch up, or raise max_size"
            )
        self._confirmed_puts.append(request)
        self.wake_here()
        return (
            [message.id for message in messages]
            if response == b"="
            else msgspec.msgpack.decode(response[1:], type=list[str])
        )

    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        """Settle with one script call for each mailbox of the claims."""
        _require_no_transaction(tx)
        self.queue()
        return self._settle_everywhere(settlements)[0]

    def renew_one(self, claim: Claim, *, lease_seconds: float) -> bool:
        self.store.mailbox_number(self.name)
        name = self.store.mailbox_of_seq(claim.seq)
        if name is None:
            return False
        number = codec.number_of(claim.seq)
        return bool(
            self._backend(name).run_script(
                "renew_one",
                owner=str(claim.owner),
                number=number,
                term=claim.term,
                lease_seconds=lease_seconds,
            )
        )

    def stats(self) -> MailboxStats:
        self.queue()
        ready, delayed, leased, dead, age, paused, expired = self.run_script("stats")
        return MailboxStats(
            ready, delayed, leased, dead, float(age) if age else None, bool(paused), expired
        )

    def peek(self, *, limit: int) -> list[MessageRecord]:
        return codec.unpack_records(self.run_script("peek", limit=limit))[:limit]

    def cancel(self, message_id: str) -> bool:
        return bool(self.run_script("cancel", retry=RetryMode.NEVER, id=message_id))

    def pause(self, *, paused: bool) -> None:
        self.store.mailbox_number(self.name)
        self.run_script("pause", paused=paused)
        self.wake_here()

    def notify(self) -> None:
        """Does nothing: there are no transactions of users, and every send has notified."""

    def purge(self) -> int:
        """Remove messages page by page, as many as there were at the start. Messages that are sent
        meanwhile may stay.
        """
        ready, delayed, *_ = self.run_script("stats")
        purged, left = 0, ready + delayed
        while left > purged:
            some = self.run_script(
                "purge", retry=RetryMode.NEVER, limit=min(_PURGE_BATCH, left - purged)
            )
            if not some:
                break
            purged += some
        return purged

    def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        letters, positions = self.run_script("dead_letters", after=after, limit=limit)
        pairs = zip(letters, positions, strict=True)
        return [
            codec.unpack_dead_letter(self.name, letter)._replace(position=int(position))
            for letter, position in pairs
        ]

    def find_dead_letter(self, message_id: str) -> DeadLetter | None:
        letter = self.store.resources().client.read("HGET", self.key, ":dead", message_id)
        return None if letter is None else codec.unpack_dead_letter(self.name, letter)

    def replay(self, ids: Sequence[str]) -> list[bool]:
        replayed = self.run_script("replay", retry=RetryMode.NEVER, ids=ids)
        self.wake_here()
        return [bool(was_there) for was_there in replayed]

    def drop(self, ids: Sequence[str]) -> list[bool]:
        return [
            bool(was_there) for was_there in self.run_script("drop", retry=RetryMode.NEVER, ids=ids)
        ]

    # --- calls ---

    def run_script(
        self, script: str, *, retry: RetryMode = RetryMode.ONCE, **arguments: Any
    ) -> Any:
        """Run a script on this mailbox."""
        return self._run_packed(script, pack_arguments(arguments), retry=retry)

    def _run_packed(self, script: str, *arguments: bytes, retry: RetryMode) -> Any:
        jump = self.store.jump
        return self.store.resources().client.run_script(
            script, self.key, (jump.lease, jump.wall, *arguments), retry=retry
        )

    def wake_here(self) -> None:
        """Wake the receivers and engines of this process. To them, the notification that a script
        published is one of another process, so an idle engine may ignore it (`engine.hint_gate`).
        """
        self.store.resources().listener.subscriptions.wake((self.key,))

    def queue(self) -> int:
        """Return the number of this mailbox. The first call stores the budgets that the caller has
        set, for every process that uses the mailbox.
        """
        number = self.store.mailbox_number(self.name)
        if self._budgets_to_store:
            self.run_script("set_limits", budgets=self._budgets_to_store)
            self._budgets_to_store = {}
        return number

    def leased_numbers(self, owner: int) -> list[int]:
        """Return the numbers of the rows of this mailbox that an owner has leased."""
        return [
            int(number)
            for number in self.store.resources().client.read("HKEYS", self.key, f":leases:{owner}")
        ]

    def exchange_own(
        self,
        settlements: Sequence[Settlement],
        *,
        owner: int,
        limit: int = 0,
        lease_seconds: float = 0.0,
        selection: RowSelection = RowSelection.ANY,
    ) -> ExchangeResult:
        """Settle and claim messages of this mailbox. Calls the script until it leases a row or
        finds none, because one call gives up a limited number of rows.
        """
        registered = self.store.owners.get(owner, _UNKNOWN_OWNER)
        arguments = {
            "owner": str(owner),
            "record": registered.record,
            "limit": limit,
            "selection": selection.value,
            "lease_seconds": lease_seconds,
            "max_bytes": MAX_RESPONSE_BYTES,
            "settlements": [codec.pack_settlement(each, owner) for each in settlements],
        }
        if registered is not _UNKNOWN_OWNER and limit:
            registered.mailboxes.add(self.name)
        results, claim_again, *claimed, given_up = self._run_exchange(arguments)
        while claim_again:
            _, claim_again, *claimed, more = self._run_exchange({**arguments, "settlements": ()})
            given_up += more
        if any(each.outcome in _RELEASING for each in settlements):
            self.wake_here()
        rows, is_exclusive, max_failures = claimed
        return ExchangeResult(
            [result == ord("1") for result in results],
            codec.unpack_claimed(
                rows,
                owner=owner,
                queue=self.store.mailbox_number(self.name),
                is_exclusive=bool(is_exclusive),
                max_failures=max_failures,
            ),
            given_up=codec.unpack_given_up(self.name, given_up),
        )

    def _run_exchange(self, arguments: dict[str, Any]) -> Any:
        return self._run_packed("exchange", pack_arguments(arguments), retry=RetryMode.NEVER)

    def row_ids_own(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the ids of leased or ready messages by their row numbers in the store."""
        queue, found = self.store.mailbox_number(self.name), {}
        for first in range(0, len(numbers), _ROW_IDS_BATCH):
            batch = numbers[first : first + _ROW_IDS_BATCH]
            response = self.run_script("row_ids", numbers=batch)
            for number, message_id in zip(response[::2], response[1::2], strict=True):
                found[codec.seq_of(queue, int(number))] = message_id.decode()
        return found

    def renew_own(self, owner: int, lease_seconds: float, skip: Collection[Claim]) -> int:
        numbers = [
            codec.number_of(claim.seq)
            for claim in skip
            if self.store.mailbox_of_seq(claim.seq) == self.name
        ]
        return int(
            self.run_script("renew", owner=str(owner), lease_seconds=lease_seconds, skip=numbers)
        )

    def held_own(self, owner: int) -> Iterable[Claim]:
        response = self.store.resources().client.read("HGETALL", self.key, f":leases:{owner}")
        return codec.unpack_claims(
            response, owner=owner, queue=self.store.mailbox_number(self.name)
        )

    # --- helpers ---

    def _sweeper(self, guard: LapseGuard, *, retention: float | None) -> RedisSweeper:
        return RedisSweeper(self, retention=retention, now=self.store.clock.monotonic, guard=guard)

    def _delete_old_dead_letters(self) -> bool:
        """Delete a batch of dead letters older than the retention. Return whether it was full."""
        deleted = self.run_script(
            "delete_old_dead_letters", retention=self.limits.dead_retention, limit=SWEEP_BATCH
        )
        return int(deleted) >= SWEEP_BATCH

    def _settle_everywhere(
        self, settlements: Sequence[Settlement]
    ) -> tuple[list[bool], list[GivenUp]]:
        """Settle in the mailboxes of the claims. Return the results, and the messages that spent a
        budget.
        """
        settled, given_up = [False] * len(settlements), list[GivenUp]()
        for name, positions in _positions_by_name(
            self.store.mailbox_of_seq(each.claim.seq) for each in settlements
        ).items():
            if name is not None:
                batch = [settlements[position] for position in positions]
                result = self._backend(name).exchange_own(batch, owner=batch[0].claim.owner)
                given_up += result.given_up
                for position, is_settled in zip(positions, result.settled, strict=True):
                    settled[position] = is_settled
        return settled, given_up

    def _backend(self, name: str) -> RedisBackend:
        return self if name == self.name else self.store.backend(name)

    def _backends_of(self, owner: int) -> list[RedisBackend]:
        """Return the mailboxes in which an owner may hold leases; this one for an unknown owner."""
        registered = self.store.owners.get(owner)
        return [
            self._backend(name)
            for name in (sorted(registered.mailboxes) if registered is not None else [self.name])
        ]

    def _take_confirmed(self) -> list[str]:
        """Take the request ids of puts whose response arrived, so that the server may delete it."""
        taken: list[str] = []
        try:
            while self._confirmed_puts and len(taken) < _MAX_CONFIRMED:
                taken.append(self._confirmed_puts.popleft())
        except IndexError:
            pass  # another thread has taken the last one
        return taken


def _set_budgets(limits: MailboxLimits) -> dict[str, int]:
    return {name: value for name, value in limits.set_budgets.items() if value is not None}


def _validate_batch_size(packed_messages: bytes) -> bytes:
    if len(packed_messages) > _MAX_BATCH_BYTES:
        raise InvalidParameterError(
            f"expected a batch of at most {_MAX_BATCH_BYTES} bytes, got "
            f"{len(packed_messages)}; send it in parts"
        )
    return packed_messages


def _positions_by_name(names: Iterable[str | None]) -> dict[str | None, list[int]]:
    """Return the positions of each name."""
    positions: dict[str | None, list[int]] = {}
    for position, name in enumerate(names):
        positions.setdefault(name, []).append(position)
    return positions


def _require_no_transaction(tx: Any) -> None:
    if tx is not None:
        raise UnsupportedError(NO_TRANSACTION)
