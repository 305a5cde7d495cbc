from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.core.events import (
    CircuitBreakerTripped,
    Events,
    HealthCheckFailed,
    HealthCheckPassed,
    ProgramEnded,
    ProgramStable,
    ProgramStarted,
    ProgramStopping,
    RestartScheduled,
)
from longwatch.errors import GuardianLostError, SpawnError
from longwatch.host.children import Guardian
from longwatch.host.guardian.wire import Message
from longwatch.host.loop import LoopThread
from longwatch.host.process import Child, ProcessSpec, StopPolicy
from longwatch.supervisor import run as module
from longwatch.supervisor.conditions import Readiness
from longwatch.supervisor.decision import Restart, RestartPolicy
from longwatch.supervisor.healthcheck import Checker
from longwatch.supervisor.lifecycle import State
from longwatch.supervisor.memory import Memory
from longwatch.supervisor.notify import Notice
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.probes import HealthPolicy, HttpProbe
from longwatch.supervisor.program import Gate, Program
from longwatch.testing import FakeClock, RecordingObserver

PATIENCE = 10.0
HEALTH = HealthPolicy(probe=HttpProbe(port=1), interval=30.0, failures=3, start_grace=10.0)


class FakeGuardian(Guardian):
    """Has no process: its children are real `Child` objects that end when the test says so, or
    when they are signalled.
    """

    def __init__(self, loop: LoopThread, clock: FakeClock) -> None:
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
        self.latest.tell({"event": "spawned", "pid": 1000 + self.latest.number})
        return self.latest

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        if message["op"] == "signal":
            self.signals.append(message["signal"])
            if message["signal"] == signal.SIGKILL or (
                self.obedient and message["signal"] == signal.SIGTERM
            ):
                self.end(message["signal"])
        elif self.latest is not None and message["op"] == "kill":
            self.end(signal.SIGKILL)
            if not self.latest._cleared.done():
                self.latest.tell({"event": "cleared", "killed": 0, "survivors": 0})

    def end(self, status: int) -> None:
        """The leader ends with this wait status: a signal's number, or an exit code × 256."""
        assert self.latest is not None
        if not self.latest._ended.done():
            self.latest.tell({"event": "ended", "status": status, "cpu": 0.0, "max_rss": 0})
            if self.latest._stopping:
                self.latest.tell({"event": "cleared", "killed": 0, "survivors": 0})


class FakeCheck(Checker):
    """Answers what the test has set."""

    reason: str | None = None
    asked = 0

    async def ask(self) -> str | None:
        FakeCheck.asked += 1
        return FakeCheck.reason


class Stage:
    """A program that never runs, and the test's hand on its clock and its guardian."""

    def __init__(self, loop: LoopThread) -> None:
        self.loop = loop
        self.clock = FakeClock()
        self.heard = RecordingObserver()
        self.guardian = FakeGuardian(loop, self.clock)
        self.program: Program
        self.outcome: Future[int]

    def begin(
        self, *, gate: Gate | None = None, memory: Memory | None = None, **plan: object
    ) -> None:
        """Start to live; returns when it waits for something."""
        spec = ProcessSpec(argv=["/bin/app", "-v"], env={})
        whole = ProgramPlan(name="app", process=spec, **{"critical": True, **plan})  # type: ignore[arg-type]
        self.program = Program(
            whole,
            guardian=self.guardian,
            clock=self.clock,
            events=Events(self.heard),
            memory=memory,
            strict=True,
        )
        self.outcome = self.loop.spawn(self.program.live(gate) if gate else self.program.live())
        self.settle()

    def settle(self) -> None:
        """Let everything that is ready on the loop happen."""

        async def idle() -> None:
            for _ in range(30):
                await asyncio.sleep(0)

        self.loop.call(idle(), timeout=PATIENCE)

    def do(self, *acts: Callable[[], object]) -> None:
        """Act on the loop, all at one moment, and let happen what follows."""

        async def acted() -> None:
            for act in acts:
                act()

        self.loop.call(acted(), timeout=PATIENCE)
        self.settle()

    def advance(self, seconds: float, *, parked: int = 1) -> None:
        self.clock.advance(seconds, parked=parked)
        self.settle()

    def end(self, *, code: int = 0, signum: int = 0) -> None:
        self.do(lambda: self.guardian.end(signum or code << 8))

    def code(self) -> int:
        return self.outcome.result(PATIENCE)

    def state(self) -> State:
        return self.program.state

    @property
    def waits(self) -> list[float]:
        return [event.delay for event in self.heard.of(RestartScheduled)]

    @property
    def verdicts(self) -> list[str]:
        return [event.verdict for event in self.heard.of(ProgramEnded)]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(module, "Checker", FakeCheck)
    monkeypatch.setattr(FakeCheck, "reason", None)
    monkeypatch.setattr(FakeCheck, "asked", 0)
    with LoopThread() as loop:
        yield Stage(loop)


