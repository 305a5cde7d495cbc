from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from longwatch.core.events.engine import RowsClaimed
from longwatch.observe.counters import MetricSample
from longwatch.observe.metric_families import FAMILIES, MetricFamily, MetricKind
from longwatch.observe.metrics import Metrics, exposition

EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
RESERVED = {"le", "quantile", "job", "instance"}
UNITS_NOT_TO_USE = re.compile(r"_(ms|us|ns|milliseconds|minutes|hours|days|kb|mb|gb|percent)(_|$)")


def of(family: MetricFamily, *labels: str, value: float = 2.0) -> MetricSample:
    """A series of this family."""
    label_values = labels or tuple(f"a {label}" for label in family.labels)
    counts = [float(number) for number in range(len(family.buckets) + 1)]
    return MetricSample(
        family.name,
        label_values,
        [*counts, value] if family.kind is MetricKind.HISTOGRAM else value,
    )


def parsed(samples: Iterable[MetricSample]) -> list[Metric]:
    """As Prometheus' own parser reads it, which raises on what is not its format."""
    return list(text_string_to_metric_families(exposition(samples).decode()))


def series(metric: Metric) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for each in metric.samples}


# --- names ---


@EVERY
def test_a_name_is_one_that_prometheus_takes_and_its_units_are_base_units(
    family: MetricFamily,
) -> None:
    assert re.fullmatch(r"longwatch_[a-z][a-z0-9_]*[a-z0-9]", family.name)
    assert UNITS_NOT_TO_USE.search(family.name) is None
    assert "__" not in family.name


@EVERY
def test_a_counter_ends_in_total_and_nothing_else_does(family: MetricFamily) -> None:
    assert (family.kind is MetricKind.COUNTER) == family.name.endswith("_total")
    assert not family.name.endswith(("_count", "_sum", "_bucket", "_created", "_info"))


@EVERY
def test_labels_are_names_that_nobody_else_uses(family: MetricFamily) -> None:
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in family.labels)
    assert len({*family.labels}) == len(family.labels)
    assert not RESERVED & {*family.labels}
    assert not any(label.startswith("__") for label in family.labels)


@EVERY
def test_what_it_is_is_said_in_one_line(family: MetricFamily) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*\.", family.help)
    assert len(family.help) <= 100


@EVERY
def test_a_histogram_has_rising_bounds_and_nothing_else_has_any(family: MetricFamily) -> None:
    assert (family.kind is MetricKind.HISTOGRAM) == bool(family.buckets)
    assert sorted({*family.buckets}) == list(family.buckets)


def test_no_name_is_another_ones_series() -> None:
    """`x_count` beside a histogram `x` would be two things of one name."""
    made = {
        f"{family.name}{end}"
        for family in FAMILIES.values()
        if family.kind is MetricKind.HISTOGRAM
        for end in ("_count", "_sum")
    }
    assert not made & {*FAMILIES}
    assert len(FAMILIES) == len({name.removesuffix("_total") for name in FAMILIES})


# --- the text ---


@EVERY
def test_each_family_is_read_back_with_its_kind_its_help_and_its_labels(
    family: MetricFamily,
) -> None:
    [metric] = parsed([of(family)])
    assert (family.name.removesuffix("_total"), family.kind.value, family.help) == (
        metric.name,
        metric.type,
        metric.documentation,
    )
    assert {*family.labels} == {*metric.samples[0].labels} - {"le"}
    if family.kind is not MetricKind.HISTOGRAM:
        labels = tuple(sorted((label, f"a {label}") for label in family.labels))
        assert {(family.name, labels): 2.0} == series(metric)


def test_a_whole_catalogue_is_one_text_with_one_head_for_each_family() -> None:
    families = [family for family in FAMILIES.values() for _ in range(2 if family.labels else 1)]
    samples = [
        of(family, *(f"{number}" for _ in family.labels)) for number, family in enumerate(families)
    ]
    text = exposition(samples).decode()
    assert len(FAMILIES) == len(parsed(samples))
    for head in ("# HELP", "# TYPE"):
        named = [line.split()[2] for line in text.splitlines() if line.startswith(head)]
        assert list(FAMILIES) == named


