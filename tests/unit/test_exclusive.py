from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longwatch.engine.exclusive import ExclusiveLock, ExclusiveLockHandle


class Engines:
    """Some engines of one process, and how often each was woken."""

    def __init__(self, count: int) -> None:
        self.woken = [0] * count
        self.exclusive_lock = ExclusiveLock()
        self.seats: list[ExclusiveLockHandle] = [
            self.exclusive_lock.register(lambda number=number: self._wake(number))  # type: ignore[misc]
            for number in range(count)
        ]

    def _wake(self, number: int) -> None:
        self.woken[number] += 1


def test_an_engine_by_itself_is_alone() -> None:
    [only] = Engines(1).seats
    assert only.acquire_shared()
    assert only.request_exclusive()
    assert not only.is_blocked


def test_nobody_begins_anything_once_one_has_asked() -> None:
    asker, other = Engines(2).seats
    assert asker.request_exclusive()
    assert (True, False) == (other.is_blocked, other.acquire_shared())


def test_the_one_who_asked_waits_for_the_others_to_end_and_is_woken_then() -> None:
    room = Engines(3)
    asker, busy, _ = room.seats
    busy.acquire_shared()
    assert not asker.request_exclusive()
    busy.release_shared()
    assert [1, 1, 1] == room.woken
    assert asker.request_exclusive()


def test_the_others_go_on_when_it_lets_go() -> None:
    room = Engines(2)
    asker, other = room.seats
    asker.request_exclusive()
    asker.release_exclusive()
    assert 1 == room.woken[1]
    assert other.acquire_shared()


def test_the_second_who_asks_comes_after_the_first() -> None:
    first, second = Engines(2).seats
    assert (True, False) == (first.request_exclusive(), second.request_exclusive())
    first.release_exclusive()
    assert second.request_exclusive()


def test_letting_go_of_what_another_asked_for_changes_nothing() -> None:
    first, second = Engines(2).seats
    first.request_exclusive()
    second.release_exclusive()
    assert second.is_blocked


def test_one_who_leaves_stands_in_nobodys_way() -> None:
    room = Engines(3)
    asker, busy, other = room.seats
    busy.acquire_shared()
    asker.request_exclusive()
    busy.unregister()
    assert asker.request_exclusive()
    asker.unregister()
    assert other.acquire_shared()


@given(
    moves=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(
                ["acquire_shared", "release_shared", "request_exclusive", "release_exclusive"]
            ),
        )
    )
)
def test_the_process_is_never_granted_while_another_is_busy(moves: list[tuple[int, str]]) -> None:
    seats = Engines(3).seats
    for number, move in moves:
        granted = getattr(seats[number], move)()
        others_busy = any(seat.holds_shared for seat in seats if seat is not seats[number])
        assert not (move == "request_exclusive" and granted and others_busy)
