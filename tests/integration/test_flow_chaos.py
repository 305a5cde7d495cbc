"""Workers of graphs that die at any moment: every execution completes, nothing counts twice,
only what had begun is spent.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from chaos_plan import ChaosPlan
from flow_process import (
    FlowProcesses,
    flow_processes,
    inconsistencies,
    pause,
    unsuccessful_attempts,
)
from flow_stores import store_url
from longwatch.flow import Execution
from polling import eventually

EXECUTIONS = 200
WORKERS = 3
MAX_BACKLOG = 100
"""Executions that are at least under way while workers die."""
COMPLETION_TIMEOUT = 120.0


@pytest.fixture(autouse=True)
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the killed leave lying around: sockets and pages, in a directory of their own."""
    with TemporaryDirectory(prefix="lw-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


def kill_at_random(
    rig: FlowProcesses, dice: random.Random, seconds: float
) -> tuple[list[Execution], int]:
    """Kill one after another at random and put another in its place, while there is always
    something to do.
    """
    executions = [rig.flow.start("diamond", number=number) for number in range(EXECUTIONS)]
    kills, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        pause(dice.uniform(0.1, 0.6))
        rig.kill(dice.choice(rig.workers))
        rig.start_worker()
        kills += 1
        if rig.open_attempts() < MAX_BACKLOG:
            executions += [
                rig.flow.start("diamond", number=number) for number in range(MAX_BACKLOG)
            ]
    return executions, kills


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_kill_9_at_random_loses_no_execution_and_accepts_nothing_that_was_lost(
    kind: str, tmp_path: Path, chaos: ChaosPlan
) -> None:
    """In the end every node has exactly one success, whose fencing token its value bears, and
    only what had begun is spent.
    """
    with (
        store_url(kind, tmp_path) as url,
        flow_processes(url, tmp_path, "diamond", max_attempts=50) as rig,
    ):
        for _ in range(WORKERS):
            rig.start_worker()
        executions, kills = kill_at_random(rig, chaos.random(), chaos.seconds)
        complete = eventually(lambda: rig.open_attempts() == 0, timeout=COMPLETION_TIMEOUT)
        attempts = [each for execution in executions for each in execution.computations()]
        lost = unsuccessful_attempts(attempts)
        sys.stdout.write(
            f"seed {chaos.seed}: {kills} killed, {len(executions)} executions, "
            f"{len(attempts)} attempts, {len(lost)} spent,"
            f" {len(rig.killed_attempts)} struck, {sum(each.releases for each in attempts)} "
            f"released\n"
        )
        assert complete, f"{rig.open_attempts()} attempts are still open"
        assert [] == inconsistencies(rig, executions)
        assert dict.fromkeys(rig.killed_attempts, "crash") == lost
        assert kills > 0
