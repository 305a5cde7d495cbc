"""The numbers of several processes as one: those of the living, and what the dead have counted."""

from __future__ import annotations

from collections.abc import Iterable

from longwatch.observe.catalogue import FAMILIES, Kind, Merge
from longwatch.observe.tally import Key, Sample

Value = float | list[float]


LATELY = 64
"""Of so many that are gone the last word may still be on its way."""


class Merged:
    """Keeps the last samples of each process, by a number that no other has had. Not thread-safe.

    One that is gone leaves its counters, not its gauges. The news of its end may come before its
    last word.
    """

    def __init__(self) -> None:
        self._living: dict[int, list[Sample]] = {}
        self._gone: dict[int, list[Sample]] = {}
        self._left: dict[Key, Value] = {}

    def heard(self, process: int, samples: Iterable[Sample]) -> None:
        """What a process says now; unknown metrics are passed over."""
        known = [sample for sample in samples if sample.name in FAMILIES]
        if process in self._gone:
            self._gone[process] = _without_gauges(known)
        else:
            self._living[process] = known

    def gone(self, process: int) -> None:
        if process not in self._gone:
            self._gone[process] = _without_gauges(self._living.pop(process, ()))
        if len(self._gone) > LATELY:
            for sample in self._gone.pop(next(iter(self._gone))):
                _add(self._left, sample)

    def samples(self) -> list[Sample]:
        """All of them together."""
        together = {key: _copied(value) for key, value in self._left.items()}
        for samples in (*self._gone.values(), *self._living.values()):
            for sample in samples:
                _add(together, sample)
        return [Sample(name, labels, value) for (name, labels), value in together.items()]


def _without_gauges(samples: Iterable[Sample]) -> list[Sample]:
    return [sample for sample in samples if FAMILIES[sample.name].kind is not Kind.GAUGE]


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
