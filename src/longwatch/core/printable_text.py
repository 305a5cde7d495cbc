"""Foreign text, made fit to be shown: one line, bounded, without characters that move a cursor
or hide.
"""

from __future__ import annotations

MAX_CHARS = 200
"""Characters that are shown of a text nobody has bounded before."""
_ELLIPSIS = "…"


def one_line(text: str, *, max_chars: int = MAX_CHARS) -> str:
    """The text with every character that is not printable escaped, cut to so many characters."""
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text[: max_chars + 1]
    )
    return shown if len(shown) <= max_chars else shown[: max_chars - 1] + _ELLIPSIS
