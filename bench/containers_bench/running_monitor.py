"""A monitor process while it is measured: what it reports, its processor time and its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from containers_bench.monitor_process import MonitorSettings
from containers_bench.private_podman import TIMEOUT, wait_until
from supervisor_bench import proc

_PROGRAM = Path(__file__).with_name("monitor_process.py")
_TICKS = os.sysconf("SC_CLK_TCK")


class Mark(NamedTuple):
    """A line of the monitor process."""

    kind: str
    at: float
    value: float


@dataclass(frozen=True)
class RunningMonitor:
    process: subprocess.Popen[str]
    marks: list[Mark]
    """Grows as the monitor reports."""

    @property
    def pids(self) -> list[int]:
        """The monitor and its guardian."""
        return proc.process_tree(self.process.pid, without=())

    def of_kind(self, kind: str, *, since: float = 0.0) -> list[Mark]:
        """The marks of a kind, oldest first, from that moment on."""
        return [mark for mark in list(self.marks) if mark.kind == kind and mark.at >= since]

    def wait_for(
        self, kind: str, count: int = 1, *, since: float = 0.0, timeout: float = TIMEOUT
    ) -> Mark:
        """The mark that makes so many."""
        failure = f"the monitor did not report {count} × {kind}"
        wait_until(
            lambda: len(self.of_kind(kind, since=since)) >= count,
            failure,
            timeout=timeout,
            pause=0.01,
        )
        return self.of_kind(kind, since=since)[count - 1]

    def allow_probes(self, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()


@contextmanager
def running_monitor(settings: MonitorSettings) -> Iterator[RunningMonitor]:
    """A monitor that runs until the end of the block. Its containers run on."""
    command = [sys.executable, str(_PROGRAM), json.dumps(asdict(settings))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    monitor = RunningMonitor(process, [])
    reader = threading.Thread(target=_read_marks, args=(monitor,), daemon=True)
    reader.start()
    try:
        yield monitor
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(TIMEOUT)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of these processes and of their children that have ended."""
    total = 0
    for pid in pids:
        fields = (proc.PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / _TICKS


def _read_marks(monitor: RunningMonitor) -> None:
    assert monitor.process.stdout is not None
    for line in monitor.process.stdout:
        kind, at, value = line.split()
        monitor.marks.append(Mark(kind, float(at), float(value)))
