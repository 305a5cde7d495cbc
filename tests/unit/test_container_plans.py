from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from longwatch.app import container_plans as module
from longwatch.app.container_plans import read_agents, registry_path
from longwatch.app.plans import make_plans, registry_defaults
from longwatch.cli.main import root
from longwatch.config.settings import Settings, load_settings
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.errors import ConfigError
from longwatch.host.process import StopPolicy
from longwatch.supervisor.containers.agent_registry import RegistryDefaults, RegistryError
from longwatch.supervisor.containers.container_spec import (
    Bind,
    ContainerSpec,
    PublishedPort,
    PullPolicy,
)
from longwatch.supervisor.dependencies import Condition, Readiness
from longwatch.supervisor.plan import OutputPolicy, ProgramKind, ProgramPlan
from longwatch.supervisor.probes import (
    CRASH_LOOP_BACKOFF,
    ExecProbe,
    HttpProbe,
    ProbePolicy,
    ProbeSet,
    ScriptProbe,
    StartupPolicy,
    TcpProbe,
)
from longwatch.supervisor.restart_policy import Restart, RestartPolicy

ENVIRON = {"PATH": os.environ["PATH"]}
NO_PROBES = ProbeSet(crash_loop=CRASH_LOOP_BACKOFF)


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the library for containers is installed is no matter here."""
    monkeypatch.setattr(module, "find_spec", lambda _: object())


def load(text: str, base: Path, **environ: str) -> Settings:
    path = base / "longwatch.toml"
    path.write_text(text)
    return load_settings(path=path, environ=environ, flags={})


def planned(text: str, base: Path, **environ: str) -> dict[str, ProgramPlan]:
    return make_plans(load(text, base, **environ), base=base, environ=ENVIRON | environ)


def only(text: str, base: Path, **environ: str) -> ProgramPlan:
    return planned(f"[container.agent]\nimage = 'app'\n{text}", base, **environ)["agent"]


def faults_of(text: str, base: Path, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        planned(text, base, **environ)
    return [str(fault).removeprefix("longwatch.toml: ") for fault in caught.value.faults]


# --- [container.NAME] ---


def test_a_container_with_nothing_but_an_image_is_planned_with_the_defaults(tmp_path: Path) -> None:
    assert ProgramPlan(
        name="agent",
        spec=ContainerSpec(name="agent", image="app"),
        kind=ProgramKind.CONTAINER,
        restart=RestartPolicy(restart=Restart.ALWAYS),
        probes=NO_PROBES,
    ) == only("", tmp_path)


def test_every_setting_of_a_container_arrives_in_its_plan(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "conf").touch()
    plan = planned(
        """
        [program.db]
        command = ["true"]
        [container.agent]
        image = "app:1"
        command = ["serve", "--fast"]
        env = {MODE = "fast"}
        binds = ["data:/data", "conf:/conf:ro"]
        ports = [80, "8080:81"]
        workdir = "/srv"
        user = "1000"
        network = "agents"
        pull = "always"
        stop_on_exit = true
        restart = "on-failure"
        restart_codes = [2]
        no_restart_codes = [3]
        stop_signal = "INT"
        stop_grace = 5
        stable_after = 30
        backoff = {initial = 2, factor = 3, cap = 9, jitter = 0.5}
        breaker = {restarts = 2, window = 5, cooldown = "off"}
        limits.memory = "512MiB"
        liveness.script = "live.sh"
        readiness = {kind = "tcp", port = 80, interval = 2, success_threshold = 3}
        startup = {command = "true", failure_threshold = 60, interval = 0.5}
        ready = "healthy"
        ready_timeout = 60
        critical = true
        autostart = false
        depends_on = {db = "started"}
        log = {console = false, max_bytes = 2048, keep = 1}
        """,
        tmp_path,
    )["agent"]

    assert ContainerSpec(
        name="agent", image="app:1", command=("serve", "--fast"), env={"MODE": "fast"},
        binds=(
            Bind(source=f"{tmp_path}/data", target="/data"),
            Bind(source=f"{tmp_path}/conf", target="/conf", read_only=True),
        ),
        ports=(
            PublishedPort(host_port=80, container_port=80),
            PublishedPort(host_port=8080, container_port=81),
        ),
        workdir="/srv", user="1000", network="agents", memory=512 << 20, pull=PullPolicy.ALWAYS,
        stop_on_exit=True,
    ) == plan.spec  # fmt: skip
    assert RestartPolicy(restart=Restart.ON_FAILURE, restart_codes=(2,), no_restart_codes=(3,)) == (
        plan.restart
    )
    assert BackoffPolicy(initial=2, factor=3, cap=9, jitter=0.5, stable_after=30) == plan.backoff
    assert BreakerPolicy(tolerated=2, window=5, cooldown=None) == plan.breaker
    assert StopPolicy(signal=signal.SIGINT, grace=5) == plan.stop
    assert ProbeSet(
        liveness=ProbePolicy(
            probe=ScriptProbe(script="live.sh"), interval=1.0, failures=5, start_grace=0.0,
            settled_interval=10.0,
        ),
        readiness=ProbePolicy(
            probe=TcpProbe(port=80), interval=2.0, failures=5, successes=3, start_grace=0.0
        ),
        startup=StartupPolicy(probe=ExecProbe(command=("true",)), within=30.0, interval=0.5),
        crash_loop=CRASH_LOOP_BACKOFF,
    ) == plan.probes  # fmt: skip
    assert (Readiness.HEALTHY, 60.0) == (plan.ready_when, plan.ready_timeout)
    assert (True, False, {"db": Condition.STARTED}) == (
        plan.critical,
        plan.autostart,
        plan.depends_on,
    )
    assert OutputPolicy(console=False, max_bytes=2048, keep=1) == plan.output


@pytest.mark.parametrize(
    ("shared", "own", "expected"),
    [
        ("", "", (PullPolicy.MISSING, False)),
        ("pull = 'never'\nstop_on_exit = true", "", (PullPolicy.NEVER, True)),
        (
            "pull = 'never'\nstop_on_exit = true",
            "pull = 'missing'\nstop_on_exit = false",
            (PullPolicy.MISSING, False),
        ),
    ],
)
def test_what_a_container_does_not_say_holds_as_for_all(
    tmp_path: Path, shared: str, own: str, expected: tuple[PullPolicy, bool]
) -> None:
    text = f"[containers]\n{shared}\n[container.agent]\nimage = 'app'\n{own}"
    spec = planned(text, tmp_path)["agent"].spec

    assert isinstance(spec, ContainerSpec)
    assert expected == (spec.pull, spec.stop_on_exit)


def test_probes_of_containers_are_off_when_all_checks_are(tmp_path: Path) -> None:
    text = "readiness = {port = 80}\nready = 'probe'"

    assert HttpProbe(port=80) == getattr(only(text, tmp_path).probes.readiness, "probe", None)
    assert Readiness.PROBE is only(text, tmp_path).ready_when
    off = only(text, tmp_path, HEALTH_CHECK_ENABLED="false")
    assert (NO_PROBES, Readiness.UP) == (off.probes, off.ready_when)


def test_commands_and_scripts_of_probes_are_not_looked_for_on_this_host(tmp_path: Path) -> None:
    text = "liveness.script = 'zzqy.sh'\nreadiness.command = 'zzqy-not-a-command'"

    assert only(text, tmp_path).probes


def test_another_image_makes_a_reload_restart_a_container_and_another_probe_does_not(
    tmp_path: Path,
) -> None:
    before = only("", tmp_path)

    assert not before.needs_restart(only("liveness.port = 5", tmp_path))
    assert before.needs_restart(only("env.A = '1'", tmp_path))


def test_binds_begin_at_the_file_and_lie_below_a_root(tmp_path: Path) -> None:
    data = tmp_path / "elsewhere" / "data"
    data.mkdir(parents=True)
    (tmp_path / "here").mkdir()
    text = "binds = ['../elsewhere/data:/data']"

    with pytest.raises(ConfigError, match=r"expected a source under one of the bind roots"):
        only(text, tmp_path / "here")
    spec = planned(
        f"containers.bind_roots = ['.', '../elsewhere']\n[container.agent]\nimage = 'app'\n{text}",
        tmp_path / "here",
    )["agent"].spec
    assert isinstance(spec, ContainerSpec)
    assert (Bind(source=str(data), target="/data"),) == spec.binds


def test_everything_that_is_wrong_with_containers_and_programs_is_told_at_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "out").symlink_to("/etc")
    text = """
        [program.web]
        command = "zzqy-not-a-command"
        [container.a]
        image = "app"
        binds = ["missing:/m", "out:/o", "data", "data:relative", "data:/d:rx"]
        [container."b.c"]
        image = "app"
        binds = ["data:/d", "./data:/d"]
        ports = ["80:1", "80:2"]
    """
    places = [fault.partition(": ") for fault in faults_of(text, tmp_path)]

    assert [
        ("program.web.command", "command 'zzqy-not-a-command' was not found"),
        ("container.a.binds[0]", "expected a source that exists"),
        ("container.a.binds[1]", "expected a source under one of the bind roots"),
        ("container.a.binds[2]", "expected SOURCE:TARGET"),
        ("container.a.binds[3]", "expected an absolute path other than '/' as target"),
        ("container.a.binds[4]", "expected SOURCE:TARGET"),
        ('container."b.c"', "expected one bind for '/d', found 2"),
        ('container."b.c"', "expected every host port once, found 80/tcp more than once"),
    ] == [
        (where, next(begin for begin in BEGINNINGS if problem.startswith(begin)))
        for where, _, problem in places
    ]


BEGINNINGS = (
    "command 'zzqy-not-a-command' was not found",
    "expected a source that exists",
    "expected a source under one of the bind roots",
    "expected SOURCE:TARGET",
    "expected an absolute path other than '/' as target",
    "expected one bind for '/d', found 2",
    "expected every host port once, found 80/tcp more than once",
)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[container.agent]\nimage = 'app'", "container"),
        ("containers.registry = 'agents.json'", "containers.registry"),
    ],
)
def test_without_the_library_for_containers_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, place: str
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)

    assert [
        (f"{place}: needs aiodocker, which is not installed; run: pip install 'aiodocker>=0.24'")
    ] == faults_of(text, tmp_path)


@pytest.mark.parametrize(
    ("word", "cure"),
    [("dokcer", "did you mean docker?"), ("nerdctl", "correct it or unset it")],
)
def test_a_runtime_nobody_knows_in_the_environment_is_a_fault_where_there_are_containers(
    tmp_path: Path, word: str, cure: str
) -> None:
    assert [
        (
            f'environment variable CONTAINER_RUNTIME: must be "auto", "docker" or "podman", not '
            f"'{word}'; {cure}"
        )
    ] == faults_of("[container.agent]\nimage = 'app'", tmp_path, CONTAINER_RUNTIME=word)
    assert planned("[program.web]\ncommand = 'true'", tmp_path, CONTAINER_RUNTIME=word)


def test_a_file_with_nothing_but_a_registry_declares_something(tmp_path: Path) -> None:
    assert {} == planned("containers.registry = 'agents.json'", tmp_path)
    with pytest.raises(ConfigError, match="declares no program"):
        planned("containers.runtime = 'docker'", tmp_path)


# --- the registry ---


def write_agents(base: Path, **entries: dict[str, object]) -> None:
    (base / "manifest.json").write_text(json.dumps({"health": {"liveness": {"script": "a.sh"}}}))
    common = {"type": "agent", "manifestPath": "manifest.json", "image": "app"}
    (base / "agents.json").write_text(
        json.dumps({name: common | entry for name, entry in entries.items()})
    )


REGISTRY = "containers.registry = 'agents.json'\n"


def test_the_registry_gets_the_settings_for_all_containers(tmp_path: Path) -> None:
    settings = load(
        "[containers]\nregistry = 'etc/agents.json'\nbind_roots = ['a', '/b']\npull = 'never'\n"
        "stop_on_exit = true",
        tmp_path,
    )

    assert RegistryDefaults(
        bind_roots=(tmp_path / "a", Path("/b")), pull=PullPolicy.NEVER, stop_on_exit=True
    ) == registry_defaults(settings, tmp_path)
    assert tmp_path / "etc" / "agents.json" == registry_path(settings, tmp_path)


def test_without_a_registry_there_are_no_agents(tmp_path: Path) -> None:
    assert read_agents(load("", tmp_path), tmp_path) is None


def test_a_registry_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="no such file"):
        read_agents(load(REGISTRY, tmp_path), tmp_path)


def test_agents_are_not_probed_when_all_checks_are_off(tmp_path: Path) -> None:
    write_agents(tmp_path, a={})
    on = read_agents(load(REGISTRY, tmp_path), tmp_path)
    off = read_agents(load(REGISTRY, tmp_path, HEALTH_CHECK_ENABLED="0"), tmp_path)

    assert on is not None
    assert off is not None
    assert on.plans["a"].probes
    assert NO_PROBES == off.plans["a"].probes


def test_an_agent_with_the_name_of_something_else_is_left_out_with_a_warning(
    tmp_path: Path,
) -> None:
    write_agents(tmp_path, web={}, other={})
    reading = read_agents(load(f"{REGISTRY}[program.web]\ncommand = 'true'", tmp_path), tmp_path)

    assert reading is not None
    assert ["other"] == list(reading.plans)
    assert (
        (
            f"{tmp_path}/agents.json: web: expected a name that nothing else has, found that of a "
            f"program, so this agent is ignored; rename it"
        ),
    ) == reading.warnings


# --- longwatch check ---


def run_check(path: Path, *words: str) -> Any:
    """Run `longwatch check`; returns its exit code."""
    return root.main(["check", "--config", str(path), *words], standalone_mode=False)


class Checked:
    """What `longwatch check` exits with and says about a file."""

    def __init__(self, text: str, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = base / "longwatch.toml"
        path.write_text(text)
        self.exit_code = run_check(path)
        self.lines = capsys.readouterr().out.splitlines()
        assert self.exit_code == run_check(path, "--json")
        self.data = json.loads(capsys.readouterr().out)

    def program(self, name: str) -> dict[str, object]:
        [found] = [each for each in self.data["programs"] if each["name"] == name]
        return dict(found)


def test_check_shows_containers_among_the_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
        [program.web]
        command = ["true"]
        depends_on = ["agent"]
        [container.agent]
        image = "app:1"
        command = "serve --token=s3cret"
        user = "1000"
        readiness.script = "ready.sh"
        liveness = {port = 80, path = "/live"}
    """
    done = Checked(text, tmp_path, capsys)

    assert 0 == done.exit_code
    assert done.lines[0].endswith("longwatch.toml is in order: 2 programs")
    assert ["1", "agent", "app:1", "serve", "'--token=***'", "probe", "(script", "ready.sh)"] == (
        done.lines[2].split()[:8]
    )
    assert done.lines[2].endswith("as 1000")
    assert ["2", "web"] == done.lines[3].split()[:2]
    assert "s3cret" not in json.dumps(done.data)
    assert {
        "name": "agent", "kind": "container", "wave": 1, "image": "app:1",
        "command": ["app:1", "serve", "--token=***"], "cwd": None, "user": "1000",
        "ready": "probe", "health": None,
        "probes": {
            "liveness": {"kind": "http", "port": 80, "path": "/live"},
            "readiness": {"kind": "script", "script": "ready.sh"},
        },
        "depends_on": {}, "critical": False, "autostart": True, "fault": "",
    } == done.program("agent")  # fmt: skip
    assert "command" == done.program("web")["kind"]


