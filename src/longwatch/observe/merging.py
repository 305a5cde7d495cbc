"""The numbers of several processes as one: those of the living, and what the dead have counted."""

from __future__ import annotations

from collections.abc import Iterable

from longwatch.observe.catalogue import FAMILIES, Kind, Merge
from longwatch.observe.tally import Key, Sample

Value = float | list[float]


class Merged:
    """Keeps the last samples of each process; one that is gone leaves its counters, not its gauges. Not thread-safe."""

    def __init__(self) -> None:
        self._living: dict[int, list[Sample]] = {}
        self._left: dict[Key, Value] = {}

    def heard(self, process: int, samples: Iterable[Sample]) -> None:
        """What a process says now; unknown metrics are passed over."""
        self._living[process] = [sample for sample in samples if sample.name in FAMILIES]

    def gone(self, process: int) -> None:
        kept = [sample for sample in self._living.pop(process, ()) if FAMILIES[sample.name].kind is not Kind.GAUGE]
        for sample in kept:
            _add(self._left, sample)

    def samples(self) -> list[Sample]:
        """All of them together."""
        together = {key: _copied(value) for key, value in self._left.items()}
        for samples in self._living.values():
            for sample in samples:
                _add(together, sample)
        return [Sample(name, labels, value) for (name, labels), value in together.items()]


def _add(together: dict[Key, Value], sample: Sample) -> None:
    key = (sample.name, sample.labels)
    known = together.get(key)
    together[key] = _copied(sample.value) if known is None else _both(known, sample)


def _both(known: Value, sample: Sample) -> Value:
    if isinstance(known, list) and isinstance(sample.value, list):
        return [mine + theirs for mine, theirs in zip(known, sample.value, strict=True)]
    assert not isinstance(known, list)
    assert not isinstance(sample.value, list)
    family = FAMILIES[sample.name]
    if family.kind is Kind.COUNTER or family.merge is Merge.SUM:
        return known + sample.value
    return max(known, sample.value) if family.merge is Merge.MAX else sample.value


def _copied(value: Value) -> Value:
    return list(value) if isinstance(value, list) else value
