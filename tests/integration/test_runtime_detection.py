"""Which runtime is found: with stand-ins on every socket, and with a real Podman."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from longwatch.supervisor.containers import engine_api
from longwatch.supervisor.containers.runtime_detection import DetectedRuntime, detect_runtime
from podman_fixture import PODMAN_VERSION, runtime_stub, shared_podman, version_answer

DOCKER_PLACES = ("docker-host", "var/run/docker.sock", "user/docker.sock")
PODMAN_PLACES = ("container-host", "run/podman/podman.sock", "user/podman/podman.sock")
EVERYWHERE = DOCKER_PLACES + PODMAN_PLACES


class Machine:
    """A root directory with sockets, and the variables that name some of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {
            "PATH": str(root / "bin"),
            "XDG_RUNTIME_DIR": str(root / "user"),
            "DOCKER_HOST": f"unix://{root}/docker-host",
            "CONTAINER_HOST": f"unix://{root}/container-host",
        }
        for place in (*EVERYWHERE, "bin/podman", "sockets/x", "config/x"):
            (root / place).parent.mkdir(parents=True, exist_ok=True)

    def detect(
        self,
        setting: str | None = None,
        *,
        serving: tuple[str, ...] = (),
        answers: dict[str, bytes | None] | None = None,
    ) -> DetectedRuntime:
        """What is found while runtimes answer at these places. The version of each is its place's
        number; `answers` are other answers to `/version`.
        """

        async def detected() -> DetectedRuntime:
            async with AsyncExitStack() as stack:
                for place in serving:
                    usual = version_answer("Engine", str(EVERYWHERE.index(place)))
                    known = {"GET /version": (answers or {}).get(place, usual)}
                    await stack.enter_async_context(runtime_stub(self.root / place, known))
                found = await detect_runtime(
                    setting,
                    self.environ,
                    socket_directory=self.root / "sockets",
                    config_directory=self.root / "config",
                    root=self.root,
                )
                await found.close()
                await found.close()
                return found

        return asyncio.run(detected())

    def install_podman(self, script: str) -> None:
        program = self.root / "bin/podman"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def leave_stale_socket(self, place: str) -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(self.root / place))


@pytest.fixture
def machine() -> Iterator[Machine]:
    with TemporaryDirectory(prefix="lw-detect-") as directory:  # short enough for sockets
        yield Machine(Path(directory))


def name_of(found: DetectedRuntime) -> str:
    assert found.api is not None, found.reason
    assert found.reason == ""
    return found.api.name


@pytest.mark.parametrize("setting", [None, "", "auto", "something"])
@pytest.mark.parametrize("first", range(len(EVERYWHERE)))
def test_the_first_place_that_answers_wins(
    machine: Machine, setting: str | None, first: int
) -> None:
    found = machine.detect(setting, serving=EVERYWHERE[first:])
    assert name_of(found) == f"docker {first}"
    assert len(found.passed_over) == first


@pytest.mark.parametrize("first", range(3))
def test_the_setting_docker_leaves_out_the_places_of_podman(machine: Machine, first: int) -> None:
    serving = (*DOCKER_PLACES[first:], *PODMAN_PLACES)
    assert name_of(machine.detect("docker", serving=serving)) == f"docker {first}"
    machine.install_podman("exit 1")
    found = machine.detect("docker", serving=PODMAN_PLACES)
    assert found.api is None
    assert found.reason.endswith("start Docker, or set DOCKER_HOST to its unix:// socket")
    assert "podman" not in found.reason


@pytest.mark.parametrize("first", range(3))
def test_the_setting_podman_leaves_out_the_places_of_docker(machine: Machine, first: int) -> None:
    serving = (*DOCKER_PLACES, *PODMAN_PLACES[first:])
    assert name_of(machine.detect("podman", serving=serving)) == f"docker {first + 3}"
    found = machine.detect("podman", serving=DOCKER_PLACES)
    assert found.api is None
    assert "docker-host: Docker answers there" in found.reason
    assert "docker.sock" not in found.reason


