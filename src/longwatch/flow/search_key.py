"""The search key of a value: text that sorts like the value, for queries on values.

    null     `0`
    false    `10`, true `11`
    number   `2`, the sign, the exponent and the digits. Whole numbers and fractions share one
             order, with all their digits.
    text     `3` and the text. It sorts by code points.

A list or an object has no key. Databases have to compare keys byte by byte. A key is cut to
MAX_KEY_LENGTH characters: a shorter key is the whole value, a key of this length may be a part of
it. So a comparison with a shorter key is exact.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

MAX_KEY_LENGTH = 200
TEXT_PREFIX, AFTER_TEXT = "3", "4"
_NUMBER_PREFIX, _ZERO = "2", "1"
_EXPONENT_BIAS = 500_000_000
"""JSON numbers of 16 MiB have smaller exponents."""
_COMPLEMENT = str.maketrans("0123456789", "9876543210")
_AFTER_DIGITS = "~"
_LAST_CODE_POINT, _BEFORE_SURROGATES, _AFTER_SURROGATES = 0x10FFFF, 0xD7FF, 0xE000


def search_key(json: str | None) -> str | None:
    """The key of a value as JSON; None for a list, an object or no value."""
    if json is None or json[:1] in {"[", "{", ""}:
        return None
    return full_key(msgspec.json.decode(json))[:MAX_KEY_LENGTH]


def full_key(scalar: str | float | bool | None) -> str:  # noqa: FBT001 - a bool is one of the values
    """The key of a null, bool, number or text, however long it is."""
    match scalar:
        case None:
            return "0"
        case bool():
            return "11" if scalar else "10"
        case str():
            return TEXT_PREFIX + escape_text(scalar)
    return _NUMBER_PREFIX + _number_key(Decimal(repr(scalar)))


def type_bounds(key: str) -> tuple[str, str]:
    """The first key of the type of this key, and the first one after the type."""
    return key[0], chr(ord(key[0]) + 1)


def prefix_bounds(prefix: str) -> tuple[str, str]:
    """The first key of texts that begin with this prefix, and the first key after them."""
    first = TEXT_PREFIX + escape_text(prefix)
    return first, _next_text(first)


def is_scalar(value: Any) -> bool:
    """Whether a value has a search key."""
    return value is None or isinstance(value, bool | int | float | str)


def escape_text(text: str) -> str:
    """Replace zero bytes, which PostgreSQL does not store, by text that sorts in the same way."""
    if "\0" not in text and "\1" not in text:
        return text
    return text.replace("\1", "\1\2").replace("\0", "\1\1")


def _next_text(text: str) -> str:
    """The smallest text above all texts that begin with this one."""
    last = ord(text[-1])
    if last == _LAST_CODE_POINT:
        return _next_text(text[:-1])
    return text[:-1] + chr(_AFTER_SURROGATES if last == _BEFORE_SURROGATES else last + 1)


def _number_key(number: Decimal) -> str:
    if not number:
        return _ZERO
    sign, digits, _ = number.as_tuple()
    exponent = f"{number.adjusted() + _EXPONENT_BIAS:09d}"
    shown = "".join(map(str, digits)).rstrip("0")
    if not sign:
        return f"2{exponent}{shown}"
    return f"0{(exponent + shown).translate(_COMPLEMENT)}{_AFTER_DIGITS}"
