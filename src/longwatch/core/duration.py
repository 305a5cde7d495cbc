"""Durations as people write and read them: `90`, `90s`, `5m`, `1h30m`; `5 minutes`, `1 h 30 min`.

In code, in JSON and in the store a duration is a float of seconds.
"""

from __future__ import annotations

import re

UNITS_NOTE = "(units: d, h, m, s, ms)"
EXAMPLES = f"for example 300, 90s or 5m {UNITS_NOTE}"
"""Examples of durations with their units, for errors."""
YEAR_SECONDS = 31_536_000.0

_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}"
_PLAIN = re.compile(rf"\+?(?:{_NUMBER})(?:[eE][+-]?[0-9]{{1,3}})?")
_WITH_UNITS = re.compile(r"\s*".join(rf"(?:({_NUMBER}){unit})?" for unit in _UNITS))
_LONG_UNITS = ((86_400, "d", "day"), (3600, "h", "hour"), (60, "min", "minute"), (1, "s", "second"))


def parse_duration(text: str) -> float:
    """Parse a duration into seconds. A number without a unit is seconds; units are `d`, `h`, `m`,
    `s` and `ms`, the longest first. Raises ValueError for any other text.
    """
    words = text.strip()
    if _PLAIN.fullmatch(words):
        return float(words)
    found = _WITH_UNITS.fullmatch(words)
    if not words or found is None:
        raise ValueError(f"a duration is written as {EXAMPLES.removeprefix('for example ')}")
    return sum(
        float(number) * seconds
        for number, seconds in zip(found.groups(), _UNITS.values(), strict=True)
        if number is not None
    )


def format_duration(seconds: float) -> str:
    """Format a duration for people: `0.5 s`, `45 s`, `5 minutes`, `1 h 30 min`. From a minute on it
    has the two largest units.
    """
    left = round(seconds)
    if left < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{seconds:.3g} s"
    parts: list[str] = []
    for length, short, word in _LONG_UNITS:
        number, left = divmod(left, length)
        if number and not left and not parts:
            return f"{number} {word}" if number == 1 else f"{number} {word}s"
        if number or parts:
            parts.append(f"{number} {short}" if number else "")
        if len(parts) == 2:  # noqa: PLR2004 - two units say enough
            break
    return " ".join(filter(None, parts))
