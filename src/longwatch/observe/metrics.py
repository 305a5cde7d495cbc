"""Metrics of one process in the text format of Prometheus.

The text is one snapshot of our own counters, so all values are of one moment. It is written here:
`prometheus-client` takes five times as long for ten thousand series. That library is imported only
for the metrics of a runner's own process, at the first scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite, isnan

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
    found: dict[str, list[MetricSample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for name, family in families.items():
        if name in found:
            lines += _family_lines(family, found[name])
    text = "".join(lines).encode(errors="backslashreplace")
    return text + _process_metrics() if with_process else text


def _process_metrics() -> bytes:
    from prometheus_client import (  # noqa: PLC0415 - 97 ms, needed only for a scrape
        CollectorRegistry,
        GCCollector,
        ProcessCollector,
        generate_latest,
    )

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return generate_latest(registry)


def _family_lines(family: MetricFamily, samples: Iterable[MetricSample]) -> Iterator[str]:
    """The lines of one family. Labels are in the order of their names. A help text is one line
    without backslashes.
    """
    name = family.name
    yield f"# HELP {name} {family.help}\n# TYPE {name} {family.kind.value}\n"
    if family.kind is MetricKind.HISTOGRAM:
        bounds = [f'le="{bound}"' for bound in (*family.buckets, "+Inf")]
        for sample in samples:
            yield from _histogram_lines(family, bounds, sample)
        return
    for sample in samples:
        assert not isinstance(sample.value, list)
        yield f"{name}{_braced(sorted(_label_pairs(family, sample)))} {_number(sample.value)}\n"


def _histogram_lines(
    family: MetricFamily, bounds: Sequence[str], sample: MetricSample
) -> Iterator[str]:
    """The cumulative buckets of one series, its count and its sum."""
    assert isinstance(sample.value, list)
    *counts, total = sample.value
    pairs = sorted(_label_pairs(family, sample))
    before = "".join(f"{pair}," for pair in pairs if pair < "le=")
    after = "".join(f",{pair}" for pair in pairs if pair > "le=")
    count = 0.0
    for bound, added in zip(bounds, counts, strict=True):
        count += added
        yield f"{family.name}_bucket{{{before}{bound}{after}}} {_number(count)}\n"
    labels = _braced(pairs)
    yield f"{family.name}_count{labels} {_number(count)}\n"
    yield f"{family.name}_sum{labels} {_number(total)}\n"


def _label_pairs(family: MetricFamily, sample: MetricSample) -> list[str]:
    values = zip(family.labels, sample.labels, strict=True)
    return [f'{label}="{_escaped(value)}"' for label, value in values]


def _braced(pairs: Sequence[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """A number as Go reads it."""
    number = float(value)
    if isfinite(number):
        return repr(number)
    return "NaN" if isnan(number) else ("+Inf" if number > 0 else "-Inf")
