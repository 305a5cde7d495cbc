"""A client of the Docker Engine API on a Unix socket.

Docker and Podman both answer it. aiodocker holds the session, but its requests are not used. They
leave a response open when they are cancelled or get an answer of another type. They decode output
to text, end events at the first line that is not JSON, and fail on an error without a body.

Differences between the two that this module hides:
    a signal to a paused container   Podman delays it until the unpause: unpause first
    removal by force                 Podman waits for the stop timeout first: kill before
    the stop timeout at creation     0 in Podman's API, so that `podman stop` kills: set to 10 s
    not running, name taken          409 of Docker, 500 of Podman: RuntimeRefusedError 409
    a removed container              `destroy` of Docker, `remove` of Podman: RuntimeAction.REMOVE
    a stop by another client         Podman 4 often sends no `stop`, but an extra `cleanup`
    the exit code of a command       Podman forgets it after `exit_command_delay`

Requests time out after 5 s to connect, 30 s to answer, 30 min to pull. Output and events do not.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from longwatch.core.extras import install_command
from longwatch.core.masking import MASK, mask_text
from longwatch.core.sanitize import printable
from longwatch.errors import (
    ContainerRuntimeError,
    RuntimeRefusedError,
    RuntimeUnreachableError,
    UsageError,
)
from longwatch.host.capture import LineSink, LineSplitter
from longwatch.supervisor.containers.container_spec import ContainerSpec, PullPolicy
from longwatch.supervisor.containers.engine_objects import (
    EventReader,
    FrameReader,
    assignments,
    creation_body,
    is_directory,
    parse_inspected,
    parse_listed,
)
from longwatch.supervisor.containers.peer import is_peer_visible
from longwatch.supervisor.containers.runtime import (
    OWNER_LABEL,
    ContainerState,
    ContainerStatus,
    ExecEnd,
    RuntimeEvent,
)

if TYPE_CHECKING:
    from aiodocker import Docker
    from aiohttp import BaseConnector, ClientResponse

_CONNECT_SECONDS = 5.0
_REQUEST_SECONDS = 30.0
_PULL_SECONDS = 1800.0
_REMOVAL_POLL_SECONDS = 0.1
_EXIT_POLL_SECONDS = 0.02
_MAX_EXIT_POLL_SECONDS = 1.0

_NOT_FOUND = 404
_CONFLICT = 409
_FIRST_ERROR = 400
_FIRST_SERVER_ERROR = 500

_MAX_ERROR_BYTES = 1 << 16
_MAX_ERROR_CHARS = 400
_MAX_JSON_LINE = 1 << 20
"""A longer event is skipped. An event contains all labels of its container."""
_MIN_SECRET_CHARS = 4
"""Shorter values of variables are not masked in an error: masking `1` or `on` would garble it."""
_PODMAN_CONFLICT = re.compile("container state improper|container name .* is already in use")
"""Messages of Podman 4 that come with status 500 where Docker answers with 409."""


class _ErrorAnswerError(Exception):
    """The runtime answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


