"""`EngineApi` against a real Podman, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from longwatch.errors import (
    ContainerRuntimeError,
    RuntimeRefusedError,
    RuntimeUnreachableError,
    UsageError,
)
from longwatch.host.capture import MAX_LINE
from longwatch.supervisor.containers import engine_api
from longwatch.supervisor.containers.container_spec import (
    Bind,
    ContainerSpec,
    PublishedPort,
    PullPolicy,
)
from longwatch.supervisor.containers.engine_api import EngineApi
from longwatch.supervisor.containers.engine_objects import EventReader, FrameReader
from longwatch.supervisor.containers.runtime import (
    NAME_LABEL,
    OWNER_LABEL,
    ContainerRuntime,
    ContainerState,
    ContainerStatus,
    RuntimeAction,
    RuntimeEvent,
)
from podman_fixture import (
    IMAGE,
    PodmanServer,
    PrivatePodman,
    http,
    runtime_stub,
    shared_podman,
    version_answer,
)
from polling import eventually
from process_facts import command_line
from requires import skip_without_program

TIMEOUT = 30.0
FOREVER = ("sleep", "1000")
SPEAKER = ("sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done")
NO_ENV: dict[str, str] = {}


class LineRecorder:
    """A sink that keeps what it was given."""

    congested = False

    def __init__(self) -> None:
        self.blocks: list[bytes] = []

    def write(self, data: bytes) -> bool:
        self.blocks.append(data)
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        pass

    @property
    def data(self) -> bytes:
        return b"".join(self.blocks)


class EngineRig:
    """A connection to the private Podman, and short ways to make containers through it."""

    def __init__(self, api: EngineApi, podman: PrivatePodman) -> None:
        self.api = api
        self.podman = podman

    async def make(
        self, *command: str, name: str | None = None, owner: str = "here", **more: Any
    ) -> str:
        """Create and start a container; its name."""
        name = name or self.podman.new_name()
        spec = self.spec(*command, name=name, **more)
        await self.api.create(spec, {OWNER_LABEL: owner, NAME_LABEL: name})
        await self.api.start(name)
        return name

    def spec(self, *command: str, name: str | None = None, **more: Any) -> ContainerSpec:
        values: dict[str, Any] = {"image": IMAGE, "network": "none", "pull": PullPolicy.NEVER}
        return ContainerSpec(
            **{"name": name or self.podman.new_name(), "command": command, **values, **more}
        )

    async def state(self, name: str) -> ContainerState:
        found = await self.api.inspect(name)
        assert found is not None
        return found

    async def stopped(self, name: str) -> ContainerState:
        """Its state once it has stopped."""
        until = time.monotonic() + TIMEOUT
        while (state := await self.state(name)).is_up:
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
        return state

    async def exec(self, name: str, *argv: str, **more: Any) -> tuple[int, bytes]:
        """Exit code and output of a command."""
        output = LineRecorder()
        options = {"cwd": None, "env": NO_ENV, **more}
        end = await self.api.exec(name, argv, output=output, **options)
        return end.exit_code, output.data


@pytest.fixture(scope="module")
def server() -> Iterator[PodmanServer]:
    """One service for all tests here."""
    with shared_podman().serving() as running:
        yield running
    shared_podman().check_nothing_left()


@pytest.fixture
def podman() -> Iterator[PrivatePodman]:
    private = shared_podman()
    yield private
    private.remove_containers()


@pytest.fixture
def own_server(podman: PrivatePodman) -> Iterator[PodmanServer]:
    """A service that the test may kill."""
    with podman.serving() as running:
        yield running


@pytest.fixture
def run(podman: PrivatePodman, server: PodmanServer) -> Callable[[Any], None]:
    """Runs a test's coroutine with a connection to the service."""
    return partial(run_claim, podman, server)


@pytest.fixture
def run_alone(podman: PrivatePodman, own_server: PodmanServer) -> Callable[[Any], None]:
    """The same with the service of the test."""
    return partial(run_claim, podman, own_server)


def run_claim(
    podman: PrivatePodman, server: PodmanServer, claim: Callable[[EngineRig], Awaitable[None]]
) -> None:
    async def connected() -> None:
        async with connection(server.socket_path) as api, asyncio.timeout(4 * TIMEOUT):
            await claim(EngineRig(api, podman))

    asyncio.run(connected())


@asynccontextmanager
async def connection(socket_path: Path) -> AsyncIterator[EngineApi]:
    api = await EngineApi.connect(socket_path)
    try:
        yield api
    finally:
        await api.close()


async def next_event(
    events: AsyncIterator[RuntimeEvent], action: RuntimeAction, name: str
) -> RuntimeEvent:
    async for event in events:
        if event.action is action and event.name == name:
            return event
    pytest.fail(f"the events ended before {action} of {name}")


# --- the connection ---


