"""What containers cost that only run: ours, and what our questions cost the runtime's service."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from containers_bench.monitor_process import MonitorSettings
from containers_bench.private_podman import IMAGE, PodmanService, PrivatePodman
from containers_bench.running_monitor import cpu_seconds, running_monitor
from supervisor_bench import proc

CONTAINERS = 30
TARGET = 2.0
"""% of a core, for ours."""
_SETTLE_SECONDS = 6.0
"""One look at the runtime and the registry, and the end of the start."""


@dataclass(frozen=True)
class IdleCost:
    """In % of a core, and in MiB."""

    ours: float
    service: float
    memory: float


def run(podman: PrivatePodman, seconds: int) -> None:
    registry = _write_registry(podman)
    with podman.serving() as service:
        costs = {
            "not followed": _measure(podman, service, registry, seconds, follows_logs=False),
            "followed": _measure(podman, service, registry, seconds, follows_logs=True),
        }
        podman.remove_containers()
    print(f"\n### {CONTAINERS} idle containers without probes\n")
    print(
        "| their output | ours, % of a core | target | `podman system service`, % of a core "
        "| ours, RSS MiB |\n|---|---:|---:|---:|---:|"
    )
    for title, cost in costs.items():
        print(
            f"| {title} | {cost.ours:.2f} | < {TARGET:.0f} | {cost.service:.2f} "
            f"| {cost.memory:.1f} |"
        )
    added = (costs["followed"].service - costs["not followed"].service) / CONTAINERS
    print(
        f"\nOver {seconds} s each, from a registry. Ours is the monitor's process and its guardian."
        f" Each output that is followed costs the service {added:.2f} % of a core.",
        flush=True,
    )


def _measure(
    podman: PrivatePodman,
    service: PodmanService,
    registry: str,
    seconds: int,
    *,
    follows_logs: bool,
) -> IdleCost:
    """The first monitor starts the containers, the next one adopts them."""
    settings = MonitorSettings(
        socket=str(service.socket),
        state_dir=str(podman.folder / "state-idle"),
        registry=registry,
        follows_logs=follows_logs,
    )
    with running_monitor(settings) as monitor:
        monitor.wait_for("up", CONTAINERS)
        time.sleep(_SETTLE_SECONDS)
        began, ours = time.monotonic(), cpu_seconds(monitor.pids)
        services = cpu_seconds([service.pid])
        time.sleep(seconds)
        share = 100 / (time.monotonic() - began)
        return IdleCost(
            ours=(cpu_seconds(monitor.pids) - ours) * share,
            service=(cpu_seconds([service.pid]) - services) * share,
            memory=proc.memory(monitor.pids).rss,
        )


def _write_registry(podman: PrivatePodman) -> str:
    folder = podman.folder / "agents"
    agents = {}
    for number in range(CONTAINERS):
        name = f"idle-{number}"
        manifest = folder / "repos" / "bench" / name / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text("{}", encoding="utf-8")
        agents[name] = {
            "type": "agent",
            "agentName": name,
            "repoName": "bench",
            "image": IMAGE,
            "command": ["sleep", "100000"],
            "network": "none",
        }
    registry = folder / "agents.json"
    registry.write_text(json.dumps(agents), encoding="utf-8")
    return str(registry)
