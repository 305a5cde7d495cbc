"""Ours over many restarts: what it holds when it has come to rest after a tenth of them, after
half and after all.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from supervisor_bench import proc
from supervisor_bench.contenders import Longwatch
from supervisor_bench.running_supervisor import RunningSupervisor, start_supervisor, wait_until

RESTARTS = 10_000
_PROGRAMS = 10
_STEPS = (0.1, 0.5, 1.0)
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True)
class Footprint:
    restarts: int
    """So far."""
    rate: float
    """Restarts a second since the last look."""
    memory: proc.Memory
    descriptors: int


def run(place: Path) -> list[Footprint]:
    with start_supervisor(Longwatch(), place / "endurance", _PROGRAMS) as supervisor:
        return [_footprint_after(supervisor, round(RESTARTS * step)) for step in _STEPS]


def _footprint_after(supervisor: RunningSupervisor, restarts: int) -> Footprint:
    """Let the programs fail until there were so many, let them run again, wait, look."""
    began, before = time.monotonic(), len(supervisor.started_pids)
    failing = supervisor.place / "fail"
    failing.touch()
    for pid in filter(proc.is_alive, supervisor.started_pids):
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: len(supervisor.started_pids) >= restarts + _PROGRAMS,
        f"it did not restart programs {restarts} times",
        timeout=600.0,
    )
    failing.unlink()
    rate = (len(supervisor.started_pids) - before) / (time.monotonic() - began)
    time.sleep(_SETTLE_SECONDS)
    family = supervisor.own_processes
    return Footprint(
        len(supervisor.started_pids) - _PROGRAMS,
        rate,
        proc.memory(family),
        proc.descriptors(family),
    )
