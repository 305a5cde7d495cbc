"""The attempts of some graphs as a source of work: claimed, renewed, concluded, swept.

How an attempt is concluded, all in one transaction: its execution is locked and read → the claim is looked at, and one that does
not hold any more changes nothing → the result is kept, or the attempt is spent → what follows from that is opened → the next
attempts are claimed. So a result is never there without what follows from it, and a late one never counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from typing import NamedTuple

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.events import Events
from longwatch.flow.advancing import advance
from longwatch.flow.records import LEASE, TABLE, Kind, Loaded, Mine, Records, work_of
from longwatch.flow.registry import Line, Registry
from longwatch.flow.standing import Cause
from longwatch.flow.sweeping import SWEEP_EVERY, Sweeping
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Blame, Claim, Claims
from longwatch.store.database import Database, Row, Transaction
from longwatch.work.feeder import Offer
from longwatch.work.place import LEASE_UNDER_A_PARENT
from longwatch.work.source import Exchange, Leased, Outcome, Settlement

KIND = "flow"
_REFRESH_EVERY = 10.0
_STALE_FOR = 1.0
"""Seconds for which a stale attempt that cannot be called off here is left to others."""
_COLUMNS = ("execution", "node", "lane", "attempt", "computed_with", "failures", "crashes", "abandon_after", "heartbeat_timeout")


class Attempted(NamedTuple):
    """An attempt that was claimed, and what it is computed from: the values, as JSON, in a JSON object."""

    execution: int
    node: str
    lane: int
    number: int
    computed_with: str
    failures: int
    crashes: int
    abandon_after: float
    heartbeat_timeout: float | None
    inputs: str | None
    """None: they are too large together."""
    is_stale: bool
    id: str
    claimed_at: float
    """On the worker's own clock, from just before it was asked for."""

    @property
    def deliveries(self) -> int:
        return self.number


