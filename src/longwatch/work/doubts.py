"""Whether the store knows of other leases than the engine does: asked after every call without
an answer, and every renewal.
"""

from __future__ import annotations

from longwatch.core.events import LeaseLost
from longwatch.store.claims import Claim
from longwatch.work.calls import SourceCall
from longwatch.work.offers import Offers
from longwatch.work.policy import Surroundings
from longwatch.work.slots import Crew
from longwatch.work.source import Source
from longwatch.work.tenure import Tenure


class Doubts:
    """Those of one engine. Raised from any thread, settled by who deals."""

    def __init__(
        self, source: Source, tenure: Tenure, crew: Crew, offers: Offers, around: Surroundings
    ) -> None:
        self._source = source
        self._tenure = tenure
        self._crew = crew
        self._offers = offers
        self._name = around.name
        self._events = around.events
        self._audit = SourceCall("held", around)
        self._raised = self._settled = 0
        self._called_off = False
        self._missing: set[Claim] = set()
        self._unknown: set[Claim] = set()

    @property
    def are_there(self) -> bool:
        return self._raised != self._settled

    def arise(self, *, called_off: bool = False) -> None:
        """The store may know of other leases than we do. `called_off`: somebody has said so."""
        self._called_off = self._called_off or called_off
        self._raised += 1

    def settle(self, known: set[Claim], held: set[Claim]) -> list[Claim]:
        """Compare with the store, and stop what is not ours any more; what is to be given back
        because we know nothing of it.

        A row counts as lost when it is missing twice in a row: between a settlement by the user's
        code and its note of that, it is missing once. So it is with one that we know nothing about,
        where somebody may just be giving it to us. What is raised meanwhile is another doubt.
        """
        raised, offered = self._raised, self._offers.made
        found = self._audit.make(lambda: self._source.held(owner=self._tenure.owner))
        if found is None:
            return []
        unknown = set(found) - known
        is_certain = not (self._offers.open or self._offers.given) and offered == self._offers.made
        certain = unknown if is_certain else unknown & self._unknown
        self._unknown = unknown - certain
        missing = held.difference(
            found, (each.leased.claim for each in self._crew.running() if each.settled)
        )
        self._lose(missing & self._missing)
        self._missing = missing
        if not (missing or self._unknown):
            self._settled = raised
        return [claim for claim in found if claim in certain]

    def _lose(self, gone: set[Claim]) -> None:
        running = self._crew.running()
        lost = [each for each in running if each.leased.claim in gone and not each.lease_lost]
        for context in lost:
            self._crew.lose(context, blameless=True)
        if gone.difference(each.leased.claim for each in running):
            self._crew.drop_waiting()
        if lost:
            reason, self._called_off = "called_off" if self._called_off else "taken", False
            self._events.emit(
                LeaseLost(
                    engine=self._name,
                    rows=tuple(each.leased.claim.seq for each in lost),
                    reason=reason,
                )
            )
