"""The name that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known name that is most like this word, whatever its case; None if none is much like
    it.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only who mistakes something waits for it

    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), list(by_lower), n=1, cutoff=likeness)
    return by_lower[close[0]] if close else None


def did_you_mean(
    word: str, known: Iterable[str], *, otherwise: str = "", likeness: float = 0.6
) -> str:
    """The question with the nearest name in it; `otherwise` if none is near."""
    found = nearest(word, known, likeness=likeness)
    return otherwise if found is None else f"did you mean {found}?"
