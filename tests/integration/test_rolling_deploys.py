"""Deploys that kill pods after their grace: a pod is a process whose page goes with it."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from longwatch.mailbox import open_mailbox
from longwatch.mailbox.url import open_store
from polling import eventually
from postgres_server import shared_server
from snippet import Snippet, run_snippet

DEPLOYS = 5

POD = """
import os, signal, sys, time
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

class Jobs(MainLoop):
    def handle(self, job, context):
        print("begin", flush=True)
        while not os.path.exists({until!r}):
            context.beat()
            time.sleep(0.01)
        print("end", flush=True)

jobs = Jobs(requests=open_mailbox({url!r}, "jobs"), name="jobs")
LoopGroup([jobs], shutdown_timeout=1000.0, watchdog_threshold=None).run(visibility_timeout=30.0)
"""


def query(url: str, sql: LiteralString) -> list[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            return file.execute(sql).fetchall()
    with psycopg.connect(url) as server:
        return server.execute(sql).fetchall()


def pages(url: str) -> list[tuple[str, int]]:
    """The page of each owner, and whether the store knows that it drains."""
    return query(url, "SELECT page, draining FROM longwatch_owners WHERE page IS NOT NULL")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    with shared_server().database() as made:
        yield made


def deploy(pod: Snippet, url: str) -> None:
    """Ask the pod to stop, and kill it and its page when its grace is over."""
    assert pod.read_line() == "begin"
    pod.signal(signal.SIGTERM)
    assert eventually(lambda: [1] == [draining for _, draining in pages(url)])
    pod.signal(signal.SIGKILL)
    pod.wait()
    for page, _ in pages(url):
        Path(page).unlink()


def test_pods_that_are_killed_after_their_grace_cost_a_long_message_no_budget(
    url: str, tmp_path: Path
) -> None:
    """Five deploys in a row: five releases, no dead letter, and the sixth pod finishes."""
    with closing(open_mailbox(open_store(url, auto_migrate=True), "jobs")) as mailbox:
        mailbox.send("long")
        code = POD.format(url=url, until=str(tmp_path / "go"))
        for _ in range(DEPLOYS):
            with run_snippet(code) as pod:
                deploy(pod, url)
        with run_snippet(code) as pod:
            assert pod.read_line() == "begin"
            [counters] = query(
                url, "SELECT releases, crashes, lost, failures FROM longwatch_messages"
            )
            (tmp_path / "go").touch()
            assert pod.read_line() == "end"
            assert eventually(lambda: mailbox.stats().leased == 0)
        dead = mailbox.stats().dead
    assert (DEPLOYS, 0, 0, 0) == tuple(counters)
    assert 0 == dead
