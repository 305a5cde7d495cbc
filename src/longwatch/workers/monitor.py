"""The parent of worker processes: keeps their leases, sees whether they beat, ends those that do
not, and frees what they held.

Every worker process reports its leases (`host.parent_channel`) and its beats (`host.beatpage`).
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

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Event, Events
from longwatch.core.events.host import GuardianLost
from longwatch.core.events.programs import ProgramEnded, ProgramStarted, ProgramStopping
from longwatch.core.events.workers import WorkerJoined, WorkerRowsReclaimed, WorkerStalled
from longwatch.core.heartbeat import Heartbeat
from longwatch.errors import LongwatchError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.beatpage import ChildBeatPage
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.observe.counters import MAX_ENDED, EventCounters, MergedSamples, MetricSample
from longwatch.workers.channel import WorkerChannel
from longwatch.workers.lease_renewer import WorkerLeaseRenewer, open_claim_source
from longwatch.workers.preflight import WORKER_MODULE
from longwatch.workers.stack_dump import freeze, save_stacks
from longwatch.workers.worker_record import EngineLeases, SilentRows, WorkerRecord

CHECK_INTERVAL = 1.0
_MAX_EARLY_MESSAGES = 64
_PARENT_SERIAL = 0
"""Stands for this process among those that count."""
_LATE_SECONDS = 5.0
"""A round that comes so many seconds late was held up with everything else: children get one
more round to beat.
"""


class WorkerMonitor(Service):
    """Keeps the worker processes among the programs of a supervisor. `kill_worker` has the
    supervisor kill one, by pid, for a reason.

    It hears of starts and ends of programs through `observe`.
    """

    def __init__(
        self,
        *,
        kill_worker: Callable[[int, str], None],
        clock: Clock,
        events: Events,
    ) -> None:
        super().__init__(name="worker-monitor", clock=clock)
        self.heartbeat = Heartbeat(clock)
        self._kill_worker = kill_worker
        self._events = events
        self._lock = threading.Lock()
        self._workers: dict[int, WorkerRecord] = {}
        self._stores: dict[str, Any] = {}
        self._renewers: dict[str, WorkerLeaseRenewer] = {}
        self._tally = EventCounters()
        self._merged = MergedSamples()
        self._early_messages: list[Mapping[str, Any]] = []
        self._recently_ended: deque[WorkerRecord] = deque(maxlen=MAX_ENDED)
        """Those that have ended: their last words may come after the news of that."""
        self._serials = count(_PARENT_SERIAL + 1)
        self._channels: list[WorkerChannel] = []
        self._checked_at = 0.0
        self._checker = Periodic(
            self._check,
            Cadence(interval=CHECK_INTERVAL),
            name="worker-monitor",
            clock=clock,
            events=events,
        )

    def open_channel(self, path: Path) -> None:
        """Hear what workers say at this path, until it is stopped."""
        self._channels.append(WorkerChannel(path, self._receive))

    # --- what is known ---

    def workers(self) -> list[WorkerRecord]:
        with self._lock:
            return list(self._workers.values())

    def samples(self) -> list[MetricSample]:
        """What all of them have counted, the dead included, and what their starts and ends were."""
        with self._lock:
            self._merged.update(_PARENT_SERIAL, self._tally.samples())
            return self._merged.samples()

    def mailbox_sources(self) -> Iterable[tuple[str, Any]]:
        """The mailboxes that are worked on, by name."""
        leases = (
            each for worker in self.workers() for each in tuple(worker.engine_leases.values())
        )
        return {
            (each.store_url, each.name): (each.name, each.source)
            for each in leases
            if each.is_mailbox
        }.values()

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
        for worker in self.workers():
            worker.close()
        self._workers.clear()
        return all(ended)

    # --- what the supervisor tells ---

    def observe(self, event: Event) -> None:
        """Starts and ends of workers. Called on the supervisor's loop: what may take its time
        gets a thread.
        """
        self._tally(event)
        if isinstance(event, ProgramStarted) and WORKER_MODULE in event.command:
            self._add_worker(WorkerRecord(event.pid, event.program, serial=next(self._serials)))
        elif isinstance(event, GuardianLost):
            self._clear_all_blame()
        elif isinstance(event, ProgramStopping):
            self._mark_stopping(event.pid)
        elif isinstance(event, ProgramEnded) and event.pid is not None:
            worker = self._remove_worker(event.pid)
            if worker is not None:
                BackgroundThread(
                    lambda: self._reclaim(worker), name="worker-reclaim", report_errors=True
                ).start(inline_fallback=True)

    def _add_worker(self, worker: WorkerRecord) -> None:
        """A quick one has spoken before we have heard that it runs."""
        with self._lock:
            self._workers[worker.pid] = worker
            messages = [message for message in self._early_messages if message["pid"] == worker.pid]
            self._early_messages = [
                message for message in self._early_messages if message["pid"] != worker.pid
            ]
        if messages:
            BackgroundThread(
                lambda: self._handle_all(worker, messages),
                name="worker-early-messages",
                report_errors=True,
            ).start()

    def _clear_all_blame(self) -> None:
        """The guardian is lost, and everything dies with it: that is the fault of no message."""
        for worker in self.workers():
            for leases in tuple(worker.engine_leases.values()):
                leases.page.blame_only(())

    def _mark_stopping(self, pid: int) -> None:
        """It is told to stop: from here on nothing more should be sent its way."""
        with self._lock:
            if pid in self._workers:
                self._workers[pid].is_stopping = True

    def _handle_all(self, worker: WorkerRecord, messages: Iterable[Mapping[str, Any]]) -> None:
        for message in messages:
            self._handle(worker, message)

    def _remove_worker(self, pid: int) -> WorkerRecord | None:
        with self._lock:
            worker = self._workers.pop(pid, None)
            if worker is not None:
                self._recently_ended.append(worker)
                self._merged.mark_ended(worker.serial)
            return worker

    def _reclaim(self, worker: WorkerRecord) -> None:
        """It has ended: whatever it held is free for others, now."""
        released = 0
        for leases in tuple(worker.engine_leases.values()):
            self._renewers[leases.store_url].remove(leases)
            with suppress(LongwatchError):  # whoever else sweeps does it soon
                released += leases.source.sweep()
        if released:
            self._events.emit(
                WorkerRowsReclaimed(program=worker.program, pid=worker.pid, rows=released)
            )
        worker.close()

    # --- what workers tell ---

    def _receive(self, message: Mapping[str, Any]) -> None:
        pid = int(message["pid"])
        with self._lock:
            worker = self._workers.get(pid)
            ended = self._find_recently_ended(pid) if message["about"] == "state" else None
            if worker is None and ended is None:
                self._early_messages = [*self._early_messages, message][-_MAX_EARLY_MESSAGES:]
        if worker is not None:
            self._handle(worker, message)
        elif ended is not None:
            self._merge_samples(ended, message)

    def _find_recently_ended(self, pid: int) -> WorkerRecord | None:
        return next(
            (worker for worker in reversed(self._recently_ended) if worker.pid == pid), None
        )

    def _handle(self, worker: WorkerRecord, message: Mapping[str, Any]) -> None:
        match message["about"]:
            case "leases":
                self._add_leases(worker, message)
            case "leases_ended":
                self._remove_leases(worker, int(message["owner"]))
            case "group":
                worker.record_group(message)
                self._events.emit(
                    WorkerJoined(program=worker.program, pid=worker.pid, loops=worker.loops)
                )
            case "state":
                self._merge_samples(worker, message)

    def _merge_samples(self, worker: WorkerRecord, message: Mapping[str, Any]) -> None:
        samples = worker.record_state(message)
        with self._lock:
            self._merged.update(worker.serial, samples)

    def _add_leases(self, worker: WorkerRecord, message: Mapping[str, Any]) -> None:
        locator: Mapping[str, str] = message["source"]
        source = open_claim_source(locator, self._stores)
        leases = EngineLeases(
            int(message["owner"]),
            source,
            ChildBeatPage(message["page"]),
            locator,
            engine=str(message.get("engine", "")),
        )
        worker.engine_leases[leases.owner] = leases
        if leases.store_url not in self._renewers:
            self._renewers[leases.store_url] = WorkerLeaseRenewer(
                clock=self._clock, events=self._events
            )
            self._renewers[leases.store_url].start()
        self._renewers[leases.store_url].add(leases)
        if not self._is_current(worker):  # it ended while its store was looked for
            self._reclaim(worker)

    def _is_current(self, worker: WorkerRecord) -> bool:
        with self._lock:
            return self._workers.get(worker.pid) is worker

    def _remove_leases(self, worker: WorkerRecord, owner: int) -> None:
        leases = worker.engine_leases.pop(owner, None)
        if leases is not None:
            self._renewers[leases.store_url].remove(leases)
            leases.page.close()

    # --- looking ---

    def _check(self) -> None:
        now = self._clock.monotonic()
        is_late = now - self._checked_at - CHECK_INTERVAL > _LATE_SECONDS
        self._checked_at = now
        self.heartbeat.beat()
        for worker in self.workers() if not is_late else ():
            silent_rows = worker.silent_rows(now)
            if silent_rows and not worker.is_stalled:
                worker.is_stalled = True
                BackgroundThread(
                    partial(self._end_stalled, worker, silent_rows),
                    name="worker-end-stalled",
                    report_errors=True,
                ).start()

    def _end_stalled(self, worker: WorkerRecord, silent_rows: SilentRows) -> None:
        """The end of a worker that stalls. One that is stopping anyway is not frozen: its other
        work may finish in the time it has, and then it is killed.
        """
        elapsed = max(age for ages in silent_rows.values() for age in ages.values())
        rows = tuple(sorted(row for ages in silent_rows.values() for row in ages if row))
        reason = (
            f"{worker.program} (pid {worker.pid}) gave no beat for {elapsed:.1f} s (threshold: "
            f"{worker.stall_threshold} s), rows {rows}"
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
                rows=rows,
                elapsed=elapsed,
                threshold=worker.stall_threshold or 0.0,
                stacks=str(worker.crash_file or ""),
            )
        )
        if not worker.is_stopping:
            self._kill_worker(worker.pid, f"no beat for {elapsed:.1f} s")
