"""One supervisor with its programs, from its start to its end.

A program is `program.sh`: it appends its pid to the file `born`, and stays. That line is the moment
from which it runs. While the file `fail` is there it exits with an error instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from supervisor_bench import proc
from supervisor_bench.contenders import SupervisorContender

TIMEOUT = 60.0
_SCRIPT = "#!/bin/sh\necho $$ >> {0}/born\n[ -e {0}/fail ] && exit 1\nexec sleep 100000\n"
_ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}


class SupervisorTrialError(Exception):
    """It did not do what it is measured by."""


@dataclass(frozen=True)
class RunningSupervisor:
    """A supervisor that runs, and how long it took until all its programs did."""

    contender: SupervisorContender
    place: Path
    process: subprocess.Popen[bytes]
    started_in: float

    @property
    def started_pids(self) -> list[int]:
        """The pids of all programs that were started, oldest first."""
        return _started_pids(self.place)

    @property
    def own_processes(self) -> list[int]:
        """The supervisor's own processes."""
        return proc.process_tree(self.process.pid, without=frozenset(self.started_pids))

    def restart(self) -> float:
        """Seconds from the kill of a program to its next start."""
        born = self.started_pids
        victim = next(pid for pid in born if proc.is_alive(pid))
        began = time.perf_counter()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(self.started_pids) > len(born), "it did not restart a program")
        return time.perf_counter() - began

    def show_status(self, programs: int) -> float:
        """Seconds of the command that shows how its programs are; it has to show each of them."""
        began = time.perf_counter()
        command = self.contender.status(self.place)
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=_ENVIRONMENT
        )
        took = time.perf_counter() - began
        if done.returncode != 0 or done.stdout.count(b"\n") < programs:
            raise SupervisorTrialError(f"its status command failed with {done.returncode}")
        return took

    def stop(self) -> float:
        """Seconds from SIGTERM until it and all of its programs are gone."""
        living = [pid for pid in self.started_pids if proc.is_alive(pid)]
        began = time.perf_counter()
        self.process.terminate()
        self.process.wait(TIMEOUT)
        wait_until(lambda: not any(map(proc.is_alive, living)), "it left programs behind")
        return time.perf_counter() - began


@contextmanager
def start_supervisor(
    contender: SupervisorContender, place: Path, programs: int
) -> Iterator[RunningSupervisor]:
    """A supervisor, once all of its programs run; killed in the end if it was not stopped."""
    place.mkdir()
    script = place / "program.sh"
    script.write_text(_SCRIPT.format(place), encoding="utf-8")
    script.chmod(0o755)
    (place / "born").touch()
    command = contender.command(place, script, programs)
    with (place / "output").open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=place,
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(
            lambda: len(_started_pids(place)) >= programs, f"it did not start {programs} programs"
        )
        yield RunningSupervisor(contender, place, process, time.perf_counter() - began)
    finally:
        _clear(process, place)


def wait_until(condition: Callable[[], bool], complaint: str, *, timeout: float = TIMEOUT) -> None:
    """Look again and again, without much of the processor, until it holds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise SupervisorTrialError(f"{complaint} within {timeout:.0f} s")
        time.sleep(0.001)


def _started_pids(place: Path) -> list[int]:
    return [int(line) for line in (place / "born").read_text().splitlines()]


def _clear(process: subprocess.Popen[bytes], place: Path) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
        for pid in filter(proc.is_alive, _started_pids(place)):
            os.kill(pid, signal.SIGKILL)
