"""Reads that may take only so long."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from longwatch.core.clock import SystemClock
from longwatch.errors import StoreUnreachableError
from longwatch.host.timed_reads import TimedReads

TIMEOUT = 30.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a slow read waits for."""
    made = threading.Event()
    yield made
    made.set()


def timed(timeout: float) -> TimedReads[int]:
    return TimedReads(name="test-reads", timeout=timeout, clock=SystemClock())


def test_results_are_in_the_order_of_the_reads() -> None:
    assert [3, 1, 2] == timed(TIMEOUT).results({"c": lambda: 3, "a": lambda: 1, "b": lambda: 2})
    assert [] == timed(TIMEOUT).results({})


def test_a_late_read_is_left_out_and_not_waited_for_again_until_it_has_ended(
    gate: threading.Event,
) -> None:
    reads, asked, ended = timed(0.2), [], threading.Event()

    def slow() -> int:
        asked.append(1)
        gate.wait(TIMEOUT)
        ended.set()
        return 1

    assert [2] == reads.results({"slow": slow, "quick": lambda: 2})
    patient = timed(TIMEOUT)
    patient._late = reads._late
    assert [3] == patient.results({"slow": slow, "quick": lambda: 3})
    assert [1] == asked

    gate.set()
    assert ended.wait(TIMEOUT)
    assert patient._late["slow"].done.block(TIMEOUT)
    assert [1] == patient.results({"slow": slow})
    assert [1, 1] == asked


def test_a_read_of_a_store_that_is_gone_is_left_out() -> None:
    def gone() -> int:
        raise StoreUnreachableError("gone")

    assert [2] == timed(TIMEOUT).results({"gone": gone, "quick": lambda: 2})
