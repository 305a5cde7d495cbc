"""Validates every parameter of a mailbox. InvalidParameterError names the allowed values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf, isfinite
from sys import float_info
from typing import Any

from longwatch.core.sanitize import is_storable, sanitize
from longwatch.errors import InvalidParameterError
from longwatch.store.json_codec import MAX_BYTES

MAX_VISIBILITY_SECONDS = 43_200.0
MAX_DELAY_SECONDS = 366 * 86_400.0
MAX_MESSAGES = 1000
MAX_BODY_BYTES = MAX_BYTES
MAX_NAME_LENGTH = 200
MAX_KEY_LENGTH = 1000
MAX_REASON_LENGTH = 10_000
_MAX_SHOWN_LENGTH = 100
_NAME_PATTERN = re.compile(rf"[A-Za-z0-9._:/-]{{1,{MAX_NAME_LENGTH}}}")


def validate_visibility(seconds: float) -> float:
    return _validate_range("visibility_timeout", seconds, 0.0, MAX_VISIBILITY_SECONDS, "seconds")


def validate_wait(seconds: float) -> float:
    return _validate_range("wait_time_seconds", seconds, 0.0, inf, "seconds")


def validate_delay(seconds: float, *, name: str = "delay_seconds") -> float:
    return _validate_range(name, seconds, 0.0, MAX_DELAY_SECONDS, "seconds")


def validate_expiry(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    if not (checked := validate_delay(seconds, name="expires_in")):
        raise InvalidParameterError(
            f"expires_in must be more than 0 seconds, not {_display(seconds)}"
        )
    return checked


def validate_max_messages(count: Any) -> int:
    return validate_positive_int("max_messages", count, maximum=MAX_MESSAGES)


def validate_positive_int(name: str, value: Any, *, maximum: float = inf) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        limits = f"from 1 to {maximum}" if isfinite(maximum) else "of 1 or more"
        raise InvalidParameterError(
            f"{name} must be a whole number {limits}, not {_display(value)}"
        )
    return value


def validate_retention(seconds: float) -> float:
    return _validate_range("dead_retention", seconds, 0.0, inf, "seconds")


def validate_name(name: Any) -> str:
    """Validate a mailbox name: letters, digits and `. _ - : /`, which are safe in a URL, a key and
    a log line.
    """
    if not isinstance(name, str) or not _NAME_PATTERN.fullmatch(name) or name.endswith(".dead"):
        raise InvalidParameterError(
            f"a mailbox name has 1 to {MAX_NAME_LENGTH} letters, digits or . _ - : / and does "
            f"not end in .dead; got {_display(name)}"
        )
    return name


def validate_dedupe_keys(keys: Any, *, count: int) -> list[str | None]:
    """Validate the dedupe keys, one for each body; None: that body has no key."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise InvalidParameterError(
            f"dedupe_keys must be one for each of the {count} bodies, not {_display(keys)}"
        )
    checked = [None if key is None else _validate_key("dedupe_key", key) for key in keys]
    if len(checked) != count:
        raise InvalidParameterError(
            f"dedupe_keys must be one for each of the {count} bodies, not {len(checked)}"
        )
    return checked


def validate_message_id(message_id: Any) -> str:
    return _validate_key("message_id", message_id)


def validate_reason(reason: Any) -> str:
    """Return the reason of a failure in a form that every store accepts, cut if it is too long."""
    if not isinstance(reason, str):
        raise InvalidParameterError(
            f"reason must be text, of which {MAX_REASON_LENGTH} characters are kept, not "
            f"{_display(reason)}"
        )
    return sanitize(reason, max_length=MAX_REASON_LENGTH)


def _validate_key(name: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= MAX_KEY_LENGTH
        or not is_storable(value)
    ):
        raise InvalidParameterError(
            f"{name} must be text of 1 to {MAX_KEY_LENGTH} characters, without zero bytes or "
            f"lone surrogates, not {_display(value)}"
        )
    return value


def _validate_range(name: str, value: Any, minimum: float, maximum: float, unit: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not minimum <= value <= maximum:
        limits = (
            f"{minimum:.0f} to {maximum:.0f}" if isfinite(maximum) else f"{minimum:.0f} or more"
        )
        raise InvalidParameterError(f"{name} must be {limits} {unit}, not {_display(value)}")
    return float(value) if value <= float_info.max else inf


def _display(value: Any) -> str:
    """Return the given value as short text. `repr` raises for an integer of many thousand digits,
    and may raise for an object of the caller.
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - repr may run the caller's code, and the parameter is wrong in any case
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}…"