class FlowSource:
    """A `work.Source` over the attempts of registered graphs. Without any it can still renew, and bring back what others lost."""

    def __init__(
        self,
        database: Database,
        registry: Registry | None = None,
        *,
        sweep_every: float = SWEEP_EVERY,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.database = database
        self.records = Records(database.dialect)
        self.registry = registry or Registry(database, self.records)
        self._clock = clock or SystemClock()
        self._claims = Claims(
            dialect=database.dialect,
            table=TABLE,
            columns=(*_COLUMNS, *(self.records.sql[name] for name in ("inputs_of_it", "is_stale", "id_of_it"))),
            owners=database.owners,
            lease=LEASE[database.dialect],
        )
        self.sweeping = Sweeping(
            database, self.records, self._claims, self.registry, every=sweep_every, clock=self._clock, events=events
        )
        self._executions: dict[Claim, int] = {}
        self._refresh_at = self._clock.monotonic() + _REFRESH_EVERY
        self._turn = 0

    # --- work.Source ---

    def enter(self, incarnation: Incarnation, *, page: str | None = None) -> int:
        self.registry.registered()
        return self.database.write(lambda tx: self._claims.register(tx, incarnation, page=page))

    def exchange(self, settlements: Sequence[Settlement], *, owner: int, want: int, duration: float) -> Exchange:  # noqa: ARG002 - every attempt has its own
        lanes = self._lines()
        if not settlements and self.database.looks_first and not self.database.read(lambda tx: self._ready(tx, lanes)):
            return Exchange([], [])
        asked = self._clock.monotonic()

        def work(tx: Transaction) -> Exchange:
            settled, ready = self._settle(tx, settlements)
            leased = self._claim(tx, lanes, owner, want, asked) if want else []
            if is_more_left(leased, want):
                announce_work(tx, ready)
            return Exchange(settled, leased)

        exchange = self.database.write(work)
        for settlement in settlements:
            self._executions.pop(settlement.claim, None)
        self._executions.update((leased.claim, leased.item.execution) for leased in exchange.leased)
        return exchange

    def renew(self, *, owner: int, duration: float, skip: Collection[Claim] = ()) -> int:
        return self.database.write(lambda tx: self._claims.renew(tx, owner=owner, duration=duration, skip=skip))

    def held(self, *, owner: int) -> list[Claim]:
        return self.database.read(lambda tx: self._claims.held(tx, owner=owner))

    def sweep(self) -> int:
        if self._clock.monotonic() >= self._refresh_at:
            self._refresh_at = self._clock.monotonic() + _REFRESH_EVERY
            self.registry.refresh()
        return self.sweeping.look()

    def next_due(self) -> float | None:
        lanes = self.records.listed([line.lane for line in self._lines()])
        [(wait,)] = self.database.read(lambda tx: tx.rows(self.records.sql["next_due"], {"lanes": lanes}))
        return None if wait is None else max(float(wait), 0.0)

    def whereabouts(self) -> dict[str, str] | None:
        """Nobody else renews attempts whose heartbeats have to come more often than a parent's."""
        if self._shortest_timeout() < LEASE_UNDER_A_PARENT:
            return None
        return {"kind": KIND, "url": self.database.address, "name": ", ".join(kind.graph for kind in self.registry.graphs)}

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        undo = [self.database.listen(work_of(kind), wakeup) for kind in self.registry.graphs]
        return lambda: _call_all(undo)

    # --- hand over hand ---

    def claim_for(self, tx: Transaction, offer: Offer, kind: Kind) -> None:
        """Lease some of what this transaction makes to a worker that has room, and give it that once it is committed."""
        if offer.closed:  # whoever began this has given up waiting for it, and the worker may have ended since
            announce_work(tx, [kind])
            return
        asked = self._clock.monotonic()
        leased = self._claim(tx, self.registry.registered()[kind].lines, offer.owner, offer.want, asked)
        if is_more_left(leased, offer.want):
            announce_work(tx, [kind])

        def give() -> None:
            self._executions.update((each.claim, each.item.execution) for each in leased)
            offer.give(leased, asked)

        tx.after_commit(give)

    # --- settling ---

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Settle without claiming; for each whether the attempt was still the claimant's."""
        settled = self.database.write(lambda tx: self._settle_and_tell(tx, settlements))
        for settlement in settlements:
            self._executions.pop(settlement.claim, None)
        return settled

    def _settle_and_tell(self, tx: Transaction, settlements: Sequence[Settlement]) -> list[bool]:
        settled, ready = self._settle(tx, settlements)
        announce_work(tx, ready)
        return settled

    def _settle(self, tx: Transaction, settlements: Sequence[Settlement]) -> tuple[list[bool], Collection[Kind]]:
        """For each whether it was still the claimant's; and of which graphs there is something to be computed now."""
        concluding = [each for each in settlements if each.outcome is not Outcome.BACK]
        concluded, ready = self._conclude(tx, concluding) if concluding else ({}, set[Kind]())
        back = [each for each in settlements if each.outcome is Outcome.BACK]
        given = {each.claim: self._give_back(tx, each) for each in back}
        if back:
            announce_work(tx, self.registry.graphs)
        return [bool(concluded.get(each.claim) or given.get(each.claim)) for each in settlements], ready

    def _give_back(self, tx: Transaction, settlement: Settlement) -> bool:
        return self._claims.release(tx, [settlement.claim], blame=Blame.RELEASE, delay=settlement.delay)[0]

    def _conclude(self, tx: Transaction, settlements: Sequence[Settlement]) -> tuple[dict[Claim, bool], set[Kind]]:
        """Together: as many statements for all of them as for one."""
        graphs = self.registry.registered()
        claims = [settlement.claim for settlement in settlements]
        loaded, mine = self.records.load_for(tx, self._executions_of(tx, settlements), claims)
        concluded = {settlement.claim: self._concluded(settlement, mine, loaded) for settlement in settlements}
        touched = {mine[claim].execution for claim, counts in concluded.items() if counts}
        for number in touched:
            standing, kind = loaded[number]
            registered = graphs.get(kind)
            if registered is not None:
                advance(registered.graph, standing, registered.lanes)
                if registered.is_capped:  # one that ended makes room for one that may wait elsewhere
                    announce_work(tx, [kind])
        kinds = {number: loaded[number][1] for number in touched}
        return concluded, self.records.save(tx, (loaded[number][0] for number in touched), kinds)

    def _executions_of(self, tx: Transaction, settlements: Sequence[Settlement]) -> list[int]:
        known = [self._executions.get(settlement.claim) for settlement in settlements]
        if None in known:
            return list(self.records.executions_of(tx, [settlement.claim for settlement in settlements]).values())
        return [number for number in known if number is not None]

    def _concluded(self, settlement: Settlement, mine: Mapping[Claim, Mine], loaded: Loaded) -> bool:
        found = mine.get(settlement.claim)
        if found is None:
            return False
        standing = loaded[found.execution][0]
        attempt = standing.open.get(found.node)
        if attempt is None or attempt.seq != settlement.claim.seq:
            return False
        if settlement.outcome is Outcome.DONE:
            standing.succeed(attempt, (settlement.result or b"null").decode())
        else:
            standing.end(attempt, _cause(settlement), error=settlement.error, delay=settlement.delay)
        return True

    # --- claiming ---

    def _lines(self) -> list[Line]:
        """In which lines to look, another one first each time."""
        lines = list(chain.from_iterable(registered.lines for registered in self.registry.registered().values()))
        self._turn += 1
        start = self._turn % max(len(lines), 1)
        return lines[start:] + lines[:start]

    def _shortest_timeout(self) -> float:
        nodes = chain.from_iterable(graph.order for graph in self.registry.graphs.values())
        return min((node.options.heartbeat_timeout_seconds for node in nodes), default=inf)

    def _ready(self, tx: Transaction, lines: Sequence[Line]) -> bool:
        return bool(tx.rows(self.records.sql["ready_lanes"], {"lanes": self.records.listed([line.lane for line in lines])}))

    def _claim(self, tx: Transaction, lines: Sequence[Line], owner: int, want: int, asked: float) -> list[Leased]:
        leased: list[Leased] = []
        self._lock_caps(tx, lines)
        for line in lines:
            room = self._room(tx, line, want - len(leased))
            if room > 0:
                rows = self._claims.claim(tx, lane=line.lane, owner=owner, duration=0.0, limit=room)
                leased += [self._leased(row, line, asked) for row in rows]
        stale = [each for each in leased if each.item.is_stale]
        if stale:
            self._call_off(tx, stale)
        return [each for each in leased if not each.item.is_stale]

    def _lock_caps(self, tx: Transaction, lines: Sequence[Line]) -> None:
        """All of them, in one order: two who lock one by one would wait for each other."""
        for lane in sorted({lanes[0] for line in lines for lanes, _ in line.caps}):
            self.records.lock_lane(tx, lane)

    def _call_off(self, tx: Transaction, stale: Sequence[Leased]) -> None:
        """Attempts that were just claimed, and whose inputs have changed: called off, and begun anew. Those of a node that is not
        known here, or of an execution that somebody else is changing just now, go back.
        """
        graphs = self.registry.registered()
        loaded, _ = self.records.load_for(tx, (each.item.execution for each in stale), (), passing=True)
        for standing, kind in loaded.values():
            advance(graphs[kind].graph, standing, graphs[kind].lanes)
        kinds = {number: kind for number, (_, kind) in loaded.items()}
        announce_work(tx, self.records.save(tx, (standing for standing, _ in loaded.values()), kinds))
        over = {closing.seq for standing, _ in loaded.values() for closing in standing.closings}
        left = [each.claim for each in stale if each.claim.seq not in over]
        self._claims.release(tx, left, blame=Blame.RELEASE, delay=_STALE_FOR)

    def _room(self, tx: Transaction, line: Line, want: int) -> int:
        """How many may be taken from a line: no more than its caps allow, counted while nobody else counts."""
        for lanes, most in line.caps:
            if want > 0:
                running = sum(tx.rows(self.records.sql["running_in"], {"lane": lane})[0][0] for lane in lanes)
                want = min(want, most - running)
        return want

    def _leased(self, row: Row, line: Line, asked: float) -> Leased:
        item = Attempted._make((*row[3:], asked))
        node = self.registry.graphs[line.kind].nodes.get(item.node)
        return Leased(
            Claim(*row[:3]),
            item,
            alone=item.crashes > 0,
            lasts=item.heartbeat_timeout,
            retry=None if node is None else node.options.retry,
        )


def announce_work(tx: Transaction, kinds: Iterable[Kind]) -> None:
    """Tell the workers of these graphs that there is something to be computed."""
    for kind in kinds:
        tx.announce(work_of(kind))


def is_more_left(leased: Sequence[Leased], want: int) -> bool:
    """Whether something may be ready after a claim: it took as many as it wanted, or one that comes alone."""
    return len(leased) >= want or any(each.alone for each in leased)


def _cause(settlement: Settlement) -> Cause:
    """Why an attempt came to nothing; `reason` says it, where it was not the code that raised."""
    if settlement.outcome is Outcome.DEAD:
        return Cause.PERMANENT
    return Cause(settlement.reason) if settlement.reason else Cause.RAISED


def _call_all(undo: Iterable[Callable[[], None]]) -> None:
    for each in undo:
        each()
