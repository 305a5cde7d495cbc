"""The product in one picture: `longwatch up` with programs that fail in every way, until Ctrl-C.

    shop       a web server that crashes and hangs
    pages      two worker processes; some messages hang until the watchdog ends them
    reports    a graph that survives the death of its worker
    runner     an agent for each event of two simulated clusters
    page       the status page

Run it with `make demo`, or: python examples/demo/demo.py [--seconds N]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stage import Stage

Record = dict[str, Any]

START_TIMEOUT = 60.0
SENTENCES = {
    "unexpected_exit": "{program} ended after {lasted:.1f} s: {why}",
    "health_check_restart": "{program} ended after {lasted:.1f} s: {why}",
    "program_started": "{program} is started again, pid {pid}",
    "health_check_failed": "{program} fails its health check: {reason}",
    "worker_stalled": "{program} gave no beat for {elapsed:.1f} s; its stacks: {stacks}",
    "worker_rows_reclaimed": "claims of {program} are released for other workers: {rows}",
    "agent_run_ended": "an agent run for {cluster} ended: {status}",
    "circuit_breaker_tripped": "{program} failed too often: {reason}",
}
"""What is printed for an event of the log, by its name."""
_POLL_SECONDS = 0.2


class Demo:
    """What the demo prints: what there is to see, then what Longwatch does, then what was lost."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.began = time.monotonic()
        self.stopping = threading.Event()

    def run(self, seconds: float | None) -> int:
        """Run until a stop signal, or for so many seconds. Returns the exit code."""
        self._write("Starting eight programs takes some seconds …")
        self.stage.prepare()
        self.stage.start()
        try:
            self._wait_until_up()
            self._print_guide()
            self._narrate(seconds)
        finally:
            self._print("stopping: messages in flight finish first")
            code = self.stage.stop()
        self._print_totals(code)
        return code

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not self._is_up() and not self.stopping.is_set():
            if self.stage.process is None or self.stage.process.poll() is not None:
                sys.exit(f"longwatch up did not start:\n{self._last_output()}")
            if time.monotonic() > deadline:
                sys.exit(f"not everything was ready in time; see {self.stage.place}/up.log")
            time.sleep(_POLL_SECONDS)

    def _is_up(self) -> bool:
        programs = self.stage.status()["programs"]
        return bool(programs) and all(program["ready"] for program in programs)

    def _last_output(self) -> str:
        return (self.stage.place / "up.log").read_text(encoding="utf-8")[-2000:]

    def _print_guide(self) -> None:
        self._write(
            f"""
Longwatch keeps everything in {self.stage.place} up.

Look at
    {self.stage.command("page", "--link") or "(no status page: its extra is not installed)"}
    http://127.0.0.1:{self.stage.ports["metrics"]}/metrics
    {_longwatch()} top --state-dir {self.stage.state}

Kill something, and see it come back:
    a worker          kill -9 {self._pid("pages-1")}
    the graph         kill -9 {self._pid("reports")}
    the web server    kill -9 {self._pid("shop")}
    the agents        kill -9 {self._pid("runner")}
    or let it hang    kill -STOP {self._pid("pages-2")}
                      curl -m 1 http://127.0.0.1:{self.stage.ports["shop"]}/hang
The workers and the web server also fail by themselves. Their new pids are in the lines below.

Ctrl-C stops everything and counts what was lost.
"""
        )

    def _pid(self, program: str) -> str:
        programs = self.stage.status()["programs"]
        return next((str(each["pid"]) for each in programs if each["name"] == program), "PID")

    # --- what happens ---

    def _narrate(self, seconds: float | None) -> None:
        end = None if seconds is None else time.monotonic() + seconds
        for record in self._records():
            if record is not None and (text := describe(record)):
                self._print(text)
            if self.stopping.is_set() or (end is not None and time.monotonic() > end):
                return

    def _records(self) -> Iterator[Record | None]:
        """Yield each record of the log of events, and None while there is no new one."""
        with (self.stage.state / "logs" / "watchdog.log").open(encoding="utf-8") as log:
            line = ""
            while True:
                line += log.readline()
                if line.endswith("\n"):
                    yield json.loads(line)
                    line = ""
                else:
                    self.stopping.wait(_POLL_SECONDS)
                    yield None

    def _print(self, text: str) -> None:
        self._write(f"{time.monotonic() - self.began:6.1f} s  {text}")

    def _write(self, text: str) -> None:
        """Print a text. The demo stops once its terminal or its pipe is closed."""
        try:
            print(text, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.stopping.set()

    def _print_totals(self, code: int) -> None:
        totals = self.stage.totals()
        self._print(
            f"pages: {totals.sent} sent, {totals.done} done, {totals.queued} queued, "
            f"{totals.dead} dead letters, {len(totals.lost)} lost"
        )
        unfinished = totals.reports - totals.reports_done
        self._print(
            f"reports: {totals.reports} started, {totals.reports_done} done, "
            f"{unfinished} unfinished"
        )
        self._print(f"longwatch up ended with exit code {code}")


def _longwatch() -> str:
    """The command `longwatch` as a shell finds it, with its path if that is not on PATH."""
    if shutil.which("longwatch"):
        return "longwatch"
    return os.path.relpath(Path(sys.executable).with_name("longwatch"))


def describe(record: Record) -> str:
    """A sentence about an event; empty for events that the demo does not show."""
    is_first_start = record["event"] == "program_started" and record["start_number"] == 1
    sentence = "" if is_first_start else SENTENCES.get(record["event"], "")
    return sentence.format_map(record | {"why": record.get("detail") or record.get("cause")})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seconds", type=float, help="end after this time; default: at Ctrl-C")
    seconds = options.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="longwatch-demo-") as place:
        demo = Demo(Stage(Path(place)))
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, lambda *_: demo.stopping.set())
        sys.exit(demo.run(seconds))


if __name__ == "__main__":
    os.umask(0o077)
    main()
