"""A container as a program: its life over a runtime in memory, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.events.base import Events
from longwatch.core.events.containers import (
    ContainerRestartPolicyConflict,
    ContainerRuntimeConnected,
    ContainerRuntimeUnavailable,
)
from longwatch.core.events.programs import (
    CircuitBreakerTripped,
    HealthCheckFailed,
    ProbingHeld,
    ProgramAdopted,
    ProgramEnded,
    ProgramLeftRunning,
    ProgramNotReady,
    ProgramReady,
    ProgramStarted,
    RestartScheduled,
)
from longwatch.host.loop import EventLoopThread
from longwatch.supervisor.containers.container_host import ContainerHost
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.containers.runtime import RuntimeAction
from longwatch.supervisor.dependencies import Condition
from longwatch.supervisor.lifecycle import ProgramState
from longwatch.supervisor.managed_program import ChangeSignal, ManagedProgram
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.probes import (
    CRASH_LOOP_BACKOFF,
    ProbePolicy,
    ProbeSet,
    ScriptProbe,
    StartupPolicy,
)
from longwatch.supervisor.program import Program
from longwatch.supervisor.program_record import ProgramRecord
from longwatch.supervisor.restart_policy import Restart, RestartPolicy
from longwatch.supervisor.target_factory import Streams, Targets
from longwatch.testing import FakeClock, FakeRuntime, RecordingObserver

T = TypeVar("T")

TIMEOUT = 10.0
SPEC = ContainerSpec(name="web", image="agent:1")
ALWAYS = RestartPolicy(restart=Restart.ALWAYS)
LIVE = ProbePolicy(probe=ScriptProbe(script="live.sh"), interval=1.0, failures=3, start_grace=0.0)
READY = ProbePolicy(probe=ScriptProbe(script="ready.sh"), interval=1.0, failures=2, start_grace=0.0)


class NoGuardian:
    async def spawn(self, spec: object) -> Any:
        raise AssertionError("containers start no process of the guardian")


class ContainerRig:
    """One container program, the runtime it lives in, and the test's hand on both."""

    def __init__(self, loop: EventLoopThread, *, docker: bool = False) -> None:
        self.loop = loop
        self.clock = FakeClock()
        self.observer = RecordingObserver()
        self.events = Events(self.observer)
        self.runtime = self.on_loop(lambda: FakeRuntime(self.clock, docker=docker))
        self.runtime.add_image("agent:1")
        self.record = ProgramRecord()
        self.script_results: dict[str, int] = {}
        self.probes: list[str] = []
        script = self.runtime.script("web")
        script.files = {"/code/live.sh", "/code/ready.sh"}
        script.on_exec = self._run_script
        self.program: Program
        self.host: ContainerHost
        self.outcome: Future[int]

    def _run_script(self, argv: Any, _cwd: str | None, _env: Any) -> int:
        name = argv[-1].removeprefix("./")
        self.probes.append(name)
        return self.script_results.get(name, 0)

    def on_loop(self, act: Callable[[], T]) -> T:
        async def acted() -> T:
            return act()

        return self.loop.call(acted(), timeout=TIMEOUT)

    def act(self, act: Callable[[], object]) -> None:
        self.on_loop(act)
        self.settle()

    def settle(self) -> None:
        async def idle() -> None:
            for _ in range(60):
                await asyncio.sleep(0)

        self.loop.call(idle(), timeout=TIMEOUT)

    def start(self, *, plan: ProgramPlan | None = None, **changes: Any) -> None:
        """A supervisor begins: a host and a program over the runtime that is there."""
        plan = plan or replace(
            ProgramPlan(name="web", spec=SPEC, kind=ProgramKind.CONTAINER, restart=ALWAYS),
            **changes,
        )

        def make() -> None:
            self.host = ContainerHost(
                self.runtime.connect, owner="us", clock=self.clock, events=self.events
            )
            self.host.open()
            self.program = Program(
                plan,
                targets=Targets(NoGuardian(), lambda: self.host),
                clock=self.clock,
                events=self.events,
                streams=Streams(None, None, None),
                record=self.record,
            )

        self.on_loop(make)
        self.outcome = self.loop.spawn(self.program.keep_up())
        self.settle()

    def crash_supervisor(self) -> None:
        """It ends without a word, as after kill -9; the runtime and the record stay."""
        self.outcome.cancel()
        self.loop.call(self.host.close(), timeout=TIMEOUT)
        self.settle()
        self.record = ProgramRecord.from_dict(json.loads(json.dumps(self.record.to_dict())))

    def close(self) -> None:
        self.crash_supervisor()

    def after(self, seconds: float) -> None:
        """Let so much time pass, from one waiter's moment to the next."""
        target = self.clock.monotonic() + seconds
        while (due := self.clock._next_due()) <= target:
            self.clock._wake_due(due)
            self.settle()
        self.clock._move_to(target)
        self.settle()

    @property
    def state(self) -> ProgramState:
        return self.program.state

    @property
    def is_up(self) -> bool:
        state = self.runtime.state("web")
        return state is not None and state.is_up

    @property
    def starts(self) -> int:
        return len(self.observer.of(ProgramStarted))

    @property
    def verdicts(self) -> list[str]:
        return [event.verdict for event in self.observer.of(ProgramEnded)]

    @property
    def causes(self) -> list[str]:
        return [str(event.cause) for event in self.observer.of(ProgramEnded)]

    @property
    def ready(self) -> bool:
        return self.program.run is not None and self.program.run.ready


