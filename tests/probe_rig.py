"""Probes of a target that is not run: one check, or a whole watch, for tests of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from longwatch.core.clock import Clock
from longwatch.errors import SpawnError
from longwatch.host.process import Child, ProcessSpec
from longwatch.supervisor.probe_watch import ProbeCheck, ProbeStatus, ProbeWatch
from longwatch.supervisor.probers import HeartbeatProber
from longwatch.supervisor.probes import Probe, ProbePolicy, ProbeSet, StartupPolicy
from longwatch.supervisor.process_target import LiveProcess, ProcessSpawner


class NoSpawner:
    """For probes that start nothing."""

    async def spawn(self, spec: ProcessSpec) -> Child:
        raise SpawnError("nothing is to be started", errno=1)


class ProbeRig:
    """A liveness probe, and with `startup` a startup probe that asks the same."""

    def __init__(  # noqa: PLR0913 - a probe and its surroundings, each by name
        self,
        probe: Probe,
        clock: Clock,
        *,
        guardian: ProcessSpawner | None = None,
        process: ProcessSpec | None = None,
        startup: float | None = None,
        startup_interval: float = 1.0,
        **policy: Any,
    ) -> None:
        liveness = ProbePolicy(probe=probe, **policy)
        starting = (
            None
            if startup is None
            else StartupPolicy(
                probe=probe, within=startup, interval=startup_interval, timeout=liveness.timeout
            )
        )
        self._clock = clock
        self._probes = ProbeSet(liveness=liveness, startup=starting)
        self._target = LiveProcess(
            cast("Child", None),
            spec=process or ProcessSpec(argv=["-"], env={}),
            guardian=guardian or NoSpawner(),
        )
        self._check = ProbeCheck(
            liveness, self._target, heartbeat=HeartbeatProber(clock), clock=clock
        )
        self.on_result: Callable[[str | None, int], object] = lambda _reason, _failures: None
        self.probe_watch = ProbeWatch(
            self._probes,
            self._target,
            clock=clock,
            on_result=self._pass_on,
        )

    def _pass_on(self, status: ProbeStatus, reason: str | None) -> None:
        self.on_result(reason, status.failures)

    async def check(self) -> str | None:
        return await self._check.check()

    async def watch(self, on_result: Callable[[str | None, int], object]) -> str:
        """Watch until it has to go; returns why."""
        self.on_result = on_result
        return (await self.probe_watch.run()).reason
