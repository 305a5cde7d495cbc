from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.events.base import Events
from longwatch.core.events.programs import (
    CircuitBreakerTripped,
    ProgramStarted,
    ProgramStopping,
)
from longwatch.core.events.supervisor import ConfigReloaded
from longwatch.errors import (
    GuardianLostError,
    ServiceStateError,
    StoreFullError,
    TryAgainError,
    UsageError,
)
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.supervisor import (
    BreakerPolicy,
    Condition,
    ProgramPlan,
    Readiness,
    StopPolicy,
    Streams,
    Supervisor,
)
from longwatch.testing import RecordingObserver
from polling import eventually

SLEEPER = ["sleep", "1000"]
NO_BACKOFF = BackoffPolicy(initial=0.0)
SILENT = Streams(None, None, None)


class SupervisorFactory:
    """Makes supervisors that are stopped in the end."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir / "made" / "anew"
        self.made: list[Supervisor] = []
        self.observer = RecordingObserver()

    def __call__(self, *plans: ProgramPlan, **options: object) -> Supervisor:
        """One that runs, with a state directory unless told otherwise."""
        made = Supervisor(
            plans,
            **{  # type: ignore[arg-type]
                "state_dir": self.state_dir,
                "streams": lambda _: SILENT,
                "events": Events(self.observer),
                **options,
            },
        )
        self.made.append(made)
        made.start()
        return made

    def starts(self, name: str) -> int:
        return len([event for event in self.observer.of(ProgramStarted) if event.program == name])


@pytest.fixture
def make_supervisor(tmp_path: Path) -> Iterator[SupervisorFactory]:
    factory = SupervisorFactory(tmp_path)
    yield factory
    for supervisor in factory.made:
        supervisor.stop()


def facts(supervisor: Supervisor, name: str) -> dict[str, object]:
    [found] = supervisor.status(name)
    return found


def wait_for_status(supervisor: Supervisor, name: str, **wanted: object) -> dict[str, object]:
    """The facts of a program once they hold these."""
    found: dict[str, object] = {}

    def holds() -> bool:
        found.update(facts(supervisor, name))
        return all(found[key] == value for key, value in wanted.items())

    assert eventually(holds), f"{name} has not come to {wanted}: {found}"
    return found


# --- up, down, again ------------------------------------------------------------------------------


def test_programs_are_up_after_the_start_and_gone_after_the_stop(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER))
    pids = [
        wait_for_status(supervisor, name, up=True, ready=True, state="up")["pid"]
        for name in ("a", "b")
    ]
    supervisor.stop()
    assert [False, False] == [psutil.pid_exists(int(str(pid))) for pid in pids]


def test_a_killed_program_comes_back_and_its_restart_is_counted(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER, backoff=NO_BACKOFF))
    pid = wait_for_status(supervisor, "a", up=True)["pid"]
    os.kill(int(str(pid)), signal.SIGKILL)
    found = wait_for_status(supervisor, "a", up=True, total_restarts=1)
    assert pid != found["pid"]
    assert "signal 9" == found["last_end"]["cause"]  # type: ignore[index]


def test_stop_start_and_restart_do_what_they_say(make_supervisor: SupervisorFactory) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER))
    first = wait_for_status(supervisor, "a", up=True)["pid"]
    [stopped] = supervisor.stop_programs("a")
    assert ("stopped", "stopped", False, None) == tuple(
        stopped[key] for key in ("state", "desired", "up", "pid")
    )
    [started] = supervisor.start_programs("a")
    assert ("up", "up", True) == tuple(started[key] for key in ("state", "desired", "up"))
    [again] = supervisor.restart_programs("a")
    assert 3 == len({first, started["pid"], again["pid"]})


def test_a_restart_of_all_leaves_alone_what_was_stopped_and_takes_a_good_end_for_done(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(
        ProgramPlan.of("a", SLEEPER),
        ProgramPlan.of("off", SLEEPER),
        ProgramPlan.of("job", ["true"]),
    )
    supervisor.stop_programs("off")
    wait_for_status(supervisor, "job", state="ended")
    assert {"a", "job"} == {found["name"] for found in supervisor.restart_programs()}
    assert "stopped" == facts(supervisor, "off")["state"]
    assert 2 == make_supervisor.starts("job")


def test_a_start_of_what_is_up_changes_nothing(make_supervisor: SupervisorFactory) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER))
    first = wait_for_status(supervisor, "a", up=True)["pid"]
    assert first == supervisor.start_programs("a")[0]["pid"]


def test_a_program_that_ended_by_itself_is_left_alone_and_can_be_started_again(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", ["true"]))
    wait_for_status(supervisor, "a", state="ended", desired="up")
    assert 1 == make_supervisor.starts("a")
    with suppress(TryAgainError):  # it may be gone again before anybody looks
        supervisor.start_programs("a")
    assert 2 == make_supervisor.starts("a")


def test_a_program_that_is_not_to_start_by_itself_waits_to_be_started(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER, autostart=False))
    assert "stopped" == facts(supervisor, "a")["state"]
    assert "up" == supervisor.start_programs("a")[0]["state"]


def test_a_start_that_fails_at_once_is_told_with_what_became_of_it(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", ["/no/such/program"], autostart=False))
    with pytest.raises(TryAgainError, match=r"a did not stay up \(spawn_error, waiting\)"):
        supervisor.start_programs("a")


def test_an_unknown_program_gets_the_nearest_name(make_supervisor: SupervisorFactory) -> None:
    supervisor = make_supervisor(ProgramPlan.of("worker", SLEEPER))
    with pytest.raises(UsageError, match="no program 'wroker'; did you mean worker"):
        supervisor.stop_programs("wroker")


def test_commands_of_many_threads_at_once_leave_it_as_the_last_wish_says(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER, backoff=NO_BACKOFF))

    def command(act: Callable[..., object]) -> None:
        for _ in range(5):
            try:
                act("a")
            except TryAgainError:
                continue

    threads = [
        threading.Thread(target=command, args=(act,))
        for act in (
            supervisor.start_programs,
            supervisor.stop_programs,
            supervisor.restart_programs,
            supervisor.reset_programs,
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    supervisor.stop_programs("a")
    wait_for_status(supervisor, "a", state="stopped", up=False)
    assert "up" == supervisor.start_programs("a")[0]["state"]


# --- what is remembered ---------------------------------------------------------------------------


def test_an_operators_stop_survives_the_supervisor(make_supervisor: SupervisorFactory) -> None:
    first = make_supervisor(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER))
    first.stop_programs("a")
    first.stop()
    second = make_supervisor(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER))
    wait_for_status(second, "b", up=True)
    assert ("stopped", "stopped") == (facts(second, "a")["state"], facts(second, "a")["desired"])


def test_an_open_breaker_survives_the_supervisor_and_a_reset_closes_it(
    make_supervisor: SupervisorFactory,
) -> None:
    fragile = ProgramPlan.of(
        "a", ["sh", "-c", "exit 1"], backoff=NO_BACKOFF, breaker=BreakerPolicy(tolerated=1)
    )
    first = make_supervisor(fragile)
    wait_for_status(first, "a", state="broken")
    starts = make_supervisor.starts("a")
    first.stop()
    second = make_supervisor(fragile)
    assert "broken" == wait_for_status(second, "a", state="broken")["state"]
    assert starts == make_supervisor.starts("a")
    second.reset_programs("a")
    assert eventually(lambda: make_supervisor.starts("a") > starts)


def test_a_broken_program_that_was_stopped_starts_at_once_when_it_is_told_to(
    make_supervisor: SupervisorFactory,
) -> None:
    fragile = BreakerPolicy(tolerated=0, cooldown=None)
    supervisor = make_supervisor(
        ProgramPlan.of("a", ["false"], backoff=NO_BACKOFF, breaker=fragile)
    )
    wait_for_status(supervisor, "a", state="broken")
    supervisor.stop_programs("a")
    with suppress(TryAgainError):  # it fails again, of course
        supervisor.start_programs("a", timeout=10.0)
    assert 2 == make_supervisor.starts("a")


def test_a_stop_that_cannot_be_remembered_is_told(
    make_supervisor: SupervisorFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreFullError("the disk is full")

    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER))
    wait_for_status(supervisor, "a", up=True)
    monkeypatch.setattr(SqliteDatabase, "write", full)
    with pytest.raises(TryAgainError, match=r"done, but could not be saved .*: the disk is full"):
        supervisor.stop_programs("a")
    assert "stopped" == facts(supervisor, "a")["state"]
    monkeypatch.undo()


def test_a_supervisor_can_be_stopped_and_started_again(make_supervisor: SupervisorFactory) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER))
    supervisor.stop()
    with pytest.raises(ServiceStateError, match="not running"):
        supervisor.status()
    supervisor.start()
    wait_for_status(supervisor, "a", up=True)


def test_one_state_directory_has_one_supervisor(make_supervisor: SupervisorFactory) -> None:
    make_supervisor(ProgramPlan.of("a", SLEEPER))
    with pytest.raises(TryAgainError, match="supervising"):
        make_supervisor(ProgramPlan.of("a", SLEEPER))


# --- dependencies ---------------------------------------------------------------------------------


def test_a_program_waits_until_another_says_that_it_is_ready(
    make_supervisor: SupervisorFactory, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = (
        "import os, socket, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "s.sendto(b'READY=1\\nSTATUS=serving', os.environ['NOTIFY_SOCKET'])\n"
        "time.sleep(1000)\n"
    )
    supervisor = make_supervisor(
        ProgramPlan.of("web", SLEEPER, depends_on={"db": Condition.READY}),
        ProgramPlan.of("db", ["python3", "-c", script], readiness=Readiness.NOTIFY),
    )
    wait_for_status(supervisor, "db", up=True, ready=False)
    assert ["db: ready"] == wait_for_status(supervisor, "web", state="pending")["waiting_for"]
    go.touch()
    wait_for_status(supervisor, "web", up=True)
    assert "serving" == facts(supervisor, "db")["status_text"]


def test_a_program_waits_until_another_has_completed(
    make_supervisor: SupervisorFactory, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    supervisor = make_supervisor(
        ProgramPlan.of("migrate", ["sh", "-c", f"sleep 0.1; touch {done}"]),
        ProgramPlan.of(
            "web",
            ["sh", "-c", f"test -e {done} && exec sleep 1000"],
            depends_on={"migrate": Condition.COMPLETED},
        ),
    )
    wait_for_status(supervisor, "web", up=True)
    assert 1 == make_supervisor.starts("web")


def test_dependents_stop_before_what_they_depend_on(make_supervisor: SupervisorFactory) -> None:
    supervisor = make_supervisor(
        ProgramPlan.of("db", SLEEPER),
        ProgramPlan.of("web", SLEEPER, depends_on={"db": Condition.STARTED}),
    )
    wait_for_status(supervisor, "web", up=True)
    supervisor.stop()
    stopping = [event.program for event in make_supervisor.observer.of(ProgramStopping)]
    assert ["web", "db"] == stopping


def test_plans_that_cannot_be_are_refused_with_everything_that_is_wrong() -> None:
    with pytest.raises(UsageError, match=r"'a' waits for 'x'.*\n.*waits for itself: b → c → b"):
        Supervisor(
            [
                ProgramPlan.of("a", SLEEPER, depends_on={"x": Condition.READY}),
                ProgramPlan.of("b", SLEEPER, depends_on={"c": Condition.READY}),
                ProgramPlan.of("c", SLEEPER, depends_on={"b": Condition.READY}),
            ]
        )
    with pytest.raises(UsageError, match="two programs are called 'a'"):
        Supervisor([ProgramPlan.of("a", SLEEPER), ProgramPlan.of("a", SLEEPER)])


# --- the end --------------------------------------------------------------------------------------


def test_a_critical_program_that_breaks_takes_everything_down_with_100(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(
        ProgramPlan.of(
            "vital",
            ["false"],
            backoff=NO_BACKOFF,
            breaker=BreakerPolicy(tolerated=1),
            critical=True,
        ),
        ProgramPlan.of("deaf", ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]),
    )
    assert 100 == supervisor.wait(30.0)
    assert 1 == len(make_supervisor.observer.of(CircuitBreakerTripped))
    assert not facts(supervisor, "deaf")["up"]


@pytest.mark.parametrize("code", [2, 101])
def test_a_critical_program_that_fails_for_good_is_100_too(
    make_supervisor: SupervisorFactory, code: int
) -> None:
    supervisor = make_supervisor(
        ProgramPlan.of("vital", ["sh", "-c", f"exit {code}"], critical=True),
        ProgramPlan.of("a", SLEEPER),
    )
    assert 100 == supervisor.wait(30.0)


def test_a_critical_program_that_ends_well_ends_nothing(make_supervisor: SupervisorFactory) -> None:
    supervisor = make_supervisor(
        ProgramPlan.of("vital", ["true"], critical=True), ProgramPlan.of("a", SLEEPER)
    )
    wait_for_status(supervisor, "vital", state="ended")
    wait_for_status(supervisor, "a", up=True)


def test_a_shutdown_that_had_to_kill_is_1_and_another_0(make_supervisor: SupervisorFactory) -> None:
    deaf = ProgramPlan.of(
        "deaf",
        ["sh", "-c", "trap '' TERM; echo; while :; do sleep 1; done"],
        stop=StopPolicy(grace=0.3),
    )
    supervisor = make_supervisor(deaf)
    wait_for_status(supervisor, "deaf", up=True)
    assert eventually(lambda: trapped(supervisor, "deaf"))
    supervisor.shut_down()
    assert 1 == supervisor.wait(30.0)
    supervisor.stop()
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER))
    wait_for_status(supervisor, "a", up=True)
    supervisor.shut_down()
    assert 0 == supervisor.wait(30.0)


def trapped(supervisor: Supervisor, name: str) -> bool:
    """Whether the shell has come to ignore SIGTERM."""
    status = Path(f"/proc/{facts(supervisor, name)['pid']}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) & 1 << (signal.SIGTERM - 1))


def test_a_lost_guardian_is_told_to_who_waits_and_leaves_nothing(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER))
    pid = int(str(wait_for_status(supervisor, "a", up=True)["pid"]))
    assert supervisor.guardian.pid is not None
    os.kill(supervisor.guardian.pid, signal.SIGKILL)
    with pytest.raises(GuardianLostError):
        supervisor.wait(30.0)
    assert not lives(pid)


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


# --- reload ---------------------------------------------------------------------------------------


def test_a_reload_touches_only_what_changed(make_supervisor: SupervisorFactory) -> None:
    same, gone = ProgramPlan.of("same", SLEEPER), ProgramPlan.of("gone", SLEEPER)
    changed, updated = ProgramPlan.of("changed", SLEEPER), ProgramPlan.of("updated", SLEEPER)
    supervisor = make_supervisor(same, gone, changed, updated)
    pids = {
        name: wait_for_status(supervisor, name, up=True)["pid"]
        for name in ("same", "gone", "changed", "updated")
    }
    told = supervisor.reload(
        [
            ProgramPlan.of("same", SLEEPER),
            ProgramPlan.of("new", SLEEPER),
            ProgramPlan.of("changed", ["sleep", "1001"]),
            ProgramPlan.of("updated", SLEEPER, stop=StopPolicy(grace=1.0)),
        ]
    )
    assert (
        ConfigReloaded(
            added=("new",), changed=("changed",), updated=("updated",), removed=("gone",)
        )
        == told
    )
    wait_for_status(supervisor, "new", up=True)
    assert (
        pids["changed"]
        != wait_for_status(supervisor, "changed", state="up", total_restarts=0)["pid"]
    )
    now = {found["name"]: found["pid"] for found in supervisor.status()}
    assert (pids["same"], pids["updated"]) == (now["same"], now["updated"])
    assert {"same", "new", "changed", "updated"} == set(now)
    assert not psutil.pid_exists(int(str(pids["gone"])))


def test_a_reload_does_not_start_what_an_operator_has_stopped(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER))
    supervisor.stop_programs("a")
    supervisor.reload([ProgramPlan.of("a", ["sleep", "1001"])])
    assert "stopped" == facts(supervisor, "a")["state"]
    assert "up" == supervisor.start_programs("a")[0]["state"]


def test_a_stop_is_remembered_while_a_program_is_in_no_plan(
    make_supervisor: SupervisorFactory,
) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER))
    supervisor.stop_programs("a")
    supervisor.reload([ProgramPlan.of("b", SLEEPER)])
    supervisor.reload([ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER)])
    assert ("stopped", "stopped") == (
        facts(supervisor, "a")["state"],
        facts(supervisor, "a")["desired"],
    )


def test_a_stop_is_remembered_by_a_supervisor_that_hears_of_the_program_later(
    make_supervisor: SupervisorFactory,
) -> None:
    first = make_supervisor(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER))
    first.stop_programs("a")
    first.stop()
    second = make_supervisor(ProgramPlan.of("b", SLEEPER))
    second.reload([ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER)])
    assert "stopped" == facts(second, "a")["desired"]


def test_a_reload_whose_output_has_nowhere_to_go_changes_nothing(
    make_supervisor: SupervisorFactory,
) -> None:
    def streams(plan: ProgramPlan) -> Streams:
        if plan.name == "new":
            raise UsageError("its log is a directory")
        return SILENT

    supervisor = make_supervisor(
        ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER), streams=streams
    )
    pid = wait_for_status(supervisor, "a", up=True)["pid"]
    with pytest.raises(UsageError, match="its log is a directory"):
        supervisor.reload([ProgramPlan.of("b", ["sleep", "1001"]), ProgramPlan.of("new", SLEEPER)])
    assert [("a", pid), ("b", facts(supervisor, "b")["pid"])] == [
        (found["name"], found["pid"]) for found in supervisor.status()
    ]
    supervisor.shut_down()
    assert 0 == supervisor.wait(30.0)


def test_a_reload_with_faults_changes_nothing(make_supervisor: SupervisorFactory) -> None:
    supervisor = make_supervisor(ProgramPlan.of("a", SLEEPER))
    pid = wait_for_status(supervisor, "a", up=True)["pid"]
    with pytest.raises(UsageError, match="which is not a program"):
        supervisor.reload([ProgramPlan.of("a", SLEEPER, depends_on={"b": Condition.READY})])
    assert pid == facts(supervisor, "a")["pid"]