@pytest.fixture
def rig() -> Iterator[ContainerRig]:
    with EventLoopThread() as loop:
        made = ContainerRig(loop)
        yield made
        if hasattr(made, "outcome"):
            made.close()


@pytest.fixture(params=[False, True], ids=["podman", "docker"])
def any_rig(request: pytest.FixtureRequest) -> Iterator[ContainerRig]:
    """Over a runtime whose events come as Podman's do, and as Docker's."""
    with EventLoopThread() as loop:
        made = ContainerRig(loop, docker=request.param)
        yield made
        made.close()


# --- starts and ends ------------------------------------------------------------------------------


def test_a_missing_container_is_made_with_our_labels_and_started(rig: ContainerRig) -> None:
    rig.start()
    state = rig.runtime.state("web")
    assert state is not None
    assert (True, ProgramState.UP) == (state.is_up, rig.state)
    assert {
        "longwatch.owner": "us",
        "longwatch.name": "web",
        "longwatch.spec": SPEC.digest(),
    } == dict(state.labels)


def test_a_stopped_container_of_ours_is_started_not_made_anew(rig: ContainerRig) -> None:
    rig.start()
    first = rig.runtime.state("web")
    rig.act(lambda: rig.runtime.end("web", 1))
    rig.after(1.0)
    second = rig.runtime.state("web")
    assert first is not None
    assert second is not None
    assert (first.id, True, 2) == (second.id, second.is_up, rig.starts)


@pytest.mark.parametrize("code", [0, 1, 2, 100, 143])
def test_an_agent_is_restarted_after_every_end(rig: ContainerRig, code: int) -> None:
    rig.start()
    rig.act(lambda: rig.runtime.end("web", code))
    assert ProgramState.WAITING is rig.state
    rig.after(1.0)
    assert (ProgramState.UP, 2) == (rig.state, rig.starts)


def test_restart_on_failure_leaves_a_clean_exit_ended(rig: ContainerRig) -> None:
    rig.start(restart=RestartPolicy(restart=Restart.ON_FAILURE))
    rig.act(lambda: rig.runtime.end("web", 0))
    assert (ProgramState.ENDED, ["clean_exit"]) == (rig.state, rig.verdicts)


def test_a_container_that_was_killed_for_its_memory_says_so(rig: ContainerRig) -> None:
    rig.start()
    rig.act(lambda: rig.runtime.end("web", 137, out_of_memory=True))
    assert ["memory"] == rig.causes


