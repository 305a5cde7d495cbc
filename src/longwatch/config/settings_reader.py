"""The only reader of settings: takes a struct type and layers of raw values, returns the settings
or every fault.

The layers, weakest first: the defaults in the struct, a TOML file, environment variables, flags.
The reader walks the struct field by field. It checks every layer that has a value, also those that
a stronger layer overrides, and takes the strongest (tables of plain values, such as `env`, are
merged). A struct may have a method `faults()` that yields a Fault for what no single field shows,
`where` being the field's path inside it; the reader calls it once each field is in order. A struct
in a table of structs may have a class method `faults_among(table)`, which yields a key and a Fault
for what shows only between entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import inspect as kinds

from longwatch.config.tomlfile import read_toml
from longwatch.config.value_checks import (
    RejectedError,
    TypeInfo,
    choices,
    convert,
    describe,
    describe_for_flag,
    format_value,
    parse_text,
    union_members,
    without_metadata,
)
from longwatch.core.sanitize import printable
from longwatch.core.suggest import closest_name, did_you_mean
from longwatch.errors import ConfigError, Fault

T = TypeVar("T", bound=msgspec.Struct)

UNSET = object()
"""What the `parse` of an EnvironmentVariable returns when the text leaves the setting as it is."""
_MISSING = object()
_INVALID = object()
_IS_MISSING = "is missing"
_PARTIAL_DEPTH = 2
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentVariable:
    """An environment variable that sets a setting.

    Its text is read as the setting's type has it, after `parse` if there is one; `parse` returns
    UNSET for a text that leaves the setting as it is, and a text it does not know unchanged.
    One that `needs_table` counts only where another layer has the table of its setting.
    """

    name: str
    path: str
    parse: Callable[[str], object] | None = None
    needs_table: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A value from the environment or a flag, with the words that name its place in messages."""

    path: str
    where: str
    value: object
    cure: str = ""
    needs_table: bool = False


def from_environment(
    variables: Iterable[EnvironmentVariable], environ: Mapping[str, str]
) -> list[Override]:
    """The overrides in the environment. An empty variable counts as not set."""
    given = []
    for variable in variables:
        text = environ.get(variable.name, "")
        value = variable.parse(text) if text and variable.parse else text
        if text and value is not UNSET:
            where = f"environment variable {variable.name}"
            given.append(
                Override(
                    path=variable.path,
                    where=where,
                    value=value,
                    cure="correct it or unset it",
                    needs_table=variable.needs_table,
                )
            )
    return given


def from_flags(flags: Mapping[str, object], *, flag_name: Callable[[str], str]) -> list[Override]:
    """The overrides of the command line: dotted paths to values, None meaning "not given".
    `flag_name` names the flag of a path.
    """
    return [
        Override(path=path, where=flag_name(path), value=value)
        for path, value in flags.items()
        if value is not None
    ]


def read_settings(
    struct: type[T], *, path: Path | None = None, overrides: Iterable[Override] = ()
) -> T:
    """The settings from the defaults, the file and the overrides (weakest first). Raises
    ConfigError with every fault.
    """
    reading = inspect_settings(struct, path=path, overrides=overrides)
    if reading.faults:
        raise ConfigError(*reading.faults)
    assert reading.settings is not None
    return reading.settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsReading(Generic[T]):
    """The settings as far as they could be read, and every fault.

    With faults the settings are partial: a field that has one is at its default, an entry of a
    table without its required fields is left out. None: not even that is possible.
    """

    settings: T | None
    faults: tuple[Fault, ...]
    invalid_paths: frozenset[str]
    """The fields with a fault of their own, by their dotted paths."""


