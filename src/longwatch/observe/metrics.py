"""Metrics of a process, as Prometheus reads them.

`prometheus-client` writes the exposition, over one snapshot of our own numbers, so that what
belongs together is from one moment. It is loaded when somebody scrapes: a worker whose parent
speaks for it never pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from longwatch.core.events import Event
from longwatch.observe.catalogue import FAMILIES, Family, Kind
from longwatch.observe.tally import Sample, Tally

Reading = Callable[[], Iterable[tuple[str, tuple[str, ...], float]]]
"""Gives gauges: the name, the values of its labels, and the number of each."""


class Metrics:
    """Counts the events it is given, and writes what it counted, and what its readings say, in
    Prometheus' text format.

    `LoopGroup(…, metrics=Metrics())` does all that is needed: the group gives it its events and its
    readings.
    """

    def __init__(self) -> None:
        self._tally = Tally()
        self._readings: list[Reading] = []

    def observe(self, event: Event) -> None:
        self._tally(event)

    def read(self, reading: Reading) -> Callable[[], None]:
        """Have these gauges read at each scrape; returns what ends that. One that raises is
        passed over.
        """
        self._readings.append(reading)
        return lambda: self._readings.remove(reading)

    def samples(self) -> list[Sample]:
        """Everything, as it is now."""
        found = self._tally.samples()
        for reading in tuple(self._readings):
            try:
                found += [Sample(*gauge) for gauge in reading()]
            except Exception:  # noqa: BLE001, S112 - a gauge that cannot be read is absent, which is what its absence means
                continue
        return found

    def __call__(self) -> bytes:
        """The exposition."""
        return exposition(self.samples())


def exposition(samples: Iterable[Sample]) -> bytes:
    """Samples in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - 97 ms that only who is scraped pays

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(samples))
    return generate_latest(registry)


class _Collected:
    """Samples as `prometheus-client` collects them."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples: dict[str, list[Sample]] = {}
        for sample in samples:
            self._samples.setdefault(sample.name, []).append(sample)

    def collect(self) -> Iterator[Any]:
        for name, family in FAMILIES.items():
            if name in self._samples:
                yield _family(family, self._samples[name])


def _family(family: Family, samples: Iterable[Sample]) -> Any:
    from prometheus_client.core import (  # noqa: PLC0415 - as above
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if family.kind is Kind.HISTOGRAM:
        made = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for sample in samples:
            made.add_metric(sample.labels, *_buckets(family, sample))
        return made
    kind = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    simple = kind(family.name, family.help, labels=family.labels)
    for sample in samples:
        assert not isinstance(sample.value, list)
        simple.add_metric(sample.labels, sample.value)
    return simple


def _buckets(family: Family, sample: Sample) -> tuple[list[tuple[str, float]], float]:
    """Cumulative, as Prometheus has them, and the sum."""
    assert isinstance(sample.value, list)
    *counts, total = sample.value
    bounds = [*(str(bound) for bound in family.buckets), "+Inf"]
    running, cumulative = 0.0, []
    for bound, count in zip(bounds, counts, strict=True):
        running += count
        cumulative.append((bound, running))
    return cumulative, total
