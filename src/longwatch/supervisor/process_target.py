"""A process of the guardian as a target: it ends with the guardian and is never adopted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from longwatch.core.end_cause import EndCause
from longwatch.errors import GuardianLostError, SpawnError
from longwatch.host.capture import LineSink
from longwatch.host.process import KILL_NOW, Child, ProcessEnd, ProcessSpec, StopPolicy

LOOPBACK = "127.0.0.1"
_WITHHELD_VARIABLES = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


class ProcessSpawner(Protocol):
    """The one method of a guardian that targets use."""

    async def spawn(self, spec: ProcessSpec) -> Child: ...


class ProcessTarget:
    """Starts the process of a spec."""

    def __init__(self, spec: ProcessSpec, *, guardian: ProcessSpawner) -> None:
        self._spec = spec
        self._guardian = guardian

    async def start(self) -> LiveProcess:
        """Spawn it. Cancelling kills the spawned process."""
        return LiveProcess(
            await self._guardian.spawn(self._spec), spec=self._spec, guardian=self._guardian
        )

    async def adopt(self) -> LiveProcess | None:
        """Return None: the guardian kills every process when its supervisor is gone."""
        return None

    async def stop_unwatched(self, policy: StopPolicy) -> None:
        """Do nothing: every process is watched."""


class LiveProcess:
    """One child of the guardian, and the commands that its probes run.

    A probe's command runs in the program's directory, environment, identity and limits. It gets no
    notify socket, so that it cannot send notices in the program's name.
    """

    def __init__(self, child: Child, *, spec: ProcessSpec, guardian: ProcessSpawner) -> None:
        self.child = child
        self._spec = spec
        self._guardian = guardian

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def started_at(self) -> float:
        return self.child.started_at

    @property
    def is_running(self) -> bool:
        return self.child.is_leader_running

    @property
    def is_paused(self) -> bool:
        """False: a stopped process answers no probe, which counts as a failure."""
        return False

    def signal(self, signum: int) -> None:
        self.child.signal(signum)

    def begin_stop(self, policy: StopPolicy) -> None:
        self.child.begin_stop(policy)

    def extend_stop(self, seconds: float) -> None:
        self.child.extend_stop(seconds)

    def detach(self) -> bool:
        """Return False: it dies with the guardian."""
        return False

    async def wait(self) -> ProcessEnd:
        return await self.child.wait()

    async def exec(
        self, argv: Sequence[str], *, output: LineSink, in_scripts: bool, timeout: float
    ) -> EndCause:
        """Run a command in the program's directory and environment. Cancelling kills the whole tree
        and waits until it is gone. The guardian is local, so `timeout` is not needed.
        """
        del in_scripts, timeout
        spawning = asyncio.ensure_future(self._guardian.spawn(self._exec_spec(argv, output)))
        try:
            child = await asyncio.shield(spawning)
            return (await child.wait()).cause
        except asyncio.CancelledError:
            with suppress(SpawnError, GuardianLostError):
                # It may run already, even if the guardian has not reported it yet.
                await (await spawning).stop(KILL_NOW)
            raise

    async def script_fault(self, name: str) -> str | None:
        path = os.path.join(self._spec.cwd or ".", name)  # noqa: PTH118 - a str, as in the spec
        return None if os.path.isfile(path) else f"there is no probe script {path}"  # noqa: PTH113, ASYNC240 - one stat of a local file

    async def probe_address(self, port: int) -> tuple[str, int]:
        return LOOPBACK, port

    def facts(self) -> dict[str, Any]:
        return {}

    def _exec_spec(self, argv: Sequence[str], output: LineSink) -> ProcessSpec:
        env = {
            name: value for name, value in self._spec.env.items() if name not in _WITHHELD_VARIABLES
        }
        return replace(
            self._spec, argv=tuple(argv), env=env, stdin=None, stdout=output, stderr=output
        )
