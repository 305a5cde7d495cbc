"""Runs the probes of a container until each has a result: for scripts and tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.events.base import Events
from longwatch.errors import RuntimeUnreachableError, TargetRefusedError, TryAgainError, UsageError
from longwatch.supervisor.containers.container_host import Connect, ContainerHost
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.containers.live_container import LiveContainer
from longwatch.supervisor.containers.manifest import parse_manifest
from longwatch.supervisor.containers.runtime import ContainerState
from longwatch.supervisor.probe_watch import ProbeStatus, ProbeWatch
from longwatch.supervisor.probes import ProbeKind, ProbeState
from longwatch.supervisor.target_factory import Streams

RUNNING_TIMEOUT = 10.0
"""Seconds within which the container must run before its first probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """The results of the probes of a container. A probe that the manifest does not have is not in
    `probes`.
    """

    agent: str
    container: str
    probes: Mapping[ProbeKind, ProbeStatus]

    @property
    def is_live(self) -> bool:
        return self._passed(ProbeKind.STARTUP) and self._passed(ProbeKind.LIVENESS)

    @property
    def is_ready(self) -> bool:
        return self.is_live and self._passed(ProbeKind.READINESS)

    def _passed(self, kind: ProbeKind) -> bool:
        return kind not in self.probes or self.probes[kind].state is ProbeState.SUCCESS


def run_health_probes(
    agent_name: str,
    container_name: str,
    manifest: Mapping[str, Any],
    *,
    connect: Connect | None = None,
    clock: Clock | None = None,
) -> ProbeReport:
    """Run the probes of a manifest in a container until each has passed or failed, and return a
    report.

    Blocks for at most the thresholds times interval and timeout. Restarts nothing and changes no
    state. Thread-safe. `manifest` is the parsed file. Raises UsageError for a manifest with faults,
    TryAgainError if the container does not run within 10 s, RuntimeUnreachableError without a
    runtime, and TargetRefusedError if a probe script is missing.
    """
    run = _ProbeRun(agent_name, container_name, manifest, connect, clock or SystemClock())
    return asyncio.run(run.report())


class _ProbeRun:
    """One call of `run_health_probes`."""

    def __init__(
        self,
        agent: str,
        container: str,
        manifest: Mapping[str, Any],
        connect: Connect | None,
        clock: Clock,
    ) -> None:
        self._agent = agent
        self._container = container
        self._clock = clock
        self._connect = connect
        reading = parse_manifest(manifest, file=f"the manifest of {agent}")
        if reading.faults:
            raise UsageError("; ".join(reading.faults))
        self._probes = reading.probes

    async def report(self) -> ProbeReport:
        from longwatch.supervisor.containers.runtime_finder import RuntimeFinder  # noqa: PLC0415 - it loads the Engine API

        finder = RuntimeFinder("auto")
        host = ContainerHost(
            self._connect or finder.connect,
            owner="",
            clock=self._clock,
            events=Events(),
            on_close=finder.close,
        )
        host.open()
        try:
            async with asyncio.timeout(RUNNING_TIMEOUT):
                state = await self._running_state(host)
        except TimeoutError:
            if not host.is_known:
                raise RuntimeUnreachableError(host.reason) from None
            raise TryAgainError(
                f"the container {self._container} did not run within {RUNNING_TIMEOUT:g} s; "
                f"start it first"
            ) from None
        else:
            return await self._watch(host, state)
        finally:
            await host.close()

    async def _running_state(self, host: ContainerHost) -> ContainerState:
        while True:
            state = await (await host.runtime()).inspect(self._container)
            if state is not None and state.is_up:
                return state
            await self._clock.sleep(0.1)

    async def _watch(self, host: ContainerHost, state: ContainerState) -> ProbeReport:
        spec = ContainerSpec(name=self._container, image=state.image or "unknown")
        streams = Streams(None, None, None)
        target = LiveContainer(spec, state, host=host, streams=streams, adopted=True)
        done = asyncio.Event()
        watch = ProbeWatch(
            self._probes,
            target,
            clock=self._clock,
            on_result=lambda _status, _reason: done.set() if _has_verdict(watch) else None,
        )
        probing = asyncio.ensure_future(watch.run())
        waiting = asyncio.ensure_future(done.wait())
        try:
            if self._probes:
                await asyncio.wait({probing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (probing, waiting):
                task.cancel()
            await asyncio.wait({probing, waiting})
            target.detach()
        if not probing.cancelled() and (verdict := probing.result()).refused:
            raise TargetRefusedError(verdict.reason)
        return ProbeReport(agent=self._agent, container=self._container, probes=watch.statuses)


def _has_verdict(watch: ProbeWatch) -> bool:
    """Return whether every probe of the watch has passed or failed."""
    return all(
        status.state in {ProbeState.SUCCESS, ProbeState.FAILED}
        for status in watch.statuses.values()
    )