# --- starts, ends and waits -----------------------------------------------------------------------


def test_a_start_is_told_with_its_pid_its_command_and_its_number(stage: Stage) -> None:
    stage.begin()
    assert [
        ProgramStarted(program="app", pid=1001, command=("/bin/app", "-v"), start=1)
    ] == stage.heard.events
    assert State.UP == stage.state()


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
    stage: Stage, status: int, code: int, verdict: str
) -> None:
    stage.begin()
    stage.do(lambda: stage.guardian.end(status))
    assert code == stage.code()
    assert [verdict] == stage.verdicts
    assert State.ENDED == stage.state()
    assert [] == stage.waits


def test_a_program_that_is_never_restarted_gives_its_failure_on(stage: Stage) -> None:
    stage.begin(restart=RestartPolicy(restart=Restart.NEVER))
    stage.end(signum=signal.SIGSEGV)
    assert 139 == stage.code()


def test_fast_crashes_wait_1_2_4_8_16_and_the_sixth_trips_the_breaker(stage: Stage) -> None:
    stage.begin()
    for wait in (1.0, 2.0, 4.0, 8.0, 16.0):
        stage.end(code=1)
        assert State.WAITING == stage.state()
        assert wait == stage.waits[-1]
        stage.advance(wait)
        assert State.UP == stage.state()
    stage.end(code=1)
    assert 100 == stage.code()
    assert [1.0, 2.0, 4.0, 8.0, 16.0] == stage.waits
    assert State.BROKEN == stage.state()
    assert [
        CircuitBreakerTripped(program="app", restarts=5, window=60.0, reason="6 failures in 60 s")
    ] == stage.heard.of(CircuitBreakerTripped)
    assert 6 == stage.program.memory.starts


def test_the_wait_is_over_when_its_time_has_come_and_not_before(stage: Stage) -> None:
    stage.begin()
    stage.end(code=1)
    stage.advance(0.999)
    assert State.WAITING == stage.state()
    stage.advance(0.001)
    assert State.UP == stage.state()


def test_the_waits_are_told_with_the_failures_so_far(stage: Stage) -> None:
    stage.begin()
    for wait in (1.0, 2.0):
        stage.end(code=1)
        stage.advance(wait)
    told = [
        (event.failures, event.restarts_in_window) for event in stage.heard.of(RestartScheduled)
    ]
    assert [(1, 1), (2, 2)] == told


def test_crashes_that_are_far_apart_never_trip_the_breaker(stage: Stage) -> None:
    stage.begin(
        breaker=BreakerPolicy(tolerated=2, window=10.0),
        backoff=BackoffPolicy(initial=6.0, factor=1.0),
    )
    for _ in range(10):
        stage.end(code=1)
        stage.advance(6.0)
    assert [] == stage.heard.of(CircuitBreakerTripped)
    assert [6.0] * 10 == stage.waits


def test_a_breaker_that_tolerates_nothing_trips_at_the_first_failure_and_says_why(
    stage: Stage,
) -> None:
    stage.begin(breaker=BreakerPolicy(tolerated=0))
    stage.end(code=1)
    assert 100 == stage.code()
    assert ["1 failures in 60 s"] == [
        event.reason for event in stage.heard.of(CircuitBreakerTripped)
    ]


