"""The parent of worker processes: whose leases it renews, whom it finds stalled, and what
becomes of what they held.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sqlite3
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine_rig import FakeRow, FakeSource
from guardian_fixture import proc_state
from longwatch.config.settings import LogSettings
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.end_cause import EndCause
from longwatch.core.events.base import Events
from longwatch.core.events.engine import ClaimSourceFailed, ClaimSourceRecovered
from longwatch.core.events.programs import ProgramEnded, ProgramStarted
from longwatch.core.events.workers import (
    WorkerEventsDropped,
    WorkerJoined,
    WorkerRowsReclaimed,
    WorkerStalled,
)
from longwatch.core.health import Aspect, Health, HealthReason
from longwatch.errors import StoreUnreachableError
from longwatch.host.beatpage import BeatPage
from longwatch.host.crash_file import CRASH_DIR_VARIABLE
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.claims import Claim
from longwatch.supervisor.plan import ProgramKind
from longwatch.supervisor.program_listener import ProgramEnd, ProgramStart, ProgramStop
from longwatch.supervisor.restart_policy import EndVerdict
from longwatch.testing import FakeClock, RecordingObserver, check_service
from longwatch.workers import monitor as module
from longwatch.workers.health import WorkersHealth
from longwatch.workers.monitor import WorkerMonitor
from longwatch.workers.parent import WorkerParent
from longwatch.workers.worker_record import WORKER_LEASE, WorkerRecord
from polling import eventually
from snippet import Snippet, run_snippet

THRESHOLD = 30.0
SHORT = 3.0
"""Seconds of the leases that processes take for themselves."""
A_MOMENT = 0.1


class HalfFakeClock(FakeClock):
    """Stands still but for moments: those who wait for a process to do something wait in real
    time. `pause` is a machine's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._paused = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._paused

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        if timeout is not None and timeout < A_MOMENT:
            return SystemClock().wait(wakeup, timeout)
        return super().wait(wakeup, timeout)

    def pause(self, seconds: float) -> None:
        """Time goes by, and nobody gets to do anything in it."""
        self._paused += seconds


@dataclass
class Worker:
    """A real process with a beat page in the test's hands."""

    pid: int
    page: BeatPage
    crash_file: Path
    owner: int = 7
    snippet: Snippet | None = None

    def kill(self) -> None:
        """Returns when it is gone, the last of its threads included."""
        assert self.snippet is not None
        self.snippet.signal(signal.SIGKILL)
        self.snippet.wait()


class MonitorRig:
    """A worker monitor, on a clock that stands still, with sources that a test has made. What it
    condemns is kept with the state that the process was in.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = HalfFakeClock()
        self.observer = RecordingObserver()
        self.events = Events(self.observer)
        self.stalled: list[tuple[int, str]] = []
        self.sources: dict[str, FakeSource] = {}
        self.records: list[dict[str, object]] = []
        self.monitor = WorkerMonitor(
            kill_worker=self._stop_stalled,
            clock=self.clock,
            events=self.events,
            on_records=self.records.extend,
        )
        self.events.subscribe(self.monitor.observe)
        self.address = folder / "line"
        self.monitor.open_channel(self.address)

    def _stop_stalled(self, pid: int, reason: str) -> None:
        assert reason.startswith("no beat for ")
        self.stalled.append((pid, proc_state(pid)))

    # --- what workers do ---

    def report(self, pid: int, about: str, **facts: object) -> None:
        self.send(json.dumps({"about": about, "pid": pid, **facts}).encode())

    def send(self, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaking:
            speaking.sendto(data, str(self.address))

    def report_lease(self, worker: Worker, store: str = "store", **where: str) -> None:
        source = {"kind": "mailbox", "url": store, "name": "jobs", **where}
        self.report(
            worker.pid, "leases", owner=worker.owner, page=str(worker.page.path), source=source
        )

    def report_group(
        self,
        worker: Worker,
        *,
        threshold: float | None = THRESHOLD,
        stale_after: float | None = None,
    ) -> None:
        before = len(self.observer.of(WorkerJoined))
        self.report(
            worker.pid,
            "group",
            loops=["jobs"],
            threshold=threshold,
            stale_after=stale_after,
            crash_file=str(worker.crash_file),
        )
        assert eventually(lambda: len(self.observer.of(WorkerJoined)) > before)

    def report_state(self, pid: int, *, samples: object = (), **facts: object) -> None:
        self.report(pid, "state", ready=True, failing=[], samples=samples, **facts)

    # --- what the supervisor does: it emits an event for the counters, and calls the monitor ---

    def emit_started(self, pid: int, program: str = "jobs-1") -> None:
        self.events.emit(
            ProgramStarted(program=program, pid=pid, command=("python",), start_number=1)
        )
        self.monitor.program_started(
            ProgramStart(program=program, kind=ProgramKind.WORKER, pid=pid)
        )

    def report_stopping(self, pid: int, program: str = "jobs-1") -> None:
        self.monitor.program_stopping(
            ProgramStop(program=program, kind=ProgramKind.WORKER, pid=pid)
        )

    def emit_ended(self, pid: int, program: str = "jobs-1") -> None:
        facts: dict[str, Any] = {
            "program": program,
            "pid": pid,
            "verdict": EndVerdict.UNEXPECTED_EXIT,
            "cause": EndCause.signal(9),
            "restart": True,
        }
        self.events.emit(ProgramEnded(lasted=1.0, **facts))
        self.monitor.program_ended(ProgramEnd(kind=ProgramKind.WORKER, killed=0, **facts))

    # --- time ---

    def advance(self, seconds: float) -> None:
        """Move time forward, round by round; the monitor and one lease renewer wait for it."""
        self.clock.await_parked(2)
        self.clock.advance(seconds, parked=2)

    # --- what the monitor knows ---

    def worker_record(self, pid: int) -> WorkerRecord:
        [found] = [ward for ward in self.monitor.workers() if ward.pid == pid]
        return found

    def value(self, name: str, *labels: str) -> object:
        values = [
            sample.value
            for sample in self.monitor.samples()
            if (sample.name, sample.labels) == (name, labels)
        ]
        return values[0] if values else None


@pytest.fixture(autouse=True)
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where crash files go."""
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(tmp_path / "crashes"))
    return tmp_path / "crashes"


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[MonitorRig]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = MonitorRig(Path(folder))
        monkeypatch.setattr(
            module, "open_claim_source", lambda where, _, **__: made.sources[where["url"]]
        )
        made.monitor.start()
        try:
            yield made
        finally:
            assert made.monitor.stop(timeout=10.0)


