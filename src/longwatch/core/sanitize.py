"""Makes foreign text safe: `sanitize` for every store, `printable` and `terminal_line` for one line
of a terminal, `printable_lines` for several lines of a page.

No store accepts lone surrogates (an invalid byte in an argument leaves one), and PostgreSQL accepts
no zero bytes. A terminal interprets control characters. Both kinds are written as escapes, so that
no text is lost silently.
"""

from __future__ import annotations

import re

MAX_LINE_CHARS = 200
"""Longest foreign text in characters that a status or a reason shows."""
_ELLIPSIS = "…"
_NOT_PLAIN = re.compile(rb"[^\t\x20-\x7e]")
_COLOUR = re.compile("(\x1b\\[[0-9;:]*m)")
"""SGR: colours, bold and the like, which last until they are reset."""
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""C0 but for tab, DEL, C1, line and paragraph separators, bidirectional controls."""
_RESET = "\x1b[0m"


def sanitize(text: str, *, max_length: int) -> str:
    """Return the first characters of a text, in a form that every store accepts."""
    return escape_surrogates(text[:max_length]).replace("\0", "\\x00")[:max_length]


def is_storable(text: str) -> bool:
    """Whether every store accepts the text unchanged."""
    return "\0" not in text and not _has_surrogates(text)


def escape_surrogates(text: str) -> str:
    """Return the text with lone surrogates escaped, so that it can be encoded."""
    if not _has_surrogates(text):
        return text
    return text.encode(errors="backslashreplace").decode()


def printable(text: str, *, max_chars: int | None = None) -> str:
    """Return the text as one line, with characters escaped that move a cursor, end a line or are
    invisible.

    If the result is longer than `max_chars`, it is cut and ends with an ellipsis.
    """
    shown = text if max_chars is None else text[: max_chars + 1]
    if not shown.isprintable():
        shown = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown
        )
    if max_chars is None or len(shown) <= max_chars:
        return shown
    return shown[: max_chars - 1] + _ELLIPSIS


def printable_lines(text: str) -> str:
    """Return the text with its lines and tabs kept and other characters escaped that move a cursor
    or change the direction of text.
    """
    return "\n".join(_CONTROL.sub(_escape, line.removesuffix("\r")) for line in text.split("\n"))


def terminal_line(line: bytes) -> bytes:
    """A line that a program wrote, without its end, as a terminal may show it.

    Of text that carriage returns overwrite the last state is kept. Colours are kept, and reset at
    the end of the line. Other control characters and bytes that are not UTF-8 are escaped.
    """
    if not _NOT_PLAIN.search(line):
        return line
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="backslashreplace")
    parts = _COLOUR.split(text)
    parts[::2] = [_CONTROL.sub(_escape, part) for part in parts[::2]]
    return ("".join(parts) + (_RESET if len(parts) > 1 else "")).encode()


def terminal_text(text: bytes) -> bytes:
    """Every line of a text as a terminal may show it."""
    return b"\n".join(map(terminal_line, text.split(b"\n")))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def shorten(text: str, max_chars: int) -> str:
    """Return the first characters of a text, and how many more there are."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}… ({len(text) - max_chars} more characters)"


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
