"""What probes leave behind, and how long one takes beside `podman exec`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from statistics import median

from containers_bench.monitor_process import MonitorSettings
from containers_bench.private_podman import (
    HELPERS,
    IMAGE,
    PROBE_SCRIPT,
    ContainerTrialError,
    PodmanService,
    PrivatePodman,
)
from containers_bench.running_monitor import RunningMonitor, running_monitor
from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.supervisor.containers.container_host import ContainerHost
from longwatch.supervisor.containers.container_spec import ContainerSpec, PullPolicy
from longwatch.supervisor.containers.container_target import ContainerTarget
from longwatch.supervisor.containers.engine_api import EngineApi
from longwatch.supervisor.containers.live_container import LiveContainer
from longwatch.supervisor.probe_watch import ProbeCheck
from longwatch.supervisor.probers import HeartbeatProber
from longwatch.supervisor.probes import ProbePolicy, ScriptProbe
from longwatch.supervisor.target_factory import Streams
from supervisor_bench import proc

_CONTAINERS = 4
_STEPS = 4
_STEP_SECONDS = 300.0
_COMMAND = ("sleep", "100000")
_SETTLE_SECONDS = 3.0
"""Podman's helpers of a probe end one second after it."""
_REST_SECONDS = 1.3
"""After one of our probes that are compared: its helpers are gone."""


@dataclass(frozen=True)
class Footprint:
    """What there is at rest after so many probes; memory in MiB."""

    probes: int
    helpers: Counter[str]
    service: float
    ours: float
    busiest: int
    """The most helpers at a time while the probes before it ran."""
    rate: float
    """Probes a second."""


def run(podman: PrivatePodman, probes: int, rounds: int) -> None:
    with podman.serving() as service:
        _print_footprints(_measure_footprints(podman, service, probes))
        podman.remove_containers()
        _print_comparison(*asyncio.run(_compare(podman, service, rounds)))
        podman.remove_containers()


# --- what is left behind ---


def _measure_footprints(
    podman: PrivatePodman, service: PodmanService, probes: int
) -> list[Footprint]:
    settings = MonitorSettings(
        socket=str(service.socket),
        state_dir=str(podman.folder / "state-probes"),
        image=IMAGE,
        commands={f"probed-{number}": _COMMAND for number in range(_CONTAINERS)},
        probe_script=PROBE_SCRIPT,
    )
    with running_monitor(settings) as monitor:
        monitor.wait_for("up", _CONTAINERS)
        return [
            _footprint(podman, service, monitor, probes * step // _STEPS)
            for step in range(_STEPS + 1)
        ]


def _footprint(
    podman: PrivatePodman, service: PodmanService, monitor: RunningMonitor, probes: int
) -> Footprint:
    """Probe until there were so many, wait, look."""
    began, before = time.monotonic(), len(monitor.of_kind("probe"))
    monitor.allow_probes(probes - before)
    busiest = 0
    while (done := len(monitor.of_kind("probe"))) < probes:
        if time.monotonic() - began > _STEP_SECONDS:
            raise ContainerTrialError(f"{done} of {probes} probes passed")
        busiest = max(busiest, len(podman.helpers(without=service.pid)))
        time.sleep(0.2)
    seconds = time.monotonic() - began
    time.sleep(_SETTLE_SECONDS)
    return Footprint(
        probes=probes,
        helpers=Counter(podman.helpers(without=service.pid).values()),
        service=proc.memory([service.pid]).rss,
        ours=proc.memory(monitor.pids).rss,
        busiest=busiest,
        rate=(probes - before) / seconds,
    )


def _print_footprints(footprints: list[Footprint]) -> None:
    print("\n### Probes\n")
    print(
        f"| probes | {' | '.join(HELPERS)} | service, RSS MiB | ours, RSS MiB "
        f"| helpers meanwhile, max | probes/s |"
    )
    print(f"|---:|{'---:|' * (len(HELPERS) + 4)}")
    for each in footprints:
        counts = " | ".join(str(each.helpers[name]) for name in HELPERS)
        meanwhile = f"{each.busiest} | {each.rate:.1f}" if each.probes else "– | –"
        print(
            f"| {each.probes:,} | {counts} | {each.service:.1f} | {each.ours:.1f} | {meanwhile} |"
        )
    print(
        f"\nProcesses and memory at rest, {_SETTLE_SECONDS:.0f} s after the last probe. A script "
        f"probe in each of {_CONTAINERS} containers, one right after the other; each container "
        f"has one `conmon`.",
        flush=True,
    )


# --- the time of one ---


async def _compare(
    podman: PrivatePodman, service: PodmanService, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of our probes, and of `podman exec` of the same script, in turns."""
    clock = SystemClock()

    async def connect() -> EngineApi:
        return await EngineApi.connect(service.socket)

    host = ContainerHost(connect, owner="bench", clock=clock, events=Events())
    host.open()
    try:
        spec = ContainerSpec(
            name="compared",
            image=IMAGE,
            command=_COMMAND,
            network="none",
            pull=PullPolicy.NEVER,
        )
        target = await ContainerTarget(spec, host=host, streams=Streams(None, None, None)).start()
        check = _make_check(target, clock)
        await _probe(check)  # it also looks for the script, and for `timeout` in the image
        await asyncio.sleep(_REST_SECONDS)
        ours, peer = [], []
        for _ in range(rounds):
            ours.append(await _probe(check))
            await asyncio.sleep(_REST_SECONDS)
            peer.append(_run_exec(podman, spec.name))
        target.detach()
    finally:
        await host.close()
    return ours, peer


def _make_check(target: LiveContainer, clock: SystemClock) -> ProbeCheck:
    policy = ProbePolicy(probe=ScriptProbe(script=PROBE_SCRIPT))
    return ProbeCheck(policy, target, heartbeat=HeartbeatProber(clock), clock=clock)


async def _probe(check: ProbeCheck) -> float:
    began = time.monotonic()
    if (reason := await check.check()) is not None:
        raise ContainerTrialError(f"a probe failed: {reason}")
    return time.monotonic() - began


def _run_exec(podman: PrivatePodman, name: str) -> float:
    began = time.monotonic()
    podman.run("exec", "--workdir", "/code", name, "sh", f"./{PROBE_SCRIPT}")
    return time.monotonic() - began


def _print_comparison(ours: list[float], peer: list[float]) -> None:
    print("\n| one probe, ms | ours | `podman exec` | ours : `podman exec` |\n|---|---:|---:|---:|")
    for title, pick in (("p50", median), ("max", max)):
        mine, theirs = pick(ours) * 1000, pick(peer) * 1000
        print(f"| {title} | {mine:.0f} | {theirs:.0f} | {mine / theirs:.2f} |")
    print(f"\n{len(ours)} of each, in turns.", flush=True)
