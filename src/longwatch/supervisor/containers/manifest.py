"""Reads an agent's `manifest.json`: its image, its probes and the mistakes in them.

A `Section` reads one JSON object of such a file. A mistake that a person must correct becomes a
fault, and an agent with a fault is not started. A bad number is replaced by the default, with a
warning.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from longwatch.core.error_text import os_reason
from longwatch.core.masking import mask_text
from longwatch.core.sanitize import is_storable, printable
from longwatch.core.suggest import did_you_mean
from longwatch.supervisor.containers.container_spec import MAX_PORT, shown
from longwatch.supervisor.probes import (
    CRASH_LOOP_BACKOFF,
    HttpProbe,
    Probe,
    ProbePolicy,
    ProbeSet,
    ScriptProbe,
    StartupPolicy,
    TcpProbe,
)

MAX_MANIFEST_BYTES = 1 << 20
_MIN_SECONDS = 0.01
"""The shortest interval or timeout; a shorter one counts as a mistake."""
_YEAR_SECONDS = 31_536_000
_MAX_COUNT = 1_000_000
_MAX_UNKNOWN_KEYS = 10
"""At most this many unknown keys of one object get a warning each."""
_MAX_KEY_CHARS = 64
_MAX_PLACE_CHARS = 200
_MAX_PATH_CHARS = 1000

_INTERVAL = 1.0
_SETTLED_INTERVAL = 10.0
"""The interval after the first success, unless the manifest sets `interval`."""
_TIMEOUT = 5.0
_FAILURES = 5
_STARTUP_FAILURES = 30
_SUCCESSES = 1

_URL_PATH_DEFAULT = "/health"
_NO_HEALTH = ProbeSet(crash_loop=CRASH_LOOP_BACKOFF)

_SCRIPT_NAME = re.compile(r"(?!-)(?!\.\Z)(?!.*\.\.)[A-Za-z0-9._-]{1,128}")
_URL_PATH = re.compile(r"/[!-~]*")
_PROBE_KINDS = ("script", "http", "tcp")
_PROBE_KEYS = (*_PROBE_KINDS, "interval", "timeout", "failureThreshold", "successThreshold")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestReading:
    """The contents of a manifest. Its agent must not be started while it has faults."""

    image: str = ""
    """Empty if the manifest names none."""
    probes: ProbeSet = _NO_HEALTH
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_manifest(path: Path) -> ManifestReading:
    """Read a manifest. A file that cannot be read becomes a fault. Blocking; never raises."""
    file = printable(str(path), max_chars=_MAX_PATH_CHARS)
    try:
        document, warnings = read_json_object(path, file=file, max_bytes=MAX_MANIFEST_BYTES)
    except JsonFileError as error:
        return ManifestReading(faults=(f"{file}: expected a manifest, found {error}",))
    return parse_manifest(document, file=file, warnings=warnings)


def parse_manifest(
    document: Mapping[str, object], *, file: str = "manifest", warnings: Collection[str] = ()
) -> ManifestReading:
    """Read a manifest that is already decoded; `file` is its name in messages."""
    manifest = Section(values=document, file=file, warnings=[*warnings])
    probes = _read_probes(manifest)
    images = (manifest.get("image"), manifest.get("container"))
    return ManifestReading(
        image=next((image for image in images if isinstance(image, str) and image), ""),
        probes=probes,
        faults=tuple(manifest.faults),
        warnings=tuple(manifest.warnings),
    )


class JsonFileError(Exception):
    """A file is missing or is not a JSON object. The message says what was found and what to do."""


def read_json_object(
    path: Path, *, file: str, max_bytes: int
) -> tuple[dict[str, object], list[str]]:
    """Return the object in a file, and a warning for each key that an object has twice.

    `file` is the name of the file in the warnings. Opens the file once. Blocking. Raises
    JsonFileError if it cannot be read.
    """
    repeated: dict[str, None] = {}
    document = _decode(_read_bytes(path, max_bytes), repeated)
    if not isinstance(document, dict):
        raise JsonFileError(f'{kind_of(document)} at the top; write an object: {{"KEY": …}}')
    return document, [
        f"{file}: expected the key {shown(key)} once in its object, found it again, and the last "
        f"value counts; remove the others"
        for key in [*repeated][:_MAX_UNKNOWN_KEYS]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One JSON object of a settings file, at `place` (empty for the whole file).

    Reads its values, and records mistakes in `faults` and `warnings`, which the sections below it
    share. A value that is null counts as not set.
    """

    values: Mapping[str, object]
    file: str
    place: str = ""
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def fault(self, key: str, problem: str) -> None:
        """Record a mistake that a person must correct."""
        self.faults.append(f"{self._where(key)}: {problem}")

    def warn(self, key: str, problem: str) -> None:
        """Record a value that is ignored or replaced by a default."""
        self.warnings.append(f"{self._where(key)}: {problem}")

    def get(self, key: str) -> object:
        """Return the decoded value; None if it is not set."""
        return self.values.get(key)

    def text(self, key: str) -> str | None:
        """Return a text that is not empty and storable; None if it is not set or has a fault."""
        value = self.get(key)
        if value is None or (isinstance(value, str) and value and is_storable(value)):
            return value
        self.fault(key, f"expected text that is not empty, found {shown(value)}; correct it")
        return None

    def section(self, key: str) -> Section | None:
        """Return the section under a key; None if it is not set or has a fault."""
        value = self.get(key)
        if isinstance(value, dict):
            return self.at(key, value)
        if value is not None:
            self.fault(key, f"expected an object, found {kind_of(value)}; write it as {{…}}")
        return None

    def at(self, key: str, values: Mapping[str, object]) -> Section:
        """Build a section for an object below this one."""
        return Section(
            values=values,
            file=self.file,
            place=f"{self.place}.{key}" if self.place else key,
            faults=self.faults,
            warnings=self.warnings,
        )

    def seconds(self, key: str, *, default: float) -> float | None:
        """Return a duration in seconds; None if it is not set, or out of range: then it warns that
        the default is used.
        """
        value = self.get(key)
        if _is_number(value) and _MIN_SECONDS <= value <= _YEAR_SECONDS:
            return float(value)
        if value is not None:
            expected = f"a number of seconds from {_MIN_SECONDS} to a year"
            self._warn_bad_number(key, expected, value, default)
        return None

    def count(self, key: str, *, default: int) -> int:
        """Return a whole number from 1 up; the default if it is not set, or, with a warning, out of
        range.
        """
        value = self.get(key)
        if _is_number(value) and 1 <= value <= _MAX_COUNT and value == int(value):
            return int(value)
        if value is not None:
            expected = f"a whole number from 1 to {_MAX_COUNT}"
            self._warn_bad_number(key, expected, value, default)
        return default

    def port(self, key: str) -> int | None:
        """Return a port; None with a fault if it is wrong or not set."""
        value = self.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_PORT:
            return value
        self.fault(
            key, f"expected a port from 1 to {MAX_PORT}, found {shown(value)}; write a number"
        )
        return None

    def warn_unknown(self, known: Collection[str]) -> None:
        """Warn about each unknown key, and beyond the first few about all others at once. A key
        that starts with `_` is a comment or belongs to another tool.
        """
        unknown = [key for key in self.values if key not in known and not key.startswith("_")]
        for key in unknown[:_MAX_UNKNOWN_KEYS]:
            cure = did_you_mean(key[:_MAX_KEY_CHARS], known, default="take it out")
            self.warn(key, f"expected a known key, found this one, which is ignored; {cure}")
        if (more := len(unknown) - _MAX_UNKNOWN_KEYS) > 0:
            self.warn("", f"expected known keys, found {more} more that are ignored; correct them")

    def _where(self, key: str) -> str:
        place = ".".join(part for part in (self.place, key[:_MAX_KEY_CHARS]) if part)
        shown_place = printable(mask_text(place), max_chars=_MAX_PLACE_CHARS)
        return f"{self.file}: {shown_place}" if place else self.file

    def _warn_bad_number(self, key: str, expected: str, value: object, default: float) -> None:
        self.warn(
            key, f"expected {expected}, found {shown(value)}, so {default:g} is used; correct it"
        )