def inspect_settings(
    struct: type[T], *, path: Path | None = None, overrides: Iterable[Override] = ()
) -> SettingsReading[T]:
    """Read settings as `read_settings` does, and return partial settings beside the faults."""
    table, faults = read_toml(path) if path is not None else ({}, [])
    reader = _SettingsReader(
        overrides, source=printable(str(path)) if path is not None else "settings"
    )
    settings = reader.struct(
        cast("kinds.StructType", kinds.type_info(struct)), _Location("", reader.source), table
    )
    found = tuple(dict.fromkeys([*faults, *reader.faults]))
    if not found:
        reader.assert_all_used()
    return SettingsReading(
        settings=None if settings is _INVALID else cast("T", settings),
        faults=found,
        invalid_paths=frozenset(reader.invalid_paths),
    )


def toml_key(key: str) -> str:
    """A key as a TOML file has it: in quotes if it needs them."""
    return key if _BARE_KEY.fullmatch(key) else f'"{printable(key)}"'


@dataclass(frozen=True, slots=True)
class _Location:
    """A place in the walk: the dotted path, and its name in messages."""

    path: str
    where: str
    depth: int = 0

    def key(self, name: str) -> _Location:
        key = toml_key(name)
        if not self.path:
            return _Location(key, f"{self.where}: {key}", 1)
        return _Location(f"{self.path}.{key}", f"{self.where}.{key}", self.depth + 1)

    def at_index(self, index: int) -> _Location:
        return _Location(f"{self.path}[{index}]", f"{self.where}[{index}]", self.depth + 1)

    @property
    def can_be_partial(self) -> bool:
        """Whether a table here is of use without its faulty fields: the file itself, its tables,
        and their entries. A deeper table means something only as a whole.
        """
        return self.depth <= _PARTIAL_DEPTH

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def is_flag(self) -> bool:
        return self.where.startswith("--")


