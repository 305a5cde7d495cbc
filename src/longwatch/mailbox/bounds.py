"""The bounds of every parameter, in one place; outside them InvalidParameterError names the bound."""

from __future__ import annotations

import re
from math import inf, isfinite
from sys import float_info
from typing import Any

from longwatch.errors import InvalidParameterError

LONGEST_VISIBILITY = 43_200.0
LONGEST_DELAY = 366 * 86_400.0
MOST_MESSAGES = 1000
LARGEST_BODY = 1 << 20
LONGEST_NAME = 200
_NAME = re.compile(rf"[A-Za-z0-9._:/-]{{1,{LONGEST_NAME}}}")


def check_visibility(seconds: float) -> float:
    return _between("visibility_timeout", seconds, 0.0, LONGEST_VISIBILITY, "seconds")


def check_wait(seconds: float) -> float:
    return _between("wait_time_seconds", seconds, 0.0, inf, "seconds")


def check_delay(seconds: float, *, name: str = "delay_seconds") -> float:
    return _between(name, seconds, 0.0, LONGEST_DELAY, "seconds")


def check_expiry(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    if not (checked := check_delay(seconds, name="expires_in")):
        raise InvalidParameterError(f"expires_in must be more than 0 seconds, not {seconds!r}")
    return checked


def check_count(count: Any) -> int:
    return check_whole("max_messages", count, most=MOST_MESSAGES)


def check_whole(name: str, value: Any, *, most: float = inf) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        limits = f"from 1 to {most}" if isfinite(most) else "of 1 or more"
        raise InvalidParameterError(f"{name} must be a whole number {limits}, not {value!r}")
    return value


def check_retention(seconds: float) -> float:
    return _between("dead_retention", seconds, 0.0, inf, "seconds")


def check_name(name: Any) -> str:
    """A mailbox's name: letters, digits and `. _ - : /`, so that it can stand in a URL, a key and a log line."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(".dead"):
        raise InvalidParameterError(
            f"a mailbox name has 1 to {LONGEST_NAME} letters, digits or . _ - : / and does not end in .dead, unlike {name!r}"
        )
    return name


def _between(name: str, value: Any, least: float, most: float, unit: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        limits = f"{least:.0f} to {most:.0f}" if isfinite(most) else f"{least:.0f} or more"
        raise InvalidParameterError(f"{name} must be {limits} {unit}, not {value!r}")
    return float(value) if value <= float_info.max else inf
