"""How many connections an idle process holds on PostgreSQL: one that listens and one more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from polling import eventually
from postgres_server import shared_server
from run_process import start_process
from runner_process import agent, start_runner, write_runner
from up_process import FROM_SOURCE
from worker_process import migrate, start_worker

APP = """
import os
from longwatch.flow import Flow, Graph
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

STORE = os.environ["STORE"]

class Jobs(MainLoop):
    def handle(self, job, context):
        pass

group = LoopGroup(
    [Jobs(requests=open_mailbox(STORE, name), name=name, concurrency=4) for name in "abc"]
)
chain = Graph("chain", version="1")
chain.input("number")

@chain.compute(after="number")
def a(number):
    return number

flow = Flow(STORE, [chain])
"""
TIMEOUT = 120.0
"""An unused connection is closed after ten seconds."""


@pytest.fixture
def url() -> Iterator[str]:
    with shared_server().database() as made:
        yield migrate(made)


def connections(pid: int) -> int:
    """How many connections to the server a process holds."""
    port = shared_server().port
    return sum(
        bool(each.raddr) and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED
        for each in psutil.Process(pid).net_connections("tcp")
    )


def test_an_idle_worker_of_several_loops_has_two_and_its_parent_one(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    with start_worker(**FROM_SOURCE, cwd=tmp_path, env={"STORE": url}) as run:
        [worker] = run.joined_pids("worker")
        parent = run.process.pid
        assert eventually(lambda: (connections(worker), connections(parent)) == (2, 1), TIMEOUT)


def test_an_idle_worker_of_a_flow_has_two_and_its_parent_one(url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    words = [*FROM_SOURCE["within"], "longwatch", "flow", "work", "app:flow"]
    with start_process(words, tmp_path, env={"STORE": url}) as (process, _, _):

        def found() -> list[int]:
            children = psutil.Process(process.pid).children(recursive=True)
            return sorted(n for each in children if (n := connections(each.pid)))

        assert eventually(lambda: (found(), connections(process.pid)) == ([2], 1), TIMEOUT)


def test_an_idle_runner_of_several_sources_has_two(url: str, tmp_path: Path) -> None:
    nothing = "http://127.0.0.1:9/"
    write_runner(tmp_path, {"a": nothing, "b": nothing}, agent("true"), store_url=url)
    with start_runner(tmp_path) as run:
        run.wait_for_event("runner_started")
        assert eventually(lambda: connections(run.process.pid) == 2, TIMEOUT)
