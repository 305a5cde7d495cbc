"""Reads the registry `agents.json` and the manifests of its agents into plans.

If the registry cannot be read, an error is raised, and the caller keeps the former plans. An agent
with mistakes still becomes a plan: its `fault` lists what a person must correct, and the agent is
not started. Every other mistake is a warning.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import TypeVar

from longwatch.core.sanitize import printable
from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError
from longwatch.host.process import StopPolicy
from longwatch.supervisor.containers.container_spec import (
    LOOPBACK,
    Bind,
    ContainerSpec,
    PublishedPort,
    PullPolicy,
    container_faults,
    is_container_name,
    is_network_name,
    make_port,
    parse_bind,
    parse_port,
    resolve_bind,
    shown,
)
from longwatch.supervisor.containers.manifest import (
    JsonFileError,
    ManifestReading,
    Section,
    kind_of,
    read_json_object,
    read_manifest,
)
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.restart_policy import Restart, RestartPolicy

MAX_REGISTRY_BYTES = 4 << 20
_STOP_GRACE = 15.0
_MAX_FAULTS = 20
"""At most this many faults of one agent are listed."""

_SIZE = re.compile(r"([0-9]{1,12}) ?([kmgt])(i?)b", re.IGNORECASE)
_PATH_COMPONENT = re.compile(r"(?!\.{1,2}\Z)[^/\\]+")
_ENTRY_KEYS = (
    "agentName",
    "repoName",
    "type",
    "manifestPath",
    "image",
    "command",
    "env",
    "binds",
    "ports",
    "restart",
    "workdir",
    "user",
    "network",
    "memory",
    "stopGrace",
    "stopOnExit",
    "pull",
)
_PRIVILEGE_KEYS = frozenset(
    {
        "capadd",
        "cgroupns",
        "cgroupnsmode",
        "cgroupparent",
        "devicecgrouprules",
        "devicerequests",
        "devices",
        "hostconfig",
        "ipc",
        "ipcmode",
        "networkmode",
        "pid",
        "pidmode",
        "privileged",
        "securityopt",
        "userns",
        "usernsmode",
        "uts",
        "utsmode",
        "volumesfrom",
    }
)
"""Keys that would weaken the isolation of a container: in lower case, without `_` and `-`."""

ItemT = TypeVar("ItemT")
WordT = TypeVar("WordT", bound=StrEnum)


class RegistryError(UsageError):
    """The registry of agents cannot be read. The message says what was found and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryDefaults:
    """The settings of `[containers]` that apply to every agent of a registry."""

    bind_roots: tuple[Path, ...] = ()
    pull: PullPolicy = PullPolicy.MISSING
    stop_on_exit: bool = False
    runtime_sockets: tuple[Path, ...] = ()
    """Sockets of runtimes that must not be bound into a container, in addition to the well-known
    ones.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryReading:
    """The contents of a registry and its manifests."""

    plans: dict[str, ProgramPlan]
    warnings: tuple[str, ...]
    files: tuple[Path, ...]
    """The registry, then every manifest that was looked for, whether it exists or not."""


def read_registry(path: Path, *, defaults: RegistryDefaults) -> RegistryReading:
    """Read the registry and the manifests of its agents. Blocking: call it in a thread.

    Raises RegistryError if the registry itself cannot be read.
    """
    path = path.absolute()
    file = printable(str(path))
    try:
        document, warnings = read_json_object(path, file=file, max_bytes=MAX_REGISTRY_BYTES)
    except JsonFileError as error:
        raise RegistryError(
            f"{file}: expected a registry of agents, a JSON object, found {error}"
        ) from None
    plans, manifests = {}, []
    for entry in _monitored_entries(Section(values=document, file=file, warnings=warnings)):
        reader = _EntryReader(entry, path.parent, defaults)
        plans[entry.place] = reader.plan()
        manifests.append(reader.manifest_path)
    return RegistryReading(
        plans=plans,
        warnings=tuple(warnings),
        files=(path, *dict.fromkeys(manifest for manifest in manifests if manifest is not None)),
    )


def _monitored_entries(registry: Section) -> Iterator[Section]:
    """Yield the entries of agents. Keys that start with `_` are settings of other tools."""
    for name, entry in registry.values.items():
        if name.startswith("_"):
            continue
        if not isinstance(entry, dict):
            problem = f"expected an object, found {kind_of(entry)}, which is ignored"
            registry.warn(name, f"{problem}; write it as {{…}}")
        elif entry.get("type") != "agent":
            continue
        elif not is_container_name(name):
            registry.warn(
                name,
                "expected a container name of up to 64 letters, digits, '.', '_' and '-', a letter "
                "or digit first, found this one, which is ignored; rename it",
            )
        else:
            yield Section(values=entry, file=registry.file, place=name, warnings=registry.warnings)


class _EntryReader:
    """Reads one entry of the registry, and its manifest."""

    def __init__(self, entry: Section, base: Path, defaults: RegistryDefaults) -> None:
        self._entry = entry
        self._base = base
        self._defaults = defaults
        self._agent = self._component("agentName")
        self._repo = self._component("repoName")
        self.manifest_path = self._find_manifest()

    def plan(self) -> ProgramPlan:
        """Return the plan, with a fault if a person must correct something first."""
        self._entry.warn_unknown([*_ENTRY_KEYS, *self._refuse_privileges()])
        manifest = self._read_manifest()
        spec = self._spec(manifest)
        for fault in container_faults(spec):
            self._entry.fault("", fault)
        if spec.network is not None and not is_network_name(spec.network):
            spec = replace(spec, network=None)
        grace = self._entry.seconds("stopGrace", default=_STOP_GRACE)
        restart = self._word("restart", Restart, Restart.ALWAYS)
        return ProgramPlan(
            name=spec.name,
            spec=spec,
            kind=ProgramKind.CONTAINER,
            restart=RestartPolicy(restart=restart),
            stop=StopPolicy(grace=grace or _STOP_GRACE),
            probes=manifest.probes,
            fault=_joined(self._entry.faults),
        )

    def _spec(self, manifest: ManifestReading) -> ContainerSpec:
        return ContainerSpec(
            name=self._entry.place,
            image=self._entry.text("image") or manifest.image,
            command=self._command(),
            env=self._env(),
            binds=self._items("binds", self._bind),
            ports=self._items("ports", _port),
            workdir=self._entry.text("workdir"),
            user=self._user(),
            network=self._entry.text("network"),
            memory=self._memory(),
            pull=self._word("pull", PullPolicy, self._defaults.pull),
            stop_on_exit=self._switch("stopOnExit", default=self._defaults.stop_on_exit),
            agent=self._agent or "",
            repo=self._repo or "",
            manifest_path=str(self.manifest_path or ""),
        )

    def _component(self, key: str) -> str | None:
        """Return a text that is one component of a path; None if it is not set or has a fault."""
        name = self._entry.text(key)
        if name is None or (_PATH_COMPONENT.fullmatch(name) and name.isprintable()):
            return name
        self._entry.fault(
            key, f"expected one name without '/' and '..', found {shown(name)}; correct it"
        )
        return None

    def _find_manifest(self) -> Path | None:
        entry = self._entry
        if entry.get("manifestPath") is not None:
            path = entry.text("manifestPath")
            return None if path is None else Path(self._base, path)
        if self._repo and self._agent:
            return self._base / "repos" / self._repo / self._agent / "manifest.json"
        if entry.get("repoName") is None or entry.get("agentName") is None:
            entry.fault(
                "manifestPath",
                "expected the path of a manifest, found neither it nor both repoName and "
                "agentName; set manifestPath",
            )
        return None

    def _read_manifest(self) -> ManifestReading:
        if self.manifest_path is None:
            return ManifestReading()
        manifest = read_manifest(self.manifest_path)
        self._entry.faults.extend(manifest.faults)
        self._entry.warnings.extend(manifest.warnings)
        return manifest

    def _refuse_privileges(self) -> list[str]:
        """Return the keys that ask for privileges, with a fault for each that is not empty or
        false.
        """
        asked = [
            key
            for key in self._entry.values
            if key.lower().replace("_", "").replace("-", "") in _PRIVILEGE_KEYS
        ]
        for key in asked:
            if self._entry.get(key):
                self._entry.fault(
                    key,
                    "expected no privileges, namespaces or devices of the host, found this key; "
                    "take it out",
                )
        return asked

    def _command(self) -> tuple[str, ...]:
        value = self._entry.get("command")
        try:
            words = shlex.split(value) if isinstance(value, str) else value
        except ValueError:  # a quote is not closed
            words = value
        if words is None:
            return ()
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return tuple(words)
        self._entry.fault(
            "command",
            f"expected a list of texts, or one text with its quotes closed, found "
            f'{kind_of(value)} of another form; write it as ["python3", "agent.py"]',
        )
        return ()

    def _env(self) -> dict[str, str]:
        """Return the variables without those that have a fault. Messages never show a value."""
        if isinstance(self._entry.get("env"), list):
            return dict(self._items("env", _listed_variable))
        section, found = self._entry.section("env"), {}
        if section is None:
            return {}
        for name, value in section.values.items():
            try:
                found[name] = _variable_text(value)
            except ValueError as error:
                section.fault(name.partition("=")[0], str(error))
        return found

    def _items(self, key: str, read: Callable[[object], ItemT]) -> tuple[ItemT, ...]:
        """Return the items of a list, with a fault for each that cannot be read."""
        items, found = self._entry.get(key), []
        if items is not None and not isinstance(items, list):
            self._entry.fault(key, f"expected a list, found {kind_of(items)}; write it as […]")
            return ()
        for number, item in enumerate(items or ()):
            try:
                found.append(read(item))
            except ValueError as error:
                self._entry.fault(f"{key}[{number}]", str(error))
        return tuple(found)

    def _bind(self, item: object) -> Bind:
        roots, sockets = self._defaults.bind_roots, self._defaults.runtime_sockets
        if isinstance(item, str):
            return parse_bind(item, base=self._base, roots=roots, sockets=sockets)
        source, target, read_only = _bind_parts(item)
        return resolve_bind(
            source, target, read_only=read_only, base=self._base, roots=roots, sockets=sockets
        )

    def _user(self) -> str | None:
        value = self._entry.get("user")
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return str(value)
        return self._entry.text("user")

    def _memory(self) -> int | None:
        value = self._entry.get("memory")
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        if isinstance(value, str) and (size := _SIZE.fullmatch(value)):
            power = "kmgt".index(size[2].lower()) + 1
            return int(size[1]) * int((1024 if size[3] else 1000) ** power)
        self._entry.fault(
            "memory",
            f'expected a number of bytes or a size such as "512MB" or "2GiB", found {shown(value)}'
            f"; correct it",
        )
        return None

    def _word(self, key: str, words: type[WordT], default: WordT) -> WordT:
        value, known = self._entry.get(key), [word.value for word in words]
        if value is None:
            return default
        if isinstance(value, str) and value in known:
            return words(value)
        nearest = did_you_mean(value[:64], known) if isinstance(value, str) else ""
        cure = nearest or "write one of these"
        self._entry.fault(key, f"expected one of {', '.join(known)}, found {shown(value)}; {cure}")
        return default

    def _switch(self, key: str, *, default: bool) -> bool:
        value = self._entry.get(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self._entry.fault(key, f"expected true or false, found {kind_of(value)}; correct it")
        return default


def _listed_variable(item: object) -> tuple[str, str]:
    name, sign, value = item.partition("=") if isinstance(item, str) else ("", "", "")
    if not sign:
        raise ValueError(
            f'expected text such as "NAME=value", found {kind_of(item)} without that form; correct '
            f"it"
        )
    return name, value


def _variable_text(value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float() if isinstance(value, int) or isfinite(value):
            return str(value)
    raise ValueError(
        f"expected text, a number, true or false as value, found {kind_of(value)} that is none of "
        f"these; correct it"
    )


def _bind_parts(item: object) -> tuple[str, str, bool]:
    """Return source, target and whether it is read-only, for a bind that is written as an
    object.
    """
    if isinstance(item, dict):
        _require_known(item, ("source", "target", "readOnly"))
        match item.get("source"), item.get("target"), item.get("readOnly", False):
            case [str(source), str(target), bool(read_only)]:
                return source, target, read_only
    raise ValueError(
        f'expected "SOURCE:TARGET", or an object with the texts source and target, and readOnly as '
        f"true or false, found {kind_of(item)} of another form; correct it"
    )


def _port(item: object) -> PublishedPort:
    if isinstance(item, str):
        return parse_port(item)
    if type(item) is int:  # a bool is not accepted
        return make_port(host_port=item, container_port=item)
    if isinstance(item, dict):
        return _port_of_object(item)
    raise ValueError(
        f'expected a port such as 80, "8080:80", or an object with containerPort, found '
        f"{kind_of(item)}; write one of these"
    )


def _port_of_object(item: dict[str, object]) -> PublishedPort:
    _require_known(item, ("hostPort", "containerPort", "host", "protocol"))
    container = item.get("containerPort")
    published = item.get("hostPort", container)
    host, protocol = item.get("host", LOOPBACK), item.get("protocol", "tcp")
    if type(container) is int and type(published) is int:
        match host, protocol:
            case [str(), str()]:
                return make_port(
                    host_port=published, container_port=container, host=host, protocol=protocol
                )
    raise ValueError(
        "expected numbers as containerPort and hostPort, and texts as host and protocol, found an "
        "object of another form; correct it"
    )


def _require_known(options: Iterable[str], known: Collection[str]) -> None:
    """Raise ValueError for an unknown key: a mistyped `readOnly` would make a bind writable."""
    for key in options:
        if key not in known:
            cure = did_you_mean(key[:64], known, default="take it out")
            raise ValueError(f"expected a known key, found {shown(key)}; {cure}")


def _joined(faults: list[str]) -> str:
    more = len(faults) - _MAX_FAULTS
    return "; ".join([*faults[:_MAX_FAULTS], *([f"and {more} more faults"] if more > 0 else [])])