def test_a_start_that_dies_at_once_backs_off_further_each_time_and_trips(rig: ContainerRig) -> None:
    rig.runtime.script("web").exits_at_start = 1
    rig.start()
    for delay in (1.0, 2.0, 4.0, 8.0, 16.0):
        assert ProgramState.WAITING is rig.state
        rig.after(delay)
    assert ProgramState.BROKEN is rig.state
    assert [1.0, 2.0, 4.0, 8.0, 16.0] == [
        event.delay for event in rig.observer.of(RestartScheduled)
    ]


def test_a_missing_image_is_a_failed_start_that_is_tried_again(rig: ContainerRig) -> None:
    rig.start(spec=replace(SPEC, image="nobody:1"))
    assert (["spawn_error"], ProgramState.WAITING) == (rig.verdicts, rig.state)
    assert "nobody:1" in rig.program.last_error
    rig.act(lambda: rig.runtime.add_image("nobody:1"))
    rig.after(1.0)
    assert ProgramState.UP is rig.state


# --- what people do with the runtime --------------------------------------------------------------


def test_a_container_that_a_person_stops_with_the_runtime_stays_stopped(
    any_rig: ContainerRig,
) -> None:
    any_rig.start()
    any_rig.act(lambda: any_rig.runtime.operator_stop("web"))
    any_rig.after(2.0)
    any_rig.after(60.0)
    assert (ProgramState.STOPPED, False, ["stopped"]) == (
        any_rig.state,
        any_rig.record.desired,
        any_rig.verdicts,
    )


def test_a_stop_event_of_the_life_before_does_not_make_a_later_crash_a_stop(
    rig: ContainerRig,
) -> None:
    rig.start()
    container = rig.runtime._daemon.expect("web")
    rig.act(lambda: rig.runtime._daemon.emit(RuntimeAction.STOP, container))
    rig.after(10.0)
    rig.act(lambda: rig.runtime.end("web", 1))
    rig.after(2.0)
    assert ["unexpected_exit"] == rig.verdicts


def test_a_container_that_is_killed_with_the_runtime_is_restarted(any_rig: ContainerRig) -> None:
    any_rig.start()
    any_rig.act(lambda: any_rig.runtime.operator_kill("web"))
    any_rig.after(1.0)
    any_rig.after(1.0)
    assert (ProgramState.UP, 2) == (any_rig.state, any_rig.starts)


def test_a_container_that_is_removed_by_hand_is_made_anew(any_rig: ContainerRig) -> None:
    any_rig.start()
    first = any_rig.runtime.state("web")
    any_rig.act(lambda: any_rig.runtime.operator_remove("web"))
    any_rig.after(1.0)
    any_rig.after(1.0)
    second = any_rig.runtime.state("web")
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert (ProgramState.UP, True) == (any_rig.state, any_rig.record.desired is not False)


def test_a_container_that_a_person_restarts_is_adopted(rig: ContainerRig) -> None:
    rig.start()
    rig.act(lambda: rig.runtime.operator_restart("web"))
    rig.after(1.0)
    rig.after(1.0)
    assert (ProgramState.UP, 1, 1) == (
        rig.state,
        rig.starts,
        len(rig.observer.of(ProgramAdopted)),
    )


def test_a_paused_container_is_up_and_not_ready_and_not_probed(rig: ContainerRig) -> None:
    rig.script_results["live.sh"] = 1
    rig.start(probes=ProbeSet(liveness=replace(LIVE, failures=100), readiness=READY))
    rig.act(lambda: rig.runtime.operator_pause("web"))
    rig.after(2.0)
    before = len(rig.probes)
    rig.after(30.0)
    assert (ProgramState.UP, False, before) == (rig.state, rig.ready, len(rig.probes))
    rig.act(lambda: rig.runtime.operator_unpause("web"))
    rig.after(2.0)
    assert before < len(rig.probes)


def test_a_probe_that_was_under_way_when_it_was_paused_is_no_failure(rig: ContainerRig) -> None:
    async def hang() -> int:
        await asyncio.get_running_loop().create_future()
        return 0

    rig.runtime.script("web").on_exec = lambda *_: hang()
    rig.start(probes=ProbeSet(liveness=replace(LIVE, failures=1)))
    rig.act(lambda: rig.runtime.operator_pause("web"))
    rig.after(10.0)
    assert (ProgramState.UP, []) == (rig.state, rig.observer.of(HealthCheckFailed))