def test_check_masks_the_command_of_a_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "[container.agent]\nimage = 'app'\nliveness.command = 'x --token s3cret'"
    done = Checked(text, tmp_path, capsys)

    probe = {"kind": "exec", "command": ["x", "--token", "***"]}
    assert {"liveness": probe} == done.program("agent")["probes"]


def test_check_lists_agents_and_exits_with_2_if_one_cannot_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agents(
        tmp_path, good={"command": ["run"]}, bad={"binds": ["/etc:/etc"]}, odd={"colour": "red"}
    )
    done = Checked(REGISTRY, tmp_path, capsys)

    assert 2 == done.exit_code
    assert done.lines[0].endswith("1 of 3 programs cannot start; the notes say why")
    assert ["good", "bad", "odd"] == [line.split()[1] for line in done.lines[2:5]]
    assert "app run" in done.lines[2]
    assert "healthy (script a.sh)" in done.lines[2]
    assert "expected a source under one of the bind roots" in done.lines[3]
    [warning] = done.lines[5:]
    assert warning.startswith(f"warning: {tmp_path}/agents.json: odd.colour: expected a known key")
    assert [warning] == [f"warning: {each}" for each in done.data["warnings"]]
    assert "expected a source under one of the bind roots" in str(done.program("bad")["fault"])
    assert "" == done.program("good")["fault"]


def test_check_is_content_with_a_registry_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agents(tmp_path, good={})
    done = Checked(REGISTRY, tmp_path, capsys)

    assert (0, []) == (done.exit_code, done.data["warnings"])
    assert done.lines[0].endswith("is in order: 1 program")


def test_check_tells_a_registry_that_cannot_be_read_with_all_other_faults(tmp_path: Path) -> None:
    path = tmp_path / "longwatch.toml"
    path.write_text(f"{REGISTRY}[program.web]\ncommand = 'zzqy-not-a-command'")
    (tmp_path / "agents.json").write_text("{")

    with pytest.raises(ConfigError) as caught:
        run_check(path)

    command, registry = caught.value.faults
    assert f"{path}: program.web.command" == command.where
    assert f"{path}: containers.registry" == registry.where
    assert "text that is not valid JSON at line 1" in registry.problem
