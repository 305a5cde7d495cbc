"""The parent of worker processes: keeps their leases, sees whether they beat, ends those that do
not, and frees what they held.

Every worker process tells what it holds (`host.parent`) and shows what it does (`host.beatpage`).
    every 5 s      the leases of each are renewed, by owner, in one statement, and its page says
                   until when that is trusted
    every second   the pages are read: work that gave no beat for the threshold, or a loop that does
                   not turn, is a stall
    on a stall     its stacks are saved → it is stopped, so that it changes nothing any more → its
                   page names the rows to blame, and no others → it is killed, and started again as
                   one that failed its health checks
    when one ends  whatever the reason, what it held is swept at once
A child that holds the GIL for a minute keeps its work; if this process hangs, children renew for
themselves before trust ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from longwatch.app.child_stacks import freeze, save_stacks
from longwatch.app.line import Line
from longwatch.app.preflight import MODULE
from longwatch.app.renewing import Renewer
from longwatch.app.sources import found_source
from longwatch.app.ward import Kept, Silent, Ward
from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events import (
    Event,
    Events,
    GuardianLost,
    ProgramEnded,
    ProgramStarted,
    ProgramStopping,
    WorkerJoined,
    WorkerReleased,
    WorkerStalled,
)
from longwatch.core.heartbeat import Heartbeat
from longwatch.errors import LongwatchError
from longwatch.host.beatpage import ForeignPage
from longwatch.host.errand import Errand
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.observe.merging import LATELY, Merged
from longwatch.observe.tally import Sample, Tally

LOOK_EVERY = 1.0
_MOST_EARLY = 64
_OURS = 0
"""Stands for this process among those that count."""
_LATE = 5.0
"""A round that comes so many seconds late was held up with everything else: children get one
more round to beat.
"""


class Overseer(Service):
    """Keeps the worker processes among the programs of a supervisor. `condemn` has the supervisor
    kill one, by pid, for a reason.

    It hears of starts and ends of programs through `observe`.
    """

    def __init__(
        self,
        *,
        condemn: Callable[[int, str], None],
        clock: Clock,
        events: Events,
    ) -> None:
        super().__init__(name="overseer", clock=clock)
        self.heartbeat = Heartbeat(clock)
        self._condemn = condemn
        self._events = events
        self._lock = threading.Lock()
        self._wards: dict[int, Ward] = {}
        self._stores: dict[str, Any] = {}
        self._renewers: dict[str, Renewer] = {}
        self._tally = Tally()
        self._merged = Merged()
        self._early: list[Mapping[str, Any]] = []
        self._lately: deque[Ward] = deque(maxlen=LATELY)
        """Those that have ended: their last words may come after the news of that."""
        self._numbers = count(_OURS + 1)
        self._lines: list[Line] = []
        self._looked_at = 0.0
        self._looking = Periodic(
            self._look, Cadence(interval=LOOK_EVERY), name="overseer", clock=clock, events=events
        )

    def listen(self, path: Path) -> None:
        """Hear what workers say at this path, until it is stopped."""
        self._lines.append(Line(path, self._hear))

    # --- what is known ---

    def wards(self) -> list[Ward]:
        with self._lock:
            return list(self._wards.values())

    def samples(self) -> list[Sample]:
        """What all of them have counted, the dead included, and what their starts and ends were."""
        with self._lock:
            self._merged.heard(_OURS, self._tally.samples())
            return self._merged.samples()

    def sources(self) -> Iterable[tuple[str, Any]]:
        """The mailboxes that are worked on, by name."""
        every = (kept for ward in self.wards() for kept in tuple(ward.kept.values()))
        return {
            (kept.store, kept.name): (kept.name, kept.source) for kept in every if kept.is_mailbox
        }.values()

    # --- the service contract ---

    @property
    def inside(self) -> bool:
        return self._looking.inside

    def _start(self) -> None:
        self._looked_at = self._clock.monotonic()
        self._looking.start()

    def _stop(self, deadline: Deadline) -> bool:
        ended = [
            self._looking.stop(deadline=deadline),
            *(each.stop(deadline=deadline) for each in self._renewers.values()),
        ]
        for line in self._lines:
            line.close(self._clock, deadline)
        self._lines.clear()
        for ward in self.wards():
            ward.close()
        self._wards.clear()
        return all(ended)

    # --- what the supervisor tells ---

    def observe(self, event: Event) -> None:
        """Starts and ends of workers. Called on the supervisor's loop: what may take its time
        gets a thread.
        """
        self._tally(event)
        if isinstance(event, ProgramStarted) and MODULE in event.command:
            self._welcome(Ward(event.pid, event.program, number=next(self._numbers)))
        elif isinstance(event, GuardianLost):
            self._excuse_all()
        elif isinstance(event, ProgramStopping):
            self._bid_farewell(event.pid)
        elif isinstance(event, ProgramEnded) and event.pid is not None:
            ward = self._see_off(event.pid)
            if ward is not None:
                Errand(lambda: self._bury(ward), name="overseer-buries", loud=True).start(
                    here_if_no_thread=True
                )

    def _welcome(self, ward: Ward) -> None:
        """A quick one has spoken before we have heard that it runs."""
        with self._lock:
            self._wards[ward.pid] = ward
            said = [facts for facts in self._early if facts["pid"] == ward.pid]
            self._early = [facts for facts in self._early if facts["pid"] != ward.pid]
        if said:
            Errand(lambda: self._take_all(ward, said), name="overseer-early", loud=True).start()

    def _excuse_all(self) -> None:
        """The guardian is lost, and everything dies with it: that is the fault of no message."""
        for ward in self.wards():
            for kept in tuple(ward.kept.values()):
                kept.page.blame_only(())

    def _bid_farewell(self, pid: int) -> None:
        """It is told to stop: from here on nothing more should be sent its way."""
        with self._lock:
            if pid in self._wards:
                self._wards[pid].leaving = True

    def _take_all(self, ward: Ward, said: Iterable[Mapping[str, Any]]) -> None:
        for facts in said:
            self._take(ward, facts)

    def _see_off(self, pid: int) -> Ward | None:
        with self._lock:
            ward = self._wards.pop(pid, None)
            if ward is not None:
                self._lately.append(ward)
                self._merged.gone(ward.number)
            return ward

    def _bury(self, ward: Ward) -> None:
        """It has ended: whatever it held is free for others, now."""
        released = 0
        for kept in tuple(ward.kept.values()):
            self._renewers[kept.store].drop(kept)
            with suppress(LongwatchError):  # whoever else sweeps does it soon
                released += kept.source.sweep()
        if released:
            self._events.emit(WorkerReleased(program=ward.program, pid=ward.pid, rows=released))
        ward.close()

    # --- what workers tell ---

    def _hear(self, facts: Mapping[str, Any]) -> None:
        pid = int(facts["pid"])
        with self._lock:
            ward = self._wards.get(pid)
            late = self._gone_lately(pid) if facts["about"] == "state" else None
            if ward is None and late is None:
                self._early = [*self._early, facts][-_MOST_EARLY:]
        if ward is not None:
            self._take(ward, facts)
        elif late is not None:
            self._count(late, facts)

    def _gone_lately(self, pid: int) -> Ward | None:
        return next((ward for ward in reversed(self._lately) if ward.pid == pid), None)

    def _take(self, ward: Ward, facts: Mapping[str, Any]) -> None:
        match facts["about"]:
            case "leases":
                self._keep(ward, facts)
            case "leases_over":
                self._let_go(ward, int(facts["owner"]))
            case "group":
                ward.join(facts)
                self._events.emit(
                    WorkerJoined(program=ward.program, pid=ward.pid, loops=ward.loops)
                )
            case "state":
                self._count(ward, facts)

    def _count(self, ward: Ward, facts: Mapping[str, Any]) -> None:
        samples = ward.heard(facts)
        with self._lock:
            self._merged.heard(ward.number, samples)

    def _keep(self, ward: Ward, facts: Mapping[str, Any]) -> None:
        where: Mapping[str, str] = facts["source"]
        source = found_source(where, self._stores)
        kept = Kept(
            int(facts["owner"]),
            source,
            ForeignPage(facts["page"]),
            where,
            engine=str(facts.get("engine", "")),
        )
        ward.kept[kept.owner] = kept
        if kept.store not in self._renewers:
            self._renewers[kept.store] = Renewer(clock=self._clock, events=self._events)
            self._renewers[kept.store].start()
        self._renewers[kept.store].take(kept)
        if not self._is_here(ward):  # it ended while its store was looked for
            self._bury(ward)

    def _is_here(self, ward: Ward) -> bool:
        with self._lock:
            return self._wards.get(ward.pid) is ward

    def _let_go(self, ward: Ward, owner: int) -> None:
        kept = ward.kept.pop(owner, None)
        if kept is not None:
            self._renewers[kept.store].drop(kept)
            kept.page.close()

    # --- looking ---

    def _look(self) -> None:
        now = self._clock.monotonic()
        late = now - self._looked_at - LOOK_EVERY > _LATE
        self._looked_at = now
        self.heartbeat.beat()
        for ward in self.wards() if not late else ():
            silent = ward.silent(now)
            if silent and not ward.condemned:
                ward.condemned = True
                Errand(partial(self._end, ward, silent), name="overseer-ends", loud=True).start()

    def _end(self, ward: Ward, silent: Silent) -> None:
        """The end of a worker that stalls. One that is stopping anyway is not frozen: its other
        work may finish in the time it has, and then it is killed.
        """
        elapsed = max(age for ages in silent.values() for age in ages.values())
        rows = tuple(sorted(row for ages in silent.values() for row in ages if row))
        reason = (
            f"{ward.program} (pid {ward.pid}) gave no beat for {elapsed:.1f} s (threshold: "
            f"{ward.threshold} s), rows {rows}"
        )
        save_stacks(ward.pid, ward.crash_file, reason, self._clock)
        if not ward.leaving:
            for kept in tuple(ward.kept.values()):
                self._renewers[kept.store].drop(kept)
            freeze(ward.pid, self._clock)
        for kept in tuple(ward.kept.values()):
            kept.page.blame_only(silent.get(kept.owner, {}).keys() - {0})
        self._events.emit(
            WorkerStalled(
                program=ward.program,
                pid=ward.pid,
                rows=rows,
                elapsed=elapsed,
                threshold=ward.threshold or 0.0,
                stacks=str(ward.crash_file or ""),
            )
        )
        if not ward.leaving:
            self._condemn(ward.pid, f"no beat for {elapsed:.1f} s")
