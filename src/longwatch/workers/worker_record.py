"""A worker process as its parent sees it: whose leases it keeps, how its loops are, and whether
they beat.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from longwatch.core.health import HealthReason
from longwatch.core.lease import LeasePolicy
from longwatch.engine.claim_source import ClaimSource
from longwatch.engine.policy import PARENT_LEASE_SECONDS
from longwatch.host.beatpage import ChildBeatPage
from longwatch.mailbox.backend import MAILBOX_KIND as MAILBOX
from longwatch.observe.counters import MetricSample

WORKER_LEASE_SECONDS = PARENT_LEASE_SECONDS
RENEW_INTERVAL = WORKER_LEASE_SECONDS * LeasePolicy(WORKER_LEASE_SECONDS).renew_at
SilentRows = Mapping[int, Mapping[int, float]]
TRUST_FRACTION = LeasePolicy(WORKER_LEASE_SECONDS).trust
"""Of the lease, what the child believes in it."""


class EngineLeases:
    """The leases of one engine, renewed by owner."""

    def __init__(
        self,
        owner: int,
        source: ClaimSource,
        page: ChildBeatPage,
        locator: Mapping[str, str],
        *,
        engine: str,
    ) -> None:
        self.owner = owner
        self.source = source
        self.page = page
        self.store_url = locator["url"]
        self.name = locator["name"]
        self.is_mailbox = locator["kind"] == MAILBOX
        self.engine = engine
        self._renewed_at = -inf

    def is_due(self, now: float) -> bool:
        return now >= self._renewed_at + RENEW_INTERVAL * 0.9

    def is_unreachable(self, now: float) -> bool:
        """Whether its store has not answered for as long as leases last."""
        return self._renewed_at != -inf and now - self._renewed_at > WORKER_LEASE_SECONDS

    def renew(self, requested_at: float) -> int:
        """Renew, and write on the page until when that is trusted, counted from before it was
        asked for; how many there are.
        """
        count = self.source.renew(owner=self.owner, lease_seconds=WORKER_LEASE_SECONDS)
        self._renewed_at = requested_at
        self.page.trust_until(requested_at + WORKER_LEASE_SECONDS * TRUST_FRACTION)
        return count


class WorkerRecord:
    """One worker process. Its facts come from what it says; whether it lives and beats from its
    pages.
    """

    def __init__(self, pid: int, program: str, *, serial: int = 0) -> None:
        self.pid = pid
        self.program = program
        self.serial = serial
        """No other has had it; pids come again."""
        self.engine_leases: dict[int, EngineLeases] = {}
        self.loops: tuple[str, ...] = ()
        self.stall_threshold: float | None = None
        self.crash_file: Path | None = None
        self.has_joined = False
        self.is_stalled = False
        """Whether it is to be killed: then nothing of it is renewed any more."""
        self.is_stopping = False
        """Whether it was told to stop."""
        self._is_ready = False
        self._failing: list[str] = []

    def record_group(self, facts: Mapping[str, Any]) -> None:
        """It runs its loops."""
        threshold = facts.get("threshold")
        self.loops = tuple(map(str, facts.get("loops", ())))
        self.stall_threshold = None if threshold is None else float(threshold)
        self.crash_file = Path(facts["crash_file"]) if facts.get("crash_file") else None
        self.has_joined = True

    def record_state(self, facts: Mapping[str, Any]) -> list[MetricSample]:
        """How its loops are now; what they have counted."""
        self._is_ready = bool(facts.get("ready"))
        self._failing = [str(each) for each in facts.get("failing", ())]
        return [
            MetricSample(str(name), tuple(map(str, labels)), value)
            for name, labels, value in facts.get("samples", ())
        ]

    def silent_rows(self, now: float) -> SilentRows:
        """By the owner of leases: the rows whose work has given no beat for the threshold, and
        for how long; 0 is a whole loop.
        """
        if self.stall_threshold is None:
            return {}
        found = {
            kept.owner: kept.page.read().stalled_rows(now, older_than=self.stall_threshold)
            for kept in tuple(self.engine_leases.values())
        }
        return {owner: ages for owner, ages in found.items() if ages}

    def is_unreachable(self, now: float) -> bool:
        """Whether a store of its has not answered for as long as leases last."""
        return any(kept.is_unreachable(now) for kept in tuple(self.engine_leases.values()))

    @property
    def reason(self) -> HealthReason:
        """Why it is not ready."""
        if not self.has_joined:
            return HealthReason.NOT_STARTED
        if self.is_stalled:
            return HealthReason.STALE
        if self.is_stopping:
            return HealthReason.DRAINING
        if self._is_ready:
            return HealthReason.OK
        text = self._failing[0].rpartition(": ")[2] if self._failing else ""
        return HealthReason(text) if text in set(HealthReason) else HealthReason.PENDING

    def close(self) -> None:
        for kept in self.engine_leases.values():
            kept.page.close()
        self.engine_leases.clear()
