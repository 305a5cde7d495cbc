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

from awaiting import eventually
from chaos_plan import ChaosPlan
from flow_stores import store_url
from flowed import Rig, faults, pause, rigged, spent
from longwatch.flow import Execution

EXECUTIONS = 200
WORKERS = 3
AHEAD = 100
"""Executions that are at least under way while workers die."""
COMPLETE_WITHIN = 120.0


@pytest.fixture(autouse=True)
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the killed leave lying around: sockets and pages, in a directory of their own."""
    with TemporaryDirectory(prefix="lw-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


def let_them_die(rig: Rig, dice: random.Random, seconds: float) -> tuple[list[Execution], int]:
    """Kill one after another at random and put another in its place, while there is always
    something to do.
    """
    executions = [rig.flow.start("diamond", number=number) for number in range(EXECUTIONS)]
    kills, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        pause(dice.uniform(0.1, 0.6))
        rig.kill(dice.choice(rig.workers))
        rig.enter()
        kills += 1
        if rig.open_attempts() < AHEAD:
            executions += [rig.flow.start("diamond", number=number) for number in range(AHEAD)]
    return executions, kills


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_kill_9_at_random_loses_no_execution_and_accepts_nothing_that_was_lost(
    kind: str, tmp_path: Path, chaos: ChaosPlan
) -> None:
    """In the end every node has exactly one success, whose fencing token its value bears, and
    only what had begun is spent.
    """
    with store_url(kind, tmp_path) as url, rigged(url, tmp_path, "diamond", max_attempts=50) as rig:
        for _ in range(WORKERS):
            rig.enter()
        executions, kills = let_them_die(rig, chaos.random(), chaos.seconds)
        complete = eventually(lambda: rig.open_attempts() == 0, patience=COMPLETE_WITHIN)
        attempts = [each for execution in executions for each in execution.computations()]
        lost = spent(attempts)
        sys.stdout.write(
            f"seed {chaos.seed}: {kills} killed, {len(executions)} executions, "
            f"{len(attempts)} attempts, {len(lost)} spent,"
            f" {len(rig.struck)} struck, {sum(each.releases for each in attempts)} released\n"
        )
        assert complete, f"{rig.open_attempts()} attempts are still open"
        assert [] == faults(rig, executions)
        assert dict.fromkeys(rig.struck, "crash") == lost
        assert kills > 0
