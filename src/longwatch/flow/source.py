"""The attempts of some graphs as a source of work: claimed, renewed, concluded, swept.

An exchange concludes attempts and claims the next ones in one transaction. As a rule nobody waits
in line, and the next ones are those that the conclusion makes: they are leased as they are made
(`leasing.py`). Where somebody may wait, they come to the end of the line, and the line is served
from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from math import inf
from typing import TypeVar

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.events import Events
from longwatch.errors import StoreError
from longwatch.flow.claiming import Claiming
from longwatch.flow.concluding import Concluded, Concluding
from longwatch.flow.leasing import FromBirth, Lookout
from longwatch.flow.records import Kind, Records, announce_work, work_of
from longwatch.flow.registry import Line, Registry
from longwatch.flow.standing import Standing
from longwatch.flow.sweeping import SWEEP_EVERY, Sweeping
from longwatch.flow.waiters import Waiters
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Blame, Claim
from longwatch.store.database import ChangedError, Database, Transaction
from longwatch.work.offers import Offer
from longwatch.work.place import LEASE_UNDER_A_PARENT
from longwatch.work.source import Exchange, Leased, Settlement

KIND = "flow"
_REFRESH_EVERY = 10.0

T = TypeVar("T")
Making = Callable[[Transaction, FromBirth | None], tuple[T, Standing | None]]
"""Work that may make attempts, for a worker that takes some: what it returns, and the execution
that it has changed.
"""


class FlowSource:
    """A `work.Source` over the attempts of registered graphs. Without any it can still renew,
    and bring back what others lost.
    """

    def __init__(  # noqa: PLR0913 - a store, what knows it, and who is told
        self,
        database: Database,
        registry: Registry | None = None,
        *,
        waiters: Waiters | None = None,
        sweep_every: float = SWEEP_EVERY,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.database = database
        self.records = Records(database.dialect)
        self.registry = registry or Registry(database, self.records)
        self._clock = clock or SystemClock()
        self._claiming = Claiming(database, self.records, self.registry)
        self._claims = self._claiming.claims
        self._concluding = Concluding(
            self.records, self.registry, self._claims, waiters or Waiters()
        )
        self.sweeping = Sweeping(
            database,
            self.records,
            self._claims,
            self.registry,
            every=sweep_every,
            clock=self._clock,
            events=events,
        )
        self._lookout = Lookout(self._clock)
        self._struck_off: set[int] = set()
        self._refresh_at = self._clock.monotonic() + _REFRESH_EVERY
        self._turn = 0

    # --- work.Source ---

    def enter(self, incarnation: Incarnation, *, page: str | None = None) -> int:
        self.registry.registered()
        return self.database.write(lambda tx: self._claims.register(tx, incarnation, page=page))

    def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        owner: int,
        want: int,
        duration: float,  # noqa: ARG002 - every attempt has its own
    ) -> Exchange:
        lines = self._lines()
        looks = not (settlements and self._sees_nobody(lines))
        if looks and want:
            self._lookout.looks()
        if (
            not settlements
            and self.database.looks_first
            and not self.database.read(lambda tx: self._ready(tx, lines))
        ):
            self._lookout.saw(anybody=False)
            return Exchange([], [])
        try:
            return self._exchanged(settlements, lines if looks else [], owner=owner, want=want)
        except ChangedError:
            return self._exchanged(
                settlements, lines if looks else [], owner=owner, want=want, recalls=False
            )

    def renew(self, *, owner: int, duration: float, skip: Collection[Claim] = ()) -> int:
        return self.database.write(
            lambda tx: self._claims.renew(tx, owner=owner, duration=duration, skip=skip)
        )

    def held(self, *, owner: int) -> list[Claim]:
        return self.database.read(lambda tx: self._claims.held(tx, owner=owner))

    def sweep(self) -> int:
        if self._clock.monotonic() >= self._refresh_at:
            self._refresh_at = self._clock.monotonic() + _REFRESH_EVERY
            self.registry.refresh()
        return self.sweeping.look()

    def next_due(self) -> float | None:
        return self._lookout.due(self._ask_next_due)

    def whereabouts(self) -> dict[str, str] | None:
        """Nobody else renews attempts whose heartbeats have to come more often than a parent's."""
        if self._shortest_timeout() < LEASE_UNDER_A_PARENT:
            return None
        return {
            "kind": KIND,
            "url": self.database.address,
            "name": ", ".join(kind.graph for kind in self.registry.graphs),
        }

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        told, leave = self._lookout.listen(wakeup)
        undo = leave, self.database.listen(map(work_of, self.registry.graphs), told)
        return lambda: _call_all(undo)

    # --- hand over hand ---

    def hand_over(self, tx: Transaction, offer: Offer, kind: Kind, making: Making[T]) -> T:
        """Do this, lease some of what it makes to a worker that has room, and give it that once
        it is committed.
        """
        asked, lines = self._clock.monotonic(), self.registry.registered()[kind].lines
        looks = not self._sees_nobody(lines)
        room = 0 if looks or offer.closed else offer.want
        lessee = self._claiming.from_birth([kind], owner=offer.owner, room=room, asked=asked)
        result, standing = making(tx, lessee)
        self._enter_again(tx, lessee)
        if standing is None or not standing.openings:
            return result
        if (
            offer.closed
        ):  # whoever began this has given up waiting for it, and the worker may have ended since
            self._claims.release(tx, [each.claim for each in lessee.leased], blame=Blame.RELEASE)
            announce_work(tx, [kind])
            return result
        leased = (
            self._claiming.claim(tx, lines, owner=offer.owner, want=offer.want, asked=asked)
            if looks
            else lessee.leased
        )
        if is_more_left(leased, offer.want) if looks else lessee.promised < len(standing.openings):
            announce_work(tx, [kind])

        def give() -> None:
            self._take(leased, [(standing, kind)], lessee)
            offer.in_doubt = not lessee.is_whole
            offer.give(leased, asked)

        tx.after_commit(give)
        return result

    # --- settling ---

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Settle without claiming; for each whether the attempt was still the claimant's."""

        def work(tx: Transaction) -> dict[Claim, bool]:
            concluded = self._concluding.conclude(tx, settlements)
            announce_work(tx, concluded.ready)
            return concluded.settled

        settled = self.database.write(work)
        self._concluding.forget(settlements)
        return [settled[each.claim] for each in settlements]

    # --- exchanging ---

    def _exchanged(
        self,
        settlements: Sequence[Settlement],
        lines: Sequence[Line],
        *,
        owner: int,
        want: int,
        recalls: bool = True,
    ) -> Exchange:
        """With `lines` to look in, claim from them; without, nobody is in line: take what the
        settlements make.
        """
        asked = self._clock.monotonic()
        room = 0 if lines else want

        def work(tx: Transaction) -> tuple[Concluded, FromBirth, list[Leased]]:
            lessee = self._claiming.from_birth(
                list(self.registry.graphs), owner=owner, room=room, asked=asked
            )
            concluded = self._concluding.conclude(tx, settlements, lessee, recalls=recalls)
            self._enter_again(tx, lessee)
            leased = (
                self._claiming.claim(tx, lines, owner=owner, want=want, asked=asked)
                if lines and want
                else lessee.leased
            )
            if not lines or is_more_left(leased, want):
                announce_work(tx, concluded.ready)
            return concluded, lessee, leased

        concluded, lessee, leased = self.database.write_here(work)
        self._concluding.forget(settlements)
        self._take(leased, concluded.written, lessee)
        if lines and want:
            self._lookout.saw(anybody=is_more_left(leased, want))
        elif concluded.ready:
            self._lookout.saw(anybody=True)
        if not lessee.is_whole:
            raise StoreError(
                "it was written, but which attempts were leased by it was lost with the connection"
            )
        return Exchange(
            [concluded.settled[each.claim] for each in settlements],
            leased,
            is_all=not (lines or concluded.ready),
        )

    def _take(
        self, leased: Sequence[Leased], written: Sequence[tuple[Standing, Kind]], lessee: FromBirth
    ) -> None:
        """After the commit: remember what was left, and whether somebody has struck us off."""
        self._concluding.note(leased)
        self._concluding.recall.keep(written, lessee)
        if lessee.leased:
            (self._struck_off.discard if lessee.is_entered else self._struck_off.add)(lessee.owner)

    def _enter_again(self, tx: Transaction, lessee: FromBirth) -> None:
        """One that held nothing for long may have been struck off. Where that is told with the
        commit, it is entered by the next one: a server's leases end without their owner, too.
        """
        if not lessee.is_entered or lessee.owner in self._struck_off:
            self._claims.enter(tx, lessee.owner)
            lessee.is_entered = True

    # --- looking ---

    def _lines(self) -> list[Line]:
        """In which lines to look, another one first each time."""
        lines = list(
            chain.from_iterable(
                registered.lines for registered in self.registry.registered().values()
            )
        )
        self._turn += 1
        start = self._turn % max(len(lines), 1)
        return lines[start:] + lines[:start]

    def _sees_nobody(self, lines: Iterable[Line]) -> bool:
        """Whether nobody is in line. Where there are caps, somebody may be who could not come
        in.
        """
        return self._lookout.sees_nobody and not any(line.caps for line in lines)

    def _shortest_timeout(self) -> float:
        nodes = chain.from_iterable(graph.order for graph in self.registry.graphs.values())
        return min((node.options.heartbeat_timeout_seconds for node in nodes), default=inf)

    def _ready(self, tx: Transaction, lines: Sequence[Line]) -> bool:
        return bool(
            tx.rows(
                self.records.sql["ready_lanes"],
                {"lanes": self.records.listed([line.lane for line in lines])},
            )
        )

    def _ask_next_due(self) -> float | None:
        lanes = self.records.listed([line.lane for line in self._lines()])
        [(wait,)] = self.database.read(
            lambda tx: tx.rows(self.records.sql["next_due"], {"lanes": lanes})
        )
        return None if wait is None else max(float(wait), 0.0)


def is_more_left(leased: Sequence[Leased], want: int) -> bool:
    """Whether something may be ready after a claim: it took as many as it wanted, or one that
    comes alone.
    """
    return len(leased) >= want or any(each.alone for each in leased)


def _call_all(undo: Iterable[Callable[[], None]]) -> None:
    for each in undo:
        each()
