from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from awaiting import eventually
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.events import CircuitBreakerTripped, Events, PlanReloaded, ProgramStarted
from longwatch.errors import (
    GuardianLostError,
    ServiceStateError,
    StoreFullError,
    TryAgainError,
    UsageError,
)
from longwatch.store.sqlite import SqliteDatabase
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

SLEEPER = ["sleep", "1000"]
AT_ONCE = BackoffPolicy(initial=0.0)
SILENT = Streams(None, None, None)


class Keeper:
    """Makes supervisors that are stopped in the end."""

    def __init__(self, state: Path) -> None:
        self.state = state / "made" / "anew"
        self.made: list[Supervisor] = []
        self.heard = RecordingObserver()

    def __call__(self, *plans: ProgramPlan, **options: object) -> Supervisor:
        """One that runs, with a state directory unless told otherwise."""
        made = Supervisor(
            plans,
            **{  # type: ignore[arg-type]
                "state": self.state,
                "streams": lambda _: SILENT,
                "events": Events(self.heard),
                **options,
            },
        )
        self.made.append(made)
        made.start()
        return made

    def starts(self, name: str) -> int:
        return len([event for event in self.heard.of(ProgramStarted) if event.program == name])


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keeper]:
    keeper = Keeper(tmp_path)
    yield keeper
    for supervisor in keeper.made:
        supervisor.stop()


def facts(supervisor: Supervisor, name: str) -> dict[str, object]:
    [found] = supervisor.status(name)
    return found


def until(supervisor: Supervisor, name: str, **wanted: object) -> dict[str, object]:
    """The facts of a program once they hold these."""
    found: dict[str, object] = {}

    def holds() -> bool:
        found.update(facts(supervisor, name))
        return all(found[key] == value for key, value in wanted.items())

    assert eventually(holds), f"{name} has not come to {wanted}: {found}"
    return found


# --- up, down, again ------------------------------------------------------------------------------


def test_programs_are_up_after_the_start_and_gone_after_the_stop(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER))
    pids = [until(supervisor, name, up=True, ready=True, state="up")["pid"] for name in ("a", "b")]
    supervisor.stop()
    assert [False, False] == [psutil.pid_exists(int(str(pid))) for pid in pids]


def test_a_killed_program_comes_back_and_its_restart_is_counted(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER, backoff=AT_ONCE))
    pid = until(supervisor, "a", up=True)["pid"]
    os.kill(int(str(pid)), signal.SIGKILL)
    found = until(supervisor, "a", up=True, total_restarts=1)
    assert pid != found["pid"]
    assert "signal 9" == found["last_end"]["cause"]  # type: ignore[index]


def test_stop_start_and_restart_do_what_they_say(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER))
    first = until(supervisor, "a", up=True)["pid"]
    [stopped] = supervisor.stop_programs("a")
    assert ("stopped", "stopped", False, None) == tuple(
        stopped[key] for key in ("state", "desired", "up", "pid")
    )
    [started] = supervisor.start_programs("a")
    assert ("up", "up", True) == tuple(started[key] for key in ("state", "desired", "up"))
    [again] = supervisor.restart_programs("a")
    assert 3 == len({first, started["pid"], again["pid"]})


def test_a_restart_of_all_leaves_alone_what_was_stopped_and_takes_a_good_end_for_done(
    keep: Keeper,
) -> None:
    supervisor = keep(
        ProgramPlan.of("a", SLEEPER),
        ProgramPlan.of("off", SLEEPER),
        ProgramPlan.of("job", ["true"]),
    )
    supervisor.stop_programs("off")
    until(supervisor, "job", state="ended")
    assert {"a", "job"} == {found["name"] for found in supervisor.restart_programs()}
    assert "stopped" == facts(supervisor, "off")["state"]
    assert 2 == keep.starts("job")


def test_a_start_of_what_is_up_changes_nothing(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER))
    first = until(supervisor, "a", up=True)["pid"]
    assert first == supervisor.start_programs("a")[0]["pid"]


