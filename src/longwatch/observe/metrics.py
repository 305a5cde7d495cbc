"""Metrics of one process in the text format of Prometheus.

`prometheus-client` formats one snapshot of our own counters, so all values are of one moment. It is
imported at the first scrape. A worker process whose parent serves the metrics never imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from longwatch.core.events.base import Event
from longwatch.observe.counters import EventCounters, MetricSample
from longwatch.observe.metric_families import FAMILIES, MetricFamily, MetricKind

GaugeReader = Callable[[], Iterable[tuple[str, tuple[str, ...], float]]]
"""Returns gauges: the name, the label values and the number of each."""


class Metrics:
    """Counts events and formats the counts and gauges as text for Prometheus.

    `LoopGroup(…, metrics=Metrics())` is enough: the group connects its events and its gauges.
    """

    def __init__(self) -> None:
        self._counters = EventCounters()
        self._gauge_readers: list[GaugeReader] = []

    def observe(self, event: Event) -> None:
        self._counters(event)

    def add_gauges(self, reader: GaugeReader) -> Callable[[], None]:
        """Read these gauges at each scrape. Returns a function that removes them. A reader that
        raises is skipped.
        """
        self._gauge_readers.append(reader)
        return lambda: self._gauge_readers.remove(reader)

    def samples(self) -> list[MetricSample]:
        """All counters and gauges with their present values."""
        samples = self._counters.samples()
        for reader in tuple(self._gauge_readers):
            try:
                samples += [MetricSample(*gauge) for gauge in reader()]
            except Exception:  # noqa: BLE001, S112 - a gauge that cannot be read is absent, which is what its absence means
                continue
        return samples

    def __call__(self) -> bytes:
        """The metrics page."""
        return exposition(self.samples())


def exposition(
    samples: Iterable[MetricSample],
    families: Mapping[str, MetricFamily] = FAMILIES,
    *,
    with_process: bool = False,
) -> bytes:
    """Samples of these families in Prometheus' text format.

    `with_process` adds what `prometheus-client` knows of this process and its garbage collector.
    """
    from prometheus_client import (  # noqa: PLC0415 - 97 ms, needed only for a scrape
        CollectorRegistry,
        GCCollector,
        ProcessCollector,
        generate_latest,
    )

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SampleCollector(samples, families))
    if with_process:
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
    return generate_latest(registry)


class _SampleCollector:
    """Samples as `prometheus-client` collects them."""

    def __init__(
        self, samples: Iterable[MetricSample], families: Mapping[str, MetricFamily]
    ) -> None:
        self._families = families
        self._samples: dict[str, list[MetricSample]] = {}
        for sample in samples:
            self._samples.setdefault(sample.name, []).append(sample)

    def collect(self) -> Iterator[Any]:
        for name, family in self._families.items():
            if name in self._samples:
                yield _prometheus_family(family, self._samples[name])


def _prometheus_family(family: MetricFamily, samples: Iterable[MetricSample]) -> Any:
    from prometheus_client.core import (  # noqa: PLC0415 - as above
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if family.kind is MetricKind.HISTOGRAM:
        made = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for sample in samples:
            made.add_metric(sample.labels, *_cumulative_buckets(family, sample))
        return made
    kind = CounterMetricFamily if family.kind is MetricKind.COUNTER else GaugeMetricFamily
    simple = kind(family.name, family.help, labels=family.labels)
    for sample in samples:
        assert not isinstance(sample.value, list)
        simple.add_metric(sample.labels, sample.value)
    return simple


def _cumulative_buckets(
    family: MetricFamily, sample: MetricSample
) -> tuple[list[tuple[str, float]], float]:
    """The cumulative buckets of a histogram, and its sum."""
    assert isinstance(sample.value, list)
    *counts, total = sample.value
    bounds = [*(str(bound) for bound in family.buckets), "+Inf"]
    running, cumulative = 0.0, []
    for bound, count in zip(bounds, counts, strict=True):
        running += count
        cumulative.append((bound, running))
    return cumulative, total
