"""A Podman with a store of its own, for tests that start containers; and a stand-in for a runtime
that answers what a test wants.

Storage, locks, events and network configuration are in one temporary directory, named by the
variables CONTAINERS_CONF and CONTAINERS_STORAGE_CONF in `PrivatePodman.env`. The command line, a
service, a service of the product, and the `docker` client by DOCKER_HOST all see the same
containers, and none of the machine's own.

Images: `IMAGE` has a busybox with the usual commands, `IMAGE_WITHOUT_TIMEOUT` the same without
`timeout`. Containers need `network="none"`, unless a test is about ports.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil

from longwatch.host.guardian.kernel import become_subreaper
from longwatch.supervisor.containers.podman_service import connection_error
from polling import eventually
from process_facts import process_name
from requires import require_tool

TIMEOUT = 120.0
IMAGE = "localhost/bb:1"
IMAGE_WITHOUT_TIMEOUT = "localhost/notimeout:1"
_COMMANDS = (
    *("sh", "sleep", "true", "false", "cat", "echo", "kill", "timeout", "test", "ls", "ps"),
    *("head", "mkdir", "touch", "rm", "httpd", "nc"),
)
# The limits: a root that lacks some capabilities cannot raise them. File locks: those in shared
# memory would be shared with the machine's own Podman. exit_command_delay: else each command in a
# container leaves two processes for five minutes.
_CONTAINERS_CONF = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/tmp"
exit_command_delay = 1
[containers]
default_ulimits = ["nofile=10000:10000", "nproc=1000:1000"]
[network]
network_config_dir = "{folder}/networks"
"""
_STORAGE_CONF = """\
[storage]
driver = "vfs"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""
_FOREIGN_VARIABLES = {"DOCKER_HOST", "CONTAINER_HOST", "CONTAINER_CONNECTION"}


class PodmanServer:
    """A `podman system service` on one socket; to be killed and started again."""

    def __init__(self, socket_path: Path, env: Mapping[str, str]) -> None:
        self.socket_path = socket_path
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self._process = subprocess.Popen(
            ["podman", "system", "service", "-t", "0", f"unix://{self.socket_path}"],
            env=self._env,
            cwd=self.socket_path.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert eventually(lambda: connection_error(self.socket_path) is None, TIMEOUT)

    def stop(self) -> None:
        """As an operator would; containers run on."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a crash would: the socket stays behind; containers run on."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """From here on it accepts connections and answers none."""
        os.kill(self.pid, signal.SIGSTOP)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(TIMEOUT)
            self._process = None


