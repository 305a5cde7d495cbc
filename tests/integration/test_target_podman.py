"""A container of a real Podman keeps the rules of the seam: the suite of `check_target`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.host.capture import LineSink
from longwatch.host.loop import EventLoopThread
from longwatch.supervisor.containers.container_command import cgroup_pids, kill_processes
from longwatch.supervisor.containers.container_host import ContainerHost
from longwatch.supervisor.containers.container_spec import Bind, ContainerSpec, PullPolicy
from longwatch.supervisor.containers.container_target import ContainerTarget
from longwatch.supervisor.containers.engine_api import EngineApi
from longwatch.supervisor.target import Target
from longwatch.supervisor.target_factory import Streams
from longwatch.testing import TargetHarness, target_check
from longwatch.testing.target_suite.harness import (
    SCRIPT_NAME,
    SCRIPT_TEXT,
    SHELL_SCRIPTS,
    TargetBehaviour,
)
from podman_fixture import PodmanServer, PrivatePodman, shared_podman
from requires import require_tool

IMAGE = "localhost/bb:1"


class PodmanHarness(TargetHarness):
    """Containers of a real Podman. Every target has a host of its own, as every supervisor has."""

    lives_on = True
    has_runtime = True

    def __init__(
        self, loop: EventLoopThread, podman: PrivatePodman, server: PodmanServer, scripts: Path
    ) -> None:
        self.loop = loop
        self.clock = SystemClock()
        self._podman = podman
        self._server = server
        self._bind = Bind(source=str(scripts), target="/code")
        self._specs: dict[int, ContainerSpec] = {}
        self._hosts: dict[int, ContainerHost] = {}
        (scripts / SCRIPT_NAME).write_text(SCRIPT_TEXT, encoding="utf-8")

    async def make(self, behaviour: TargetBehaviour, output: LineSink) -> Target:
        name = self._podman.new_name()
        text = SHELL_SCRIPTS.get(behaviour, SHELL_SCRIPTS[TargetBehaviour.RUNS])
        spec = ContainerSpec(
            name=name,
            image=IMAGE,
            command=("sh", "-c", text),
            binds=(self._bind,),
            network="none",
            pull=PullPolicy.NEVER,
        )
        if behaviour is TargetBehaviour.CANNOT_START:
            spec = replace(spec, image=f"localhost/for-{name}:1")
        if behaviour is TargetBehaviour.REFUSED:
            await self._run("create", "--name", name, "--network", "none", IMAGE, "true")
        return self._make(spec, output)

    async def remake(self, target: Target, output: LineSink) -> Target:
        await self._hosts.pop(id(target)).close()
        return self._make(self._specs[id(target)], output)

    async def kill(self, target: Target) -> None:
        kill_processes([await self._pid(target)])

    async def count_processes(self, target: Target) -> int:
        pid = await self._pid(target)
        pids = cgroup_pids(pid) if pid else ()
        return sum(map(is_living, pids or ()))

    async def repair(self, target: Target) -> None:
        await self._run("tag", IMAGE, self._specs[id(target)].image)

    async def clean_up(self) -> None:
        await self.reconnect()
        for host in self._hosts.values():
            await host.close()
        self._hosts.clear()
        await asyncio.to_thread(self._podman.remove_containers)

    async def cut_off(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def reconnect(self) -> None:
        if self._server._process is None:
            await asyncio.to_thread(self._server.start)

    def _make(self, spec: ContainerSpec, output: LineSink) -> Target:
        host = ContainerHost(
            self._connect,
            owner="check",
            clock=self.clock,
            events=Events(),
            poll_interval=0.5,
        )
        host.open()
        target = ContainerTarget(spec, host=host, streams=Streams(stdout=output))
        self._specs[id(target)], self._hosts[id(target)] = spec, host
        return target

    async def _connect(self) -> EngineApi | str:
        try:
            return await EngineApi.connect(self._server.socket_path)
        except Exception as error:  # noqa: BLE001 - as the finder: a reason, whatever it is
            return str(error)

    async def _pid(self, target: Target) -> int:
        name = self._specs[id(target)].name
        found = await self._run("inspect", "--format", "{{.State.Pid}}", name, check=False)
        return int(found) if found.isdecimal() else 0

    async def _run(self, *words: str, check: bool = True) -> str:
        return await asyncio.to_thread(lambda: self._podman.run(*words, check=check))


def is_living(pid: int) -> bool:
    """Whether it runs: what has ended is a member of its cgroup until its parent has reaped it."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    with EventLoopThread() as running:
        yield running


@pytest.mark.parametrize(
    "check", [*target_check._checks(PodmanHarness)], ids=lambda check: check.__name__
)
def test_a_container_of_a_real_podman_keeps_the_rule(
    loop: EventLoopThread, tmp_path: Path, check: target_check.Check
) -> None:
    """`check_target`, one rule a test: all of them together take a minute."""
    for tool in ("podman", "runc", "busybox-static"):
        require_tool(tool)
    podman = shared_podman()
    with podman.serving() as server:
        target_check._run(check, PodmanHarness(loop, podman, server, tmp_path))
