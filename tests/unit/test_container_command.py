"""Commands of probes in containers: what is left of them is killed without the runtime's help."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from longwatch.core.events.base import Events
from longwatch.supervisor.containers import container_command
from longwatch.supervisor.containers.container_command import ContainerCommand
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.containers.runtime import ContainerState, ContainerStatus

STATE = ContainerState(id="c1", name="web", status=ContainerStatus.RUNNING, pid=7)


class HangingRuntime:
    """A local runtime that starts every command and never replies."""

    is_local = True

    def __init__(self) -> None:
        self.marks: list[str] = []
        self.started = asyncio.Event()

    async def exec(self, _id: str, _argv: Any, *, env: dict[str, str], **_options: Any) -> Any:
        self.marks.append(env[container_command.MARK_VARIABLE])
        self.started.set()
        await asyncio.Event().wait()


def test_a_command_is_killed_by_its_mark_though_the_runtime_does_not_answer_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = HangingRuntime()
    running = {"mark": [11, 12]}

    def marked_processes(pid: int, mark: str) -> list[int]:
        assert (7, runtime.marks[-1]) == (pid, mark)
        return running["mark"]

    def kill_processes(pids: list[int]) -> None:
        running["mark"] = [pid for pid in running["mark"] if pid not in pids]

    monkeypatch.setattr(container_command, "marked_processes", marked_processes)
    monkeypatch.setattr(container_command, "kill_processes", kill_processes)
    host: Any = SimpleNamespace(
        connected=runtime, is_known=True, has_timeout={"agent:1": True}, events=Events()
    )

    async def claim() -> None:
        command = ContainerCommand(ContainerSpec(name="web", image="agent:1"), STATE, host)
        probe = asyncio.ensure_future(
            command.run(["sh", "./live.sh"], output=SimpleNamespace(), cwd=None, timeout=5)
        )
        await runtime.started.wait()
        host.is_known = False
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe

    asyncio.run(claim())
    assert [] == running["mark"]
