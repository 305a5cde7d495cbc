"""The two forms of a record: a line of JSON for machines and files, a line of text for a person at
a terminal.

JSON is one line whatever the record holds. It is pure ASCII, so that neither a newline, an escape
sequence, a line separator nor half a surrogate pair can be in it. The pretty form is one line, too,
with the lines of a traceback indented below it. It shows every character that is not printable as
an escape, so no text can look like a record of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime

from longwatch.core.sanitize import escape_surrogates, printable, shorten

MAX_RECORD_CHARS = 64 * 1024
_TRUNCATION_STEPS = ((16 * 1024, 512), (1024, 64), (128, 16))
"""Longest text and most items, tried in turn until the record is short enough."""

_TRACEBACK = "traceback"
_INDENT = "\n    "
_HEAD_FIELDS = ("ts", "level", "event", "pid", "managerPid")
_SHOW_OWN_PID = frozenset({"supervisor_started", "runner_started"})
"""Events that name the process a person may want to signal; elsewhere our own pid is noise."""
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}


def to_json(record: Mapping[str, object]) -> str:
    """The record as one line of JSON of at most 64 KiB. Long texts and lists are cut and marked."""
    for max_chars, max_items in _TRUNCATION_STEPS:
        line = _dump({key: _truncate(value, max_chars, max_items) for key, value in record.items()})
        if len(line) <= MAX_RECORD_CHARS:
            return line
    return _dump(
        {
            **{key: _truncate(record[key], 128, 16) for key in _HEAD_FIELDS if key in record},
            "truncated": True,
        }
    )


def to_pretty(record: Mapping[str, object], *, colour: bool = False) -> str:
    """The record as one line of text: local time, level, event, then `name=value`. A traceback
    follows as indented lines.
    """
    cut = {
        str(key): _truncate(value, *_TRUNCATION_STEPS[1])
        for key, value in record.items()
        if key != _TRACEBACK
    }
    level = f"{printable(str(cut.pop('level', ''))):<8}"
    when, event, own = (
        _local_time(str(cut.pop("ts", ""))),
        printable(str(cut.pop("event", ""))),
        cut.pop("managerPid", None),
    )
    if cut.get("pid") == own and event not in _SHOW_OWN_PID:
        cut.pop("pid", None)
    fields = "".join(
        f" {printable(name)}={_format_value(value)}"
        for name, value in cut.items()
        if value not in (None, "")
    )
    if colour:
        level = f"\x1b[{_COLOURS.get(level.strip(), '0')}m{level}\x1b[0m"
    return f"{when} {level} {event}{fields}{_indented(record.get(_TRACEBACK))}"


def _indented(traceback: object) -> str:
    """The lines of a traceback, indented below the record; empty without a traceback."""
    if not traceback:
        return ""
    lines = shorten(str(traceback), _TRUNCATION_STEPS[0][0]).split("\n")
    return "".join(f"{_INDENT}{printable(line)}" for line in lines)


def wants_colour(fd: int, environ: Mapping[str, str]) -> bool:
    """Whether to use colours: only on a terminal that shows them, and not with NO_COLOR."""
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _dump(record: Mapping[str, object]) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _truncate(value: object, max_chars: int, max_items: int) -> object:
    match value:
        case str():
            return escape_surrogates(shorten(value, max_chars))
        case Mapping():
            kept = {
                escape_surrogates(str(key)[:max_chars]): _truncate(item, max_chars, max_items)
                for key, item in list(value.items())[:max_items]
            }
            return (
                kept if len(value) <= max_items else {**kept, "…": f"{len(value) - max_items} more"}
            )
        case list():
            kept_items = [_truncate(item, max_chars, max_items) for item in value[:max_items]]
            return (
                kept_items
                if len(value) <= max_items
                else [*kept_items, f"… ({len(value) - max_items} more)"]
            )
        case _:
            return value


def _format_value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    needs_quotes = isinstance(value, str) and (
        not text or any(char in text for char in ' "=') or not text.isprintable()
    )
    return printable(json.dumps(text, ensure_ascii=False) if needs_quotes else text)


def _local_time(ts: str) -> str:
    try:
        return datetime.fromisoformat(ts).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError):
        return printable(ts)
