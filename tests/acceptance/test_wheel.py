from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import longwatch
import wheel_env

PACKAGE = wheel_env.ROOT / "src"


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def built(wheel_python: Path) -> dict[str, bytes]:
    """The files of the wheel that is installed in the environment of the acceptance tests."""
    return contents(wheel_env.built_wheel())


@pytest.fixture(scope="module")
def metadata(built: dict[str, bytes]) -> Message:
    [text] = [data for name, data in built.items() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(text.decode())


def test_the_wheel_holds_every_file_of_src_and_nothing_else(built: dict[str, bytes]) -> None:
    files = (
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    expected = {path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in files}
    packed = {name: data for name, data in built.items() if ".dist-info/" not in name}
    assert sorted(expected) == sorted(packed)
    assert expected == packed


def test_the_wheel_says_that_it_is_typed(built: dict[str, bytes]) -> None:
    assert "longwatch/py.typed" in built


def test_the_sdist_builds_the_same_wheel(built: dict[str, bytes], tmp_path: Path) -> None:
    with tarfile.open(wheel_env.built_sdist()) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.glob("longwatch-*")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        tmp_path / "again",
        unpacked,
    ]
    subprocess.run(command, check=True, capture_output=True)
    [again] = (tmp_path / "again").glob("*.whl")
    assert built == contents(again)


def test_the_installed_command_prints_the_version(longwatch_bin: Path) -> None:
    done = subprocess.run([longwatch_bin, "--version"], check=False, capture_output=True, text=True)
    assert (0, "") == (done.returncode, done.stderr)
    assert longwatch.__version__ in done.stdout.split()


def test_the_wheel_carries_the_version_of_the_package(metadata: Message) -> None:
    assert longwatch.__version__ == metadata["Version"]


def test_the_extras_are_the_promised_ones(metadata: Message) -> None:
    extras = "all containers dev docs mcp otel page postgres redis runner"
    assert extras.split() == sorted(metadata.get_all("Provides-Extra", []))


def test_the_licence_travels_with_the_wheel(built: dict[str, bytes], metadata: Message) -> None:
    assert "Apache-2.0" == metadata["License-Expression"]
    assert [(wheel_env.ROOT / "LICENSE").read_bytes()] == [
        data for name, data in built.items() if name.endswith("/licenses/LICENSE")
    ]
