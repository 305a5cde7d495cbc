from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.host.beatpage import (
    BeatPage,
    BeatSnapshot,
    ChildBeatPage,
    SlotState,
    read_page,
    remove_page,
)

Result = TypeVar("Result")
ROWS = st.integers(min_value=1, max_value=2**62)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[BeatPage]:
    made = BeatPage(tmp_path / "page", 3)
    yield made
    made.close()


@pytest.fixture
def foreign(page: BeatPage) -> Iterator[ChildBeatPage]:
    opened = ChildBeatPage(str(page.path))
    yield opened
    opened.close()


def reading(page: BeatPage) -> BeatSnapshot:
    found = read_page(str(page.path))
    assert found is not None
    return found


def test_a_new_page_says_that_nothing_is_done(page: BeatPage) -> None:
    assert BeatSnapshot(0.0, False, 0.0, (SlotState(0.0, 0, 0.0),) * 3) == reading(page)


def test_it_says_how_many_rows_were_completed(page: BeatPage) -> None:
    page.record_completed(3)
    assert 3 == reading(page).completed


def test_it_is_for_its_owner_alone(page: BeatPage) -> None:
    assert 0o600 == stat.S_IMODE(page.path.stat().st_mode)


def test_a_slot_tells_its_row_and_its_beats(page: BeatPage) -> None:
    page.begin(1, 77, 10.0)
    page.beat(1, 12.5)
    assert SlotState(12.5, 77, 10.0) == reading(page).slots[1]
    assert frozenset({77}) == reading(page).running_rows


def test_a_row_that_was_settled_is_not_started_any_more(page: BeatPage) -> None:
    page.begin(0, 5, 1.0)
    page.end(0)
    assert frozenset() == reading(page).running_rows


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
    assert frozenset(expected.values()) == reading(page).running_rows
    page.close()


def test_closing_removes_it(page: BeatPage) -> None:
    page.close()
    assert not page.path.exists()
    assert read_page(str(page.path)) is None


def test_a_page_that_is_there_is_not_overwritten(page: BeatPage) -> None:
    page.begin(0, 9, 1.0)
    with pytest.raises(FileExistsError):
        BeatPage(page.path, 1)
    assert frozenset({9}) == reading(page).running_rows


@pytest.mark.parametrize("size", [0, 1, 8, 31])
def test_a_page_cut_short_is_no_page(page: BeatPage, tmp_path: Path, size: int) -> None:
    part = tmp_path / "part"
    part.write_bytes(page.path.read_bytes()[:size])
    assert read_page(str(part)) is None


def test_a_page_that_claims_more_slots_than_it_has_is_no_page(
    page: BeatPage, tmp_path: Path
) -> None:
    part = tmp_path / "part"
    part.write_bytes(page.path.read_bytes()[:-1])
    assert read_page(str(part)) is None


