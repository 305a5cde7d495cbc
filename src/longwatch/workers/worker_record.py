"""What a parent knows about one worker process: its leases, the state of its loops, and their
beats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from longwatch.core.health import HealthReason
from longwatch.core.lease import Lease, LeasePolicy, RenewalSchedule
from longwatch.engine.claim_source import ClaimSource
from longwatch.engine.policy import PARENT_LEASE_SECONDS
from longwatch.host.beatpage import ChildBeatPage
from longwatch.host.parent_channel import REPORT_SECONDS
from longwatch.mailbox.backend import MAILBOX_KIND as MAILBOX
from longwatch.observe.counters import MetricSample
from longwatch.workers.child_record import ChildRecord

WORKER_LEASE = LeasePolicy(PARENT_LEASE_SECONDS)
SilentRows = Mapping[int, Mapping[int, float]]
RowPlace = tuple[str, str, int]
"""A row: the URL of its store, the name of its mailbox, and its number."""


class StorePlace(NamedTuple):
    """Where an engine claims from: a mailbox or the graphs of a store."""

    url: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """The state of one loop as its process last reported it, at `reported_at` of our clock."""

    name: str
    age: float | None
    """Seconds since its last beat; None while it does not run."""
    max_age: float
    """The largest age so far."""
    holding: int
    reported_at: float

    def age_at(self, now: float) -> float | None:
        """Seconds since its last beat. The age goes on after the report: a process that is frozen,
        or whose interpreter is blocked, sends none.
        """
        return None if self.age is None else self.age + max(now - self.reported_at, 0.0)

    def silence_at(self, now: float) -> float:
        """Seconds for which it cannot have given a beat: a worker that runs would have reported
        again. Its age is no proof of that, as it may have beaten since its last report.
        """
        return 0.0 if self.age is None else max(now - self.reported_at - REPORT_SECONDS, 0.0)

    def facts(self, now: float) -> dict[str, object]:
        """As plain JSON types."""
        age = self.age_at(now)
        return {
            "name": self.name,
            "age": age,
            "max_age": max(self.max_age, age or 0.0),
            "holding": self.holding,
        }


class EngineLeases:
    """The leases of one engine of a worker, renewed together, by owner."""

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
        self.is_idle = False
        """Whether the last renewal found no row."""
        self._lease: Lease | None = None
        """None until the first renewal is confirmed."""

    def is_due(self, schedule: RenewalSchedule, now: float) -> bool:
        return self._lease is None or schedule.is_due(self._lease, now)

    def is_unreachable(self, now: float) -> bool:
        """Whether the store has confirmed no renewal for as long as leases last."""
        return self._lease is not None and now > self._lease.expires_at

    def renew(self, requested_at: float) -> int:
        """Renew the leases, and write the end of their trust to the page. Returns the number of
        rows.
        """
        count = self.source.renew(owner=self.owner, lease_seconds=WORKER_LEASE.lease_seconds)
        self.record_renewal(requested_at, count)
        return count

    def record_renewal(self, requested_at: float, rows: int) -> None:
        """Write the end of trust to the page after a renewal that the store has confirmed."""
        self.is_idle = not rows
        self._lease = Lease(requested_at, WORKER_LEASE)
        self.page.trust_until(self._lease.trusted_until)


class WorkerRecord(ChildRecord):
    """One worker process. Its state comes from its reports, its beats from its pages."""

    def __init__(self, pid: int, program: str, *, serial: int = 0) -> None:
        super().__init__(pid, program, serial=serial)
        self.engine_leases: dict[int, EngineLeases] = {}
        self.pages: dict[int, ChildBeatPage] = {}
        """Beat pages by lease owner. Opened when they are reported, because the end of the worker
        may be judged before its store is open here.
        """
        self.loops: tuple[str, ...] = ()
        self.stall_threshold: float | None = None
        self.stale_after: float | None = None
        """Seconds without a beat of a loop after which it is not ready; None: never."""
        self.crash_file: Path | None = None
        self.slots = 0
        """The number of rows that it can run at a time."""
        self.has_joined = False
        self.has_finished = False
        """Whether it has reported that it ends by itself."""
        self.is_stalled = False
        """Whether it stalled and is to be killed. Its leases are not renewed any more."""
        self.is_stale = False
        """Whether a loop that reports nothing any more gave no beat for `stale_after`, at the last
        check.
        """
        self._loop_states: dict[str, LoopState] = {}
        self._places: dict[int, StorePlace] = {}
        """By lease owner."""
        self._group_places: list[StorePlace] = []
        """Of all loops, also of those that renew their leases themselves."""
        self._completed = 0
        """Rows completed by engines that have ended."""

    def accept(self, report: Mapping[str, Any]) -> None:
        """Note the parts of a report that the judgement of its end needs. Never waits."""
        super().accept(report)
        match report["about"]:
            case "group":
                self._record_group(report)
            case "finished":
                self.has_finished = True
            case "leases":
                owner, place = int(report["owner"]), report["source"]
                self._places[owner] = _store_place(place)
                self.pages[owner] = ChildBeatPage(report["page"])

    def running_rows(self) -> frozenset[RowPlace]:
        """The rows that it works on, or had begun when it ended."""
        return frozenset(
            (*self._places[owner][:2], row)
            for owner, page in tuple(self.pages.items())
            for row in page.read().running_rows
        )

    @property
    def has_completed(self) -> bool:
        """Whether it has completed a row."""
        pages = tuple(self.pages.values())
        return self._completed > 0 or any(page.read().completed for page in pages)

    def end_engine(self, owner: int) -> EngineLeases | None:
        """Forget an engine that has ended; returns its leases."""
        page = self.pages.get(owner)
        if page is not None:
            self._completed += page.read().completed
            del self.pages[owner]
            page.close()
        return self.engine_leases.pop(owner, None)

    def _record_group(self, facts: Mapping[str, Any]) -> None:
        """Note that the worker runs its loops."""
        threshold = facts.get("threshold")
        self.loops = tuple(map(str, facts.get("loops", ())))
        self.stall_threshold = None if threshold is None else float(threshold)
        stale_after = facts.get("stale_after")
        self.stale_after = None if stale_after is None else float(stale_after)
        self.crash_file = Path(facts["crash_file"]) if facts.get("crash_file") else None
        self.slots = int(facts.get("slots", 0))
        self.has_joined = True
        self._group_places = [_store_place(place) for place in facts.get("stores", ())]

    def record_state(self, facts: Mapping[str, Any], now: float) -> list[MetricSample]:
        """Note the state of the loops. Returns their metrics."""
        samples = super().record_state(facts, now)
        for loop in facts.get("loops", ()):
            self._record_loop(loop, now)
        return samples

    def unready_reason(self, now: float) -> str:
        """Why it is not ready, by its reports, its beats and its leases; empty if it is, or has not
        reported yet. `now` is the time of the boot clock.
        """
        if self.is_stalled or self.is_stale:
            return HealthReason.STALE.value
        unreachable = HealthReason.UNREACHABLE.value if self.is_unreachable(now) else ""
        return super().unready_reason(now) or unreachable

    def _record_loop(self, facts: Mapping[str, Any], now: float) -> None:
        name, age = str(facts["name"]), facts.get("age")
        known = self._loop_states.get(name)
        self._loop_states[name] = LoopState(
            name=name,
            age=None if age is None else float(age),
            max_age=max(float(age or 0.0), 0.0 if known is None else known.max_age),
            holding=int(facts.get("holding", 0)),
            reported_at=now,
        )

    @property
    def stores(self) -> list[StorePlace]:
        """The places that its engines claim from, each once."""
        of_engines = (self._places[owner] for owner in tuple(self.pages))
        return list(dict.fromkeys([*self._group_places, *of_engines]))

    def facts(self, *, monotonic: float, boottime: float) -> dict[str, Any]:
        """Its state as plain JSON types. Never blocks."""
        reason = self.reason_at(boottime)
        return {
            "program": self.program,
            "pid": self.pid,
            "joined": self.has_joined,
            "ready": reason is HealthReason.OK,
            "reason": reason.value,
            "stalled": self.is_stalled,
            "stopping": self.is_stopping,
            "failing": list(self.failing),
            "threshold": self.stall_threshold,
            "slots": self.slots,
            "crash_file": None if self.crash_file is None else str(self.crash_file),
            "loops": [state.facts(monotonic) for state in self._loop_states.values()],
            "stores": [place._asdict() for place in self.stores],
        }

    def silent_rows(self, now: float) -> SilentRows:
        """By lease owner: the rows whose code gave no beat for the threshold, and for how many
        seconds. Row 0 stands for a whole loop.
        """
        if self.stall_threshold is None:
            return {}
        found = {
            leases.owner: leases.page.read().stalled_rows(now, older_than=self.stall_threshold)
            for leases in tuple(self.engine_leases.values())
        }
        return {owner: ages for owner, ages in found.items() if ages}

    def beat_ages(self, now: float) -> dict[str, float]:
        """Seconds since the last beat of each running loop, at this time of the monotonic clock."""
        ages = {name: state.age_at(now) for name, state in tuple(self._loop_states.items())}
        return {name: age for name, age in ages.items() if age is not None}

    def check_beats(self, now: float) -> None:
        """Note whether a loop is stale. A worker reports that itself, unless it is frozen: then its
        reports have stopped for as long.
        """
        silences = [state.silence_at(now) for state in tuple(self._loop_states.values())]
        silence = max(silences, default=0.0)
        self.is_stale = self.stale_after is not None and silence > self.stale_after

    def is_unreachable(self, now: float) -> bool:
        """Whether one of its stores has confirmed no renewal for as long as leases last."""
        return any(leases.is_unreachable(now) for leases in tuple(self.engine_leases.values()))

    def reason_at(self, now: float) -> HealthReason:
        """Why it is not ready, at this time of the boot clock."""
        reason = self.reason
        return (
            HealthReason.UNREACHABLE
            if reason is HealthReason.OK and self.is_unreachable(now)
            else reason
        )

    @property
    def reason(self) -> HealthReason:
        """Why it is not ready, as far as it has reported."""
        if self.is_apart:
            return HealthReason.PENDING
        if not self.has_joined:
            return HealthReason.NOT_STARTED
        if self.is_stalled:
            return HealthReason.STALE
        if self.is_stopping:
            return HealthReason.DRAINING
        if self._is_ready:
            return HealthReason.STALE if self.is_stale else HealthReason.OK
        text = self.failing[0].rpartition(": ")[2] if self.failing else ""
        return HealthReason(text) if text in set(HealthReason) else HealthReason.PENDING

    def close(self) -> None:
        for page in self.pages.values():
            page.close()
        self.pages.clear()
        self.engine_leases.clear()


def _store_place(place: Mapping[str, Any]) -> StorePlace:
    return StorePlace(str(place["url"]), str(place["name"]), str(place["kind"]))