def test_a_program_that_ended_by_itself_is_left_alone_and_can_be_started_again(
    keep: Keeper,
) -> None:
    supervisor = keep(ProgramPlan.of("a", ["true"]))
    until(supervisor, "a", state="ended", desired="up")
    assert 1 == keep.starts("a")
    with suppress(TryAgainError):  # it may be gone again before anybody looks
        supervisor.start_programs("a")
    assert 2 == keep.starts("a")


def test_a_program_that_is_not_to_start_by_itself_waits_to_be_started(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER, autostart=False))
    assert "stopped" == facts(supervisor, "a")["state"]
    assert "up" == supervisor.start_programs("a")[0]["state"]


def test_a_start_that_fails_at_once_is_told_with_what_became_of_it(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", ["/no/such/program"], autostart=False))
    with pytest.raises(TryAgainError, match=r"a did not stay up \(spawn_error, waiting\)"):
        supervisor.start_programs("a")


def test_an_unknown_program_gets_the_nearest_name(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("worker", SLEEPER))
    with pytest.raises(UsageError, match="no program 'wroker'; did you mean worker"):
        supervisor.stop_programs("wroker")


def test_commands_of_many_threads_at_once_leave_it_as_the_last_wish_says(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER, backoff=AT_ONCE))

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
    until(supervisor, "a", state="stopped", up=False)
    assert "up" == supervisor.start_programs("a")[0]["state"]


# --- what is remembered ---------------------------------------------------------------------------


def test_an_operators_stop_survives_the_supervisor(keep: Keeper) -> None:
    first = keep(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER))
    first.stop_programs("a")
    first.stop()
    second = keep(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER))
    until(second, "b", up=True)
    assert ("stopped", "stopped") == (facts(second, "a")["state"], facts(second, "a")["desired"])


def test_an_open_breaker_survives_the_supervisor_and_a_reset_closes_it(keep: Keeper) -> None:
    fragile = ProgramPlan.of(
        "a", ["sh", "-c", "exit 1"], backoff=AT_ONCE, breaker=BreakerPolicy(tolerated=1)
    )
    first = keep(fragile)
    until(first, "a", state="broken")
    starts = keep.starts("a")
    first.stop()
    second = keep(fragile)
    assert "broken" == until(second, "a", state="broken")["state"]
    assert starts == keep.starts("a")
    second.reset_programs("a")
    assert eventually(lambda: keep.starts("a") > starts)


def test_a_broken_program_that_was_stopped_starts_at_once_when_it_is_told_to(keep: Keeper) -> None:
    fragile = BreakerPolicy(tolerated=0, cooldown=None)
    supervisor = keep(ProgramPlan.of("a", ["false"], backoff=AT_ONCE, breaker=fragile))
    until(supervisor, "a", state="broken")
    supervisor.stop_programs("a")
    with suppress(TryAgainError):  # it fails again, of course
        supervisor.start_programs("a", timeout=10.0)
    assert 2 == keep.starts("a")


def test_a_stop_that_cannot_be_remembered_is_told(
    keep: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreFullError("the disk is full")

    supervisor = keep(ProgramPlan.of("a", SLEEPER))
    until(supervisor, "a", up=True)
    monkeypatch.setattr(SqliteDatabase, "write", full)
    with pytest.raises(TryAgainError, match=r"done, but not remembered .*: the disk is full"):
        supervisor.stop_programs("a")
    assert "stopped" == facts(supervisor, "a")["state"]
    monkeypatch.undo()


def test_a_supervisor_can_be_stopped_and_started_again(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER))
    supervisor.stop()
    with pytest.raises(ServiceStateError, match="not running"):
        supervisor.status()
    supervisor.start()
    until(supervisor, "a", up=True)


def test_one_state_directory_has_one_supervisor(keep: Keeper) -> None:
    keep(ProgramPlan.of("a", SLEEPER))
    with pytest.raises(TryAgainError, match="supervising"):
        keep(ProgramPlan.of("a", SLEEPER))


