from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from longwatch.app.plans import make_plans
from longwatch.config.programs import WorkerSettings
from longwatch.config.settings import Settings, load_settings, masked_settings
from longwatch.errors import ConfigError, UsageError
from longwatch.supervisor.dependencies import Condition, Readiness
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.workers import preflight
from longwatch.workers.preflight import WORKER_MODULE, GroupInfo

FACTS = GroupInfo(
    loops=("jobs",),
    health_host="0.0.0.0",
    health_port=None,
    shutdown_timeout=20.0,
    watchdog_threshold=60.0,
)


def settings(text: str, base: Path) -> Settings:
    path = base / "longwatch.toml"
    path.write_text(text)
    return load_settings(path=path, environ={}, flags={})


def only(text: str, base: Path) -> WorkerSettings:
    return settings(f'[worker.jobs]\ntarget = "app:group"\n{text}', base).worker["jobs"]


def faults_of(text: str, base: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        settings(text, base)
    return [str(fault).partition("longwatch.toml: ")[2] for fault in caught.value.faults]


# --- what stands in the file ---


def test_a_target_is_all_it_takes(tmp_path: Path) -> None:
    assert WorkerSettings(target="app:group") == only("", tmp_path)


def test_what_is_not_said_is_one_process_that_is_restarted_when_it_fails() -> None:
    made = WorkerSettings(target="app:group")
    assert (1, "on-failure", 0.0, False, True) == (
        made.processes,
        made.restart,
        made.stop_grace,
        made.critical,
        made.autostart,
    )


@pytest.mark.parametrize(
    ("processes", "names"),
    [(1, ["jobs"]), (2, ["jobs-1", "jobs-2"]), (3, ["jobs-1", "jobs-2", "jobs-3"])],
)
def test_one_process_has_the_name_and_several_are_numbered(
    processes: int, names: list[str]
) -> None:
    assert names == WorkerSettings(target="app:group", processes=processes).names("jobs")


def test_dependencies_are_as_for_a_program(tmp_path: Path) -> None:
    text = '[program.db]\ncommand = "true"\n[worker.jobs]\ntarget = "a:b"\ndepends_on = '
    assert {"db": Condition.READY} == settings(f'{text}["db"]', tmp_path).worker[
        "jobs"
    ].dependencies
    assert {"db": Condition.STARTED} == settings(f'{text}{{db = "started"}}', tmp_path).worker[
        "jobs"
    ].dependencies


TARGET = '[worker.jobs]\ntarget = "app:group"\n'
PROGRAM = 'command = "true"\n'
FAULTS = {
    "no target": ("[worker.jobs]\n", "worker.jobs.target: is missing"),
    "no process": (
        f"{TARGET}processes = 0",
        "worker.jobs.processes: must be a whole number from 1 to 256, not 0",
    ),
    "too many": (
        f"{TARGET}processes = 257",
        "worker.jobs.processes: must be a whole number from 1 to 256, not 257",
    ),
    "a command": (
        f'{TARGET}command = "true"',
        "worker.jobs.command: is for programs; name the group with target",
    ),
    "a typo": (
        f"{TARGET}proceses = 2",
        "worker.jobs.proceses: unknown key; did you mean processes?",
    ),
    "a health table": (f"{TARGET}health.port = 1", "worker.jobs.health: unknown key"),
    "a program's name": (
        f"{TARGET}[program.jobs]\n{PROGRAM}",
        "worker.jobs: is called jobs, which is the name of a program",
    ),
    "a program's name for all": (
        f"{TARGET}processes = 2\n[program.jobs]\n{PROGRAM}",
        "worker.jobs: is called jobs, which is the name of a program",
    ),
    "a program's name for one": (
        f"{TARGET}processes = 2\n[program.jobs-2]\n{PROGRAM}",
        "worker.jobs: has a process jobs-2, which is the name of a program",
    ),
    "a program's name for suspects": (
        f"{TARGET}[program.jobs-suspect-1]\n{PROGRAM}",
        "worker.jobs: has a process jobs-suspect-1, which is the name of a program",
    ),
    "another worker's process": (
        f'{TARGET}processes = 2\n[worker.jobs-1]\ntarget = "a:b"',
        "worker.jobs-1: is called jobs-1, which is the name of a process of worker jobs",
    ),
    "our log's name": (
        '[worker.watchdog]\ntarget = "a:b"',
        "worker.watchdog: is called watchdog, which is the name of our own log",
    ),
    "a name that is no file name": (
        '[worker."../up"]\ntarget = "a:b"',
        'worker."../up": must be letters',
    ),
    "an unknown dependency": (
        f'{TARGET}depends_on = ["db"]',
        "worker.jobs.depends_on: waits for 'db', which is not a program",
    ),
    "a code in both lists": (
        f"{TARGET}restart_codes = [3]\nno_restart_codes = [3]",
        "worker.jobs.no_restart_codes: has 3",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_in_one_line(tmp_path: Path, fault: str) -> None:
    text, words = FAULTS[fault]
    [line] = faults_of(text, tmp_path)
    assert line.startswith(words), line


def test_an_unknown_dependency_of_several_processes_is_told_once(tmp_path: Path) -> None:
    assert 1 == len(faults_of(f'{TARGET}processes = 3\ndepends_on = ["db"]', tmp_path))


def test_workers_that_wait_for_each_other_are_told(tmp_path: Path) -> None:
    text = (
        '[worker.a]\ntarget = "a:b"\ndepends_on = ["b"]\n[worker.b]\ntarget = "a:b"\ndepends_on = '
        '["a"]\n'
    )
    [line] = faults_of(text, tmp_path)
    assert line.startswith("worker.a.depends_on: waits for itself: a → b → a")


def test_a_secret_in_its_environment_is_not_shown(tmp_path: Path) -> None:
    made = settings(
        f'{TARGET}env.DATABASE_URL = "postgresql://me:hunter2@db/x"\nenv.API_TOKEN = "hunter3"\n',
        tmp_path,
    )
    shown = str(masked_settings(made))
    assert "hunter" not in shown
    assert "app:group" in shown


# --- the plans that are made of it ---


@pytest.fixture(autouse=True)
def _a_group_of_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the group is stands fast here; tests/integration/test_worker_import_path.py has how it
    is looked at.
    """

    def looked_at(target: str, **_: object) -> GroupInfo:
        if target == "app:none":
            raise UsageError("'app:none': app has no 'none'")
        return FACTS

    monkeypatch.setattr(preflight, "inspect_group", looked_at)


def planned(text: str, base: Path) -> dict[str, ProgramPlan]:
    environ = {"PATH": os.environ["PATH"], "LONGWATCH_PARENT": "/of/somebody/else", "LANG": "C"}
    return make_plans(
        settings(text, base),
        base=base,
        environ=environ,
        worker_environment=lambda uid: {"LONGWATCH_PARENT": f"/line/{uid}"},
    )


def test_every_process_is_planned_alike_but_for_its_name(tmp_path: Path) -> None:
    made = planned(f"{TARGET}processes = 2\ncritical = true\n", tmp_path)
    assert ["jobs-1", "jobs-2"] == list(made) == [plan.name for plan in made.values()]
    first, second = made.values()
    assert ("jobs", True, Readiness.NOTIFY) == (first.group, first.critical, first.readiness)
    assert first.process == second.process


def test_a_plan_says_whether_it_is_a_worker(tmp_path: Path) -> None:
    made = planned(f'{TARGET}[program.web]\ncommand = ["sleep", "1"]\n', tmp_path)
    assert {"jobs": ProgramKind.WORKER, "web": ProgramKind.COMMAND} == {
        name: plan.kind for name, plan in made.items()
    }


def test_it_runs_our_own_interpreter_with_the_target_and_no_other_words(tmp_path: Path) -> None:
    [plan] = planned(TARGET, tmp_path).values()
    assert (sys.executable, "-m", WORKER_MODULE, "run", "app:group") == tuple(plan.process.argv)


def test_it_is_told_where_its_parent_listens_and_of_no_other_parent(tmp_path: Path) -> None:
    [plan] = planned(TARGET, tmp_path).values()
    assert "/line/None" == plan.process.env["LONGWATCH_PARENT"]
    assert "C" == plan.process.env["LANG"]


@pytest.mark.parametrize(("text", "grace"), [("", 25.0), ("stop_grace = 3", 3.0)])
def test_it_has_five_seconds_more_than_its_group_wants_unless_it_is_said(
    tmp_path: Path, text: str, grace: float
) -> None:
    [plan] = planned(f"{TARGET}{text}", tmp_path).values()
    assert grace == plan.stop.grace


def test_groups_that_cannot_be_run_and_directories_that_are_not_there_are_told_with_all_other_faults(  # noqa: E501 - one name
    tmp_path: Path,
) -> None:
    text = (
        '[worker.a]\ntarget = "app:none"\n[worker.b]\ntarget = "a:b"\ncwd = '
        '"missing"\n[program.c]\ncommand = "no-such-program"\n'
    )
    with pytest.raises(ConfigError) as caught:
        planned(text, tmp_path)
    told = sorted(fault.where.partition(": ")[2] for fault in caught.value.faults)
    assert ["program.c.command", "worker.a.target", "worker.b.cwd"] == told


def test_limits_that_only_root_may_grant_and_users_that_nobody_knows_are_told_where_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    with pytest.raises(ConfigError) as caught:
        planned(f'{TARGET}limits.nice = -20\nuser = "nobdy"\n', tmp_path)
    told = [fault.where.partition(": ")[2] for fault in caught.value.faults]
    assert ["worker.jobs.limits.nice", "worker.jobs.user"] == told
