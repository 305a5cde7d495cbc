"""What a parent knows about the end of a worker process when that is judged."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_rig import FakeSource
from longwatch.core.end_cause import EndCause
from longwatch.core.events.base import Events
from longwatch.core.events.engine import MessageDeadLettered
from longwatch.core.events.workers import WorkerJoined
from longwatch.engine.claim_source import GivenUp, ignore_given_up
from longwatch.host.beatpage import BeatPage
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.program_listener import ProgramEnd, ProgramStart
from longwatch.supervisor.restart_policy import EndFacts, EndVerdict
from longwatch.testing import FakeClock, RecordingObserver
from longwatch.workers import monitor as module
from longwatch.workers.monitor import WorkerMonitor

PLAN = ProgramPlan.of("jobs", ["true"], kind=ProgramKind.WORKER, env={"LONGWATCH_PARENT": "line"})
UNKNOWN = EndFacts(has_joined=False, has_finished=False)


class EndRig:
    """A monitor, and processes that exist only in its reports."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.observer = RecordingObserver()
        self.source = FakeSource()
        self.is_open = threading.Event()
        self.is_open.set()
        self.pages: list[BeatPage] = []
        self.monitor = WorkerMonitor(
            kill_worker=lambda pid, reason: None, clock=FakeClock(), events=Events(self.observer)
        )
        self.monitor.open_channel(folder / "line")
        monkeypatch.setattr(module, "open_claim_source", self._open_source)

    def _open_source(self, *_: object, **__: object) -> FakeSource:
        assert self.is_open.wait(10.0)
        return self.source

    def start(self, pid: int) -> None:
        self.monitor.program_started(ProgramStart(program="jobs", kind=ProgramKind.WORKER, pid=pid))

    def report(self, pid: int, about: str, **facts: Any) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            data = json.dumps({"about": about, "pid": pid, **facts}).encode()
            sender.sendto(data, str(self.folder / "line"))

    def report_engine(self, pid: int, *rows: int, completed: int = 0) -> BeatPage:
        """Have a process report an engine that runs these rows."""
        page = BeatPage(self.folder / f"page-{len(self.pages)}", 4)
        self.pages.append(page)
        for slot, row in enumerate(rows):
            page.begin(slot, row, 1.0)
        page.record_completed(completed)
        source = {"kind": "mailbox", "url": "store", "name": "jobs"}
        self.report(pid, "leases", owner=len(self.pages), page=str(page.path), source=source)
        return page

    def report_joined(self, pid: int) -> None:
        self.report(pid, "group", loops=["jobs"], threshold=None, crash_file="")

    def facts(self, pid: int) -> EndFacts | None:
        return self.monitor.end_facts(PLAN, pid)

    def end(self, pid: int) -> EndFacts | None:
        """End it; what was known when its end was judged."""
        facts = self.facts(pid)
        self.monitor.program_ended(
            ProgramEnd(
                program="jobs",
                kind=ProgramKind.WORKER,
                pid=pid,
                verdict=EndVerdict.UNEXPECTED_EXIT,
                cause=EndCause.signal(9),
                restart=True,
                killed=0,
            )
        )
        return facts

    def is_exempt(self, pid: int, *rows: int, completed: int = 0) -> bool:
        """Whether the end of a process that ran these rows and completed so many is exempt."""
        self.start(pid)
        self.report_joined(pid)
        self.report_engine(pid, *rows, completed=completed)
        facts = self.end(pid)
        assert facts is not None
        return facts.is_exempt


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[EndRig]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = EndRig(Path(folder), monkeypatch)
        made.monitor.start()
        try:
            yield made
        finally:
            assert made.monitor.stop(timeout=10.0)
            for page in made.pages:
                page.close()


def test_a_process_of_another_protocol_ends_like_a_program_that_does_not_report(
    rig: EndRig,
) -> None:
    rig.start(1)
    assert rig.facts(1) == UNKNOWN
    rig.report(1, "apart", protocol=2)
    assert rig.facts(1) is None


def test_reports_that_nobody_has_read_yet_count_when_the_end_is_judged(rig: EndRig) -> None:
    """Also while the handling of an earlier report waits for a store."""
    rig.is_open.clear()
    rig.start(1)
    rig.report_engine(1, 7, completed=1)
    rig.report_joined(1)
    rig.report(1, "finished")
    assert EndFacts(has_joined=True, has_finished=True, is_exempt=True) == rig.end(1)
    rig.is_open.set()


def test_reports_that_came_before_the_start_was_known_count_as_well(rig: EndRig) -> None:
    rig.report_joined(1)
    rig.report(1, "finished")
    for channel in rig.monitor._channels:
        channel.accept_arrived()
    rig.start(1)
    assert EndFacts(has_joined=True, has_finished=True) == rig.end(1)


def test_of_a_process_that_reported_nothing_that_is_known(rig: EndRig) -> None:
    rig.start(1)
    assert UNKNOWN == rig.end(1)


def test_nothing_is_known_of_a_process_of_another_user_or_of_one_that_is_gone(
    rig: EndRig,
) -> None:
    rig.start(1)
    silent = ProgramPlan.of("jobs", ["true"], kind=ProgramKind.WORKER)
    assert rig.monitor.end_facts(silent, 1) is None
    assert rig.facts(2) is None


def test_a_death_with_a_running_row_is_exempt_if_the_process_has_completed_one(
    rig: EndRig,
) -> None:
    assert rig.is_exempt(1, 7, completed=1)
    assert not rig.is_exempt(2, completed=5), "no row was running"
    assert not rig.is_exempt(3, 8), "it has completed nothing"


def test_the_same_row_is_exempt_again_before_anything_was_completed(rig: EndRig) -> None:
    """A poison row that is the first to be claimed again counts as one fault."""
    assert rig.is_exempt(1, 7, 8, completed=1)
    assert rig.is_exempt(2, 7, 9)
    assert rig.is_exempt(3, 9)
    assert not rig.is_exempt(4, 10)
    assert rig.is_exempt(5, 10), "each row counts once"
    assert not rig.is_exempt(6, 11)


def test_what_an_engine_completed_that_has_ended_counts(rig: EndRig) -> None:
    rig.start(1)
    rig.report_engine(1, completed=3)
    rig.report(1, "leases_ended", owner=1)
    rig.report_engine(1, 7)
    rig.report_joined(1)
    rig.observer.wait_for(WorkerJoined)
    facts = rig.end(1)
    assert facts is not None
    assert facts.is_exempt


def test_dead_letters_of_the_parents_sweep_are_emitted(rig: EndRig) -> None:
    given_up = GivenUp("a message", "jobs", "poison")

    def sweep(on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:
        on_given_up(given_up)
        return 1

    rig.source.sweep = sweep  # type: ignore[method-assign]
    rig.start(1)
    rig.report_engine(1, 7)
    rig.report_joined(1)
    rig.observer.wait_for(WorkerJoined)
    rig.end(1)
    event = rig.observer.wait_for(MessageDeadLettered)
    assert given_up == GivenUp(event.message_id, event.mailbox, event.reason)