@pytest.fixture
def real_rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[MonitorRig]:
    """One that opens the stores that it is told of. Messages are named by their rows."""
    monkeypatch.setattr(SqlBackend, "row_ids", FakeSource.row_ids)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = MonitorRig(Path(folder))
        made.monitor.start()
        try:
            yield made
        finally:
            assert made.monitor.stop(timeout=10.0)


def page_at(folder: Path, slots: int = 2) -> BeatPage:
    return BeatPage(folder / f"page-{secrets.token_hex(4)}", slots)


@contextmanager
def fake_worker(rig: MonitorRig, *, pid: int = 2_000_000_000, owner: int = 7) -> Iterator[Worker]:
    """One that nobody has to signal: there is no such process."""
    page = page_at(rig.folder)
    try:
        yield Worker(pid, page, rig.folder / "no-crash-file", owner)
    finally:
        page.close()


PROCESS = """
import json, os, sys, threading
from longwatch.host.incarnation import Incarnation
from longwatch.host.crash_file import CrashFile
from longwatch.mailbox import open_mailbox

url, page, limit = {url!r}, {page!r}, {limit}
claimed, owner = [], 7
if url:
    backend = open_mailbox(url, "jobs").backend
    owner = backend.register_owner(Incarnation.current(), page=page)
    claimed = backend.exchange([], owner=owner, limit=limit, lease_seconds={short}).claimed
file = CrashFile("group")
file.open()
file.dump_on_signal()

def the_work():
    print(json.dumps([os.getpid(), owner, str(file.path), [each.claim.seq for each in claimed]]))
    threading.Event().wait()

the_work()
"""


@contextmanager
def real_worker(
    rig: MonitorRig, url: str = "", *, limit: int = 0
) -> Iterator[tuple[Worker, list[int]]]:
    """A real process, with real leases if there is a store; the rows that it has."""
    page = page_at(rig.folder, max(limit, 1))
    with run_snippet(
        PROCESS.format(url=url, page=str(page.path), limit=limit, short=SHORT)
    ) as snippet:
        pid, owner, crash_file, rows = json.loads(snippet.read_line())
        try:
            yield Worker(pid, page, Path(crash_file), owner, snippet), rows
        finally:
            page.close()


# --- renewing ---


def test_leases_are_renewed_at_once_and_at_least_every_five_seconds_and_the_page_says_until_when_to_trust(  # noqa: E501 - one name
    rig: MonitorRig,
) -> None:
    source = rig.sources["store"] = FakeSource()
    asked: list[float] = []
    source.faults["renew"] = lambda: asked.append(rig.clock.monotonic())
    with fake_worker(rig) as worker:
        began = rig.clock.monotonic()
        rig.emit_started(worker.pid)
        rig.report_lease(worker)
        assert eventually(lambda: worker.page.trusted_until == began + WORKER_LEASE.trust_seconds)
        rig.advance(60.0)
        assert began == asked[0]
        assert (
            max(later - earlier for earlier, later in pairwise(asked)) <= WORKER_LEASE.renew_seconds
        )
        assert rig.clock.monotonic() - asked[-1] <= WORKER_LEASE.renew_seconds
        assert asked[-1] + WORKER_LEASE.trust_seconds == worker.page.trusted_until


def test_after_a_suspend_leases_are_renewed_in_the_next_round_and_trust_counts_the_suspend(
    rig: MonitorRig,
) -> None:
    """The page says until when to trust on the clock that goes on in suspend, as leases do."""
    source = rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        rig.report_lease(worker)
        source.wait_for_calls("renew", 1)
        rig.advance(1.0)
        rig.clock.suspend(3600.0)
        assert worker.page.trusted_until < rig.clock.boottime()
        rig.advance(1.0)
        assert worker.page.trusted_until > rig.clock.boottime()


