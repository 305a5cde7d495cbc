"""Counts events, in plain numbers that can be sent to another process and added to its own."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from longwatch.core.events import (
    Event,
    LeaseLost,
    LeasesRenewed,
    LoopCrashed,
    LoopStalled,
    ProgramEnded,
    ProgramStarted,
    ReplyFailed,
    RowsClaimed,
    RowsSettled,
    SourceFailed,
    WorkerStalled,
)
from longwatch.observe.catalogue import HANDLE_BUCKETS

Key = tuple[str, tuple[str, ...]]
"""A metric's name, and the values of its labels."""


class Sample(NamedTuple):
    """One series: a number, or of a histogram the count of each bucket and then the sum."""

    name: str
    labels: tuple[str, ...]
    value: float | list[float]


def counts_of(event: Event) -> Iterable[tuple[Key, float]]:
    """What an event adds to which counters."""
    rule = _RULES.get(type(event))
    return () if rule is None else rule(event)


def _settled(event: RowsSettled) -> Iterable[tuple[Key, float]]:
    loop = (event.engine,)
    counted = {
        "acked": event.done,
        "nacked": event.failed,
        "returned": event.back,
        "dead_lettered": event.dead,
        "refused": event.refused,
    }
    return [
        ((f"longwatch_mailbox_{name}_total", loop), number)
        for name, number in counted.items()
        if number
    ]


def _one(name: str, *labels: str) -> Callable[[Any], Iterable[tuple[Key, float]]]:
    """One more of this, labelled by these facts of the event."""
    return lambda event: [
        ((f"longwatch_{name}_total", tuple(str(getattr(event, label)) for label in labels)), 1)
    ]


_RULES: dict[type[Event], Callable[[Any], Iterable[tuple[Key, float]]]] = {
    RowsSettled: _settled,
    RowsClaimed: lambda event: [
        (("longwatch_mailbox_received_total", (event.engine,)), event.rows)
    ],
    LeasesRenewed: lambda event: [
        (("longwatch_leases_renewed_total", (event.engine,)), event.rows)
    ],
    LeaseLost: lambda event: [
        (("longwatch_leases_lost_total", (event.engine, event.reason)), len(event.rows))
    ],
    SourceFailed: _one("source_failures", "engine"),
    ReplyFailed: _one("replies_failed", "loop"),
    LoopCrashed: _one("loop_crashes", "loop"),
    LoopStalled: _one("watchdog_stalls", "loop"),
    WorkerStalled: _one("worker_stalls", "program"),
    ProgramStarted: _one("program_starts", "program"),
    ProgramEnded: _one("program_ends", "program", "verdict"),
}

_DURATION = "longwatch_handle_duration_seconds"


class Tally:
    """An observer that counts. Thread-safe. What it counts is never forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Key, float] = {}
        self._durations: dict[Key, list[float]] = {}

    def __call__(self, event: Event) -> None:
        added = counts_of(event)
        with self._lock:
            for key, number in added:
                self._counts[key] = self._counts.get(key, 0) + number
            if isinstance(event, RowsSettled) and event.lasted:
                self._ran(event)

    def samples(self) -> list[Sample]:
        """Everything, as it is now."""
        with self._lock:
            counts = [Sample(name, labels, value) for (name, labels), value in self._counts.items()]
            return counts + [
                Sample(name, labels, list(value))
                for (name, labels), value in self._durations.items()
            ]

    def _ran(self, event: RowsSettled) -> None:
        places = self._durations.setdefault(
            (_DURATION, (event.engine,)), [0.0] * (len(HANDLE_BUCKETS) + 2)
        )
        for seconds in event.lasted:
            places[bisect_left(HANDLE_BUCKETS, seconds)] += 1
        places[-1] += sum(event.lasted)
