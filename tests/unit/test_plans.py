from __future__ import annotations

import os
import pwd
import resource
import signal
import socket
from pathlib import Path

import pytest

from longwatch.app.plans import check_limits, make_plans
from longwatch.app.startup_checks import busy_port_faults, port_problem
from longwatch.config.settings import Settings, load_settings
from longwatch.config.tables import LimitsSettings
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.errors import ConfigError
from longwatch.host.process import ResourceLimits, StopPolicy
from longwatch.supervisor.dependencies import Condition, Readiness
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.probes import (
    ExecProbe,
    HeartbeatProbe,
    HttpProbe,
    Probe,
    ProbePolicy,
    ProbeSet,
    ScriptProbe,
    StartupPolicy,
    TcpProbe,
)
from longwatch.supervisor.restart_policy import Restart, RestartPolicy
from loopback import free_port

ENVIRON = {"PATH": os.environ["PATH"], "LONGWATCH_X": "ours", "LANG": "C"}


def settings(text: str, base: Path, **environ: str) -> Settings:
    path = base / "longwatch.toml"
    path.write_text(text)
    return load_settings(path=path, environ=environ, flags={})


def planned(text: str, base: Path, **environ: str) -> dict[str, ProgramPlan]:
    return make_plans(settings(text, base, **environ), base=base, environ=ENVIRON | environ)


def only(text: str, base: Path, **environ: str) -> ProgramPlan:
    [plan] = planned(f"[program.web]\ncommand = 'true'\n{text}", base, **environ).values()
    return plan


def faults_of(text: str, base: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        planned(text, base)
    return [str(fault) for fault in caught.value.faults]


def fault_of(text: str, base: Path) -> str:
    [fault] = faults_of(text, base)
    return fault


def test_a_program_with_nothing_but_a_command_is_planned_with_the_defaults(tmp_path: Path) -> None:
    plan = only("", tmp_path)

    assert ("web", ("true",), str(tmp_path)) == (plan.name, plan.process.argv, plan.process.cwd)
    assert {"PATH": ENVIRON["PATH"], "LANG": "C", "MANAGED_BY": "longwatch"} == plan.process.env
    assert ProgramPlan(name="web", spec=plan.process) == plan


def test_every_setting_arrives_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    plan = planned(
        """
        [program.db]
        command = ["true"]
        [program.web]
        command = ["true", "x"]
        cwd = "app"
        env.LANG = "de"
        umask = "027"
        restart = "always"
        restart_codes = [3, 2, 3]
        no_restart_codes = [9]
        stop_signal = "INT"
        stop_grace = 3
        stable_after = 7
        backoff = {initial = 2, factor = 3, cap = 9, jitter = 0.5}
        breaker = {restarts = 2, window = 5, cooldown = "off"}
        ready = "notify"
        ready_timeout = 8
        critical = true
        autostart = false
        depends_on = {db = "started"}
        limits = {memory = "2MiB", open_files = 64, nice = 19}
        """,
        tmp_path,
    )["web"]

    assert ("true", "x") == plan.process.argv
    assert (str(tmp_path / "app"), "de", 0o027) == (
        plan.process.cwd,
        plan.process.env["LANG"],
        plan.process.umask,
    )
    assert ResourceLimits(memory=2 << 20, open_files=64, nice=19) == plan.process.limits
    assert (
        RestartPolicy(restart=Restart.ALWAYS, restart_codes=(2, 3), no_restart_codes=(9,))
        == plan.restart
    )
    assert BackoffPolicy(initial=2, factor=3, cap=9, jitter=0.5, stable_after=7) == plan.backoff
    assert BreakerPolicy(tolerated=2, window=5, cooldown=None) == plan.breaker
    assert StopPolicy(signal=signal.SIGINT, grace=3) == plan.stop
    assert (Readiness.NOTIFY, 8.0) == (plan.ready_when, plan.ready_timeout)
    assert (True, False, {"db": Condition.STARTED}) == (
        plan.critical,
        plan.autostart,
        plan.depends_on,
    )


def test_the_same_file_gives_an_equal_plan_and_another_environment_another_one(
    tmp_path: Path,
) -> None:
    assert only("", tmp_path) == only("", tmp_path)
    assert only("", tmp_path).needs_restart(only("env.A = '1'", tmp_path))


def liveness(probe: Probe, **policy: float) -> ProbeSet:
    return ProbeSet(liveness=ProbePolicy(probe=probe, **policy))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("health", "probes"),
    [
        ("{}", liveness(probe=HttpProbe(port=8080))),
        (
            "{path = '/up', port = 1, failures = 2}",
            liveness(probe=HttpProbe(port=1, path="/up"), failures=2),
        ),
        (
            "{kind = 'tcp', interval = 3, timeout = 2}",
            liveness(probe=TcpProbe(port=8080), interval=3, timeout=2),
        ),
        ("{command = 'true -x'}", liveness(probe=ExecProbe(command=("true", "-x")))),
        (
            "{kind = 'heartbeat', start_grace = 1}",
            liveness(probe=HeartbeatProbe(), start_grace=1),
        ),
        (
            "{startup = 9, startup_interval = 2}",
            ProbeSet(
                liveness=ProbePolicy(probe=HttpProbe(port=8080)),
                startup=StartupPolicy(probe=HttpProbe(port=8080), within=9, interval=2),
            ),
        ),
        ("{enabled = false}", ProbeSet()),
    ],
)
def test_health_is_asked_as_the_settings_say(tmp_path: Path, health: str, probes: ProbeSet) -> None:
    assert probes == only(f"health = {health}", tmp_path).probes


