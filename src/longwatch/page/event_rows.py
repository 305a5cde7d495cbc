"""Events as rows of a table: time, level, name, program, and the other fields as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from longwatch.app.log_reader import EventRecord
from longwatch.core.sanitize import printable
from longwatch.page.history import moment_of
from longwatch.page.program_facts import BAD, INFO, OFF, WARN

_OWN_COLUMNS = frozenset(
    {"ts", "level", "event", "pid", "managerPid", "program", "traceback", "stacks"}
)
_MAX_FIELD_CHARS = 300
_MAX_TEXT_CHARS = 1000
_MAX_ITEMS = 8
_KINDS = {"debug": OFF, "info": INFO, "warning": WARN, "error": BAD, "critical": BAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """An event for people."""

    moment: float
    kind: str
    level: str
    name: str
    program: str
    text: str
    traceback: str = ""
    stacks: str = ""
    """The name of the file with saved stacks; empty without one."""


def event_rows(records: Iterable[EventRecord]) -> list[EventRow]:
    return [_event_row(record) for record in records]


def _event_row(record: EventRecord) -> EventRow:
    level = str(record.get("level", "info"))
    fields = (
        f"{printable(str(name))}={_value_text(value)}"
        for name, value in record.items()
        if name not in _OWN_COLUMNS and name != "verdict" and value not in (None, "", [], 0, False)
    )
    return EventRow(
        moment=moment_of(record),
        kind=_KINDS.get(level, INFO),
        level=level,
        name=str(record.get("event", "")),
        program=str(record.get("program") or ""),
        text=printable(" ".join(fields), max_chars=_MAX_TEXT_CHARS),
        traceback=str(record.get("traceback") or ""),
        stacks=stacks_name(record),
    )


def stacks_name(record: EventRecord) -> str:
    """The name of the file of saved stacks that a record is about; empty without one."""
    return str(record.get("stacks") or "").rpartition("/")[2]


def _value_text(value: object) -> str:
    if value is True:
        return "true"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list):
        more = f" and {len(value) - _MAX_ITEMS} more" if len(value) > _MAX_ITEMS else ""
        listed = printable(", ".join(map(str, value[:_MAX_ITEMS])), max_chars=_MAX_FIELD_CHARS)
        return f"[{listed}{more}]"
    text = printable(str(value), max_chars=_MAX_FIELD_CHARS)
    return f'"{text}"' if " " in text else text
