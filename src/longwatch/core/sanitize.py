"""Foreign text made fit: `sanitize` for every store, `printable` for one line of a terminal.

No store takes lone surrogates (a wrong byte in an argument leaves one), and PostgreSQL takes no
zero bytes. A terminal obeys control characters. Both kinds are written out as escapes, so nothing
gets lost unseen.
"""

from __future__ import annotations

MAX_LINE_CHARS = 200
"""Characters of foreign text that a status or a reason shows."""
_ELLIPSIS = "…"


def sanitize(text: str, *, max_length: int) -> str:
    """The first characters of a text, in a form that every store takes."""
    return escape_surrogates(text[:max_length]).replace("\0", "\\x00")[:max_length]


def is_storable(text: str) -> bool:
    """Whether every store takes the text as it is."""
    return "\0" not in text and not _has_surrogates(text)


def escape_surrogates(text: str) -> str:
    """The text with lone surrogates written out: it can be encoded then."""
    if not _has_surrogates(text):
        return text
    return text.encode(errors="backslashreplace").decode()


def printable(text: str, *, max_chars: int | None = None) -> str:
    """The text as one line, with characters escaped that would move a cursor, end a line or hide.

    A text that is longer than `max_chars` then is cut and ends with an ellipsis.
    """
    shown = text if max_chars is None else text[: max_chars + 1]
    if not shown.isprintable():
        shown = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown
        )
    if max_chars is None or len(shown) <= max_chars:
        return shown
    return shown[: max_chars - 1] + _ELLIPSIS


def shorten(text: str, max_chars: int) -> str:
    """The first characters of a text, and how many more there are."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}… ({len(text) - max_chars} more characters)"


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
