"""Claiming attempts: those that wait in line, within the caps of their lines, and those that are
leased as they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from longwatch.flow.advancing import advance
from longwatch.flow.leasing import FromBirth
from longwatch.flow.records import LEASE, TABLE, Kind, Records, announce_work
from longwatch.flow.registry import Line, Registry
from longwatch.flow.standing import Opening, Standing
from longwatch.store.claims import Blame, Claim, Claims
from longwatch.store.database import Database, Row, Transaction
from longwatch.work.source import Leased

_STALE_FOR = 1.0
"""Seconds for which a stale attempt that cannot be called off here is left to others."""
_LARGEST_INPUTS = 64 << 20
"""Characters of all values together, as in `inputs_of_it`."""
_COLUMNS = (
    "execution",
    "node",
    "lane",
    "attempt",
    "computed_with",
    "failures",
    "crashes",
    "abandon_after",
    "heartbeat_timeout",
)


class Attempted(NamedTuple):
    """An attempt that was claimed, and what it is computed from: the values, as JSON, in a JSON
    object.
    """

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


class Claiming:
    """What a worker takes."""

    def __init__(self, database: Database, records: Records, registry: Registry) -> None:
        self.records = records
        self.registry = registry
        self.claims = Claims(
            dialect=database.dialect,
            table=TABLE,
            columns=(
                *_COLUMNS,
                *(records.sql[name] for name in ("inputs_of_it", "is_stale", "id_of_it")),
            ),
            owners=database.owners,
            lease=LEASE[database.dialect],
        )

    def claim(
        self, tx: Transaction, lines: Sequence[Line], *, owner: int, want: int, asked: float
    ) -> list[Leased]:
        """Some of what waits in these lines. What turns out to be stale is called off instead."""
        leased: list[Leased] = []
        self._lock_caps(tx, lines)
        for line in lines:
            room = self._room(tx, line, want - len(leased))
            if room > 0:
                rows = self.claims.claim(tx, lane=line.lane, owner=owner, duration=0.0, limit=room)
                leased += [self._leased(row, line, asked) for row in rows]
        stale = [each for each in leased if each.item.is_stale]
        if stale:
            self._call_off(tx, stale)
        return [each for each in leased if not each.item.is_stale]

    def from_birth(
        self, kinds: Sequence[Kind], *, owner: int, room: int, asked: float
    ) -> FromBirth:
        """The same worker for what is about to be made of these graphs; those whose lines have
        caps have to be counted in line.
        """
        graphs = self.registry.registered()
        lines = {line.lane: line for kind in kinds for line in graphs[kind].lines if not line.caps}
        return FromBirth(
            owner,
            room,
            lines,
            lambda standing, opening, claim: self._born(standing, opening, claim, lines, asked),
        )

    def _lock_caps(self, tx: Transaction, lines: Sequence[Line]) -> None:
        """All of them, in one order: two who lock one by one would wait for each other."""
        for lane in sorted({lanes[0] for line in lines for lanes, _ in line.caps}):
            self.records.lock_lane(tx, lane)

    def _room(self, tx: Transaction, line: Line, want: int) -> int:
        """How many may be taken from a line: no more than its caps allow, counted while nobody
        else counts.
        """
        for lanes, most in line.caps:
            if want > 0:
                running = sum(
                    tx.rows(self.records.sql["running_in"], {"lane": lane})[0][0] for lane in lanes
                )
                want = min(want, most - running)
        return want

    def _call_off(self, tx: Transaction, stale: Sequence[Leased]) -> None:
        """Attempts that were just claimed, and whose inputs have changed: called off, and begun
        anew. Those of a node that is not known here, or of an execution that somebody else is
        changing just now, go back.
        """
        graphs = self.registry.registered()
        loaded, _ = self.records.load_free(tx, (each.item.execution for each in stale))
        for standing, kind in loaded.values():
            advance(graphs[kind].graph, standing, graphs[kind].lanes)
        kinds = {number: kind for number, (_, kind) in loaded.items()}
        announce_work(
            tx, self.records.save(tx, (standing for standing, _ in loaded.values()), kinds)
        )
        over = {closing.seq for standing, _ in loaded.values() for closing in standing.closings}
        left = [each.claim for each in stale if each.claim.seq not in over]
        self.claims.release(tx, left, blame=Blame.RELEASE, delay=_STALE_FOR)

    def _leased(self, row: Row, line: Line, asked: float) -> Leased:
        return self._told(Claim(*row[:3]), Attempted._make((*row[3:], asked)), line)

    def _born(
        self,
        standing: Standing,
        opening: Opening,
        claim: Claim,
        lines: dict[int, Line],
        asked: float,
    ) -> Leased:
        terms = opening.terms
        item = Attempted(
            standing.number,
            opening.node,
            terms.lane,
            opening.number,
            opening.computed_with,
            opening.number - 1,
            opening.crashes,
            terms.abandon_after,
            terms.heartbeat_timeout,
            _inputs(standing, opening),
            False,
            standing.id,
            asked,
        )
        return self._told(claim, item, lines[terms.lane])

    def _told(self, claim: Claim, item: Attempted, line: Line) -> Leased:
        node = self.registry.graphs[line.kind].nodes.get(item.node)
        retry = None if node is None else node.options.retry
        return Leased(
            claim, item, alone=item.crashes > 0, lasts=item.heartbeat_timeout, retry=retry
        )


def _inputs(standing: Standing, opening: Opening) -> str | None:
    """The values that an attempt is computed from, as the store would tell them."""
    names = msgspec.json.decode(opening.computed_with)
    values = {name: standing.nodes[name].value for name in names if standing.is_set(name)}
    if sum(len(value or "") for value in values.values()) > _LARGEST_INPUTS:
        return None
    return msgspec.json.encode(values).decode()
