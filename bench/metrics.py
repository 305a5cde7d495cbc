"""Metrics: one scrape of `longwatch up` with ten thousand series.

A worker reports the metrics of 600 nodes of a graph from each of two processes, and 100 programs
run beside it. Each scrape merges the counts of all processes and measures the usage of all
programs. Scrapes and questions for health take turns.

In the environment: BENCH_ROUNDS=50.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LONGWATCH = Path(sys.executable).with_name("longwatch")
NODES = 600
PROGRAMS = 100
SERIES = 10_000
WAIT_SECONDS = 120.0
APP = f"""
from longwatch import open_mailbox
from longwatch.core.events.flow import AttemptsEnded
from longwatch.observe import Metrics
from longwatch.runtime import LoopGroup, MainLoop


class Idle(MainLoop):
    def handle(self, request, context):
        pass


metrics = Metrics()
for number in range({NODES}):
    for state, cause in (("success", "done"), ("failed", "raised"), ("abandoned", "deadline")):
        metrics.observe(
            AttemptsEnded(
                graph="scrape", node=f"pages_of_site_{{number}}", state=state, cause=cause,
                attempts=1, durations=(0.5,),
            )
        )
loop = Idle(requests=open_mailbox("sqlite:///bench.db", "idle"), name="idle")
group = LoopGroup([loop], metrics=metrics)
"""


def write_files(place: Path, port: int) -> None:
    tables = [
        f'[supervisor]\nmetrics_port = {port}\nmetrics_host = "127.0.0.1"',
        '[worker.jobs]\ntarget = "app:group"\nprocesses = 2',
        *(f'[program.p{number}]\ncommand = ["sleep", "1000"]' for number in range(PROGRAMS)),
    ]
    (place / "app.py").write_text(APP, encoding="utf-8")
    (place / "longwatch.toml").write_text("\n".join(tables), encoding="utf-8")


@contextmanager
def running_up(place: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    write_files(place, port)
    process = subprocess.Popen(
        [LONGWATCH, "up"],
        cwd=place,
        env={**os.environ, "LONGWATCH_PAGE_PORT": "off"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def get(port: int, path: str) -> tuple[float, bytes]:
    """The seconds that an answer took, and the answer."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        body = connection.getresponse().read()
    finally:
        connection.close()
    return time.perf_counter() - began, body


def series(page: bytes) -> int:
    return sum(not line.startswith(b"#") for line in page.splitlines())


def wait_for_all_series(port: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError):
            page = get(port, "/metrics")[1]
            if series(page) >= SERIES and b'attempts_total{cause="done"' in page:
                return
        time.sleep(0.5)
    sys.exit(f"there are not {SERIES} series after {WAIT_SECONDS} s")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def row(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    shown = (statistics.median(ordered), p95, ordered[-1])
    return f"| {name} | " + " | ".join(f"{value * 1000:.0f}" for value in shown) + " |"


def main() -> None:
    rounds = int(os.environ.get("BENCH_ROUNDS") or 50)
    with tempfile.TemporaryDirectory(prefix="bench-") as place, running_up(Path(place)) as found:
        process, port = found
        wait_for_all_series(port)
        before = cpu_seconds(process.pid)
        scrapes, health = [], []
        for _ in range(rounds):
            scrapes.append(get(port, "/metrics"))
            health.append(get(port, "/readyz")[0])
        spent = (cpu_seconds(process.pid) - before) / rounds
    pages = [page for _, page in scrapes]
    print("| answer, ms | median | p95 | max |")
    print("|---|---:|---:|---:|")
    print(row("`/metrics`", [seconds for seconds, _ in scrapes]))
    print(row("`/readyz`", health))
    print(
        f"\n{rounds} rounds. The page has {series(pages[-1]):,} series and {len(pages[-1]):,} "
        f"bytes. One round takes {spent * 1000:.0f} ms of the processor in `longwatch up`, the "
        f"reports of the worker processes included."
    )
    print(f"\nThe load average at the end was {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
