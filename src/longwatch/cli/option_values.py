"""Parsers of option values. The error of a refused value continues the name of the option:
`takes a whole number from 1 to 256, got 'two'`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import inf

import click

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_MAX_SHOWN_CHARS = 60


def whole_number(low: int | None = None, high: int | None = None) -> Callable[[object], int]:
    """A parser for whole numbers from `low` to `high`, both allowed."""

    def parse(given: object) -> int:
        text = str(given).strip()
        value = int(text) if _WHOLE_NUMBER.fullmatch(text) else None
        if value is None or not _is_within(value, low, high):
            raise refused(f"a whole number{_describe_range(low, high)}", given)
        return value

    return parse


def number(low: float, high: float) -> Callable[[object], float]:
    """A parser for numbers from `low` to `high`, both allowed; NaN is refused."""

    def parse(given: object) -> float:
        try:
            value = float(str(given))
        except ValueError:
            value = inf
        if not _is_within(value, low, high):
            raise refused(f"a number{_describe_range(low, high)}", given)
        return value

    return parse


def duration(low: float = 0.0, high: float | None = None) -> Callable[[object], float]:
    """A parser for durations from `low` to `high` (a year if not given), in seconds."""

    def parse(given: object) -> float:
        from longwatch.core.duration import (  # noqa: PLC0415 - help must not wait for it
            EXAMPLES,
            YEAR_SECONDS,
            format_duration,
            parse_duration,
        )

        most = YEAR_SECONDS if high is None else high
        try:
            value = parse_duration(str(given))
        except ValueError:
            raise refused(f"a duration, {EXAMPLES}", given) from None
        if not low <= value <= most:
            limits = f"from {format_duration(low)} to {format_duration(most)}"
            raise refused(f"a duration {limits}, {EXAMPLES}", given)
        return value

    return parse


def choice(names: Iterable[str]) -> Callable[[object], str]:
    """A parser for one of a few names; a refusal suggests the nearest one."""
    known = tuple(names)

    def parse(given: object) -> str:
        from longwatch.core.suggest import did_you_mean  # noqa: PLC0415 - only a refusal needs it

        if given in known:
            return str(given)
        meant = did_you_mean(str(given), known)
        expected = f"{', '.join(known[:-1])} or {known[-1]}"
        raise refused(expected, given, hint=f"; {meant}" if meant else "")

    return parse


def refused(expected: str, given: object, *, hint: str = "") -> click.BadParameter:
    """The error about a value that is not as expected; secrets in the value are masked."""
    from longwatch.core.masking import mask_text  # noqa: PLC0415 - only a refusal needs it
    from longwatch.core.sanitize import printable, shorten  # noqa: PLC0415

    shown = shorten(printable(mask_text(str(given))), _MAX_SHOWN_CHARS)
    separator = ";" if ", " in expected else ","
    return click.BadParameter(f"takes {expected}{separator} got '{shown}'{hint}")


def _is_within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _describe_range(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f", {low:g} or more" if high is None else f" from {low} to {high}"
