"""Which processes a parent starts for suspects, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest

from longwatch.core.events.base import Events
from longwatch.core.events.workers import SuspectProcessNotStarted
from longwatch.errors import ServiceStateError, TryAgainError
from longwatch.host.parent_channel import SUSPECTS_VARIABLE
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.restart_policy import Restart
from longwatch.testing import FakeClock, RecordingObserver
from longwatch.workers.suspects import REPORT_LIFETIME, SuspectProcesses, SuspectReport

JOBS, MAIL = ("sqlite:///jobs.db", "jobs"), ("sqlite:///jobs.db", "mail")


def worker_plan(name: str, group: str = "jobs") -> ProgramPlan:
    return ProgramPlan.of(
        name, ["true"], kind=ProgramKind.WORKER, group=group, critical=True, env={"A": "1"}
    )


class FakeSupervisor:
    """Programs that run once they were chosen, until the test ends them."""

    def __init__(self, *names: str) -> None:
        self.plans: dict[str, ProgramPlan] = {name: worker_plan(name) for name in names}
        self.error: Exception | None = None

    def run_on_demand(
        self, choose: Callable[[Mapping[str, ProgramPlan]], Iterable[ProgramPlan]]
    ) -> None:
        if self.error is not None:
            raise self.error
        for plan in choose(self.plans):
            assert plan.name not in self.plans
            self.plans[plan.name] = plan

    @property
    def suspects(self) -> list[str]:
        return [name for name, plan in self.plans.items() if plan.on_demand]


class SuspectRig:
    """Suspect processes over two ordinary programs."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.observer = RecordingObserver()
        self.supervisor = FakeSupervisor("jobs-1", "jobs-2")
        self.busy: set[str] = set()
        self.processes = SuspectProcesses(
            self.supervisor.run_on_demand,
            lambda: self.busy,
            clock=self.clock,
            events=Events(self.observer),
        )

    def report(
        self,
        count: int,
        *,
        program: str = "jobs-1",
        place: tuple[str, str] = JOBS,
        slots: int = 16,
    ) -> list[str]:
        """Have a worker report so many suspects; the processes that run then."""
        self.processes.handle(
            SuspectReport(
                program=program, place=place, count=count, slots=slots, at=self.clock.monotonic()
            )
        )
        return self.supervisor.suspects

    def end(self, name: str, *, has_joined: bool = True) -> None:
        del self.supervisor.plans[name]
        self.processes.ended(name, has_joined=has_joined)


@pytest.fixture
def rig() -> SuspectRig:
    return SuspectRig()


def test_as_many_processes_run_as_suspects_are_free(rig: SuspectRig) -> None:
    assert ["jobs-suspect-1"] == rig.report(1)
    assert ["jobs-suspect-1"] == rig.report(1)
    assert ["jobs-suspect-1", "jobs-suspect-2"] == rig.report(2)


def test_at_most_four_run_and_no_more_than_the_ordinary_processes_have_slots(
    rig: SuspectRig,
) -> None:
    assert 2 == len(rig.report(100, slots=1))
    assert 4 == len(rig.report(100))


def test_a_process_that_runs_a_suspect_does_not_count_for_the_free_ones(rig: SuspectRig) -> None:
    rig.report(1)
    rig.busy = {"jobs-suspect-1", "jobs-1"}
    assert 2 == len(rig.report(1))


def test_suspects_of_several_mailboxes_add_up_and_those_that_two_workers_see_do_not(
    rig: SuspectRig,
) -> None:
    rig.report(1)
    assert 1 == len(rig.report(1, program="jobs-2"))
    assert 2 == len(rig.report(1, place=MAIL))


def test_an_old_report_does_not_count(rig: SuspectRig) -> None:
    rig.report(1)
    rig.clock.advance(REPORT_LIFETIME + 1.0)
    assert 1 == len(rig.report(1, place=MAIL))


def test_the_next_report_after_the_end_of_a_process_starts_another(rig: SuspectRig) -> None:
    rig.report(1)
    rig.end("jobs-suspect-1")
    assert [] == rig.supervisor.suspects
    assert ["jobs-suspect-1"] == rig.report(1)


def test_processes_that_end_before_they_have_joined_are_started_less_and_less_often(
    rig: SuspectRig,
) -> None:
    for wait in (1.0, 2.0, 4.0):
        assert 1 == len(rig.report(1))
        rig.end("jobs-suspect-1", has_joined=False)
        rig.clock.advance(wait - 0.1)
        assert [] == rig.report(1)
        rig.clock.advance(0.2)
    rig.report(1)
    rig.end("jobs-suspect-1")
    assert 1 == len(rig.report(1))


def test_its_plan_is_that_of_the_worker_at_that_moment_and_nothing_restarts_it(
    rig: SuspectRig,
) -> None:
    rig.supervisor.plans["jobs-1"] = worker_plan("jobs-1")
    rig.report(1)
    plan = rig.supervisor.plans["jobs-suspect-1"]
    assert {"A": "1", SUSPECTS_VARIABLE: "1"}.items() <= plan.process.env.items()
    assert (True, False, False, Restart.NEVER, "jobs") == (
        plan.on_demand,
        plan.critical,
        plan.autostart,
        plan.restart.restart,
        plan.group,
    )


def test_a_program_that_is_known_no_more_starts_nothing(rig: SuspectRig) -> None:
    del rig.supervisor.plans["jobs-1"]
    assert [] == rig.report(1)


def test_a_start_that_fails_is_emitted_and_tried_again_and_a_shutdown_is_no_failure(
    rig: SuspectRig,
) -> None:
    rig.supervisor.error = ServiceStateError("the supervisor is not running")
    assert [] == rig.report(1)
    assert [] == rig.observer.of(SuspectProcessNotStarted)
    rig.supervisor.error = TryAgainError("no room")
    assert [] == rig.report(1)
    assert ["TryAgainError: no room"] == [
        event.error for event in rig.observer.of(SuspectProcessNotStarted)
    ]
    rig.supervisor.error = None
    assert 1 == len(rig.report(1))
