from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import dispatch_client
from flow_stores import KINDS, opened_database, opened_store, store_url
from guardian_fixture import is_gone, pids_with_token
from longwatch.core.events.base import Events
from longwatch.core.events.runner import AgentSurvivorsKilled
from longwatch.host.guardian.proctable import ProcTable
from longwatch.host.incarnation import boot_id
from longwatch.runner.run_store import RunStore
from longwatch.runner.survivors import end_survivors
from longwatch.store.database import Database
from longwatch.testing import RecordingObserver
from polling import eventually
from runner_rig import Queue, dispatching

FIRST_RUN_RESTS = "event['longwatch']['attempt'] == 1 and rest()"
FIRST_RUN_LEAVES_A_SESSION = """
if event['longwatch']['attempt'] == 1:
    if os.fork() == 0:
        os.setsid()
    deaf()
    rest()
"""
INSERT_RUN = """
INSERT INTO longwatch_runner_runs
    (id, event, source, attempt, owner, boot, pid, pid_start, workspace, started_at)
VALUES (:id, 'event', 'alpha', 1, 5, :boot, :pid, :start, '/w', :wall_now)
"""


class RunnerProcess:
    """A dispatcher in a process of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, dispatch_client.__file__, url, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        _, guardian, self.token = self.process.stdout.readline().split()
        self.guardian_pid = int(guardian)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def agents(self) -> list[int]:
        return pids_with_token(self.token)


@contextmanager
def runner_process(url: str, folder: Path) -> Iterator[RunnerProcess]:
    started = RunnerProcess(url, folder)
    try:
        yield started
    finally:
        started.kill()
        for stream in (started.process.stdin, started.process.stdout):
            if stream is not None:
                stream.close()
        for pid in started.agents():
            with suppress(ProcessLookupError):  # its guardian was faster
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with opened_store("sqlite", tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_runner_leaves_no_agent(kind: str, tmp_path: Path) -> None:
    """Its guardian ends the agents. The next runner records the run as lost, counts one crash, and
    runs the event again.
    """
    with store_url(kind, tmp_path) as url, opened_database(url) as database:
        queue = Queue(database)
        with runner_process(url, tmp_path) as runner:
            event = queue.put(FIRST_RUN_RESTS)
            assert eventually(lambda: any(run.pid for run in queue.of(event)))
            runner.kill()
            assert eventually(lambda: [] == runner.agents())
        assert [("running", None)] == queue.causes(event)
        with dispatching(database, tmp_path) as rig:
            rig.queue.wait_outcome(event, "run")
        assert [("cancelled", "lease_lost"), ("success", "exit 0")] == queue.causes(event)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_that_a_killed_runner_did_not_see_holds(kind: str, tmp_path: Path) -> None:
    """The next runner records the run as cancelled and does not run the event again."""
    with store_url(kind, tmp_path) as url, opened_database(url) as database:
        queue = Queue(database)
        with runner_process(url, tmp_path) as runner:
            event = queue.put(FIRST_RUN_RESTS)
            assert eventually(lambda: any(run.pid for run in queue.of(event)))
            runner.kill()
        assert queue.runs.request_cancel(queue.of(event)[0].id)
        with dispatching(database, tmp_path) as rig:
            rig.queue.wait_outcome(event, "dead-lettered", "cancelled")
        assert [("cancelled", "cancelled")] == queue.causes(event)
        assert ["cancelled"] == [letter.reason for letter in queue.dead_letters()]


def test_a_crash_spends_the_poison_budget(sqlite: Database, tmp_path: Path) -> None:
    """An event whose runner dies three times is dead-lettered as poison."""
    queue = Queue(sqlite)
    event = queue.put("rest()")
    for _ in range(3):
        with runner_process(sqlite.absolute_url, tmp_path) as runner:
            assert eventually(lambda: bool(runner.agents()) and _is_open(queue, event))
    with dispatching(sqlite, tmp_path) as rig:
        rig.queue.wait_outcome(event, "dead-lettered", "poison")
    assert [("cancelled", "lease_lost")] * 3 == queue.causes(event)
    [letter] = queue.dead_letters()
    assert (3, 0) == (letter.crashes, letter.failures)


def test_survivors_of_a_killed_guardian_are_ended_at_the_next_start(
    sqlite: Database, tmp_path: Path
) -> None:
    """Runner and guardian are killed at once; a grandchild in a session of its own goes on until
    the next runner starts.
    """
    queue = Queue(sqlite)
    with runner_process(sqlite.absolute_url, tmp_path) as runner:
        event = queue.put(FIRST_RUN_LEAVES_A_SESSION)
        assert eventually(lambda: 2 == len(runner.agents()))
        assert eventually(lambda: any(run.pid for run in queue.of(event)))
        os.kill(runner.process.pid, signal.SIGSTOP)
        os.kill(runner.guardian_pid, signal.SIGKILL)
        runner.kill()
        assert eventually(lambda: 1 == len(runner.agents())), "the kernel ends the leader"
        with dispatching(sqlite, tmp_path) as rig:
            assert [] == runner.agents()
            rig.queue.wait_outcome(event, "run")
    [killed] = rig.observer.of(AgentSurvivorsKilled)
    first = queue.of(event)[0]
    assert (first.id, "alpha", first.pid) == (killed.run_id, killed.cluster, killed.pid)
    assert ("cancelled", "lease_lost") == (first.status, first.cause)


def test_a_pid_that_another_process_has_now_is_spared(sqlite: Database) -> None:
    """Pid and start time have to match."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        start = ProcTable().start_time(process.pid)
        observer = RecordingObserver()
        _insert_run(sqlite, "reused", process.pid, start - 1)
        assert 1 == end_survivors(RunStore(sqlite), Events(observer))
        assert process.poll() is None
        assert [] == observer.of(AgentSurvivorsKilled)
        run = RunStore(sqlite).run("reused")
        assert run is not None
        assert ("cancelled", "lease_lost") == (run.status, run.cause)
    finally:
        process.kill()
        process.wait()


def test_a_process_that_is_named_for_good_is_killed(sqlite: Database) -> None:
    """By pid and start time alone, also if its environment says nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.pause()"], env={}, start_new_session=True
    )
    try:
        _insert_run(sqlite, "named", process.pid, ProcTable().start_time(process.pid))
        observer = RecordingObserver()
        assert 1 == end_survivors(RunStore(sqlite), Events(observer))
        assert -signal.SIGKILL == process.wait(10)
        assert 1 == len(observer.of(AgentSurvivorsKilled))
    finally:
        process.kill()
        process.wait()


def test_runs_of_a_living_runner_are_left_alone(sqlite: Database, tmp_path: Path) -> None:
    """A second runner on the same store ends nothing of the first."""
    with dispatching(sqlite, tmp_path) as rig:
        rig.queue.put("rest()")
        [run_id] = rig.wait_in_flight()
        assert 0 == end_survivors(RunStore(sqlite), Events())
        [pid] = rig.processes()
        assert not is_gone(pid)
        assert rig.dispatcher.cancel(run_id)


def _insert_run(database: Database, run_id: str, pid: int, start: int) -> None:
    facts = {"id": run_id, "boot": boot_id(), "pid": pid, "start": start}
    database.write(lambda tx: tx.execute(INSERT_RUN, facts))


def _is_open(queue: Queue, event: str) -> bool:
    return any(run.status == "running" and run.pid for run in queue.of(event))
