"""The `podman system service` of our own: its configuration, its life, and what outlives it."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.errors import RuntimeUnreachableError
from longwatch.supervisor.containers.container_spec import ContainerSpec, PullPolicy
from longwatch.supervisor.containers.engine_api import EngineApi
from longwatch.supervisor.containers.podman_service import (
    PodmanService,
    config_files,
    connection_error,
    merge_tables,
    service_environment,
    write_toml,
)
from podman_fixture import IMAGE, PrivatePodman, shared_podman
from polling import eventually
from process_facts import command_line

TIMEOUT = 30.0
OLD, NEW = (4, 5), (4, 6)
# a program that is killed while its service runs: prints the service's pid and waits
PARENT = """
import asyncio, os, sys
from pathlib import Path
from longwatch.supervisor.containers.podman_service import PodmanService

async def main():
    directory = Path(sys.argv[1])
    service = await PodmanService.start(
        "podman", os.environ, socket_directory=directory, config_directory=directory, idle_seconds=1
    )
    print(service.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""
NOISY_PODMAN = f"""#!{sys.executable}
import os, signal, socket, sys
if sys.argv[1] == "--version":
    sys.exit(print("podman version 5.4.2"))
os.write(2, b"x" * 300_000 + b"\\n")
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[-1].removeprefix("unix://"))
listener.listen()
os.write(2, b"y" * 300_000 + b"\\n")
open(os.path.join(os.path.dirname(__file__), "wrote"), "w").close()
signal.pause()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets."""
    with TemporaryDirectory(prefix="lw-service-") as directory:
        yield Path(directory)


@pytest.fixture
def podman() -> Iterator[PrivatePodman]:
    private = shared_podman()
    yield private
    private.remove_containers()
    private.check_nothing_left()


@pytest.fixture
def environ(podman: PrivatePodman) -> dict[str, str]:
    """Variables of the private Podman, whose settings leave the delay at its default."""
    named = podman.folder / "default-delay.conf"
    settings = Path(podman.env["CONTAINERS_CONF"]).read_text()
    named.write_text(settings.replace("exit_command_delay = 1\n", ""))
    return {**podman.env, "CONTAINERS_CONF": str(named)}


@asynccontextmanager
async def started(
    podman: PrivatePodman, environ: dict[str, str], folder: Path
) -> AsyncIterator[tuple[PodmanService, EngineApi]]:
    service = await PodmanService.start(
        "podman", environ, socket_directory=folder, config_directory=podman.folder
    )
    try:
        api = await EngineApi.connect(service.socket_path)
        try:
            yield service, api
        finally:
            await api.close()
    finally:
        await service.stop()


async def make_container(api: EngineApi, name: str) -> int:
    """The pid of a container that runs."""
    command = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done")
    spec = ContainerSpec(
        name=name, image=IMAGE, command=command, network="none", pull=PullPolicy.NEVER
    )
    await api.start(await api.create(spec, {}))
    state = await api.inspect(name)
    assert state is not None
    return state.pid


# --- its configuration ---


def test_an_old_podman_gets_what_it_would_have_read_and_our_key(tmp_path: Path) -> None:
    named = tmp_path / "mine.conf"
    named.write_text('[engine]\nruntime = "runc"\nexit_command_delay = 300\n[network]\na = [1]\n')
    env = service_environment(OLD, {"CONTAINERS_CONF": str(named), "HOME": "/x"}, tmp_path)
    assert "CONTAINERS_CONF_OVERRIDE" not in env
    assert tomllib.loads(Path(env["CONTAINERS_CONF"]).read_text()) == {
        "engine": {"runtime": "runc", "exit_command_delay": 1},
        "network": {"a": [1]},
    }


def test_a_new_podman_gets_our_key_on_top(tmp_path: Path) -> None:
    env = service_environment(NEW, {"CONTAINERS_CONF": "/mine.conf"}, tmp_path)
    assert env["CONTAINERS_CONF"] == "/mine.conf"
    override = Path(env["CONTAINERS_CONF_OVERRIDE"])
    assert tomllib.loads(override.read_text()) == {"engine": {"exit_command_delay": 1}}
    override.write_text('[engine]\nruntime = "crun"\n')
    env = service_environment(NEW, {"CONTAINERS_CONF_OVERRIDE": str(override)}, tmp_path)
    assert tomllib.loads(Path(env["CONTAINERS_CONF_OVERRIDE"]).read_text()) == {
        "engine": {"runtime": "crun", "exit_command_delay": 1}
    }


def test_the_same_configuration_is_the_same_file(tmp_path: Path) -> None:
    for _ in range(3):
        service_environment(NEW, {}, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_variables_that_are_ours_or_make_podman_a_client_are_withheld(tmp_path: Path) -> None:
    withheld = ("LONGWATCH_OWNER", "NOTIFY_SOCKET", "LISTEN_FDS", "CONTAINER_HOST")
    named = dict.fromkeys((*withheld, "CONTAINER_CONNECTION", "HOME"), "x")
    env = service_environment(NEW, named, tmp_path)
    assert set(env) == {"HOME", "MANAGED_BY", "CONTAINERS_CONF_OVERRIDE"}


def test_relative_paths_lead_where_they_led_before(tmp_path: Path) -> None:
    names = ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF")
    env = service_environment(NEW, dict.fromkeys(names, "a/b.conf"), tmp_path)
    assert {env[name] for name in names} == {str(Path.cwd() / "a/b.conf")}


@pytest.mark.parametrize("rootless", [True, False])
def test_configuration_files_are_found_in_the_order_in_which_podman_reads_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rootless: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if rootless else 0)
    system = [
        "usr/share/containers/containers.conf",
        "etc/containers/containers.conf",
        "etc/containers/containers.conf.d/10-a.conf",
        "etc/containers/containers.conf.d/20-b.conf",
    ]
    user = [
        "home/.config/containers/containers.conf",
        "home/.config/containers/containers.conf.d/x.conf",
    ]
    for name in (*system, *user, "etc/containers/containers.conf.d/README"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    environ = {"HOME": str(tmp_path / "home")}
    expected = [tmp_path / name for name in (*system, *(user if rootless else ()))]
    assert config_files(environ, tmp_path) == expected
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "home/.config"), "HOME": "/none"}
    assert config_files(environ, tmp_path) == expected
    (tmp_path / system[1]).unlink()
    expected.remove(tmp_path / system[1])
    assert config_files(environ, tmp_path) == expected
    assert config_files({"CONTAINERS_CONF": "/a"}, tmp_path) == [Path("/a")]


