"""Tables as people and scripts get them."""

from __future__ import annotations

import sys

import pytest

from longwatch.cli.output import table, text_width

ID = "988735443b83307e988735443b83307e"
HEAD = ("id", "reason", "deliveries", "error")
LONG = "ValueError: " + "the page has no title " * 8 + "(line 12)"


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def test_a_script_gets_every_character_of_a_wide_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    head, row = table(HEAD, [(ID, "exhausted", 3, LONG)])
    assert row == f"{ID}  exhausted           3  {LONG}"
    assert ["id", "reason", "deliveries", "error"] == head.split()


@pytest.mark.usefixtures("_terminal")
def test_a_table_that_fits_the_terminal_is_not_changed() -> None:
    assert ["id  error", " 1  no title"] == table(("id", "error"), [(1, "no title")])


@pytest.mark.usefixtures("_terminal")
def test_a_terminal_gets_the_widest_text_with_an_ellipsis_and_the_whole_id() -> None:
    head, row = table(HEAD, [(ID, "exhausted", 3, LONG)])
    assert row.startswith(f"{ID}  exhausted           3  ValueError")
    assert row.endswith("line 12)")
    assert "…" in row
    assert 80 == text_width(row)
    assert ["id", "reason", "deliveries", "error"] == head.split()


@pytest.mark.usefixtures("_terminal")
def test_columns_without_room_are_below_their_row_without_empty_ones() -> None:
    head = ("id", "reason", "died at", "deliveries", "failures", "lost", "error")
    lines = table(
        head,
        [
            (ID, "exhausted", "2026-03-01T12:00:00Z", 3, 2, 0, LONG),
            (ID, "rejected", "2026-03-01T12:00:00Z", 1, 0, 0, ""),
        ],
    )
    names, first, first_counts, first_error, second, second_counts = lines
    assert ["id", "reason", "died", "at", "deliveries"] == names.split()
    assert first.startswith(f"{ID}  exhausted  ")
    assert second.startswith(f"{ID}  rejected   ")
    assert "failures 2; lost 0" in first_counts
    assert second_counts.endswith("failures 0; lost 0")
    assert first_error.startswith("  error ValueError: the page")
    assert first_error.endswith("…")
    assert all(text_width(line) <= 80 for line in lines)


@pytest.mark.usefixtures("_terminal")
def test_characters_of_two_columns_count_as_two() -> None:
    [_, row] = table(("id", "title"), [("1", "東" * 60)])
    assert 79 <= text_width(row) <= 80
