from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.core.events.base import Events
from longwatch.core.events.programs import (
    CircuitBreakerTripped,
    EndJudgeFailed,
    HealthCheckFailed,
    HealthCheckPassed,
    ProgramEnded,
    ProgramStable,
    ProgramStarted,
    ProgramStopping,
    RestartScheduled,
)
from longwatch.errors import GuardianLostError, SpawnError
from longwatch.host.guardian.wire import ControlMessage
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.loop import EventLoopThread
from longwatch.host.process import Child, ProcessSpec, StopPolicy
from longwatch.supervisor import probe_watch as module
from longwatch.supervisor.containers.container_host import ContainerHost
from longwatch.supervisor.dependencies import Readiness
from longwatch.supervisor.end_judge import EndJudge, EndJudges
from longwatch.supervisor.lifecycle import ProgramState
from longwatch.supervisor.notify_socket import Notice
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.probe_watch import ProbeCheck
from longwatch.supervisor.probes import HttpProbe, ProbePolicy, ProbeSet
from longwatch.supervisor.program import DependencyWait, Program
from longwatch.supervisor.program_record import ProgramRecord
from longwatch.supervisor.restart_policy import EndFacts, Restart, RestartPolicy
from longwatch.supervisor.target_factory import Targets
from longwatch.testing import FakeClock, RecordingObserver

TIMEOUT = 10.0
PROBES = ProbeSet(
    liveness=ProbePolicy(probe=HttpProbe(port=1), interval=30.0, failures=3, start_grace=10.0)
)


def no_containers() -> ContainerHost:
    raise AssertionError("these programs are processes")


class FakeGuardian(GuardianClient):
    """Has no process: its children are real `Child` objects that end when the test says so, or
    when they are signalled.
    """

    def __init__(self, loop: EventLoopThread, clock: FakeClock) -> None:
        super().__init__(loop, clock=clock)
        self.faults: list[Exception | None] = []
        """What the next spawns raise; None and nothing at all: they work."""
        self.gate: asyncio.Event | None = None
        self.obedient = True
        self.signals: list[int] = []
        self.latest: Child | None = None

    async def spawn(self, spec: ProcessSpec) -> Child:
        if self.gate is not None:
            await self.gate.wait()
        if fault := self.faults.pop(0) if self.faults else None:
            raise fault
        self.latest = Child(next(self._numbers), "mark", self, self.clock)
        self.latest.handle_message({"event": "spawned", "pid": 1000 + self.latest.number})
        return self.latest

    def send(self, message: ControlMessage, descriptors: tuple[int, ...] = ()) -> None:
        if message["op"] == "signal":
            self.signals.append(message["signal"])
            if message["signal"] == signal.SIGKILL or (
                self.obedient and message["signal"] == signal.SIGTERM
            ):
                self.end(message["signal"])
        elif self.latest is not None and message["op"] == "kill":
            self.end(signal.SIGKILL)
            if not self.latest._cleared.done():
                self.latest.handle_message({"event": "cleared", "killed": 0, "survivors": 0})

    def end(self, status: int) -> None:
        """The leader ends with this wait status: a signal's number, or an exit code × 256."""
        assert self.latest is not None
        if not self.latest._ended.done():
            self.latest.handle_message(
                {"event": "ended", "status": status, "cpu": 0.0, "max_rss": 0}
            )
            if self.latest._stopping:
                self.latest.handle_message({"event": "cleared", "killed": 0, "survivors": 0})


class FakeCheck(ProbeCheck):
    """Answers what the test has set."""

    reason: str | None = None
    asked = 0

    async def check(self) -> str | None:
        FakeCheck.asked += 1
        return FakeCheck.reason


