"""Finds the container runtime of this machine: the first of Docker and Podman that answers.

The places, in the order in which they are tried:

    docker   DOCKER_HOST, /var/run/docker.sock, $XDG_RUNTIME_DIR/docker.sock
    podman   CONTAINER_HOST, /run/podman/podman.sock, $XDG_RUNTIME_DIR/podman/podman.sock,
             a `podman system service` of our own

The setting `docker` or `podman` leaves out the places of the other runtime. With `podman`,
DOCKER_HOST is tried last, and counts only if Podman answers there. Only Unix sockets are supported.
A socket without an answer within five seconds is skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from longwatch.core.masking import mask_text
from longwatch.core.sanitize import MAX_LINE_CHARS, printable
from longwatch.errors import ContainerRuntimeError
from longwatch.supervisor.containers.engine_api import EngineApi
from longwatch.supervisor.containers.podman_service import PodmanService, connection_error

DOCKER = "docker"
PODMAN = "podman"
_SCHEME = "unix://"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedRuntime:
    """The runtime that was found, or the reason why there is none."""

    api: EngineApi | None = None
    service: PodmanService | None = None
    """The service that we started, if `api` is connected to it."""
    reason: str = ""
    """Why there is no runtime: a sentence with the places tried and what to do; else empty."""
    passed_over: tuple[str, ...] = ()
    """The places that were tried before, each with its problem."""

    async def close(self) -> None:
        """Close the connection and stop the service, if it is ours. Containers keep running.
        Idempotent.
        """
        if self.api is not None:
            await self.api.close()
        if self.service is not None:
            await self.service.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A place where a runtime may listen. `socket_path` is None if the place is not a Unix
    socket.
    """

    label: str
    socket_path: Path | None
    podman_only: bool = False


async def detect_runtime(  # noqa: PLR0913 - the places to look in, each by name
    setting: str | None,
    environ: Mapping[str, str],
    *,
    socket_directory: Path,
    config_directory: Path,
    root: Path = Path("/"),
    only_own_service: bool = False,
) -> DetectedRuntime:
    """Connect to the first runtime that answers; a result with a `reason` if there is none.

    `setting` is `docker`, `podman`, or any other value for both. The directories are for a service
    of our own: see `PodmanService.start`. The sockets of the system are looked for below `root`,
    unless `only_own_service` is set. Raises UsageError without aiodocker.
    """
    problems: list[str] = []
    for place in () if only_own_service else _places(setting, environ, root):
        found = await _try_place(place)
        if isinstance(found, EngineApi):
            return DetectedRuntime(api=found, passed_over=tuple(problems))
        problems.append(found)
    if setting == DOCKER:
        return _nothing_found(problems, "start Docker, or set DOCKER_HOST to its unix:// socket")
    podman = shutil.which(PODMAN, path=environ.get("PATH"))
    if podman is None:
        problems.append("podman is not in PATH")
        return _nothing_found(problems, "install Podman, or start Docker")
    try:
        service = await PodmanService.start(
            podman, environ, socket_directory=socket_directory, config_directory=config_directory
        )
        api = await _connect(service)
    except ContainerRuntimeError as error:
        problems.append(str(error))
        return _nothing_found(problems, "check that `podman info` works")
    return DetectedRuntime(api=api, service=service, passed_over=tuple(problems))


def _places(setting: str | None, environ: Mapping[str, str], root: Path) -> Iterator[_Place]:
    runtime_dir = environ.get("XDG_RUNTIME_DIR")
    if setting != PODMAN:
        yield from _named_place("DOCKER_HOST", environ)
        yield _place(root / "var/run/docker.sock")
        if runtime_dir:
            yield _place(Path(runtime_dir) / "docker.sock")
    if setting != DOCKER:
        yield from _named_place("CONTAINER_HOST", environ)
        yield _place(root / "run/podman/podman.sock")
        if runtime_dir:
            yield _place(Path(runtime_dir) / "podman/podman.sock")
    if setting == PODMAN:
        yield from _named_place("DOCKER_HOST", environ, podman_only=True)


def _place(socket_path: Path) -> _Place:
    return _Place(label=str(socket_path), socket_path=socket_path)


def _named_place(
    variable: str, environ: Mapping[str, str], *, podman_only: bool = False
) -> Iterator[_Place]:
    """Yield the place that this variable names, if it is set."""
    if not (url := environ.get(variable)):
        return
    shown = printable(mask_text(url), max_chars=MAX_LINE_CHARS)
    path = Path(url.removeprefix(_SCHEME)) if url.startswith(_SCHEME) else None
    yield _Place(label=f"{variable}={shown}", socket_path=path, podman_only=podman_only)


async def _try_place(place: _Place) -> EngineApi | str:
    """Return a connection to the runtime there, or the problem with the place."""
    if place.socket_path is None:
        return f"{place.label}: only unix:// is supported"
    if (error := connection_error(place.socket_path)) is not None:
        return f"{place.label}: {error.strerror or error}"
    try:
        api = await EngineApi.connect(place.socket_path)
    except ContainerRuntimeError as failure:
        return str(failure)
    if place.podman_only and not api.is_podman:
        await api.close()
        return f"{place.label}: Docker answers there"
    return api


async def _connect(service: PodmanService) -> EngineApi:
    try:
        return await EngineApi.connect(service.socket_path)
    except BaseException:
        await service.stop()
        raise


def _nothing_found(problems: list[str], cure: str) -> DetectedRuntime:
    tried = ", ".join(problems)
    return DetectedRuntime(
        reason=f"there is no container runtime ({tried}); {cure}", passed_over=tuple(problems)
    )
