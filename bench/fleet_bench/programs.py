"""The commands `longwatch worker` and `longwatch flow work`, idle: what each process of them keeps
open.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from fleet_bench import postgres
from fleet_bench.figure import Figure
from fleet_bench.fleet import migrate
from fleet_bench.flows import prepare
from fleet_bench.site import Site

PROCESSES = 2
START_TIMEOUT = 30.0
_SHRINK_SECONDS = 12.0
"""A pool closes connections that were idle for 10 seconds."""
_APP = """
import os
from fleet_bench.flows import three_steps
from longwatch import open_mailbox
from longwatch.flow import Flow
from longwatch.runtime import LoopGroup, MainLoop

class Idle(MainLoop[dict, None]):
    def handle(self, request, context):
        pass

url = os.environ["BENCH_URL"]
group = LoopGroup([Idle(requests=open_mailbox(url, "fleet"), name="idle")])
flow = Flow(url, [three_steps()])
"""
_COMMANDS = {
    "worker": ("worker", "fleet_app:group"),
    "flow work": ("flow", "work", "fleet_app:flow"),
}


def measure_programs(site: Site) -> list[Figure]:
    """Both commands at the same time."""
    migrate(site.url)
    prepare(site.url)
    (site.path / "fleet_app.py").write_text(_APP)
    with ExitStack() as stack:
        parents = {
            name: stack.enter_context(_running(words, site)) for name, words in _COMMANDS.items()
        }
        for name, parent in parents.items():
            _await_connected(name, parent, site)
        time.sleep(_SHRINK_SECONDS)
        load = postgres.load_of(site, site.seconds)
        found = [each for name, parent in parents.items() for each in _counted(name, parent, site)]
    processes = len(parents) * (1 + PROCESSES)
    return [
        *found,
        Figure(f"transactions a second of all {processes} processes", load.transactions, 1),
    ]


@contextmanager
def _running(words: Sequence[str], site: Site) -> Iterator[subprocess.Popen[bytes]]:
    with (site.path / "log").open("ab") as log:
        parent = subprocess.Popen(
            [sys.executable, "-m", "longwatch", *words, "--processes", str(PROCESSES)],
            env=_environment(site),
            cwd=site.path,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield parent
    finally:
        parent.send_signal(signal.SIGTERM)
        parent.wait(START_TIMEOUT)


def _await_connected(name: str, parent: subprocess.Popen[bytes], site: Site) -> None:
    until = time.monotonic() + START_TIMEOUT
    while sum(map(bool, _connections(parent.pid, site)[1:])) < PROCESSES:
        if parent.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"longwatch {name}: {(site.path / 'log').read_text()[-800:]}")
        time.sleep(0.2)


def _counted(name: str, parent: subprocess.Popen[bytes], site: Site) -> list[Figure]:
    of_parent, *of_children = _connections(parent.pid, site)
    return [
        Figure(f"connections of the parent, `longwatch {name}`", of_parent, 0, "2"),
        Figure(f"connections of a worker process, `longwatch {name}`", max(of_children), 0, "2"),
    ]


def _connections(pid: int, site: Site) -> list[int]:
    """Connections to the server: of a process, then of its descendants."""
    port = urlsplit(site.url).port or 0
    try:
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
        return [
            [each.raddr[1:] for each in process.net_connections("tcp")].count((port,))
            for process in processes
        ]
    except psutil.NoSuchProcess:
        return [0]


def _environment(site: Site) -> dict[str, str]:
    bench = str(Path(__file__).resolve().parent.parent)
    runtime = site.path / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(site.path), bench, os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "BENCH_URL": site.url,
        "LONGWATCH_STORE": site.url,
        "XDG_RUNTIME_DIR": str(runtime),
    }
