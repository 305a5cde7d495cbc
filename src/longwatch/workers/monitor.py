"""The monitor of worker processes: renews their leases, finds stalled workers, has them killed,
and reclaims the rows of ended ones.

A worker process reports its leases (`host.parent_channel`) and writes a beat page
(`host.beatpage`).
    it starts      the supervisor calls `program_started`; its plan says that it is a worker
    every 5 s      the monitor renews its leases, by owner, in one statement, and writes on its page
                   until when they are trusted
    every second   the monitor reads the pages: a row without a beat for the threshold, or a loop
                   that does not turn, is a stall
    on a stall     save its stacks → freeze it, so that it changes nothing any more → blame the
                   silent rows on its page, and no others → have the supervisor kill it as an
                   unhealthy program, which starts it again
    it stops       the supervisor calls `program_stopping`: it counts as draining, and a stall does
                   not freeze it
    it ends        the supervisor asks for the facts of its end (`end_facts`), then it calls
                   `program_ended`: sweep its rows at once, whatever the cause
    it is apart    its code speaks another protocol (`host.parent_channel`): it renews its leases
                   itself, is not ready here, and ends like a program that is no worker
    guardian lost  every worker was killed with it: blame no row
    suspects       a worker reports that suspects are free: `workers.suspects` runs them

An end is *exempt*, so that it feeds neither breaker nor backoff, if a row was running and

- its process had completed a row since it started, so the program can work; or
- the process before it ended with one of these rows, too. So one poison row counts at most once. It
  cannot go on for ever: the row is given up when its budget is spent.

A program whose processes end with other rows each time, and complete none, cannot work: its breaker
trips, before it has spent the budgets of all that is queued.

A worker that holds the GIL for a minute keeps its work. If this process hangs, workers renew for
themselves before trust ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Event, Events
from longwatch.core.events.workers import (
    WorkerJoined,
    WorkerRowsReclaimed,
    WorkerStalled,
)
from longwatch.core.heartbeat import Heartbeat
from longwatch.engine.claim_source import ClaimSource, emit_given_up
from longwatch.errors import LongwatchError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.parent_channel import PARENT_SOCKET_VARIABLE
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.observe.counters import MetricSample
from longwatch.observe.metric_families import Families
from longwatch.supervisor.end_judge import EndJudge
from longwatch.supervisor.plan import REPORTING_KINDS, ProgramKind, ProgramPlan
from longwatch.supervisor.program_listener import (
    ProgramEnd,
    ProgramListener,
    ProgramStart,
    ProgramStop,
)
from longwatch.supervisor.restart_policy import EndFacts
from longwatch.workers.channel import WorkerChannel
from longwatch.workers.child_record import ChildRecord
from longwatch.workers.child_reports import ChildReports, RecordsHandler
from longwatch.workers.lease_renewer import WorkerLeaseRenewer, open_claim_source
from longwatch.workers.stack_dump import freeze, save_stacks
from longwatch.workers.suspects import RunOnDemand, SuspectProcesses, SuspectReport
from longwatch.workers.worker_record import EngineLeases, RowPlace, SilentRows, WorkerRecord

CHECK_INTERVAL = 1.0
_LATE_SECONDS = 5.0
"""A check this many seconds late means that the whole machine was held up. Workers get one more
round to beat.
"""


def _do_nothing(_: object) -> None:
    """The default where no process can be started for suspects, or no log is kept."""


class WorkerMonitor(Service, ProgramListener, EndJudge):
    """Monitors the workers among the programs of a supervisor.

    `kill_worker` has the supervisor kill a process, by pid, with a reason. `run_on_demand` has it
    run processes for suspects. `on_worker_active` is called, from any thread, when a worker runs
    its loops and when an ended worker has left rows: in both cases the process has begun its work.
    The supervisor reports starts and ends as calls of `ProgramListener`. `observe` only counts
    events for the metrics. `on_records` gets the records of the workers' events.
    """

    def __init__(  # noqa: PLR0913 - a monitor and what it calls, the last three optional
        self,
        *,
        kill_worker: Callable[[int, str], None],
        clock: Clock,
        events: Events,
        on_worker_active: Callable[[], None] = lambda: None,
        run_on_demand: RunOnDemand = _do_nothing,
        on_records: RecordsHandler = _do_nothing,
    ) -> None:
        super().__init__(name="worker-monitor", clock=clock)
        self.heartbeat = Heartbeat(clock)
        self._kill_worker = kill_worker
        self._on_worker_active = on_worker_active
        self._events = events
        self._reports = ChildReports(
            handle=self._handle, on_records=on_records, clock=clock, events=events
        )
        self._stores: dict[str, Any] = {}
        self._renewers: dict[str, WorkerLeaseRenewer] = {}
        self._store_kinds: dict[tuple[str, str], None] = {}
        """URLs and kinds of stores, in the order of their first report."""
        self._channels: list[WorkerChannel] = []
        self._suspects = SuspectProcesses(
            run_on_demand, self._busy_programs, clock=clock, events=events
        )
        self._last_rows: dict[str, frozenset[RowPlace]] = {}
        """By program: the rows that its last process had running at its end."""
        self._checked_at = -inf
        self._checker = Periodic(
            self._check,
            Cadence(interval=CHECK_INTERVAL),
            name="worker-monitor",
            clock=clock,
            events=events,
        )

    def open_channel(self, path: Path) -> None:
        """Receive reports of workers at this path, until the monitor is stopped."""
        self._channels.append(WorkerChannel(path, self._reports.accept))

    # --- for metrics and health ---

    def observe(self, event: Event) -> None:
        """Count an event for the metrics."""
        self._reports.counters(event)

    def workers(self) -> list[WorkerRecord]:
        return [child for child in self._reports.children() if isinstance(child, WorkerRecord)]

    def unready_reasons(self) -> dict[str, str]:
        """Why programs are not ready, by their own reports: the reason by program."""
        now = self._clock.boottime()
        reasons = {each.program: each.unready_reason(now) for each in self._reports.children()}
        return {program: reason for program, reason in reasons.items() if reason}

    def worker_facts(self) -> list[dict[str, Any]]:
        """The state of each worker as plain JSON types, by program. Never blocks."""
        monotonic, boottime = self._clock.monotonic(), self._clock.boottime()
        workers = sorted(self.workers(), key=lambda worker: worker.program)
        with self._reports.lock:
            return [worker.facts(monotonic=monotonic, boottime=boottime) for worker in workers]

    def stores(self) -> list[tuple[str, str]]:
        """The URL and kind of each store that a worker has claimed from so far, each once."""
        with self._reports.lock:
            return list(self._store_kinds)

    def samples(self) -> list[MetricSample]:
        """The metrics of all programs, ended ones included, and of the events that were
        observed.
        """
        return self._reports.samples()[0]

    def exported(self) -> tuple[list[MetricSample], Families]:
        """The same, with the families of all of them: a runner has its own."""
        return self._reports.samples()

    def mailbox_sources(self) -> dict[str, dict[str, Any]]:
        """The claim sources of the mailboxes that workers claim from: by store, then by name."""
        found: dict[str, dict[str, Any]] = {}
        for worker in self.workers():
            for each in tuple(worker.engine_leases.values()):
                if each.is_mailbox:
                    found.setdefault(each.store_url, {})[each.name] = each.source
        return found

    # --- the service contract ---

    @property
    def in_own_thread(self) -> bool:
        return self._checker.in_own_thread

    def _start(self) -> None:
        self._checked_at = self._clock.monotonic()
        self._checker.start()

    def _stop(self, deadline: Deadline) -> bool:
        ended = [
            self._checker.stop(deadline=deadline),
            *(each.stop(deadline=deadline) for each in self._renewers.values()),
        ]
        for channel in self._channels:
            channel.close(self._clock, deadline)
        self._channels.clear()
        for child in self._reports.clear():
            if isinstance(child, WorkerRecord):
                child.close()
        return all(ended)

    # --- calls of the supervisor, on its loop: what may block gets a thread ---

    def program_started(self, start: ProgramStart) -> None:
        if start.kind in REPORTING_KINDS:
            is_worker = start.kind is ProgramKind.WORKER
            made = WorkerRecord if is_worker else ChildRecord
            self._reports.add(made(start.pid, start.program))

    def program_stopping(self, stop: ProgramStop) -> None:
        if (child := self._reports.find(stop.pid)) is not None:
            child.is_stopping = True

    def program_ended(self, end: ProgramEnd) -> None:
        child = None if end.pid is None else self._reports.remove(end.pid)
        worker = child if isinstance(child, WorkerRecord) else None
        if end.on_demand:
            self._suspects.ended(end.program, has_joined=worker is not None and worker.has_joined)
        if worker is not None:
            BackgroundThread(
                partial(self._reclaim, worker), name="worker-reclaim", report_errors=True
            ).start(inline_fallback=True)

    def end_facts(self, plan: ProgramPlan, pid: int) -> EndFacts | None:
        """The facts about a worker that has ended and was not removed yet, after reading the last
        reports. None for a worker of another user or another protocol, which does not report, and
        for other programs.
        """
        if PARENT_SOCKET_VARIABLE not in plan.process.env:
            return None
        for channel in self._channels:
            channel.accept_arrived()
        worker = self._reports.find(pid)
        if not isinstance(worker, WorkerRecord) or worker.is_apart:
            return None
        return EndFacts(
            has_joined=worker.has_joined,
            has_finished=worker.has_finished,
            is_exempt=self._judge_exempt(worker),
        )

    def _judge_exempt(self, worker: WorkerRecord) -> bool:
        """Whether the end of this worker is exempt (see the module)."""
        rows = worker.running_rows()
        repeated = rows & self._last_rows.get(worker.program, frozenset())
        self._last_rows[worker.program] = rows
        return bool(rows and (repeated or worker.has_completed))

    def _busy_programs(self) -> set[str]:
        return {worker.program for worker in self.workers() if worker.running_rows()}

    def guardian_lost(self) -> None:
        for worker in self.workers():
            for leases in tuple(worker.engine_leases.values()):
                leases.page.blame_only(())

    def _reclaim(self, worker: WorkerRecord, *late: EngineLeases) -> None:
        """Sweep the rows of an ended worker, so that others can claim them now. Not if its lease
        has lapsed: after a suspend the leases of all workers have, and they are about to be
        renewed. `late` are leases reported at its end, which another thread may have missed.
        """
        sources = []
        for leases in {*worker.engine_leases.values(), *late}:
            self._renewers[leases.store_url].remove(leases)
            if not leases.is_unreachable(self._clock.boottime()):
                sources.append(leases.source)
        self._sweep_ended(worker, sources)
        worker.close()

    def _sweep_ended(self, worker: WorkerRecord, sources: Iterable[ClaimSource]) -> None:
        released = 0
        for source in sources:
            with suppress(LongwatchError):  # another sweeper does it soon
                released += source.sweep(emit_given_up(self._events))
        if released:
            self._on_worker_active()
            self._events.emit(
                WorkerRowsReclaimed(program=worker.program, pid=worker.pid, rows=released)
            )

    # --- reports of workers ---

    def _handle(self, worker: ChildRecord, message: Mapping[str, Any]) -> None:
        if not isinstance(worker, WorkerRecord):
            return
        match message["about"]:
            case "leases":
                self._add_leases(worker, message)
            case "leases_ended":
                self._remove_leases(worker, int(message["owner"]))
            case "group" if worker.has_joined:
                self._note_stores(worker)
                self._on_worker_active()
                self._events.emit(
                    WorkerJoined(program=worker.program, pid=worker.pid, loops=worker.loops)
                )
            case "suspects":
                self._handle_suspects(worker, message)

    def _note_stores(self, worker: WorkerRecord) -> None:
        with self._reports.lock:
            for place in worker.stores:
                self._store_kinds[place.url, place.kind] = None

    def _handle_suspects(self, worker: WorkerRecord, message: Mapping[str, Any]) -> None:
        place: Mapping[str, str] = message["source"]
        self._suspects.handle(
            SuspectReport(
                program=worker.program,
                place=(place["url"], place["name"]),
                count=int(message["count"]),
                slots=worker.slots,
                at=self._clock.monotonic(),
            )
        )

    def _add_leases(self, worker: WorkerRecord, message: Mapping[str, Any]) -> None:
        locator: Mapping[str, str] = message["source"]
        page = worker.pages.get(int(message["owner"]))
        self._note_stores(worker)
        source = open_claim_source(locator, self._stores, events=self._events)
        if page is None:  # it has ended before this was handled
            self._sweep_ended(worker, [source])
            return
        leases = EngineLeases(
            int(message["owner"]),
            source,
            page,
            locator,
            engine=str(message.get("engine", "")),
        )
        if leases.store_url not in self._renewers:
            self._renewers[leases.store_url] = WorkerLeaseRenewer(
                clock=self._clock, events=self._events
            )
            self._renewers[leases.store_url].start()
        worker.engine_leases[leases.owner] = leases
        self._renewers[leases.store_url].add(leases)
        if not self._reports.is_current(worker):  # it ended while its store was opened
            self._reclaim(worker, leases)

    def _remove_leases(self, worker: WorkerRecord, owner: int) -> None:
        leases = worker.end_engine(owner)
        if leases is not None:
            self._renewers[leases.store_url].remove(leases)

    # --- stalls ---

    def _check(self) -> None:
        now = self._clock.monotonic()
        is_late = now - self._checked_at - CHECK_INTERVAL > _LATE_SECONDS
        self._checked_at = now
        self.heartbeat.beat()
        for worker in self.workers() if not is_late else ():
            worker.check_beats(now)
            silent_rows = worker.silent_rows(now)
            if silent_rows and not worker.is_stalled:
                worker.is_stalled = True
                BackgroundThread(
                    partial(self._end_stalled, worker, silent_rows),
                    name="worker-end-stalled",
                    report_errors=True,
                ).start()

    def _end_stalled(self, worker: WorkerRecord, silent_rows: SilentRows) -> None:
        """Save the stacks of a stalled worker, blame its silent rows, and have it killed.

        A worker that is stopping anyway is neither frozen nor killed here: its other rows may
        finish within its grace, and then the supervisor kills it.
        """
        elapsed = max(age for ages in silent_rows.values() for age in ages.values())
        message_ids = _row_names(worker, silent_rows, are_messages=True)
        computations = _row_names(worker, silent_rows, are_messages=False)
        reason = (
            f"{worker.program} (pid {worker.pid}) gave no beat for {elapsed:.1f} s (threshold: "
            f"{worker.stall_threshold} s); silent: "
            f"{', '.join([*message_ids, *computations]) or 'the whole loop'}"
        )
        save_stacks(worker.pid, worker.crash_file, reason, self._clock)
        if not worker.is_stopping:
            for leases in tuple(worker.engine_leases.values()):
                self._renewers[leases.store_url].remove(leases)
            freeze(worker.pid, self._clock)
        for leases in tuple(worker.engine_leases.values()):
            leases.page.blame_only(silent_rows.get(leases.owner, {}).keys() - {0})
        self._events.emit(
            WorkerStalled(
                program=worker.program,
                pid=worker.pid,
                message_ids=message_ids,
                computations=computations,
                elapsed=elapsed,
                threshold=worker.stall_threshold or 0.0,
                stacks=str(worker.crash_file or ""),
            )
        )
        if not worker.is_stopping:
            self._kill_worker(worker.pid, f"no beat for {elapsed:.1f} s")


def _row_names(
    worker: WorkerRecord, silent_rows: SilentRows, *, are_messages: bool
) -> tuple[str, ...]:
    """The message ids and computations of the silent rows, as far as the stores answer."""
    names: list[str] = []
    for leases in tuple(worker.engine_leases.values()):
        rows = silent_rows.get(leases.owner, {}).keys() - {0}
        if rows and leases.is_mailbox is are_messages:
            with suppress(LongwatchError):
                names += leases.source.row_ids(rows).values()
    return tuple(sorted(names))