def test_a_stable_run_is_told_once_and_starts_the_waits_and_the_breaker_anew(stage: Stage) -> None:
    stage.begin()
    for wait in (1.0, 2.0, 4.0):
        stage.end(code=1)
        stage.advance(wait)
    stage.advance(60.0, parked=0)
    assert [ProgramStable(program="app", pid=1004, lasted=60.0)] == stage.heard.of(ProgramStable)
    assert () == stage.program.breaker.events
    stage.advance(500.0, parked=0)
    assert 1 == len(stage.heard.of(ProgramStable))
    stage.end(code=1)
    assert 1.0 == stage.waits[-1]


def test_a_run_that_ends_just_before_it_is_stable_counts_like_any_other(stage: Stage) -> None:
    stage.begin()
    stage.end(code=1)
    stage.advance(1.0)
    stage.advance(59.9)
    stage.end(code=1)
    assert [1.0, 2.0] == stage.waits


def test_the_end_of_a_run_is_told_with_how_long_it_lasted_and_how_it_ended(stage: Stage) -> None:
    stage.begin()
    stage.advance(12.5)
    stage.end(signum=signal.SIGSEGV)
    [ended] = stage.heard.of(ProgramEnded)
    assert (1001, "signal 11", 12.5, True) == (
        ended.pid,
        str(ended.cause),
        ended.lasted,
        ended.restart,
    )


# --- starts that fail -----------------------------------------------------------------------------


def test_a_first_start_that_fails_raises_and_is_not_tried_again(stage: Stage) -> None:
    stage.guardian.faults = [SpawnError("cannot execute '/bin/app'", errno=2)]
    stage.begin()
    with pytest.raises(SpawnError, match="cannot execute"):
        stage.code()
    assert [] == stage.heard.events


def test_a_later_start_that_fails_is_a_failure_like_a_crash(stage: Stage) -> None:
    stage.guardian.faults = [None, SpawnError("cannot execute '/bin/app'", errno=26)]
    stage.begin()
    stage.end(code=1)
    stage.advance(1.0)
    assert ["unexpected_exit", "spawn_error"] == stage.verdicts
    last = stage.heard.of(ProgramEnded)[-1]
    assert (None, "cannot execute '/bin/app'", 0.0) == (last.pid, last.detail, last.lasted)
    stage.advance(2.0)
    assert State.UP == stage.state()
    assert 3 == stage.program.memory.starts


def test_starts_that_go_on_failing_trip_the_breaker(stage: Stage) -> None:
    stage.guardian.faults = [None, *(SpawnError("gone") for _ in range(5))]
    stage.begin()
    stage.end(code=1)
    stage.advance(31.0, parked=0)
    assert 100 == stage.code()
    assert ["unexpected_exit", *["spawn_error"] * 5] == stage.verdicts


def test_a_lost_guardian_ends_the_life_of_the_program(stage: Stage) -> None:
    stage.begin()
    child = stage.guardian.latest
    assert child is not None
    stage.do(lambda: child.lose(GuardianLostError("the guardian died")))
    with pytest.raises(GuardianLostError):
        stage.code()


# --- stopping -------------------------------------------------------------------------------------


def test_a_stop_before_the_start_means_it_never_runs_and_gives_the_code_of_the_signal(
    stage: Stage,
) -> None:
    stage.program = Program(
        ProgramPlan(name="app", process=ProcessSpec(argv=["x"], env={})),
        guardian=stage.guardian,
        clock=stage.clock,
        events=Events(stage.heard),
    )
    stage.do(stage.program.stop)
    assert 143 == stage.loop.call(stage.program.live(), timeout=PATIENCE)
    assert (None, []) == (stage.guardian.latest, stage.heard.events)


def test_a_stop_signals_and_the_end_is_a_complete_shutdown(stage: Stage) -> None:
    stage.begin(stop=StopPolicy(signal=signal.SIGTERM, grace=7.0))
    stage.do(stage.program.stop)
    assert 143 == stage.code()
    assert [ProgramStopping(program="app", pid=1001, signal=15, grace=7.0)] == stage.heard.of(
        ProgramStopping
    )
    assert ["shutdown_complete"] == stage.verdicts
    assert [signal.SIGTERM, signal.SIGCONT] == stage.guardian.signals
    assert State.STOPPED == stage.state()