class ProgramRig:
    """A program that never runs, and the test's hand on its clock and its guardian."""

    def __init__(self, loop: EventLoopThread) -> None:
        self.loop = loop
        self.clock = FakeClock()
        self.observer = RecordingObserver()
        self.guardian = FakeGuardian(loop, self.clock)
        self.program: Program
        self.outcome: Future[int]

    def start(
        self,
        *,
        gate: DependencyWait | None = None,
        memory: ProgramRecord | None = None,
        judge: EndJudge | None = None,
        **plan: object,
    ) -> None:
        """Start to live; returns when it waits for something."""
        spec = ProcessSpec(argv=["/bin/app", "-v"], env={})
        whole = ProgramPlan(name="app", spec=spec, **{"critical": True, **plan})  # type: ignore[arg-type]
        events = Events(self.observer)
        end_judges = EndJudges(events)
        end_judges.judge = judge
        self.program = Program(
            whole,
            targets=Targets(self.guardian, no_containers),
            clock=self.clock,
            events=events,
            end_judges=end_judges,
            record=memory,
            strict=True,
        )
        self.outcome = self.loop.spawn(
            self.program.keep_up(gate) if gate else self.program.keep_up()
        )
        self.run_loop()

    def run_loop(self) -> None:
        """Let everything that is ready on the loop happen."""

        async def idle() -> None:
            for _ in range(30):
                await asyncio.sleep(0)

        self.loop.call(idle(), timeout=TIMEOUT)

    def run_on_loop(self, *acts: Callable[[], object]) -> None:
        """Act on the loop, all at one moment, and let happen what follows."""

        async def acted() -> None:
            for act in acts:
                act()

        self.loop.call(acted(), timeout=TIMEOUT)
        self.run_loop()

    def advance(self, seconds: float, *, parked: int = 1) -> None:
        self.clock.advance(seconds, parked=parked)
        self.run_loop()

    def end(self, *, code: int = 0, signum: int = 0) -> None:
        self.run_on_loop(lambda: self.guardian.end(signum or code << 8))

    def code(self) -> int:
        return self.outcome.result(TIMEOUT)

    def state(self) -> ProgramState:
        return self.program.state

    @property
    def waits(self) -> list[float]:
        return [event.delay for event in self.observer.of(RestartScheduled)]

    @property
    def verdicts(self) -> list[str]:
        return [event.verdict for event in self.observer.of(ProgramEnded)]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgramRig]:
    monkeypatch.setattr(module, "ProbeCheck", FakeCheck)
    monkeypatch.setattr(FakeCheck, "reason", None)
    monkeypatch.setattr(FakeCheck, "asked", 0)
    with EventLoopThread() as loop:
        yield ProgramRig(loop)


# --- starts, ends and waits -----------------------------------------------------------------------


def test_a_start_is_told_with_its_pid_its_command_and_its_number(rig: ProgramRig) -> None:
    rig.start()
    assert [
        ProgramStarted(program="app", pid=1001, command=("/bin/app", "-v"), start_number=1)
    ] == rig.observer.events
    assert ProgramState.UP == rig.state()


@pytest.mark.parametrize(
    ("status", "code", "verdict"),
    [
        (0 << 8, 0, "clean_exit"),
        (2 << 8, 2, "configuration_error"),
        (100 << 8, 100, "fatal_error_no_restart"),
        (255 << 8, 255, "fatal_error_no_restart"),
        (signal.SIGTERM, 143, "intentional_signal"),
        (signal.SIGINT, 130, "intentional_signal"),
    ],
)
def test_an_end_that_is_final_gives_its_code_on(
    rig: ProgramRig, status: int, code: int, verdict: str
) -> None:
    rig.start()
    rig.run_on_loop(lambda: rig.guardian.end(status))
    assert code == rig.code()
    assert [verdict] == rig.verdicts
    assert ProgramState.ENDED == rig.state()
    assert [] == rig.waits


def test_a_program_that_is_never_restarted_gives_its_failure_on(rig: ProgramRig) -> None:
    rig.start(restart=RestartPolicy(restart=Restart.NEVER))
    rig.end(signum=signal.SIGSEGV)
    assert 139 == rig.code()


def test_fast_crashes_wait_1_2_4_8_16_and_the_sixth_trips_the_breaker(rig: ProgramRig) -> None:
    rig.start()
    for wait in (1.0, 2.0, 4.0, 8.0, 16.0):
        rig.end(code=1)
        assert ProgramState.WAITING == rig.state()
        assert wait == rig.waits[-1]
        rig.advance(wait)
        assert ProgramState.UP == rig.state()
    rig.end(code=1)
    assert 100 == rig.code()
    assert [1.0, 2.0, 4.0, 8.0, 16.0] == rig.waits
    assert ProgramState.BROKEN == rig.state()
    assert [
        CircuitBreakerTripped(program="app", restarts=5, window=60.0, reason="6 failures in 60 s")
    ] == rig.observer.of(CircuitBreakerTripped)
    assert 6 == rig.program.record.starts


def test_the_wait_is_over_when_its_time_has_come_and_not_before(rig: ProgramRig) -> None:
    rig.start()
    rig.end(code=1)
    rig.advance(0.999)
    assert ProgramState.WAITING == rig.state()
    rig.advance(0.001)
    assert ProgramState.UP == rig.state()


def test_the_waits_are_told_with_the_failures_so_far(rig: ProgramRig) -> None:
    rig.start()
    for wait in (1.0, 2.0):
        rig.end(code=1)
        rig.advance(wait)
    told = [
        (event.failures, event.restarts_in_window) for event in rig.observer.of(RestartScheduled)
    ]
    assert [(1, 1), (2, 2)] == told