# --- dependencies ---------------------------------------------------------------------------------


def test_a_program_waits_until_another_says_that_it_is_ready(keep: Keeper, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = (
        "import os, socket, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "s.sendto(b'READY=1\\nSTATUS=serving', os.environ['NOTIFY_SOCKET'])\n"
        "time.sleep(1000)\n"
    )
    supervisor = keep(
        ProgramPlan.of("web", SLEEPER, depends_on={"db": Condition.READY}),
        ProgramPlan.of("db", ["python3", "-c", script], readiness=Readiness.NOTIFY),
    )
    until(supervisor, "db", up=True, ready=False)
    assert ["db: ready"] == until(supervisor, "web", state="pending")["waiting_for"]
    go.touch()
    until(supervisor, "web", up=True)
    assert "serving" == facts(supervisor, "db")["status_text"]


def test_a_program_waits_until_another_has_completed(keep: Keeper, tmp_path: Path) -> None:
    done = tmp_path / "done"
    supervisor = keep(
        ProgramPlan.of("migrate", ["sh", "-c", f"sleep 0.1; touch {done}"]),
        ProgramPlan.of(
            "web",
            ["sh", "-c", f"test -e {done} && exec sleep 1000"],
            depends_on={"migrate": Condition.COMPLETED},
        ),
    )
    until(supervisor, "web", up=True)
    assert 1 == keep.starts("web")


def test_dependents_stop_before_what_they_depend_on(keep: Keeper) -> None:
    supervisor = keep(
        ProgramPlan.of("db", SLEEPER),
        ProgramPlan.of("web", SLEEPER, depends_on={"db": Condition.STARTED}),
    )
    until(supervisor, "web", up=True)
    supervisor.stop()
    stopping = [event.program for event in keep.heard.events if event.name == "program_stopping"]  # type: ignore[attr-defined]
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


def test_a_critical_program_that_breaks_takes_everything_down_with_100(keep: Keeper) -> None:
    supervisor = keep(
        ProgramPlan.of(
            "vital", ["false"], backoff=AT_ONCE, breaker=BreakerPolicy(tolerated=1), critical=True
        ),
        ProgramPlan.of("deaf", ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]),
    )
    assert 100 == supervisor.wait(30.0)
    assert 1 == len(keep.heard.of(CircuitBreakerTripped))
    assert not facts(supervisor, "deaf")["up"]


@pytest.mark.parametrize("code", [2, 101])
def test_a_critical_program_that_fails_for_good_is_100_too(keep: Keeper, code: int) -> None:
    supervisor = keep(
        ProgramPlan.of("vital", ["sh", "-c", f"exit {code}"], critical=True),
        ProgramPlan.of("a", SLEEPER),
    )
    assert 100 == supervisor.wait(30.0)


def test_a_critical_program_that_ends_well_ends_nothing(keep: Keeper) -> None:
    supervisor = keep(
        ProgramPlan.of("vital", ["true"], critical=True), ProgramPlan.of("a", SLEEPER)
    )
    until(supervisor, "vital", state="ended")
    until(supervisor, "a", up=True)


def test_a_shutdown_that_had_to_kill_is_1_and_another_0(keep: Keeper) -> None:
    deaf = ProgramPlan.of(
        "deaf",
        ["sh", "-c", "trap '' TERM; echo; while :; do sleep 1; done"],
        stop=StopPolicy(grace=0.3),
    )
    supervisor = keep(deaf)
    until(supervisor, "deaf", up=True)
    assert eventually(lambda: trapped(supervisor, "deaf"))
    supervisor.shut_down()
    assert 1 == supervisor.wait(30.0)
    supervisor.stop()
    supervisor = keep(ProgramPlan.of("a", SLEEPER))
    until(supervisor, "a", up=True)
    supervisor.shut_down()
    assert 0 == supervisor.wait(30.0)


