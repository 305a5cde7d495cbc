"""A Longwatch program that is no worker reports to its parent: events, readiness and metrics."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from longwatch.config.settings import LogSettings
from longwatch.core.clock import SystemClock
from longwatch.core.end_cause import EndCause
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import LoopDegraded
from longwatch.core.events.workers import WorkerEventsDropped
from longwatch.host.parent_channel import ParentChannel
from longwatch.observe.counters import MetricSample
from longwatch.observe.event_log import Record
from longwatch.supervisor.end_judge import EndJudges
from longwatch.supervisor.plan import REPORTING_KINDS, ProgramKind, ProgramPlan
from longwatch.supervisor.program_listener import ProgramEnd, ProgramStart
from longwatch.supervisor.restart_policy import EndVerdict
from longwatch.testing import FakeClock, RecordingObserver
from longwatch.workers.monitor import WorkerMonitor
from longwatch.workers.parent import WorkerParent
from longwatch.workers.program_relay import ProgramRelay
from parent_rig import Parent
from polling import eventually
from snippet import Snippet, run_snippet

TIMEOUT = 30.0
MANY = 20_000
"""More events than fit between two processes."""
NEWEST = 500
"""The last events, which do fit."""
DEPTH = "longwatch_runner_queue_depth"
PROGRAM = """
import os
from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import LoopDegraded
from longwatch.host.parent_channel import ParentChannel
from longwatch.workers.program_relay import ProgramRelay

events = Events()
relay = ProgramRelay(ParentChannel({address!r}), events=events, clock=SystemClock())
print(os.getpid())
while (line := input()) != "close":
    for number in range(*map(int, line.split())):
        events.emit(LoopDegraded(loop=str(number), elapsed=1.0, threshold=2.0))
    print("emitted")
