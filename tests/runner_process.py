"""A `longwatch runner` at work, of this tree: it needs packages that the wheel's environment does
not have.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polling import eventually
from run_process import RunProcess, run_longwatch, start_process
from up_process import FROM_SOURCE, toml

Facts = dict[str, Any]

WITHIN: Sequence[str] = FROM_SOURCE["within"]
LONGWATCH: Path = FROM_SOURCE["longwatch"]
PORTS: Facts = {"health_port": "off", "metrics_port": "off"}


def agent(script: str, **settings: object) -> Facts:
    """An agent in shell."""
    return {"command": ["sh", "-c", script], **settings}


def write_runner(
    cwd: Path, sources: Mapping[str, str | Facts], agent: Facts, **settings: object
) -> Path:
    """`longwatch.toml` with a runner: sources by name, each a URL or its settings."""
    tables = {"runner": {**PORTS, **settings}, "runner.agent": agent}
    for name, source in sources.items():
        given = {"url": source} if isinstance(source, str) else source
        tables[f"runner.source.{json.dumps(name)}"] = given
    lines = [
        line
        for table, keys in tables.items()
        for line in (f"[{table}]", *(f"{key} = {toml(value)}" for key, value in keys.items()))
    ]
    path = cwd / "longwatch.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class RunnerProcess(RunProcess):
    """Its stderr carries the JSON log."""

    cwd: Path

    def port(self, key: str) -> int:
        """The port in effect, as it says at its start."""
        return int(self.wait_for_event("runner_started")["settings"][key])


@contextmanager
def start_runner(
    cwd: Path, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[RunnerProcess]:
    """`longwatch runner` in this directory, killed at the end of the block if it still runs."""
    with start_process([*WITHIN, LONGWATCH, "runner", *options], cwd, env=env) as (
        process,
        out,
        err,
    ):
        run = RunnerProcess(process, out, err, cwd)
        run.cwd = cwd
        yield run


def runner_command(
    cwd: Path, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`longwatch runner WORDS`, to its end."""
    return run_longwatch(LONGWATCH, cwd, "runner", *words, env=env, within=WITHIN)


def runner_json(cwd: Path, *words: str) -> Any:
    """What `longwatch runner WORDS --json` says."""
    done = runner_command(cwd, *words, "--json")
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


def wait_for_runs(cwd: Path, count: int, **wanted: object) -> list[Facts]:
    """The runs with these facts, the newest first, once there are as many."""
    found: list[Facts] = []

    def holds() -> bool:
        found[:] = [
            run
            for run in runner_json(cwd, "runs", "ls")
            if all(run[key] == value for key, value in wanted.items())
        ]
        return len(found) >= count

    assert eventually(holds), found
    return found