def test_a_foreign_container_of_the_same_name_is_left_alone(rig: ContainerRig) -> None:
    rig.act(lambda: rig.runtime.add_foreign("web"))
    foreign = rig.runtime.state("web")
    rig.start()
    rig.after(1000.0)
    assert (ProgramState.BROKEN, foreign) == (rig.state, rig.runtime.state("web"))
    assert "not ours" in rig.program.breaker.reason
    assert [] == rig.observer.of(RestartScheduled)


def test_reset_starts_a_container_once_the_foreign_one_is_gone(rig: ContainerRig) -> None:
    rig.act(lambda: rig.runtime.add_foreign("web"))
    rig.start()
    rig.act(lambda: rig.runtime.operator_remove("web"))
    rig.act(rig.program.reset)
    assert (ProgramState.UP, True) == (rig.state, rig.is_up)


# --- the runtime is not there, or does not answer -------------------------------------------------


def test_without_a_runtime_nothing_is_started_and_one_event_says_so(rig: ContainerRig) -> None:
    rig.act(rig.runtime.go_down)
    rig.start()
    rig.after(100.0)
    assert (ProgramState.STARTING, 0) == (rig.state, rig.starts)
    assert 1 == len(rig.observer.of(ContainerRuntimeUnavailable))
    assert [] == rig.verdicts


def test_a_container_that_waits_for_the_runtime_starts_when_it_comes(rig: ContainerRig) -> None:
    rig.act(rig.runtime.go_down)
    rig.start()
    rig.after(20.0)
    rig.act(rig.runtime.come_back)
    rig.after(5.0)
    assert (ProgramState.UP, True) == (rig.state, rig.is_up)


def test_a_container_that_waits_for_the_runtime_can_be_stopped(rig: ContainerRig) -> None:
    rig.act(rig.runtime.go_down)
    rig.start()
    rig.act(lambda: rig.program.stop(shutting_down=False))
    assert ProgramState.STOPPED is rig.state


def test_a_runtime_that_is_down_is_unknown_not_all_dead(rig: ContainerRig) -> None:
    rig.start(probes=ProbeSet(liveness=LIVE))
    rig.act(rig.runtime.go_down)
    rig.after(300.0)
    assert (ProgramState.UP, [], 0) == (
        rig.state,
        rig.verdicts,
        len(rig.observer.of(HealthCheckFailed)),
    )
    assert rig.program.run is not None
    assert "unknown" == rig.program.run.target.facts()["container"]["status"]
    rig.act(rig.runtime.come_back)
    rig.after(6.0)
    assert (ProgramState.UP, 1) == (rig.state, rig.starts)
    assert 2 == len(rig.observer.of(ContainerRuntimeConnected))


def test_what_ended_while_the_runtime_was_down_is_restarted_when_it_is_back(
    rig: ContainerRig,
) -> None:
    rig.start()
    rig.act(rig.runtime.go_down)
    rig.act(lambda: rig.runtime.end("web", 3))
    rig.after(60.0)
    assert [] == rig.verdicts
    rig.act(rig.runtime.come_back)
    rig.after(5.0)
    rig.after(1.0)
    assert (["exit 3"], ProgramState.UP) == (rig.causes, rig.state)


def test_an_end_without_an_event_is_found_by_the_next_poll(rig: ContainerRig) -> None:
    rig.on_loop(lambda: setattr(rig.runtime, "drop_events", True))
    rig.start()
    rig.act(lambda: rig.runtime.end("web", 7))
    assert ProgramState.UP is rig.state
    rig.after(5.0)
    assert (["exit 7"], ProgramState.WAITING) == (rig.causes, rig.state)


def test_a_restart_policy_of_the_runtime_is_warned_about(rig: ContainerRig) -> None:
    rig.start()
    rig.crash_supervisor()
    rig.act(lambda: rig.runtime.set_restart_policy("web", "always"))
    rig.start()
    assert ["always"] == [event.policy for event in rig.observer.of(ContainerRestartPolicyConflict)]


