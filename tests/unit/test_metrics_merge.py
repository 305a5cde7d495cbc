from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.observe.counters import (
    MAX_ENDED,
    MergedSamples,
    MetricSample,
    add_to_histogram,
    empty_histogram,
)
from longwatch.observe.metric_families import FAMILIES, Families, GaugeMerge, MetricKind
from longwatch.observe.runner_families import runner_families

ACKED = "longwatch_mailbox_acked_total"
DURATION = "longwatch_handle_duration_seconds"
RUNNING, AGE, READY = (
    "longwatch_loop_running",
    "longwatch_heartbeat_age_seconds",
    "longwatch_health_ready",
)


def acked(number: float, loop: str = "mail") -> MetricSample:
    return MetricSample(ACKED, (loop,), number)


def found(merged: MergedSamples, name: str, *labels: str) -> float | list[float] | None:
    values = [
        sample.value
        for sample in merged.samples()
        if (sample.name, sample.labels) == (name, labels)
    ]
    assert len(values) <= 1, "one series of each"
    return values[0] if values else None


def test_counters_of_several_processes_add_up_by_their_labels() -> None:
    merged = MergedSamples()
    merged.update(1, [acked(3), acked(10, "other")])
    merged.update(2, [acked(4)])
    assert (7, 10) == (found(merged, ACKED, "mail"), found(merged, ACKED, "other"))


def test_what_a_process_says_replaces_what_it_said_before() -> None:
    merged = MergedSamples()
    merged.update(1, [acked(3)])
    merged.update(1, [acked(5)])
    assert 5 == found(merged, ACKED, "mail")


def durations(*counts: float) -> MetricSample:
    """A histogram with these counts in its first buckets, each of them also its sum."""
    empty = [0.0] * (len(FAMILIES[DURATION].buckets) + 1 - len(counts))
    return MetricSample(DURATION, ("mail",), [*counts, *empty, sum(counts)])


def test_one_that_is_gone_leaves_its_counters_and_durations() -> None:
    merged = MergedSamples()
    merged.update(1, [acked(3), durations(1.0, 2.0)])
    merged.mark_ended(1)
    merged.update(2, [acked(4), durations(10.0, 20.0)])
    assert 7 == found(merged, ACKED, "mail")
    assert durations(11.0, 22.0).value == found(merged, DURATION, "mail")


def test_one_that_is_gone_leaves_no_gauges() -> None:
    merged = MergedSamples()
    merged.update(1, [MetricSample(RUNNING, ("mail",), 1.0), MetricSample(AGE, ("mail",), 99.0)])
    merged.mark_ended(1)
    assert [] == merged.samples()


def test_one_that_is_gone_twice_or_was_never_heard_changes_nothing() -> None:
    merged = MergedSamples()
    merged.update(1, [acked(3)])
    merged.mark_ended(1)
    merged.mark_ended(1)
    merged.mark_ended(2)
    assert 3 == found(merged, ACKED, "mail")


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [(RUNNING, ("mail",), 8.0), (AGE, ("mail",), 5.0), (READY, (), 3.0)],
)
def test_a_gauge_says_how_those_of_several_become_one(
    name: str, labels: tuple[str, ...], expected: float
) -> None:
    """Their sum, the largest, or the last that was heard of."""
    merged = MergedSamples()
    merged.update(1, [MetricSample(name, labels, 5.0)])
    merged.update(2, [MetricSample(name, labels, 3.0)])
    assert expected == found(merged, name, *labels)


def test_all_ways_to_merge_are_among_those_that_are_tried_here() -> None:
    gauges = [family for family in FAMILIES.values() if family.kind is MetricKind.GAUGE]
    assert {GaugeMerge.SUM, GaugeMerge.MAX, GaugeMerge.LAST} == {gauge.merge for gauge in gauges}
    assert [GaugeMerge.SUM, GaugeMerge.MAX, GaugeMerge.LAST] == [
        FAMILIES[name].merge for name in (RUNNING, AGE, READY)
    ]


def test_metrics_that_are_not_known_here_are_passed_over() -> None:
    """A worker of another version may count more."""
    merged = MergedSamples()
    merged.update(1, [MetricSample("longwatch_news_total", ("mail",), 3.0), acked(1)])
    assert [acked(1)] == merged.samples()
    strange: list[tuple[str, tuple[str, ...], float | list[float]]] = [
        (ACKED, (), 3.0),
        (ACKED, ("mail", "b"), 3.0),
        (ACKED, ("mail",), [1.0]),
        (DURATION, ("mail",), 3.0),
        (DURATION, ("mail",), [1.0, 2.0]),
    ]
    merged.update(1, [*(MetricSample(*each) for each in strange), acked(1)])
    merged.mark_ended(1)
    assert [acked(1)] == merged.samples()


