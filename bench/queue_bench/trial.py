"""One contender on one empty store: fill, drain, listen to a light load, rest. What fails is a
`TrialError`, never a hang.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import psutil

import marks
from queue_bench.contenders import QueueContender
from queue_bench.environments import PEERS

ROUND_TIMEOUT = 120.0
"""Seconds a contender has for one round."""
LIGHT_LOAD = (50, 4)
"""Messages a second, seconds."""
IDLE_SECONDS = 10.0


class TrialError(Exception):
    """A contender did not get through; the text is what the table shows."""


@dataclass(frozen=True)
class Reading:
    """What one round of one contender showed; rates per second, delays in milliseconds, memory
    in MiB, idle CPU in percent.
    """

    drained: float
    sent: float
    p50: float
    p99: float
    rss: float
    idle: float


def measure(contender: QueueContender, url: str, folder: Path) -> Reading:
    with Trial(contender, url, folder) as trial:
        sent = float(trial.ask("batch", str(contender.jobs)))
        drained = trial.drain()
        p50, p99 = trial.measure_latency(*LIGHT_LOAD)
        rss, idle = trial.measure_idle(IDLE_SECONDS)
    return Reading(drained, sent, p50, p99, rss, idle)


class Trial:
    """The processes of one contender, all of them killed at the end, and when the time is up before
    that.

    `wrap` goes before the worker's command, `environ` is added to its environment.
    """

    def __init__(
        self,
        contender: QueueContender,
        url: str,
        folder: Path,
        *,
        wrap: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.contender, self.wrap = contender, tuple(wrap)
        self.marks = folder / "marks"
        self.marks.write_bytes(b"")
        self.stderr_file = folder / "stderr"
        own = {
            "BENCH_URL": url,
            "BENCH_MARKS": str(self.marks),
            "PYTHONPATH": str(PEERS),
            **contender.settings,
        }
        self.env = {**os.environ, **own}
        self.worker_env = {**self.env, **(environ or {})}
        self.processes: list[subprocess.Popen[str]] = []
        self.workers: list[subprocess.Popen[str]] = []
        self._in_process: subprocess.Popen[str] | None = None
        self._is_in_memory = url.startswith("memory:")
        self._timed_out = threading.Event()
        self._timer = threading.Timer(ROUND_TIMEOUT, self._give_up)

    def __enter__(self) -> Self:
        self.stderr_file.write_bytes(b"")
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._kill()
        for process in self.processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()

    # --- what a contender is asked to do ---

    def ask(self, *words: str) -> str:
        """Have the app do one thing to its end; the last line it printed. A store in memory is
        all in one process, by lines.
        """
        if self._is_in_memory:
            return self._ask_in_process(words)
        process = self._spawn(self.contender.command("APP", *words), self.env)
        printed = self._stream(process.stdout).read()
        if process.wait() != 0:
            raise self._failure(f"`{words[0]}` failed")
        return printed.strip().rpartition("\n")[2]

    def start(self) -> None:
        """Start a worker."""
        if self._is_in_memory:
            self._ask_in_process(self.contender.worker[1:])
            return
        command = [*self.wrap, *self.contender.command(*self.contender.worker)]
        self.workers.append(self._spawn(command, self.worker_env, stdout=subprocess.DEVNULL))

    def drain(self) -> float:
        """Jobs a second through one worker, from a tenth of them to the acknowledgement of the
        last.
        """
        settled = self.start_settled_watch()
        self.start()
        return self.rate(settled)

    def rate(self, settled: Callable[[], float]) -> float:
        self.wait_for_marks(self.contender.jobs)
        acknowledged = settled()
        moments = sorted(ran for _, ran in marks.read(self.marks))
        first = len(moments) // 10
        return (len(moments) - first) / (max(moments[-1], acknowledged) - moments[first])

    def measure_latency(self, rate: int, seconds: int) -> tuple[float, float]:
        """Median and 99th percentile of the milliseconds from send to run; not a number if not
        all of them came.
        """
        self.marks.write_bytes(b"")
        self.ask("light", str(rate), str(seconds))
        if not self.wait_for_marks(rate * seconds, within=20):
            return float("nan"), float("nan")
        delays = sorted(ran - sent for sent, ran in marks.read(self.marks))
        return statistics.median(delays) * 1e3, delays[int(len(delays) * 0.99)] * 1e3

    def measure_idle(self, seconds: float) -> tuple[float, float]:
        """Resident MiB of the workers with their children, and their CPU in percent while there
        is nothing to do.
        """
        before = {process: _cpu(process) for process in self._tree()}
        rss = sum(process.memory_info().rss for process in before)
        time.sleep(seconds)
        used = sum(_cpu(process) - before.get(process, 0.0) for process in self._tree())
        return rss / 2**20, used / seconds * 100

    def wait_for_marks(self, jobs: int, *, within: float = ROUND_TIMEOUT) -> bool:
        until = time.monotonic() + within
        while marks.count(self.marks) < jobs:
            if self._timed_out.is_set() or any(
                worker.poll() is not None for worker in self.workers
            ):
                raise self._failure(f"{marks.count(self.marks):,} of {jobs:,} jobs done")
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def start_settled_watch(self) -> Callable[[], float]:
        """Have somebody ready who will tell when all is acknowledged: asking only then would be
        late.
        """
        words = ("settled", str(self.contender.jobs))
        if not self.contender.reports_settled:
            return lambda: 0.0
        if self._is_in_memory:
            return lambda: float(self._ask_in_process(words))
        watcher = self._spawn(self.contender.command("APP", *words), self.env)
        self._line(watcher)
        return lambda: float(self._line(watcher))

    # --- below ---

    def _ask_in_process(self, words: Sequence[str]) -> str:
        if self._in_process is None:
            self._in_process = self._spawn(
                self.contender.command("APP", "alone"), self.env, stdin=subprocess.PIPE
            )
            self.workers.append(self._in_process)
        try:
            print(*words, file=self._stream(self._in_process.stdin), flush=True)
        except OSError:
            raise self._failure(f"`{words[0]}` failed") from None
        return self._line(self._in_process)

    def _line(self, process: subprocess.Popen[str]) -> str:
        line = self._stream(process.stdout).readline()
        if not line:
            raise self._failure("it ended")
        return line.strip()

    def _spawn(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """In a process group of its own, so that a worker's children end with it."""
        with self.stderr_file.open("ab") as noise:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=PEERS,
                stdin=stdin,
                stdout=stdout,
                stderr=noise,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        if self._timed_out.is_set():
            self._kill()
        return process

    def _tree(self) -> list[psutil.Process]:
        roots = [psutil.Process(worker.pid) for worker in self.workers]
        return [process for root in roots for process in (root, *root.children(recursive=True))]

    def _give_up(self) -> None:
        self._timed_out.set()
        self._kill()

    def _kill(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                if process.returncode is None or process in self.workers:
                    os.killpg(process.pid, signal.SIGKILL)

    def _failure(self, what: str) -> TrialError:
        if self._timed_out.is_set():
            return TrialError(f"not finished within {ROUND_TIMEOUT:.0f} s: {what}")
        said = self.stderr_file.read_text(errors="replace").strip().rpartition("\n")[2]
        return TrialError(f"{what}; {said[:160] or 'it said nothing'}")

    @staticmethod
    def _stream(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream


def _cpu(process: psutil.Process) -> float:
    """CPU seconds so far."""
    times = process.cpu_times()
    return times.user + times.system
