"""Containers: agents in Podman that die, that idle and that are probed, beside Podman's own.

Everything runs in a Podman with a store of its own, by runc, without a network. The monitor is a
process of its own and speaks to a `podman system service`.

In the environment: BENCH_PARTS=restarts,idle,probes, BENCH_DEATHS=20 for each way to notice one,
BENCH_IDLE_SECONDS=30, BENCH_PROBES=1000, BENCH_EXECS=20 probes that are compared.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from containers_bench import private_podman
from queue_bench import environments

if TYPE_CHECKING:
    from containers_bench.private_podman import PrivatePodman


def setting(name: str, default: int) -> int:
    return int(os.environ.get(name) or default)


def run_restarts(podman: PrivatePodman) -> None:
    from containers_bench import restarts  # noqa: PLC0415 - its packages are there only now

    restarts.run(podman, setting("BENCH_DEATHS", 20))


def run_idle(podman: PrivatePodman) -> None:
    from containers_bench import idle  # noqa: PLC0415

    idle.run(podman, setting("BENCH_IDLE_SECONDS", 30))


def run_probes(podman: PrivatePodman) -> None:
    from containers_bench import probing  # noqa: PLC0415

    probing.run(podman, setting("BENCH_PROBES", 1000), setting("BENCH_EXECS", 20))


PARTS: dict[str, Callable[[PrivatePodman], None]] = {
    "restarts": run_restarts,
    "idle": run_idle,
    "probes": run_probes,
}


def main() -> None:
    if not all(importlib.util.find_spec(name) for name in ("longwatch", "aiodocker")):
        environments.BUILD.mkdir(exist_ok=True)
        python = environments.make_with("bench-containers", "containers")
        sys.exit(subprocess.run([python, __file__], check=False).returncode)
    if missing := private_podman.missing_tool():
        print(f"Not measured: {missing}.")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is taken down
    with private_podman.private_podman() as podman:
        for part in (os.environ.get("BENCH_PARTS") or ",".join(PARTS)).split(","):
            PARTS[part](podman)
        version = podman.run("version", "--format", "{{.Version}}")
    print(
        f"\nPodman {version} with runc; the load average at the end was {os.getloadavg()[1]:.1f}."
    )


if __name__ == "__main__":
    main()