class EngineApi:
    """One connection to Docker or Podman: a `ContainerRuntime`. Create it with `connect`.

    It opens a socket for each request, so it works again as soon as the runtime does.
    """

    def __init__(self, socket_path: str, docker: Docker, connector: BaseConnector) -> None:
        self.socket_path = socket_path
        self.is_podman = False
        self.is_local = is_peer_visible(socket_path)
        self.name = f"the container runtime at {socket_path}"
        self._docker = docker
        self._connector = connector

    @classmethod
    async def connect(cls, socket_path: str | PathLike[str]) -> Self:
        """Connect to the runtime that listens on this socket. Raises UsageError without aiodocker,
        and RuntimeUnreachableError if there is no answer within 5 seconds.
        """
        api = cls(fspath(socket_path), *_make_client(fspath(socket_path)))
        try:
            await api._identify()
        except BaseException:
            await api.close()
            raise
        return api

    async def close(self) -> None:
        """Close the connection: streams end, later calls raise RuntimeUnreachableError.
        Idempotent.
        """
        await self._docker.close()
        await self._connector.close()

    async def list(self, owner: str) -> list[ContainerState]:
        """Return all containers with this owner label, running or not."""
        filters = json.dumps({"label": [f"{OWNER_LABEL}={owner}"]})
        with self._translated("list containers"):
            params = {"all": "1", "filters": filters}
            found = await self._ask("GET", "containers/json", params=params)
            return [parse_listed(container) for container in found]

    async def inspect(self, name: str) -> ContainerState | None:
        """Return the state of one container, by name or id; None if there is none. The API also
        accepts the beginning of an id; a container found that way does not count.
        """
        try:
            with self._translated(f"inspect {name}"):
                found = parse_inspected(await self._ask("GET", _container(name, "json")))
        except RuntimeRefusedError as error:
            if error.status != _NOT_FOUND:
                raise
            return None
        is_exact = name in (found.name, found.id)
        return replace(found, is_local=self.is_local) if is_exact else None

    async def create(self, spec: ContainerSpec, labels: Mapping[str, str]) -> str:
        """Create a container with restart policy `no` and return its id. Pulls the image first, as
        the pull policy says. If the runtime refuses the log limit, creates it without one.
        """
        await self._provide_image(spec)
        body = creation_body(spec, labels)
        try:
            return await self._create(spec, body)
        except RuntimeRefusedError as error:
            if "log driver" not in str(error) and "log opt" not in str(error):
                raise
        del body["HostConfig"]["LogConfig"]
        return await self._create(spec, body)

    async def start(self, container_id: str) -> None:
        """Start it. Does nothing if it runs; RuntimeRefusedError if it is paused."""
        with self._translated(f"start {container_id}"):
            await self._ask("POST", _container(container_id, "start"))

    async def signal(self, container_id: str, signum: int) -> None:
        """Send a signal to its first process; unpause it first if it is paused. Does nothing if it
        does not run or is gone.
        """
        state = await self.inspect(container_id)
        if state is None or not state.is_up:
            return
        if state.status is ContainerStatus.PAUSED:
            with _accepting(_NOT_FOUND, _CONFLICT), self._translated(f"unpause {container_id}"):
                await self._ask("POST", _container(container_id, "unpause"))
        params = {"signal": str(int(signum))}
        with _accepting(_NOT_FOUND, _CONFLICT), self._translated(f"signal {container_id}"):
            await self._ask("POST", _container(container_id, "kill"), params=params)

    async def remove(self, container_id: str) -> None:
        """Remove it and its anonymous volumes, running or not. Does nothing if it is gone."""
        await self.signal(container_id, signal.SIGKILL)
        params = {"force": "1", "v": "1"}
        until = asyncio.get_running_loop().time() + _REQUEST_SECONDS
        while True:
            try:
                with _accepting(_NOT_FOUND), self._translated(f"remove {container_id}"):
                    await self._ask("DELETE", _container(container_id), params=params)
            except RuntimeRefusedError as error:
                # 409: another client removes it, or Podman has not noticed its end yet
                if error.status != _CONFLICT or asyncio.get_running_loop().time() > until:
                    raise
            else:
                return
            await asyncio.sleep(_REMOVAL_POLL_SECONDS)

    async def exec(
        self,
        container_id: str,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str],
        output: LineSink,
    ) -> ExecEnd:
        """Run a command in it and return how it ended. Whole lines of its output go to the sink.
        Cancelling closes the connection and leaves the command running: the API cannot kill it.
        """
        body = {
            "Cmd": list(argv),
            "Env": assignments(env),
            "WorkingDir": cwd or "",
            "AttachStdout": True,
            "AttachStderr": True,
        }
        start = {"Detach": False, "Tty": False}
        with self._translated(f"run a command in {container_id}", env.values()):
            command = await self._ask("POST", _container(container_id, "exec"), json=body)
            exec_id = quote(command["Id"], safe="")
            async with self._open("POST", f"exec/{exec_id}/start", json=start) as response:
                await _copy_lines(response, output)
        return ExecEnd(exit_code=await self._exit_code(container_id, exec_id))

    async def has_file(self, container_id: str, path: str) -> bool:
        """Return whether it has a file at that path; False for a directory. Raises
        RuntimeRefusedError if there is no such container.
        """
        options: dict[str, Any] = {"seconds": _REQUEST_SECONDS, "params": {"path": path}}
        url = _container(container_id, "archive")
        try:
            with self._translated(f"look into {container_id}"):
                async with self._open("HEAD", url, **options) as response:
                    return not is_directory(response.headers["X-Docker-Container-Path-Stat"])
        except RuntimeRefusedError as error:
            if error.status != _NOT_FOUND or await self.inspect(container_id) is None:
                raise
            return False

    async def logs(self, container_id: str, *, since: float) -> AsyncGenerator[bytes, None]:
        """Yield its output since that wall time, in chunks as they come, until it stops. Raises
        RuntimeUnreachableError if the connection is lost.
        """
        params = {"follow": "1", "stdout": "1", "stderr": "1", "since": f"{since:.9f}"}
        url, frames = _container(container_id, "logs"), FrameReader()
        with self._translated(f"follow the output of {container_id}"):
            async with self._open("GET", url, params=params) as response:
                async for chunk in response.content.iter_any():
                    for _, data in frames.feed(chunk):
                        yield data

    async def events(self) -> AsyncGenerator[RuntimeEvent, None]:
        """Yield the events of containers from now on. When the connection is lost, end or raise
        RuntimeUnreachableError. Skip lines that cannot be understood. STOP comes after DIE, except
        for some stops of Podman.
        """
        params = {"filters": json.dumps({"type": ["container"]})}
        lines, reader = LineSplitter(_MAX_JSON_LINE), EventReader()
        with self._translated("follow events"):
            async with self._open("GET", "events", params=params) as response:
                async for chunk in response.content.iter_any():
                    for line in lines.feed(chunk).splitlines():
                        if (event := reader.read(line)) is not None:
                            yield event

    # --- steps ---

    async def _identify(self) -> None:
        """Ask for the version of the runtime and of its API. Podman takes a third of a second to
        answer, because it measures the load of the machine.
        """
        with self._translated("report its version"):
            async with self._open("GET", "version", seconds=_CONNECT_SECONDS) as response:
                version = await response.json(content_type=None)
            parts = {part["Name"] for part in version.get("Components") or ()}
            number = _one_line(str(version["Version"]))
            self._docker.api_version = f"v{version['ApiVersion']}"
        self.is_podman = "Podman Engine" in parts
        self.name = f"{self._kind} {number}"

    @property
    def _kind(self) -> str:
        return "podman" if self.is_podman else "docker"

    async def _create(self, spec: ContainerSpec, body: dict[str, Any]) -> str:
        with self._translated(f"create {spec.name}", spec.env.values()):
            params = {"name": spec.name}
            created = await self._ask("POST", "containers/create", params=params, json=body)
            return str(created["Id"])

    async def _provide_image(self, spec: ContainerSpec) -> None:
        if spec.pull is not PullPolicy.ALWAYS and await self._has_image(spec.image):
            return
        if spec.pull is not PullPolicy.NEVER:
            await self._pull(spec.image)
            return
        image = _one_line(spec.image)
        raise RuntimeRefusedError(
            f'{self.name} has no image {image}, and pull = "never"; run `{self._kind} pull '
            f'{image}`, or set pull = "missing"',
            status=_NOT_FOUND,
        )

    async def _has_image(self, image: str) -> bool:
        try:
            with self._translated(f"look for the image {image}"):
                await self._ask("GET", f"images/{quote(image, safe='')}/json")
        except RuntimeRefusedError as error:
            if error.status != _NOT_FOUND:
                raise
            return False
        return True

    async def _pull(self, image: str) -> None:
        params = {"fromImage": image}
        if not {":", "@"} & set(image.rpartition("/")[2]):
            params["tag"] = "latest"  # without a tag, Docker pulls all of them
        lines = LineSplitter(_MAX_JSON_LINE)
        with self._translated(f"pull {image}"):
            async with self._open(
                "POST", "images/create", seconds=_PULL_SECONDS, params=params
            ) as response:
                async for chunk in response.content.iter_any():
                    _check_pull(lines.feed(chunk))
                _check_pull(lines.flush())

    async def _exit_code(self, container_id: str, exec_id: str) -> int:
        """Return the exit code of a command that closed its output, perhaps before its end."""
        pause = _EXIT_POLL_SECONDS
        while True:
            try:
                with self._translated(f"report the exit code of a command in {container_id}"):
                    found = await self._ask("GET", f"exec/{exec_id}/json")
                    if not found["Running"] and found["ExitCode"] is not None:
                        return int(found["ExitCode"])
            except RuntimeRefusedError as error:
                raise await self._lost_exit_code(container_id, error) from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_EXIT_POLL_SECONDS)

    async def _lost_exit_code(
        self, container_id: str, error: RuntimeRefusedError
    ) -> ContainerRuntimeError:
        """Return the error for a command that the runtime does not know: the container stopped, or
        we asked too late.
        """
        if error.status != _NOT_FOUND:
            return error
        state = await self.inspect(container_id)
        if state is None or not state.is_up:
            return RuntimeRefusedError(
                f"{container_id} stopped while a command ran in it", status=_CONFLICT
            )
        return RuntimeUnreachableError(
            f"{self.name} no longer knows how a command in {container_id} ended; raise "
            f"exit_command_delay in containers.conf if this happens often"
        )

    # --- requests and errors ---

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return the JSON of its answer; None if it has no body."""
        async with self._open(method, path, seconds=_REQUEST_SECONDS, **options) as response:
            return await response.json(content_type=None)

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, *, seconds: float | None = None, **options: Any
    ) -> AsyncIterator[ClientResponse]:
        """Send a request and keep its response open in the block. Once connected, only `seconds`
        limits it.
        """
        import aiohttp  # noqa: PLC0415 - loaded with aiodocker, when containers are used

        version = self._docker.api_version
        response = await self._docker.session.request(
            method,
            f"http://localhost/{path if version == 'auto' else f'{version}/{path}'}",
            timeout=aiohttp.ClientTimeout(total=seconds, connect=_CONNECT_SECONDS),
            **options,
        )
        try:
            if response.status >= _FIRST_ERROR:
                async with asyncio.timeout(_REQUEST_SECONDS):
                    body = await response.content.read(_MAX_ERROR_BYTES)
                raise _ErrorAnswerError(response.status, _error_message(body))
            yield response
        finally:
            response.close()

    @contextmanager
    def _translated(self, action: str, secrets: Iterable[str] = ()) -> Iterator[None]:
        """Translate error answers and the errors of the library into ours. `secrets` are masked
        wherever the runtime repeats them.
        """
        from aiohttp import ClientError  # noqa: PLC0415 - loaded when containers are used

        action = _one_line(action)
        try:
            yield
        except _ErrorAnswerError as error:
            raise self._refusal(action, error, secrets) from None
        except (ClientError, OSError, RuntimeError) as error:  # RuntimeError: we closed the session
            raise self._unreachable(action, _reason(error)) from error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            reason = f"its answer does not follow the Engine API ({type(error).__name__})"
            raise self._unreachable(action, reason) from error

    def _refusal(
        self, action: str, error: _ErrorAnswerError, secrets: Iterable[str]
    ) -> ContainerRuntimeError:
        message = _one_line(error.message, secrets)
        if error.status >= _FIRST_SERVER_ERROR and not message:
            return self._unreachable(action, f"HTTP {error.status} without a reason")
        status = _CONFLICT if _PODMAN_CONFLICT.search(message) else error.status
        message = message or f"HTTP {status}"
        return RuntimeRefusedError(f"{self.name} refused to {action}: {message}", status=status)

    def _unreachable(self, action: str, reason: str) -> RuntimeUnreachableError:
        return RuntimeUnreachableError(f"{self.name} did not {action}: {_one_line(reason)}")


@contextmanager
def _accepting(*statuses: int) -> Iterator[None]:
    """End the block silently if the runtime refuses with one of these statuses."""
    try:
        yield
    except RuntimeRefusedError as error:
        if error.status not in statuses:
            raise


def _make_client(socket_path: str) -> tuple[Docker, BaseConnector]:
    try:
        import aiodocker  # noqa: PLC0415 - an extra, loaded when containers are used
        import aiohttp  # noqa: PLC0415
    except ImportError:
        raise UsageError(
            f"containers need the package aiodocker; run: {install_command('containers')}"
        ) from None
    # No limit, and a socket for each request: so no request waits for another, and none fails
    # because the runtime was restarted since the last one.
    connector = aiohttp.UnixConnector(socket_path, limit=0, force_close=True)
    return aiodocker.Docker("unix://localhost", connector=connector), connector


def _container(name: str, what: str = "") -> str:
    """Return the URL path of a container, or of something below it."""
    return f"containers/{quote(name, safe='')}" + (f"/{what}" if what else "")


async def _copy_lines(response: ClientResponse, output: LineSink) -> None:
    """Write the lines of the response to the sink. A congested sink drops lines, so that the
    command is not delayed.
    """
    frames, splitters = FrameReader(), {1: LineSplitter(), 2: LineSplitter()}
    async for chunk in response.content.iter_any():
        for stream, data in frames.feed(chunk):
            if block := splitters[stream].feed(data):
                output.write(block)
    for splitter in splitters.values():
        if block := splitter.flush():
            output.write(block)


def _check_pull(block: bytes) -> None:
    """Raise the error that a pull reports in its progress, after the status 200."""
    for line in block.splitlines():
        if message := json.loads(line).get("error"):
            raise _ErrorAnswerError(0, str(message))


def _error_message(body: bytes) -> str:
    text = body.decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (LookupError, TypeError, ValueError):
        return text


def _one_line(text: str, secrets: Iterable[str] = ()) -> str:
    """Format a text of the runtime or of the settings for an error."""
    for secret in secrets:
        if len(secret) >= _MIN_SECRET_CHARS:
            text = text.replace(secret, MASK)
    return printable(mask_text(" ".join(text.split())), max_chars=_MAX_ERROR_CHARS)


def _reason(error: BaseException) -> str:
    """Return why there is no answer, without the address, which is in the name of the runtime."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, TimeoutError):
        return "it did not answer in time"
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
