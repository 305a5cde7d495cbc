"""A ContainerMonitor in a process of its own: `monitor_process.py SETTINGS`, a MonitorSettings as
JSON.

It writes a line for everything that is measured, `KIND MOMENT VALUE`, moments by the clock that all
processes share. It stops at the end of its input. With `probes_on_request`, a line `N` there lets
the next N probes pass, and all others wait.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.core.events.base import Event, Events
from longwatch.core.events.programs import ProgramAdopted, ProgramStarted, RestartScheduled
from longwatch.host.capture import LineSink
from longwatch.supervisor.containers.container_spec import Bind, ContainerSpec, PullPolicy
from longwatch.supervisor.containers.engine_api import EngineApi
from longwatch.supervisor.containers.monitor import ContainerMonitor, MonitorConfig
from longwatch.supervisor.containers.runtime import ExecEnd, RuntimeAction, RuntimeEvent
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.probes import NO_PROBES, ProbePolicy, ProbeSet, ScriptProbe
from longwatch.supervisor.target_factory import Streams

_GATE_SECONDS = 0.02
_PROBE_TIMEOUT = 600.0
"""A probe that waits for its turn is not late."""


@dataclass(frozen=True, kw_only=True)
class MonitorSettings:
    """What is monitored, and how: a registry, or containers of one image."""

    socket: str
    state_dir: str
    registry: str | None = None
    image: str = ""
    commands: Mapping[str, Sequence[str]] | None = None
    """By container name."""
    bind: tuple[str, str] | None = None
    """Directory of the host, directory of the container."""
    backoff: float = 1.0
    is_deaf: bool = False
    """Whether it gets no events of the runtime, so that only its polling is left."""
    follows_logs: bool = False
    probe_script: str | None = None
    probe_interval: float = 0.01


def write_mark(kind: str, value: float = 0.0) -> None:
    os.write(1, f"{kind} {time.monotonic():.6f} {value:.6f}\n".encode())


class ProbeGate:
    """Lets as many probes pass as were asked for."""

    def __init__(self) -> None:
        self.allowed = 0

    async def enter(self) -> None:
        while self.allowed <= 0:  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(_GATE_SECONDS)
        self.allowed -= 1


class MarkingApi(EngineApi):
    """The product's own connection to a runtime, which marks what goes over it."""

    is_deaf = False
    gate = ProbeGate()

    async def events(self) -> AsyncGenerator[RuntimeEvent, None]:
        if self.is_deaf:
            await asyncio.Event().wait()
        async for event in super().events():
            if event.action is RuntimeAction.DIE:
                write_mark("event")
            yield event

    async def start(self, container_id: str) -> None:
        write_mark("start")
        await super().start(container_id)

    async def exec(
        self,
        container_id: str,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str],
        output: LineSink,
    ) -> ExecEnd:
        if cwd is None:  # no probe: it asks once whether the image has `timeout`
            return await super().exec(container_id, argv, cwd=cwd, env=env, output=output)
        await self.gate.enter()
        began = time.monotonic()
        end = await super().exec(container_id, argv, cwd=cwd, env=env, output=output)
        if end.exit_code == 0:
            write_mark("probe", time.monotonic() - began)
        return end


class DroppingSink:
    """Takes all lines and keeps none."""

    congested = False

    def write(self, data: bytes) -> bool:
        del data
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        """Nothing ever holds it up."""


def mark_event(event: Event) -> None:
    match event:
        case ProgramStarted(pid=pid) | ProgramAdopted(pid=pid):
            write_mark("up", pid)
        case RestartScheduled(delay=delay):
            write_mark("backoff", delay)
        case _:
            pass


def make_plan(name: str, command: Sequence[str], settings: MonitorSettings) -> ProgramPlan:
    binds = (
        () if settings.bind is None else (Bind(source=settings.bind[0], target=settings.bind[1]),)
    )
    probes = NO_PROBES
    if settings.probe_script is not None:
        probes = ProbeSet(
            liveness=ProbePolicy(
                probe=ScriptProbe(script=settings.probe_script),
                interval=settings.probe_interval,
                timeout=_PROBE_TIMEOUT,
                start_grace=0.0,
            )
        )
    spec = ContainerSpec(
        name=name,
        image=settings.image,
        command=tuple(command),
        binds=binds,
        network="none",
        pull=PullPolicy.NEVER,
    )
    wait = settings.backoff
    return ProgramPlan(
        name=name,
        spec=spec,
        kind=ProgramKind.CONTAINER,
        backoff=BackoffPolicy(initial=wait, factor=1.0, cap=max(wait, 1.0)),
        breaker=BreakerPolicy(tolerated=10_000),
        probes=probes,
    )


def make_monitor(settings: MonitorSettings) -> ContainerMonitor:
    async def connect() -> MarkingApi:
        api = await MarkingApi.connect(settings.socket)
        api.is_deaf = settings.is_deaf
        return api

    plans = (make_plan(name, words, settings) for name, words in (settings.commands or {}).items())
    sink = DroppingSink() if settings.follows_logs else None
    return ContainerMonitor(
        MonitorConfig(
            registry=None if settings.registry is None else Path(settings.registry),
            plans=tuple(plans),
            pull=PullPolicy.NEVER,
        ),
        state_dir=Path(settings.state_dir),
        events=Events(mark_event),
        connect=connect,
        streams=lambda _: Streams(None, sink, None),
    )


def main() -> None:
    settings = MonitorSettings(**json.loads(sys.argv[1]))
    with make_monitor(settings):
        for line in sys.stdin:
            MarkingApi.gate.allowed += int(line)


if __name__ == "__main__":
    main()
