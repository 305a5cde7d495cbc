"""The spec of a container: a plain value, and the rules that refuse unsafe ones.

There are three kinds of rules. `parse_bind` and `parse_port` refuse texts from a settings file.
`container_faults` finds faults that show only in the whole spec. `moved_binds` checks, right before
a container is created, that every bind still resolves to the same path. No message contains a value
of the environment or an argument of the command.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from longwatch.core.error_text import os_reason
from longwatch.core.masking import mask_text
from longwatch.core.sanitize import is_storable, printable

MIN_MEMORY_BYTES = 6 << 20
"""Docker refuses to create a container with a lower limit."""
_MAX_MEMORY_BYTES = (1 << 63) - 1
_DIGEST_LENGTH = 16
MAX_PORT = 65_535
LOOPBACK = "127.0.0.1"
_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - only compared, not listened on
_MAX_SHOWN_CHARS = 120
_MAX_MASKED_CHARS = 8000

_CONTAINER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NETWORK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PORT = re.compile(
    r"(?:(?:(?P<host>[^\[\]:/]+|\[[^\[\]/]+\]):)?(?P<host_port>[0-9]{1,5}):)?"
    r"(?P<container_port>[0-9]{1,5})(?:/(?P<protocol>[a-z]+))?"
)
_PROTOCOLS = ("tcp", "udp")
_RUNTIME_SOCKETS = tuple(
    f"{directory}/{socket}"
    for directory in ("/run", "/var/run")
    for socket in (
        "docker.sock",
        "podman/podman.sock",
        "containerd/containerd.sock",
        "user/*/docker.sock",
        "user/*/podman/podman.sock",
    )
)
"""`*` stands for any one name."""


class PullPolicy(StrEnum):
    """When the image is pulled before a container is created."""

    NEVER = "never"
    MISSING = "missing"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A directory or file of the host inside the container. `source` is absolute and resolved."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPort:
    """A port of the container that is reachable on the host."""

    host_port: int
    container_port: int
    host: str = LOOPBACK
    protocol: str = "tcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """The spec of one container. `name` is its name in the runtime and that of its program."""

    name: str
    image: str
    command: tuple[str, ...] = ()
    """Empty for the command of the image."""
    env: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[Bind, ...] = ()
    ports: tuple[PublishedPort, ...] = ()
    workdir: str | None = None
    user: str | None = None
    network: str | None = None
    """A network of the runtime, or `none`; never `host` or `container:…`. None for the runtime's
    default.
    """
    memory: int | None = None
    """Bytes; None for no limit."""
    pull: PullPolicy = PullPolicy.MISSING
    log_max_bytes: int = 10 << 20
    """The runtime rotates its log of the container at this size."""
    log_files: int = 3
    stop_on_exit: bool = False
    """Whether it stops with the supervisor, and when it is removed from the settings."""
    script_dir: str = "/code"
    """The directory in which probe scripts run."""
    agent: str = ""
    repo: str = ""
    manifest_path: str = ""

    def digest(self) -> str:
        """Return 16 hex digits that change when the container has to be created anew.

        The order of variables, binds and ports does not matter.
        """
        made_from = {
            "image": self.image,
            "command": self.command,
            "env": sorted(self.env.items()),
            "binds": sorted(astuple(bind) for bind in self.binds),
            "ports": sorted(astuple(port) for port in self.ports),
            "workdir": self.workdir,
            "user": self.user,
            "network": self.network,
            "memory": self.memory,
            "log_max_bytes": self.log_max_bytes,
            "log_files": self.log_files,
        }
        return sha256(json.dumps(made_from).encode()).hexdigest()[:_DIGEST_LENGTH]


def shown(value: object) -> str:
    """Format a value of a settings file for a message: one short line with masked secrets.

    Of a list or an object it shows only the type.
    """
    match value:
        case str():
            masked = mask_text(value[:_MAX_MASKED_CHARS])
            return f"'{printable(masked, max_chars=_MAX_SHOWN_CHARS)}'"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return printable(json.dumps(value), max_chars=_MAX_SHOWN_CHARS)


def is_container_name(text: str) -> bool:
    """Return whether this is a valid name of a container."""
    return _CONTAINER_NAME.fullmatch(text) is not None


def is_network_name(text: str) -> bool:
    """Return whether this names a network of the runtime, and not a namespace of the host or of
    another container.
    """
    return _NETWORK_NAME.fullmatch(text) is not None and text.lower() != "host"


def parse_bind(
    text: str, *, base: Path, roots: Sequence[Path], sockets: Iterable[Path] = ()
) -> Bind:
    """Parse `SOURCE:TARGET`, `SOURCE:TARGET:ro` or `SOURCE:TARGET:rw` into a bind that
    `resolve_bind` checked. Blocking. Raises ValueError if it is not allowed.
    """
    match text.split(":"):
        case [source, target] | [source, target, "rw"]:
            read_only = False
        case [source, target, "ro"]:
            read_only = True
        case _:
            raise ValueError(
                f"expected SOURCE:TARGET, SOURCE:TARGET:ro or SOURCE:TARGET:rw, found "
                f"{shown(text)}; write it in one of these forms"
            )
    return resolve_bind(
        source, target, read_only=read_only, base=base, roots=roots, sockets=sockets
    )


def resolve_bind(  # noqa: PLR0913 - the parts of a bind, and the paths it is checked against
    source: str,
    target: str,
    *,
    read_only: bool,
    base: Path,
    roots: Sequence[Path],
    sockets: Iterable[Path] = (),
) -> Bind:
    """Return the bind of an existing file or directory, with its symlinks resolved. Blocking.

    Raises ValueError unless the source is under one of the roots. Raises it too if the source is a
    socket of a container runtime (`sockets` adds some) or a directory that contains one. A relative
    source or root is relative to `base`.
    """
    target = _clean_target(target)
    resolved = _resolve_source(source, base)
    if _exposes_runtime(resolved, sockets):
        raise ValueError(
            f"expected a source without the socket of the container runtime, found "
            f"{shown(str(resolved))}; bind a directory that has only the container's own files"
        )
    _require_exists(resolved)
    _require_below(resolved, [_real_path(Path(base, root)) for root in roots])
    return Bind(source=str(resolved), target=target, read_only=read_only)


def parse_port(text: str) -> PublishedPort:
    """Parse a port such as `80`, `8080:80`, `127.0.0.1:8080:80` or `[::1]:8080:80`, each with an
    optional `/tcp` or `/udp`. Raises ValueError for any other form.
    """
    found = _PORT.fullmatch(text)
    if found is None:
        raise ValueError(
            f"expected PORT, HOST_PORT:PORT or ADDRESS:HOST_PORT:PORT, found {shown(text)}; write "
            f'it as "127.0.0.1:8080:80", an IPv6 address in brackets, "/udp" at the end for UDP'
        )
    host = found["host"] or LOOPBACK
    return make_port(
        host_port=int(found["host_port"] or found["container_port"]),
        container_port=int(found["container_port"]),
        host=host[1:-1] if host.startswith("[") else host,
        protocol=found["protocol"] or "tcp",
    )


def make_port(
    *, host_port: int, container_port: int, host: str = LOOPBACK, protocol: str = "tcp"
) -> PublishedPort:
    """Build a published port from its parts. Raises ValueError if one is out of range."""
    for port in (host_port, container_port):
        if not 1 <= port <= MAX_PORT:
            raise ValueError(
                f"expected a port from 1 to {MAX_PORT}, found {shown(port)}; choose one in range"
            )
    if protocol not in _PROTOCOLS:
        raise ValueError(
            f"expected the protocol tcp or udp, found {shown(protocol)}; write one of the two"
        )
    return PublishedPort(
        host_port=host_port,
        container_port=container_port,
        host=_clean_address(host),
        protocol=protocol,
    )


def container_faults(spec: ContainerSpec) -> list[str]:
    """Return all faults that prevent this container from being created; empty if there are none."""
    return [
        *_name_faults(spec),
        *_network_faults(spec.network),
        *_memory_faults(spec.memory),
        *_text_faults(spec),
        *_duplicate_faults(spec),
    ]


def moved_binds(spec: ContainerSpec, *, sockets: Iterable[Path] = ()) -> list[str]:
    """Return the faults of binds whose source has changed since the settings were read.

    A source may resolve elsewhere, be gone, or contain the socket of a runtime by now. Call it
    right before a container is created: another container with write access to a bind can put a
    symlink into it at any time. Blocking.
    """
    return [*_moved_binds(spec.binds, [*sockets])]


def _moved_binds(binds: Iterable[Bind], sockets: Sequence[Path]) -> Iterator[str]:
    for bind in binds:
        source = Path(bind.source)
        if _exposes_runtime(source, sockets):
            yield (
                f"expected a bind source without the socket of a runtime, found "
                f"{shown(bind.source)}; bind another directory"
            )
        elif _real_path(source) != source:
            yield (
                f"expected {shown(bind.source)} to be the path it was when the settings were read, "
                f"found that it leads elsewhere; correct the bind and reload"
            )
        elif not os.path.lexists(source):
            yield (f"expected the bind source {shown(bind.source)}, found nothing there; create it")


def _resolve_source(source: str, base: Path) -> Path:
    if not source or not is_storable(source):
        raise ValueError(
            f"expected the path of a file or directory as source, found {shown(source)}; name one"
        )
    resolved = _real_path(Path(base, source))
    # Runtimes take a bind as one text whose parts are separated by colons.
    if ":" in str(resolved) or not is_storable(str(resolved)):
        raise ValueError(
            f"expected a source in UTF-8 without ':' in its path, found {shown(str(resolved))}; "
            f"rename it"
        )
    return resolved


def _require_exists(source: Path) -> None:
    try:
        source.stat()
    except OSError as error:
        raise ValueError(
            f"expected a source that exists, found {shown(str(source))} ({os_reason(error)}); "
            f"create it, or correct the path"
        ) from None


def _require_below(source: Path, roots: Sequence[Path]) -> None:
    if not any(source.is_relative_to(root) for root in roots):
        allowed = ", ".join(shown(str(root)) for root in roots[:5]) or "there are none"
        raise ValueError(
            f"expected a source under one of the bind roots ({allowed}), found "
            f"{shown(str(source))}; move it there, or add its directory to bind_roots"
        )


def _clean_target(target: str) -> str:
    parts = [part for part in target.split("/") if part not in {"", "."}]
    is_plain = is_storable(target) and ":" not in target and ".." not in parts
    if not (target.startswith("/") and parts and is_plain):
        raise ValueError(
            f"expected an absolute path other than '/' as target, without '..' and ':', found "
            f"{shown(target)}; write it as '/data'"
        )
    return "/" + "/".join(parts)


def _clean_address(host: str) -> str:
    try:
        return str(ip_address(host))
    except ValueError:
        raise ValueError(
            f"expected an IP address of this host, found {shown(host)}; write it as '127.0.0.1'"
        ) from None


def _exposes_runtime(source: Path, sockets: Iterable[Path]) -> bool:
    return any(_holds(source, socket) for socket in _runtime_sockets(sockets))


def _holds(source: Path, socket: Path) -> bool:
    """Return whether the socket is the source or is below it."""
    names = zip(source.parts, socket.parts, strict=False)
    return len(source.parts) <= len(socket.parts) and all(
        expected in {"*", found} for found, expected in names
    )


def _runtime_sockets(more: Iterable[Path]) -> set[Path]:
    """Return the paths where runtimes listen: as configured, and with symlinks resolved."""
    named = {*map(Path, _RUNTIME_SOCKETS), *more, *_sockets_of_environment()}
    rootless = {path for user in Path("/run/user").glob("*") for path in _rootless_sockets(user)}
    return named | {_real_path(path) for path in named | rootless}


def _rootless_sockets(runtime_directory: Path) -> tuple[Path, ...]:
    return runtime_directory / "docker.sock", runtime_directory / "podman" / "podman.sock"


def _sockets_of_environment() -> Iterator[Path]:
    for variable in ("DOCKER_HOST", "CONTAINER_HOST"):
        path = os.environ.get(variable, "").removeprefix("unix:")
        if path.startswith("/"):
            yield Path("/" + path.lstrip("/"))
    if directory := os.environ.get("XDG_RUNTIME_DIR"):
        yield from _rootless_sockets(Path(directory))


def _real_path(path: Path) -> Path:
    """Resolve symlinks. Unlike `Path.resolve`, it keeps a loop of symlinks as it is, and never
    raises.
    """
    return Path(os.path.realpath(path))


def _name_faults(spec: ContainerSpec) -> Iterator[str]:
    if not is_container_name(spec.name):
        yield (
            f"expected a container name of up to 64 letters, digits, '.', '_' and '-', a letter or "
            f"digit first, found {shown(spec.name)}; rename it"
        )
    image = spec.image
    if not image:
        yield "expected the name of an image, found none; set image"
    elif image.startswith("-") or " " in image or not image.isprintable():
        yield (
            f"expected an image name without spaces, control characters and a dash in front, found "
            f"{shown(image)}; correct image"
        )


def _network_faults(network: str | None) -> Iterator[str]:
    if network is not None and not is_network_name(network):
        yield (
            f"expected the name of a network of the runtime, never the host's or another "
            f"container's, found {shown(network)}; correct network or take it out"
        )


def _memory_faults(memory: int | None) -> Iterator[str]:
    if memory is not None and not MIN_MEMORY_BYTES <= memory <= _MAX_MEMORY_BYTES:
        yield (
            f"expected a memory limit of at least {MIN_MEMORY_BYTES} bytes (6 MiB) that fits in 63 "
            f'bits, found {shown(memory)}; write one such as "512MiB"'
        )


def _text_faults(spec: ContainerSpec) -> Iterator[str]:
    """Yield a fault for each text that no runtime can pass on. Values are not shown."""
    for number, argument in enumerate(spec.command):
        if not is_storable(argument):
            yield (
                f"expected text without null bytes in UTF-8, found something else in argument "
                f"{number} of command; correct it"
            )
    if spec.workdir is not None and not (
        spec.workdir.startswith("/") and is_storable(spec.workdir)
    ):
        yield (
            f"expected an absolute path as workdir, found {shown(spec.workdir)}; begin it with '/'"
        )
    yield from _variable_faults(spec.env)


def _variable_faults(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if not name or "=" in name or not is_storable(name):
            yield (
                f"expected a variable name without '=' and null bytes, found one that starts with "
                f"{shown(name.partition('=')[0])}; rename it"
            )
        elif not is_storable(value):
            yield (
                f"expected text without null bytes in UTF-8, found something else in the variable "
                f"{shown(name)}; correct its value"
            )


def _duplicate_faults(spec: ContainerSpec) -> Iterator[str]:
    for target, count in Counter(bind.target for bind in spec.binds).items():
        if count > 1:
            yield f"expected one bind for {shown(target)}, found {count}; keep one of them"
    hosts_by_port: dict[tuple[int, str, bool], list[str]] = {}
    for port in spec.ports:
        key = port.host_port, port.protocol, ":" in port.host
        hosts_by_port.setdefault(key, []).append(port.host)
    for (number, protocol, _), hosts in hosts_by_port.items():
        if len(hosts) > (1 if _WILDCARD_HOSTS.intersection(hosts) else len({*hosts})):
            yield (
                f"expected every host port once, found {number}/{protocol} more than once; choose "
                f"another"
            )
