"""Two releases on one store. The older one is a copy of the package; the newer one is a copy with
one more migration.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from flow_rig import KINDS
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.mailbox.url import open_store
from longwatch.store.migrations import SchemaStatus, schema_status
from package_copy import NEXT, copy_package, program
from polling import eventually
from postgres_server import shared_server
from snippet import Snippet, run_snippet

TABLES = (
    "owners",
    "mailboxes",
    "messages",
    "dead_letters",
    "graph_queues",
    "executions",
    "values",
    "computations",
    "sweeps",
    "sweep_runs",
    "runner_sources",
    "runner_events",
    "runner_runs",
    "graphs",
    "map_elements",
    "schema",
)
EXPANDING = "".join(
    [
        "-- min_reader: unchanged\n",
        *(f"ALTER TABLE longwatch_{name} ADD COLUMN tomorrow TEXT;\n" for name in TABLES),
        "ALTER TABLE longwatch_messages ADD COLUMN weight INTEGER NOT NULL DEFAULT 1;\n",
        "CREATE INDEX longwatch_by_weight ON longwatch_dead_letters (tomorrow);\n",
        "CREATE TABLE longwatch_tomorrow (id INTEGER PRIMARY KEY);\n",
    ]
)
CONTRACTING = (
    f"-- min_reader: {NEXT}\nALTER TABLE longwatch_runner_runs RENAME TO longwatch_runs;\n"
)
BATCH = 60
"""Messages that are sent before each kill, which comes when the first of them are done."""
KILLS = ("old", "new", "old", "new")

WORKER = """
import time
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.url import open_store
from longwatch.runtime import LoopGroup, MainLoop

class Jobs(MainLoop):
    def handle(self, job, context):
        time.sleep(0.02)  # long enough to be killed in
        return [job, SIDE]

store = open_store(URL)
jobs = open_mailbox(store, "jobs")
open_mailbox(store, "done")
print("ready", flush=True)
LoopGroup([Jobs(requests=jobs, name="jobs", concurrency=2)], watchdog_threshold=None).run()
"""
SENDER = """
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.url import open_store

jobs = open_mailbox(open_store(URL, auto_migrate=True), "jobs")
jobs.send_many(range(*SPAN), reply_to="done", headers={"tenant": "acme"})
print("sent", flush=True)
"""
FLOW = """
from longwatch.flow import Flow, Graph

squares = Graph("squares", version="1")
squares.input("number")

@squares.compute(after="number")
def square(number):
    return number * number

with Flow(URL, graphs=[squares]) as flow:
    execution = flow.start("squares", number=NUMBER, idempotency_key=str(NUMBER))
    if WORKS:
        with flow.worker():
            print(execution.get("square", timeout=30), flush=True)
    else:
        print("started", flush=True)
"""
OPENER = """
from longwatch.errors import LongwatchError, SchemaTooNewError
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.url import open_store

try:
    open_mailbox(open_store(URL, auto_migrate=AUTO), "jobs").send(1)
except LongwatchError as error:
    assert isinstance(error.__cause__, SchemaTooNewError), error
    print(error, flush=True)
else:
    print("used", flush=True)