def test_a_program_that_ignores_the_signal_is_killed_after_its_grace(stage: Stage) -> None:
    stage.guardian.obedient = False
    stage.begin(stop=StopPolicy(grace=7.0))
    stage.do(stage.program.stop)
    assert State.STOPPING == stage.state()
    stage.advance(6.9, parked=2)
    assert not stage.outcome.done()
    stage.advance(0.1, parked=0)
    assert 137 == stage.code()


def test_a_kill_hastens_a_stop(stage: Stage) -> None:
    stage.guardian.obedient = False
    stage.begin()
    stage.do(stage.program.stop)
    assert not stage.outcome.done()
    stage.do(stage.program.kill)
    assert 137 == stage.code()
    assert ["shutdown_complete"] == stage.verdicts


def test_a_stop_and_a_kill_at_the_same_moment_are_a_kill(stage: Stage) -> None:
    stage.guardian.obedient = False
    stage.begin()
    stage.do(stage.program.stop, stage.program.kill)
    assert 137 == stage.code()


def test_a_stop_during_a_wait_ends_it_at_once_with_the_code_of_the_last_run(stage: Stage) -> None:
    stage.begin()
    stage.end(code=3)
    stage.do(stage.program.stop)
    assert 3 == stage.code()
    assert State.STOPPED == stage.state()
    assert 1 == stage.program.memory.starts


def test_a_stop_during_a_start_stops_what_was_started(stage: Stage) -> None:
    stage.guardian.gate = asyncio.Event()
    stage.begin()
    assert State.STARTING == stage.state()
    stage.do(stage.program.stop)
    stage.do(stage.guardian.gate.set)
    assert 143 == stage.code()
    assert ["program_started", "program_stopping", "shutdown_complete"] == stage.heard.names()


def test_a_stop_during_a_later_start_that_fails_is_a_complete_shutdown(stage: Stage) -> None:
    stage.begin()
    stage.end(code=1)
    stage.guardian.gate = asyncio.Event()
    stage.guardian.faults = [SpawnError("gone")]
    stage.advance(1.0, parked=0)
    stage.do(stage.program.stop)
    stage.do(stage.guardian.gate.set)
    assert 1 == stage.code()
    assert "shutdown_complete" == stage.verdicts[-1]


def test_a_signal_is_passed_on_while_it_runs_and_passed_over_while_it_does_not(
    stage: Stage,
) -> None:
    stage.begin()
    stage.do(lambda: stage.program.signal(signal.SIGUSR1))
    stage.end(code=1)
    stage.do(lambda: stage.program.signal(signal.SIGUSR2))
    assert [signal.SIGUSR1] == stage.guardian.signals


# --- health ---------------------------------------------------------------------------------------


def test_the_first_question_comes_after_the_start_grace_and_then_one_each_interval(
    stage: Stage,
) -> None:
    stage.begin(health=HEALTH)
    stage.advance(9.9, parked=2)
    assert 0 == FakeCheck.asked
    stage.advance(0.1, parked=2)
    assert 1 == FakeCheck.asked
    stage.advance(29.9, parked=2)
    assert 1 == FakeCheck.asked
    stage.advance(0.1, parked=2)
    assert 2 == FakeCheck.asked


def test_three_failures_in_a_row_end_the_run_and_it_is_started_again(stage: Stage) -> None:
    FakeCheck.reason = "status 503"
    stage.begin(health=HEALTH)
    stage.advance(10.0, parked=2)
    stage.advance(30.0, parked=2)
    assert State.UP == stage.state()
    stage.advance(30.0)
    assert ["health_check_restart"] == stage.verdicts
    assert [(1, 3), (2, 3), (3, 3)] == [
        (event.failures, event.allowed) for event in stage.heard.of(HealthCheckFailed)
    ]
    assert [1.0] == stage.waits
    assert signal.SIGTERM == stage.guardian.signals[0]
    stage.advance(1.0, parked=2)
    assert State.UP == stage.state()


def test_a_check_that_passes_between_failures_clears_them(stage: Stage) -> None:
    stage.begin(health=HEALTH)
    stage.advance(1.0, parked=2)
    for reason, parked in (("sick", 2), ("sick", 1), (None, 1), ("sick", 1), ("sick", 1)):
        FakeCheck.reason = reason
        stage.advance(30.0, parked=parked)
    assert [1, 2, 1, 2] == [event.failures for event in stage.heard.of(HealthCheckFailed)]
    assert 1 == len(stage.heard.of(HealthCheckPassed))
    assert State.UP == stage.state()