def policy(probe: Probe, **options: float | None) -> ProbePolicy:
    """A probe with the defaults of `liveness` and `readiness`."""
    defaults = {"interval": 1.0, "failures": 5, "start_grace": 0.0, "settled_interval": 10.0}
    return ProbePolicy(probe=probe, **{**defaults, **options})  # type: ignore[arg-type]


PROBES = {
    "liveness = {}": ProbeSet(liveness=policy(HttpProbe(port=8080))),
    "liveness = {port = 1, path = '/up', interval = 3, timeout = 2}": ProbeSet(
        liveness=policy(
            HttpProbe(port=1, path="/up"), interval=3.0, timeout=2.0, settled_interval=None
        )
    ),
    "readiness = {kind = 'tcp', success_threshold = 2, start_grace = 4}": ProbeSet(
        readiness=policy(TcpProbe(port=8080), successes=2, start_grace=4.0)
    ),
    "liveness = {command = 'true -x', failure_threshold = 2}": ProbeSet(
        liveness=policy(ExecProbe(command=("true", "-x")), failures=2)
    ),
    "liveness.script = 'live.sh'": ProbeSet(liveness=policy(ScriptProbe(script="live.sh"))),
    "liveness.kind = 'heartbeat'": ProbeSet(
        liveness=policy(HeartbeatProbe(), interval=10.0, settled_interval=None)
    ),
    "startup = {port = 5}": ProbeSet(
        startup=StartupPolicy(probe=HttpProbe(port=5), within=30.0, interval=1.0)
    ),
    "startup = {port = 5, interval = 2, failure_threshold = 4, timeout = 1}": ProbeSet(
        startup=StartupPolicy(probe=HttpProbe(port=5), within=8.0, interval=2.0, timeout=1.0)
    ),
    "health = {}\nreadiness.port = 5\nstartup.port = 6": ProbeSet(
        liveness=ProbePolicy(probe=HttpProbe(port=8080)),
        readiness=policy(HttpProbe(port=5)),
        startup=StartupPolicy(probe=HttpProbe(port=6), within=30.0, interval=1.0),
    ),
    "health.startup = 9\nreadiness.port = 5": ProbeSet(
        liveness=ProbePolicy(probe=HttpProbe(port=8080)),
        readiness=policy(HttpProbe(port=5)),
        startup=StartupPolicy(probe=HttpProbe(port=8080), within=9.0, interval=1.0),
    ),
}


