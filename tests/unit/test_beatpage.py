from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.host.beatpage import BeatPage, BeatReading, SlotState, read_page, remove_page

ROWS = st.integers(min_value=1, max_value=2**62)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[BeatPage]:
    made = BeatPage(tmp_path / "page", 3)
    yield made
    made.close()


def reading(page: BeatPage) -> BeatReading:
    found = read_page(str(page.path))
    assert found is not None
    return found


def test_a_new_page_says_that_nothing_is_done(page: BeatPage) -> None:
    assert BeatReading(0.0, False, 0.0, (SlotState(0.0, 0, 0.0),) * 3) == reading(page)


def test_it_is_for_its_owner_alone(page: BeatPage) -> None:
    assert 0o600 == stat.S_IMODE(page.path.stat().st_mode)


def test_a_slot_tells_its_row_and_its_beats(page: BeatPage) -> None:
    page.begin(1, 77, 10.0)
    page.beat(1, 12.5)
    assert SlotState(12.5, 77, 10.0) == reading(page).slots[1]
    assert frozenset({77}) == reading(page).started


def test_a_row_that_was_settled_is_not_started_any_more(page: BeatPage) -> None:
    page.begin(0, 5, 1.0)
    page.end(0)
    assert frozenset() == reading(page).started


def test_it_tells_how_long_leases_are_trusted(page: BeatPage) -> None:
    page.trust_until(123.25)
    assert 123.25 == reading(page).trusted_until


def test_it_tells_that_its_process_is_draining(page: BeatPage) -> None:
    page.start_draining()
    assert reading(page).draining


@given(st.lists(st.tuples(st.integers(0, 7), st.none() | ROWS), max_size=40))
def test_exactly_the_rows_that_were_begun_and_not_ended_are_started(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[int, int | None]]
) -> None:
    page = BeatPage(tmp_path_factory.mktemp("pages") / "page", 8)
    expected: dict[int, int] = {}
    for slot, row in acts:
        if row is None:
            page.end(slot)
            expected.pop(slot, None)
        else:
            page.begin(slot, row, 1.0)
            expected[slot] = row
    assert frozenset(expected.values()) == reading(page).started
    page.close()


def test_closing_removes_it(page: BeatPage) -> None:
    page.close()
    assert not page.path.exists()
    assert read_page(str(page.path)) is None


def test_a_page_that_is_there_is_not_overwritten(page: BeatPage) -> None:
    page.begin(0, 9, 1.0)
    with pytest.raises(FileExistsError):
        BeatPage(page.path, 1)
    assert frozenset({9}) == reading(page).started


@pytest.mark.parametrize("size", [0, 1, 8, 31])
def test_a_page_cut_short_is_no_page(page: BeatPage, tmp_path: Path, size: int) -> None:
    part = tmp_path / "part"
    part.write_bytes(page.path.read_bytes()[:size])
    assert read_page(str(part)) is None


def test_a_page_that_claims_more_slots_than_it_has_is_no_page(page: BeatPage, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(page.path.read_bytes()[:-1])
    assert read_page(str(part)) is None


@given(st.binary(max_size=200))
def test_any_other_file_is_no_page(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("pages") / "page"
    path.write_bytes(data)
    assert read_page(str(path)) is None


def test_neither_is_a_directory(tmp_path: Path) -> None:
    assert read_page(str(tmp_path)) is None


def test_the_page_of_somebody_who_is_gone_can_be_removed(page: BeatPage) -> None:
    remove_page(str(page.path))
    assert not page.path.exists()


def test_removing_a_page_touches_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("not a page")
    remove_page(str(path))
    assert "not a page" == path.read_text()
