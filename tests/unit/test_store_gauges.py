"""The gauges that a status reporter reads without waiting for a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from longwatch.engine.engine_loop import EngineLoop, Gauge
from longwatch.errors import StoreError, StoreUnreachableError
from longwatch.runtime.store_gauges import SAMPLE_SECONDS, StoreGauges, read_gauges
from longwatch.testing import FakeClock

TIMEOUT = 30.0


class Loop(EngineLoop):
    """A loop that is only asked for gauges."""

    def __init__(self, read: Callable[[], float], *, store: str = "store") -> None:
        super().__init__(name="nodes")
        self.read = read
        self.store = store
        self.asked = 0

    @property
    def store_identity(self) -> object:
        return self.store

    @property
    def _source(self) -> Any:
        raise AssertionError("not run here")

    def _make_runner(self, _: Any) -> Any:
        raise AssertionError("not run here")

    def _policy_for(self, *_: Any) -> Any:
        raise AssertionError("not run here")

    def store_gauges(self) -> list[Gauge]:
        self.asked += 1
        return [("ready", (self.store,), self.read())]


class LoopOfAnotherKind(Loop):
    """Another kind of loop: it reads other gauges of the same store."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def sampled(gauges: StoreGauges) -> list[Gauge]:
    """The sample that this call starts, once it was taken."""
    gauges.latest()
    if gauges._sampling is not None:
        assert gauges._sampling.done.block(TIMEOUT)
    return gauges.latest()


@contextmanager
def opened_at_end(gate: threading.Event) -> Iterator[None]:
    try:
        yield
    finally:
        gate.set()


def test_a_sample_is_kept_for_its_interval(clock: FakeClock) -> None:
    values = iter([1.0, 2.0])
    loop = Loop(lambda: next(values))
    gauges = StoreGauges(lambda: [loop], clock)
    assert [("ready", ("store",), 1.0)] == sampled(gauges)
    clock.advance(SAMPLE_SECONDS * 0.99)
    assert [("ready", ("store",), 1.0)] == sampled(gauges)
    clock.advance(SAMPLE_SECONDS * 0.02)
    assert [("ready", ("store",), 2.0)] == sampled(gauges)
    assert 2 == loop.asked


def test_a_slow_store_is_asked_less_often(clock: FakeClock) -> None:
    def count_slowly() -> float:
        clock.advance(2.0)
        return 1.0

    loop = Loop(count_slowly)
    gauges = StoreGauges(lambda: [loop], clock)
    sampled(gauges)
    clock.advance(39.0)
    sampled(gauges)
    assert 1 == loop.asked
    clock.advance(1.0)
    sampled(gauges)
    assert 2 == loop.asked


def test_a_store_that_hangs_delays_no_report_and_is_asked_once(clock: FakeClock) -> None:
    gate = threading.Event()

    def hang() -> float:
        assert gate.wait(TIMEOUT)
        return 1.0

    loop = Loop(hang)
    gauges = StoreGauges(lambda: [loop], clock)
    with opened_at_end(gate):
        assert [] == gauges.latest()
        clock.advance(100 * SAMPLE_SECONDS)
        assert [] == gauges.latest()
        assert 1 == loop.asked


def test_a_store_that_does_not_answer_has_no_gauges_and_takes_none_from_the_others(
    clock: FakeClock,
) -> None:
    def gone() -> float:
        raise StoreError("gone")

    values = {"a": lambda: 1.0, "b": lambda: 2.0}
    loops = [Loop(read, store=store) for store, read in values.items()]
    gauges = StoreGauges(lambda: loops, clock)
    assert [("ready", ("a",), 1.0), ("ready", ("b",), 2.0)] == sampled(gauges)
    loops[0].read = gone
    clock.advance(SAMPLE_SECONDS)
    assert [("ready", ("b",), 2.0)] == sampled(gauges)


def test_after_a_store_that_cannot_be_reached_the_rest_is_not_tried() -> None:
    asked: list[str] = []

    def read(name: str, error: Exception | None = None) -> list[Gauge]:
        asked.append(name)
        if error is not None:
            raise error
        return [("ready", (name,), 1.0)]

    reads = [
        lambda: read("a"),
        lambda: read("b", StoreError("refused")),
        lambda: read("c"),
        lambda: read("d", StoreUnreachableError("gone")),
        lambda: read("e"),
    ]
    assert [("ready", ("a",), 1.0), ("ready", ("c",), 1.0)] == read_gauges(reads)
    assert ["a", "b", "c", "d"] == asked


def test_of_the_loops_of_one_kind_and_one_store_one_is_asked(clock: FakeClock) -> None:
    loops = [Loop(lambda: 1.0), Loop(lambda: 1.0), LoopOfAnotherKind(lambda: 2.0)]
    assert [("ready", ("store",), 1.0), ("ready", ("store",), 2.0)] == sampled(
        StoreGauges(lambda: loops, clock)
    )
    assert 2 == sum(loop.asked for loop in loops)


def test_without_a_loop_that_runs_there_is_no_thread_and_no_old_sample(clock: FakeClock) -> None:
    loops = [Loop(lambda: 1.0)]
    gauges = StoreGauges(lambda: loops, clock)
    assert 1 == len(sampled(gauges))
    loops.clear()
    clock.advance(SAMPLE_SECONDS)
    before = threading.active_count()
    assert [] == gauges.latest()
    assert before == threading.active_count()
