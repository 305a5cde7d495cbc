from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.sanitize import (
    escape_surrogates,
    is_storable,
    printable,
    sanitize,
    shorten,
)

any_text = st.text(st.characters(codec=None))


@given(text=any_text, max_length=st.integers(1, 50))
def test_a_sanitized_text_is_short_and_every_store_takes_it(text: str, max_length: int) -> None:
    kept = sanitize(text, max_length=max_length)

    assert len(kept) <= max_length
    assert is_storable(kept)


@given(text=any_text)
def test_a_text_that_every_store_takes_is_kept_as_it_is(text: str) -> None:
    assert is_storable(text) == (text == sanitize(text, max_length=1000) or len(text) > 1000)


@pytest.mark.parametrize(
    ("text", "kept"),
    [("a\0b", "a\\x00b"), ("a\udcffb", "a\\udcffb"), ("line\nline", "line\nline")],
)
def test_what_no_store_takes_is_written_out(text: str, kept: str) -> None:
    assert kept == sanitize(text, max_length=100)


@given(text=any_text)
def test_without_surrogates_a_text_can_be_encoded_and_keeps_its_zero_bytes(text: str) -> None:
    escaped = escape_surrogates(text)

    assert escaped == escaped.encode().decode()
    assert text.count("\0") == escaped.count("\0")


@given(text=any_text, max_chars=st.none() | st.integers(1, 50))
def test_a_printable_text_is_one_bounded_line(text: str, max_chars: int | None) -> None:
    line = printable(text, max_chars=max_chars)

    assert line.isprintable()
    assert max_chars is None or len(line) <= max_chars


@pytest.mark.parametrize(
    ("text", "max_chars", "line"),
    [
        ("two\nlines", None, "two\\nlines"),
        ("\x1b[31mred", None, "\\x1b[31mred"),
        ("é – ok", None, "é – ok"),
        ("12345", 5, "12345"),
        ("123456", 5, "1234…"),
        ("1234\n", 5, "1234…"),
    ],
)
def test_control_characters_are_escaped_and_a_long_line_is_cut(
    text: str, max_chars: int | None, line: str
) -> None:
    assert line == printable(text, max_chars=max_chars)


def test_a_shortened_text_says_how_much_is_missing() -> None:
    assert ("abc", "ab… (1 more characters)") == (shorten("abc", 3), shorten("abc", 2))
