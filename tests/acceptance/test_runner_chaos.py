"""A runner that is killed at random under load: each stream event ends with exactly one outcome."""

from __future__ import annotations

import json
import random
import secrets
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos_plan import ChaosPlan
from polling import eventually
from run_process import TIMEOUT, RunProcess, run_longwatch, start_process, wait_readable
from runner_process import (
    LONGWATCH,
    WITHIN,
    Facts,
    RunnerProcess,
    runner_json,
    start_runner,
    write_runner,
)
from up_process import pids_by_mark, unused_port

SOURCES, RATE = 5, 10
"""50 events a second in all."""
SETTLE_SECONDS = 240.0
AGENT = """
case "$(cat event.json)" in
*OOMKilled*) trap "" TERM; sleep 1000 & wait; sleep 1000;;
*FailedMount*) sleep 1000 & echo left a child behind;;
*Unhealthy*) exit 3;;
*ImagePullBackOff*) exit 0;;
esac
echo "looked at it" > output/report.md
"""
"""Hangs and ignores SIGTERM, leaves a child, fails, promises in vain, or works, by the fault."""


@contextmanager
def simulated(cwd: Path, port: int) -> Iterator[RunProcess]:
    """`longwatch simulate events`, killed at the end of the block if it still runs. The journal
    makes one that is started again go on.
    """
    options = ["--sources", str(SOURCES), "--rate", str(RATE), "--port", str(port)]
    faults = ["--drop-every", "97", "--bad-bytes", "13", "--retry", "100", "--journal", "sent"]
    command: list[str | Path] = [*WITHIN, LONGWATCH, "simulate", "events", *options, *faults]
    with start_process(command, cwd) as (process, out, err):
        yield RunProcess(process, out, err, cwd)


def configure(cwd: Path, port: int, token: str) -> None:
    """Queues that overflow and expire soon, and retries that come soon: all outcomes happen."""
    sources = {
        f"sim-{number}": f"http://127.0.0.1:{port}/sim-{number}/events"
        for number in range(1, SOURCES + 1)
    }
    agent = {
        "command": ["sh", "-c", AGENT],
        "success": {"file": "output/report.md"},
        "env": {"MARK": f"{token}-agent"},
        "stop_grace": 0.2,
    }
    write_runner(
        cwd,
        sources,
        agent,
        agent_timeout=2,
        max_queue_age=20,
        queue_sweep_interval=1,
        source_queue_size=50,
        max_attempts=2,
        retry_delay=0.1,
        work_breaker_failures=1000,
        sse_reconnect_initial_delay=0.1,
        sse_reconnect_max_delay=1,
        sse_read_timeout=30,
        shutdown_timeout=5,
    )


def kill_at_random(cwd: Path, port: int, chance: random.Random, seconds: float) -> None:
    """Start the runner, and kill it after a moment, until the time is over. Now and then the
    simulator is killed as well.
    """
    kills, end = 0, time.monotonic() + seconds
    while time.monotonic() < end or kills < 3:
        with simulated(cwd, port) as simulator:
            for _ in range(3):
                with start_runner(cwd) as runner:
                    runner.wait_for_event("runner_started")
                    time.sleep(chance.uniform(0, 2))
                    runner.signal(signal.SIGKILL)
                    assert -signal.SIGKILL == runner.wait()
                kills += 1
            simulator.signal(signal.SIGKILL)
            simulator.wait()


def stop_sending(port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/control",
        data=b'{"rate": 0}',
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert 200 == response.status


def wait_until_reconciled(cwd: Path, runner: RunnerProcess) -> Facts:
    """What `longwatch simulate check` says once each event that was sent has one outcome."""
    command = ("simulate", "check", "--journal", "sent", "--json")
    found: Facts = {}

    def is_right() -> bool:
        while wait_readable(runner.err.descriptor, time.monotonic()):
            runner.err.next_line(time.monotonic() + TIMEOUT)  # or its log would fill the pipe
        done = run_longwatch(LONGWATCH, cwd, *command, within=WITHIN)
        assert done.stdout, done.stderr
        found.update(json.loads(done.stdout))
        return done.returncode == 0

    assert eventually(is_right, SETTLE_SECONDS), found
    return found


@pytest.mark.chaos
@pytest.mark.serial
def test_each_event_has_one_outcome_and_no_agent_is_left_when_the_runner_is_killed_at_random(
    chaos: ChaosPlan, tmp_path: Path
) -> None:
    """50 events a second, connections that break, agents that hang, fork, fail and lie, kill -9 of
    the runner at any time and of the simulator now and then. What is lost, stored twice, open or
    running after the end is a fault.
    """
    port, token = unused_port(), secrets.token_hex(8)
    configure(tmp_path, port, token)
    kill_at_random(tmp_path, port, chaos.random(), chaos.seconds)
    with simulated(tmp_path, port), start_runner(tmp_path, "--max-queue-age", "5") as runner:
        runner.wait_for_event("sse_connection_established", times=SOURCES)
        stop_sending(port)
        found = wait_until_reconciled(tmp_path, runner)
        runner.signal(signal.SIGTERM)
        assert 0 == runner.wait()
    assert eventually(lambda: not pids_by_mark(token)), pids_by_mark(token)
    require_one_success_for_each_run(tmp_path, found)


def require_one_success_for_each_run(cwd: Path, found: Facts) -> None:
    """No event was run to success twice, and each whose outcome is `run` was once."""
    outcomes: Counter[str] = Counter()
    for source in found["sources"]:
        outcomes.update(source["outcomes"])
    runs = runner_json(cwd, "runs", "ls", "--limit", "100000", "--status", "success")
    successes = Counter(run["event"] for run in runs)
    assert {1} >= set(successes.values())
    assert outcomes["run"] == len(successes)
    assert all(outcomes[name] for name in ("run", "filtered", "dead-lettered")), outcomes