# --- supervisors come and go ----------------------------------------------------------------------


def test_the_next_supervisor_adopts_what_a_killed_one_left(rig: ContainerRig) -> None:
    rig.start()
    first = rig.runtime.state("web")
    rig.after(100.0)
    rig.crash_supervisor()
    rig.after(7.0)
    rig.start()
    [adopted] = rig.observer.of(ProgramAdopted)
    assert first == rig.runtime.state("web")
    assert (ProgramState.UP, 1, 107) == (rig.state, rig.record.starts, round(adopted.age))


def test_a_shutdown_leaves_the_container_running(rig: ContainerRig) -> None:
    rig.start()
    rig.act(lambda: rig.program.stop(leave=True))
    assert (0, True) == (rig.outcome.result(TIMEOUT), rig.is_up)
    assert (ProgramState.STOPPED, 1, []) == (
        rig.state,
        len(rig.observer.of(ProgramLeftRunning)),
        rig.verdicts,
    )


def test_a_shutdown_stops_a_container_with_stop_on_exit(rig: ContainerRig) -> None:
    rig.start(spec=replace(SPEC, stop_on_exit=True))
    rig.act(lambda: rig.program.stop(leave=True))
    assert (False, ["shutdown_complete"]) == (rig.is_up, rig.verdicts)


def test_an_operators_stop_is_a_signal_a_grace_and_a_kill(rig: ContainerRig) -> None:
    rig.runtime.script("web").ignores_term = True
    rig.start()
    rig.act(lambda: rig.program.stop(shutting_down=False))
    rig.after(14.9)
    assert rig.is_up
    rig.after(0.2)
    assert (False, [15, 9], ["stopped"]) == (
        rig.is_up,
        list(rig.runtime.signals("web")),
        rig.verdicts,
    )


def test_a_stop_ends_though_the_runtime_does_not_answer(rig: ContainerRig) -> None:
    rig.start(spec=replace(SPEC, stop_on_exit=True))
    rig.act(rig.runtime.go_down)
    rig.act(lambda: rig.program.stop(leave=True))
    rig.after(15.0)
    rig.after(10.0)
    [ended] = rig.observer.of(ProgramEnded)
    assert (1, True) == (ended.survivors, "may still run" in ended.detail)


def test_a_container_of_another_spec_is_made_anew_at_the_next_start(rig: ContainerRig) -> None:
    rig.start()
    first = rig.runtime.state("web")
    rig.crash_supervisor()
    rig.start(spec=replace(SPEC, env={"MODE": "new"}))
    rig.after(1.0)
    second = rig.runtime.state("web")
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert second.is_up


# --- probes ---------------------------------------------------------------------------------------


def test_failed_liveness_restarts_at_once_and_holds_probing_longer_each_time(
    rig: ContainerRig,
) -> None:
    rig.script_results["live.sh"] = 1
    rig.start(probes=ProbeSet(liveness=LIVE, crash_loop=CRASH_LOOP_BACKOFF))
    for hold in (10.0, 20.0, 40.0, 80.0):
        rig.after(3.0)
        assert hold == rig.observer.of(ProbingHeld)[-1].seconds
        before = len(rig.probes)
        rig.after(hold - 3.5)
        assert before == len(rig.probes)
        rig.after(3.0)
        assert before < len(rig.probes)
    assert {0.0} == {event.delay for event in rig.observer.of(RestartScheduled)}
    assert {"health_check_restart"} == set(rig.verdicts)


def test_five_restarts_for_liveness_in_a_row_trip_the_same_breaker(rig: ContainerRig) -> None:
    rig.script_results["live.sh"] = 1
    rig.start(probes=ProbeSet(liveness=LIVE, crash_loop=CRASH_LOOP_BACKOFF))
    rig.after(400.0)
    assert ProgramState.BROKEN is rig.state
    assert "5 runs in a row" in rig.program.breaker.reason


