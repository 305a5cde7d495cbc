"""The name that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def closest_name(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most like this word, whatever its case; None if none is much like
    it.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only who mistakes something waits for it

    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str], *, default: str = "", cutoff: float = 0.6) -> str:
    """The question "did you mean NAME?" with the nearest name; `default` if none is near."""
    found = closest_name(word, known, cutoff=cutoff)
    return default if found is None else f"did you mean {found}?"