def test_what_is_handed_out_is_nobody_elses() -> None:
    merged = MergedSamples()
    told = durations(1.0, 2.0)
    merged.update(1, [told])
    for value in (sample.value for sample in merged.samples()):
        assert isinstance(value, list)
        value[0] = 1000.0
    merged.mark_ended(1)
    merged.samples()[0].value[0] = 1000.0  # type: ignore[index] # of a histogram
    assert durations(1.0, 2.0).value == found(merged, DURATION, "mail") == told.value


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(0, 100)), max_size=40))
def test_whoever_comes_counts_and_goes_the_sum_is_of_all_that_was_ever_counted(
    acts: list[tuple[int, int | None]],
) -> None:
    """One that ends is followed by another, which has another number and begins at nothing."""
    merged = MergedSamples()
    numbers = count(5)
    present = {place: place for place in range(5)}
    own: dict[int, int] = {}
    for place, more in acts:
        process = present[place]
        if more is None:
            merged.mark_ended(process)
            present[place] = next(numbers)
        else:
            own[process] = own.get(process, 0) + more
            merged.update(process, [acked(own[process])])
        assert sum(own.values()) == (found(merged, ACKED, "mail") or 0)


# --- families of a runner ---

COMPLETED, ACTIVE, DEPTH, TOOK = (
    f"agents_{name}"
    for name in (
        "agents_completed_total",
        "agents_active",
        "queue_depth",
        "agent_duration_seconds",
    )
)


def families(agent_timeout: float | None = None) -> Families:
    named = runner_families("agents", agent_timeout)
    return {family.name: family for family in named.values()}


def test_metrics_of_a_namespace_are_known_once_their_families_are() -> None:
    merged = MergedSamples()
    said = [MetricSample(DEPTH, ("prod",), 3.0), acked(1)]
    merged.update(1, said)
    assert [acked(1)] == merged.samples()
    merged.add_families(families())
    merged.update(1, said)
    assert said == merged.samples()
    assert {DEPTH, ACKED} <= merged.families.keys()


def test_the_runs_of_a_runner_that_has_ended_have_ended_too() -> None:
    """Spawned = completed + active, whatever becomes of its process."""
    merged = MergedSamples()
    merged.add_families(families())
    said = [
        MetricSample(COMPLETED, ("prod", "cancelled"), 1.0),
        MetricSample(COMPLETED, ("prod", "success"), 4.0),
        MetricSample(ACTIVE, ("prod",), 2.0),
        MetricSample(ACTIVE, ("dev",), 1.0),
        MetricSample(DEPTH, ("prod",), 7.0),
    ]
    merged.update(1, said)
    merged.mark_ended(1)
    ended = {
        (COMPLETED, ("prod", "cancelled")): 3.0,
        (COMPLETED, ("prod", "success")): 4.0,
        (COMPLETED, ("dev", "cancelled")): 1.0,
    }
    assert ended == {(name, labels): value for name, labels, value in merged.samples()}
    merged.update(1, [*said[:2], MetricSample(ACTIVE, ("prod",), 0.0)])
    assert (1.0, 4.0) == (
        found(merged, COMPLETED, "prod", "cancelled"),
        found(merged, COMPLETED, "prod", "success"),
    ), "its last word tells of no run in progress"


def test_durations_with_other_buckets_begin_anew_and_nothing_else_does() -> None:
    merged = MergedSamples()
    merged.add_families(families())
    for process in range(MAX_ENDED + 3):
        short = empty_histogram(families()[TOOK].buckets)
        add_to_histogram(short, families()[TOOK].buckets, 2.0)
        merged.update(process, [MetricSample(TOOK, ("prod", "success"), short), acked(1)])
        merged.mark_ended(process)
    longer = families(600.0)
    merged.add_families(longer)
    assert found(merged, TOOK, "prod", "success") is None
    long = empty_histogram(longer[TOOK].buckets)
    merged.update(1000, [MetricSample(TOOK, ("prod", "success"), long)])
    assert (long, MAX_ENDED + 3) == (
        found(merged, TOOK, "prod", "success"),
        found(merged, ACKED, "mail"),
    )


# --- last words ---


def test_a_last_word_that_comes_after_the_news_of_the_end_still_counts() -> None:
    merged = MergedSamples()
    merged.update(1, [acked(3), MetricSample(RUNNING, ("mail",), 1.0)])
    merged.mark_ended(1)
    merged.update(1, [acked(5), MetricSample(RUNNING, ("mail",), 1.0)])
    assert [acked(5)] == merged.samples(), "and its gauges do not"


def test_so_does_the_only_word_of_one_that_was_quick() -> None:
    merged = MergedSamples()
    merged.mark_ended(1)
    merged.update(1, [acked(2)])
    merged.update(2, [acked(3)])
    assert 5 == found(merged, ACKED, "mail")


def test_of_many_that_are_gone_only_the_sum_is_kept() -> None:
    merged = MergedSamples()
    for process in range(10 * MAX_ENDED):
        merged.update(process, [acked(1)])
        merged.mark_ended(process)
    assert 10 * MAX_ENDED == found(merged, ACKED, "mail")
    assert MAX_ENDED == len(merged._ended)


def test_values_that_are_no_numbers_are_left_out() -> None:
    """Another process reports them; the metrics of the others must still be readable."""
    merged = MergedSamples()
    histogram: list[Any] = ["x"] * (len(FAMILIES[DURATION].buckets) + 2)
    forged: Any = "5"
    merged.update(1, [acked(3), acked(forged), MetricSample(DURATION, ("mail",), histogram)])

    assert [acked(3)] == merged.samples()