def kind_of(value: object) -> str:
    """Return the type of a JSON value, for a message that must not show the value."""
    match value:
        case None:
            return "null"
        case str():
            return "text"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case _:
            return "a list" if isinstance(value, list) else "an object"


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _read_regular(fd, max_bytes)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise JsonFileError("no such file; create it, or correct its path") from None
    except OSError as error:
        raise JsonFileError(
            f"a file that cannot be read ({os_reason(error)}); let this user read it, or correct "
            f"its path"
        ) from None
    except ValueError:
        raise JsonFileError("a path that no file can have; correct it") from None


def _read_regular(fd: int, max_bytes: int) -> bytes:
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "something that is not a regular file"
        raise JsonFileError(f"{kind}; name a JSON file")
    with open(fd, "rb", closefd=False) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise JsonFileError(f"more than {max_bytes >> 20} MiB; name the right file, or shorten it")
    return data


def _decode(data: bytes, repeated: dict[str, None]) -> object:
    """Decode the JSON value; keys that an object has twice go to `repeated`."""

    def build_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        built = dict(pairs)
        if len(built) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated.update(dict.fromkeys(key for key, count in counts.items() if count > 1))
        return built

    try:
        decoded: object = json.loads(data.decode("utf-8-sig"), object_pairs_hook=build_object)
    except UnicodeDecodeError:
        raise JsonFileError("text that is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise JsonFileError(
            f"text that is not valid JSON at line {error.lineno}, column {error.colno} "
            f"({printable(error.msg[:100]).lower()}); correct it there"
        ) from None
    except (ValueError, RecursionError):
        raise JsonFileError(
            "a number too long or objects nested too deep to read; shorten them"
        ) from None
    return decoded