class _SettingsReader:
    """One reading: walks the struct, collects faults, and records the layer of each value."""

    def __init__(self, overrides: Iterable[Override], *, source: str) -> None:
        self.source = source
        self.faults: list[Fault] = []
        self.invalid_paths: set[str] = set()
        self._overrides: dict[str, list[Override]] = {}
        for override in overrides:
            self._overrides.setdefault(override.path, []).append(override)
        self._used: set[str] = set()
        self._origins: dict[str, str] = {}

    def assert_all_used(self) -> None:
        """Assert that every variable and flag sets an existing field; anything else is a bug."""
        optional = {
            path
            for path, given in self._overrides.items()
            if all(override.needs_table for override in given)
        }
        unused = self._overrides.keys() - self._used - optional
        assert not unused, f"no such setting: {', '.join(sorted(unused))}"

    def struct(self, kind: kinds.StructType, place: _Location, raw: object) -> object:
        """Read a struct from a table; `_INVALID` if a faulty field is required."""
        if not isinstance(raw, dict):
            return self._reject(kind, place, raw)
        known = {field.encode_name: field for field in kind.fields}
        unknown = [key for key in raw if key not in known]
        for key in unknown:
            self._unknown(key, place, list(known), meant=_parent_table(raw[key], known.values()))
        misspelled = {closest_name(key, known) for key in unknown} - raw.keys()
        self.invalid_paths.update(place.key(name).path for name in misspelled if name)
        values = {
            field.name: self._field(
                field, place, raw.get(name, _MISSING), is_misspelled=name in misspelled
            )
            for name, field in known.items()
        }
        invalid = [field for field in kind.fields if values[field.name] is _INVALID]
        self.invalid_paths.update(place.key(field.encode_name).path for field in invalid)
        if invalid and (not place.can_be_partial or any(field.required for field in invalid)):
            return _INVALID
        unusable = (_MISSING, _INVALID)
        struct = kind.cls(
            **{name: value for name, value in values.items() if value not in unusable}
        )
        return struct if invalid else self._validate(struct, place)

    def _field(
        self, field: kinds.Field, parent: _Location, raw: object, *, is_misspelled: bool
    ) -> object:
        """The value of a field. A missing field whose name is misspelled has its fault already."""
        place = parent.key(field.encode_name)
        value = (
            self._read_nested(field.type, place, raw)
            if _holds_struct(field.type)
            else self._read_layers(field.type, place, raw)
        )
        if value is _MISSING and field.required:
            if not is_misspelled:
                self.faults.append(
                    Fault(place.where, _IS_MISSING, f"set it to {describe(field.type)}")
                )
            return _INVALID
        return value

    def _read_nested(self, kind: TypeInfo, place: _Location, raw: object) -> object:
        """A nested table. It is read also when only the environment or a flag has a value in it."""
        wanted = raw is not _MISSING or any(
            path.startswith(f"{place.path}.") and not all(each.needs_table for each in given)
            for path, given in self._overrides.items()
        )
        if not wanted and not isinstance(without_metadata(kind), kinds.StructType):
            return _MISSING
        if raw is _MISSING or isinstance(raw, dict):
            return self._value(kind, place, {} if raw is _MISSING else raw)
        earlier = len(self.faults)
        self._value(kind, place, {})  # for the faults of the other layers
        self.faults[earlier:] = [
            fault for fault in self.faults[earlier:] if fault.problem != _IS_MISSING
        ]
        return self._value(kind, place, raw)

    def _read_layers(self, kind: TypeInfo, place: _Location, raw: object) -> object:
        """The value of the strongest layer, after a check of every layer."""
        layers = [] if raw is _MISSING else [self._read_layer(kind, place, place.where, raw)]
        for override in self._overrides.get(place.path, ()):
            self._used.add(place.path)
            value = (
                parse_text(kind, override.value)
                if isinstance(override.value, str)
                else override.value
            )
            layers.append(self._read_layer(kind, place, override.where, value, cure=override.cure))
        if _INVALID in layers:
            return _INVALID
        if all(isinstance(value, dict) for value in layers) and layers:
            return {
                key: value
                for layer in cast("list[dict[str, Any]]", layers)
                for key, value in layer.items()
            }
        return layers[-1] if layers else _MISSING

    def _read_layer(
        self, kind: TypeInfo, place: _Location, where: str, raw: object, *, cure: str = ""
    ) -> object:
        self._origins[place.path] = where
        return self._value(kind, replace(place, where=where), raw, cure=cure)

    def _value(self, kind: TypeInfo, place: _Location, raw: object, *, cure: str = "") -> object:
        """Read one value of one layer, of any kind."""
        inner = _container_for(kind, raw)
        match inner:
            case kinds.StructType():
                return self.struct(inner, place, raw)
            case kinds.DictType():
                return self._table(inner, place, cast("dict[str, object]", raw))
            case kinds.ListType() | kinds.VarTupleType():
                return self._list(inner, place, cast("Sequence[object]", raw))
        try:
            return convert(kind, raw)
        except RejectedError:
            return self._reject(kind, place, raw, cure=cure)

    def _list(
        self, kind: kinds.ListType | kinds.VarTupleType, place: _Location, raw: Sequence[object]
    ) -> object:
        items = [
            self._value(kind.item_type, place.at_index(index), item)
            for index, item in enumerate(raw)
        ]
        if _INVALID in items:
            return _INVALID
        return items if isinstance(kind, kinds.ListType) else tuple(items)

    def _table(self, kind: kinds.DictType, place: _Location, raw: dict[str, object]) -> object:
        """Read a table with free keys, such as `env`."""
        table = {
            key: self._value(kind.value_type, place.key(key), item) for key, item in raw.items()
        }
        keys = [self._value(kind.key_type, place.key(key), key) for key in raw]
        self._validate_entries(kind, place, table)
        valid = {
            key: value
            for (key, value), checked in zip(table.items(), keys, strict=True)
            if _INVALID not in (checked, value)
        }
        is_partial = _holds_struct(kind.value_type) and valid and place.can_be_partial
        return valid if is_partial or len(valid) == len(table) else _INVALID

    def _validate_entries(
        self, kind: kinds.DictType, place: _Location, table: dict[str, object]
    ) -> None:
        """Check the entries side by side; an entry with faults of its own is None."""
        judge = getattr(
            getattr(without_metadata(kind.value_type), "cls", None), "faults_among", lambda _: ()
        )
        for key, fault in judge(
            {key: None if value is _INVALID else value for key, value in table.items()}
        ):
            entry = place.key(key)
            where = self._origin(entry, fault.where) if fault.where else entry.where
            self.faults.append(Fault(where, fault.problem, fault.cure))

    def _reject(self, kind: TypeInfo, place: _Location, raw: object, *, cure: str = "") -> object:
        problem = f"must be {describe(kind)}, not {format_value(raw, name=place.name)}"
        if place.is_flag:
            expected = describe_for_flag(kind)
            separator = ";" if ", " in expected else ","
            problem = f"takes {expected}{separator} got '{self._typed(place, raw)}'"
        meant = did_you_mean(raw, choices(kind)) if isinstance(raw, str) else ""
        self.faults.append(Fault(place.where, problem, meant or cure or _quoting_hint(kind, raw)))
        return _INVALID

    def _typed(self, place: _Location, raw: object) -> str:
        """The text of a flag as the user typed it, for messages."""
        typed = [given.value for given in self._overrides[place.path] if given.where == place.where]
        return format_value(typed[-1] if typed else raw, name=place.name).strip('"')

    def _unknown(self, key: str, place: _Location, known: list[str], *, meant: str) -> None:
        otherwise = (
            f"did you mean [{meant}.{toml_key(key)}]?"
            if meant
            else f"valid here: {', '.join(sorted(known))}"
        )
        cure = did_you_mean(key, known, default=otherwise)
        self.faults.append(Fault(place.key(key).where, "unknown key", cure))

    def _validate(self, struct: msgspec.Struct, place: _Location) -> object:
        """The struct after its own `faults()`; `_INVALID` if there are any."""
        found = list(getattr(struct, "faults", tuple)())
        self.faults += [
            Fault(self._origin(place, fault.where), fault.problem, fault.cure) for fault in found
        ]
        return _INVALID if found and place.path else struct

    def _origin(self, place: _Location, inside: str) -> str:
        path = f"{place.path}.{inside}" if place.path else inside
        return self._origins.get(path) or (
            f"{place.where}.{inside}" if place.path else f"{place.where}: {inside}"
        )