def test_crashes_that_are_far_apart_never_trip_the_breaker(rig: ProgramRig) -> None:
    rig.start(
        breaker=BreakerPolicy(tolerated=2, window=10.0),
        backoff=BackoffPolicy(initial=6.0, factor=1.0),
    )
    for _ in range(10):
        rig.end(code=1)
        rig.advance(6.0)
    assert [] == rig.observer.of(CircuitBreakerTripped)
    assert [6.0] * 10 == rig.waits


def test_a_breaker_that_tolerates_nothing_trips_at_the_first_failure_and_says_why(
    rig: ProgramRig,
) -> None:
    rig.start(breaker=BreakerPolicy(tolerated=0))
    rig.end(code=1)
    assert 100 == rig.code()
    assert ["1 failures in 60 s"] == [
        event.reason for event in rig.observer.of(CircuitBreakerTripped)
    ]


def test_a_stable_run_is_told_once_and_starts_the_waits_and_the_breaker_anew(
    rig: ProgramRig,
) -> None:
    rig.start()
    for wait in (1.0, 2.0, 4.0):
        rig.end(code=1)
        rig.advance(wait)
    rig.advance(60.0, parked=0)
    assert [ProgramStable(program="app", pid=1004, lasted=60.0)] == rig.observer.of(ProgramStable)
    assert () == rig.program.breaker.failure_times
    rig.advance(500.0, parked=0)
    assert 1 == len(rig.observer.of(ProgramStable))
    rig.end(code=1)
    assert 1.0 == rig.waits[-1]


def test_a_run_that_ends_just_before_it_is_stable_counts_like_any_other(rig: ProgramRig) -> None:
    rig.start()
    rig.end(code=1)
    rig.advance(1.0)
    rig.advance(59.9)
    rig.end(code=1)
    assert [1.0, 2.0] == rig.waits


def test_the_end_of_a_run_is_told_with_how_long_it_lasted_and_how_it_ended(
    rig: ProgramRig,
) -> None:
    rig.start()
    rig.advance(12.5)
    rig.end(signum=signal.SIGSEGV)
    [ended] = rig.observer.of(ProgramEnded)
    assert (1001, "signal 11", 12.5, True) == (
        ended.pid,
        str(ended.cause),
        ended.lasted,
        ended.restart,
    )


# --- starts that fail -----------------------------------------------------------------------------


def test_a_first_start_that_fails_raises_and_is_not_tried_again(rig: ProgramRig) -> None:
    rig.guardian.faults = [SpawnError("cannot execute '/bin/app'", errno=2)]
    rig.start()
    with pytest.raises(SpawnError, match="cannot execute"):
        rig.code()
    assert [] == rig.observer.events


def test_a_later_start_that_fails_is_a_failure_like_a_crash(rig: ProgramRig) -> None:
    rig.guardian.faults = [None, SpawnError("cannot execute '/bin/app'", errno=26)]
    rig.start()
    rig.end(code=1)
    rig.advance(1.0)
    assert ["unexpected_exit", "spawn_error"] == rig.verdicts
    last = rig.observer.of(ProgramEnded)[-1]
    assert (None, "cannot execute '/bin/app'", 0.0) == (last.pid, last.detail, last.lasted)
    rig.advance(2.0)
    assert ProgramState.UP == rig.state()
    assert 3 == rig.program.record.starts


def test_starts_that_go_on_failing_trip_the_breaker(rig: ProgramRig) -> None:
    rig.guardian.faults = [None, *(SpawnError("gone") for _ in range(5))]
    rig.start()
    rig.end(code=1)
    rig.advance(31.0, parked=0)
    assert 100 == rig.code()
    assert ["unexpected_exit", *["spawn_error"] * 5] == rig.verdicts


def test_a_lost_guardian_ends_the_life_of_the_program(rig: ProgramRig) -> None:
    rig.start()
    child = rig.guardian.latest
    assert child is not None
    rig.run_on_loop(lambda: child.fail(GuardianLostError("the guardian died")))
    with pytest.raises(GuardianLostError):
        rig.code()


# --- stopping -------------------------------------------------------------------------------------


def test_a_stop_before_the_start_means_it_never_runs_and_gives_the_code_of_the_signal(
    rig: ProgramRig,
) -> None:
    rig.program = Program(
        ProgramPlan(name="app", spec=ProcessSpec(argv=["x"], env={})),
        targets=Targets(rig.guardian, no_containers),
        clock=rig.clock,
        events=Events(rig.observer),
    )
    rig.run_on_loop(rig.program.stop)
    assert 143 == rig.loop.call(rig.program.keep_up(), timeout=TIMEOUT)
    assert (None, []) == (rig.guardian.latest, rig.observer.events)


