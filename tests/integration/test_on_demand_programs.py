"""Programs that run once, on demand, beside those that a supervisor keeps up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longwatch.core.events.base import Events
from longwatch.core.events.programs import ProgramStarted
from longwatch.core.events.supervisor import ConfigReloaded
from longwatch.supervisor import ProgramPlan, StopPolicy, Streams, Supervisor
from longwatch.supervisor.restart_policy import Restart, RestartPolicy
from longwatch.testing import RecordingObserver
from polling import eventually

SLEEPER = ["sleep", "1000"]
STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]


KEPT_UP = ProgramPlan.of("jobs-1", SLEEPER, group="jobs")


def once(argv: list[str], name: str = "jobs-extra", **policies: Any) -> ProgramPlan:
    return ProgramPlan.of(
        name,
        argv,
        group="jobs",
        on_demand=True,
        restart=RestartPolicy(restart=Restart.NEVER),
        **policies,
    )


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def supervisor(observer: RecordingObserver, tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(
        [KEPT_UP],
        state_dir=tmp_path,
        streams=lambda _: Streams(None, None, None),
        events=Events(observer),
    )
    with made:
        assert eventually(lambda: names(made, up=True) == ["jobs-1"])
        yield made


def names(supervisor: Supervisor, *, up: bool = False) -> list[str]:
    return [each["name"] for each in supervisor.status() if each["up"] or not up]


def starts(observer: RecordingObserver, name: str) -> int:
    return len([each for each in observer.of(ProgramStarted) if each.program == name])


def run(supervisor: Supervisor, *plans: ProgramPlan) -> None:
    supervisor.run_on_demand(lambda _: plans)


def wait_for(supervisor: Supervisor, *expected: str) -> None:
    assert eventually(lambda: names(supervisor, up=True) == [*expected]), names(supervisor)


def test_a_program_is_known_while_it_runs_and_forgotten_when_it_has_ended(
    supervisor: Supervisor, observer: RecordingObserver, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    run(supervisor, once(["sh", "-c", f"until [ -e {go} ]; do sleep 0.01; done; exit 3"]))
    wait_for(supervisor, "jobs-1", "jobs-extra")
    [facts] = supervisor.status("jobs-extra")
    assert ("up", "up") == (facts["state"], facts["desired"])
    go.touch()
    assert eventually(lambda: names(supervisor) == ["jobs-1"])
    run(supervisor, once(SLEEPER))
    wait_for(supervisor, "jobs-1", "jobs-extra")
    assert 2 == starts(observer, "jobs-extra")


def test_a_program_that_runs_is_not_started_twice(
    supervisor: Supervisor, observer: RecordingObserver
) -> None:
    seen: list[list[str]] = []

    def choose(plans: Mapping[str, ProgramPlan]) -> Iterable[ProgramPlan]:
        seen.append([*plans])
        return [once(SLEEPER)]

    for _ in range(3):
        supervisor.run_on_demand(choose)
    wait_for(supervisor, "jobs-1", "jobs-extra")
    assert [["jobs-1"], *[["jobs-1", "jobs-extra"]] * 2] == seen
    assert 1 == starts(observer, "jobs-extra")


def test_a_command_for_its_group_stops_it_and_starts_it_never(
    supervisor: Supervisor, observer: RecordingObserver
) -> None:
    for command in (supervisor.restart_programs, supervisor.stop_programs):
        run(supervisor, once(SLEEPER))
        assert eventually(lambda: "jobs-extra" in names(supervisor, up=True))
        command("jobs")
        assert eventually(lambda: "jobs-extra" not in names(supervisor))
    supervisor.start_programs("jobs")
    supervisor.start_programs()
    assert ["jobs-1"] == names(supervisor)
    assert 2 == starts(observer, "jobs-extra")


def test_a_reload_stops_it_only_if_its_group_changes_and_does_not_name_it(
    supervisor: Supervisor, observer: RecordingObserver
) -> None:
    run(supervisor, once(SLEEPER))
    wait_for(supervisor, "jobs-1", "jobs-extra")
    supervisor.reload([KEPT_UP, ProgramPlan.of("web", SLEEPER)])
    wait_for(supervisor, "jobs-1", "jobs-extra", "web")
    other = replace(KEPT_UP, spec=replace(KEPT_UP.process, umask=0o77))
    changes = supervisor.reload([other])
    assert eventually(lambda: names(supervisor, up=True) == ["jobs-1"])
    assert ConfigReloaded(added=(), changed=("jobs-1",), updated=(), removed=("web",)) == changes
    assert 1 == starts(observer, "jobs-extra")


def test_stop_on_demand_stops_those_of_the_group_alone(supervisor: Supervisor) -> None:
    run(supervisor, once(SLEEPER), replace(once(SLEEPER, "other"), group="other"))
    wait_for(supervisor, "jobs-1", "jobs-extra", "other")
    supervisor.stop_on_demand("jobs")
    wait_for(supervisor, "jobs-1", "other")


def test_a_shutdown_stops_it_starts_none_and_does_not_count_that_it_was_killed(
    supervisor: Supervisor, observer: RecordingObserver
) -> None:
    run(supervisor, once(STUBBORN, stop=StopPolicy(grace=0.2)))
    wait_for(supervisor, "jobs-1", "jobs-extra")
    supervisor.shut_down()
    run(supervisor, once(SLEEPER, "late"))
    assert 0 == supervisor.wait(30.0)
    assert 0 == starts(observer, "late")


def test_a_program_that_cannot_be_spawned_is_forgotten(supervisor: Supervisor) -> None:
    run(supervisor, once(["/nowhere/at/all"]))
    assert eventually(lambda: names(supervisor) == ["jobs-1"])
    assert ["jobs-1"] == names(supervisor, up=True)
