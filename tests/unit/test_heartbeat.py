from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.fake_clock import FakeClock
from longwatch.core.heartbeat import Heartbeat


def test_until_the_first_beat_time_counts_from_construction() -> None:
    clock = FakeClock()
    heartbeat = Heartbeat(clock)
    clock.advance(7)

    assert (7, None) == (heartbeat.elapsed(), heartbeat.progress)


def test_a_beat_starts_the_count_anew() -> None:
    clock = FakeClock()
    heartbeat = Heartbeat(clock)
    clock.advance(7)
    heartbeat.beat()
    clock.advance(2)

    assert 2 == heartbeat.elapsed()


def test_a_beat_without_progress_says_nothing_about_progress() -> None:
    clock = FakeClock()
    heartbeat = Heartbeat(clock)
    heartbeat.beat(0.25)
    clock.advance(30)
    heartbeat.beat()
    clock.advance(1)

    assert (1, 0.25) == (heartbeat.elapsed(), heartbeat.progress)


def test_a_progress_of_zero_or_nothing_yet_is_progress_too() -> None:
    clock = FakeClock()
    heartbeat = Heartbeat(clock)
    clock.advance(5)
    heartbeat.beat(0)

    assert 0 == heartbeat.progress


@given(steps=st.lists(st.tuples(st.integers(0, 100), st.sampled_from([None, 1, "half"]))))
def test_every_beat_is_young_and_the_last_progress_stays(steps: list[tuple[int, object]]) -> None:
    clock = FakeClock()
    heartbeat = Heartbeat(clock)
    for seconds, progress in steps:
        clock.advance(seconds)
        heartbeat.beat(progress)
        assert 0 == heartbeat.elapsed()

    reported = [progress for _, progress in steps if progress is not None]
    assert [heartbeat.progress] == (reported or [None])[-1:]


def test_without_a_clock_it_beats_in_real_time() -> None:
    heartbeat = Heartbeat()
    first = heartbeat.elapsed()

    assert 0 <= first <= heartbeat.elapsed()


def test_an_age_read_while_another_thread_beats_is_never_negative() -> None:
    heartbeat = Heartbeat()
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            heartbeat.beat(1)

    thread = threading.Thread(target=hammer)
    thread.start()
    youngest = min(heartbeat.elapsed() for _ in range(20_000))
    stop.set()
    thread.join()

    assert 0 <= youngest