def test_a_stop_signals_and_the_end_is_a_complete_shutdown(rig: ProgramRig) -> None:
    rig.start(stop=StopPolicy(signal=signal.SIGTERM, grace=7.0))
    rig.run_on_loop(rig.program.stop)
    assert 143 == rig.code()
    assert [ProgramStopping(program="app", pid=1001, signal=15, grace=7.0)] == rig.observer.of(
        ProgramStopping
    )
    assert ["shutdown_complete"] == rig.verdicts
    assert [signal.SIGTERM, signal.SIGCONT] == rig.guardian.signals
    assert ProgramState.STOPPED == rig.state()


def test_a_program_that_ignores_the_signal_is_killed_after_its_grace(rig: ProgramRig) -> None:
    rig.guardian.obedient = False
    rig.start(stop=StopPolicy(grace=7.0))
    rig.run_on_loop(rig.program.stop)
    assert ProgramState.STOPPING == rig.state()
    rig.advance(6.9, parked=2)
    assert not rig.outcome.done()
    rig.advance(0.1, parked=0)
    assert 137 == rig.code()


def test_a_kill_hastens_a_stop(rig: ProgramRig) -> None:
    rig.guardian.obedient = False
    rig.start()
    rig.run_on_loop(rig.program.stop)
    assert not rig.outcome.done()
    rig.run_on_loop(rig.program.kill)
    assert 137 == rig.code()
    assert ["shutdown_complete"] == rig.verdicts


def test_a_stop_and_a_kill_at_the_same_moment_are_a_kill(rig: ProgramRig) -> None:
    rig.guardian.obedient = False
    rig.start()
    rig.run_on_loop(rig.program.stop, rig.program.kill)
    assert 137 == rig.code()


def test_a_program_that_is_being_stopped_gets_no_second_signal(rig: ProgramRig) -> None:
    """Many programs take the second SIGTERM for "quit now" and drop their work."""
    rig.guardian.obedient = False
    rig.start(stop=StopPolicy(grace=7.0))
    rig.run_on_loop(lambda: rig.program.stop(shutting_down=False))
    rig.run_on_loop(rig.program.stop)
    rig.run_on_loop(lambda: rig.program.stop(StopPolicy(signal=signal.SIGINT, grace=7.0)))
    assert [signal.SIGTERM, signal.SIGCONT] == rig.guardian.signals
    assert [signal.SIGTERM] == [event.signal for event in rig.observer.of(ProgramStopping)]
    rig.run_on_loop(lambda: rig.guardian.end(0))
    assert (0, ["shutdown_complete"]) == (rig.code(), rig.verdicts)


def test_of_two_graces_the_one_that_ends_first_counts(rig: ProgramRig) -> None:
    rig.guardian.obedient = False
    rig.start(stop=StopPolicy(grace=20.0))
    rig.run_on_loop(rig.program.stop)
    rig.advance(5.0, parked=2)
    rig.run_on_loop(lambda: rig.program.stop(StopPolicy(grace=3.0)))
    rig.advance(2.9, parked=3)
    assert not rig.outcome.done()
    rig.advance(0.1, parked=0)
    assert 137 == rig.code()
    assert [signal.SIGTERM, signal.SIGCONT] == rig.guardian.signals


def test_a_second_stop_gives_no_more_time_than_the_first(rig: ProgramRig) -> None:
    rig.guardian.obedient = False
    rig.start(stop=StopPolicy(grace=10.0))
    rig.run_on_loop(rig.program.stop)
    rig.advance(9.0, parked=2)
    rig.run_on_loop(lambda: rig.program.stop(StopPolicy(grace=50.0)))
    rig.advance(1.0, parked=0)
    assert 137 == rig.code()


def test_more_time_that_a_stopping_program_asks_for_holds_for_both_stops(rig: ProgramRig) -> None:
    rig.guardian.obedient = False
    rig.start(stop=StopPolicy(grace=10.0))
    rig.run_on_loop(rig.program.stop, rig.program.stop)
    rig.run_on_loop(lambda: rig.program.handle_notice(Notice(pid=1001, extend_seconds=30.0)))
    rig.advance(29.9, parked=3)
    assert not rig.outcome.done()
    rig.advance(0.1, parked=0)
    assert 137 == rig.code()


def test_a_stop_after_a_kill_sends_nothing_and_waits_for_no_grace(rig: ProgramRig) -> None:
    rig.start()
    rig.run_on_loop(rig.program.kill, rig.program.stop)
    assert (137, []) == (rig.code(), rig.guardian.signals)


def test_a_stop_during_a_wait_ends_it_at_once_and_cleanly(rig: ProgramRig) -> None:
    """Nothing runs between two runs, so a stop finds nothing to end: exit code 0."""
    rig.start()
    rig.end(code=3)
    rig.run_on_loop(rig.program.stop)
    assert 0 == rig.code()
    assert ProgramState.STOPPED == rig.state()
    assert 1 == rig.program.record.starts