def test_after_a_suspend_nothing_is_swept_for_an_ended_worker_before_the_others_are_renewed(
    rig: MonitorRig,
) -> None:
    source = rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        rig.report_lease(worker)
        source.wait_for_calls("renew", 1)
        rig.advance(1.0)
        record = rig.worker_record(worker.pid)
        rig.clock.suspend(3600.0)
        rig.emit_ended(worker.pid)
        assert eventually(lambda: not record.engine_leases)
        assert "sweep" not in source.calls


def renewals(source: FakeSource) -> int:
    return source.calls.count("renew")


class JointSource(FakeSource):
    """Renews several owners in one transaction."""

    joint: list[list[int]]

    def __init__(self) -> None:
        super().__init__()
        self.joint = []

    def renew_owners(self, owners: Sequence[int], *, lease_seconds: float) -> list[int]:
        with self._called("renew_owners"):
            self.joint.append(list(owners))
            return [len(self._held(owner)) for owner in owners]


def test_engines_without_rows_share_a_renewal_and_a_busy_one_has_its_own(rig: MonitorRig) -> None:
    """The rows of a busy engine would stay locked until the renewals of the others are done."""
    source = rig.sources["store"] = JointSource()
    source.rows.append(FakeRow(1, claim=Claim(1, 3, 1)))
    pids = [2_000_000_000 + owner for owner in (1, 2, 3)]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(fake_worker(rig, pid=pid, owner=owner))
            for owner, pid in enumerate(pids, 1)
        ]
        for worker in workers:
            rig.emit_started(worker.pid)
            rig.report_lease(worker)
        source.wait_for_calls("renew", 3)
        rig.advance(10.0)
        source.wait_for_calls("renew_owners", 1)
        source.wait_for_calls("renew", 4)
        assert eventually(lambda: all(each.page.trusted_until > 10.0 for each in workers))
    assert {(1, 2)} == {tuple(sorted(owners)) for owners in source.joint}
    assert [(1, ())] == source.renewals[3:4]


def is_not_renewed(rig: MonitorRig, source: FakeSource) -> bool:
    before = renewals(source)
    rig.advance(30.0)
    return before == renewals(source)


def test_leases_that_are_over_or_whose_process_has_ended_are_renewed_no_more(
    rig: MonitorRig,
) -> None:
    source = rig.sources["store"] = FakeSource()
    with fake_worker(rig, owner=1) as one, fake_worker(rig, pid=2_000_000_001, owner=2) as two:
        for worker in (one, two):
            rig.emit_started(worker.pid)
            rig.report_lease(worker)
        source.wait_for_calls("renew", 2)
        rig.report(one.pid, "leases_ended", owner=one.owner)
        assert eventually(lambda: not rig.worker_record(one.pid).engine_leases)
        rig.emit_ended(two.pid)
        source.wait_for_calls("sweep", 1)
        assert eventually(lambda: is_not_renewed(rig, source))


