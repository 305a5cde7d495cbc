"""The bounds of every parameter, in one place; outside them InvalidParameterError names the
bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf, isfinite
from sys import float_info
from typing import Any

from longwatch.core.storable import is_storable, storable
from longwatch.errors import InvalidParameterError
from longwatch.store.json_codec import LARGEST

LONGEST_VISIBILITY = 43_200.0
LONGEST_DELAY = 366 * 86_400.0
MOST_MESSAGES = 1000
LARGEST_BODY = LARGEST
LONGEST_NAME = 200
LONGEST_KEY = 1000
LONGEST_REASON = 10_000
_LONGEST_SHOWN = 100
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
        raise InvalidParameterError(
            f"expires_in must be more than 0 seconds, not {_shown(seconds)}"
        )
    return checked


def check_count(count: Any) -> int:
    return check_whole("max_messages", count, most=MOST_MESSAGES)


def check_whole(name: str, value: Any, *, most: float = inf) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        limits = f"from 1 to {most}" if isfinite(most) else "of 1 or more"
        raise InvalidParameterError(f"{name} must be a whole number {limits}, not {_shown(value)}")
    return value


def check_retention(seconds: float) -> float:
    return _between("dead_retention", seconds, 0.0, inf, "seconds")


def check_name(name: Any) -> str:
    """A mailbox's name: letters, digits and `. _ - : /`, so that it can stand in a URL, a key
    and a log line.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(".dead"):
        raise InvalidParameterError(
            f"a mailbox name has 1 to {LONGEST_NAME} letters, digits or . _ - : / and does "
            f"not end in .dead, unlike {_shown(name)}"
        )
    return name


def check_dedupe_keys(keys: Any, *, count: int) -> list[str | None]:
    """One for each body; None: that body has none."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise InvalidParameterError(
            f"dedupe_keys must be one for each of the {count} bodies, not {_shown(keys)}"
        )
    checked = [None if key is None else _key("dedupe_key", key) for key in keys]
    if len(checked) != count:
        raise InvalidParameterError(
            f"dedupe_keys must be one for each of the {count} bodies, not {len(checked)}"
        )
    return checked


def check_id(message_id: Any) -> str:
    return _key("message_id", message_id)


def check_reason(reason: Any) -> str:
    """Why a message failed, in a form that every store takes; a long one is cut."""
    if not isinstance(reason, str):
        raise InvalidParameterError(
            f"reason must be text, of which {LONGEST_REASON} characters are kept, not "
            f"{_shown(reason)}"
        )
    return storable(reason, longest=LONGEST_REASON)


def _key(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_KEY or not is_storable(value):
        raise InvalidParameterError(
            f"{name} must be text of 1 to {LONGEST_KEY} characters, without zero bytes or "
            f"lone surrogates, not {_shown(value)}"
        )
    return value


def _between(name: str, value: Any, least: float, most: float, unit: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        limits = f"{least:.0f} to {most:.0f}" if isfinite(most) else f"{least:.0f} or more"
        raise InvalidParameterError(f"{name} must be {limits} {unit}, not {_shown(value)}")
    return float(value) if value <= float_info.max else inf


def _shown(value: Any) -> str:
    """What was given, as far as it can be shown: a number of many thousand digits and an object
    of somebody else may refuse.
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - anybody's code may run here, and the parameter is wrong anyhow
        return f"something of type {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