def test_a_stop_during_a_start_stops_what_was_started(rig: ProgramRig) -> None:
    rig.guardian.gate = asyncio.Event()
    rig.start()
    assert ProgramState.STARTING == rig.state()
    rig.run_on_loop(rig.program.stop)
    rig.run_on_loop(rig.guardian.gate.set)
    assert 143 == rig.code()
    assert ["program_started", "program_stopping", "shutdown_complete"] == rig.observer.names()


def test_a_stop_during_a_later_start_that_fails_is_a_complete_shutdown(rig: ProgramRig) -> None:
    rig.start()
    rig.end(code=1)
    rig.guardian.gate = asyncio.Event()
    rig.guardian.faults = [SpawnError("gone")]
    rig.advance(1.0, parked=0)
    rig.run_on_loop(rig.program.stop)
    rig.run_on_loop(rig.guardian.gate.set)
    assert 1 == rig.code()
    assert "shutdown_complete" == rig.verdicts[-1]


def test_a_signal_is_passed_on_while_it_runs_and_passed_over_while_it_does_not(
    rig: ProgramRig,
) -> None:
    rig.start()
    rig.run_on_loop(lambda: rig.program.signal(signal.SIGUSR1))
    rig.end(code=1)
    rig.run_on_loop(lambda: rig.program.signal(signal.SIGUSR2))
    assert [signal.SIGUSR1] == rig.guardian.signals


# --- health ---------------------------------------------------------------------------------------


def test_the_first_question_comes_after_the_start_grace_and_then_one_each_interval(
    rig: ProgramRig,
) -> None:
    rig.start(probes=PROBES)
    rig.advance(9.9, parked=2)
    assert 0 == FakeCheck.asked
    rig.advance(0.1, parked=2)
    assert 1 == FakeCheck.asked
    rig.advance(29.9, parked=2)
    assert 1 == FakeCheck.asked
    rig.advance(0.1, parked=2)
    assert 2 == FakeCheck.asked


def test_three_failures_in_a_row_end_the_run_and_it_is_started_again(rig: ProgramRig) -> None:
    FakeCheck.reason = "status 503"
    rig.start(probes=PROBES)
    rig.advance(10.0, parked=2)
    rig.advance(30.0, parked=2)
    assert ProgramState.UP == rig.state()
    rig.advance(30.0)
    assert ["health_check_restart"] == rig.verdicts
    assert [(1, 3), (2, 3), (3, 3)] == [
        (event.failures, event.threshold) for event in rig.observer.of(HealthCheckFailed)
    ]
    assert [1.0] == rig.waits
    assert signal.SIGTERM == rig.guardian.signals[0]
    rig.advance(1.0, parked=2)
    assert ProgramState.UP == rig.state()


def test_a_check_that_passes_between_failures_clears_them(rig: ProgramRig) -> None:
    rig.start(probes=PROBES)
    rig.advance(1.0, parked=2)
    for reason, parked in (("sick", 2), ("sick", 1), (None, 1), ("sick", 1), ("sick", 1)):
        FakeCheck.reason = reason
        rig.advance(30.0, parked=parked)
    assert [1, 2, 1, 2] == [event.failures for event in rig.observer.of(HealthCheckFailed)]
    assert 1 == len(rig.observer.of(HealthCheckPassed))
    assert ProgramState.UP == rig.state()


def test_the_failures_of_one_start_do_not_count_for_the_next(rig: ProgramRig) -> None:
    FakeCheck.reason = "sick"
    rig.start(probes=PROBES)
    for _ in range(2):
        rig.advance(45.0, parked=2)
        assert 2 == rig.observer.of(HealthCheckFailed)[-1].failures
        rig.end(code=1)
        rig.advance(rig.waits[-1], parked=2)
    assert [1, 2, 1, 2] == [event.failures for event in rig.observer.of(HealthCheckFailed)]
    assert ["unexpected_exit"] * 2 == rig.verdicts


def test_no_question_is_asked_between_two_runs(rig: ProgramRig) -> None:
    rig.start(probes=PROBES, backoff=BackoffPolicy(initial=1000.0, cap=1000.0))
    rig.end(code=1)
    rig.advance(999.0)
    assert 0 == FakeCheck.asked


def hang(rig: ProgramRig, *, last: bool = False) -> None:
    """One run that is ended because it is sick; a wait follows, unless it is the last."""
    FakeCheck.reason = "no full answer in 5 s"
    former = len(rig.verdicts)
    rig.advance(70.0, parked=0 if last else 1)
    assert ["health_check_restart"] == rig.verdicts[former:]