def test_the_failures_of_one_start_do_not_count_for_the_next(stage: Stage) -> None:
    FakeCheck.reason = "sick"
    stage.begin(health=HEALTH)
    for _ in range(2):
        stage.advance(45.0, parked=2)
        assert 2 == stage.heard.of(HealthCheckFailed)[-1].failures
        stage.end(code=1)
        stage.advance(stage.waits[-1], parked=2)
    assert [1, 2, 1, 2] == [event.failures for event in stage.heard.of(HealthCheckFailed)]
    assert ["unexpected_exit"] * 2 == stage.verdicts


def test_no_question_is_asked_between_two_runs(stage: Stage) -> None:
    stage.begin(health=HEALTH, backoff=BackoffPolicy(initial=1000.0, cap=1000.0))
    stage.end(code=1)
    stage.advance(999.0)
    assert 0 == FakeCheck.asked


def hang(stage: Stage, *, last: bool = False) -> None:
    """One run that is ended because it is sick; a wait follows, unless it is the last."""
    FakeCheck.reason = "no full answer in 5 s"
    former = len(stage.verdicts)
    stage.advance(70.0, parked=0 if last else 1)
    assert ["health_check_restart"] == stage.verdicts[former:]


def test_five_runs_in_a_row_that_hang_trip_the_breaker_however_slow_they_are(stage: Stage) -> None:
    stage.begin(health=HEALTH)
    for _ in range(4):
        hang(stage)
        stage.advance(stage.waits[-1], parked=2)
    hang(stage, last=True)
    assert 100 == stage.code()
    assert [1.0, 2.0, 4.0, 8.0] == stage.waits
    assert ["5 runs in a row ended by failed health checks"] == [
        event.reason for event in stage.heard.of(CircuitBreakerTripped)
    ]


def test_a_stable_run_in_between_forgives_the_hangs(stage: Stage) -> None:
    stage.begin(health=HEALTH)
    for _ in range(2):
        for _ in range(4):
            hang(stage)
            stage.advance(stage.waits[-1], parked=2)
        FakeCheck.reason = None
        stage.advance(70.0)
        stage.end(code=1)
        assert 1.0 == stage.waits[-1]
        stage.advance(1.0, parked=2)
    assert 2 == len(stage.heard.of(ProgramStable))
    assert not stage.outcome.done()


def test_a_checked_program_is_stable_only_when_it_is_found_healthy_after_its_time(
    stage: Stage,
) -> None:
    stage.begin(health=HEALTH)
    stage.advance(45.0, parked=2)
    FakeCheck.reason = "sick"
    stage.advance(40.0)
    assert [] == stage.heard.of(ProgramStable)
    FakeCheck.reason = None
    stage.advance(15.0)
    assert [100.0] == [event.lasted for event in stage.heard.of(ProgramStable)]


def test_a_sick_program_that_is_told_to_stop_meanwhile_is_not_started_again(stage: Stage) -> None:
    FakeCheck.reason = "sick"
    stage.guardian.obedient = False
    stage.begin(health=HEALTH, stop=StopPolicy(grace=50.0))
    stage.advance(70.0)
    stage.do(stage.program.kill)
    assert 137 == stage.code()
    assert ["shutdown_complete"] == stage.verdicts


# --- broken, and back -----------------------------------------------------------------------------

FRAGILE = BreakerPolicy(tolerated=0, window=60.0, cooldown=300.0)


def test_a_program_that_is_not_critical_stays_broken_for_the_cool_down_and_then_gets_one_trial(
    stage: Stage,
) -> None:
    stage.begin(critical=False, breaker=FRAGILE)
    stage.end(code=1)
    assert State.BROKEN == stage.state()
    stage.advance(299.0)
    assert State.BROKEN == stage.state()
    stage.advance(1.0)
    assert State.UP == stage.state()
    stage.end(code=1)
    assert State.BROKEN == stage.state()
    assert ["1 failures in 60 s", "the trial failed"] == [
        event.reason for event in stage.heard.of(CircuitBreakerTripped)
    ]


