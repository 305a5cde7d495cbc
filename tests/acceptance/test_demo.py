from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from run_process import TIMEOUT, PipeLines

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "demo.py"


class RunningDemo:
    """The demo at work, and what it prints."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        self._lines = PipeLines(process.stdout.fileno())

    def wait_for(self, text: str) -> str:
        """The next line with this text. Fails at the end of the output."""
        deadline = time.monotonic() + TIMEOUT
        while (line := self._lines.next_line(deadline)) is not None:
            if text in line.decode():
                return line.decode()
        pytest.fail(f"{text!r} did not come: {self._lines.text.decode()}")

    def close_output(self) -> None:
        """Close the pipe that the demo writes to."""
        assert self.process.stdout is not None
        self.process.stdout.close()

    def processes(self) -> list[psutil.Process]:
        """All processes that it has started and that run."""
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def running_demo() -> Iterator[RunningDemo]:
    with subprocess.Popen(
        [sys.executable, DEMO],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            yield RunningDemo(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(TIMEOUT)


def test_a_worker_killed_in_the_demo_comes_back_and_nothing_is_lost() -> None:
    with running_demo() as demo:
        killed = int(re.findall(r"\d+", demo.wait_for("    a worker "))[-1])
        graph = int(re.findall(r"\d+", demo.wait_for("    the graph "))[-1])
        demo.wait_for("Ctrl-C stops everything")
        os.kill(killed, signal.SIGKILL)
        assert "signal 9" in demo.wait_for("pages-1 ended")
        again = int(demo.wait_for("pages-1 is started again").split()[-1])
        os.kill(graph, signal.SIGKILL)
        assert "signal 9" in demo.wait_for("reports ended")
        demo.wait_for("reports is started again")
        demo.process.send_signal(signal.SIGINT)
        assert ", 0 dead letters, 0 lost" in demo.wait_for("pages: ")
        demo.wait_for("longwatch up ended with exit code 0")
        assert 0 == demo.process.wait(TIMEOUT)
        assert [] == [pid for pid in (killed, graph, again) if psutil.pid_exists(pid)]


def test_the_demo_stops_everything_when_its_output_is_closed() -> None:
    with running_demo() as demo:
        demo.wait_for("Ctrl-C stops everything")
        started = demo.processes()
        assert started
        demo.close_output()
        assert 0 == demo.process.wait(TIMEOUT)
        assert [] == [each for each in started if each.is_running()]


def test_a_second_demo_has_ports_of_its_own_and_runs_beside_the_first() -> None:
    """The metrics port of a demo stays open. That of its shop is free after each crash."""
    with socket.socket() as first:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # a demo that runs on this machine has the port already
            first.bind(("127.0.0.1", 9464))
            first.listen()
        with running_demo() as demo:
            metrics = int(re.findall(r":(\d+)/metrics", demo.wait_for("/metrics"))[0])
            shop = int(re.findall(r":(\d+)/hang", demo.wait_for("/hang"))[0])
            assert 4 == len({metrics, shop, 9464, 8091})