def test_five_runs_in_a_row_that_hang_trip_the_breaker_however_slow_they_are(
    rig: ProgramRig,
) -> None:
    rig.start(probes=PROBES)
    for _ in range(4):
        hang(rig)
        rig.advance(rig.waits[-1], parked=2)
    hang(rig, last=True)
    assert 100 == rig.code()
    assert [1.0, 2.0, 4.0, 8.0] == rig.waits
    assert ["5 runs in a row ended by failed health checks"] == [
        event.reason for event in rig.observer.of(CircuitBreakerTripped)
    ]


def test_a_stable_run_in_between_forgives_the_hangs(rig: ProgramRig) -> None:
    rig.start(probes=PROBES)
    for _ in range(2):
        for _ in range(4):
            hang(rig)
            rig.advance(rig.waits[-1], parked=2)
        FakeCheck.reason = None
        rig.advance(70.0)
        rig.end(code=1)
        assert 1.0 == rig.waits[-1]
        rig.advance(1.0, parked=2)
    assert 2 == len(rig.observer.of(ProgramStable))
    assert not rig.outcome.done()


def test_a_checked_program_is_stable_only_when_it_is_found_healthy_after_its_time(
    rig: ProgramRig,
) -> None:
    rig.start(probes=PROBES)
    rig.advance(45.0, parked=2)
    FakeCheck.reason = "sick"
    rig.advance(40.0)
    assert [] == rig.observer.of(ProgramStable)
    FakeCheck.reason = None
    rig.advance(15.0)
    assert [100.0] == [event.lasted for event in rig.observer.of(ProgramStable)]


def test_a_sick_program_that_is_told_to_stop_meanwhile_is_not_started_again(
    rig: ProgramRig,
) -> None:
    FakeCheck.reason = "sick"
    rig.guardian.obedient = False
    rig.start(probes=PROBES, stop=StopPolicy(grace=50.0))
    rig.advance(70.0)
    rig.run_on_loop(rig.program.kill)
    assert 137 == rig.code()
    assert ["shutdown_complete"] == rig.verdicts


# --- broken, and back -----------------------------------------------------------------------------

FRAGILE = BreakerPolicy(tolerated=0, window=60.0, cooldown=300.0)


def test_a_program_that_is_not_critical_stays_broken_for_the_cool_down_and_then_gets_one_trial(
    rig: ProgramRig,
) -> None:
    rig.start(critical=False, breaker=FRAGILE)
    rig.end(code=1)
    assert ProgramState.BROKEN == rig.state()
    rig.advance(299.0)
    assert ProgramState.BROKEN == rig.state()
    rig.advance(1.0)
    assert ProgramState.UP == rig.state()
    rig.end(code=1)
    assert ProgramState.BROKEN == rig.state()
    assert ["1 failures in 60 s", "the trial failed"] == [
        event.reason for event in rig.observer.of(CircuitBreakerTripped)
    ]


def test_a_trial_that_is_stable_closes_the_breaker(rig: ProgramRig) -> None:
    rig.start(critical=False, breaker=FRAGILE)
    rig.end(code=1)
    rig.advance(300.0)
    rig.advance(60.0, parked=0)
    assert "" == rig.program.breaker.reason


def test_without_a_cool_down_only_a_reset_starts_it_again(rig: ProgramRig) -> None:
    rig.start(critical=False, breaker=BreakerPolicy(tolerated=0, cooldown=None))
    rig.end(code=1)
    rig.clock.advance(100_000.0, parked=0)
    rig.run_loop()
    assert ProgramState.BROKEN == rig.state()
    rig.run_on_loop(rig.program.reset)
    assert ProgramState.UP == rig.state()
    assert ("", 0) == (rig.program.breaker.reason, rig.program.backoff.failures)


def test_a_stop_while_it_is_broken_ends_its_life(rig: ProgramRig) -> None:
    rig.start(critical=False, breaker=FRAGILE)
    rig.end(code=7)
    rig.run_on_loop(rig.program.stop)
    assert 0 == rig.code()
    assert ProgramState.STOPPED == rig.state()


def test_a_stop_in_the_moment_of_the_trial_leaves_the_trial_to_the_next_life(
    rig: ProgramRig,
) -> None:
    rig.start(critical=False, breaker=FRAGILE)
    rig.end(code=1)

    def stop_when_it_is_granted() -> None:
        if rig.program.next_start == rig.clock.wall():
            rig.program.stop()

    rig.program._on_changed = stop_when_it_is_granted
    rig.advance(300.0, parked=0)
    assert 0 == rig.code()
    rig.program._on_changed = lambda: None
    rig.outcome = rig.loop.spawn(rig.program.keep_up())
    rig.run_loop()
    assert ProgramState.UP == rig.state()


