"""Suggests the known name closest to a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable


def closest_name(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name closest to this word, ignoring case; None if none is close."""
    from difflib import get_close_matches  # noqa: PLC0415 - needed only after a mistake

    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str], *, default: str = "", cutoff: float = 0.6) -> str:
    """Return "did you mean NAME?" with the closest name; `default` if none is close."""
    found = closest_name(word, known, cutoff=cutoff)
    return default if found is None else f"did you mean {found}?"
