"""All contenders, one after the other in every round, each alone on the machine."""

from __future__ import annotations

import math
import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from supervising import proc
from supervising.contenders import Contender
from supervising.stage import Stage, TrialError, staged

MANY = 100
FEW = 10
KILLS = 20
KILLS_LASTING = 30.0
"""Who needs seconds for a restart is killed less often, to be done in about this many."""
_SETTLED = 2.0
_IDLE = 8.0
_ASKED = 5


@dataclass
class Readings:
    """What was measured of one contender, a figure for each round or each time."""

    memory: dict[int, list[proc.Memory]] = field(default_factory=dict)
    """By how many programs it had."""
    starts: list[float] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    statuses: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Of one processor, while nothing happens."""
    wakeups: list[float] = field(default_factory=list)
    """A second, while nothing happens."""
    failures: list[str] = field(default_factory=list)
    """Why something is missing."""

    def middle(self, figure: str) -> float:
        return float(median(getattr(self, figure) or [math.nan]))

    def memory_with(self, programs: int, kind: str) -> float:
        return float(
            median([getattr(each, kind) for each in self.memory.get(programs, ())] or [math.nan])
        )


def run(contenders: Sequence[Contender], rounds: int, place: Path) -> dict[str, Readings]:
    results = {contender.name: Readings() for contender in contenders}
    for number in range(rounds):
        for contender in contenders:
            _round(
                contender,
                results[contender.name],
                place / f"{contender.name}{number}",
                kill=number == 0,
            )
    return results


def _round(contender: Contender, readings: Readings, place: Path, *, kill: bool) -> None:
    place.mkdir()
    try:
        with staged(contender, place / "many", MANY) as stage:
            _measure_many(stage, readings)
        with staged(contender, place / "none", 0) as stage:
            _note_memory(stage, readings, 0)
        with staged(contender, place / "few", FEW) as stage:
            _note_memory(stage, readings, FEW)
            readings.restarts += _restarts(stage) if kill else ()
    except (TrialError, OSError, subprocess.SubprocessError) as error:
        readings.failures.append(str(error))


def _measure_many(stage: Stage, readings: Readings) -> None:
    readings.starts.append(stage.started_in)
    _note_memory(stage, readings, MANY)
    before = proc.work(stage.family)
    time.sleep(_IDLE)
    idle = proc.work(stage.family) - before
    readings.cpu.append(idle.cpu / _IDLE)
    readings.wakeups.append(idle.wakeups / _IDLE)
    readings.statuses += [stage.show_status(MANY) for _ in range(_ASKED)]
    readings.stops.append(stage.stop())


def _note_memory(stage: Stage, readings: Readings, programs: int) -> None:
    time.sleep(_SETTLED)
    readings.memory.setdefault(programs, []).append(proc.memory(stage.family))


def _restarts(stage: Stage) -> list[float]:
    """Each at another moment of whatever it does regularly."""
    moments = random.Random(1)  # noqa: S311 - no secret
    rest = stage.contender.looks_every
    found: list[float] = []
    for _ in range(min(KILLS, max(int(KILLS_LASTING / rest), 1))):
        time.sleep(moments.uniform(0.1, rest))
        found.append(stage.restart())
    return found