@pytest.mark.parametrize("text", PROBES)
def test_a_program_is_probed_as_the_settings_say(tmp_path: Path, text: str) -> None:
    (tmp_path / "live.sh").touch()

    assert PROBES[text] == only(text, tmp_path).probes
    assert ProbeSet() == only(text, tmp_path, HEALTH_CHECK_ENABLED="no").probes


@pytest.mark.parametrize(
    ("text", "ready", "without_probes"),
    [
        ("readiness = {}", Readiness.PROBE, Readiness.UP),
        ("readiness = {}\nready = 'probe'", Readiness.PROBE, Readiness.UP),
        ("readiness = {}\nliveness = {}\nready = 'healthy'", Readiness.HEALTHY, Readiness.UP),
        ("readiness = {}\nready = 'notify'", Readiness.NOTIFY, Readiness.NOTIFY),
        ("startup = {}", Readiness.HEALTHY, Readiness.UP),
        (
            "readiness = {}\nhealth.enabled = false\nready = 'healthy'",
            Readiness.PROBE,
            Readiness.UP,
        ),
    ],
)
def test_a_program_is_ready_as_its_probes_say_and_without_them_when_it_is_up(
    tmp_path: Path, text: str, ready: Readiness, without_probes: Readiness
) -> None:
    assert ready is only(text, tmp_path).ready_when
    assert without_probes is only(text, tmp_path, HEALTH_CHECK_ENABLED="0").ready_when


def test_a_probe_whose_command_or_script_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    text = (
        "program.web = {command = 'true', liveness.command = './probe', "
        "readiness.script = 'ready.sh', startup.script = 'scripts'}"
    )
    cure = "put it into the working directory, or correct script"

    assert [
        "longwatch.toml: program.web.liveness.command: './probe' does not exist; check the path",
        (f"longwatch.toml: program.web.startup.script: the script '{tmp_path}/scripts' is not a "
        f"file; {cure}"),
        (f"longwatch.toml: program.web.readiness.script: the script '{tmp_path}/ready.sh' does not "
        f"exist; {cure}"),
    ] == faults_of(text, tmp_path)  # fmt: skip


def test_a_script_is_looked_for_in_the_directory_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "live.sh").touch()

    assert only("cwd = 'app'\nliveness.script = 'live.sh'", tmp_path).probes
    assert 1 == len(
        faults_of("program.web = {command='true', cwd='no', liveness.script='x'}", tmp_path)
    )


def test_a_program_whose_checks_are_off_is_ready_when_it_is_up(tmp_path: Path) -> None:
    text = "health = {}\nready = 'healthy'"

    assert Readiness.HEALTHY is only(text, tmp_path).ready_when
    assert Readiness.UP is only(text, tmp_path, HEALTH_CHECK_ENABLED="false").ready_when


def test_the_variables_of_its_user_are_weaker_than_its_own(tmp_path: Path) -> None:
    us = pwd.getpwuid(os.geteuid())
    plan = only(f"user = '{us.pw_name}'\nenv.HOME = '/tmp'", tmp_path)

    assert plan.process.identity is not None
    assert us.pw_uid == plan.process.identity.uid
    assert (us.pw_name, us.pw_name, "/tmp") == tuple(
        plan.process.env[name] for name in ("USER", "LOGNAME", "HOME")
    )


def test_a_file_without_programs_is_told_how_to_declare_one(tmp_path: Path) -> None:
    cure = 'add one: [program.NAME], and below it command = ["…"]'
    assert f"longwatch.toml: declares no program; {cure}" == fault_of("[run]", tmp_path)


def test_a_missing_directory_is_told_once_though_the_command_is_looked_for_in_it(
    tmp_path: Path,
) -> None:
    fault = fault_of(
        "program.web = {command = './serve', cwd = 'no', health.command = './probe'}", tmp_path
    )
    place = "longwatch.toml: program.web.cwd"
    assert (
        f"{place}: the working directory '{tmp_path}/no' does not exist; make it, or correct cwd"
        == fault
    )


