from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.sanitize import (
    escape_surrogates,
    is_storable,
    printable,
    printable_lines,
    sanitize,
    shorten,
    terminal_line,
    terminal_text,
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


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain\ttext", b"plain\ttext"),
        ("wörter \u3000 👩\u200d💻".encode(), "wörter \u3000 👩\u200d💻".encode()),
        (b"\x1b[2J\x1b]0;title\x07", b"\\x1b[2J\\x1b]0;title\\x07"),
        (b"bell\x07 back\x08 del\x7f nul\x00", b"bell\\x07 back\\x08 del\\x7f nul\\x00"),
        ("c1 \x9b2J".encode(), b"c1 \\x9b2J"),
        (b"wrong byte \x9b2J", b"wrong byte \\x9b2J"),
        ("sep\u2028\u2029 bidi\u202e\u2066".encode(), b"sep\\u2028\\u2029 bidi\\u202e\\u2066"),
        (b"\x1b[1;31mred", b"\x1b[1;31mred\x1b[0m"),
        (b"\x1b[38:5:208mhot\x1b[0m cold", b"\x1b[38:5:208mhot\x1b[0m cold\x1b[0m"),
        (b"\x1b[31;\x1b[31K", b"\\x1b[31;\\x1b[31K"),
        (b"windows\r", b"windows"),
        (b" 10%\r 50%\r100%", b"100%"),
        (b" 10%\r 50%\r100%\r", b"100%"),
        (b"\r", b""),
    ],
)
def test_a_line_of_a_program_moves_no_cursor_and_ends_its_colours(
    line: bytes, shown: bytes
) -> None:
    assert shown == terminal_line(line)


@given(line=st.binary().filter(lambda line: b"\n" not in line))
def test_no_line_of_a_program_controls_a_terminal_but_by_colours(line: bytes) -> None:
    shown = terminal_line(line).decode()
    plain = re.sub("\x1b\\[[0-9;:]*m", "", shown).replace("\t", "")
    assert not [char for char in plain if unicodedata.category(char) in {"Cc", "Zl", "Zp", "Cs"}]
    assert "\x1b" not in shown or shown.endswith("\x1b[0m")


def test_each_line_of_a_text_is_shown_for_itself() -> None:
    assert b"b\n\\x07\n" == terminal_text(b"a\rb\n\x07\n")


def test_printable_lines_keep_lines_and_tabs_and_escape_what_moves_text() -> None:
    text = "Traceback:\r\n\tFile é \x1b[31m\x07\u202e\x85\u2028 a\rb\n"
    shown = "Traceback:\n\tFile é \\x1b[31m\\x07\\u202e\\x85\\u2028 a\\rb\n"
    assert shown == printable_lines(text)