def test_importing_the_module_loads_neither_aiodocker_nor_aiohttp() -> None:
    script = (
        "import sys; from longwatch.supervisor.containers import runtime_detection; "
        "sys.exit(bool({'aiodocker', 'aiohttp'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_without_aiodocker_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "aiodocker", None)
    with pytest.raises(UsageError, match="pip install 'aiodocker"):
        asyncio.run(EngineApi.connect(tmp_path / "none.sock"))


def test_it_is_a_local_runtime_that_tells_its_name_and_version(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        runtime: ContainerRuntime = rig.api
        version = rig.podman.run("--version").rpartition(" ")[2]
        assert (runtime.name, runtime.is_local) == (f"podman {version}", True)

    run(claim)


def test_closing_is_idempotent_and_every_call_after_it_is_refused(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        await rig.api.close()
        await rig.api.close()
        with pytest.raises(RuntimeUnreachableError, match="closed"):
            await rig.api.list("here")
        with pytest.raises(RuntimeUnreachableError, match="closed"):
            await anext(rig.api.events())

    run(claim)


def test_closing_ends_streams_that_are_open(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*SPEAKER)
        async with aclosing(rig.api.logs(name, since=0)) as chunks:
            await anext(chunks)
            await rig.api.close()
            with suppress(RuntimeUnreachableError):
                await drain(chunks)

    run(claim)


# --- containers ---


def test_a_container_is_made_from_every_field_of_its_spec(run: Any, tmp_path: Path) -> None:
    async def claim(rig: EngineRig) -> None:
        spec = rig.spec(
            *FOREVER,
            env={"GREETING": "hello world"},
            binds=(
                Bind(source=str(tmp_path), target="/data", read_only=True),
                Bind(source=str(tmp_path), target="/scratch"),
            ),
            ports=(PublishedPort(host_port=18123, container_port=80),),
            workdir="/code",
            user="12:34",
            network=None,
            memory=64 << 20,
            log_max_bytes=1 << 20,
        )
        labels = {OWNER_LABEL: "here", NAME_LABEL: spec.name}
        created = await rig.api.create(spec, labels)
        state = await rig.state(spec.name)
        assert (state.id, state.name, state.image) == (created, spec.name, IMAGE)
        assert state.labels == labels
        assert state.restart_policy == "no"
        assert state.published_ports == {80: ("127.0.0.1", 18123)}
        assert state.status is ContainerStatus.STOPPED
        assert (state.pid, state.started_at, state.finished_at) == (0, 0.0, 0.0)
        found = json.loads(rig.podman.run("inspect", spec.name))[0]
        config, host = found["Config"], found["HostConfig"]
        assert (config["WorkingDir"], config["User"], config["Cmd"]) == (
            "/code",
            "12:34",
            list(FOREVER),
        )
        assert "GREETING=hello world" in config["Env"]
        assert (config["StopTimeout"], host["Privileged"]) == (10, False)
        assert (host["Memory"], host["MemorySwap"]) == (64 << 20, 64 << 20)
        assert host["LogConfig"]["Size"] == "1.049MB"
        assert {(each["Destination"], each["RW"]) for each in found["Mounts"]} == {
            ("/data", False),
            ("/scratch", True),
        }

    run(claim)


def test_a_started_container_has_a_pid_of_this_host_and_starting_it_again_does_nothing(
    run: Any,
) -> None:
    async def claim(rig: EngineRig) -> None:
        before = time.time()
        name = await rig.make(*FOREVER)
        first = await rig.state(name)
        assert first.status is ContainerStatus.RUNNING
        assert eventually(lambda: command_line(psutil.Process(first.pid)) == list(FOREVER))
        assert before - 1 <= first.started_at <= time.time() + 1
        await rig.api.start(name)
        assert await rig.state(name) == first

    run(claim)


def test_an_ended_container_tells_its_exit_code_and_when_it_ended(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make("sh", "-c", "exit 7")
        ended = await rig.stopped(name)
        assert (ended.exit_code, ended.pid, ended.out_of_memory) == (7, 0, False)
        # Podman may take note of the end of so short a life before that of its start
        assert ended.started_at - 1 <= ended.finished_at <= time.time() + 1
        await rig.api.start(name)
        assert (await rig.stopped(name)).finished_at > ended.finished_at

    run(claim)


def test_the_list_holds_the_containers_of_one_owner_running_or_not(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        running = await rig.make(*FOREVER)
        ended = await rig.make("true")
        await rig.make(*FOREVER, owner="another")
        await rig.stopped(ended)
        found = {state.name: state for state in await rig.api.list("here")}
        assert {name: state.status for name, state in found.items()} == {
            running: ContainerStatus.RUNNING,
            ended: ContainerStatus.STOPPED,
        }
        assert found[running].id == (await rig.state(running)).id
        assert found[running].labels[NAME_LABEL] == running
        assert await rig.api.list("nobody") == []

    run(claim)


def test_the_beginning_of_an_id_is_no_name_of_a_container(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        state = await rig.state(await rig.make(*FOREVER))
        assert None is await rig.api.inspect(state.id[:8])
        assert state == await rig.api.inspect(state.id)

    run(claim)


def test_a_missing_container_is_none_and_cannot_be_started(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        assert await rig.api.inspect("missing") is None
        assert await rig.api.inspect("../../version") is None
        with pytest.raises(RuntimeRefusedError, match="refused to start missing") as caught:
            await rig.api.start("missing")
        assert caught.value.status == 404

    run(claim)


def test_a_name_that_is_taken_is_refused_with_409(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        with pytest.raises(RuntimeRefusedError, match=name) as caught:
            await rig.api.create(rig.spec(*FOREVER, name=name), {})
        assert caught.value.status == 409

    run(claim)


def test_an_error_never_shows_the_value_of_a_variable(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        spec = rig.spec(*FOREVER, env={"": "hunter2-is-mine"})
        with pytest.raises(RuntimeRefusedError, match="invalid environment variable") as caught:
            await rig.api.create(spec, {})
        assert "hunter2" not in str(caught.value)
        assert caught.value.__suppress_context__

    run(claim)


def test_a_container_that_exceeds_its_memory_is_killed(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        eater = "x=0123456789abcdef; while :; do x=$x$x; done"
        name = await rig.make("sh", "-c", eater, memory=16 << 20)
        assert (await rig.stopped(name)).exit_code == 137

    run(claim)


# --- images ---


def test_a_missing_image_is_refused_with_a_cure_when_it_may_not_be_pulled(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        spec = rig.spec(*FOREVER, image="localhost/missing:1")
        with pytest.raises(
            RuntimeRefusedError, match=r"localhost/missing:1.*podman pull"
        ) as caught:
            await rig.api.create(spec, {})
        assert caught.value.status == 404

    run(claim)


@pytest.mark.parametrize("pull", PullPolicy)
def test_a_present_image_is_pulled_only_if_it_always_is(tmp_path: Path, pull: PullPolicy) -> None:
    async def claim() -> None:
        answers = {
            "GET /images/i:1/json": http(200, {}),
            "POST /images/create": http(200, b'{"status":"Downloaded"}'),
            "POST /containers/create": http(201, {"Id": "1234"}),
        }
        async with (
            runtime_stub(tmp_path / "s", answers) as requests,
            connection(tmp_path / "s") as api,
        ):
            spec = ContainerSpec(name="x", image="i:1", pull=pull)
            assert await api.create(spec, {}) == "1234"
        is_pulled = "POST /images/create?fromImage=i:1" in requests
        assert is_pulled is (pull is PullPolicy.ALWAYS)

    asyncio.run(claim())


def test_a_missing_image_that_cannot_be_pulled_says_why(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        image = "localhost:1/nothing/here"
        with pytest.raises(RuntimeRefusedError, match=f"refused to pull {image}: .*refused"):
            await rig.api.create(rig.spec(*FOREVER, image=image, pull=PullPolicy.MISSING), {})

    run(claim)


# --- signals and removal ---


def test_a_signal_reaches_the_first_process(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make("sh", "-c", "trap 'exit 5' USR1; while :; do sleep 0.02; done")
        await asyncio.sleep(0.1)
        await rig.api.signal(name, signal.SIGUSR1)
        assert (await rig.stopped(name)).exit_code == 5

    run(claim)


def test_a_paused_container_is_unpaused_for_a_signal(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        rig.podman.run("pause", name)
        paused = await rig.state(name)
        assert (paused.status, paused.is_up) == (ContainerStatus.PAUSED, True)
        await rig.api.signal(name, signal.SIGKILL)
        assert (await rig.stopped(name)).exit_code == 137

    run(claim)


def test_a_signal_to_a_stopped_or_missing_container_does_nothing(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make("true")
        await rig.stopped(name)
        await rig.api.signal(name, signal.SIGTERM)
        await rig.api.signal("missing", signal.SIGTERM)

    run(claim)


def test_a_signal_that_does_not_exist_is_refused(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        with pytest.raises(RuntimeRefusedError, match="signal"):
            await rig.api.signal(name, 99)

    run(claim)


@pytest.mark.parametrize("state", ["running", "paused", "stopped"])
def test_removal_takes_a_container_in_every_state_and_does_not_wait_for_its_grace(
    run: Any, state: str
) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make("true" if state == "stopped" else "sleep", "1000")
        if state == "paused":
            rig.podman.run("pause", name)
        async with asyncio.timeout(8):  # less than the grace of a stop, which `sleep` would use up
            await rig.api.remove(name)
        assert await rig.api.inspect(name) is None
        await rig.api.remove(name)

    run(claim)


def test_a_removal_that_another_client_has_begun_is_waited_for(tmp_path: Path) -> None:
    async def claim() -> None:
        answers: dict[str, bytes | None] = {
            "GET /containers/x/json": http(200, inspected("exited")),
            "DELETE /containers/x": http(409, {"message": "removal is already in progress"}),
        }
        async with (
            runtime_stub(tmp_path / "s", answers) as requests,
            connection(tmp_path / "s") as api,
        ):
            removal = asyncio.ensure_future(api.remove("x"))
            while "DELETE /containers/x?force=1&v=1" not in requests:  # noqa: ASYNC110 - a stand-in
                await asyncio.sleep(0.01)
            answers["DELETE /containers/x"] = http(404, {"message": "no such container"})
            await removal

    asyncio.run(claim())


# --- commands in a container ---


def test_a_command_returns_its_exit_code_and_the_lines_of_both_streams(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        script = "echo out; echo err >&2; echo -n 'no end'; exit 3"
        code, output = await rig.exec(name, "sh", "-c", script)
        assert (code, sorted(output.splitlines())) == (3, [b"err", b"no end", b"out"])
        assert output.endswith(b"\n")

    run(claim)


def test_a_command_has_its_directory_and_its_variables(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        script = 'echo "$PWD $A"'
        assert await rig.exec(name, "sh", "-c", script, cwd="/code", env={"A": "b c"}) == (
            0,
            b"/code b c\n",
        )

    run(claim)


def test_a_megabyte_of_output_comes_whole(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        script = "i=0; while [ $i -lt 10000 ]; do i=$((i+1)); echo $((1000000+i)); done"
        code, output = await rig.exec(name, "sh", "-c", f"{script}; {script}")
        numbers = [str(1000001 + i).encode() for i in range(10000)]
        assert (code, output.splitlines()) == (0, numbers + numbers)
        code, output = await rig.exec(name, "sh", "-c", "head -c 1000000 /dev/zero")
        assert code == 0
        assert MAX_LINE < len(output) < MAX_LINE + 100
        assert b"[line cut]" in output

    run(claim)


@pytest.mark.parametrize(("argv", "cwd"), [(["nonesuch"], None), (["true"], "/nonesuch")])
def test_a_missing_program_or_directory_is_exit_code_127_with_a_reason(
    run: Any, argv: list[str], cwd: str | None
) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        code, output = await rig.exec(name, *argv, cwd=cwd)
        assert code == 127
        assert b"nonesuch" in output

    run(claim)


def test_a_command_that_closes_its_output_is_waited_for(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        script = "exec >&- 2>&-; sleep 0.3; exit 4"
        assert await rig.exec(name, "sh", "-c", script) == (4, b"")

    run(claim)


@pytest.mark.parametrize("state", ["stopped", "paused", "missing"])
def test_a_command_is_refused_where_the_container_does_not_run(run: Any, state: str) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make("true" if state == "stopped" else "sleep", "1000")
        if state == "paused":
            rig.podman.run("pause", name)
        elif state == "stopped":
            await rig.stopped(name)
        with pytest.raises(RuntimeRefusedError) as caught:
            await rig.exec("missing" if state == "missing" else name, "true")
        assert caught.value.status == (404 if state == "missing" else 409)

    run(claim)


def test_a_container_that_stops_under_a_command_is_told_from_a_lost_runtime(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        running = asyncio.ensure_future(rig.exec(name, "sleep", "1000"))
        await command_of(rig, name, "sleep", "1000")
        rig.podman.run("kill", name)
        # Podman knows the exit code or has forgotten the command, whichever comes first
        [end] = await asyncio.gather(running, return_exceptions=True)
        assert end == (137, b"") or (isinstance(end, RuntimeRefusedError) and end.status == 409)

    run(claim)


def test_cancelling_a_command_leaves_it_running(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        running = asyncio.ensure_future(rig.exec(name, "sleep", "77"))
        process = await command_of(rig, name, "sleep", "77")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert process.is_running()
        assert (await rig.exec(name, "true"))[0] == 0

    run(claim)


async def command_of(rig: EngineRig, name: str, *argv: str) -> psutil.Process:
    """The process of a command in a container, once it runs: no child of its first process."""
    first = (await rig.state(name)).pid
    found: list[psutil.Process] = []

    def look() -> bool:
        found.extend(each for each in processes_beside(first, list(argv)) if each.pid != first)
        return bool(found)

    assert await asyncio.to_thread(eventually, look, TIMEOUT)
    return found[0]


def processes_beside(pid: int, argv: list[str]) -> Iterator[psutil.Process]:
    """Those in the PID namespace of this one that run this command."""
    namespace = Path(f"/proc/{pid}/ns/pid").readlink()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            inside = Path(f"/proc/{process.pid}/ns/pid").readlink() == namespace
            if inside and process.cmdline() == argv:
                yield process


# --- files ---


def test_a_file_is_told_from_a_directory_and_from_nothing(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make("touch", "/code/a script")
        await rig.stopped(name)
        assert await rig.api.has_file(name, "/code/a script")
        assert await rig.api.has_file(name, "/bin/sh")
        assert not await rig.api.has_file(name, "/code/none")
        assert not await rig.api.has_file(name, "/code")
        with pytest.raises(RuntimeRefusedError) as caught:
            await rig.api.has_file("missing", "/bin/sh")
        assert caught.value.status == 404

    run(claim)


# --- output ---


def test_the_output_of_a_container_is_followed_to_its_end(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make("sh", "-c", "echo one; echo two >&2; sleep 0.3; echo three")
        chunks = [chunk async for chunk in rig.api.logs(name, since=0)]
        assert sorted(b"".join(chunks).splitlines()) == [b"one", b"three", b"two"]

    run(claim)


def test_output_before_the_given_time_is_left_out(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make("sh", "-c", "echo old; sleep 0.5; echo new")
        started = (await rig.state(name)).started_at
        assert [chunk async for chunk in rig.api.logs(name, since=started + 0.25)] == [b"new\n"]
        assert [chunk async for chunk in rig.api.logs(name, since=time.time() + 9)] == []

    run(claim)


def test_the_output_of_a_missing_container_is_refused(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        with pytest.raises(RuntimeRefusedError) as caught:
            await anext(rig.api.logs("missing", since=0))
        assert caught.value.status == 404

    run(claim)


# --- events ---


def test_events_tell_of_a_start_and_of_an_end_with_its_exit_code(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        async with aclosing(rig.api.events()) as events:
            first = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.1)
            name = await rig.make("sh", "-c", "exit 9")
            started = await first
            assert (started.action, started.name) == (RuntimeAction.START, name)
            died = await next_event(events, RuntimeAction.DIE, name)
            assert (died.exit_code, died.id) == (9, (await rig.state(name)).id)

    run(claim)


async def actions_of(
    rig: EngineRig, name: str, *commands: tuple[tuple[str, ...], RuntimeAction]
) -> list[RuntimeAction]:
    """What events tell of a container: after each command of Podman until this event has come."""
    seen: list[RuntimeAction] = []
    async with aclosing(rig.api.events()) as events:
        upcoming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)  # until it is connected
        try:
            for (first, *rest), awaited in commands:
                await asyncio.to_thread(rig.podman.run, first, *rest, name)
                while awaited not in seen:
                    event = await upcoming
                    upcoming = asyncio.ensure_future(anext(events))
                    seen += [event.action] if event.name == name else []
        finally:
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
    return seen


def test_events_tell_of_pauses_kills_and_removals(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        seen = await actions_of(
            rig,
            await rig.make(*FOREVER),
            (("pause",), RuntimeAction.PAUSE),
            (("unpause",), RuntimeAction.UNPAUSE),
            (("kill",), RuntimeAction.DIE),
            (("rm",), RuntimeAction.REMOVE),
        )
        assert seen == [
            RuntimeAction.PAUSE,
            RuntimeAction.UNPAUSE,
            RuntimeAction.KILL,
            RuntimeAction.DIE,
            RuntimeAction.REMOVE,
        ]

    run(claim)


@pytest.mark.parametrize("obeys", [True, False], ids=["obeyed", "forced"])
def test_events_tell_once_of_a_stop_by_another_client(run: Any, obeys: bool) -> None:  # noqa: FBT001
    async def claim(rig: EngineRig) -> None:
        obedient = "trap 'exit 0' TERM; while :; do sleep 0.02; done"
        name = await rig.make(*(("sh", "-c", obedient) if obeys else FOREVER))
        await asyncio.sleep(0.1)
        stop = ("stop", "-t", "10" if obeys else "0")
        seen = await actions_of(
            rig, name, (stop, RuntimeAction.STOP), (("rm",), RuntimeAction.REMOVE)
        )
        assert sorted(seen[:2]) == [RuntimeAction.DIE, RuntimeAction.STOP]
        assert seen[2:] == [RuntimeAction.REMOVE]

    run(claim)


def test_an_end_without_a_stop_is_no_stop(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make("sh", "-c", "sleep 0.3; exit 1")
        seen = await actions_of(
            rig, name, (("wait",), RuntimeAction.DIE), (("rm",), RuntimeAction.REMOVE)
        )
        assert seen == [RuntimeAction.DIE, RuntimeAction.REMOVE]

    run(claim)


def test_the_docker_client_sees_the_same_containers(
    run: Any, server: PodmanServer, podman: PrivatePodman
) -> None:
    skip_without_program("docker", "a stop by the client of Docker")

    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        async with aclosing(rig.api.events()) as events:
            death = asyncio.ensure_future(next_event(events, RuntimeAction.DIE, name))
            await asyncio.sleep(0.1)
            command = ("stop", "--timeout", "0", name)
            await asyncio.to_thread(podman.docker, server.socket_path, *command)
            assert (await death).exit_code == 137

    run(claim)


def test_streams_that_are_left_early_leave_nothing_open(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*SPEAKER)
        sockets = len(psutil.Process().net_connections("unix"))
        for stream in (rig.api.logs(name, since=0), rig.api.events()):
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.2)
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            await stream.aclose()
        await asyncio.sleep(0)
        assert len(psutil.Process().net_connections("unix")) <= sockets

    run(claim)


def test_a_hundred_streams_do_not_keep_other_requests_waiting(run: Any) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        streams = [rig.api.logs(name, since=0) for _ in range(120)]
        reading = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0.3)
        async with asyncio.timeout(10):
            assert (await rig.state(name)).is_up
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for stream in streams:
            await stream.aclose()

    run(claim)


# --- a runtime that dies ---


def test_a_killed_runtime_ends_events_output_and_commands_and_can_be_used_again(
    run_alone: Any, own_server: PodmanServer
) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*SPEAKER)
        await rig.make(*FOREVER)
        ends = [
            asyncio.ensure_future(drain(rig.api.events())),
            asyncio.ensure_future(drain(rig.api.logs(name, since=0))),
            asyncio.ensure_future(rig.exec(name, "sleep", "50")),
        ]
        await command_of(rig, name, "sleep", "50")
        own_server.kill()
        results = await asyncio.gather(*ends, return_exceptions=True)
        assert [type(each) for each in results[1:]] == [RuntimeUnreachableError] * 2
        assert results[0] is None or isinstance(results[0], RuntimeUnreachableError)
        with pytest.raises(RuntimeUnreachableError, match="Connection refused"):
            await rig.api.list("here")
        own_server.start()
        assert len([each for each in await rig.api.list("here") if each.is_up]) == 2
        assert (await rig.exec(name, "true"))[0] == 0

    run_alone(claim)


async def drain(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


def test_a_frozen_runtime_is_unreachable_after_the_time_limit(
    run_alone: Any, own_server: PodmanServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        own_server.freeze()
        monkeypatch.setattr(engine_api, "_REQUEST_SECONDS", 0.5)
        calls: list[Awaitable[Any]] = [
            rig.api.list("here"),
            rig.api.inspect(name),
            rig.api.start(name),
            rig.api.has_file(name, "/bin/sh"),
        ]
        for call in calls:
            with pytest.raises(RuntimeUnreachableError, match="did not answer in time"):
                await call

    run_alone(claim)


def test_connecting_where_nothing_answers_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_api, "_CONNECT_SECONDS", 0.3)

    async def claim() -> None:
        with pytest.raises(RuntimeUnreachableError, match=r"none\.sock.*No such file"):
            await EngineApi.connect(tmp_path / "none.sock")
        (tmp_path / "file").touch()
        with pytest.raises(RuntimeUnreachableError, match="Connection refused"):
            await EngineApi.connect(tmp_path / "file")
        async with runtime_stub(tmp_path / "mute", {"GET /version": None}):
            with pytest.raises(RuntimeUnreachableError, match="did not answer in time"):
                await EngineApi.connect(tmp_path / "mute")

    asyncio.run(claim())


GARBAGE = {
    "no HTTP": b"\x00\xff garbage\r\n\r\n",
    "nothing": b"",
    "cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
    "no JSON": http(200, b"<html>", "text/html"),
    "broken JSON": http(200, b"{"),
    "a list": http(200, []),
    "a number": http(200, 5),
    "no version": http(200, {"ApiVersion": "1.41"}),
    "no text": http(200, b"\xff\xfe"),
    "an empty error": http(500, b""),
    "an empty error of text": http(502, b"", "text/plain"),
}


@pytest.mark.parametrize("answer", GARBAGE.values(), ids=GARBAGE)
def test_a_server_that_answers_garbage_is_an_unreachable_runtime(
    tmp_path: Path, answer: bytes
) -> None:
    async def claim() -> None:
        async with runtime_stub(tmp_path / "s", {"GET /version": answer}):
            with pytest.raises(RuntimeUnreachableError, match="did not report its version"):
                await EngineApi.connect(tmp_path / "s")

    asyncio.run(claim())


@pytest.mark.parametrize("answer", GARBAGE.values(), ids=GARBAGE)
def test_garbage_after_a_good_start_is_an_error_of_ours_in_every_call(
    tmp_path: Path, answer: bytes
) -> None:
    async def claim() -> None:
        answers: dict[str, bytes | None] = {
            "GET /containers/x/json": answer,
            "GET /containers/json": answer if b"[]" not in answer else http(200, [5]),
            "POST /containers/create": answer,
            "GET /images/i/json": http(200, {}),
            "POST /containers/x/exec": answer,
            "HEAD /containers/x/archive": http(200, b""),
        }
        async with runtime_stub(tmp_path / "s", answers), connection(tmp_path / "s") as api:
            calls: list[Awaitable[Any]] = [
                api.list("here"),
                api.inspect("x"),
                api.create(ContainerSpec(name="x", image="i"), {}),
                api.exec("x", ["true"], cwd=None, env={}, output=LineRecorder()),
                api.has_file("x", "/f"),
                api.signal("x", 9),
            ]
            for call in calls:
                with pytest.raises(ContainerRuntimeError):
                    await call

    asyncio.run(claim())


def test_an_error_is_one_masked_line_of_printable_text(tmp_path: Path) -> None:
    async def claim() -> None:
        message = "first\nsecond \x1b[31m password=hunter2 " + "x" * 10_000
        answers = {"POST /containers/x/start": http(500, {"message": message})}
        async with runtime_stub(tmp_path / "s", answers), connection(tmp_path / "s") as api:
            with pytest.raises(RuntimeRefusedError, match="first second") as caught:
                await api.start("x")
        text = str(caught.value)
        assert caught.value.status == 500
        assert text.isprintable()
        assert "hunter2" not in text
        assert len(text) < 500

    asyncio.run(claim())


# --- Docker, as far as a stand-in can tell ---


def inspected(status: str, **more: Any) -> dict[str, Any]:
    return {
        "Id": "1234",
        "Name": "/x",
        "State": {"Status": status, "OOMKilled": True, "Pid": 0},
        "Config": {"Labels": None, "Image": "i"},
        "HostConfig": {"RestartPolicy": {"Name": "always", "MaximumRetryCount": 0}},
        **more,
    }


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("running", ContainerStatus.RUNNING),
        ("restarting", ContainerStatus.RUNNING),
        ("stopping", ContainerStatus.RUNNING),
        ("paused", ContainerStatus.PAUSED),
        *((text, ContainerStatus.STOPPED) for text in ("created", "exited", "dead", "removing")),
    ],
)
def test_every_state_of_docker_and_podman_is_known(
    tmp_path: Path, text: str, status: ContainerStatus
) -> None:
    async def claim() -> None:
        listed = {"Id": "1234", "Names": ["/x"], "State": text, "Labels": None}
        answers = {
            "GET /containers/x/json": http(200, inspected(text)),
            "GET /containers/json": http(200, [listed]),
        }
        async with runtime_stub(tmp_path / "s", answers), connection(tmp_path / "s") as api:
            found = await api.inspect("x")
            assert found is not None
            assert (found.status, found.restart_policy) == (status, "always")
            assert found.out_of_memory
            assert [each.status for each in await api.list("here")] == [status]

    asyncio.run(claim())


def test_address_and_ports_are_those_of_the_first_network_that_has_them(tmp_path: Path) -> None:
    async def claim() -> None:
        network = {
            "IPAddress": "",
            "Networks": {"none": None, "one": {"IPAddress": ""}, "two": {"IPAddress": "10.1.2.3"}},
            "Ports": {
                "80/tcp": [{"HostIp": "", "HostPort": "8080"}, {"HostIp": "::", "HostPort": "9"}],
                "81/tcp": None,
                "82/udp": [{"HostIp": "127.0.0.1", "HostPort": "82"}],
            },
        }
        answers = {
            "GET /version": version_answer("Engine", "28.2.2"),
            "GET /containers/x/json": http(200, inspected("running", NetworkSettings=network)),
        }
        async with runtime_stub(tmp_path / "s", answers), connection(tmp_path / "s") as api:
            found = await api.inspect("x")
            assert found is not None
            assert api.name == "docker 28.2.2"
            assert found.address == "10.1.2.3"
            assert found.published_ports == {80: ("0.0.0.0", 8080)}

    asyncio.run(claim())


def test_a_runtime_that_refuses_the_log_limit_makes_the_container_without(tmp_path: Path) -> None:
    async def claim() -> None:
        refusal = http(500, {"message": "container create: invalid log driver: invalid argument"})
        answers = {"GET /images/i/json": http(200, {}), "POST /containers/create": refusal}
        async with (
            runtime_stub(tmp_path / "s", answers) as requests,
            connection(tmp_path / "s") as api,
        ):
            with pytest.raises(RuntimeRefusedError, match="invalid log driver"):
                await api.create(ContainerSpec(name="x", image="i"), {})
            assert requests.count("POST /containers/create?name=x") == 2

    asyncio.run(claim())


def test_an_image_without_a_tag_is_pulled_as_latest_and_errors_in_the_progress_count(
    tmp_path: Path,
) -> None:
    async def claim() -> None:
        progress = b'{"status":"Pulling"}\n{"errorDetail":{},"error":"denied: no access"}\n'
        answers = {"POST /images/create": http(200, progress)}
        async with (
            runtime_stub(tmp_path / "s", answers) as requests,
            connection(tmp_path / "s") as api,
        ):
            for image in ("reg:5000/a", "reg/a:2", "a@sha256:00"):
                with pytest.raises(RuntimeRefusedError, match="denied: no access"):
                    await api.create(ContainerSpec(name="x", image=image), {})
        pulls = [each for each in requests if each.startswith("POST")]
        assert ["latest" in each for each in pulls] == [True, False, False]

    asyncio.run(claim())


def test_events_of_docker_are_understood_and_garbage_between_them_is_passed_over(
    tmp_path: Path,
) -> None:
    def event(action: str, **attributes: str) -> bytes:
        actor = {"ID": "1234", "Attributes": {"name": "x", **attributes}}
        return json.dumps({"Type": "container", "Action": action, "Actor": actor}).encode() + b"\n"

    lines = [
        b"garbage\n",
        b"\n",
        b"[]\n",
        b'{"Action":"die"}\n',
        b'{"Action":"die","Actor":null}\n',
        b'{"Action":["die"],"Actor":{"ID":"1"}}\n',
        b'{"Type":"image","Action":"remove","Actor":{"ID":"1"}}\n',
        b"\xff\xfe\n",
        b"x" * (2 << 20) + b"\n",
        event("exec_create: sh -c true"),
        event("die", exitCode="137"),
        event("die", exitCode="many"),
        event("stop"),
        event("destroy"),
        event("oom")[:-1],
    ]

    async def claim() -> None:
        answers = {"GET /events": http(200, b"".join(lines))}
        async with runtime_stub(tmp_path / "s", answers), connection(tmp_path / "s") as api:
            seen = [(each.action, each.exit_code) async for each in api.events()]
        assert seen == [
            (RuntimeAction.DIE, 137),
            (RuntimeAction.DIE, None),
            (RuntimeAction.STOP, None),
            (RuntimeAction.REMOVE, None),
        ]

    asyncio.run(claim())


def test_an_event_of_an_old_podman_has_its_exit_code_under_another_name() -> None:
    actor = {"ID": "1", "Attributes": {"name": "x", "containerExitCode": "3"}}
    found = EventReader().read(json.dumps({"Action": "die", "Actor": actor}).encode())
    assert found == RuntimeEvent(action=RuntimeAction.DIE, id="1", name="x", exit_code=3)


# --- frames ---


def frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4) + data


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 1000])
def test_frames_are_taken_apart_however_the_stream_is_cut(size: int) -> None:
    stream = frame(1, b"out one") + frame(2, b"") + frame(2, b"err") + frame(0, b"out two")
    reader, found = FrameReader(), {1: b"", 2: b""}
    for start in range(0, len(stream), size):
        for number, data in reader.feed(stream[start : start + size]):
            found[number] += data
    assert found == {1: b"out oneout two", 2: b"err"}


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_without_frames_passes_through(size: int) -> None:
    text = b"plain text of a terminal, which has no frames"
    reader = FrameReader()
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    found = [each for part in parts for each in reader.feed(part)]
    assert b"".join(data for _, data in found) == text
    assert {number for number, _ in found} == {1}


def test_a_frame_of_gigabytes_is_not_kept() -> None:
    reader = FrameReader()
    head = bytes([1, 0, 0, 0]) + (1 << 31).to_bytes(4)
    assert list(reader.feed(head + b"a" * 100)) == [(1, b"a" * 100)]
    assert list(reader.feed(b"b" * 100)) == [(1, b"b" * 100)]


# --- what is left ---


def test_no_helper_process_is_left_by_commands(run: Any, podman: PrivatePodman) -> None:
    async def claim(rig: EngineRig) -> None:
        name = await rig.make(*FOREVER)
        for _ in range(5):
            await rig.exec(name, "true")
        left = {podman.conmon(name).pid}
        until = 10.0  # one second is their delay
        assert await asyncio.to_thread(
            eventually, lambda: {each.pid for each in podman.helpers("conmon")} == left, until
        )

    run(claim)
    assert os.getpid() not in {each.pid for each in podman.helpers()}


def read_actions(*names: str, apart: float = 0.1) -> list[str]:
    """The actions of one container's events that are acted on; they come so many seconds apart."""
    reader = EventReader()
    events = (
        {"Action": name, "Actor": {"ID": "1"}, "timeNano": int((1000 + number * apart) * 1e9)}
        for number, name in enumerate(names)
    )
    read = (reader.read(json.dumps(event).encode()) for event in events)
    return [event.action.value for event in read if event is not None]


def test_a_cleanup_more_than_there_were_ends_is_a_stop() -> None:
    assert ["start", "die", "stop"] == read_actions("init", "start", "die", "cleanup", "cleanup")


def test_the_late_cleanup_of_the_life_before_is_no_stop() -> None:
    lives = ("start", "die", "init", "start", "die", "cleanup", "cleanup")
    assert ["start", "die", "start", "die"] == read_actions(*lives)


def test_the_cleanups_of_failed_starts_are_no_stop() -> None:
    assert [] == read_actions("init", "cleanup", "init", "cleanup", "cleanup")
    failed = ("start", "die", "cleanup", "cleanup", "cleanup")
    assert ["start", "die"] == read_actions(*failed, apart=1.0)
