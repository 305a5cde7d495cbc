"""Fair, capped claims over queues in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.engine.fair_claims import Cap, FairClaims, even_shares, free_capacity

TX: Any = None


class Queue(NamedTuple):
    number: int
    caps: tuple[Cap, ...] = ()


@dataclass
class Rows:
    """Rows that wait and rows that are leased, by queue."""

    waiting: dict[int, int]
    leased: dict[int, int] = field(default_factory=dict)
    locked: list[int] = field(default_factory=list)

    def lock_queues(self, tx: Any, numbers: Sequence[int]) -> None:
        self.locked += numbers

    def count_leased(self, tx: Any, number: int) -> int:
        return self.leased.get(number, 0)

    def take(self, queue: Queue, limit: int) -> list[int]:
        taken = min(limit, self.waiting.get(queue.number, 0))
        self.waiting[queue.number] = self.waiting.get(queue.number, 0) - taken
        self.leased[queue.number] = self.leased.get(queue.number, 0) + taken
        return [queue.number] * taken


def claim(fair: FairClaims, queues: Sequence[Queue], rows: Rows, limit: int, **how: Any) -> Any:
    return fair.claim(
        TX, fair.in_turn(queues), counts=rows, limit=limit, claim_from=rows.take, **how
    )


def test_queues_with_rows_are_claimed_from_in_turn_one_row_at_a_time() -> None:
    """Also if the queues between them are empty: those have no turn to lose."""
    rows = Rows({1: 1000, 2: 0, 3: 0, 4: 3, 5: 2})
    fair, queues = FairClaims(), [Queue(number) for number in range(1, 6)]
    order = [claim(fair, queues, rows, 1)[0] for _ in range(9)]
    assert [1, 4, 5, 1, 4, 5, 1, 4, 1] == order


def test_a_queue_that_a_cap_held_back_is_the_first_when_it_has_room_again() -> None:
    rows, fair = Rows({1: 5, 2: 5}, leased={1: 1}), FairClaims()
    queues = [Queue(1, (((1,), 1),)), Queue(2)]
    assert [2, 2] == [claim(fair, queues, rows, 1)[0] for _ in range(2)]
    rows.leased[1] = 0
    assert [1] == claim(fair, queues, rows, 1)


def test_the_first_queue_may_use_the_whole_limit_where_nothing_else_is_known() -> None:
    rows = Rows({1: 9, 2: 9})
    assert [1, 1, 1] == claim(FairClaims(), [Queue(1), Queue(2)], rows, 3)


def test_queues_share_a_limit_as_far_as_rows_wait() -> None:
    rows = Rows({1: 1000, 2: 1, 3: 2})
    claimed = claim(
        FairClaims(),
        [Queue(1), Queue(2), Queue(3)],
        rows,
        8,
        count_waiting=lambda queue: rows.waiting[queue.number],
    )
    assert [1, 1, 1, 1, 1, 2, 3, 3] == claimed


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_cap_over_several_queues_counts_the_rows_of_this_claim(*, is_shared: bool) -> None:
    rows = Rows({1: 9, 2: 9})
    both: Cap = ((1, 2), 3)
    counted = {"count_waiting": lambda queue: rows.waiting[queue.number]} if is_shared else {}
    queues = [Queue(1, (both,)), Queue(2, (both, ((2,), 1)))]
    assert 3 == len(claim(FairClaims(), queues, rows, 9, **counted))
    assert [] == claim(FairClaims(), queues, rows, 9, **counted)


def test_queues_are_locked_once_in_the_order_of_their_numbers() -> None:
    """Those without a cap are not locked."""
    rows = Rows({})
    both: Cap = ((2, 7), 3)
    queues = [Queue(9, (((9,), 1),)), Queue(7, (both, ((7,), 1))), Queue(2, (both,)), Queue(4)]
    claim(FairClaims(), queues, rows, 1)
    assert [2, 7, 9] == rows.locked


def test_free_capacity_is_the_least_of_all_caps() -> None:
    rows = Rows({}, leased={1: 2, 2: 1})
    queue = Queue(1, (((1, 2), 5), ((1,), 3)))
    assert (1, 1) == (free_capacity(TX, queue, 9, rows), free_capacity(TX, queue, 1, rows))


@given(st.integers(0, 50), st.lists(st.integers(-3, 20), max_size=8))
def test_shares_use_the_limit_and_differ_by_one_at_the_most(limit: int, rooms: list[int]) -> None:
    """Only a queue without room for more gets less than another one, but for the last row."""
    shares = even_shares(limit, rooms)
    wanted = [max(room, 0) for room in rooms]
    assert min(limit, sum(wanted)) == sum(shares)
    assert all(share <= room for share, room in zip(shares, wanted, strict=True))
    open_shares = [s for s, room in zip(shares, wanted, strict=True) if s < room]
    assert not open_shares or max(shares) <= min(open_shares) + 1
