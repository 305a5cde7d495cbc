"""Soak: the demo under random kills, its memory and descriptors, and what was lost.

Everything of examples/demo runs below one `longwatch up`. Every few seconds a random process of it
is killed with SIGKILL, or stopped with SIGSTOP for some seconds. A reader holds the status page
open. After a tenth of the time the guardian is killed, and at the end `longwatch up` itself. Both
times `longwatch up` is started again, as systemd would do it. Then nothing new is sent, and what
was sent is compared with what was done.

In the environment: BENCH_SECONDS=900, BENCH_SEED=1.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from queue_bench import environments
from supervisor_bench import proc

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo"
VICTIMS = ("pages-1", "pages-2", "reports", "shop", "orders", "clusters", "runner")
KEPT = ("supervisor", "guardian", "page")
PAUSE_SECONDS = (1.0, 5.0)
"""Between two faults."""
STOP_SECONDS = (2.0, 12.0)
"""How long a stopped process is stopped; the watchdog of the workers waits for 5 seconds."""
STOPS = 0.25
"""The share of faults that stop a process instead of killing it."""
SAMPLE_SECONDS = 2.0
UP_TIMEOUT = 60.0
DRAIN_TIMEOUT = 180.0


class Soak:
    """One run: the faults, the samples, and the report."""

    def __init__(self, place: Path, seconds: float, seed: int) -> None:
        from stage import Stage  # noqa: PLC0415 - its package is there only now

        self.stage = Stage(place)
        self.seconds = seconds
        self.random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self.faults: Counter[str] = Counter()
        self.samples: dict[str, list[tuple[float, float, int]]] = {name: [] for name in KEPT}
        self.updates = 0
        self._ends = threading.Event()

    def run(self) -> None:
        self.stage.prepare()
        self.stage.start()
        self._wait_until_up()
        reader = threading.Thread(target=self._read_page, daemon=True)
        reader.start()
        sampler = threading.Thread(target=self._sample, daemon=True)
        sampler.start()
        began = time.monotonic()
        self._do_faults(began + self.seconds / 10)
        self._kill_and_start_again("guardian", "guardian_pid")
        self._do_faults(began + self.seconds)
        self._ends.set()
        sampler.join()
        self._kill_and_start_again("supervisor", "pid")

    # --- faults ---

    def _do_faults(self, end: float) -> None:
        while time.monotonic() < end:
            time.sleep(self.random.uniform(*PAUSE_SECONDS))
            name = self.random.choice(VICTIMS)
            pid = self._pids().get(name)
            if pid is None:
                continue
            if self.random.random() < STOPS:
                self._stop_for_a_while(name, pid)
            else:
                self._kill(name, pid)

    def _kill_and_start_again(self, name: str, pid_key: str) -> None:
        """Kill a process without which `longwatch up` ends, and start that again."""
        assert self.stage.process is not None
        self._kill(name, self.stage.status()[pid_key])
        self.stage.process.wait(UP_TIMEOUT)
        self.stage.start()
        self._wait_until_up()

    def _kill(self, name: str, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.faults[f"{name} killed"] += 1

    def _stop_for_a_while(self, name: str, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self.faults[f"{name} stopped"] += 1
            time.sleep(self.random.uniform(*STOP_SECONDS))
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> dict[str, int]:
        return {
            each["name"]: each["pid"] for each in self.stage.status()["programs"] if each["pid"]
        }

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + UP_TIMEOUT
        while not (found := self.stage.status()["programs"]) or not all(
            each["up"] for each in found
        ):
            if time.monotonic() > deadline:
                sys.exit(f"not everything was up in time: {found}")
            time.sleep(0.5)

    # --- what is watched ---

    def _sample(self) -> None:
        began = time.monotonic()
        while not self._ends.wait(SAMPLE_SECONDS):
            status = self.stage.status()
            pages = [each["pid"] for each in status["programs"] if each["name"] == "page"]
            pids = (status.get("pid"), status.get("guardian_pid"), *pages)
            for name, pid in zip(KEPT, pids, strict=False):
                with suppress(OSError, TypeError):
                    memory = proc.memory([pid]).rss
                    found = (time.monotonic() - began, memory, proc.descriptors([pid]))
                    self.samples[name].append(found)

    def _read_page(self) -> None:
        """Hold the overview open, as a browser does. The page may start later than the programs."""
        while not self._ends.is_set():
            link = urlsplit(self.stage.command("page", "--link"))
            with suppress(OSError, http.client.HTTPException):
                if link.port:
                    self._read_updates(link.port, parse_qs(link.query)["token"][0])
            time.sleep(1.0)

    def _read_updates(self, port: int, token: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/live?path=/", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        while not self._ends.is_set() and (line := response.readline()):
            self.updates += line.startswith(b"event: sections")

    # --- the report ---

    def report(self) -> None:
        self.stage.command("stop", "orders", "clusters")
        totals = self.stage.wait_until_done(DRAIN_TIMEOUT)
        checked = self._check_events()
        print("| what | number |\n|---|---:|")
        for name, value in (
            ("faults", self.faults.total()),
            ("messages sent", totals.sent),
            ("messages done", totals.done),
            ("messages lost", len(totals.lost)),
            ("messages still queued", totals.queued),
            ("dead letters", totals.dead),
            ("sender killed in the middle of a send", totals.unknown),
            ("executions started", totals.reports),
            ("executions done", totals.reports_done),
            ("updates that the reader of the page got", self.updates),
        ):
            print(f"| {name} | {value:,} |")
        print(f"\nEvents and agent runs, by `longwatch simulate check`:\n\n```text\n{checked}\n```")
        print(f"\nFaults: {', '.join(f'{n} {name}' for name, n in sorted(self.faults.items()))}.")
        self._print_footprint()

    def _check_events(self) -> str:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "longwatch", "simulate", "check"),
                *("--journal", "events.jsonl", "--wait", "120"),
            ],
            check=False,
            cwd=self.stage.place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return (done.stdout + done.stderr).strip()

    def _print_footprint(self) -> None:
        print("\n| process | RSS, second fifth, MiB | RSS, last fifth | descriptors | then |")
        print("|---|---:|---:|---:|---:|")
        for name, samples in self.samples.items():
            early = [each for each in samples if 0.2 <= each[0] / self.seconds < 0.4]
            late = [each for each in samples if each[0] / self.seconds >= 0.8]
            if early and late:
                memory, descriptors = (
                    [statistics.median(each[column] for each in part) for part in (early, late)]
                    for column in (1, 2)
                )
                print(
                    f"| {name} | {memory[0]:.1f} | {memory[1]:.1f} | {descriptors[0]:.0f} "
                    f"| {descriptors[1]:.0f} |"
                )


def main() -> None:
    seconds, seed = (
        float(os.environ.get("BENCH_SECONDS") or 900),
        int(os.environ.get("BENCH_SEED") or 1),
    )
    with tempfile.TemporaryDirectory(prefix="soak-", dir=environments.BUILD) as place:
        soak = Soak(Path(place), seconds, seed)
        try:
            soak.run()
            soak.report()
        finally:
            soak.stage.stop()
    print(f"\n{seconds:,.0f} seconds of faults, seed {seed}.")


if __name__ == "__main__":
    if not os.environ.get("BENCH_IN_ENVIRONMENT"):
        python = environments.make_with("bench-soak", "runner,page")
        environ = {**os.environ, "BENCH_IN_ENVIRONMENT": "1"}
        os.execve(python, [str(python), __file__], environ)  # noqa: S606 - the same script
    sys.path.insert(0, str(DEMO))
    main()