def test_a_trial_that_fails_after_its_cool_down_was_taken_away_breaks_it_all_the_same(
    rig: ProgramRig,
) -> None:
    rig.start(critical=False, breaker=FRAGILE)
    rig.end(code=1)
    rig.advance(300.0)
    rig.run_on_loop(
        lambda: rig.program.apply_plan(
            replace(rig.program.plan, breaker=replace(FRAGILE, cooldown=None))
        )
    )
    rig.end(code=1)
    assert ProgramState.BROKEN == rig.state()


def test_a_reset_ends_a_wait_for_the_next_start(rig: ProgramRig) -> None:
    rig.start()
    rig.end(code=1)
    rig.run_on_loop(rig.program.reset)
    assert ProgramState.UP == rig.state()


# --- memory ---------------------------------------------------------------------------------------


def test_what_one_program_remembers_another_goes_on_with(rig: ProgramRig) -> None:
    rig.start(critical=False, breaker=FRAGILE)
    rig.end(code=1)
    left = rig.program.record
    assert (1, 0, "exit 1", "unexpected_exit") == (
        left.starts,
        left.restarts,
        *(left.last_end or ())[:2],
    )
    later = ProgramRig(rig.loop)
    later.clock.advance(10.0, parked=0)
    later.start(critical=False, breaker=FRAGILE, memory=ProgramRecord.from_dict(left.to_dict()))
    assert ProgramState.BROKEN == later.state()
    later.advance(300.0)
    assert ProgramState.UP == later.state()


def test_restarts_are_counted_and_their_moments_kept(rig: ProgramRig) -> None:
    rig.start()
    began = rig.clock.wall()
    for wait in (1.0, 2.0):
        rig.end(code=1)
        rig.advance(wait)
    memory = rig.program.record
    assert (3, 2, [began + 1.0, began + 3.0]) == (memory.starts, memory.restarts, memory.history)


# --- one life after another, and ready ------------------------------------------------------------


def test_a_life_that_was_stopped_can_be_lived_again(rig: ProgramRig) -> None:
    rig.start()
    rig.run_on_loop(lambda: rig.program.stop(shutting_down=False))
    assert (143, ["stopped"]) == (rig.code(), rig.verdicts)
    rig.outcome = rig.loop.spawn(rig.program.keep_up())
    rig.run_loop()
    assert ProgramState.UP == rig.state()


def test_it_is_pending_until_its_gate_opens(rig: ProgramRig) -> None:
    gate = asyncio.Event()

    async def wait_for_gate() -> None:
        await gate.wait()

    rig.start(gate=wait_for_gate)
    assert ProgramState.PENDING == rig.state()
    rig.run_on_loop(gate.set)
    assert ProgramState.UP == rig.state()


def test_a_stop_while_it_is_pending_means_it_never_runs(rig: ProgramRig) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    rig.start(gate=never)
    rig.run_on_loop(rig.program.stop)
    assert (143, ProgramState.STOPPED, None) == (rig.code(), rig.state(), rig.guardian.latest)


def ready(rig: ProgramRig) -> bool:
    assert rig.program.run is not None
    return rig.program.run.ready


def test_an_unchecked_program_is_ready_when_it_is_up_and_not_while_it_is_stopped(
    rig: ProgramRig,
) -> None:
    rig.guardian.obedient = False
    rig.start()
    assert ready(rig)
    rig.run_on_loop(rig.program.stop)
    assert not ready(rig)


def test_a_checked_program_is_ready_once_it_was_healthy(rig: ProgramRig) -> None:
    rig.start(probes=PROBES)
    assert not ready(rig)
    rig.advance(10.0, parked=2)
    assert ready(rig)


def test_a_program_that_notifies_is_ready_when_it_says_so(rig: ProgramRig) -> None:
    rig.start(readiness=Readiness.NOTIFY)
    assert not ready(rig)
    rig.run_on_loop(lambda: rig.program.handle_notice(Notice(pid=1001, ready=True)))
    assert ready(rig)


def test_a_program_that_is_not_ready_in_time_is_started_again(rig: ProgramRig) -> None:
    rig.start(readiness=Readiness.NOTIFY, ready_timeout=20.0)
    rig.advance(20.0)
    assert ["health_check_restart"] == rig.verdicts


def test_a_program_that_asks_for_more_time_gets_it(rig: ProgramRig) -> None:
    rig.start(readiness=Readiness.NOTIFY, ready_timeout=20.0)
    rig.advance(15.0, parked=2)
    rig.run_on_loop(lambda: rig.program.handle_notice(Notice(pid=1001, extend_seconds=30.0)))
    rig.advance(10.0, parked=2)
    assert [] == rig.verdicts
    rig.advance(20.0, parked=1)
    assert ["health_check_restart"] == rig.verdicts


def test_a_program_that_pulls_the_trigger_is_started_again_and_that_is_told(
    rig: ProgramRig,
) -> None:
    rig.start()
    rig.run_on_loop(lambda: rig.program.handle_notice(Notice(pid=1001, trigger=True)))
    [ended] = rig.observer.of(ProgramEnded)
    assert ("health_check_restart", "it sent WATCHDOG=trigger") == (ended.verdict, ended.detail)