def test_one_that_ends_while_its_store_is_being_opened_is_swept_and_not_renewed(
    rig: MonitorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource()
    with fake_worker(rig) as worker:

        def found_late(where: object, stores: object, **_: object) -> FakeSource:
            rig.emit_ended(worker.pid)
            return source

        monkeypatch.setattr(module, "open_claim_source", found_late)
        rig.emit_started(worker.pid)
        rig.report_lease(worker)
        source.wait_for_calls("sweep", 1)
        assert eventually(lambda: is_not_renewed(rig, source))


def test_leases_that_are_handled_after_the_end_of_their_worker_are_swept(rig: MonitorRig) -> None:
    source = rig.sources["store"] = FakeSource()
    ended = WorkerRecord(2_000_000_000, "jobs-1", serial=9)
    where = {"kind": "mailbox", "url": "store", "name": "jobs"}
    rig.monitor._add_leases(ended, {"owner": 1, "source": where})
    assert ["sweep"] == source.calls


def test_a_store_that_does_not_answer_holds_up_nobody_elses_leases(rig: MonitorRig) -> None:
    slow, quick = rig.sources["slow"], rig.sources["quick"] = FakeSource(), FakeSource()
    go_on = Wakeup()
    slow.faults["renew"] = lambda: go_on.block(30.0)
    with fake_worker(rig, owner=1) as one, fake_worker(rig, pid=2_000_000_001, owner=2) as two:
        for worker, store in ((one, "slow"), (two, "quick")):
            rig.emit_started(worker.pid)
            rig.report_lease(worker, store)
        slow.wait_for_calls("renew", 1)
        quick.wait_for_calls("renew", 1)
        try:
            rig.advance(10.0)
            quick.wait_for_calls("renew", 3)
            assert 1 == renewals(slow)
        finally:
            go_on.set()


def test_a_renewal_that_fails_is_told_and_tried_again_long_before_trust_ends(
    rig: MonitorRig,
) -> None:
    source = rig.sources["store"] = FakeSource()

    def refuse() -> None:
        raise StoreUnreachableError("no answer")

    source.faults["renew"] = refuse
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        rig.report_lease(worker)
        rig.observer.wait_for(ClaimSourceFailed)
        rig.advance(3.0)
        assert 2 <= renewals(source) <= 6, "spaced by a backoff"
        assert 0.0 == worker.page.trusted_until
        del source.faults["renew"]
        rig.advance(3.0)
        rig.observer.wait_for(ClaimSourceRecovered)
        assert worker.page.trusted_until > rig.clock.monotonic()


# --- stalls ---


def watched(rig: MonitorRig, worker: Worker, **facts: Any) -> None:
    rig.emit_started(worker.pid)
    rig.report_lease(worker)
    rig.report_group(worker, **facts)
    rig.clock.await_parked(2)


def test_one_that_gives_no_beat_for_the_threshold_is_stopped_with_its_stacks_saved_and_then_condemned(  # noqa: E501 - one name
    rig: MonitorRig,
) -> None:
    source = rig.sources["store"] = FakeSource()
    with real_worker(rig) as (worker, _):
        watched(rig, worker)
        worker.page.beat_engine(rig.clock.monotonic())
        worker.page.begin(0, 11, rig.clock.monotonic())
        rig.advance(THRESHOLD)
        assert [] == rig.stalled
        rig.advance(2.0)
        stalled = rig.observer.wait_for(WorkerStalled)
        assert eventually(lambda: rig.stalled != [])
        assert [(worker.pid, "T")] == rig.stalled
        assert HealthReason.STALE is rig.worker_record(worker.pid).reason
        assert is_not_renewed(rig, source), "its leases are left to whoever comes next"
        assert 1 == len(rig.stalled), "once is enough"
    assert ("jobs-1", worker.pid, THRESHOLD) == (stalled.program, stalled.pid, stalled.threshold)
    assert ("message-11",) == stalled.message_ids
    saved = Path(stalled.stacks).read_text()
    assert f"jobs-1 (pid {worker.pid}) gave no beat for 3" in saved
    assert "in the_work" in saved
    assert 1 == rig.value("longwatch_worker_stalls_total", "jobs-1")


def test_beats_of_the_work_or_no_work_at_all_are_no_stall(rig: MonitorRig) -> None:
    rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        watched(rig, worker)
        worker.page.begin(0, 11, rig.clock.monotonic())
        for _ in range(8):
            rig.advance(THRESHOLD / 2)
            worker.page.beat(0, rig.clock.monotonic())
            worker.page.beat_engine(rig.clock.monotonic())
        worker.page.end(0)
        for _ in range(4):
            rig.advance(THRESHOLD / 2)
            worker.page.beat_engine(rig.clock.monotonic())
        assert [] == rig.observer.of(WorkerStalled)


def test_a_loop_that_does_not_turn_is_a_stall_and_no_row_is_to_blame(rig: MonitorRig) -> None:
    rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        watched(rig, worker)
        worker.page.begin(0, 11, rig.clock.monotonic())
        worker.page.beat_engine(rig.clock.monotonic())
        rig.advance(THRESHOLD / 2)
        worker.page.beat(0, rig.clock.monotonic())
        rig.advance(THRESHOLD / 2 + 2.0)
        assert () == rig.observer.wait_for(WorkerStalled).message_ids
        assert eventually(lambda: rig.stalled != [])


def test_without_a_watchdog_nobody_is_stalled(rig: MonitorRig) -> None:
    rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        watched(rig, worker, threshold=None)
        worker.page.begin(0, 11, rig.clock.monotonic())
        rig.advance(10 * THRESHOLD)
        assert [] == rig.observer.of(WorkerStalled)


def test_after_a_pause_of_the_whole_machine_everybody_gets_another_round_to_beat(
    rig: MonitorRig,
) -> None:
    rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        watched(rig, worker)
        worker.page.begin(0, 11, rig.clock.monotonic())
        rig.clock.pause(10 * THRESHOLD)
        rig.advance(1.0)
        assert [] == rig.observer.of(WorkerStalled)
        worker.page.beat(0, rig.clock.monotonic())
        rig.advance(THRESHOLD)
        assert [] == rig.observer.of(WorkerStalled)
        rig.advance(2.0)
        rig.observer.wait_for(WorkerStalled)
        assert eventually(lambda: rig.stalled != [])


def test_one_whose_crash_file_is_gone_is_condemned_all_the_same(
    rig: MonitorRig, crashes: Path
) -> None:
    rig.sources["store"] = FakeSource()
    with real_worker(rig) as (worker, _):
        watched(rig, worker)
        worker.page.begin(0, 11, rig.clock.monotonic())
        worker.crash_file.unlink()
        crashes.rmdir()
        rig.advance(THRESHOLD + 2.0)
        assert eventually(lambda: rig.stalled != [])
        assert [(worker.pid, "T")] == rig.stalled


def test_one_that_ends_while_its_stacks_are_saved_is_condemned_to_no_harm(
    rig: MonitorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:

        def end_meanwhile(*_: object) -> None:
            rig.emit_ended(worker.pid)
            assert eventually(lambda: "sweep" in rig.sources["store"].calls)

        monkeypatch.setattr(module, "save_stacks", end_meanwhile)
        watched(rig, worker)
        worker.page.begin(0, 11, rig.clock.monotonic())
        rig.advance(THRESHOLD + 2.0)
        rig.observer.wait_for(WorkerStalled)
        assert eventually(lambda: rig.stalled != [])
        assert [] == rig.monitor.workers()


# --- what was held ---


def crashes_of(url: str) -> dict[str, int]:
    """What is held against the messages that wait."""
    mailbox = open_mailbox(url, "jobs")
    try:
        return {each.body.decode(): each.crashes for each in mailbox.backend.peek(limit=10)}
    finally:
        mailbox.close()


def sent(rig: MonitorRig, *bodies: int) -> str:
    """The URL of a store with these messages."""
    url = f"sqlite:///{rig.folder}/jobs.db"
    mailbox = open_mailbox(url, "jobs")
    mailbox.send_many(list(bodies))
    mailbox.close()
    return url


@contextmanager
def worker_with_leases(rig: MonitorRig, *bodies: int) -> Iterator[tuple[str, Worker, list[int]]]:
    """A real process that has leases of these messages, in a real store."""
    url = sent(rig, *bodies)
    with real_worker(rig, url, limit=len(bodies)) as (worker, rows):
        rig.emit_started(worker.pid)
        rig.report_lease(worker, url)
        rig.report_group(worker)
        for slot, row in enumerate(rows):
            worker.page.begin(slot, row, rig.clock.monotonic())
        yield url, worker, rows


def test_what_a_killed_one_held_is_free_at_once_and_those_that_it_had_begun_are_to_blame(
    real_rig: MonitorRig,
) -> None:
    with worker_with_leases(real_rig, 1, 2, 3) as (url, worker, _):
        worker.page.end(1)
        assert {} == crashes_of(url)
        worker.kill()
        real_rig.emit_ended(worker.pid)
        released = real_rig.observer.wait_for(WorkerRowsReclaimed)
        assert ("jobs-1", worker.pid, 3) == (released.program, released.pid, released.rows)
        assert {"1": 1, "2": 0, "3": 1} == crashes_of(url)


@pytest.mark.parametrize("draining", [False, True], ids=["at work", "draining"])
def test_of_one_that_stalls_only_the_silent_work_is_to_blame(
    real_rig: MonitorRig, *, draining: bool
) -> None:
    """A drain excuses everybody, but not the one that has to be killed in it."""
    with worker_with_leases(real_rig, 1, 2, 3) as (url, worker, rows):
        if draining:
            worker.page.start_draining()
        real_rig.advance(THRESHOLD - 1.0)
        for slot in (0, 2):
            worker.page.beat(slot, real_rig.clock.monotonic())
        real_rig.advance(3.0)
        assert (f"message-{rows[1]}",) == real_rig.observer.wait_for(WorkerStalled).message_ids
        assert eventually(lambda: real_rig.stalled == [(worker.pid, "T")])
        worker.kill()
        real_rig.emit_ended(worker.pid)
        real_rig.observer.wait_for(WorkerRowsReclaimed)
        assert {"1": 0, "2": 1, "3": 0} == crashes_of(url)


def lease_until(rig: MonitorRig) -> float:
    with closing(sqlite3.connect(rig.folder / "jobs.db")) as connection:
        [(moment,)] = connection.execute("SELECT lease_until FROM longwatch_messages")
        return float(moment)


def test_one_that_lives_keeps_its_leases_in_the_store(real_rig: MonitorRig) -> None:
    url = sent(real_rig, 1)
    with real_worker(real_rig, url, limit=1) as (worker, _):
        before = lease_until(real_rig)
        real_rig.emit_started(worker.pid)
        real_rig.report_lease(worker, url)
        assert eventually(lambda: worker.page.trusted_until > 0)
        assert lease_until(real_rig) >= before + WORKER_LEASE.lease_seconds - SHORT


# --- words ---


def test_a_quick_one_is_heard_that_speaks_before_we_know_of_its_start(rig: MonitorRig) -> None:
    source = rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        rig.report_lease(worker)
        rig.report(worker.pid, "group", loops=["jobs"], threshold=THRESHOLD, crash_file="")
        rig.report_state(worker.pid, samples=[["longwatch_mailbox_acked_total", ["jobs"], 3]])
        assert eventually(lambda: len(rig.monitor._reports._early_messages) == 3)
        assert [] == source.calls
        rig.emit_started(worker.pid)
        assert ("jobs",) == rig.observer.wait_for(WorkerJoined).loops
        source.wait_for_calls("renew", 1)
        assert eventually(lambda: rig.worker_record(worker.pid).reason is HealthReason.OK)
        assert 3 == rig.value("longwatch_mailbox_acked_total", "jobs")


NONSENSE = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b'"word"',
    b"{}",
    b'{"pid": "x", "about": "state"}',
    b'{"pid": 2000000000}',
    b'{"pid": 2000000000, "about": "gossip"}',
    b'{"pid": 2000000000, "about": "leases"}',
    (
        b'{"pid": 2000000000, "about": "leases", "owner": 1, "page": "/nowhere", "source": '
        b'{"url": "store", "name": "jobs"}}'
    ),
    (
        b'{"pid": 2000000000, "about": "leases", "owner": 1, "page": "/dev/null", "source": '
        b'{"url": "store", "name": "jobs"}}'
    ),
    b'{"pid": 2000000000, "about": "state", "samples": [1]}',
    b"[" * 50_000,
]


def test_words_that_say_nothing_keep_nobody_from_being_heard(rig: MonitorRig) -> None:
    rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        for word in NONSENSE:
            rig.send(word)
        rig.report_group(worker)
        assert HealthReason.PENDING is rig.worker_record(worker.pid).reason
        assert {} == rig.worker_record(worker.pid).engine_leases


def test_programs_that_are_no_workers_are_none_of_its_business(rig: MonitorRig) -> None:
    """Even if its command looks like that of a worker: the plan says what a program is."""
    rig.events.emit(
        ProgramStarted(
            program="web",
            pid=5,
            command=("python", "-m", "longwatch.workers.worker_process"),
            start_number=1,
        )
    )
    rig.monitor.program_started(ProgramStart(program="web", kind=ProgramKind.COMMAND, pid=5))
    assert [] == rig.monitor.workers()


@pytest.mark.parametrize(
    "word",
    [
        b'{"pid": 1e999, "about": "x"}',
        b'{"pid": %d, "about": "leases", "source": 5}',
        b"[]",
        b"\xff",
    ],
)
def test_whatever_a_word_does_to_it_the_next_one_is_heard(rig: MonitorRig, word: bytes) -> None:
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        rig.send(word.replace(b"%d", str(worker.pid).encode()))
        rig.report_group(worker)


def test_a_threshold_that_is_no_number_is_none(rig: MonitorRig) -> None:
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        rig.report(worker.pid, "group", loops=["jobs"], threshold="abc", crash_file="")
        rig.report_state(worker.pid)
        assert wait_for_reason(rig.worker_record(worker.pid), HealthReason.NOT_STARTED)
        assert None is rig.worker_record(worker.pid).stall_threshold


def test_the_loss_of_the_guardian_is_no_message_s_fault(real_rig: MonitorRig) -> None:
    with worker_with_leases(real_rig, 1) as (url, worker, _):
        real_rig.monitor.guardian_lost()
        worker.kill()
        real_rig.emit_ended(worker.pid)
        real_rig.observer.wait_for(WorkerRowsReclaimed)
        assert {"1": 0} == crashes_of(url)


def test_one_that_stalls_while_it_stops_is_left_the_time_it_has(real_rig: MonitorRig) -> None:
    with worker_with_leases(real_rig, 1, 2) as (url, worker, rows):
        real_rig.report_stopping(worker.pid)
        real_rig.advance(THRESHOLD - 1.0)
        worker.page.beat(0, real_rig.clock.monotonic())
        real_rig.advance(3.0)
        assert (f"message-{rows[1]}",) == real_rig.observer.wait_for(WorkerStalled).message_ids
        assert [] == real_rig.stalled
        worker.kill()
        real_rig.emit_ended(worker.pid)
        real_rig.observer.wait_for(WorkerRowsReclaimed)
        assert {"1": 0, "2": 1} == crashes_of(url)


def test_processes_of_another_user_are_not_told_of_the_line_and_keep_their_leases_by_themselves(
    tmp_path: Path,
) -> None:
    """We would have to believe what they say of files and stores."""
    clock = SystemClock()
    with WorkerParent(state=tmp_path, log=LogSettings(), clock=clock, events=Events()) as workers:
        ours, theirs = workers.environment_for(None), workers.environment_for(os.getuid() + 1)
        line = Path(ours["LONGWATCH_PARENT"])
        assert 0o600 == stat.S_IMODE(line.stat().st_mode)
        assert 0o700 == stat.S_IMODE(line.parent.stat().st_mode)
        assert ours == workers.environment_for(os.getuid())
        assert str(tmp_path / "crashes") == ours[CRASH_DIR_VARIABLE]
        assert not {"LONGWATCH_PARENT", CRASH_DIR_VARIABLE} & {*theirs}
    assert not line.parent.exists()


# --- what is known ---


def wait_for_reason(ward: WorkerRecord, reason: HealthReason) -> bool:
    return eventually(lambda: ward.reason is reason)


def test_how_one_is(rig: MonitorRig) -> None:
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        ward = rig.worker_record(worker.pid)
        assert wait_for_reason(ward, HealthReason.NOT_STARTED)
        rig.report_group(worker)
        assert wait_for_reason(ward, HealthReason.PENDING)
        for failing, reason in (
            (["loop jobs: stale"], HealthReason.STALE),
            (["draining: draining"], HealthReason.DRAINING),
        ):
            rig.report(worker.pid, "state", ready=False, failing=failing, samples=[])
            assert wait_for_reason(ward, reason)
        rig.report(
            worker.pid, "state", ready=False, failing=["loop jobs: something new"], samples=[]
        )
        assert wait_for_reason(ward, HealthReason.PENDING)
        rig.report_state(worker.pid)
        assert wait_for_reason(ward, HealthReason.OK)


def test_the_facts_of_a_worker_follow_its_reports_and_the_age_of_a_beat_goes_on_between_them(
    rig: MonitorRig,
) -> None:
    rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        [facts] = rig.monitor.worker_facts()
        assert (False, "not_started", None, []) == tuple(
            facts[key] for key in ("joined", "reason", "crash_file", "loops")
        )
        rig.report_lease(worker)
        rig.report_group(worker)
        for age in (2.0, 0.5):
            rig.report_state(
                worker.pid, loops=[{"name": "jobs", "age": age, "holding": 1}, {"name": "idle"}]
            )
        record = rig.worker_record(worker.pid)
        assert eventually(lambda: wait_for_reason(record, HealthReason.OK) and bool(record.stores))
        assert eventually(lambda: rig.monitor.worker_facts()[0]["loops"][0]["age"] == 0.5)
        [facts] = rig.monitor.worker_facts()
        idle = {"name": "idle", "age": None, "max_age": 0.0, "holding": 0}
        assert {
            "program": "jobs-1",
            "pid": worker.pid,
            "joined": True,
            "ready": True,
            "reason": "ok",
            "stalled": False,
            "stopping": False,
            "failing": [],
            "threshold": THRESHOLD,
            "slots": 0,
            "crash_file": str(worker.crash_file),
            "loops": [{"name": "jobs", "age": 0.5, "max_age": 2.0, "holding": 1}, idle],
            "stores": [{"url": "store", "name": "jobs", "kind": "mailbox"}],
        } == facts
        rig.advance(4.0)
        [jobs, _] = rig.monitor.worker_facts()[0]["loops"]
        assert (4.5, 4.5) == (jobs["age"], jobs["max_age"])
        rig.emit_ended(worker.pid)
        assert ([], [("store", "mailbox")]) == (rig.monitor.worker_facts(), rig.monitor.stores())


def test_a_worker_that_reports_nothing_more_gets_stale_and_its_gauge_goes_on(
    rig: MonitorRig,
) -> None:
    """As one that is frozen, or whose interpreter is blocked in C."""
    rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        rig.report_lease(worker)
        rig.report_group(worker, stale_after=10.0)
        rig.report_state(
            worker.pid,
            loops=[{"name": "jobs", "age": 0.5, "holding": 0}],
            samples=[["longwatch_heartbeat_age_seconds", ["jobs"], 0.5]],
        )
        record = rig.worker_record(worker.pid)
        assert wait_for_reason(record, HealthReason.OK)
        rig.advance(9.0)
        assert 9.5 == rig.value("longwatch_heartbeat_age_seconds", "jobs")
        assert {} == rig.monitor.unready_reasons()

        rig.advance(3.0)
        assert 12.5 == rig.value("longwatch_heartbeat_age_seconds", "jobs")
        assert wait_for_reason(record, HealthReason.STALE)
        assert {"jobs-1": "stale"} == rig.monitor.unready_reasons()

        rig.report_state(worker.pid, loops=[{"name": "jobs", "age": 0.1, "holding": 0}])
        rig.advance(1.0)
        assert wait_for_reason(record, HealthReason.OK)


def test_a_worker_may_have_beaten_since_its_last_report_so_it_is_ready_until_one_is_missing(
    rig: MonitorRig,
) -> None:
    """An idle loop beats about once a second, and its worker reports as seldom."""
    rig.sources["store"] = FakeSource()
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        rig.report_lease(worker)
        rig.report_group(worker, stale_after=1.5)
        record = rig.worker_record(worker.pid)
        for _ in range(3):
            rig.report_state(worker.pid, loops=[{"name": "jobs", "age": 1.0, "holding": 0}])
            assert eventually(lambda: {"jobs": 1.0} == record.beat_ages(rig.clock.monotonic()))
            rig.advance(1.0)
            assert {} == rig.monitor.unready_reasons()
        rig.advance(2.0)
        assert {"jobs-1": "stale"} == rig.monitor.unready_reasons()


def test_one_that_is_told_to_stop_is_draining_at_once_whatever_it_has_said_last(
    rig: MonitorRig,
) -> None:
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        rig.report_group(worker)
        rig.report_state(worker.pid)
        assert wait_for_reason(rig.worker_record(worker.pid), HealthReason.OK)
        rig.report_stopping(worker.pid)
        assert HealthReason.DRAINING is rig.worker_record(worker.pid).reason


def test_what_is_counted_is_summed_and_outlives_who_counted_it(rig: MonitorRig) -> None:
    pids = (2_000_000_000, 2_000_000_001)
    for number, pid in enumerate(pids, 1):
        rig.emit_started(pid, f"jobs-{number}")
        rig.report_state(
            pid,
            samples=[
                ["longwatch_mailbox_acked_total", ["jobs"], number],
                ["longwatch_loop_running", ["jobs"], 1],
            ],
        )
    assert eventually(lambda: rig.value("longwatch_mailbox_acked_total", "jobs") == 3)
    assert 2 == rig.value("longwatch_loop_running", "jobs")
    rig.emit_ended(pids[1], "jobs-2")
    assert (3, 1) == (
        rig.value("longwatch_mailbox_acked_total", "jobs"),
        rig.value("longwatch_loop_running", "jobs"),
    )
    rig.emit_started(2_000_000_002, "jobs-2")
    rig.report_state(2_000_000_002, samples=[["longwatch_mailbox_acked_total", ["jobs"], 10]])
    assert eventually(lambda: rig.value("longwatch_mailbox_acked_total", "jobs") == 13)
    assert 2 == rig.value("longwatch_program_starts_total", "jobs-2")
    assert 1 == rig.value("longwatch_program_ends_total", "jobs-2", "unexpected_exit")


def test_the_last_word_of_one_that_has_ended_counts(rig: MonitorRig) -> None:
    pid = 2_000_000_000
    rig.emit_started(pid)
    rig.report_state(pid, samples=[["longwatch_mailbox_acked_total", ["jobs"], 1]])
    assert eventually(lambda: rig.value("longwatch_mailbox_acked_total", "jobs") == 1)
    rig.emit_ended(pid)
    rig.report_state(
        pid,
        samples=[
            ["longwatch_mailbox_acked_total", ["jobs"], 5],
            ["longwatch_loop_running", ["jobs"], 1],
        ],
    )
    assert eventually(lambda: rig.value("longwatch_mailbox_acked_total", "jobs") == 5)
    assert rig.value("longwatch_loop_running", "jobs") is None
    rig.emit_started(pid)
    rig.report_state(pid, samples=[["longwatch_mailbox_acked_total", ["jobs"], 2]])
    assert eventually(lambda: rig.value("longwatch_mailbox_acked_total", "jobs") == 7), (
        "a pid that comes again is another one"
    )


def test_renewals_are_counted_for_the_loop_whose_leases_they_are(rig: MonitorRig) -> None:
    rig.sources["store"] = FakeSource(
        rows=[FakeRow(number, claim=Claim(number, 7, 1)) for number in (1, 2)]
    )
    with fake_worker(rig) as worker:
        rig.emit_started(worker.pid)
        source = {"kind": "mailbox", "url": "store", "name": "jobs"}
        rig.report(
            worker.pid, "leases", owner=7, page=str(worker.page.path), source=source, engine="mail"
        )
        assert eventually(lambda: rig.value("longwatch_leases_renewed_total", "mail") == 2)


def test_one_whose_store_has_not_answered_for_as_long_as_leases_last_is_not_ready(
    rig: MonitorRig,
) -> None:
    source = rig.sources["store"] = FakeSource()
    health = WorkersHealth(rig.monitor, ["jobs-1", "jobs-2"], clock=rig.clock)

    def reasons() -> dict[str, HealthReason]:
        report = Health(health.checks(), rig.clock).report(Aspect.READY)
        return {result.name.removeprefix("worker "): result.reason for result in report.results}

    with fake_worker(rig) as worker:
        watched(rig, worker)
        source.wait_for_calls("renew", 1)
        rig.report_state(worker.pid)
        assert eventually(
            lambda: reasons() == {"jobs-1": HealthReason.OK, "jobs-2": HealthReason.NOT_RUNNING}
        )
        source.faults["renew"] = lambda: 1 / 0
        rig.advance(WORKER_LEASE.lease_seconds + 5.0)
        assert HealthReason.UNREACHABLE is reasons()["jobs-1"]
        del source.faults["renew"]
        rig.advance(5.0)
        assert HealthReason.OK is reasons()["jobs-1"]


def test_mailboxes_are_known_once_however_many_work_on_them(rig: MonitorRig) -> None:
    rig.sources |= {"one": FakeSource(), "two": FakeSource()}
    places: list[Mapping[str, str]] = [
        {"store": "one"},
        {"store": "one"},
        {"store": "two"},
        {"store": "one", "name": "other"},
    ]
    with ExitStack() as pages:
        workers = [
            pages.enter_context(fake_worker(rig, owner=number)) for number in range(len(places))
        ]
        rig.emit_started(workers[0].pid)
        for worker, place in zip(workers, places, strict=True):
            rig.report_lease(worker, **place)
        assert eventually(
            lambda: len(rig.worker_record(workers[0].pid).engine_leases) == len(places)
        )
        assert ["jobs", "jobs", "other"] == sorted(
            name for sources in rig.monitor.mailbox_sources().values() for name in sources
        )


# --- as a service ---


def test_it_keeps_the_contract_of_services() -> None:
    clock = SystemClock()
    check_service(
        lambda: WorkerMonitor(kill_worker=lambda _, __: None, clock=clock, events=Events())
    )


def test_stopped_it_listens_no_more_and_its_socket_is_gone(rig: MonitorRig) -> None:
    assert rig.monitor.stop(timeout=10.0)
    assert not rig.address.exists()
    with pytest.raises(FileNotFoundError):
        rig.send(b"{}")
    assert [] == rig.monitor.workers()


def test_it_beats_with_every_round(rig: MonitorRig) -> None:
    rig.clock.await_parked(1)
    rig.clock.advance(0.9)
    assert pytest.approx(0.9) == rig.monitor.heartbeat.elapsed()
    rig.clock.advance(0.2)
    assert rig.monitor.heartbeat.elapsed() < 1.0


# --- events ---


def test_events_of_workers_are_passed_on_with_their_program_also_the_last_ones(
    rig: MonitorRig,
) -> None:
    def report(name: str, dropped: int = 0) -> None:
        record = {"ts": "2026-11-19T00:00:00Z", "level": "info", "event": name}
        rig.report(pid, "events", lines=json.dumps(record) + "\n", dropped=dropped)

    pid = 2_000_000_000
    report("early")
    rig.emit_started(pid, "jobs-1")
    report("present", dropped=7)
    assert eventually(lambda: len(rig.records) == 2)
    rig.emit_ended(pid, "jobs-1")
    report("last")
    assert eventually(lambda: len(rig.records) == 3)
    assert [("early", "jobs-1"), ("present", "jobs-1"), ("last", "jobs-1")] == [
        (record["event"], record["program"]) for record in rig.records
    ]
    assert [WorkerEventsDropped(program="jobs-1", pid=pid, count=7)] == rig.observer.of(
        WorkerEventsDropped
    )