def _read_probes(manifest: Section) -> ProbeSet:
    health = manifest.section("health")
    if health is None:
        return _NO_HEALTH
    health.warn_unknown(("liveness", "readiness", "startup"))
    return ProbeSet(
        liveness=_read_policy(health.section("liveness")),
        readiness=_read_policy(health.section("readiness")),
        startup=_read_startup(health.section("startup")),
        crash_loop=CRASH_LOOP_BACKOFF,
    )


def _read_policy(section: Section | None) -> ProbePolicy | None:
    if section is None:
        return None
    probe = _read_probe(section)
    interval = section.seconds("interval", default=_INTERVAL)
    timeout = section.seconds("timeout", default=_TIMEOUT)
    failures = section.count("failureThreshold", default=_FAILURES)
    successes = section.count("successThreshold", default=_SUCCESSES)
    if probe is None:
        return None
    return ProbePolicy(
        probe=probe,
        interval=interval or _INTERVAL,
        timeout=timeout or _TIMEOUT,
        failures=failures,
        successes=successes,
        start_grace=0.0,
        settled_interval=None if interval else _SETTLED_INTERVAL,
    )


def _read_startup(section: Section | None) -> StartupPolicy | None:
    if section is None:
        return None
    probe = _read_probe(section)
    interval = section.seconds("interval", default=_INTERVAL) or _INTERVAL
    timeout = section.seconds("timeout", default=_TIMEOUT) or _TIMEOUT
    failures = section.count("failureThreshold", default=_STARTUP_FAILURES)
    if section.count("successThreshold", default=_SUCCESSES) != _SUCCESSES:
        section.warn("successThreshold", "expected 1, found more, so 1 is used; take it out")
    if probe is None:
        return None
    return StartupPolicy(
        probe=probe, within=interval * failures, interval=interval, timeout=timeout
    )


def _read_probe(section: Section) -> Probe | None:
    """Return the probe of a section; None with a fault."""
    section.warn_unknown(_PROBE_KEYS)
    match [kind for kind in _PROBE_KINDS if section.get(kind) is not None]:
        case ["script"]:
            return _read_script(section)
        case ["http"]:
            return _read_http(section.section("http"))
        case ["tcp"]:
            return _read_tcp(section.section("tcp"))
        case kinds:
            found = " and ".join(kinds) or "none of them"
            section.fault("", f"expected one of script, http and tcp, found {found}; keep one")
            return None


def _read_script(section: Section) -> ScriptProbe | None:
    script = section.get("script")
    if isinstance(script, str) and _SCRIPT_NAME.fullmatch(script):
        return ScriptProbe(script=script)
    section.fault(
        "script",
        f"expected a file name of up to 128 letters, digits, '.', '_' and '-', without '..' and a "
        f"dash in front, found {shown(script)}; rename the script",
    )
    return None


def _read_http(section: Section | None) -> HttpProbe | None:
    if section is None:
        return None
    section.warn_unknown(("port", "path"))
    port, path = section.port("port"), section.get("path")
    path = _URL_PATH_DEFAULT if path is None else path
    if not (isinstance(path, str) and _URL_PATH.fullmatch(path)):
        section.fault(
            "path",
            f"expected a URL path that begins with '/' and has no spaces, found {shown(path)}; "
            f"correct it",
        )
        return None
    return None if port is None else HttpProbe(port=port, path=path)


def _read_tcp(section: Section | None) -> TcpProbe | None:
    if section is None:
        return None
    section.warn_unknown(("port",))
    port = section.port("port")
    return None if port is None else TcpProbe(port=port)