def test_what_a_quick_program_says_before_its_start_is_told_is_heard(rig: ProgramRig) -> None:
    rig.guardian.gate = asyncio.Event()
    rig.start(readiness=Readiness.NOTIFY)
    rig.run_on_loop(lambda: rig.program.handle_notice(Notice(pid=1001, ready=True, status="quick")))
    rig.run_on_loop(rig.guardian.gate.set)
    assert ready(rig)
    assert rig.program.run is not None
    assert "quick" == rig.program.run.status_text


def test_ready_ends_the_time_that_a_start_was_given(rig: ProgramRig) -> None:
    FakeCheck.reason = "sick"
    rig.start(probes=PROBES)
    rig.run_on_loop(
        lambda: rig.program.handle_notice(Notice(pid=1001, extend_seconds=600.0)),
        lambda: rig.program.handle_notice(Notice(pid=1001, ready=True)),
    )
    rig.advance(10.0, parked=2)
    assert 1 == len(rig.observer.of(HealthCheckFailed))


def test_a_program_that_says_it_is_leaving_is_not_ready_any_more(rig: ProgramRig) -> None:
    rig.start()
    rig.run_on_loop(
        lambda: rig.program.handle_notice(Notice(pid=1001, stopping=True, status="closing"))
    )
    assert rig.program.run is not None
    assert (False, "closing") == (rig.program.run.ready, rig.program.run.status_text)


def test_another_plan_is_followed_with_what_is_remembered(rig: ProgramRig) -> None:
    rig.start()
    rig.end(code=1)
    rig.run_on_loop(
        lambda: rig.program.apply_plan(
            replace(rig.program.plan, backoff=BackoffPolicy(initial=5.0))
        )
    )
    rig.advance(1.0)
    rig.end(code=1)
    assert [1.0, 10.0] == rig.waits


# --- worker processes ---

JOINED = EndFacts(has_joined=True, has_finished=False)
EXCUSED = replace(JOINED, is_exempt=True)


class FakeJudge:
    """Says what the test has set; raises it if that is an error."""

    def __init__(self, answer: EndFacts | Exception | None) -> None:
        self.answer = answer
        self.pids: list[int] = []

    def end_facts(self, plan: ProgramPlan, pid: int) -> EndFacts | None:
        assert plan.kind is ProgramKind.WORKER
        self.pids.append(pid)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def end_and_restart(rig: ProgramRig, status: int) -> None:
    """End the process with this wait status; the next one is up without a wait."""
    starts = rig.program.record.starts
    rig.run_on_loop(lambda: rig.guardian.end(status))
    if rig.state() is ProgramState.WAITING:
        rig.advance(0.0)
    assert (ProgramState.UP, starts + 1) == (rig.state(), rig.program.record.starts)


def test_exempt_deaths_of_a_worker_feed_neither_breaker_nor_backoff(rig: ProgramRig) -> None:
    """Twenty of them, without a moment between them; then one that is not exempt backs off for
    the first time.
    """
    judge = FakeJudge(EXCUSED)
    rig.start(kind=ProgramKind.WORKER, judge=judge)
    for _ in range(20):
        end_and_restart(rig, signal.SIGKILL)
    assert [0.0] * 20 == rig.waits
    judge.answer = JOINED
    rig.end(signum=signal.SIGKILL)
    assert [1.0] == rig.waits[20:]
    assert [] == rig.observer.of(CircuitBreakerTripped)


def test_a_worker_that_ends_unasked_is_replaced_and_one_that_has_finished_is_not(
    rig: ProgramRig,
) -> None:
    judge = FakeJudge(JOINED)
    rig.start(kind=ProgramKind.WORKER, judge=judge, backoff=BackoffPolicy(initial=0.0))
    for status in (0, 2 << 8, 100 << 8, signal.SIGTERM):
        end_and_restart(rig, status)
    judge.answer = replace(JOINED, has_finished=True)
    rig.end()
    assert 0 == rig.code()
    assert 5 == len({*judge.pids})


def test_without_facts_the_exit_table_decides_and_an_error_of_the_judge_is_emitted(
    rig: ProgramRig,
) -> None:
    rig.start(kind=ProgramKind.WORKER, judge=FakeJudge(OSError("gone")))
    rig.end()
    assert 0 == rig.code()
    [failed] = rig.observer.of(EndJudgeFailed)
    assert "gone" in failed.error


def test_only_workers_are_asked_about(rig: ProgramRig) -> None:
    rig.start(judge=FakeJudge(EXCUSED))
    rig.end()
    assert 0 == rig.code()