def test_liveness_that_turns_bad_after_an_hour_restarts(rig: ContainerRig) -> None:
    rig.start(probes=ProbeSet(liveness=LIVE, crash_loop=CRASH_LOOP_BACKOFF))
    rig.after(3600.0)
    rig.script_results["live.sh"] = 1
    rig.after(4.0)
    assert ["health_check_restart"] == rig.verdicts


def test_a_run_of_ten_minutes_forgets_the_crash_loops(rig: ContainerRig) -> None:
    rig.script_results["live.sh"] = 1
    rig.start(probes=ProbeSet(liveness=LIVE, crash_loop=CRASH_LOOP_BACKOFF))
    rig.after(3.0)
    rig.script_results["live.sh"] = 0
    rig.after(590.0)
    assert 1 == rig.record.crash_loops
    rig.after(20.0)
    assert 0 == rig.record.crash_loops


def test_a_crash_loop_survives_the_supervisor_and_clear_liveness_ends_its_hold(
    rig: ContainerRig,
) -> None:
    rig.script_results["live.sh"] = 1
    probes = ProbeSet(liveness=LIVE, crash_loop=CRASH_LOOP_BACKOFF)
    rig.start(probes=probes)
    rig.after(3.0)
    rig.crash_supervisor()
    rig.start(probes=probes)
    before = len(rig.probes)
    rig.after(5.0)
    assert before == len(rig.probes)
    rig.act(rig.program.clear_liveness_state)
    rig.after(1.0)
    assert before < len(rig.probes)
    assert 0 == rig.record.crash_loops


def test_a_missing_script_trips_once_and_leaves_the_container_running(rig: ContainerRig) -> None:
    rig.runtime.script("web").files = set()
    rig.start(probes=ProbeSet(liveness=LIVE))
    rig.after(1000.0)
    assert (ProgramState.BROKEN, True, 1) == (
        rig.state,
        rig.is_up,
        len(rig.observer.of(CircuitBreakerTripped)),
    )
    assert "/code/live.sh" in rig.program.breaker.reason
    assert [] == rig.probes


def test_reset_readopts_a_container_whose_script_is_there_now(rig: ContainerRig) -> None:
    rig.runtime.script("web").files = set()
    rig.start(probes=ProbeSet(liveness=LIVE))
    rig.after(1.0)
    rig.runtime.script("web").files = {"/code/live.sh"}
    rig.act(rig.program.reset)
    rig.after(1.0)
    assert (ProgramState.UP, 1, 1) == (
        rig.state,
        rig.starts,
        len(rig.observer.of(ProgramAdopted)),
    )


def test_readiness_begins_after_liveness_and_never_restarts(rig: ContainerRig) -> None:
    rig.script_results["ready.sh"] = 1
    rig.start(probes=ProbeSet(liveness=LIVE, readiness=READY))
    assert "live.sh" == rig.probes[0]
    rig.after(100.0)
    assert (ProgramState.UP, False, 1, []) == (
        rig.state,
        rig.ready,
        len(rig.observer.of(ProgramNotReady)),
        rig.verdicts,
    )
    rig.script_results["ready.sh"] = 0
    rig.after(2.0)
    assert (True, 1) == (rig.ready, len(rig.observer.of(ProgramReady)))
    rig.script_results["ready.sh"] = 1
    rig.after(1.0)
    assert rig.ready
    rig.after(2.0)
    assert (False, 2) == (rig.ready, len(rig.observer.of(ProgramNotReady)))


def test_a_dependent_waits_for_the_readiness_probe(rig: ContainerRig) -> None:
    rig.script_results["ready.sh"] = 1
    rig.start(probes=ProbeSet(readiness=READY))
    managed = rig.on_loop(
        lambda: ManagedProgram(rig.program, programs={}, changes=ChangeSignal(), clock=rig.clock)
    )
    rig.after(5.0)
    assert (True, False) == (
        managed.satisfies(Condition.STARTED),
        managed.satisfies(Condition.READY),
    )
    rig.script_results["ready.sh"] = 0
    rig.after(2.0)
    assert managed.satisfies(Condition.READY)


