from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longwatch.work.solitude import Seat, Solitude


class Room:
    """Some engines of one process, and how often each was woken."""

    def __init__(self, count: int) -> None:
        self.woken = [0] * count
        self.solitude = Solitude()
        self.seats: list[Seat] = [
            self.solitude.sit(lambda number=number: self._wake(number))  # type: ignore[misc]
            for number in range(count)
        ]

    def _wake(self, number: int) -> None:
        self.woken[number] += 1


def test_an_engine_by_itself_is_alone() -> None:
    [only] = Room(1).seats
    assert only.occupy()
    assert only.ask()
    assert not only.hushed


def test_nobody_begins_anything_once_one_has_asked() -> None:
    asker, other = Room(2).seats
    assert asker.ask()
    assert (True, False) == (other.hushed, other.occupy())


def test_the_one_who_asked_waits_for_the_others_to_end_and_is_woken_then() -> None:
    room = Room(3)
    asker, busy, _ = room.seats
    busy.occupy()
    assert not asker.ask()
    busy.vacate()
    assert [1, 1, 1] == room.woken
    assert asker.ask()


def test_the_others_go_on_when_it_lets_go() -> None:
    room = Room(2)
    asker, other = room.seats
    asker.ask()
    asker.let_go()
    assert 1 == room.woken[1]
    assert other.occupy()


def test_the_second_who_asks_comes_after_the_first() -> None:
    first, second = Room(2).seats
    assert (True, False) == (first.ask(), second.ask())
    first.let_go()
    assert second.ask()


def test_letting_go_of_what_another_asked_for_changes_nothing() -> None:
    first, second = Room(2).seats
    first.ask()
    second.let_go()
    assert second.hushed


def test_one_who_leaves_stands_in_nobodys_way() -> None:
    room = Room(3)
    asker, busy, other = room.seats
    busy.occupy()
    asker.ask()
    busy.leave()
    assert asker.ask()
    asker.leave()
    assert other.occupy()


@given(
    moves=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["occupy", "vacate", "ask", "let_go"]))
    )
)
def test_the_process_is_never_granted_while_another_is_busy(moves: list[tuple[int, str]]) -> None:
    seats = Room(3).seats
    for number, move in moves:
        granted = getattr(seats[number], move)()
        others_busy = any(seat.busy for seat in seats if seat is not seats[number])
        assert not (move == "ask" and granted and others_busy)
