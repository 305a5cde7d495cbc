"""Counts events as plain numbers, and adds up those of several processes.

The counts of a process that has ended stay in the sum.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from longwatch.core.events.base import Event
from longwatch.core.events.engine import (
    ClaimSourceFailed,
    LeaseLost,
    LeasesRenewed,
    MessageDeadLettered,
    RowsClaimed,
    RowsSettled,
)
from longwatch.core.events.flow import AttemptsEnded, FlowSweepFinished
from longwatch.core.events.programs import (
    CircuitBreakerTripped,
    HealthCheckFailed,
    ProgramEnded,
    ProgramStarted,
)
from longwatch.core.events.runtime import LoopCrashed, LoopStalled, ReplyFailed
from longwatch.core.events.workers import WorkerEventsDropped, WorkerStalled
from longwatch.observe.metric_families import FAMILIES, Families, GaugeMerge, MetricKind

SeriesKey = tuple[str, tuple[str, ...]]
"""A metric's name, and the values of its labels."""
_COMPUTATION = "computation"
"""The kind of rows that are attempts to compute a node."""


class MetricSample(NamedTuple):
    """One series: a number, or of a histogram the count of each bucket and then the sum."""

    name: str
    labels: tuple[str, ...]
    value: float | list[float]


def counter_increments(event: Event) -> Iterable[tuple[SeriesKey, float]]:
    """The counters that an event increments, each with its increment."""
    rule = _RULES.get(type(event))
    return () if rule is None else rule(event)


def _settlement_increments(event: RowsSettled) -> Iterable[tuple[SeriesKey, float]]:
    """The counters of settled rows. `AttemptsEnded` counts computations that have ended."""
    counts = {
        "mailbox_acked": event.done,
        "mailbox_nacked": event.failed,
        "mailbox_released": event.released,
        "mailbox_dead_lettered": event.dead_lettered,
        "mailbox_stale_settlements": event.refused,
    }
    if event.row_kind == _COMPUTATION:
        counts = {"flow_released": event.released, "flow_stale_settlements": event.refused}
    return [
        ((f"longwatch_{name}_total", (event.engine,)), number)
        for name, number in counts.items()
        if number
    ]


def _claim_increments(event: RowsClaimed) -> Iterable[tuple[SeriesKey, float]]:
    name = "flow_claimed" if event.row_kind == _COMPUTATION else "mailbox_received"
    return [((f"longwatch_{name}_total", (event.engine,)), event.rows)]


def _sweep_increments(event: FlowSweepFinished) -> Iterable[tuple[SeriesKey, float]]:
    counts = {"rows": event.rows, "errors": int(bool(event.error))}
    return [
        ((f"longwatch_flow_sweep_{name}_total", (event.sweep,)), number)
        for name, number in counts.items()
        if number
    ]


def _increment_by_one(
    name: str, *labels: str
) -> Callable[[Any], Iterable[tuple[SeriesKey, float]]]:
    """Makes a function that increments one counter, with labels from these fields of the event."""
    return lambda event: [
        ((f"longwatch_{name}_total", tuple(str(getattr(event, label)) for label in labels)), 1)
    ]


_RULES: dict[type[Event], Callable[[Any], Iterable[tuple[SeriesKey, float]]]] = {
    RowsSettled: _settlement_increments,
    RowsClaimed: _claim_increments,
    AttemptsEnded: lambda event: [
        (
            (
                "longwatch_flow_attempts_total",
                (event.graph, event.node, event.state, event.cause),
            ),
            event.attempts,
        )
    ],
    FlowSweepFinished: _sweep_increments,
    LeasesRenewed: lambda event: [
        (("longwatch_leases_renewed_total", (event.engine,)), event.rows)
    ],
    LeaseLost: lambda event: [
        (
            ("longwatch_leases_lost_total", (event.engine, event.reason)),
            len(event.message_ids) + len(event.computations),
        )
    ],
    MessageDeadLettered: _increment_by_one("messages_dead_lettered", "mailbox", "reason"),
    ClaimSourceFailed: _increment_by_one("claim_source_failures", "engine"),
    ReplyFailed: _increment_by_one("replies_failed", "loop"),
    LoopCrashed: _increment_by_one("loop_crashes", "loop"),
    LoopStalled: _increment_by_one("watchdog_stalls", "loop"),
    WorkerStalled: _increment_by_one("worker_stalls", "program"),
    WorkerEventsDropped: lambda event: [
        (("longwatch_relay_dropped_total", (event.program,)), event.count)
    ],
    ProgramStarted: _increment_by_one("program_starts", "program"),
    ProgramEnded: _increment_by_one("program_ends", "program", "verdict"),
    HealthCheckFailed: _increment_by_one("probe_failures", "program", "probe"),
    CircuitBreakerTripped: _increment_by_one("breaker_trips", "program"),
}


def observed_durations(event: Event) -> tuple[SeriesKey, Sequence[float]] | None:
    """The histogram that an event adds to, and the durations that it adds."""
    match event:
        case RowsSettled(row_kind=kind) if kind != _COMPUTATION:
            return ("longwatch_handle_duration_seconds", (event.engine,)), event.durations
        case AttemptsEnded():
            return ("longwatch_flow_attempt_seconds", (event.graph, event.node)), event.durations
        case FlowSweepFinished():
            return ("longwatch_flow_sweep_seconds", (event.sweep,)), (event.seconds,)
    return None