def trapped(supervisor: Supervisor, name: str) -> bool:
    """Whether the shell has come to ignore SIGTERM."""
    status = Path(f"/proc/{facts(supervisor, name)['pid']}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) & 1 << (signal.SIGTERM - 1))


def test_a_lost_guardian_is_told_to_who_waits_and_leaves_nothing(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER))
    pid = int(str(until(supervisor, "a", up=True)["pid"]))
    assert supervisor.guardian.pid is not None
    os.kill(supervisor.guardian.pid, signal.SIGKILL)
    with pytest.raises(GuardianLostError):
        supervisor.wait(30.0)
    assert not lives(pid)


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


# --- reload ---------------------------------------------------------------------------------------


def test_a_reload_touches_only_what_changed(keep: Keeper) -> None:
    same, gone = ProgramPlan.of("same", SLEEPER), ProgramPlan.of("gone", SLEEPER)
    changed, updated = ProgramPlan.of("changed", SLEEPER), ProgramPlan.of("updated", SLEEPER)
    supervisor = keep(same, gone, changed, updated)
    pids = {
        name: until(supervisor, name, up=True)["pid"]
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
        PlanReloaded(added=("new",), changed=("changed",), updated=("updated",), removed=("gone",))
        == told
    )
    until(supervisor, "new", up=True)
    assert pids["changed"] != until(supervisor, "changed", up=True, total_restarts=0)["pid"]
    now = {found["name"]: found["pid"] for found in supervisor.status()}
    assert (pids["same"], pids["updated"]) == (now["same"], now["updated"])
    assert {"same", "new", "changed", "updated"} == set(now)
    assert not psutil.pid_exists(int(str(pids["gone"])))


def test_a_reload_does_not_start_what_an_operator_has_stopped(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER))
    supervisor.stop_programs("a")
    supervisor.reload([ProgramPlan.of("a", ["sleep", "1001"])])
    assert "stopped" == facts(supervisor, "a")["state"]
    assert "up" == supervisor.start_programs("a")[0]["state"]


def test_a_stop_is_remembered_while_a_program_is_in_no_plan(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER))
    supervisor.stop_programs("a")
    supervisor.reload([ProgramPlan.of("b", SLEEPER)])
    supervisor.reload([ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER)])
    assert ("stopped", "stopped") == (
        facts(supervisor, "a")["state"],
        facts(supervisor, "a")["desired"],
    )


def test_a_stop_is_remembered_by_a_supervisor_that_hears_of_the_program_later(keep: Keeper) -> None:
    first = keep(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER))
    first.stop_programs("a")
    first.stop()
    second = keep(ProgramPlan.of("b", SLEEPER))
    second.reload([ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER)])
    assert "stopped" == facts(second, "a")["desired"]


def test_a_reload_whose_output_has_nowhere_to_go_changes_nothing(keep: Keeper) -> None:
    def streams(plan: ProgramPlan) -> Streams:
        if plan.name == "new":
            raise UsageError("its log is a directory")
        return SILENT

    supervisor = keep(ProgramPlan.of("a", SLEEPER), ProgramPlan.of("b", SLEEPER), streams=streams)
    pid = until(supervisor, "a", up=True)["pid"]
    with pytest.raises(UsageError, match="its log is a directory"):
        supervisor.reload([ProgramPlan.of("b", ["sleep", "1001"]), ProgramPlan.of("new", SLEEPER)])
    assert [("a", pid), ("b", facts(supervisor, "b")["pid"])] == [
        (found["name"], found["pid"]) for found in supervisor.status()
    ]
    supervisor.shut_down()
    assert 0 == supervisor.wait(30.0)


def test_a_reload_with_faults_changes_nothing(keep: Keeper) -> None:
    supervisor = keep(ProgramPlan.of("a", SLEEPER))
    pid = until(supervisor, "a", up=True)["pid"]
    with pytest.raises(UsageError, match="which is no program"):
        supervisor.reload([ProgramPlan.of("a", SLEEPER, depends_on={"b": Condition.READY})])
    assert pid == facts(supervisor, "a")["pid"]