def _parent_table(raw: object, fields: Iterable[kinds.Field]) -> str:
    """The table of tables in which one with these keys could stand; empty if there is none."""
    keys = raw.keys() if isinstance(raw, dict) else set()
    homes = (field.encode_name for field in fields if keys and keys <= _entry_keys(field.type))
    return next(homes, "")


def _entry_keys(kind: TypeInfo) -> set[str]:
    """The keys of the entries of a table of structs; empty for any other kind."""
    table = without_metadata(kind)
    entry = without_metadata(table.value_type) if isinstance(table, kinds.DictType) else None
    return (
        {field.encode_name for field in entry.fields}
        if isinstance(entry, kinds.StructType)
        else set()
    )


def _holds_struct(kind: TypeInfo) -> bool:
    return any(
        isinstance(without_metadata(member), kinds.StructType) for member in union_members(kind)
    )


def _container_for(kind: TypeInfo, raw: object) -> TypeInfo | None:
    """The table or list kind among the allowed ones that such a raw value is meant for."""
    tables, lists = (kinds.StructType, kinds.DictType), (kinds.ListType, kinds.VarTupleType)
    wanted = tables if isinstance(raw, dict) else lists if isinstance(raw, list | tuple) else ()
    return next(
        (
            inner
            for inner in map(without_metadata, union_members(kind))
            if isinstance(inner, wanted)
        ),
        None,
    )


def _quoting_hint(kind: TypeInfo, raw: object) -> str:
    """A hint about missing or superfluous quotes."""
    try:
        if isinstance(raw, str):
            convert(kind, parse_text(kind, raw))
            return "write it without quotes"
        convert(kind, str(raw))
    except RejectedError:
        return ""
    return "" if isinstance(raw, dict | list) else "put it in quotes"