class PrivatePodman:
    """Podman with a store below one folder, and everything that a test wants of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        for name, content in (("containers", _CONTAINERS_CONF), ("storage", _STORAGE_CONF)):
            (folder / f"{name}.conf").write_text(content.format(folder=folder))
        self.env = {
            **{name: value for name, value in os.environ.items() if name not in _FOREIGN_VARIABLES},
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }

    def run(self, *words: str, stdin: bytes = b"", check: bool = True) -> str:
        """What `podman WORDS` prints."""
        return self._run(["podman", *words], self.env, stdin, check=check)

    def succeeds(self, *words: str) -> bool:
        """Whether `podman WORDS` exits with 0."""
        return self._done(["podman", *words], self.env).returncode == 0

    def logs(self, name: str) -> list[str]:
        """The lines of a container so far, those of stdout and then those of stderr."""
        done = self._done(["podman", "logs", name], self.env)
        return (done.stdout + done.stderr).decode().splitlines()

    def docker(self, socket_path: Path, *words: str) -> str:
        """What `docker WORDS` prints, with the client of Docker on this socket."""
        return self._run(["docker", *words], {**self.env, "DOCKER_HOST": f"unix://{socket_path}"})

    def new_name(self) -> str:
        """A name for a container, or a socket, that no other test uses."""
        return f"c{next(self._numbers)}"

    @contextmanager
    def serving(self) -> Iterator[PodmanServer]:
        """A service that runs, on a socket of its own."""
        server = PodmanServer(self.folder / f"{self.new_name()}.sock", self.env)
        try:
            server.start()
            yield server
        finally:
            server.kill()

    def add_image(self, name: str, commands: Iterable[str]) -> None:
        self.run("import", "-", name, stdin=_image_archive(commands))

    def remove_containers(self) -> None:
        """Remove all, running or not. Helpers of commands in them end within a second or two.

        Podman refuses to remove one that ends in this very moment, so it is asked until none is
        left.
        """

        def none_left() -> bool:
            self.run("rm", "--all", "--force", "--time", "0", check=False)
            return not self.run("ps", "--all", "--quiet")

        assert eventually(none_left, TIMEOUT)

    def check_nothing_left(self) -> None:
        """Fails if a helper of a container, or a mount, is left once all were removed."""
        assert eventually(lambda: not self.helpers("conmon", "runc"), TIMEOUT)
        assert eventually(lambda: not self.mounts(), TIMEOUT)

    def conmon(self, name: str) -> psutil.Process:
        """The process that holds a running container."""
        pid = int(self.run("inspect", "--format", "{{.State.ConmonPid}}", name))
        return psutil.Process(pid)

    def helpers(self, *names: str) -> list[psutil.Process]:
        """The processes that work on this store, or those of them with these names: `podman`,
        `conmon`, `runc`.
        """
        return [
            process
            for process in psutil.process_iter()
            if self._is_helper(process) and (not names or process_name(process) in names)
        ]

    def mounts(self) -> list[str]:
        """What is mounted below the folder."""
        points = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
        return [point for point in points if point.startswith(f"{self.folder}/")]

    def destroy(self) -> None:
        """Remove the containers, end what is left of processes and mounts, remove the folder."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.remove_containers()
            self.check_nothing_left()
        for process in self.helpers():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for point in self.mounts():
            subprocess.run(["umount", "--lazy", point], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_helper(self, process: psutil.Process) -> bool:
        mark = f"{self.folder}/"
        try:
            texts = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            return False
        return process.pid != os.getpid() and any(mark in text for text in texts)

    @staticmethod
    def _run(
        command: list[str], env: Mapping[str, str], stdin: bytes = b"", *, check: bool = True
    ) -> str:
        done = PrivatePodman._done(command, env, stdin)
        assert not check or done.returncode == 0, f"{command} failed: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    @staticmethod
    def _done(
        command: list[str], env: Mapping[str, str], stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command, check=False, env=dict(env), input=stdin, capture_output=True, timeout=TIMEOUT
        )


@cache
def shared_podman() -> PrivatePodman:
    """The private Podman of this test process, made when it is first asked for and removed when the
    process exits. It holds no process of its own.

    A helper that loses its parent goes to init: an earlier test may have made this process a
    subreaper, and then each of them would look like a child that was left behind.
    """
    require_tool("podman")
    require_tool("runc")
    require_tool("busybox-static")
    become_subreaper(on=False)
    podman = PrivatePodman(Path(tempfile.mkdtemp(prefix="lw-podman-")))
    atexit.register(podman.destroy)
    podman.add_image(IMAGE, _COMMANDS)
    podman.add_image(IMAGE_WITHOUT_TIMEOUT, [each for each in _COMMANDS if each != "timeout"])
    return podman


def _image_archive(commands: Iterable[str]) -> bytes:
    """A root file system as a tar: busybox, links to it, /code and /tmp."""
    program = shutil.which("busybox")
    assert program is not None
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("bin", "code", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        busybox = archive.gettarinfo(Path(program).resolve(), "bin/busybox")
        with Path(program).open("rb") as content:
            archive.addfile(busybox, content)
        for name in commands:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return buffer.getvalue()


# --- the stand-in ---


def http(status: int, body: object = b"", content_type: str = "application/json") -> bytes:
    """An answer: bytes as they are, everything else as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"HTTP/1.1 {status} Status\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


def version_answer(component: str, version: str) -> bytes:
    """What `/version` answers: `Podman Engine` or `Engine`, and its version."""
    parts = [{"Name": component, "Version": version}]
    return http(200, {"Components": parts, "Version": version, "ApiVersion": "1.41"})


DOCKER_VERSION = version_answer("Engine", "28.2.2")
PODMAN_VERSION = version_answer("Podman Engine", "5.4.2")


@asynccontextmanager
async def runtime_stub(
    socket_path: Path, answers: Mapping[str, bytes | None] | None = None
) -> AsyncIterator[list[str]]:
    """A server on this socket that answers by `METHOD /path` (without query and API version); the
    requests that came. The answer None is none at all; an unknown path is 404; `/version` is
    Docker's unless told. `answers` may be changed meanwhile.
    """
    known = answers or {}
    usual = {"GET /version": DOCKER_VERSION, "GET /_ping": http(200, b"OK")}
    requests: list[str] = []
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            method, target = await _read_request(reader)
            requests.append(f"{method} {target}")
            path = f"{method} {target.partition('?')[0]}"
            answer = known.get(path, usual.get(path, http(404, {"message": "no"})))
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, socket_path)
    try:
        yield requests
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        socket_path.unlink(missing_ok=True)  # noqa: ASYNC240 - one local file


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Method and target of one request; its body is read and dropped."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = head.split("\r\n")
    method, target, _ = lines[0].split(" ")
    for line in lines[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            await reader.readexactly(int(value))
    version, _, rest = target.removeprefix("/").partition("/")
    return method, f"/{rest}" if version.startswith("v1.") else target