def test_a_trial_that_is_stable_closes_the_breaker(stage: Stage) -> None:
    stage.begin(critical=False, breaker=FRAGILE)
    stage.end(code=1)
    stage.advance(300.0)
    stage.advance(60.0, parked=0)
    assert "" == stage.program.breaker.reason


def test_without_a_cool_down_only_a_reset_starts_it_again(stage: Stage) -> None:
    stage.begin(critical=False, breaker=BreakerPolicy(tolerated=0, cooldown=None))
    stage.end(code=1)
    stage.clock.advance(100_000.0, parked=0)
    stage.settle()
    assert State.BROKEN == stage.state()
    stage.do(stage.program.reset)
    assert State.UP == stage.state()
    assert ("", 0) == (stage.program.breaker.reason, stage.program.backoff.failures)


def test_a_stop_while_it_is_broken_ends_its_life(stage: Stage) -> None:
    stage.begin(critical=False, breaker=FRAGILE)
    stage.end(code=7)
    stage.do(stage.program.stop)
    assert 7 == stage.code()
    assert State.STOPPED == stage.state()


def test_a_stop_in_the_moment_of_the_trial_leaves_the_trial_to_the_next_life(stage: Stage) -> None:
    stage.begin(critical=False, breaker=FRAGILE)
    stage.end(code=1)

    def stop_when_it_is_granted() -> None:
        if stage.program.next_start == stage.clock.wall():
            stage.program.stop()

    stage.program._changed = stop_when_it_is_granted
    stage.advance(300.0, parked=0)
    assert 1 == stage.code()
    stage.program._changed = lambda: None
    stage.outcome = stage.loop.spawn(stage.program.live())
    stage.settle()
    assert State.UP == stage.state()


def test_a_trial_that_fails_after_its_cool_down_was_taken_away_breaks_it_all_the_same(
    stage: Stage,
) -> None:
    stage.begin(critical=False, breaker=FRAGILE)
    stage.end(code=1)
    stage.advance(300.0)
    stage.do(
        lambda: stage.program.follow(
            replace(stage.program.plan, breaker=replace(FRAGILE, cooldown=None))
        )
    )
    stage.end(code=1)
    assert State.BROKEN == stage.state()


def test_a_reset_ends_a_wait_for_the_next_start(stage: Stage) -> None:
    stage.begin()
    stage.end(code=1)
    stage.do(stage.program.reset)
    assert State.UP == stage.state()


# --- memory ---------------------------------------------------------------------------------------


def test_what_one_program_remembers_another_goes_on_with(stage: Stage) -> None:
    stage.begin(critical=False, breaker=FRAGILE)
    stage.end(code=1)
    left = stage.program.memory
    assert (1, 0, "exit 1", "unexpected_exit") == (
        left.starts,
        left.restarts,
        *(left.last_end or ())[:2],
    )
    later = Stage(stage.loop)
    later.clock.advance(10.0, parked=0)
    later.begin(critical=False, breaker=FRAGILE, memory=Memory.from_dict(left.to_dict()))
    assert State.BROKEN == later.state()
    later.advance(300.0)
    assert State.UP == later.state()


def test_restarts_are_counted_and_their_moments_kept(stage: Stage) -> None:
    stage.begin()
    began = stage.clock.wall()
    for wait in (1.0, 2.0):
        stage.end(code=1)
        stage.advance(wait)
    memory = stage.program.memory
    assert (3, 2, [began + 1.0, began + 3.0]) == (memory.starts, memory.restarts, memory.history)


# --- one life after another, and ready ------------------------------------------------------------


def test_a_life_that_was_stopped_can_be_lived_again(stage: Stage) -> None:
    stage.begin()
    stage.do(lambda: stage.program.stop(shutting_down=False))
    assert (143, ["stopped"]) == (stage.code(), stage.verdicts)
    stage.outcome = stage.loop.spawn(stage.program.live())
    stage.settle()
    assert State.UP == stage.state()


