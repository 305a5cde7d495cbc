"""How long ends take: of a group that is told to stop, and of work whose process was killed
until another runs it.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longwatch.mailbox import open_mailbox

ROUNDS = 5
BUSY = 2.0
"""Seconds that a handler takes which is in flight."""
_APP = """
import os, time
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

class Timed(MainLoop[float, None]):
    def handle(self, request, context):
        with open(os.environ["BENCH_MARKS"], "a") as file:
            file.write(f"{os.getpid()} {time.monotonic()}\\n")
        time.sleep(request)

group = LoopGroup([Timed(requests=open_mailbox(os.environ["BENCH_URL"], "ends"), concurrency=4)])
if __name__ == "__main__":
    group.run()
"""


class BenchApp:
    """A folder with the application, its store and what it wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks = folder / "ends.marks"
        self.url = f"sqlite:///{folder / 'ends.db'}"
        (folder / "bench_ends.py").write_text(_APP)
        self.mailbox = open_mailbox(self.url, "ends")

    def runs(self) -> list[tuple[int, float]]:
        """Who ran something, and when."""
        lines = self.marks.read_text().splitlines() if self.marks.exists() else []
        return [(int(pid), float(moment)) for pid, moment in map(str.split, lines)]

    def wait_for_runs(self, count: int) -> list[tuple[int, float]]:
        until = time.monotonic() + 60
        while len(runs := self.runs()) < count:
            if time.monotonic() > until:
                raise RuntimeError(f"{len(runs)} of {count} messages were taken")
            time.sleep(0.005)
        return runs

    @contextmanager
    def started(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process in a session of its own; what is left of it is killed."""
        self.marks.write_text("")
        env = {**os.environ, "BENCH_MARKS": str(self.marks), "BENCH_URL": self.url}
        with (self.folder / "ends.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def stop_time(place: BenchApp, seconds: float) -> float:
    """Seconds from SIGTERM to the exit of a group, beyond those that its handler takes; the
    median.
    """
    return statistics.median(_stop_once(place, seconds) for _ in range(ROUNDS))


def _stop_once(place: BenchApp, seconds: float) -> float:
    with place.started("bench_ends.py") as process:
        place.mailbox.send(seconds)
        [(_, began)] = place.wait_for_runs(1)
        if not seconds:
            time.sleep(0.5)  # until it is idle
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        return time.monotonic() - max(told, began + seconds)


def child_takeover_time(place: BenchApp) -> float:
    """Seconds from kill -9 of a worker process to its message running in another, under one
    parent; the median.
    """
    return statistics.median(_kill_once(place) for _ in range(ROUNDS))


def _kill_once(place: BenchApp) -> float:
    with place.started(
        "-m", "longwatch", "worker", "bench_ends:group", "--processes", "2", "--state-dir", "off"
    ):
        place.mailbox.send(BUSY)
        [(pid, _)] = place.wait_for_runs(1)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        moment = place.wait_for_runs(2)[1][1]
        while place.mailbox.approximate_count():
            time.sleep(0.05)
    return moment - killed


def host_takeover_time(place: BenchApp) -> float:
    """Seconds from kill -9 of a worker with its parent to the message running under another
    parent; once.
    """
    words = ("-m", "longwatch", "worker", "bench_ends:group", "--state-dir", "off")
    with place.started(*words) as first:
        place.mailbox.send(3 * BUSY)
        [(pid, _)] = place.wait_for_runs(1)
        with place.started(*words):
            time.sleep(2.0)  # until it is up
            killed = time.monotonic()
            first.kill()
            os.kill(pid, signal.SIGKILL)
            moment = next(moment for who, moment in place.wait_for_runs(1) if who != pid)
            while place.mailbox.approximate_count():
                time.sleep(0.05)
    return moment - killed
