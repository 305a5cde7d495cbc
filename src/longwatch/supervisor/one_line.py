"""Foreign text, made fit to be shown: one line, bounded, without characters that move a cursor
or hide.
"""

from __future__ import annotations

MOST = 200
"""Characters that are shown of a text nobody has bounded before."""
_CUT = "…"


def one_line(text: str, *, most: int = MOST) -> str:
    """The text with every character that is not printable escaped, cut to so many characters."""
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text[: most + 1]
    )
    return shown if len(shown) <= most else shown[: most - 1] + _CUT