def test_the_setting_podman_takes_docker_host_if_podman_answers_there(machine: Machine) -> None:
    found = machine.detect(
        "podman", serving=("docker-host",), answers={"docker-host": PODMAN_VERSION}
    )
    assert name_of(found) == "podman 5.4.2"


def test_a_socket_without_a_listener_is_passed_over(machine: Machine) -> None:
    machine.leave_stale_socket("docker-host")
    machine.leave_stale_socket("var/run/docker.sock")
    (machine.root / "user/docker.sock").write_text("a file")
    found = machine.detect(serving=("run/podman/podman.sock",))
    assert name_of(found) == "docker 4"
    assert [each.rpartition(": ")[2] for each in found.passed_over] == [
        "Connection refused",
        "Connection refused",
        "Connection refused",
        "No such file or directory",
    ]


@pytest.mark.parametrize("answer", [None, b"garbage\r\n\r\n", b""], ids=["mute", "garbage", "eof"])
def test_a_listener_that_is_no_runtime_is_passed_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, answer: bytes | None
) -> None:
    monkeypatch.setattr(engine_api, "_CONNECT_SECONDS", 0.3)
    found = machine.detect(serving=EVERYWHERE[:2], answers={"docker-host": answer})
    assert name_of(found) == "docker 1"
    assert "did not report its version" in found.passed_over[0]


def test_an_address_that_is_no_unix_socket_is_passed_over_and_its_password_hidden(
    machine: Machine,
) -> None:
    machine.environ["DOCKER_HOST"] = "tcp://user:hunter2@example.com:2376"
    found = machine.detect(serving=("var/run/docker.sock",))
    assert name_of(found) == "docker 1"
    assert found.passed_over == (
        "DOCKER_HOST=tcp://***@example.com:2376: only unix:// is supported",
    )


def test_without_any_runtime_the_reason_names_every_place_and_the_cure(machine: Machine) -> None:
    found = machine.detect()
    assert (found.api, found.service) == (None, None)
    for place in EVERYWHERE:
        assert f"{machine.root}/{place}" in found.reason
    assert found.reason.endswith("podman is not in PATH); install Podman, or start Docker")
    assert "\n" not in found.reason


def test_places_without_their_variable_are_not_tried(machine: Machine) -> None:
    machine.environ = {"PATH": str(machine.root / "bin"), "XDG_RUNTIME_DIR": ""}
    assert machine.detect().passed_over == (
        f"{machine.root}/var/run/docker.sock: No such file or directory",
        f"{machine.root}/run/podman/podman.sock: No such file or directory",
        "podman is not in PATH",
    )


def test_a_podman_that_cannot_serve_is_a_reason_with_its_last_words(machine: Machine) -> None:
    machine.install_podman(
        'test "$1" = --version && echo podman version 4.3.1 && exit\n'
        "echo first line >&2; echo Error: no storage >&2; exit 125"
    )
    found = machine.detect()
    assert found.api is None
    assert "`podman system service` ended at once: Error: no storage" in found.reason
    assert found.reason.endswith("check that `podman info` works")


def test_a_service_of_our_own_is_the_last_resort_and_ends_with_the_connection(
    machine: Machine,
) -> None:
    podman = shared_podman()
    found = None

    async def claim() -> None:
        nonlocal found
        found = await detect_runtime(
            "podman",
            {**podman.env, "CONTAINER_HOST": f"unix://{machine.root}/none"},
            socket_directory=machine.root / "sockets",
            config_directory=podman.folder,
            root=machine.root,
        )
        assert name_of(found).startswith("podman ")
        assert found.api is not None
        assert found.service is not None
        assert found.service.is_running
        assert await found.api.list("here") == []
        await found.close()
        assert not found.service.is_running

    asyncio.run(claim())
    assert list((machine.root / "sockets").iterdir()) == []
