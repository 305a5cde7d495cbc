"""Checks one value of a setting, and describes what it should have been.

A type comes as msgspec describes it (`msgspec.inspect`), so that types and bounds are written only
in the structs of the settings. `Meta(description=…)` on a type is the description in messages.
`Meta(extra={"choices": …})` limits a text to names that are only known at run time,
`Meta(extra={"duration": …})` lets a number of seconds be a text such as "5m".
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable
from datetime import date, time
from typing import Any

from msgspec import inspect as kinds

from longwatch.core.duration import parse_duration
from longwatch.core.masking import MASK, looks_secret, mask_text
from longwatch.core.sanitize import printable

TypeInfo = kinds.Type

TRUE_WORDS = frozenset({"true", "1", "yes", "on"})
FALSE_WORDS = frozenset({"false", "0", "no", "off"})
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,3})?"
)
_MAX_SHOWN_CHARS = 60


class RejectedError(Exception):
    """The value is not of the expected kind."""


def without_metadata(kind: TypeInfo) -> TypeInfo:
    """The kind without its description."""
    return without_metadata(kind.type) if isinstance(kind, kinds.Metadata) else kind


def union_members(kind: TypeInfo) -> list[TypeInfo]:
    """The kinds a value may be of: those of a union and of unions in it, else the kind itself."""
    inner = without_metadata(kind)
    return (
        [member for part in inner.types for member in union_members(part)]
        if isinstance(inner, kinds.UnionType)
        else [kind]
    )


def convert(kind: TypeInfo, raw: object) -> object:
    """The value as this scalar kind. Raises RejectedError if it is not of this kind."""
    for member in union_members(kind):
        inner = without_metadata(member)
        check, allowed = _CHECKS.get(type(inner)), _extra_choices(member)
        value = _duration_value(raw) if _is_duration(member) else raw
        if check is not None and check(inner, value) and (not allowed or value in allowed):
            return _to_declared_type(inner, value)
    raise RejectedError


def parse_text(kind: TypeInfo, text: str) -> object:
    """The value of a text from the environment or the command line, read as this kind; the text
    itself if it fits none.
    """
    for member in map(without_metadata, union_members(kind)):
        match member:
            case kinds.BoolType() if text.strip().lower() in TRUE_WORDS | FALSE_WORDS:
                return text.strip().lower() in TRUE_WORDS
            case kinds.IntType() if _WHOLE_NUMBER.fullmatch(text.strip()):
                return int(text)
            case kinds.FloatType() if _NUMBER.fullmatch(text.strip()):
                return float(text)
    return text


def describe(kind: TypeInfo) -> str:
    """The kind in words: `a whole number from 1 to 65535`."""
    if isinstance(kind, kinds.Metadata) and "description" in (kind.extra_json_schema or {}):
        return str((kind.extra_json_schema or {})["description"])
    inner = without_metadata(kind)
    if isinstance(inner, kinds.UnionType):
        members = (member for member in inner.types if not isinstance(member, kinds.NoneType))
        return _join_or(map(describe, sorted(members, key=_is_duration)))
    return _DESCRIPTIONS[type(inner)](inner)


def choices(kind: TypeInfo) -> list[str]:
    """The fixed texts this kind allows."""
    found: list[object] = []
    for member in union_members(kind):
        inner = without_metadata(member)
        if isinstance(inner, kinds.LiteralType):
            found += inner.values
        elif isinstance(inner, kinds.EnumType):
            found += [item.value for item in inner.cls]
        else:
            found += _extra_choices(member)
    return [choice for choice in found if isinstance(choice, str)]


def format_value(value: object, *, name: str) -> str:
    """A value as a message may show it: short, printable, in TOML's spelling, and masked if its
    name or content is secret.
    """
    if looks_secret(name) and not isinstance(value, bool | dict | list):
        return MASK
    match value:
        case str():
            return f'"{_short(printable(mask_text(value)))}"'
        case bool():
            return "true" if value else "false"
        case int() | float():
            return _short(str(value))
        case _:
            return next(
                (noun for type_, noun in _NOUNS.items() if isinstance(value, type_)),
                f"a {type(value).__name__}",
            )


def describe_for_flag(kind: TypeInfo) -> str:
    """The kind in words for the command line, where texts have no quotes."""
    return describe(kind).replace('"', "")


def _is_duration(kind: TypeInfo) -> bool:
    return isinstance(kind, kinds.Metadata) and "duration" in (kind.extra or {})


def _duration_value(raw: object) -> object:
    """The seconds of a text that is a duration; any other value as it is."""
    try:
        return parse_duration(raw) if isinstance(raw, str) else raw
    except ValueError:
        return raw


def _extra_choices(kind: TypeInfo) -> tuple[str, ...]:
    return tuple((kind.extra or {}).get("choices", ())) if isinstance(kind, kinds.Metadata) else ()


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"


_NOUNS: dict[type, str] = {
    dict: "a table",
    list: "a list",
    tuple: "a list",
    date: "a date",
    time: "a time",
}


def _to_declared_type(kind: TypeInfo, raw: Any) -> object:
    """An accepted value in the type the struct declares."""
    if isinstance(kind, kinds.EnumType):
        return kind.cls(raw)
    return float(raw) if isinstance(kind, kinds.FloatType) else raw


def _is_text(kind: Any, raw: object) -> bool:
    if (
        not isinstance(raw, str)
        or len(raw) < (kind.min_length or 0)
        or len(raw) > (kind.max_length or math.inf)
    ):
        return False
    return kind.pattern is None or re.search(kind.pattern, raw) is not None


def _is_int(kind: Any, raw: object) -> bool:
    return isinstance(raw, int) and not isinstance(raw, bool) and _in_bounds(kind, raw)


def _is_number(kind: Any, raw: object) -> bool:
    return (
        isinstance(raw, int | float)
        and not isinstance(raw, bool)
        and abs(raw) <= sys.float_info.max
        and _in_bounds(kind, raw)
    )


def _in_bounds(kind: Any, raw: float) -> bool:
    low = (kind.ge is None or raw >= kind.ge) and (kind.gt is None or raw > kind.gt)
    return low and (kind.le is None or raw <= kind.le) and (kind.lt is None or raw < kind.lt)


_CHECKS: dict[type, Callable[[Any, object], bool]] = {
    kinds.AnyType: lambda *_: True,
    kinds.NoneType: lambda _, raw: raw is None,
    kinds.BoolType: lambda _, raw: isinstance(raw, bool),
    kinds.IntType: _is_int,
    kinds.FloatType: _is_number,
    kinds.StrType: _is_text,
    kinds.LiteralType: lambda kind, raw: any(
        raw == value and type(raw) is type(value) for value in kind.values
    ),
    kinds.EnumType: lambda kind, raw: any(raw == item.value for item in kind.cls),
}


def _describe_number(noun: str) -> Callable[[Any], str]:
    def words(kind: Any) -> str:
        if kind.ge is not None and kind.le is not None:
            return f"{noun} from {kind.ge} to {kind.le}"
        bounds = {
            "{} or more": kind.ge,
            "more than {}": kind.gt,
            "{} at most": kind.le,
            "less than {}": kind.lt,
        }
        return ", ".join(
            [noun, *(phrase.format(bound) for phrase, bound in bounds.items() if bound is not None)]
        )

    return words


def _quote_choices(values: Iterable[object]) -> str:
    return _join_or(f'"{value}"' for value in values)


def _join_or(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} or {last}" if most else last


_DESCRIPTIONS: dict[type, Callable[[Any], str]] = {
    kinds.AnyType: lambda _: "anything",
    kinds.BoolType: lambda _: "true or false",
    kinds.IntType: _describe_number("a whole number"),
    kinds.FloatType: _describe_number("a number"),
    kinds.StrType: lambda kind: "text that is not empty" if kind.min_length else "text",
    kinds.LiteralType: lambda kind: _quote_choices(kind.values),
    kinds.EnumType: lambda kind: _quote_choices(item.value for item in kind.cls),
    kinds.ListType: lambda kind: f"a list ({describe(kind.item_type)} each)",
    kinds.VarTupleType: lambda kind: f"a list ({describe(kind.item_type)} each)",
    kinds.DictType: lambda _: "a table",
    kinds.StructType: lambda _: "a table",
}