def test_several_successes_make_a_success(rig: ContainerRig) -> None:
    rig.start(probes=ProbeSet(readiness=replace(READY, successes=3)))
    rig.after(1.5)
    assert not rig.ready
    rig.after(1.0)
    assert rig.ready


def test_after_the_first_success_the_settled_interval_holds(rig: ContainerRig) -> None:
    rig.start(probes=ProbeSet(liveness=replace(LIVE, settled_interval=10.0)))
    before = len(rig.probes)
    rig.after(100.0)
    assert before + 10 == len(rig.probes)


def test_a_startup_probe_that_does_not_pass_in_time_restarts(rig: ContainerRig) -> None:
    rig.script_results["live.sh"] = 1
    startup = StartupPolicy(probe=ScriptProbe(script="live.sh"), within=30.0)
    rig.start(probes=ProbeSet(startup=startup, liveness=LIVE))
    rig.after(29.0)
    assert [] == rig.verdicts
    rig.after(2.0)
    assert ["health_check_restart"] == rig.verdicts


def test_a_script_that_hangs_fails_at_its_timeout_and_leaves_no_command(rig: ContainerRig) -> None:
    async def hang() -> int:
        await asyncio.get_running_loop().create_future()
        return 0

    rig.runtime.script("web").on_exec = lambda *_: hang()
    rig.start(probes=ProbeSet(liveness=replace(LIVE, failures=2)))
    rig.after(5.0)
    assert ["not done in 5 s and killed"] == [
        event.reason for event in rig.observer.of(HealthCheckFailed)
    ]


def test_new_probes_are_followed_without_a_restart(rig: ContainerRig) -> None:
    rig.start()
    plan = replace(rig.program.plan, probes=ProbeSet(readiness=READY))
    assert not rig.program.plan.needs_restart(plan)
    rig.script_results["ready.sh"] = 1
    rig.act(lambda: rig.program.apply_plan(plan))
    rig.after(3.0)
    assert (1, False, True) == (rig.starts, rig.ready, "ready.sh" in rig.probes)


# --- settings that cannot be right ----------------------------------------------------------------


def test_a_plan_with_a_fault_is_broken_without_a_start_or_a_trial(rig: ContainerRig) -> None:
    rig.start(fault="no manifest.json")
    rig.after(1000.0)
    assert (ProgramState.BROKEN, 0, "no manifest.json") == (
        rig.state,
        rig.starts,
        rig.program.breaker.reason,
    )
    assert 0 == rig.runtime.calls["create"]


def test_reset_does_not_start_a_plan_that_still_has_its_fault(rig: ContainerRig) -> None:
    rig.start(fault="no manifest.json")
    rig.act(rig.program.reset)
    assert (ProgramState.BROKEN, 0) == (rig.state, rig.starts)


def test_a_plan_whose_fault_is_gone_starts_at_a_reset(rig: ContainerRig) -> None:
    rig.start(fault="no manifest.json")
    rig.act(lambda: rig.program.apply_plan(replace(rig.program.plan, fault="")))
    rig.act(rig.program.reset)
    assert (ProgramState.UP, 1) == (rig.state, rig.starts)


def test_a_fault_that_comes_while_it_runs_breaks_it_and_leaves_it_running(
    rig: ContainerRig,
) -> None:
    rig.start()
    rig.act(lambda: rig.program.apply_plan(replace(rig.program.plan, fault="bad manifest")))
    assert (ProgramState.BROKEN, True) == (rig.state, rig.is_up)
    assert "bad manifest" == rig.program.breaker.reason


def test_a_stable_run_starts_the_backoff_anew(rig: ContainerRig) -> None:
    rig.start(backoff=BackoffPolicy(stable_after=60.0))
    rig.act(lambda: rig.runtime.end("web", 1))
    rig.after(1.0)
    rig.after(61.0)
    rig.act(lambda: rig.runtime.end("web", 1))
    assert [1.0, 1.0] == [event.delay for event in rig.observer.of(RestartScheduled)]
