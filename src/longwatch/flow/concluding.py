"""How attempts are concluded, all in one transaction: the execution is locked and read, or known to
be as it was left → the claim is looked at, and one that does not hold any more changes nothing →
the result is kept, or the attempt is spent → what follows from that is opened. So a result is never
there without what follows from it, and a late one never counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from longwatch.flow.advancing import advance
from longwatch.flow.leasing import FromBirth, Recall
from longwatch.flow.records import Kind, Loaded, Mine, Records, announce_work
from longwatch.flow.registry import Registry
from longwatch.flow.standing import Cause, Standing
from longwatch.flow.waiters import Waiters
from longwatch.store.claims import Blame, Claim, Claims
from longwatch.store.database import ChangedError, Transaction
from longwatch.work.source import Leased, Outcome, Settlement


@dataclass(frozen=True, slots=True)
class Concluded:
    """For each settlement whether it was still the claimant's; what was written; of which graphs
    something is in line now.
    """

    settled: dict[Claim, bool]
    written: list[tuple[Standing, Kind]] = field(default_factory=list)
    ready: set[Kind] = field(default_factory=set)


class Concluding:
    """Settles attempts."""

    def __init__(
        self, records: Records, registry: Registry, claims: Claims, waiters: Waiters
    ) -> None:
        self.recall = Recall()
        self._records = records
        self._registry = registry
        self._claims = claims
        self._waiters = waiters
        self._executions: dict[Claim, int] = {}

    def note(self, leased: Sequence[Leased]) -> None:
        """Remember whose attempts these are."""
        self._executions.update((each.claim, each.item.execution) for each in leased)

    def forget(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            self._executions.pop(settlement.claim, None)

    def conclude(
        self,
        tx: Transaction,
        settlements: Sequence[Settlement],
        lessee: FromBirth | None = None,
        *,
        recalls: bool = False,
    ) -> Concluded:
        """All of them together: as many statements as for one. `recalls`: executions may be taken
        for what they were when they were left; ChangedError comes out of the transaction if one is
        not.
        """
        ending = [each for each in settlements if each.outcome is not Outcome.BACK]
        back = [each for each in settlements if each.outcome is Outcome.BACK]
        concluded = self._end(tx, ending, lessee, recalls=recalls) if ending else Concluded({})
        concluded.settled.update((each.claim, self._give_back(tx, each)) for each in back)
        if back:
            announce_work(tx, self._registry.graphs)
        return concluded

    def _give_back(self, tx: Transaction, settlement: Settlement) -> bool:
        return self._claims.release(
            tx, [settlement.claim], blame=Blame.RELEASE, delay=settlement.delay
        )[0]

    def _end(
        self,
        tx: Transaction,
        settlements: Sequence[Settlement],
        lessee: FromBirth | None,
        *,
        recalls: bool,
    ) -> Concluded:
        claims = [settlement.claim for settlement in settlements]
        recalled = self._recalled(tx, claims) if recalls else None
        loaded, mine = recalled or self._records.load_for(
            tx, self._executions_of(tx, claims), claims
        )
        settled = {
            settlement.claim: _is_ended(settlement, mine, loaded) for settlement in settlements
        }
        written = [
            loaded[number]
            for number in {mine[claim].execution for claim, counts in settled.items() if counts}
        ]
        for standing, kind in written:
            self._go_on(tx, standing, kind)
        if recalled is not None:
            _require_no_others(written, claims)
        kinds = {standing.number: kind for standing, kind in written}
        ready = self._records.save(tx, (standing for standing, _ in written), kinds, lessee)
        return Concluded(settled, written, ready)

    def _go_on(self, tx: Transaction, standing: Standing, kind: Kind) -> None:
        registered = self._registry.registered().get(kind)
        if registered is not None:
            advance(registered.graph, standing, registered.lanes)
            self._waiters.tell(tx, registered.graph, standing)
            if registered.is_capped:  # one that ended makes room for one that may wait elsewhere
                announce_work(tx, [kind])

    def _recalled(
        self, tx: Transaction, claims: Sequence[Claim]
    ) -> tuple[Loaded, dict[Claim, Mine]] | None:
        """What `Records.load_for` would find, if all of it is as it was left."""
        numbers = [
            number for claim in claims if (number := self._executions.get(claim)) is not None
        ]
        known = self.recall.take(numbers)
        if known is None or len(numbers) < len(claims):
            return None
        every = (
            (number, attempt)
            for number, (standing, _) in known.items()
            for attempt in standing.open.values()
        )
        attempts = {
            (attempt.seq, attempt.owner, attempt.term): (number, attempt.node)
            for number, attempt in every
        }
        if any(
            claim not in attempts for claim in claims
        ):  # given back meanwhile, and claimed again
            return None
        mine = {
            claim: Mine(claim, *attempts[claim], is_late=False, has_lapsed=False)
            for claim in claims
        }
        self._records.require(tx, known, mine.values())
        return known, mine

    def _executions_of(self, tx: Transaction, claims: Sequence[Claim]) -> list[int]:
        known = [self._executions.get(claim) for claim in claims]
        if None in known:
            return list(self._records.executions_of(tx, claims).values())
        return [number for number in known if number is not None]


def _is_ended(settlement: Settlement, mine: Mapping[Claim, Mine], loaded: Loaded) -> bool:
    """Whether it is the claimant's to end; then it is ended."""
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


def _require_no_others(written: Sequence[tuple[Standing, Kind]], claims: Sequence[Claim]) -> None:
    """Who is at the other attempts, and with which term, is not recalled: to call one off it has
    to be read.
    """
    ours = {claim.seq for claim in claims}
    if any(closing.seq not in ours for standing, _ in written for closing in standing.closings):
        raise ChangedError


def _cause(settlement: Settlement) -> Cause:
    """Why an attempt came to nothing; `reason` says it, where it was not the code that raised."""
    if settlement.outcome is Outcome.DEAD:
        return Cause.PERMANENT
    return Cause(settlement.reason) if settlement.reason else Cause.RAISED
