from __future__ import annotations

import json

import pytest

from longwatch.runner.event_filter import (
    DISABLED,
    DUPLICATE,
    MALFORMED,
    SEVERITY,
    EventFilter,
    FaultWindow,
)
from longwatch.runner.event_writer import EventIds
from longwatch.runner.policy import RunnerPolicy, Severity
from longwatch.runner.stream_event import StreamEvent, parse_event

NOW = 1000.0
WINDOW = 300.0


def event(severity: str = "error", fault: str = "f1") -> StreamEvent:
    fields = {"severity": severity, "resource": "pod", "faultId": fault}
    return parse_event(json.dumps(fields), max_bytes=1000)


def reason(
    candidate: StreamEvent,
    *,
    policy: RunnerPolicy | None = None,
    queued: FaultWindow | None = None,
    is_enabled: bool = True,
    now: float = NOW,
) -> str | None:
    event_filter = EventFilter(policy or RunnerPolicy(), is_enabled=is_enabled)
    return event_filter.reason(candidate, queued or FaultWindow(WINDOW), set(), now)


@pytest.mark.parametrize("threshold", [each for each in Severity if each is not Severity.OTHER])
def test_events_below_the_threshold_are_filtered(threshold: Severity) -> None:
    """An event passes if it is at least as grave as the threshold; `other` counts as info."""
    order = ["debug", "info", "warning", "error", "critical"]
    policy = RunnerPolicy(severity_threshold=threshold)
    passed = [each for each in order if reason(event(each), policy=policy) is None]
    assert order[order.index(threshold) :] == passed
    expected = None if threshold in {"debug", "info"} else SEVERITY
    assert reason(event("purple"), policy=policy) == expected


def test_the_first_reason_counts() -> None:
    """Malformed before disabled before severity."""
    assert reason(parse_event("{", max_bytes=10), is_enabled=False) == MALFORMED
    assert reason(event("debug"), is_enabled=False) == DISABLED
    assert reason(event("debug")) == SEVERITY


def test_a_fault_is_a_duplicate_inside_the_window() -> None:
    """It counts from the event that was queued; at the end of the window the fault is new."""
    window = FaultWindow(WINDOW)
    first = event()
    assert reason(first, queued=window) is None
    window.add([str(first.fault_key)], NOW)
    assert reason(first, queued=window, now=NOW + WINDOW - 1) == DUPLICATE
    assert reason(first, queued=window, now=NOW + WINDOW) is None
    assert reason(event(fault="f2"), queued=window) is None


def test_a_window_of_zero_is_off() -> None:
    window = FaultWindow(0)
    window.add([str(event().fault_key)], NOW)
    policy = RunnerPolicy(dedup_window=0)
    assert reason(event(), policy=policy, queued=window) is None
    assert not len(window)


def test_a_clock_that_was_set_back_does_not_stretch_the_window() -> None:
    window = FaultWindow(WINDOW, [("a", NOW)])
    assert window.holds("a", NOW - 1)
    assert not window.holds("a", NOW - 2 * WINDOW)


def test_the_window_forgets_what_is_older() -> None:
    """Faults outside the window take no memory, and a dropped one leaves it at once."""
    window = FaultWindow(WINDOW)
    for step in range(10):
        window.add([f"{step}-{n}" for n in range(100)], NOW + step * WINDOW / 2)
        assert len(window) <= 200
    window.discard(["9-1", None, "unknown"])
    assert not window.holds("9-1", NOW + 9 * WINDOW / 2)


def test_ids_rise_and_are_unique() -> None:
    """Ids sort in the order in which they were made, also those of one microsecond."""
    ids = EventIds()
    made = [each for _ in range(50) for each in ids.make(100)]
    assert made == sorted(set(made))
    assert {32} == set(map(len, made))
    assert ids.make(0) == []
