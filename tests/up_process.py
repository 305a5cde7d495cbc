"""A `longwatch up` at work: what it was given, what it tells, and how it is asked. For
acceptance and integration tests alike.
"""

from __future__ import annotations

import json
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from longwatch.errors import TryAgainError
from longwatch.supervisor.client import send_request
from longwatch.supervisor.supervisor_lock import find_supervisor
from polling import eventually
from run_process import PYTHON, TIMEOUT, PipeLines, RunProcess, run_longwatch, start_process

Facts = dict[str, Any]
Arguments = Sequence[str | Path]

NO_BACKOFF: Facts = {"backoff": {"initial": 0.01, "cap": 0.01}}
"""Restarts without a wait to speak of."""
SLEEPER: Facts = {"command": ["sleep", "1000"]}
IGNORES_SIGTERM = "trap '' TERM; echo ready; while :; do sleep 1; done"
"""A shell that ignores SIGTERM, once it has said `ready`."""
NOTIFY_PRELUDE = """
import os, signal, socket, sys, time
def notify(*lines):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto("\\n".join(lines).encode(), os.environ["NOTIFY_SOCKET"])
def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""
"""Words for a program that talks to its supervisor, and for one that waits until the test has
made a file.
"""


FROM_SOURCE: Facts = {"longwatch": Path("longwatch"), "within": (sys.executable, "-m")}
"""The `longwatch` of this tree, for tests that need no wheel."""


def sh(script: str, **settings: object) -> Facts:
    """A program in shell."""
    return {"command": ["sh", "-c", script], **settings}


def py(script: str, *arguments: str, **settings: object) -> Facts:
    """A program in Python, quick to start."""
    return {"command": [*PYTHON, script, *arguments], **settings}


def unused_port() -> int:
    """One that nobody has, below those that the kernel hands out to connections of other tests."""
    while True:
        candidate = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", candidate)):
            return candidate


def pids_by_mark(token: str) -> dict[str, list[int]]:
    """The living processes whose environment has `MARK=TOKEN-name`, by that name; what forks and
    execs keeps it.
    """
    found: dict[str, list[int]] = {}
    mark = re.compile(rf"(?:^|\0)MARK={token}-([^\0]*)".encode())
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and (bearer := mark.search((entry / "environ").read_bytes())):
                found.setdefault(bearer[1].decode(), []).append(int(entry.name))
    return found


def toml(value: object) -> str:
    """A value as it stands in a file of settings."""
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items())
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def write_config(cwd: Path, programs: Mapping[str, Facts], **top: object) -> Path:
    """`longwatch.toml` with these programs, below what else stands in it."""
    lines = [f"{key} = {toml(value)}" for key, value in top.items()]
    for name, settings in programs.items():
        lines += [
            "",
            f"[program.{json.dumps(name)}]",
            *(f"{key} = {toml(value)}" for key, value in settings.items()),
        ]
    path = cwd / "longwatch.toml"
    half = path.with_suffix(".half")
    half.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return half.replace(path)


def _printed_line(line: bytes) -> tuple[str, str]:
    record = json.loads(line)
    return record["program"], record.get("text", "")


class UpProcess(RunProcess):
    """Its stderr carries the JSON log, its stdout the lines of the programs, as JSON records."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        out: PipeLines,
        err: PipeLines,
        *,
        longwatch: Path,
        cwd: Path,
    ) -> None:
        super().__init__(process, out, err, cwd / ".longwatch" / "logs")
        self.longwatch = longwatch
        self.cwd = cwd
        self.state_dir = cwd / ".longwatch"

    # --- what it tells ---

    def wait_for_output(self, line: str) -> None:
        """Wait for a line of a program on stdout, written as `program | text`."""
        deadline = time.monotonic() + TIMEOUT
        program, _, text = line.partition(" | ")
        expected = (program.rstrip(), text)
        found = expected in self.printed_lines()
        while not found:
            record = self.out.next_line(deadline)
            if record is None:
                pytest.fail(
                    f"it ended without {line!r}: {self.out.text[-2000:].decode(errors='replace')}"
                )
            found = expected == _printed_line(record)

    def printed_lines(self) -> list[tuple[str, str]]:
        """What programs have printed on stdout so far: the program and the line."""
        return [_printed_line(line) for line in self.out.lines if line.endswith(b"\n")]

    def stop_cleanly(self, signum: int = signal.SIGTERM) -> None:
        """Have it stop everything; nothing had to be killed."""
        self.signal(signum)
        assert 0 == self.wait()

    # --- what it is asked ---

    def request(self, do: str, *programs: str, **options: object) -> Facts:
        """Over its control socket, without the wait for a command to start."""
        return send_request(
            find_supervisor(self.state_dir).socket,
            {"do": do, **({"programs": list(programs)} if programs else {}), **options},
            timeout=TIMEOUT,
        )

    def status(self, name: str) -> Facts:
        [facts] = self.request("status", name)["programs"]
        return dict(facts)

    def wait_for_status(self, name: str, **wanted: object) -> Facts:
        """The facts of a program once they hold these, also when the supervisor is just
        starting.
        """
        found: Facts = {}

        def holds() -> bool:
            if self.process.poll() is not None:
                pytest.fail(
                    f"it ended with {self.wait()}: {self.err.text.decode(errors='replace')}"
                )
            with suppress(TryAgainError):
                found.update(self.status(name))
            return all(key in found and found[key] == value for key, value in wanted.items())

        assert eventually(holds), f"{name} has not come to {wanted}: {found}"
        return found

    def pids(self) -> dict[str, int | None]:
        return {facts["name"]: facts["pid"] for facts in self.request("status")["programs"]}

    @property
    def guardian_pid(self) -> int:
        return int(self.request("status")["guardian_pid"])

    def run_command(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`longwatch WORDS` in its directory, to its end."""
        return run_longwatch(self.longwatch, self.cwd, *words, env=env)


@contextmanager
def start_up(  # noqa: PLR0913 - each has its meaning and most have a default
    longwatch: Path,
    cwd: Path,
    programs: Mapping[str, Facts] | None = None,
    *,
    options: Arguments = (),
    env: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
    stdout: int | None = None,
    stderr: int | None = None,
    **top: object,
) -> Iterator[UpProcess]:
    """`longwatch up` in this directory, killed at the end of the block if it still runs.

    `programs` and what else is named are its file; without programs, the file that is there.
    """
    if programs is not None:
        write_config(cwd, programs, **top)
    with start_process(
        [*within, longwatch, "up", *options], cwd, env=env, stdout=stdout, stderr=stderr
    ) as (process, out, err):
        yield UpProcess(process, out, err, longwatch=longwatch, cwd=cwd)
