"""`longwatch run` keeps a web server up that crashes, is killed, and hangs. It takes about half a
minute and ends by itself.

Run it with `make demo`, or: python examples/demo/demo.py
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("server.py")
OPTIONS = (
    "--health-interval=1",
    "--health-timeout=1",
    "--health-failures=2",
    "--health-start-grace=1",
    "--stop-grace=2",
    "--log-format=json",
)
TIMEOUT = 30.0

Record = dict[str, Any]


class Demo:
    """The demo's stage: one `longwatch run`, its log as it comes, and what there is to say about
    it.
    """

    def __init__(self, port: int, state: str) -> None:
        self.port = port
        self.began = time.monotonic()
        self.records: queue.Queue[Record] = queue.Queue()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "longwatch",
                "run",
                "--name=server",
                f"--state-dir={state}",
                *OPTIONS,
                "--",
                sys.executable,
                str(SERVER),
            ],
            env={**os.environ, "PORT": str(port), "CRASH_AT_RANDOM": "1"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        threading.Thread(
            target=self._read_records, args=(self.process.stderr,), daemon=True
        ).start()

    def print_line(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:5.1f} s  {text}", flush=True)

    def get(self, path: str, timeout: float = 1.0) -> str:
        """GET the path; the answer, or what went wrong."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except OSError as error:
            return f"no answer ({type(error).__name__})"
        finally:
            connection.close()

    def wait_for_event(self, *events: str) -> Record:
        """Tell what longwatch does until one of these events comes; returns it."""
        while True:
            record = self.records.get(timeout=TIMEOUT)
            self._print_record(record)
            if record["event"] in events:
                return record

    def wait_until_serving(self) -> Record:
        """Wait until the server answers again; returns the record of its start."""
        started = self.wait_for_event("program_started")
        while self.process.poll() is None and "healthy" not in (answer := self.get("/health")):
            time.sleep(0.05)
        self.print_line(f"   the server answers: {answer}")
        return started

    def _read_records(self, lines: IO[bytes]) -> None:
        for line in lines:
            with suppress(ValueError):
                self.records.put(json.loads(line))

    def _print_record(self, record: Record) -> None:
        match record["event"]:
            case "program_started":
                self.print_line(
                    f"   longwatch: started the server, pid {record['pid']} (start "
                    f"{record['start_number']})"
                )
            case "restart_scheduled":
                self.print_line(f"   longwatch: will start it again in {record['delay']:g} s")
            case "health_check_failed":
                self.print_line(
                    f"   longwatch: health check failed ({record['failures']} of "
                    f"{record['threshold']}): {record['reason']}"
                )
            case "unexpected_exit" | "health_check_restart" | "shutdown_complete":
                self.print_line(
                    f"   longwatch: {record['event']}, {record['cause']}, after "
                    f"{record['lasted']:.1f} s"
                )


def run_scenes(demo: Demo) -> int:
    """The four acts."""
    demo.print_line("act 1: a web server is started, and dies by itself when it feels like it")
    demo.wait_until_serving()
    demo.wait_for_event("unexpected_exit")
    demo.print_line("act 2: it comes back, and is killed with kill -9")
    os.kill(demo.wait_until_serving()["pid"], signal.SIGKILL)
    demo.wait_for_event("unexpected_exit")
    demo.print_line("act 3: it comes back, and hangs: alive, but it answers no request")
    demo.wait_until_serving()
    demo.get("/hang", timeout=0.1)
    if demo.wait_for_event("health_check_restart", "unexpected_exit")["event"] == "unexpected_exit":
        demo.print_line(
            "   (its mood was quicker than the check: that is a failure like any other)"
        )
    demo.print_line("act 4: it comes back, and SIGTERM to longwatch stops both")
    demo.wait_until_serving()
    demo.process.terminate()
    demo.wait_for_event("shutdown_complete")
    return demo.process.wait(TIMEOUT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="longwatch-demo-") as state:
        show = Demo(free_port(), state)
        try:
            code = run_scenes(show)
        finally:
            if show.process.poll() is None:
                show.process.kill()
                show.process.wait()
        log = Path(state, "logs", "watchdog.log").read_text().splitlines()
        restarts = sum(json.loads(line)["event"] == "restart_scheduled" for line in log)
        show.print_line(
            f"the end: started again {restarts} times, exit code {code} (128 + SIGTERM); the "
            f"log had {len(log)} JSON lines"
        )


if __name__ == "__main__":
    main()
