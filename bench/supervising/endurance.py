"""Ours over many restarts: what it holds when it has come to rest after a tenth of them, after
half and after all.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from supervising import proc
from supervising.contenders import Longwatch
from supervising.stage import Stage, staged, until

RESTARTS = 10_000
_PROGRAMS = 10
_STEPS = (0.1, 0.5, 1.0)
_SETTLED = 3.0


@dataclass(frozen=True)
class Holding:
    restarts: int
    """So far."""
    rate: float
    """Restarts a second since the last look."""
    memory: proc.Memory
    descriptors: int


def run(place: Path) -> list[Holding]:
    with staged(Longwatch(), place / "endurance", _PROGRAMS) as stage:
        return [_holding_after(stage, round(RESTARTS * step)) for step in _STEPS]


def _holding_after(stage: Stage, restarts: int) -> Holding:
    """Let the programs fail until there were so many, let them run again, wait, look."""
    began, before = time.monotonic(), len(stage.born)
    failing = stage.place / "fail"
    failing.touch()
    for pid in filter(proc.is_alive, stage.born):
        os.kill(pid, signal.SIGKILL)
    until(
        lambda: len(stage.born) >= restarts + _PROGRAMS,
        f"it did not restart programs {restarts} times",
        patience=600.0,
    )
    failing.unlink()
    rate = (len(stage.born) - before) / (time.monotonic() - began)
    time.sleep(_SETTLED)
    family = stage.family
    return Holding(len(stage.born) - _PROGRAMS, rate, proc.memory(family), proc.descriptors(family))
