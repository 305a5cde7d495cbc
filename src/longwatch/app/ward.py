"""A worker process as its parent sees it: whose leases it keeps, how its loops are, and whether
they beat.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from longwatch.core.health import Reason
from longwatch.core.lease import LeasePolicy
from longwatch.host.beatpage import ForeignPage
from longwatch.mailbox.backend import KIND as MAILBOX
from longwatch.observe.tally import Sample
from longwatch.work.place import LEASE_UNDER_A_PARENT
from longwatch.work.source import Source

LEASE = LEASE_UNDER_A_PARENT
RENEW_EVERY = LEASE * LeasePolicy(LEASE).renew_at
Silent = Mapping[int, Mapping[int, float]]
TRUST = LeasePolicy(LEASE).trust
"""Of the lease, what the child believes in it."""


class Kept:
    """The leases of one engine, renewed by owner."""

    def __init__(
        self,
        owner: int,
        source: Source,
        page: ForeignPage,
        whereabouts: Mapping[str, str],
        *,
        engine: str,
    ) -> None:
        self.owner = owner
        self.source = source
        self.page = page
        self.store = whereabouts["url"]
        self.name = whereabouts["name"]
        self.is_mailbox = whereabouts["kind"] == MAILBOX
        self.engine = engine
        self._renewed_at = -inf

    def is_due(self, now: float) -> bool:
        return now >= self._renewed_at + RENEW_EVERY * 0.9

    def is_out_of_reach(self, now: float) -> bool:
        """Whether its store has not answered for as long as leases last."""
        return self._renewed_at != -inf and now - self._renewed_at > LEASE

    def renew(self, asked: float) -> int:
        """Renew, and write on the page until when that is trusted, counted from before it was
        asked for; how many there are.
        """
        count = self.source.renew(owner=self.owner, duration=LEASE)
        self._renewed_at = asked
        self.page.trust_until(asked + LEASE * TRUST)
        return count


class Ward:
    """One worker process. Its facts come from what it says; whether it lives and beats from its
    pages.
    """

    def __init__(self, pid: int, program: str, *, number: int = 0) -> None:
        self.pid = pid
        self.program = program
        self.number = number
        """No other has had it; pids come again."""
        self.kept: dict[int, Kept] = {}
        self.loops: tuple[str, ...] = ()
        self.threshold: float | None = None
        self.crash_file: Path | None = None
        self.joined = False
        self.condemned = False
        """Whether it is to be killed: then nothing of it is renewed any more."""
        self.leaving = False
        """Whether it was told to stop."""
        self._ready = False
        self._failing: list[str] = []

    def join(self, facts: Mapping[str, Any]) -> None:
        """It runs its loops."""
        threshold = facts.get("threshold")
        self.loops = tuple(map(str, facts.get("loops", ())))
        self.threshold = None if threshold is None else float(threshold)
        self.crash_file = Path(facts["crash_file"]) if facts.get("crash_file") else None
        self.joined = True

    def heard(self, facts: Mapping[str, Any]) -> list[Sample]:
        """How its loops are now; what they have counted."""
        self._ready = bool(facts.get("ready"))
        self._failing = [str(each) for each in facts.get("failing", ())]
        return [
            Sample(str(name), tuple(map(str, labels)), value)
            for name, labels, value in facts.get("samples", ())
        ]

    def silent(self, now: float) -> Silent:
        """By the owner of leases: the rows whose work has given no beat for the threshold, and
        for how long; 0 is a whole loop.
        """
        if self.threshold is None:
            return {}
        found = {
            kept.owner: kept.page.read().silent(now, after=self.threshold)
            for kept in tuple(self.kept.values())
        }
        return {owner: ages for owner, ages in found.items() if ages}

    def is_out_of_reach(self, now: float) -> bool:
        """Whether a store of its has not answered for as long as leases last."""
        return any(kept.is_out_of_reach(now) for kept in tuple(self.kept.values()))

    @property
    def reason(self) -> Reason:
        """Why it is not ready."""
        if not self.joined:
            return Reason.NOT_STARTED
        if self.condemned:
            return Reason.STALE
        if self.leaving:
            return Reason.DRAINING
        if self._ready:
            return Reason.OK
        word = self._failing[0].rpartition(": ")[2] if self._failing else ""
        return Reason(word) if word in set(Reason) else Reason.PENDING

    def close(self) -> None:
        for kept in self.kept.values():
            kept.page.close()
        self.kept.clear()