def test_a_missing_directory_does_not_hide_a_command_that_is_nowhere(tmp_path: Path) -> None:
    assert 2 == len(
        faults_of("program.web = {command = 'zzqy-not-a-command', cwd = 'no'}", tmp_path)
    )


def test_a_user_nobody_knows_is_told(tmp_path: Path) -> None:
    fault = fault_of("program.web = {command = 'true', user = 'rooot'}", tmp_path)
    assert "longwatch.toml: program.web.user: there is no user 'rooot'; did you mean root?" == fault


def test_a_command_that_is_not_found_is_told_and_that_of_a_check_too(tmp_path: Path) -> None:
    text = "program.'a.b' = {command = 'zzqy-not-a-command', health.command = './probe'}"
    problem = (
        "command 'zzqy-not-a-command' was not found on the PATH; check the spelling or give its "
        "full path"
    )
    assert [
        f'longwatch.toml: program."a.b".command: {problem}',
        "longwatch.toml: program.\"a.b\".health.command: './probe' does not exist; check the path",
    ] == faults_of(text, tmp_path)


def test_a_command_is_looked_for_on_the_path_that_the_program_gets(tmp_path: Path) -> None:
    (tmp_path / "serve").write_text("#!/bin/sh\n")
    (tmp_path / "serve").chmod(0o755)

    assert ("serve",) == planned(
        f"program.web = {{command = 'serve', env.PATH = '{tmp_path}'}}", tmp_path
    )["web"].process.argv
    assert "did not" not in fault_of("program.web.command = 'serve'", tmp_path)


def test_what_only_a_shell_can_do_is_told_as_it_stands_in_a_file(tmp_path: Path) -> None:
    assert fault_of("program.web.command = 'cd /'", tmp_path).endswith(
        'for what a shell does write: ["sh", "-c", "…"]'
    )


def test_what_is_wrong_with_several_programs_is_told_at_once(tmp_path: Path) -> None:
    text = (
        "[program]\na = {command = './a'}\nb = {command = 'true', user = 'rooot', cwd = "
        "'no'}\nc.command = 'true'"
    )
    places = [fault.split(": ")[1] for fault in faults_of(text, tmp_path)]

    assert ["program.a.command", "program.b.user", "program.b.cwd"] == places


def test_limits_that_only_root_may_grant_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    monkeypatch.setattr(
        resource,
        "getrlimit",
        {resource.RLIMIT_NOFILE: (256, 1024), resource.RLIMIT_NICE: (25, 25)}.get,
    )

    assert [] == list(check_limits(LimitsSettings(open_files=1024, nice=-5)))
    assert [
        (
            "limits.open_files: must not be more than 1024, our own hard limit; lower it, or "
            "start as root"
        ),
        (
            "limits.nice: must not be less than -5, the lowest that this process may set; "
            "raise it, or start as root"
        ),
    ] == [str(fault) for fault in check_limits(LimitsSettings(open_files=1025, nice=-6))]


def test_root_may_grant_any_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert [] == list(check_limits(LimitsSettings(open_files=1 << 30, nice=-20)))


def test_a_port_that_somebody_listens_on_is_told_unless_the_program_waits_to_be_started(
    tmp_path: Path,
) -> None:
    text = "[program.web]\ncommand = 'true'\nhealth.port = {port}\nautostart = {autostart}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        [fault] = busy_port_faults(settings(text.format(port=port, autostart="true"), tmp_path))
        later = busy_port_faults(settings(text.format(port=port, autostart="false"), tmp_path))

    problem = (
        f"{port} is not free (address already in use), so health checks would ask another server"
    )
    assert (
        f"longwatch.toml: program.web.health.port: {problem}; stop that one, or choose another port"
        == str(fault)
    )
    assert [] == later


def test_a_port_of_several_probes_that_is_taken_is_told_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = f"[program.web]\ncommand = 'true'\nliveness.port = {port}\nreadiness.port = {port}"
        [fault] = busy_port_faults(settings(text, tmp_path))

    assert "longwatch.toml: program.web.liveness.port" == fault.where


def test_a_free_port_is_no_problem() -> None:
    assert "" == port_problem(free_port())
