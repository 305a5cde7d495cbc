from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longwatch.runtime.idle_end import IDLE_SECONDS, MAX_START_SECONDS, IdleEnd
from longwatch.testing import FakeClock


@dataclass
class FakeLoop:
    held_count: int = 0
    has_reached_store: bool = True


def idle_end(clock: FakeClock, *loops: Any) -> IdleEnd:
    return IdleEnd(loops, clock)


def test_it_is_over_when_no_loop_has_held_a_row_for_a_while() -> None:
    clock, busy = FakeClock(), FakeLoop(held_count=1)
    end = idle_end(clock, FakeLoop(), busy)
    clock.advance(100.0)
    assert not end.is_over()
    busy.held_count = 0
    clock.advance(IDLE_SECONDS - 0.1)
    assert not end.is_over()
    clock.advance(0.2)
    assert end.is_over()


def test_a_store_that_is_not_reached_yet_delays_the_end_but_not_for_ever() -> None:
    clock, slow = FakeClock(), FakeLoop(has_reached_store=False)
    end = idle_end(clock, FakeLoop(), slow)
    clock.advance(IDLE_SECONDS + 1.0)
    assert not end.is_over()
    clock.advance(MAX_START_SECONDS)
    assert end.is_over()


def test_the_wait_begins_when_the_store_is_reached() -> None:
    clock, slow = FakeClock(), FakeLoop(has_reached_store=False)
    end = idle_end(clock, slow)
    clock.advance(10.0)
    assert not end.is_over()
    slow.has_reached_store = True
    clock.advance(IDLE_SECONDS / 2)
    assert not end.is_over()
    clock.advance(IDLE_SECONDS)
    assert end.is_over()
