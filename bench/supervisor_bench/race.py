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

from supervisor_bench import proc
from supervisor_bench.contenders import SupervisorContender
from supervisor_bench.running_supervisor import (
    RunningSupervisor,
    SupervisorTrialError,
    start_supervisor,
)

MANY = 100
FEW = 10
KILLS = 20
KILL_SECONDS = 30.0
"""Who needs seconds for a restart is killed less often, to be done in about this many."""
_SETTLE_SECONDS = 2.0
_IDLE_SECONDS = 8.0
_STATUS_CALLS = 5


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

    def median_of(self, figure: str) -> float:
        return float(median(getattr(self, figure) or [math.nan]))

    def memory_with(self, programs: int, kind: str) -> float:
        return float(
            median([getattr(each, kind) for each in self.memory.get(programs, ())] or [math.nan])
        )


def run_race(
    contenders: Sequence[SupervisorContender], rounds: int, place: Path
) -> dict[str, Readings]:
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


def _round(contender: SupervisorContender, readings: Readings, place: Path, *, kill: bool) -> None:
    place.mkdir()
    try:
        with start_supervisor(contender, place / "many", MANY) as stage:
            _measure_many(stage, readings)
        with start_supervisor(contender, place / "none", 0) as stage:
            _note_memory(stage, readings, 0)
        with start_supervisor(contender, place / "few", FEW) as supervisor:
            _note_memory(supervisor, readings, FEW)
            readings.restarts += _restarts(supervisor) if kill else ()
    except (SupervisorTrialError, OSError, subprocess.SubprocessError) as error:
        readings.failures.append(str(error))


def _measure_many(supervisor: RunningSupervisor, readings: Readings) -> None:
    readings.starts.append(supervisor.started_in)
    _note_memory(supervisor, readings, MANY)
    before = proc.cpu_usage(supervisor.own_processes)
    time.sleep(_IDLE_SECONDS)
    idle = proc.cpu_usage(supervisor.own_processes) - before
    readings.cpu.append(idle.cpu / _IDLE_SECONDS)
    readings.wakeups.append(idle.wakeups / _IDLE_SECONDS)
    readings.statuses += [supervisor.show_status(MANY) for _ in range(_STATUS_CALLS)]
    readings.stops.append(supervisor.stop())


def _note_memory(supervisor: RunningSupervisor, readings: Readings, programs: int) -> None:
    time.sleep(_SETTLE_SECONDS)
    readings.memory.setdefault(programs, []).append(proc.memory(supervisor.own_processes))


def _restarts(supervisor: RunningSupervisor) -> list[float]:
    """Each at another moment of whatever it does regularly."""
    moments = random.Random(1)  # noqa: S311 - no secret
    rest = supervisor.contender.poll_interval
    found: list[float] = []
    for _ in range(min(KILLS, max(int(KILL_SECONDS / rest), 1))):
        time.sleep(moments.uniform(0.1, rest))
        found.append(supervisor.restart())
    return found
