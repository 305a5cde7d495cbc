"""One mailbox in Redis. Everything that is decided about messages is decided by the scripts in
`lua/`.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from longwatch.core.clock import Wakeup
from longwatch.errors import InvalidParameterError, MailboxFullError, UnsupportedError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import redis_rows as rows
from longwatch.mailbox.backend import Limits, whereabouts
from longwatch.mailbox.letters import DeadLetter, Delivery, Letter, Stats
from longwatch.mailbox.redis_calls import Again, packed
from longwatch.mailbox.redis_sweep import sweep
from longwatch.store.claims import Claim
from longwatch.work.source import Exchange, Settlement

if TYPE_CHECKING:
    from longwatch.mailbox.redis import RedisStore

NO_TRANSACTION = (
    "messages in Redis take part in no transaction; leave tx= out, or open a sqlite:/// or "
    "postgresql:// store"
)
REMEMBER = 600
"""Seconds for which the answer to a put is remembered, should it be asked again. The next put
has it forgotten.
"""
MOST_BYTES = 16 << 20
"""Of rows in one answer; one message is given however large it is."""
_LARGEST_BATCH = 256 << 20
"""Redis takes no more than twice as much in one piece."""
_PURGED_AT_ONCE = 2000
_FORGOTTEN_AT_ONCE = 1000


@dataclass(slots=True)
class Owner:
    """Who holds leases, and in which mailboxes it has claimed."""

    incarnation: str
    page: str | None
    mailboxes: set[str] = field(default_factory=set)


class RedisBackend:
    """One mailbox of a Redis store."""

    def __init__(self, store: RedisStore, name: str, *, limits: Limits | None = None) -> None:
        self.store = store
        self.name = name
        self.limits = limits or Limits()
        self.key = f"longwatch:{{{name}}}"
        self._answered: deque[str] = deque()

    @property
    def home(self) -> object:
        return self.store.identity

    # --- work.Source ---

    def enter(self, incarnation: Incarnation, *, page: str | None = None) -> int:
        owner = secrets.randbits(62)
        self.store.number(self.name)
        self.store.owners[owner] = Owner(str(incarnation), page, {self.name})
        self.run("enter", owner=str(owner), incarnation=str(incarnation), page=page)
        return owner

    def guest(self) -> int:
        return self.store.guests.guest(self.name, lambda: self.enter(Incarnation.mine()))

    def exchange(
        self, settlements: Sequence[Settlement], *, owner: int, want: int, duration: float
    ) -> Exchange:
        lane = self.store.number(self.name)
        if any(each.claim.seq >> rows.NUMBER_BITS != lane for each in settlements):
            return Exchange(
                self.settle(settlements), self.exchange_here((), owner, want, duration).leased
            )
        return self.exchange_here(settlements, owner, want, duration)

    def renew(self, *, owner: int, duration: float, skip: Collection[Claim] = ()) -> int:
        """One call for each mailbox in which the owner has claimed: they may be on different
        nodes.
        """
        return sum(lane.renew_here(owner, duration, skip) for lane in self._lanes_of(owner))

    def held(self, *, owner: int) -> list[Claim]:
        return [claim for lane in self._lanes_of(owner) for claim in lane.held_here(owner)]

    def sweep(self) -> int:
        return sweep(self, lane=self.store.number(self.name), retention=self.limits.dead_retention)

    def next_due(self) -> float | None:
        due = self.run("next_due")
        return None if due is None else float(due)

    def whereabouts(self) -> dict[str, str] | None:
        return whereabouts(self.store.url, self.name)

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        return self.store.opened().wakeups.listen(self.key, wakeup)

    # --- the rest of a backend ---

    def put(self, letters: Sequence[Letter], *, tx: Any = None) -> list[str]:
        """A put whose answer was lost is asked again by its number, and stores nothing twice,
        even if all was consumed by then.
        """
        _require_no_transaction(tx)
        self.store.number(self.name)
        request = secrets.token_hex(8)
        asked = {
            "request": request,
            "answered": self._take_answered(),
            "remember": REMEMBER,
            "most": self.limits.max_size,
        }
        answer = self._run(
            "put", packed(asked), _bounded(rows.packed_letters(letters)), again=Again.UNTIL_KNOWN
        )
        if answer[:1] == b"!":
            raise MailboxFullError(
                f"mailbox {self.name!r} holds {int(answer[1:])} of {self.limits.max_size} "
                f"messages; "
                "let its workers catch up, or raise max_size"
            )
        self._answered.append(request)
        return (
            [letter.id for letter in letters]
            if answer == b"="
            else msgspec.msgpack.decode(answer[1:], type=list[str])
        )

    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        """In one step for each mailbox that they are about."""
        _require_no_transaction(tx)
        self.store.number(self.name)
        settled = [False] * len(settlements)
        for name, places in _grouped(
            self.store.mailbox_of(each.claim) for each in settlements
        ).items():
            if name is not None:
                batch = [settlements[place] for place in places]
                verdicts = (
                    self._lane(name).exchange_here(batch, batch[0].claim.owner, 0, 0.0).settled
                )
                for place, verdict in zip(places, verdicts, strict=True):
                    settled[place] = verdict
        return settled

    def extend(self, claim: Claim, *, duration: float) -> bool:
        self.store.number(self.name)
        name = self.store.mailbox_of(claim)
        if name is None:
            return False
        number = rows.number_of(claim.seq)
        return bool(
            self._lane(name).run(
                "extend", owner=str(claim.owner), number=number, term=claim.term, duration=duration
            )
        )

    def stats(self) -> Stats:
        ready, delayed, leased, dead, age, paused, expired = self.run("stats")
        return Stats(
            ready, delayed, leased, dead, float(age) if age else None, bool(paused), expired
        )

    def peek(self, *, limit: int) -> list[Delivery]:
        return rows.deliveries_in_order(self.run("peek", limit=limit))[:limit]

    def cancel(self, message_id: str) -> bool:
        return bool(self.run("cancel", again=Again.NEVER, id=message_id))

    def pause(self, *, paused: bool) -> None:
        self.store.number(self.name)
        self.run("pause", paused=paused)

    def purge(self) -> int:
        """A page at a time, as many as there were when it began: what comes meanwhile may stay."""
        ready, delayed, *_ = self.run("stats")
        purged, left = 0, ready + delayed
        while left > purged:
            some = self.run("purge", again=Again.NEVER, limit=min(_PURGED_AT_ONCE, left - purged))
            if not some:
                break
            purged += some
        return purged

    def dead(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        letters, positions = self.run("dead", after=after, limit=limit)
        pairs = zip(letters, positions, strict=True)
        return [
            rows.dead_letter(self.name, letter)._replace(position=int(position))
            for letter, position in pairs
        ]

    def find_dead(self, message_id: str) -> DeadLetter | None:
        letter = self.store.opened().calls.read("HGET", self.key, ":dead", message_id)
        return None if letter is None else rows.dead_letter(self.name, letter)

    def replay(self, ids: Sequence[str]) -> list[bool]:
        return [bool(was_there) for was_there in self.run("replay", again=Again.NEVER, ids=ids)]

    def drop(self, ids: Sequence[str]) -> list[bool]:
        return [bool(was_there) for was_there in self.run("drop", again=Again.NEVER, ids=ids)]

    # --- calls ---

    def run(self, script: str, *, again: Again = Again.ONCE, **asked: Any) -> Any:
        """Run a script on this mailbox."""
        return self._run(script, packed(asked), again=again)

    def _run(self, script: str, *asked: bytes, again: Again) -> Any:
        jump = self.store.jump
        return self.store.opened().calls.script(
            script, self.key, (jump.lease, jump.wall, *asked), again=again
        )

    def numbers_held(self, owner: int) -> list[int]:
        """The numbers of the rows that an owner holds here."""
        return [
            int(number)
            for number in self.store.opened().calls.read("HKEYS", self.key, f":held:{owner}")
        ]

    def exchange_here(
        self, settlements: Sequence[Settlement], owner: int, want: int, duration: float
    ) -> Exchange:
        """Ask until something was leased, or nothing is there: a script passes over so many
        spent rows at the most.
        """
        entered = self.store.owners.get(owner)
        asked = {
            "owner": str(owner),
            "incarnation": "" if entered is None else entered.incarnation,
            "page": None if entered is None else entered.page,
            "want": want,
            "duration": duration,
            "max_failures": self.limits.max_failures,
            "max_crashes": self.limits.max_crashes,
            "most_bytes": MOST_BYTES,
            "settlements": [rows.settlement_row(each, owner) for each in settlements],
        }
        if entered is not None and want:
            entered.mailboxes.add(self.name)
        verdicts, again, answer = self._run("exchange", packed(asked), again=Again.NEVER)
        while again:
            _, again, answer = self._run(
                "exchange", packed({**asked, "settlements": ()}), again=Again.NEVER
            )
        settled = [verdict == ord("1") for verdict in verdicts]
        return Exchange(
            settled, rows.leased_rows(answer, owner=owner, lane=self.store.number(self.name))
        )

    def renew_here(self, owner: int, duration: float, skip: Collection[Claim]) -> int:
        numbers = [
            rows.number_of(claim.seq) for claim in skip if self.store.mailbox_of(claim) == self.name
        ]
        return int(self.run("renew", owner=str(owner), duration=duration, skip=numbers))

    def held_here(self, owner: int) -> Iterable[Claim]:
        answer = self.store.opened().calls.read("HGETALL", self.key, f":held:{owner}")
        return rows.held_claims(answer, owner=owner, lane=self.store.number(self.name))

    # --- small words ---

    def _lane(self, name: str) -> RedisBackend:
        return self if name == self.name else self.store.lane(name)

    def _lanes_of(self, owner: int) -> list[RedisBackend]:
        """The mailboxes in which an owner may hold something; this one if nothing is known about
        it.
        """
        entered = self.store.owners.get(owner)
        return [
            self._lane(name)
            for name in (sorted(entered.mailboxes) if entered is not None else [self.name])
        ]

    def _take_answered(self) -> list[str]:
        """The puts that nobody will ask about again."""
        taken: list[str] = []
        try:
            while self._answered and len(taken) < _FORGOTTEN_AT_ONCE:
                taken.append(self._answered.popleft())
        except IndexError:
            pass  # another thread has taken the last one
        return taken


def _bounded(asked: bytes) -> bytes:
    if len(asked) > _LARGEST_BATCH:
        raise InvalidParameterError(
            f"a batch has at the most {_LARGEST_BATCH} bytes, not {len(asked)}; send it in parts"
        )
    return asked


def _grouped(names: Iterable[str | None]) -> dict[str | None, list[int]]:
    """The places at which each name stands."""
    places: dict[str | None, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return places


def _require_no_transaction(tx: Any) -> None:
    if tx is not None:
        raise UnsupportedError(NO_TRANSACTION)
