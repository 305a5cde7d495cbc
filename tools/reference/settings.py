"""docs/reference/settings.md: a table of keys for each table of `longwatch.toml`.

What a key means is the docstring below its field; its values and its default come from its type.
Fields that workers, containers and `[run]` share with programs are listed with programs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import msgspec
from msgspec import inspect as kinds

from longwatch.config.programs import ProgramSettings
from longwatch.config.runner import AgentSettings
from longwatch.config.settings import VARIABLES, Settings
from longwatch.config.tables import ProbeSettings
from longwatch.config.value_checks import TypeInfo, describe, union_members, without_metadata
from reference.docstrings import field_docstring
from reference.parts import Part, ReferencePage, cell, table

SEPARATE = (ProbeSettings, AgentSettings)
"""Structs that get a table of their own, not rows with dotted keys."""
_DURATION = re.compile(r"a duration( \([^)]*\)), for example [^)]*\)")
_SHORT = {
    "text that is not empty": "text",
    "letters, digits, '.', '_' and '-', 64 at most, no '.' first": "a name",
    "a table": "a table of texts",
}


@dataclass(frozen=True)
class SettingsTable:
    """One table of the file: its name there, its struct, and the path of its settings."""

    name: str
    struct: type[msgspec.Struct]
    path: str


@cache
def tables() -> tuple[SettingsTable, ...]:
    return tuple(_tables(SettingsTable("the file", Settings, "")))


def _tables(parent: SettingsTable) -> Iterator[SettingsTable]:
    """This table and those below it, in the order of the fields; each probe only once."""
    yield parent
    prefix = f"{parent.path}." if parent.path else ""
    for field in _fields(parent.struct):
        path = f"{prefix}{field.name}"
        if entry := _entry_struct(field.type):
            yield from _tables(SettingsTable(f"[{path}.NAME]", entry, path))
        elif (struct := _struct(field.type)) and _is_separate(struct, parent):
            is_probe = struct is ProbeSettings
            name = "a probe" if is_probe else f"[{path}]"
            if not is_probe or path == "program.liveness":
                yield from _tables(SettingsTable(name, struct, path))


def _is_separate(struct: type[msgspec.Struct], parent: SettingsTable) -> bool:
    return struct in SEPARATE or parent.struct is Settings


def parts() -> Mapping[str, Part]:
    found = {}
    for each in tables():
        rows = rows_of(each)
        heading = (
            f"## `{each.name}`" if each.name.startswith("[") else f"## {each.name.capitalize()}"
        )
        text = table(("key", "value", "default", "meaning"), rows)
        intro = cell(inspect.getdoc(each.struct) or "")
        found[f"keys of {each.name}"] = Part(text, heading=heading, intro=intro)
    return found | {"variables": Part(_variables(), heading="## Environment")}


def rows_of(place: SettingsTable) -> list[tuple[str, ...]]:
    """The rows of a table, required keys first."""
    return sorted(_rows(place, place.struct, ""), key=lambda row: row[2] != "required")


def _rows(
    place: SettingsTable, struct: type[msgspec.Struct], prefix: str
) -> Iterator[tuple[str, ...]]:
    """The rows of a struct, those of plain structs below it included, with dotted keys."""
    for field in _fields(struct):
        below = _struct(field.type)
        if _entry_struct(field.type) or (
            struct is place.struct and _is_elsewhere(place, field, below)
        ):
            continue
        if below and not _is_plain_union(field.type):
            yield from _rows(place, below, f"{prefix}{field.name}.")
            continue
        yield (
            f"`{prefix}{field.name}`",
            cell(_values(field.type)),
            _default(field),
            cell(field_docstring(struct, field.name)),
        )


def _is_elsewhere(place: SettingsTable, field: kinds.Field, below: type | None) -> bool:
    """Whether a field has a table of its own, or is described with programs."""
    if below and _is_separate(below, place):
        return True
    shared = place.struct is not ProgramSettings and field.name not in _declared(place.struct)
    return shared and field.name in ProgramSettings.__struct_fields__


def _declared(struct: type[msgspec.Struct]) -> set[str]:
    """The fields that no base shares with programs."""
    owners = [each for each in struct.__mro__ if each not in ProgramSettings.__mro__]
    return {name for each in owners for name in getattr(each, "__annotations__", {})}


def _fields(struct: type[msgspec.Struct]) -> tuple[kinds.Field, ...]:
    return cast("kinds.StructType", kinds.type_info(struct)).fields


def _struct(kind: TypeInfo) -> type[msgspec.Struct] | None:
    """The struct of a field; None if it has none."""
    found = [
        inner
        for inner in map(without_metadata, union_members(kind))
        if isinstance(inner, kinds.StructType)
    ]
    return found[0].cls if found else None


def _entry_struct(kind: TypeInfo) -> type[msgspec.Struct] | None:
    """The struct of the entries of a table of tables, such as `[program.NAME]`."""
    dicts = [
        inner
        for inner in map(without_metadata, union_members(kind))
        if isinstance(inner, kinds.DictType)
    ]
    return _struct(dicts[0].value_type) if dicts and _is_table(dicts[0]) else None


def _is_table(kind: kinds.DictType) -> bool:
    """Whether every value of a table is itself a table."""
    return all(
        isinstance(without_metadata(member), kinds.StructType)
        for member in union_members(kind.value_type)
    )


def _is_plain_union(kind: TypeInfo) -> bool:
    """Whether a struct is only one of several forms of a value."""
    return any(
        not isinstance(without_metadata(member), kinds.StructType | kinds.NoneType)
        for member in union_members(kind)
    )


def _values(kind: TypeInfo) -> str:
    """The values of a type in words."""
    text = _DURATION.sub(r"a duration\1", describe(kind))
    for long, short in _SHORT.items():
        text = text.replace(long, short)
    return text


def _default(field: kinds.Field) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if callable(field.default_factory) else field.default
    return "" if value is None or value == {} else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # an Enum of texts too
        return f'"{value}"'
    return f"{value:g}" if isinstance(value, float) else str(value)


def _variables() -> str:
    names: dict[str, list[str]] = {}
    for each in VARIABLES:
        names.setdefault(each.name, []).append(f"`{each.path}`")
    return table(
        ("variable", "sets"), [(f"`{name}`", ", ".join(paths)) for name, paths in names.items()]
    )


@cache
def setting_paths() -> set[str]:
    """The path of every setting, as `run.backoff.cap`."""
    found = {
        f"{each.path}.{row[0].strip('`')}".removeprefix(".")
        for each in tables()
        for row in _rows(each, each.struct, "")
    }
    shared = {path.removeprefix("program.") for path in found if path.startswith("program.")}
    return found | {f"run.{path}" for path in shared}


PAGE = ReferencePage("settings.md", parts)
