"""A Podman with a store, locks and events in one directory, and what the kernel says of its
processes.

The variables CONTAINERS_CONF and CONTAINERS_STORAGE_CONF name that directory to everything that is
started here, so the machine's own containers are never seen.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from supervisor_bench.proc import PROC

IMAGE = "localhost/bench:1"
PROBE_SCRIPT = "probe.sh"
MARKS_DIRECTORY = "/marks"
"""Where a container finds `PrivatePodman.marks`."""
TIMEOUT = 60.0
HELPERS = ("conmon", "podman", "runc")
_TOOLS = ("podman", "runc", "busybox")
_COMMANDS = ("sh", "sleep", "timeout", "true")
_FOREIGN_VARIABLES = frozenset({"DOCKER_HOST", "CONTAINER_HOST", "CONTAINER_CONNECTION"})
# File locks: those in shared memory would be shared with the machine's own Podman.
# exit_command_delay: what our own service sets. The limits: a root that lacks some capabilities
# cannot raise them.
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


class ContainerTrialError(Exception):
    """Something did not happen that a trial waits for."""


@dataclass(frozen=True)
class PodmanService:
    """A `podman system service` that runs."""

    pid: int
    socket: Path


class PrivatePodman:
    """Podman with a store below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks = folder / "marks"
        self.marks.mkdir()
        for name, content in (("containers", _CONTAINERS_CONF), ("storage", _STORAGE_CONF)):
            (folder / f"{name}.conf").write_text(content.format(folder=folder), encoding="utf-8")
        self.env = {
            **{name: value for name, value in os.environ.items() if name not in _FOREIGN_VARIABLES},
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }

    def run(self, *words: str, stdin: bytes = b"", check: bool = True) -> str:
        """What `podman WORDS` prints."""
        done = subprocess.run(
            ["podman", *words],
            check=False,
            env=self.env,
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT,
        )
        if check and done.returncode:
            error = done.stderr.decode(errors="replace").strip()
            raise ContainerTrialError(f"`podman {words[0]}` failed: {error}")
        return done.stdout.decode().strip()

    @contextmanager
    def serving(self) -> Iterator[PodmanService]:
        """A new service. It ends by itself, too, once it had no connection for ten minutes."""
        socket = self.folder / f"{time.monotonic_ns():x}.sock"
        process = subprocess.Popen(
            ["podman", "system", "service", "-t", "600", f"unix://{socket}"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(socket.exists, "the service does not listen")
            yield PodmanService(process.pid, socket)
        finally:
            process.kill()
            process.wait()

    def started(self, name: str) -> int:
        """How often the program of a container has begun to run; see `marking_command`."""
        try:
            return (self.marks / name).stat().st_size
        except FileNotFoundError:
            return 0

    def helpers(self, *, without: int = 0) -> dict[int, str]:
        """The processes that work on this store and are no container, by pid: `conmon`, `podman`
        or `runc`. The service's own pid is left out.
        """
        mark = f"{self.folder}/".encode()
        found = {}
        for place in PROC.iterdir():
            if not place.name.isdecimal() or int(place.name) == without:
                continue
            with suppress(OSError):  # it has ended
                name = (place / "comm").read_text().strip().partition(":")[0]
                if name in HELPERS and (
                    mark in (place / "cmdline").read_bytes()
                    or mark in (place / "environ").read_bytes()
                ):
                    found[int(place.name)] = name
        return found

    def remove_containers(self) -> None:
        """Remove all, running or not, and wait until their helpers are gone."""
        self.run("rm", "--all", "--force", "--time", "0")
        wait_until(
            lambda: "conmon" not in self.helpers().values(), "a conmon outlives its container"
        )

    def destroy(self) -> None:
        """Remove the containers, end what is left of processes and mounts, remove the folder."""
        try:
            with suppress(ContainerTrialError, subprocess.SubprocessError):
                self.run("rm", "--all", "--force", "--time", "0")
        finally:
            for pid in self.helpers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._unmount()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _unmount(self) -> None:
        points = (line.split()[1] for line in (PROC / "mounts").read_text().splitlines())
        for point in points:
            if point.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", point], check=False)


def missing_tool() -> str | None:
    """What has to be installed first, in one line; None if everything is there."""
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if b"/ld-linux" in _busybox().read_bytes()[:4096]:
        return "busybox is not linked statically; install busybox-static"
    return None


@contextmanager
def private_podman() -> Iterator[PrivatePodman]:
    """A store with one image, which is gone afterwards with everything that ran from it."""
    podman = PrivatePodman(Path(tempfile.mkdtemp(prefix="longwatch-bench-")))
    try:
        podman.run("import", "-", IMAGE, stdin=_image_archive())
        yield podman
    finally:
        podman.destroy()


def marking_command(name: str) -> tuple[str, ...]:
    """A program that adds one byte to its file in `PrivatePodman.marks` as it begins, and stays."""
    return ("sh", "-c", f"printf . >> {MARKS_DIRECTORY}/{name}; exec sleep 100000")


def kill_process(pid: int) -> float:
    """Kill -9, and the moment of it."""
    if pid <= 1:
        raise ContainerTrialError("the container has no process to kill")
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return killed


def wait_until(
    condition: Callable[[], object], failure: str, *, timeout: float = TIMEOUT, pause: float = 0.001
) -> float:
    """The moment when the condition holds; ContainerTrialError if it does not in time."""
    until = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > until:
            raise ContainerTrialError(failure)
        time.sleep(pause)
    return time.monotonic()


def _busybox() -> Path:
    return Path(shutil.which("busybox") or "busybox").resolve()


def _image_archive() -> bytes:
    """A root file system as a tar: busybox, links to it, and a probe script in /code."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("bin", "code", "tmp", MARKS_DIRECTORY.strip("/")):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        _add_program(archive, "bin/busybox", _busybox().read_bytes())
        _add_program(archive, f"code/{PROBE_SCRIPT}", b"exit 0\n")
        for name in _COMMANDS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return buffer.getvalue()


def _add_program(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), 0o755
    archive.addfile(entry, io.BytesIO(content))