print(relay.close({timeout}))
"""


class SlowParent:
    """A monitor whose log takes no records until the test lets it."""

    def __init__(self, folder: Path) -> None:
        self.observer = RecordingObserver()
        self.records: list[Record] = []
        self.may_read = threading.Event()
        events = Events(self.observer)
        self.monitor = WorkerMonitor(
            kill_worker=lambda _pid, _reason: None,
            clock=SystemClock(),
            events=events,
            on_records=self._take,
        )
        events.subscribe(self.monitor.observe)
        self.address = folder / "line"
        self.monitor.open_channel(self.address)

    def _take(self, records: Sequence[Record]) -> None:
        assert self.may_read.wait(TIMEOUT)
        self.records += records

    @contextmanager
    def program(self, kind: ProgramKind = ProgramKind.PAGE) -> Iterator[Snippet]:
        """A real process that relays what it is asked to emit, started as this kind of program."""
        with run_snippet(PROGRAM.format(address=str(self.address), timeout=TIMEOUT)) as program:
            pid = int(program.read_line())
            self.monitor.program_started(ProgramStart(program="page", kind=kind, pid=pid))
            yield program

    def loops(self) -> list[int]:
        return [int(str(record["loop"])) for record in self.records]


@pytest.fixture
def parent() -> Iterator[SlowParent]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = SlowParent(Path(folder))
        made.monitor.start()
        yield made
        made.may_read.set()
        assert made.monitor.stop(timeout=TIMEOUT)


def test_a_slow_parent_costs_the_oldest_events_which_are_counted_and_never_the_program(
    parent: SlowParent,
) -> None:
    with parent.program() as program:
        program.send_line(f"0 {MANY}")
        assert "emitted" == program.read_line()
        parent.may_read.set()
        program.send_line("close")
        assert "True" == program.read_line()
        assert eventually(lambda: parent.loops()[-1:] == [MANY - 1])
    loops = parent.loops()
    dropped = sum(each.count for each in parent.observer.of(WorkerEventsDropped))
    assert dropped == MANY - len(loops) > 0
    assert sorted({*loops}) == loops
    assert [*range(MANY - NEWEST, MANY)] == loops[-NEWEST:]
    assert MetricSample("longwatch_relay_dropped_total", ("page",), dropped) in (
        parent.monitor.samples()
    )


def test_a_program_that_is_killed_leaves_what_it_has_sent_and_the_parent_goes_on(
    parent: SlowParent,
) -> None:
    parent.may_read.set()
    with parent.program() as first:
        first.send_line("0 100")
        assert eventually(lambda: len(parent.records) == 100)
        first.signal(signal.SIGKILL)
        first.wait()
    with parent.program() as second:
        second.send_line("100 200")
        assert eventually(lambda: len(parent.records) == 200)
        second.send_line("close")
    assert [*range(200)] == parent.loops()


def test_programs_that_do_not_report_are_not_heard(parent: SlowParent) -> None:
    parent.may_read.set()
    with parent.program(ProgramKind.COMMAND) as program:
        program.send_line("0 100")
        program.send_line("close")
        assert ["emitted", "True"] == [program.read_line(), program.read_line()]
    for channel in parent.monitor._channels:
        channel.accept_arrived()
    assert [] == parent.records


# --- what a program sends ---


@pytest.fixture
def channel() -> Iterator[Parent]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = Parent(Path(folder) / "line")
        yield made
        made.close()


def test_the_state_is_reported_every_second_and_once_more_before_the_last_events(
    channel: Parent,
) -> None:
    clock, ready = FakeClock(), [True]
    events = Events()
    relay = ProgramRelay(
        ParentChannel(channel.address),
        events=events,
        clock=clock,
        state=lambda: {"ready": ready[0], "failing": [] if ready[0] else ["store: gone"]},
    )
    relay.start()
    assert (True, []) == state(channel)
    clock.await_parked(1)
    ready[0] = False
    clock.advance(1.0)
    assert (False, ["store: gone"]) == state(channel)
    ready[0] = True
    events.emit(LoopDegraded(loop="last", elapsed=1.0, threshold=2.0))
    assert relay.close(TIMEOUT)
    found = [channel.receive(), channel.receive()]
    assert {"state", "events"} == {each["about"] for each in found}
    assert relay.close(TIMEOUT), "a second close changes nothing"


def state(channel: Parent) -> tuple[bool, list[str]]:
    found = channel.receive_about("state")
    assert os.getpid() == found["pid"]
    return found["ready"], found["failing"]


# --- what the parent makes of it ---


def test_one_call_makes_a_plan_that_of_a_program_that_reports() -> None:
    parent = WorkerParent(state=None, log=LogSettings(), clock=SystemClock(), events=Events())
    plan = ProgramPlan.of("page", ["true"], env={"MINE": "1"})
    connected = parent.connect(plan, ProgramKind.PAGE)
    try:
        assert ProgramKind.PAGE is connected.kind
        variables = {
            "LONGWATCH_PARENT",
            "LONGWATCH_PARENT_INCARNATION",
            "LONGWATCH_PARENT_PROTOCOL",
        }
        assert variables == connected.process.env.keys() - plan.process.env.keys()
        assert "1" == connected.process.env["MINE"]
        assert not connected.needs_restart(parent.connect(plan, ProgramKind.PAGE))
    finally:
        parent.start()
        assert parent.stop(timeout=TIMEOUT)


@pytest.mark.parametrize("kind", ProgramKind)
def test_what_a_reporting_program_has_sent_is_read_before_its_end_is_in_the_log(
    parent: SlowParent, monkeypatch: pytest.MonkeyPatch, kind: ProgramKind
) -> None:
    """Its judge is asked first, and reads what has arrived."""
    [channel] = parent.monitor._channels
    read: list[ProgramKind] = []
    monkeypatch.setattr(channel, "accept_arrived", lambda: read.append(kind))
    judges = EndJudges(Events())
    judges.judge = parent.monitor
    plan = ProgramPlan.of("page", ["true"], kind=kind, env={"LONGWATCH_PARENT": "x"})
    assert judges.end_facts(plan, 5) is None
    assert ([kind] if kind in REPORTING_KINDS else []) == read


def test_the_metrics_of_a_runner_are_served_with_its_families_and_it_is_neither_watched_nor_judged(
    parent: SlowParent,
) -> None:
    monitor = parent.monitor
    plan = ProgramPlan.of("runner", ["true"], env={"LONGWATCH_PARENT": "x"})
    monitor.program_started(ProgramStart(program="runner", kind=ProgramKind.RUNNER, pid=5))
    naming = {"namespace": "longwatch_runner", "agent_timeout": 900.0}
    sample = [DEPTH, ["prod"], 3.0]
    monitor._reports.accept(
        {"about": "state", "pid": 5, "ready": True, "samples": [sample], "runner": naming}
    )
    samples, families = monitor.exported()
    assert [MetricSample(DEPTH, ("prod",), 3.0)] == samples
    assert 10 == len(families["longwatch_runner_agent_duration_seconds"].buckets)
    assert (None, [], []) == (monitor.end_facts(plan, 5), monitor.workers(), monitor.worker_facts())
    monitor.program_ended(
        ProgramEnd(
            program="runner",
            kind=ProgramKind.RUNNER,
            pid=5,
            verdict=EndVerdict.UNEXPECTED_EXIT,
            cause=EndCause.signal(9),
            restart=True,
            killed=0,
        )
    )
    assert [] == monitor.exported()[0]
