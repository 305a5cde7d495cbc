"""Runs a `podman system service`, for machines where Podman is installed and no service listens.

It is a child of this process in a session of its own. It is not a child of the guardian, because
the `conmon` processes that it starts, one for each container, must outlive us. It ends by itself
when no connection was open for a minute, so it needs no cleanup after kill -9 of this process.

Podman reads `[engine] exit_command_delay = 1` from a file that is written here. With its default,
each command in a container leaves two processes for five minutes. Podman 4.6 and newer read the
file after all others (CONTAINERS_CONF_OVERRIDE). Older versions can only read one file instead of
all others (CONTAINERS_CONF), so that file contains their settings and our key.

Each `conmon` passes that variable on to the `podman container cleanup` that it runs when its
container ends. So the file must stay as long as any container that was started through the service.
It is never removed, and has the digest of its content in its name.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from longwatch.core.masking import mask_text
from longwatch.core.sanitize import MAX_LINE_CHARS, printable
from longwatch.errors import RuntimeUnreachableError
from longwatch.host.blocking_call import BlockingCall
from longwatch.supervisor.plan import child_environment

IDLE_SECONDS = 60
_START_SECONDS = 15.0
_STOP_SECONDS = 5.0
_KILL_SECONDS = 1.0
_POLL_SECONDS = 0.02
_MAX_SOCKET_PATH = 107
_MAX_ERROR_BYTES = 4096
_OVERRIDE_VERSION = (4, 6)
_ENGINE_CONFIG: dict[str, Any] = {"engine": {"exit_command_delay": 1}}
_REMOTE_VARIABLES = frozenset({"CONTAINER_HOST", "CONTAINER_CONNECTION"})
"""With one of them set, `podman` is a client of another service and cannot be a service."""
_PATH_VARIABLES = frozenset(
    {"CONTAINERS_CONF", "CONTAINERS_REGISTRIES_CONF", "CONTAINERS_STORAGE_CONF"}
)
"""Paths made absolute, because the service runs in another directory."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class PodmanService:
    """One `podman system service` process. Create it with `start` and use it on the same event
    loop.
    """

    def __init__(self, process: subprocess.Popen[bytes], socket_path: Path) -> None:
        self.socket_path = socket_path
        self._process = process
        self._errors = _ErrorOutput(process)

    @classmethod
    async def start(
        cls,
        podman: str,
        environ: Mapping[str, str],
        *,
        socket_directory: Path,
        config_directory: Path,
        idle_seconds: int = IDLE_SECONDS,
    ) -> Self:
        """Start the program `podman` as a service and wait until it accepts connections.

        `socket_directory` must be used by this process only. `config_directory` must outlive every
        container that is started through the service. Raises RuntimeUnreachableError if the service
        does not listen.
        """
        socket_path = _new_socket_path(socket_directory)
        env = await _prepare_environment(podman, environ, config_directory)
        service = cls(_spawn(podman, env, socket_path, idle_seconds), socket_path)
        try:
            await service._wait_until_started()
        except BaseException:
            service._kill()
            raise
        return service

    @property
    def pid(self) -> int:
        """The pid of the service; it stays the same for its whole life."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    async def stop(self) -> None:
        """End the service: SIGTERM, after 5 seconds SIGKILL. Its containers keep running.
        Idempotent.
        """
        try:
            if self.is_running:
                self._process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(_STOP_SECONDS):
                while self.is_running:  # noqa: ASYNC110 - the loop has no event for a child's end
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            pass  # killed below
        finally:
            self._kill()

    async def _wait_until_started(self) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                while connection_error(self.socket_path) is not None:
                    if not self.is_running:
                        raise RuntimeUnreachableError(
                            f"`podman system service` ended at once: {self._errors.last_line()}"
                        )
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise RuntimeUnreachableError(
                f"`podman system service` did not listen within {_START_SECONDS:.0f} s: "
                f"{self._errors.last_line()}"
            ) from None

    def _kill(self) -> None:
        """Kill it if it still runs, and free its resources."""
        if self.is_running:
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # it cannot die now: do not wait longer
            self._process.wait(_KILL_SECONDS)
        self._errors.close()
        self.socket_path.unlink(missing_ok=True)


class _ErrorOutput:
    """The last output of the service on stderr, read on the event loop.

    It is read as long as the service runs, so that a full pipe never blocks the service. After our
    end, writing to the pipe ends the service, which then has no task any more.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._pipe = process.stderr
        self._kept = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._pipe.fileno(), False)
        self._loop.add_reader(self._pipe, self._read)

    def last_line(self) -> str:
        """Return the last line so far, formatted for an error."""
        while not self._pipe.closed and self._read():
            pass
        lines = self._kept.decode(errors="replace").strip().splitlines()
        return printable(mask_text(lines[-1]), max_chars=MAX_LINE_CHARS) if lines else "no reason"

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe)
            self._pipe.close()

    def _read(self) -> bool:
        """Read once; return whether there was data."""
        try:
            chunk = os.read(self._pipe.fileno(), _MAX_ERROR_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
        self._kept = (self._kept + chunk)[-_MAX_ERROR_BYTES:]
        return bool(chunk)


def connection_error(socket_path: Path) -> OSError | None:
    """Return why no process accepts connections on this socket; None if one does. Never blocks."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        try:
            connection.connect(os.fspath(socket_path))
        except BlockingIOError:
            return None  # its queue is full
        except OSError as error:
            return error
    return None


def service_environment(
    version: tuple[int, ...], environ: Mapping[str, str], config_directory: Path
) -> dict[str, str]:
    """Return the environment for a Podman of this version: ours without variables that are for us
    alone, plus the configuration. Blocks on files. Raises OSError, or ValueError for a file that is
    not TOML.
    """
    passed = {name: value for name, value in environ.items() if name not in _REMOTE_VARIABLES}
    for name in _PATH_VARIABLES & passed.keys():
        passed[name] = str(Path(passed[name]).absolute())
    variable, files = "CONTAINERS_CONF", config_files(environ)
    if version >= _OVERRIDE_VERSION:
        variable = "CONTAINERS_CONF_OVERRIDE"
        files = [Path(environ[variable])] if environ.get(variable) else []
    merged: dict[str, Any] = {}
    for file in files:
        merged = merge_tables(merged, _read_toml(file))
    merged = merge_tables(merged, _ENGINE_CONFIG)
    return child_environment(passed, {variable: str(_write_config(merged, config_directory))})


def config_files(environ: Mapping[str, str], root: Path = Path("/")) -> list[Path]:
    """Return the files that a Podman before 4.6 reads; the last one wins."""
    if named := environ.get("CONTAINERS_CONF"):
        return [Path(named)]
    files = list(_with_drop_ins(root / "etc/containers/containers.conf"))
    if os.geteuid() != 0:
        home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "/") / ".config"
        files += _with_drop_ins(Path(home) / "containers/containers.conf")
    return [
        file for file in (root / "usr/share/containers/containers.conf", *files) if file.exists()
    ]


def merge_tables(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables. Where both have a key, tables are merged and other values come from
    `over`.
    """
    merged = dict(base)
    for key, value in over.items():
        former = merged.get(key)
        if isinstance(former, Mapping) and isinstance(value, Mapping):
            merged[key] = merge_tables(former, value)
        else:
            merged[key] = value
    return merged


def write_toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Write a TOML document that parses to this table."""
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"[{'.'.join(map(_toml_key, path))}]\n"] if path else []
    lines += [f"{_toml_key(key)} = {_toml_value(value)}\n" for key, value in values.items()]
    tables = (key for key in table if key not in values)
    return "".join([*lines, *(write_toml(table[key], (*path, key)) for key in tables)])


async def _prepare_environment(
    podman: str, environ: Mapping[str, str], config_directory: Path
) -> dict[str, str]:
    """Ask Podman for its version and write its configuration, off the event loop."""

    def prepare() -> dict[str, str]:
        return service_environment(_version(podman, environ), environ, config_directory)

    call = BlockingCall(prepare, name="podman-configuration", timeout=_START_SECONDS)
    try:
        return await call.run()
    except TimeoutError:
        raise RuntimeUnreachableError(
            f"{podman} did not report its version within {_START_SECONDS:.0f} s"
        ) from None
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise RuntimeUnreachableError(
            f"the configuration of podman cannot be prepared: {printable(str(error))}"
        ) from None
    finally:
        call.close()


def _version(podman: str, environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the version as numbers: (4, 3) for `podman version 4.3.1`."""
    shown = subprocess.run(  # noqa: S603 - an argv, no shell
        [podman, "--version"],
        check=False,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_START_SECONDS,
    ).stdout
    found = re.search(r"(\d+)\.(\d+)", shown)
    if found is None:
        raise ValueError(f"{podman} --version shows no version number")
    return tuple(map(int, found.groups()))


def _spawn(
    podman: str, env: Mapping[str, str], socket_path: Path, idle_seconds: int
) -> subprocess.Popen[bytes]:
    command = [podman, "system", "service", "-t", str(idle_seconds), f"unix://{socket_path}"]
    try:
        return subprocess.Popen(  # noqa: S603 - an argv, no shell
            command,
            env=dict(env),
            cwd=socket_path.parent,  # conmon leaves a file `oom` where it was started
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise RuntimeUnreachableError(f"{podman} cannot be run: {error.strerror}") from None


def _new_socket_path(directory: Path) -> Path:
    """Return a new socket path for each service: a service that ends removes its socket, even if
    another service listens on it by then.
    """
    path = directory.absolute() / f"podman-{secrets.token_hex(4)}.sock"
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise RuntimeUnreachableError(f"{path} is too long for a socket; use a shorter directory")
    return path


def _with_drop_ins(file: Path) -> Iterator[Path]:
    yield file
    yield from sorted(file.with_name(file.name + ".d").glob("*.conf"))


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} is not TOML: {error}") from None


def _write_config(table: Mapping[str, Any], directory: Path) -> Path:
    content = write_toml(table).encode()
    path = directory.absolute() / f"containers-{hashlib.sha256(content).hexdigest()[:12]}.conf"
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        draft.write_bytes(content)
        draft.replace(path)
    return path


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _toml_text(key)


def _toml_value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return _toml_text(value)
        case list():
            return f"[{', '.join(map(_toml_value, value))}]"
        case Mapping():
            pairs = (f"{_toml_key(key)} = {_toml_value(each)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        case int() | float():
            return repr(value)
    return str(value.isoformat())


def _toml_text(text: str) -> str:
    """Quote a text. Escapes of JSON are valid in TOML, which also requires DEL to be escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
