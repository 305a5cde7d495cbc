"""The two forms of a record: a line of JSON for machines and files, a line of text for a person at
a terminal.

Both are one line whatever the record holds. JSON is pure ASCII, so that neither a newline, an
escape sequence, a line separator nor half a surrogate pair can be in it; the pretty form shows
every character that is not printable as an escape.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime

LONGEST_RECORD = 64 * 1024
_STEPS = ((16 * 1024, 512), (1024, 64), (128, 16))
"""Longest text and most items, tried in turn until the record is short enough."""

_HEAD = ("ts", "level", "event", "pid", "managerPid")
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}


def to_json(record: Mapping[str, object]) -> str:
    """The record as one line of JSON, at most 64 KiB of it: long texts and lists are cut and say
    so.
    """
    for longest, most in _STEPS:
        line = _dump({key: _cut(value, longest, most) for key, value in record.items()})
        if len(line) <= LONGEST_RECORD:
            return line
    return _dump(
        {**{key: _cut(record[key], 128, 16) for key in _HEAD if key in record}, "truncated": True}
    )


def to_pretty(record: Mapping[str, object], *, colour: bool = False) -> str:
    """The record as one line of text: local time, level, event, then `name=value`."""
    cut = {str(key): _cut(value, *_STEPS[1]) for key, value in record.items()}
    level = f"{cut.pop('level', ''):<8}"
    when, event, own = (
        _local_time(str(cut.pop("ts", ""))),
        printable(str(cut.pop("event", ""))),
        cut.pop("managerPid", None),
    )
    if cut.get("pid") == own:
        cut.pop("pid", None)
    fields = "".join(
        f" {printable(name)}={_shown(value)}"
        for name, value in cut.items()
        if value not in (None, "")
    )
    if colour:
        level = f"\x1b[{_COLOURS.get(level.strip(), '0')}m{level}\x1b[0m"
    return f"{when} {level} {event}{fields}"


def wants_colour(fd: int, environ: Mapping[str, str]) -> bool:
    """Colours only for a terminal that can show them, and only if nobody asked for none."""
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    try:
        return os.isatty(fd)
    except OSError:
        return False


def printable(text: str) -> str:
    """The text with every character that would move a cursor, end a line or hide escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _dump(record: Mapping[str, object]) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _cut(value: object, longest: int, most: int) -> object:
    match value:
        case str() if len(value) > longest:
            return f"{_whole(value[:longest])}… ({len(value) - longest} more characters)"
        case str():
            return _whole(value)
        case Mapping():
            kept = {
                _cut_key(key, longest): _cut(item, longest, most)
                for key, item in list(value.items())[:most]
            }
            return kept if len(value) <= most else {**kept, "…": f"{len(value) - most} more"}
        case list():
            kept_items = [_cut(item, longest, most) for item in value[:most]]
            return (
                kept_items if len(value) <= most else [*kept_items, f"… ({len(value) - most} more)"]
            )
        case _:
            return value


def _cut_key(key: object, longest: int) -> str:
    return _whole(str(key)[:longest])


def _whole(text: str) -> str:
    """Half a surrogate pair, as a wrong byte in an argument leaves it, is no text: it is written
    out.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    needs_quotes = isinstance(value, str) and (
        not text or any(char in text for char in ' "=') or not text.isprintable()
    )
    return printable(json.dumps(text, ensure_ascii=False) if needs_quotes else text)


def _local_time(ts: str) -> str:
    try:
        return datetime.fromisoformat(ts).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except ValueError:
        return printable(ts)