class EventCounters:
    """An observer that counts events. Thread-safe. Counts never go back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[SeriesKey, float] = {}
        self._durations: dict[SeriesKey, list[float]] = {}

    def __call__(self, event: Event) -> None:
        added = counter_increments(event)
        observed = observed_durations(event)
        with self._lock:
            for key, number in added:
                self._counts[key] = self._counts.get(key, 0) + number
            if observed is not None and observed[1]:
                self._add_durations(*observed)

    def samples(self) -> list[MetricSample]:
        """All series with their present values."""
        with self._lock:
            counts = [
                MetricSample(name, labels, value) for (name, labels), value in self._counts.items()
            ]
            return counts + [
                MetricSample(name, labels, list(value))
                for (name, labels), value in self._durations.items()
            ]

    def _add_durations(self, key: SeriesKey, durations: Sequence[float]) -> None:
        bounds = FAMILIES[key[0]].buckets
        histogram = self._durations.setdefault(key, empty_histogram(bounds))
        for seconds in durations:
            add_to_histogram(histogram, bounds, seconds)


def empty_histogram(bounds: Sequence[float]) -> list[float]:
    """The value of a histogram without observations: the count of each bucket, then the sum."""
    return [0.0] * (len(bounds) + 2)


def add_to_histogram(histogram: list[float], bounds: Sequence[float], value: float) -> None:
    histogram[bisect_left(bounds, value)] += 1
    histogram[-1] += value


SampleValue = float | list[float]


MAX_ENDED = 64
"""Maximum number of ended processes whose last report may still arrive."""


class MergedSamples:
    """Merges the latest samples of several processes, each under a unique number. Not thread-safe.

    An ended process leaves its counters and loses its gauges. Its last report may arrive after its
    end. `families` are all metrics that are known, by name.
    """

    def __init__(self) -> None:
        self.families: Families = FAMILIES
        self._live: dict[int, list[MetricSample]] = {}
        self._ended: dict[int, list[MetricSample]] = {}
        self._ended_totals: dict[SeriesKey, SampleValue] = {}

    def update(self, process: int, samples: Iterable[MetricSample]) -> None:
        """Replace the samples of a process. Metrics that are unknown, or have another shape than
        here, are ignored: the process may be of another version.
        """
        known = [sample for sample in samples if self._is_known(sample)]
        if process in self._ended:
            self._ended[process] = self._final(known)
        else:
            self._live[process] = known

    def add_families(self, families: Families) -> None:
        """Know these metrics, too. If one has other buckets than before, its counts begin anew."""
        changed = {
            name
            for name, family in families.items()
            if (known := self.families.get(name)) is not None and known.buckets != family.buckets
        }
        if changed or not self.families.items() >= families.items():
            self.families = {**self.families, **families}
        if changed:
            for places in (self._live, self._ended):
                for process, samples in places.items():
                    places[process] = [each for each in samples if each.name not in changed]
            totals = self._ended_totals.items()
            self._ended_totals = {key: value for key, value in totals if key[0] not in changed}

    def mark_ended(self, process: int) -> None:
        if process not in self._ended:
            self._ended[process] = self._final(self._live.pop(process, ()))
        if len(self._ended) > MAX_ENDED:
            for sample in self._ended.pop(next(iter(self._ended))):
                self._add(self._ended_totals, sample)

    def samples(self) -> list[MetricSample]:
        """The merged samples of all processes."""
        merged = {key: _copy(value) for key, value in self._ended_totals.items()}
        for samples in (*self._ended.values(), *self._live.values()):
            for sample in samples:
                self._add(merged, sample)
        return [MetricSample(name, labels, value) for (name, labels), value in merged.items()]

    def _is_known(self, sample: MetricSample) -> bool:
        family = self.families.get(sample.name)
        if family is None or len(family.labels) != len(sample.labels):
            return False
        if family.kind is not MetricKind.HISTOGRAM:
            return _is_number(sample.value)
        return (
            isinstance(sample.value, list)
            and len(sample.value) == len(family.buckets) + 2
            and all(map(_is_number, sample.value))
        )

    def _final(self, samples: Iterable[MetricSample]) -> list[MetricSample]:
        """What an ended process leaves: its counters, with its work in progress as ended."""
        final: dict[SeriesKey, SampleValue] = {}
        for sample in samples:
            family = self.families[sample.name]
            if family.kind is not MetricKind.GAUGE:
                self._add(final, sample)
            elif family.ends_as is not None:
                counter, labels = family.ends_as
                self._add(final, MetricSample(counter, (*sample.labels, *labels), sample.value))
        return [MetricSample(name, labels, value) for (name, labels), value in final.items()]

    def _add(self, merged: dict[SeriesKey, SampleValue], sample: MetricSample) -> None:
        key = (sample.name, sample.labels)
        known = merged.get(key)
        merged[key] = _copy(sample.value) if known is None else self._merge_values(known, sample)

    def _merge_values(self, known: SampleValue, sample: MetricSample) -> SampleValue:
        if isinstance(known, list) and isinstance(sample.value, list):
            return [left + right for left, right in zip(known, sample.value, strict=True)]
        assert not isinstance(known, list)
        assert not isinstance(sample.value, list)
        family = self.families[sample.name]
        if family.kind is MetricKind.COUNTER or family.merge is GaugeMerge.SUM:
            return known + sample.value
        return max(known, sample.value) if family.merge is GaugeMerge.MAX else sample.value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _copy(value: SampleValue) -> SampleValue:
    return list(value) if isinstance(value, list) else value
