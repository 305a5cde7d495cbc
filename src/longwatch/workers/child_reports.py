"""Receives the reports of all Longwatch programs of one supervisor: worker processes, the runner,
the page.

Every kind of program relays its events and reports its readiness and its metrics once a second. The
monitor (`workers.monitor`) handles what only workers report. Reports are matched by pid:

    early   a program may report before the supervisor has reported its start: a bounded number of
            messages waits for it
    late    the last state and the last events may arrive after the end
    foreign messages of any other process are dropped

States and events are handled as they are accepted, under one lock, which keeps the order of each
program. Nothing waits here for more than the parsing of a report, so a program whose parent is slow
drops its own oldest events, and the parent never collects them without a limit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.core.events.workers import WorkerEventsDropped
from longwatch.host.background_thread import BackgroundThread
from longwatch.observe.counters import MAX_ENDED, EventCounters, MergedSamples, MetricSample
from longwatch.observe.event_log import Record
from longwatch.observe.metric_families import HEARTBEAT_AGE, Families
from longwatch.workers.channel import Handling
from longwatch.workers.child_record import ChildRecord
from longwatch.workers.event_relay import relayed_records

_MAX_EARLY_MESSAGES = 64
_PARENT_SERIAL = 0
"""The number of this process among those whose counts are merged."""

RecordsHandler = Callable[[Sequence[Record]], None]
"""Handles records of events that programs have relayed, in their order. Never raises or blocks."""
ReportHandler = Callable[[ChildRecord, Mapping[str, Any]], None]
"""Handles a report that is neither a state nor events. May block."""


class ChildReports:
    """Keeps a record of each program and gives it its reports. Thread-safe.

    `handle` gets the reports that only some kinds of programs send. `on_records` gets the relayed
    events. `lock` guards what the records keep of reports.
    """

    def __init__(
        self, *, handle: ReportHandler, on_records: RecordsHandler, clock: Clock, events: Events
    ) -> None:
        self.lock = threading.RLock()
        self.counters = EventCounters()
        """Counts of events of this process, merged with those of the programs."""
        self._handle_other = handle
        self._on_records = on_records
        self._clock = clock
        self._events = events
        self._children: dict[int, ChildRecord] = {}
        self._merged = MergedSamples()
        self._early_messages: list[Mapping[str, Any]] = []
        self._recently_ended: deque[ChildRecord] = deque(maxlen=MAX_ENDED)
        """Ended programs: a last report may arrive after the end."""
        self._serials = count(_PARENT_SERIAL + 1)

    def children(self) -> list[ChildRecord]:
        with self.lock:
            return list(self._children.values())

    def find(self, pid: int) -> ChildRecord | None:
        with self.lock:
            return self._children.get(pid)

    def is_current(self, child: ChildRecord) -> bool:
        """Whether it has not ended."""
        return self.find(child.pid) is child

    def samples(self) -> tuple[list[MetricSample], Families]:
        """The metrics of all programs, ended ones included, and of the events of this process; and
        the families of all of them. Ages of heartbeats are those of this moment.
        """
        with self.lock:
            self._merged.update(_PARENT_SERIAL, self.counters.samples())
            ages = self._beat_ages()
            samples = [
                sample._replace(value=ages[sample.labels])
                if sample.name == HEARTBEAT_AGE and sample.labels in ages
                else sample
                for sample in self._merged.samples()
            ]
            return samples, self._merged.families

    def _beat_ages(self) -> dict[tuple[str, ...], float]:
        """Seconds since the last beat by the labels of its gauge, in the stalest process."""
        now = self._clock.monotonic()
        ages: dict[tuple[str, ...], float] = {}
        for child in self._children.values():
            for loop, age in child.beat_ages(now).items():
                ages[(loop,)] = max(age, ages.get((loop,), 0.0))
        return ages

    # --- starts and ends, on the supervisor's loop ---

    def add(self, child: ChildRecord) -> None:
        """Add a program, and handle the reports that it sent before the supervisor reported its
        start.
        """
        with self.lock:
            child.serial = next(self._serials)
            self._children[child.pid] = child
            early, self._early_messages = self._early_messages, []
            self._early_messages = [each for each in early if each["pid"] != child.pid]
            handlings = [self._note(child, each) for each in early if each["pid"] == child.pid]
        waiting = [handling for handling in handlings if handling is not None]
        if waiting:
            BackgroundThread(
                partial(_call_all, waiting), name="worker-early-messages", report_errors=True
            ).start(inline_fallback=True)

    def remove(self, pid: int) -> ChildRecord | None:
        """Remove a program that has ended. Its counters stay."""
        with self.lock:
            child = self._children.pop(pid, None)
            if child is not None:
                self._recently_ended.append(child)
                self._merged.mark_ended(child.serial)
            return child

    def clear(self) -> list[ChildRecord]:
        """Forget all programs; returns them."""
        with self.lock:
            children, self._children = self._children, {}
            return list(children.values())

    # --- reports ---

    def accept(self, message: Mapping[str, Any]) -> Handling | None:
        """Note a report without waiting. Returns the rest of its handling, None if it is done."""
        pid = int(message["pid"])
        with self.lock:
            child = self._children.get(pid)
            if child is None and message["about"] in {"state", "events"}:
                child = self._find_recently_ended(pid)
            if child is not None:
                return self._note(child, message)
            self._early_messages = [*self._early_messages, message][-_MAX_EARLY_MESSAGES:]
            return None

    def _find_recently_ended(self, pid: int) -> ChildRecord | None:
        return next((child for child in reversed(self._recently_ended) if child.pid == pid), None)

    def _note(self, child: ChildRecord, message: Mapping[str, Any]) -> Handling | None:
        """Handle a state or events now; note any other report, and return its handling."""
        note = {"state": self._record_state, "events": self._pass_on_events}.get(message["about"])
        with suppress(Exception):  # a report that cannot be parsed
            if note is None:
                child.accept(message)
            else:
                note(child, message)
        return partial(self._handle_other, child, message) if note is None else None

    def _record_state(self, child: ChildRecord, message: Mapping[str, Any]) -> None:
        samples = child.record_state(message, self._clock.monotonic())
        self._merged.add_families(child.families)
        self._merged.update(child.serial, samples)

    def _pass_on_events(self, child: ChildRecord, message: Mapping[str, Any]) -> None:
        if (dropped := int(message["dropped"])) > 0:
            self._events.emit(
                WorkerEventsDropped(program=child.program, pid=child.pid, count=dropped)
            )
        self._on_records(list(relayed_records(message, program=child.program)))


def _call_all(handlings: Iterable[Handling]) -> None:
    for handling in handlings:
        with suppress(Exception):  # a failure must not keep the next one from being handled
            handling()
