"""Which counter of a row rises when its owner is gone or late, and which rows are suspects."""

from __future__ import annotations

import pytest

from longwatch.host.beatpage import BeatSnapshot, SlotState
from longwatch.store.blame import Blame, BlameBudget, OwnerEnd

RUNNING, PREFETCHED = 7, 8


def page(*, draining: bool = False) -> BeatSnapshot:
    """A page whose one slot runs row 7."""
    return BeatSnapshot(0.0, draining, 1.0, (SlotState(1.0, RUNNING, 1.0),))


@pytest.mark.parametrize(
    ("end", "running", "prefetched"),
    [
        pytest.param(
            OwnerEnd(has_page=True, page=page()), Blame.CRASH, Blame.RELEASE, id="it ended"
        ),
        pytest.param(
            OwnerEnd(has_page=True, page=page(), is_parent_dead=True),
            Blame.LOST,
            Blame.RELEASE,
            id="it ended with its parent",
        ),
        pytest.param(
            OwnerEnd(has_page=True, page=page(draining=True)),
            Blame.RELEASE,
            Blame.RELEASE,
            id="its page says that it drains",
        ),
        pytest.param(
            OwnerEnd(has_page=True, page=page(), is_alive=True),
            Blame.RELEASE,
            Blame.RELEASE,
            id="it lives and its slots are not silent",
        ),
        pytest.param(OwnerEnd(has_page=True), Blame.LOST, Blame.LOST, id="its page cannot be read"),
        pytest.param(
            OwnerEnd(has_page=True, is_draining=True),
            Blame.RELEASE,
            Blame.RELEASE,
            id="its page cannot be read and it had reported that it drains",
        ),
        pytest.param(
            OwnerEnd(has_page=True, is_alive=True),
            Blame.RELEASE,
            Blame.RELEASE,
            id="its page was removed though it lives",
        ),
        pytest.param(
            OwnerEnd(has_page=True, page=page(), is_of_another_boot=True),
            Blame.LOST,
            Blame.LOST,
            id="its machine ended",
        ),
        pytest.param(OwnerEnd(has_page=False), Blame.CRASH, Blame.CRASH, id="a bare receive"),
        pytest.param(
            OwnerEnd(has_page=False, is_of_another_boot=True),
            Blame.LOST,
            Blame.LOST,
            id="a bare receive whose machine ended",
        ),
    ],
)
def test_a_row_is_blamed_by_what_is_known_of_its_owner(
    end: OwnerEnd, running: Blame, prefetched: Blame
) -> None:
    """Only a row that ran when its process ended alone has crashed; a row that had not begun is
    released whenever that can be known.
    """
    assert (running, prefetched) == (end.blame(RUNNING), end.blame(PREFETCHED))


@pytest.mark.parametrize(
    ("crashes", "lost", "is_suspect"),
    [
        (0, 0, False),
        (1, 0, False),
        (2, 0, True),
        (3, 0, True),
        (0, 1, False),
        (0, 3, False),
        (0, 4, True),
        (1, 3, False),
        (1, 4, True),
    ],
)
def test_a_row_is_a_suspect_from_its_last_chance_on(
    crashes: int,
    lost: int,
    is_suspect: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    """One crash of three, or three losses of five, are accidents; one short of the budget is a
    suspect.
    """
    assert is_suspect is BlameBudget().is_suspect(crashes=crashes, lost=lost)


def test_a_budget_of_one_has_no_suspects() -> None:
    """The first crash gives the row up, so no row waits for a process of its own."""
    budget = BlameBudget(max_crashes=1, max_lost=1)
    assert not budget.is_suspect(crashes=0, lost=0)
    assert budget.is_spent(crashes=1, lost=0)
    assert budget.is_spent(crashes=0, lost=1)