def test_tables_are_merged_and_other_values_replaced() -> None:
    base = {"a": {"x": 1, "list": [1, 2]}, "b": {"y": 1}, "c": 1}
    over = {"a": {"list": [3]}, "b": 2, "c": {"z": 1}}
    assert merge_tables(base, over) == {"a": {"x": 1, "list": [3]}, "b": 2, "c": {"z": 1}}
    assert base["a"] == {"x": 1, "list": [1, 2]}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.dates(min_value=dt.date(1000, 1, 1))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_is_written_as_toml_reads_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(write_toml(table)) == table


def test_a_file_that_is_not_toml_is_named(folder: Path) -> None:
    broken = folder / "broken.conf"
    broken.write_text("[engine\n")
    environ = {"PATH": os.environ["PATH"], "CONTAINERS_CONF": str(broken)}
    with pytest.raises(RuntimeUnreachableError, match=r"broken\.conf is not TOML"):
        asyncio.run(
            PodmanService.start(
                fake_podman(folder, "echo podman version 4.3.1"),
                environ,
                socket_directory=folder,
                config_directory=folder,
            )
        )


# --- its life ---


def fake_podman(folder: Path, script: str, interpreter: str = "#!/bin/sh") -> str:
    program = folder / "fake-podman"
    program.write_text(f"{interpreter}\n{script}\n" if interpreter else script)
    program.chmod(0o755)
    return str(program)


def test_commands_in_containers_end_with_a_delay_of_one_second(
    podman: PrivatePodman, environ: dict[str, str], folder: Path
) -> None:
    async def claim() -> None:
        async with started(podman, environ, folder) as (_, api):
            name = podman.new_name()
            await make_container(api, name)
            command = asyncio.ensure_future(
                api.exec(name, ["sleep", "1000"], cwd=None, env={}, output=_Nowhere())
            )
            # conmon forks as it starts, so for a moment there are two
            assert await asyncio.to_thread(eventually, lambda: delays(podman) == ["1"])
            command.cancel()
            with suppress(asyncio.CancelledError):
                await command

    asyncio.run(claim())


def delays(podman: PrivatePodman) -> list[str]:
    """The `--exit-delay` of every conmon that has one: those of commands."""
    lines = [command_line(each) for each in podman.helpers("conmon")]
    return [line[line.index("--exit-delay") + 1] for line in lines if "--exit-delay" in line]


class _Nowhere:
    """A sink that drops everything."""

    congested = False

    def write(self, data: bytes) -> bool:
        return False

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        pass


def test_a_container_outlives_the_service_and_is_cleaned_up_when_it_ends(
    podman: PrivatePodman, environ: dict[str, str], folder: Path
) -> None:
    name = podman.new_name()

    async def claim() -> int:
        async with started(podman, environ, folder) as (service, api):
            pid = await make_container(api, name)
            os.kill(service.pid, signal.SIGTERM)
            assert await asyncio.to_thread(eventually, lambda: not service.is_running)
            return pid

    pid = asyncio.run(claim())
    assert psutil.Process(pid).is_running()
    assert podman.run("inspect", "--format", "{{.State.Status}}", name) == "running"
    assert podman.mounts() != []
    os.kill(pid, signal.SIGTERM)
    # by the command that its conmon runs, with the configuration that the service had
    assert eventually(lambda: podman.mounts() == [])
    assert podman.run("inspect", "--format", "{{.State.Status}}", name) == "exited"