def test_it_is_pending_until_its_gate_opens(stage: Stage) -> None:
    gate = asyncio.Event()

    async def wait_for_gate() -> None:
        await gate.wait()

    stage.begin(gate=wait_for_gate)
    assert State.PENDING == stage.state()
    stage.do(gate.set)
    assert State.UP == stage.state()


def test_a_stop_while_it_is_pending_means_it_never_runs(stage: Stage) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    stage.begin(gate=never)
    stage.do(stage.program.stop)
    assert (143, State.STOPPED, None) == (stage.code(), stage.state(), stage.guardian.latest)


def ready(stage: Stage) -> bool:
    assert stage.program.run is not None
    return stage.program.run.ready


def test_an_unchecked_program_is_ready_when_it_is_up_and_not_while_it_is_stopped(
    stage: Stage,
) -> None:
    stage.guardian.obedient = False
    stage.begin()
    assert ready(stage)
    stage.do(stage.program.stop)
    assert not ready(stage)


def test_a_checked_program_is_ready_once_it_was_healthy(stage: Stage) -> None:
    stage.begin(health=HEALTH)
    assert not ready(stage)
    stage.advance(10.0, parked=2)
    assert ready(stage)


def test_a_program_that_notifies_is_ready_when_it_says_so(stage: Stage) -> None:
    stage.begin(readiness=Readiness.NOTIFY)
    assert not ready(stage)
    stage.do(lambda: stage.program.hear(Notice(pid=1001, ready=True)))
    assert ready(stage)


def test_a_program_that_is_not_ready_in_time_is_started_again(stage: Stage) -> None:
    stage.begin(readiness=Readiness.NOTIFY, ready_timeout=20.0)
    stage.advance(20.0)
    assert ["health_check_restart"] == stage.verdicts


def test_a_program_that_asks_for_more_time_gets_it(stage: Stage) -> None:
    stage.begin(readiness=Readiness.NOTIFY, ready_timeout=20.0)
    stage.advance(15.0, parked=2)
    stage.do(lambda: stage.program.hear(Notice(pid=1001, extend=30.0)))
    stage.advance(10.0, parked=2)
    assert [] == stage.verdicts
    stage.advance(20.0, parked=1)
    assert ["health_check_restart"] == stage.verdicts


def test_a_program_that_pulls_the_trigger_is_started_again_and_that_is_told(stage: Stage) -> None:
    stage.begin()
    stage.do(lambda: stage.program.hear(Notice(pid=1001, trigger=True)))
    [ended] = stage.heard.of(ProgramEnded)
    assert ("health_check_restart", "it said WATCHDOG=trigger") == (ended.verdict, ended.detail)


def test_what_a_quick_program_says_before_its_start_is_told_is_heard(stage: Stage) -> None:
    stage.guardian.gate = asyncio.Event()
    stage.begin(readiness=Readiness.NOTIFY)
    stage.do(lambda: stage.program.hear(Notice(pid=1001, ready=True, status="quick")))
    stage.do(stage.guardian.gate.set)
    assert ready(stage)
    assert stage.program.run is not None
    assert "quick" == stage.program.run.status_text


def test_ready_ends_the_time_that_a_start_was_given(stage: Stage) -> None:
    FakeCheck.reason = "sick"
    stage.begin(health=HEALTH)
    stage.do(
        lambda: stage.program.hear(Notice(pid=1001, extend=600.0)),
        lambda: stage.program.hear(Notice(pid=1001, ready=True)),
    )
    stage.advance(10.0, parked=2)
    assert 1 == len(stage.heard.of(HealthCheckFailed))


def test_a_program_that_says_it_is_leaving_is_not_ready_any_more(stage: Stage) -> None:
    stage.begin()
    stage.do(lambda: stage.program.hear(Notice(pid=1001, stopping=True, status="closing")))
    assert stage.program.run is not None
    assert (False, "closing") == (stage.program.run.ready, stage.program.run.status_text)


def test_another_plan_is_followed_with_what_is_remembered(stage: Stage) -> None:
    stage.begin()
    stage.end(code=1)
    stage.do(
        lambda: stage.program.follow(
            replace(stage.program.plan, backoff=BackoffPolicy(initial=5.0))
        )
    )
    stage.advance(1.0)
    stage.end(code=1)
    assert [1.0, 10.0] == stage.waits