@given(st.binary(max_size=200))
def test_any_other_file_is_no_page(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("pages") / "page"
    path.write_bytes(data)
    assert read_page(str(path)) is None


# --- a path that anything may have written into the database ---


def copied_page(page: BeatPage, path: Path) -> Path:
    path.write_bytes(page.path.read_bytes())
    return path


def linked_page(page: BeatPage, path: Path) -> Path:
    path.symlink_to(page.path)
    return path


def foreign_page(page: BeatPage, path: Path) -> Path:
    try:
        os.chown(copied_page(page, path), os.geteuid() + 1, -1)
    except PermissionError:
        pytest.skip("only root can give a file to another user")
    return path


def huge_page(page: BeatPage, path: Path) -> Path:
    """A page with a hole behind it: it takes no space on the disk, but would in memory."""
    os.truncate(copied_page(page, path), 1 << 33)
    return path


def fifo(_: BeatPage, path: Path) -> Path:
    os.mkfifo(path)
    return path


def listening_socket(_: BeatPage, path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


NOT_PAGES: dict[str, Callable[[BeatPage, Path], str | Path]] = {
    "directory": lambda _, path: path.parent,
    "symlink": linked_page,
    "fifo": fifo,
    "socket": listening_socket,
    "endless device": lambda _, __: "/dev/zero",
    "terminal": lambda _, __: "/dev/tty",
    "foreign owner": foreign_page,
    "huge file": huge_page,
    "no path": lambda _, __: "",
    "path with a null byte": lambda _, path: f"{path}\0",
}


@pytest.fixture(params=NOT_PAGES.values(), ids=list(NOT_PAGES))
def no_page(request: pytest.FixtureRequest, page: BeatPage, tmp_path: Path) -> str:
    return str(request.param(page, tmp_path / "page of a database"))


def in_time(read: Callable[[], Result]) -> Result:
    """The result of a call that must not block."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(read()), daemon=True)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive()
    [result] = results
    return result


def test_what_is_not_a_small_file_of_this_user_is_no_page(no_page: str) -> None:
    """A reader neither waits for such a path, nor follows it, nor reads it into memory."""
    assert in_time(lambda: read_page(no_page)) is None


def test_what_is_not_a_small_file_of_this_user_is_not_removed(no_page: str) -> None:
    def exists() -> bool:
        return "\0" in no_page or not no_page or os.path.lexists(no_page)

    existed = exists()
    in_time(lambda: remove_page(no_page))
    assert existed == exists()


def test_what_is_not_a_small_file_of_this_user_is_no_page_of_a_child(no_page: str) -> None:
    def attempt() -> str:
        with pytest.raises((OSError, ValueError)) as caught:
            ChildBeatPage(no_page)
        return str(caught.value)

    assert in_time(attempt)


def test_the_page_of_somebody_who_is_gone_can_be_removed(page: BeatPage) -> None:
    remove_page(str(page.path))
    assert not page.path.exists()


def test_removing_a_page_touches_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("not a page")
    remove_page(str(path))
    assert "not a page" == path.read_text()


# --- the engine's own beat, and silence ---


def test_the_engine_beats_beside_its_slots(page: BeatPage) -> None:
    page.begin(1, 77, 10.0)
    page.beat_engine(12.5)
    assert (12.5, SlotState(10.0, 77, 10.0)) == (reading(page).beat_at, reading(page).slots[1])


def test_a_drain_that_was_ended_is_no_drain(page: BeatPage) -> None:
    page.start_draining()
    page.end_draining()
    assert not reading(page).draining


def test_silent_are_the_rows_whose_slot_has_not_beaten_for_so_long(page: BeatPage) -> None:
    page.begin(0, 5, 100.0)
    page.begin(1, 6, 100.0)
    page.beat(1, 150.0)
    page.begin(2, 7, 100.0)
    page.end(2)
    assert {5: 60.5} == reading(page).stalled_rows(160.5, older_than=60.0)
    assert {} == reading(page).stalled_rows(160.0, older_than=60.0)
    assert {5: 110.5, 6: 60.5} == reading(page).stalled_rows(210.5, older_than=60.0)


def test_a_row_that_the_engine_declares_silent_still_runs(page: BeatPage) -> None:
    """A silent row is among the running and among the stalled rows, until its slot ends it or
    begins another.
    """
    page.begin(0, 5, 100.0)
    page.begin(1, 6, 100.0)
    for _ in range(2):
        page.mark_silent(0)
        assert frozenset({5, 6}) == reading(page).running_rows
        assert frozenset({5}) == reading(page).silent_rows
    assert SlotState(100.0, 5, 100.0, is_silent=True) == reading(page).slots[0]
    assert {5, 6} == reading(page).stalled_rows(161.0, older_than=60.0).keys()

    page.end(0)
    assert frozenset() == reading(page).silent_rows
    page.mark_silent(0)
    page.begin(0, 7, 200.0)
    assert (frozenset({6, 7}), frozenset()) == (
        reading(page).running_rows,
        reading(page).silent_rows,
    )


def test_zero_stands_for_the_engine_itself_once_it_has_beaten(page: BeatPage) -> None:
    assert {} == reading(page).stalled_rows(1000.0, older_than=60.0)
    page.beat_engine(100.0)
    page.begin(0, 5, 150.0)
    assert {0: 61.0} == reading(page).stalled_rows(161.0, older_than=60.0)


# --- the page of another process ---


def test_whoever_keeps_the_leases_sees_every_change(page: BeatPage, foreign: ChildBeatPage) -> None:
    page.begin(1, 77, 10.0)
    page.beat_engine(11.0)
    page.start_draining()
    assert reading(page) == foreign.read()
    page.end(1)
    assert frozenset() == foreign.read().running_rows


def test_what_it_writes_is_there_at_once(page: BeatPage, foreign: ChildBeatPage) -> None:
    foreign.trust_until(123.25)
    assert (123.25, 123.25) == (page.trusted_until, reading(page).trusted_until)


def test_it_never_shortens_what_the_process_knows_itself(
    page: BeatPage, foreign: ChildBeatPage
) -> None:
    page.trust_until(200.0)
    foreign.trust_until(123.25)
    assert 200.0 == page.trusted_until


def test_of_a_process_that_is_gone_only_those_are_started_that_are_to_blame(
    page: BeatPage, foreign: ChildBeatPage
) -> None:
    for slot, row in enumerate((5, 6, 7)):
        page.begin(slot, row, 1.0)
    foreign.blame_only({6, 99})
    assert frozenset({6}) == reading(page).running_rows
    foreign.blame_only(())
    assert frozenset() == reading(page).running_rows


def test_a_silent_row_that_is_to_blame_stays_on_the_page_as_silent(
    page: BeatPage, foreign: ChildBeatPage
) -> None:
    page.begin(0, 5, 1.0)
    page.begin(1, 6, 1.0)
    page.mark_silent(0)
    page.mark_silent(1)
    foreign.blame_only({6})
    assert frozenset({6}) == foreign.read().silent_rows == foreign.read().running_rows


@pytest.mark.parametrize(("rows", "draining"), [({5}, False), (set(), True)])
def test_a_drain_excuses_everybody_but_those_to_blame(
    page: BeatPage, foreign: ChildBeatPage, rows: set[int], *, draining: bool
) -> None:
    page.begin(0, 5, 1.0)
    page.start_draining()
    foreign.blame_only(rows)
    assert (draining, rows) == (reading(page).draining, set(reading(page).running_rows))


def test_blame_stays_after_the_page_is_let_go_of(page: BeatPage) -> None:
    page.begin(0, 5, 1.0)
    page.begin(1, 6, 1.0)
    opened = ChildBeatPage(str(page.path))
    opened.blame_only({6})
    opened.close()
    assert frozenset({6}) == reading(page).running_rows


def test_a_page_that_its_process_has_removed_can_still_be_written_to(
    page: BeatPage, foreign: ChildBeatPage
) -> None:
    page.path.unlink()
    foreign.trust_until(5.0)
    assert 5.0 == foreign.read().trusted_until


def test_no_page_no_keeping(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ChildBeatPage(str(tmp_path / "none"))


@pytest.mark.parametrize("data", [b"", b"not a page" * 10, b"LWBEAT02" + bytes(100)])
def test_what_is_no_page_is_refused_and_left_as_it_is(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "letter"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is not a beat page"):
        ChildBeatPage(str(path))
    assert data == path.read_bytes()


def test_a_page_that_was_cut_short_shows_nothing_and_takes_nothing(page: BeatPage) -> None:
    """Its owner may do that to us; a mapping of it would end this process with SIGBUS."""
    foreign = ChildBeatPage(str(page.path))
    os.truncate(page.path, 0)
    assert BeatSnapshot(0.0, draining=False, beat_at=0.0, slots=()) == foreign.read()
    foreign.blame_only({1})
    foreign.close()
    foreign.trust_until(5.0)