def test_the_service_ends_by_itself_after_kill_9_of_its_parent(
    podman: PrivatePodman, environ: dict[str, str], folder: Path
) -> None:
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        service = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert service.is_running()
    assert eventually(lambda: not service.is_running())


def test_the_service_has_a_session_of_its_own_and_none_of_our_streams(
    podman: PrivatePodman, environ: dict[str, str], folder: Path
) -> None:
    async def claim() -> None:
        async with started(podman, environ, folder) as (service, _):
            assert os.getsid(service.pid) == service.pid
            streams = [Path(f"/proc/{service.pid}/fd/{number}") for number in (0, 1)]
            assert [str(each.readlink()) for each in streams] == [os.devnull] * 2
            arguments = psutil.Process(service.pid).cmdline()
            assert arguments[1:5] == ["system", "service", "-t", "60"]

    asyncio.run(claim())


def test_stopping_is_idempotent_and_removes_the_socket(
    podman: PrivatePodman, environ: dict[str, str], folder: Path
) -> None:
    async def claim() -> None:
        async with started(podman, environ, folder) as (service, _):
            await service.stop()
            await service.stop()
            assert not service.is_running
            assert not service.socket_path.exists()

    asyncio.run(claim())


def test_a_service_that_is_idle_ends_and_another_one_can_be_started(
    podman: PrivatePodman, environ: dict[str, str], folder: Path
) -> None:
    async def claim() -> None:
        first = await PodmanService.start(
            "podman",
            environ,
            socket_directory=folder,
            config_directory=podman.folder,
            idle_seconds=3,  # longer than a busy machine takes to notice that it listens
        )
        try:
            assert await asyncio.to_thread(eventually, lambda: not first.is_running)
            async with started(podman, environ, folder) as (second, api):
                assert second.socket_path != first.socket_path
                assert await api.list("here") == []
        finally:
            await first.stop()

    asyncio.run(claim())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo podman version 4.3.1; echo no >&2; test $1 = --version", "ended at once: no"),
        ("echo podman version 4.3.1; test $1 = --version", "ended at once: no reason"),
        ("echo something else", "shows no version number"),
    ],
)
def test_a_podman_that_does_not_serve_is_an_error_with_its_reason(
    folder: Path, script: str, reason: str
) -> None:
    program = fake_podman(folder, script)
    with pytest.raises(RuntimeUnreachableError, match=reason):
        asyncio.run(
            PodmanService.start(
                program, {"PATH": os.defpath}, socket_directory=folder, config_directory=folder
            )
        )


def test_a_program_that_cannot_be_run_and_a_path_that_is_too_long_are_errors(folder: Path) -> None:
    def start(program: str, directory: Path) -> None:
        asyncio.run(
            PodmanService.start(program, {}, socket_directory=directory, config_directory=folder)
        )

    with pytest.raises(RuntimeUnreachableError, match="No such file"):
        start(str(folder / "none"), folder)
    with pytest.raises(RuntimeUnreachableError, match="too long for a socket"):
        start("podman", folder / ("x" * 100))


def test_a_service_that_writes_much_is_not_held_up(folder: Path) -> None:
    async def claim() -> None:
        service = await PodmanService.start(
            fake_podman(folder, NOISY_PODMAN, interpreter=""),
            {"PATH": os.defpath},
            socket_directory=folder,
            config_directory=folder,
        )
        try:
            assert await asyncio.to_thread(eventually, (folder / "wrote").exists)
        finally:
            await service.stop()

    asyncio.run(claim())


def test_a_start_that_is_cancelled_leaves_no_process(folder: Path) -> None:
    script = "test $1 = --version && echo podman version 4.3.1 || exec sleep 1000"
    program = fake_podman(folder, script)

    async def claim() -> None:
        starting = asyncio.ensure_future(
            PodmanService.start(
                program, {"PATH": os.defpath}, socket_directory=folder, config_directory=folder
            )
        )
        assert await asyncio.to_thread(eventually, lambda: children() != [])
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    def children() -> list[psutil.Process]:
        mine = psutil.Process().children()
        return [each for each in mine if command_line(each) == ["sleep", "1000"]]

    asyncio.run(claim())
    assert children() == []


def test_a_socket_accepts_connections_or_tells_why_not(folder: Path) -> None:
    error = connection_error(folder / "none")
    assert isinstance(error, FileNotFoundError)
    (folder / "file").touch()
    assert isinstance(connection_error(folder / "file"), ConnectionRefusedError)
    assert connection_error(folder / ("x" * 200)) is not None


def test_the_private_podman_keeps_away_from_the_store_of_the_machine(podman: PrivatePodman) -> None:
    store = json.loads(podman.run("info", "--format", "json"))["store"]
    for place in ("graphRoot", "runRoot", "volumePath"):
        assert store[place].startswith(f"{podman.folder}/")
