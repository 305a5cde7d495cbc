"""Status page: what 500 programs and 50 mailboxes cost it, its browsers and its supervisor.

One `longwatch up` keeps 500 `sleep` processes up, with the page beside it and a SQLite store of 50
mailboxes. Prints a Markdown table of the measured value and the limit of each claim.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from longwatch import open_mailbox
from longwatch.app.page_plan import page_token, published_address
from longwatch.errors import TryAgainError
from longwatch.supervisor.client import send_request
from longwatch.supervisor.supervisor_lock import find_supervisor
from queue_bench import environments

PROGRAMS, MAILBOXES, CLIENTS = 500, 50, 50
START_TIMEOUT = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def running(directory: Path, *, page: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`longwatch up` with all programs, and with its page if `page` is a port."""
    tables = [
        f'[program.job-{number:03}]\ncommand = ["sleep", "1000"]\nlog.console = false\n'
        "backoff.initial = 0.05\n"
        for number in range(PROGRAMS)
    ]
    store = f"sqlite:///{directory}/jobs.db"
    (directory / "longwatch.toml").write_text(f'[page]\nstores = ["{store}"]\n' + "\n".join(tables))
    process = subprocess.Popen(
        [sys.executable, "-m", "longwatch", "up"],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "LONGWATCH_PAGE_PORT": page},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    state = directory / ".longwatch"
    try:
        wait_until(lambda: is_up(state, with_page=page != "off"))
        yield process, state
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_TIMEOUT)


def is_up(state: Path, *, with_page: bool) -> bool:
    try:
        programs = status(state)
    except (TryAgainError, OSError):
        return False
    return all(each["ready"] for each in programs) and (
        not with_page or bool(published_address(state))
    )


def status(state: Path) -> list[dict[str, object]]:
    answer = send_request(find_supervisor(state).socket, {"do": "status"}, timeout=10)
    found: list[dict[str, object]] = answer["programs"]
    return found


def wait_until(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + START_TIMEOUT
    while not condition():
        if time.monotonic() > end:
            sys.exit("it did not come up in time")
        time.sleep(0.1)


# --- what is measured ---


def request_times(port: int, token: str, path: str, count: int) -> list[float]:
    """Milliseconds of requests one after the other, over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        response.read()
        assert response.status == http.client.OK, response.status
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(0.02)
    connection.close()
    return times


class LiveStream:
    """A stream of live updates, as a browser has it open."""

    def __init__(self, port: int, token: str, path: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.sendall(
            f"GET /live?path={path} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        self.wait_for(b"event: sections")

    def wait_for(self, text: bytes) -> None:
        data = b""
        while text not in data:
            chunk = self.socket.recv(1 << 16)
            assert chunk, "the stream ended"
            data = data[-len(text) :] + chunk

    def close(self) -> None:
        self.socket.close()


def update_times(port: int, token: str, state: Path, count: int) -> list[float]:
    """Milliseconds from the kill of a program to its event on the open overview."""
    stream, times = LiveStream(port, token, "/"), []
    for number in range(count):
        [victim] = [each for each in status(state) if each["name"] == f"job-{number:03}"]
        began = time.perf_counter()
        os.kill(int(str(victim["pid"])), signal.SIGKILL)
        stream.wait_for(f"/programs/job-{number:03}".encode())
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(0.7)
    stream.close()
    return times


def cpu_share(pid: int, seconds: float, streams: list[LiveStream]) -> float:
    """Percent of a core that a process uses while these streams are read."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ)
        before, began = cpu_seconds(pid), time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.recv(1 << 20)
        return 100 * (cpu_seconds(pid) - before) / (time.monotonic() - began)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> dict[str, float]:
    """RSS and PSS in MiB."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in {"Rss", "Pss"}:
            found[name] = int(value.split()[0]) / 1024
    return found


def p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


def fill(directory: Path) -> None:
    for number in range(MAILBOXES):
        box = open_mailbox(f"sqlite:///{directory}/jobs.db", f"box-{number:02}")
        box.send_many([{"n": each} for each in range(20)])


def measure(requests: int, kills: int, seconds: float) -> list[tuple[str, str, str]]:
    rows = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as undo:
        directory = Path(name)
        fill(directory)
        up, state = undo.enter_context(running(directory, page=free_port()))
        port = int(published_address(state).rstrip("/").rpartition(":")[2])
        token = page_token(state)
        [page] = [int(str(each["pid"])) for each in status(state) if each["name"] == "page"]
        for path, limit in (("/", "100 ms"), ("/programs", ""), ("/programs/job-001", "")):
            request_times(port, token, path, 5)
            times = request_times(port, token, path, requests)
            shown = f"{statistics.median(times):.0f} ms, {p95(times):.0f} ms"
            rows.append((f"`{path}`, median and p95 of {requests}", shown, limit))
        times = update_times(port, token, state, kills)
        shown = f"{statistics.median(times):.0f} ms, {max(times):.0f} ms"
        rows.append((f"update after a kill, median and worst of {kills}", shown, "1 s"))
        for path in ("/", "/programs"):
            streams = [LiveStream(port, token, path) for _ in range(CLIENTS)]
            time.sleep(2)
            before = cpu_seconds(up.pid)
            share = cpu_share(page, seconds, streams)
            own = 100 * (cpu_seconds(up.pid) - before) / seconds
            rows.append((f"CPU with {CLIENTS} browsers on `{path}`", f"{share:.1f} %", "5 %"))
            rows.append(("· the supervisor meanwhile", f"{own:.1f} %", ""))
            for stream in streams:
                stream.close()
        share = cpu_share(page, seconds, [])
        rows.append(("CPU without a browser", f"{share:.1f} %", ""))
        found = memory(page)
        rows.append(("memory of the page, RSS", f"{found['Rss']:.0f} MiB", "80 MiB"))
        with_page = memory(up.pid)
    with tempfile.TemporaryDirectory() as name, running(Path(name), page="off") as (up, _):
        time.sleep(2)
        without = memory(up.pid)
    for kind in ("Rss", "Pss"):
        shown = f"{with_page[kind]:.1f} MiB, {without[kind]:.1f} MiB"
        rows.append(
            (f"memory of the supervisor with and without the page, {kind.upper()}", shown, "")
        )
    return rows


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return str(listening.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long CPU is measured")
    asked = parser.parse_args()
    if not all(importlib.util.find_spec(name) for name in ("longwatch", "aiohttp", "jinja2")):
        python = environments.make_with("bench-page", "page")
        sys.exit(subprocess.run([python, __file__, *sys.argv[1:]], check=False).returncode)
    rows = measure(asked.requests, asked.kills, asked.seconds)
    print("| | measured | limit |\n|---|---:|---:|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(f"\n{PROGRAMS} programs, {MAILBOXES} mailboxes, {CLIENTS} open streams that are read.")


if __name__ == "__main__":
    main()