"""


@pytest.fixture(name="old", scope="module")
def old_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_package(tmp_path_factory.mktemp("old"))


@pytest.fixture(name="url", params=KINDS)
def url_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    with shared_server().database() as made:
        yield made


def run(package: Path, code: str, **names: object) -> str:
    """Run a program of one release to its end; returns the line that it prints."""
    with run_snippet(release_code(package, code, names)) as child:
        line = child.read_line()
        assert (0, "") == child.wait()
    return line


def release_code(package: Path, code: str, names: dict[str, object]) -> str:
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    return program(package, given + code)


class Fleet:
    """Workers of two releases on one store, which are killed and replaced."""

    def __init__(self, url: str, packages: dict[str, Path], stack: ExitStack) -> None:
        self._url = url
        self._packages = packages
        self._stack = stack
        self._workers: dict[str, Snippet] = {}

    def start(self, side: str) -> None:
        code = release_code(self._packages[side], WORKER, {"URL": self._url, "SIDE": side})
        self._workers[side] = self._stack.enter_context(run_snippet(code))
        assert "ready" == self._workers[side].read_line()

    def replace(self, side: str) -> None:
        """Kill the worker without any warning, and start another of the same release."""
        worker = self._workers.pop(side)
        worker.signal(signal.SIGKILL)
        worker.wait()
        self.start(side)


def status_of(url: str) -> SchemaStatus | None:
    with closing(open_store(url)) as store:
        return schema_status(store)


def wait_until_done(done: Mailbox[Any], count: int) -> None:
    assert eventually(lambda: done.stats().ready >= count)


def replies(done: Mailbox[Any]) -> Iterator[tuple[int, str, int]]:
    """Every reply: the number of its message, the side that handled it, and the attempt."""
    while messages := done.receive(max_messages=100):
        for message in messages:
            yield *message.body["output"], message.body["attempt"]
        done.acknowledge_many(messages)


def test_workers_of_both_releases_share_a_store_while_they_are_killed(
    url: str, old: Path, tmp_path: Path
) -> None:
    """0 lost and 0 doubled: one reply for each message, none dead, and both sides replied."""
    new = copy_package(tmp_path / "new", EXPANDING)
    run(old, SENDER, URL=url, SPAN=(0, BATCH))
    with ExitStack() as stack:
        fleet = Fleet(url, {"old": old, "new": new}, stack)
        fleet.start("old")
        done = stack.enter_context(closing(open_mailbox(url, "done")))
        jobs = stack.enter_context(closing(open_mailbox(url, "jobs")))
        wait_until_done(done, 1)
        run(new, SENDER, URL=url, SPAN=(BATCH, 2 * BATCH))  # migrates under the old worker
        fleet.start("new")
        sent = 2 * BATCH
        for side in KILLS:
            wait_until_done(done, sent)
            jobs.send_many(range(sent, sent + BATCH), reply_to="done")
            wait_until_done(done, sent + 5)
            fleet.replace(side)
            sent += BATCH
        wait_until_done(done, sent)
        assert eventually(lambda: jobs.stats().leased == 0)
        left = jobs.stats()
        found = list(replies(done))
    assert (0, 0) == (left.ready, left.dead)
    assert Counter(range(sent)) == Counter(number for number, _, _ in found)
    assert {"old", "new"} == {side for _, side, _ in found}
    assert any(attempt > 1 for _, _, attempt in found), "no kill hit a message in work"
    status = status_of(url)
    assert status is not None
    assert (NEXT, 10, []) == (status.version, status.min_reader, status.pending)


def test_executions_of_one_release_are_computed_by_the_other(
    url: str, old: Path, tmp_path: Path
) -> None:
    new = copy_package(tmp_path / "new", EXPANDING)
    run(new, SENDER, URL=url, SPAN=(0, 1))
    for starter, worker, number in ((new, old, 12), (old, new, 13)):
        assert "started" == run(starter, FLOW, URL=url, NUMBER=number, WORKS=False)
        assert str(number**2) == run(worker, FLOW, URL=url, NUMBER=number, WORKS=True)


def test_a_release_below_min_reader_is_refused_with_the_cure_and_changes_nothing(
    url: str, old: Path, tmp_path: Path
) -> None:
    new = copy_package(tmp_path / "new", CONTRACTING)
    run(old, SENDER, URL=url, SPAN=(0, 3))
    assert "used" == run(new, OPENER, URL=url, AUTO=True)
    said = [run(old, OPENER, URL=url, AUTO=migrates) for migrates in (False, True)]
    expected = (
        f"was made by a newer Longwatch (schema {NEXT}, for versions from {NEXT} on; this one "
        f"knows {NEXT - 1}); upgrade Longwatch"
    )
    assert all(each.endswith(expected) for each in said), said
    assert "used" == run(new, OPENER, URL=url, AUTO=False)
    status = status_of(url)
    assert status is not None
    assert (NEXT, NEXT, True) == (status.version, status.min_reader, status.is_too_new)