def test_buckets_are_cumulative_and_the_last_is_the_count() -> None:
    family = FAMILIES["longwatch_handle_duration_seconds"]
    counts = [1.0] * (len(family.buckets) + 1)
    [metric] = parsed([MetricSample(family.name, ("mail",), [*counts, 12.5])])
    buckets = [
        (each.labels["le"], each.value) for each in metric.samples if each.name.endswith("_bucket")
    ]
    assert [float(number + 1) for number in range(len(counts))] == [value for _, value in buckets]
    assert [*family.buckets, float("inf")] == [float(bound) for bound, _ in buckets]
    ends = {
        each.name.rpartition("_")[2]: each.value
        for each in metric.samples
        if not each.name.endswith("_bucket")
    }
    assert {"count": float(len(counts)), "sum": 12.5} == ends


@pytest.mark.parametrize(
    "name", ['say "hi"', "back\\slash", "two\nlines", "ünï", "", "{a=b}", "a\\n"]
)
def test_a_loop_may_be_called_anything(name: str) -> None:
    family = FAMILIES["longwatch_mailbox_acked_total"]
    [metric] = parsed([of(family, name)])
    assert [name] == [each.labels["loop"] for each in metric.samples]


@given(st.text(), st.floats())
def test_any_label_and_any_number_is_read_back(name: str, value: float) -> None:
    [metric] = parsed([MetricSample("longwatch_loop_running", (name,), value)])
    [read] = metric.samples
    assert ({"loop": name}, repr(value)) == (read.labels, repr(read.value))


def test_half_a_character_in_a_label_takes_nothing_from_the_other_series() -> None:
    text = exposition([MetricSample("longwatch_loop_running", ("\ud800",), 1.0)]).decode()
    assert 'longwatch_loop_running{loop="\\ud800"} 1.0\n' in text


def test_labels_are_in_the_order_of_their_names_as_other_writers_have_them() -> None:
    samples = [
        MetricSample("longwatch_program_ends_total", ("web", "clean_exit"), 2),
        MetricSample("longwatch_flow_attempt_seconds", ("g", "n"), [1.0] * 11 + [5.5]),
    ]
    text = exposition(samples).decode()
    assert '\nlongwatch_program_ends_total{program="web",verdict="clean_exit"} 2.0\n' in text
    assert '_bucket{graph="g",le="0.01",node="n"} 1.0\n' in text
    assert '_seconds_count{graph="g",node="n"} 11.0\n' in text
    assert '_seconds_sum{graph="g",node="n"} 5.5\n' in text


def test_nothing_counted_is_an_empty_text() -> None:
    assert b"" == exposition([])


# --- a process's own ---


def test_metrics_say_what_was_counted_and_what_is_read_now() -> None:
    metrics = Metrics()
    metrics.observe(RowsClaimed(engine="mail", rows=3, held=3))
    age = iter([1.0, 2.0])
    metrics.add_gauges(lambda: [("longwatch_heartbeat_age_seconds", ("mail",), next(age))])
    for expected in (1.0, 2.0):
        values = {
            name: value
            for metric in parsed_text(metrics())
            for (name, _), value in series(metric).items()
        }
        assert {
            "longwatch_mailbox_received_total": 3.0,
            "longwatch_heartbeat_age_seconds": expected,
        } == values


def test_a_reading_that_raises_takes_nothing_from_the_others() -> None:
    metrics = Metrics()
    metrics.add_gauges(lambda: 1 / 0)  # type: ignore[arg-type, return-value] # as a store does that is gone
    metrics.add_gauges(lambda: [("longwatch_loop_running", ("mail",), 1.0)])
    assert [MetricSample("longwatch_loop_running", ("mail",), 1.0)] == metrics.samples()


def test_a_reading_that_was_ended_is_not_made() -> None:
    metrics = Metrics()
    end = metrics.add_gauges(lambda: [("longwatch_loop_running", ("mail",), 1.0)])
    end()
    assert [] == metrics.samples()


def parsed_text(data: Any) -> list[Metric]:
    return list(text_string_to_metric_families(data.decode()))
