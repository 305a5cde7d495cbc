"""The image of deploy/docker, built by the private Podman without a registry.

Its base is the Python of this test run, with its standard library, its shared libraries, pip and a
busybox. Its wheels are the built wheel and what that needs with the extra `runner`.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pip

import wheel_env
from podman_fixture import PrivatePodman, shared_podman
from requires import require_tool

RECIPE = wheel_env.ROOT / "deploy" / "docker"
IMAGE = "localhost/longwatch:1"
BUILD_TIMEOUT = 300.0
_BASE = "localhost/python:1"
_EXTRA = "runner"
_COMMANDS = ("sh", "mkdir", "chmod", "chown", "sleep", "id", "stat")
_LEFT_OUT = {
    *("test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data"),
    *("site-packages", "dist-packages"),
}
_LIBRARY = Path("usr/local/lib") / f"python{sysconfig.get_python_version()}"


@cache
def podman_with_image() -> PrivatePodman:
    """The shared Podman, with the image of the recipe in it."""
    require_tool("podman")
    podman = shared_podman()
    podman.run("import", "-", _BASE, stdin=_base_archive())
    context = podman.folder / "image"
    shutil.copytree(RECIPE, context)
    _download_wheels(context / "wheels")
    _build(podman, context)
    return podman


def _build(podman: PrivatePodman, context: Path) -> None:
    """Build as the recipe says. Of the formats only that of Docker has health checks."""
    options = ["--format=docker", "--layers=false", "--network=none", "--quiet"]
    arguments = [f"--build-arg=BASE={_BASE}", f"--build-arg=EXTRAS={_EXTRA}"]
    command = ["podman", "build", *options, *arguments, f"--tag={IMAGE}", str(context)]
    done = subprocess.run(
        command,
        check=False,
        env=podman.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT,
    )
    assert done.returncode == 0, f"the build failed: {done.stdout}{done.stderr}"


def _download_wheels(folder: Path) -> None:
    words = ("download", "--quiet", "--disable-pip-version-check", "--dest", folder)
    constraints = ("--constraint", wheel_env.ROOT / "constraints.txt")
    command: list[str | Path] = [sys.executable, "-m", "pip", *words, *constraints]
    command.append(f"{wheel_env.built_wheel()}[{_EXTRA}]")
    subprocess.run(command, check=True, capture_output=True, timeout=BUILD_TIMEOUT)


def _base_archive() -> bytes:
    """A root file system with this Python below /usr/local."""
    executable = Path(os.path.realpath(sys.executable))
    library = Path(sysconfig.get_path("stdlib"))
    extensions = [*library.glob("lib-dynload/*.so"), *wheel_env.ENVIRONMENT.rglob("*.so")]
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in sorted(_shared_libraries([executable, *extensions])):
            archive.add(os.path.realpath(path), path)
        archive.add(executable, "usr/local/bin/python3")
        archive.add(library, _LIBRARY, filter=_needed)
        archive.add(Path(pip.__file__).parent, _LIBRARY / "site-packages" / "pip", filter=_needed)
        archive.add(str(shutil.which("busybox")), "bin/busybox")
        for name in _COMMANDS:
            _add(archive, f"bin/{name}", tarfile.SYMTYPE, "busybox")
        _add(archive, "tmp", tarfile.DIRTYPE)
    return data.getvalue()


def _shared_libraries(programs: Iterable[Path]) -> set[str]:
    """The files that the dynamic linker loads for them, itself included."""
    command = ["ldd", *map(str, programs)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    words = (word for line in done.stdout.splitlines() for word in line.split())
    return {word for word in words if word.startswith("/") and not word.endswith(":")}


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    return None if name in _LEFT_OUT or name.startswith("config-") else entry


def _add(archive: tarfile.TarFile, name: str, kind: bytes, target: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, target, 0o1777
    archive.addfile(entry)
