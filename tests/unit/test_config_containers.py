from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from longwatch.config.containers import (
    ContainerLimitsSettings,
    ContainerSettings,
    ContainersSettings,
)
from longwatch.config.settings import Settings, load_settings, masked_settings
from longwatch.config.tables import (
    BackoffSettings,
    BreakerSettings,
    OutputSettings,
    ProbeSettings,
)
from longwatch.errors import ConfigError
from longwatch.supervisor.containers.container_spec import PublishedPort, PullPolicy
from longwatch.supervisor.dependencies import Condition, Readiness


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, **environ: str) -> Settings:
    path = Path("longwatch.toml")
    path.write_text(text)
    return load_settings(path=path, environ=environ, flags={})


def faults_of(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **environ)
    return [str(fault).removeprefix("longwatch.toml: ") for fault in caught.value.faults]


def fault_of(text: str, **environ: str) -> str:
    [fault] = faults_of(text, **environ)
    return fault


def containers(**tables: str) -> str:
    """The text of a file with these containers, each with an image."""
    return "".join(f"[container.{name}]\nimage = 'app'\n{text}\n" for name, text in tables.items())


def program(name: str, text: str = "") -> str:
    return f"[program.{name}]\ncommand = 'true'\n{text}\n"


# --- [containers] ---


def test_a_file_without_containers_has_the_defaults_and_needs_no_runtime() -> None:
    settings = load("")

    assert ContainersSettings() == settings.containers
    assert not settings.has_containers
    assert (None, "auto", ["."], 5.0, PullPolicy.MISSING, False) == (
        settings.containers.registry,
        settings.containers.runtime,
        settings.containers.bind_roots,
        settings.containers.poll_interval,
        settings.containers.pull,
        settings.containers.stop_on_exit,
    )


def test_what_holds_for_all_containers_is_read() -> None:
    settings = load("""
        [containers]
        registry = "agents.json"
        runtime = "podman"
        bind_roots = ["data", "/srv"]
        poll_interval = 0.1
        pull = "never"
        stop_on_exit = true
    """)

    assert settings.has_containers
    assert ContainersSettings(
        registry="agents.json", runtime="podman", bind_roots=["data", "/srv"], poll_interval=0.1,
        pull=PullPolicy.NEVER, stop_on_exit=True,
    ) == settings.containers  # fmt: skip


@pytest.mark.parametrize(
    ("file", "variable", "runtime"),
    [
        ("auto", "", "auto"),
        ("auto", "docker", "docker"),
        ("docker", "Podman ", "podman"),
        ("docker", "auto", "auto"),
        ("docker", "nerdctl", "docker"),
    ],
)
def test_the_variable_counts_more_than_the_file_if_it_names_a_runtime(
    file: str, variable: str, runtime: str
) -> None:
    settings = load(f"containers.runtime = '{file}'", CONTAINER_RUNTIME=variable)

    assert runtime == settings.containers.runtime


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("registry = ''", 'registry: must be text that is not empty, not ""'),
        ("registry = [1]", "registry: must be text that is not empty, not a list"),
        (
            "runtime = 'dokcer'",
            'runtime: must be "auto", "docker" or "podman", not "dokcer"; did you mean docker?',
        ),
        (
            "bind_roots = '.'",
            'bind_roots: must be a list (text that is not empty each), not "."',
        ),
        (
            "poll_interval = 0.05",
            (
                'poll_interval: must be a duration (0.1 to a year), for example 300, "90s" or '
                '"5m" (units: d, h, m, s, ms), not 0.05'
            ),
        ),
        (
            "pull = 'sometimes'",
            'pull: must be "never", "missing" or "always", not "sometimes"',
        ),
        ("stop_on_exit = 'no'", 'stop_on_exit: must be true or false, not "no"'),
        ("registri = 'x'", "registri: unknown key; did you mean registry?"),
    ],
)
def test_a_wrong_setting_for_all_containers_is_refused(text: str, fault: str) -> None:
    assert fault_of(f"[containers]\n{text}").startswith(f"containers.{fault}")


# --- [container.NAME] ---


def test_a_container_needs_no_more_than_an_image() -> None:
    [made] = load(containers(agent="")).container.values()

    assert ContainerSettings(image="app") == made
    assert ("always", 15.0, signal.SIGTERM, [], (), {}) == (
        made.restart,
        made.stop_grace,
        made.stop_signal_number,
        made.argv,
        made.published_ports,
        made.dependencies,
    )


def test_a_whole_container_is_read() -> None:
    settings = load("""
        [program.db]
        command = ["postgres"]
        [container.agent]
        image = "registry.example.org:5000/team/agent:1.2@sha256:0011"
        command = "serve --fast"
        env = {MODE = "fast"}
        binds = ["data:/data", "conf:/conf:ro"]
        ports = [80, "8080:81", "0.0.0.0:53:53/udp"]
        workdir = "/srv"
        user = "1000:1000"
        network = "agents"
        pull = "always"
        stop_on_exit = true
        restart = "on-failure"
        restart_codes = [2]
        no_restart_codes = [3]
        stop_signal = "INT"
        stop_grace = 5
        stable_after = 30
        backoff.initial = 2
        breaker.cooldown = "off"
        limits.memory = "512MB"
        liveness.script = "live.sh"
        readiness = {port = 80, path = "/ready"}
        startup = {command = ["true"], failure_threshold = 60}
        ready = "healthy"
        ready_timeout = 60
        critical = true
        autostart = false
        depends_on = {db = "started"}
        log.console = false
    """)

    made = settings.container["agent"]
    assert ContainerSettings(
        image="registry.example.org:5000/team/agent:1.2@sha256:0011", command="serve --fast",
        env={"MODE": "fast"}, binds=["data:/data", "conf:/conf:ro"],
        ports=[80, "8080:81", "0.0.0.0:53:53/udp"], workdir="/srv", user="1000:1000",
        network="agents", pull=PullPolicy.ALWAYS, stop_on_exit=True, restart="on-failure",
        restart_codes=[2], no_restart_codes=[3], stop_signal="INT", stop_grace=5.0,
        stable_after=30.0, backoff=BackoffSettings(initial=2.0),
        breaker=BreakerSettings(cooldown="off"), limits=ContainerLimitsSettings(memory="512MB"),
        liveness=ProbeSettings(script="live.sh"),
        readiness=ProbeSettings(port=80, path="/ready"),
        startup=ProbeSettings(command=["true"], failure_threshold=60),
        ready=Readiness.HEALTHY, ready_timeout=60.0, critical=True, autostart=False,
        depends_on={"db": Condition.STARTED}, log=OutputSettings(console=False),
    ) == made  # fmt: skip
    assert (
        PublishedPort(host_port=80, container_port=80),
        PublishedPort(host_port=8080, container_port=81),
        PublishedPort(host_port=53, container_port=53, host="0.0.0.0", protocol="udp"),
    ) == made.published_ports


@pytest.mark.parametrize("name", ["a", "0", "agent-1.x_y", "A" * 64])
def test_a_name_that_a_runtime_takes_is_taken(name: str) -> None:
    assert [name] == list(load(f"[container.'{name}']\nimage = 'app'").container)


@pytest.mark.parametrize("name", ["", "-a", "_a", ".a", "a b", "a/b", "é", "A" * 65])
def test_a_name_that_a_runtime_does_not_take_is_refused(name: str) -> None:
    fault = fault_of(f"[container.'{name}']\nimage = 'app'")

    assert "must be letters, digits, '.', '_' and '-', 64 at most, a letter or digit" in fault


SHARED_NETWORK = (
    ": a container never shares the network of the host or of another container; name a network, "
    "or take it out"
)
NETWORK = "network: must be the name of a network of the runtime, not"
FAULTS = {
    "an image with a space": (
        "image = 'a b'",
        'image: must be the name of an image, such as "python:3.12", without spaces, not "a b"',
    ),
    "an image that is an option": ("image = '--privileged'", "image: must be the name of an image"),
    "an empty image": ("image = ''", "image: must be the name of an image"),
    "a command that was meant for a shell": (
        "command = 'a | b'",
        "command: has '|', which only a shell understands",
    ),
    "an empty command": ("command = []", "command: names no program"),
    "a number as value of a variable": ("env.A = 5", "env.A: must be text, not 5"),
    "a bind that is none": ("binds = [5]", "binds[0]: must be text that is not empty, not 5"),
    "a port that is none": (
        "ports = [70000]",
        'ports[0]: must be a port such as 80, or a text such as "8080:80", not 70000',
    ),
    "a port that is true": ("ports = [true]", "ports[0]: must be a port such as 80"),
    "a text that is no port": (
        "ports = [80, 'http']",
        "ports[1]: expected PORT, HOST_PORT:PORT or ADDRESS:HOST_PORT:PORT, found 'http'; write it",
    ),
    "a port above all ports": ("ports = ['1:99999']", "ports[0]: expected a port from 1 to 65535"),
    "a relative workdir": (
        "workdir = 'code'",
        'workdir: must be an absolute path, such as "/srv/app", not "code"',
    ),
    "the network of the host": ("network = 'host'", f"{NETWORK} 'host'{SHARED_NETWORK}"),
    "the network of another": (
        "network = 'container:db'",
        f"{NETWORK} 'container:db'{SHARED_NETWORK}",
    ),
    "a namespace": ("network = 'ns:/proc/1/ns/net'", NETWORK),
    "a wrong restart": ("restart = 'sometimes'", 'restart: must be "always", "never" or'),
    "a code in both lists": (
        "restart_codes = [3]\nno_restart_codes = [3]",
        "no_restart_codes: has 3, which is in restart_codes too",
    ),
    "too little memory": (
        "limits.memory = '5MiB'",
        "limits.memory: is 5242880 bytes, and no runtime takes less than 6 MiB; give it more",
    ),
    "a limit for processes": ("limits.nice = 1", "limits.nice: unknown key"),
    "health": ("health.port = 80", "health: unknown key"),
    "a directory of this host": ("cwd = '/srv'", "cwd: unknown key"),
    "a heartbeat": (
        "liveness.kind = 'heartbeat'",
        'liveness.kind: is "heartbeat", and a container has no notify socket; choose another kind',
    ),
    "a heartbeat for startup": (
        "liveness.script = 'a'\nstartup.kind = 'heartbeat'",
        'startup.kind: is "heartbeat", and a container has no notify socket',
    ),
    "a probe without a port": (
        "liveness = {}",
        (
            'liveness.port: is missing, and kind is "http"; write the port inside the container, '
            "or choose another kind"
        ),
    ),
    "a connection without a port": ("readiness.kind = 'tcp'", "readiness.port: is missing"),
    "a startup probe that passes twice": (
        "startup = {script = 'a', success_threshold = 2}",
        "startup.success_threshold: must be 1",
    ),
    "ready by notice": (
        "ready = 'notify'",
        (
            'ready: is "notify", and a container has no notify socket; add a readiness table, or '
            'say "up"'
        ),
    ),
    "ready by no probe": ("ready = 'probe'", 'ready: is "probe", and there is no readiness probe'),
    "healthy without a probe": (
        "readiness.script = 'a'\nready = 'healthy'",
        'ready: is "healthy", and nothing says how to ask for its health; add a liveness table',
    ),
    **{
        key: (f"{key} = {value}", f"{key}: unknown key")
        for key, value in {
            "privileged": "true",
            "cap_add": "['SYS_ADMIN']",
            "devices": "['/dev/kvm']",
            "pid": "'host'",
            "ipc": "'host'",
            "security_opt": "[]",
            "userns": "'host'",
            "volumes": "['/:/host']",
        }.items()
    },
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_wrong_container_is_refused_with_its_place_and_the_cure(case: str) -> None:
    text, fault = FAULTS[case]
    image = "" if text.startswith("image") else "image = 'app'\n"

    assert fault_of(f"[container.agent]\n{image}{text}").startswith(f"container.agent.{fault}")


def test_a_container_without_an_image_is_refused() -> None:
    assert fault_of("[container.agent]").startswith("container.agent.image: is missing; set it to")


# --- among programs and workers ---


@pytest.mark.parametrize(
    ("other", "owner"),
    [
        (program("agent"), "a program"),
        (
            "[runner.source.a]\nurl = 'http://a'\n[runner.agent]\ncommand = 'true'\n",
            "the runner",
        ),
    ],
)
def test_a_container_cannot_have_the_name_of_something_else(other: str, owner: str) -> None:
    name = "runner" if owner == "the runner" else "agent"

    assert (
        f"container.{name}: is called {name}, which is the name of {owner}; choose another"
        == fault_of(other + containers(**{name: ""}))
    )


def test_a_container_cannot_have_the_name_of_our_log() -> None:
    assert "which is the name of our own log" in fault_of(containers(watchdog=""))


@pytest.mark.parametrize("name", ["jobs", "jobs-2", "jobs-suspect-1"])
def test_a_worker_cannot_have_the_name_of_a_container(name: str) -> None:
    text = f"[worker.jobs]\ntarget = 'a:b'\nprocesses = 2\n[container.{name}]\nimage = 'app'"

    assert fault_of(text).endswith(f"{name}, which is the name of a container; choose another")


def test_every_name_is_taken_by_something() -> None:
    settings = load(
        program("web") + containers(agent="") + "[worker.jobs]\ntarget = 'a:b'\nprocesses = 2"
    )

    assert {
        "web": "a program", "agent": "a container", "jobs": "worker jobs",
        "jobs-1": "a process of worker jobs", "watchdog": "our own log",
    }.items() <= settings.taken_names.items()  # fmt: skip


def test_programs_containers_and_workers_can_wait_for_each_other() -> None:
    settings = load(
        program("db")
        + program("web", "depends_on = ['agent']")
        + containers(agent="depends_on = ['db']")
        + "[worker.jobs]\ntarget = 'a:b'\ndepends_on = {agent = 'started'}"
    )

    assert {"agent": Condition.READY} == settings.program["web"].dependencies
    assert {"db": Condition.READY} == settings.container["agent"].dependencies
    assert {"agent": Condition.STARTED} == settings.worker["jobs"].dependencies


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            program("web", "depends_on = ['agnet']") + containers(agent=""),
            (
                "program.web.depends_on: waits for 'agnet', which is not a program; did you mean "
                "agent?"
            ),
        ),
        (
            containers(agent="depends_on = ['dbb']") + program("db"),
            "container.agent.depends_on: waits for 'dbb', which is not a program; did you mean db?",
        ),
        (
            program("web", "depends_on = ['agent']") + containers(agent="depends_on = ['web']"),
            "program.web.depends_on: waits for itself: web → agent → web; remove one of them",
        ),
        (
            containers(a="", b="depends_on = {a = 'completed'}"),
            (
                "container.b.depends_on: waits until 'a' is completed, which is started again even "
                'after it ended well; wait for "ready", or let a have restart = "on-failure"'
            ),
        ),
        (
            containers(a="") + "[worker.jobs]\ntarget = 'a:b'\ndepends_on = {a = 'completed'}",
            (
                "worker.jobs.depends_on: waits until 'a' is completed, which is started again even "
                'after it ended well; wait for "ready", or let a have restart = "on-failure"'
            ),
        ),
    ],
)
def test_a_dependency_that_cannot_be_is_told_where_it_stands(text: str, fault: str) -> None:
    assert fault == fault_of(text)


def test_a_container_that_ends_well_for_good_can_be_waited_for() -> None:
    text = containers(setup="restart = 'on-failure'", web="depends_on = {setup = 'completed'}")

    assert 2 == len(load(text).container)


def test_faults_of_containers_and_of_dependencies_are_told_at_once() -> None:
    text = (
        containers(a="network = 'host'\nports = ['x']", b="umask = '022'")
        + program("web", "depends_on = ['a', 'b', 'c']\nready = 'probe'")
        + program("other", "depends_on = ['other']")
    )

    assert [
        "program.web.ready",
        "container.a.ports[0]",
        "container.a.network",
        "container.b.umask",
        "program.web.depends_on",
        "program.other.depends_on",
    ] == [fault.partition(": ")[0] for fault in faults_of(text)]


def test_no_secret_of_a_container_is_shown() -> None:
    settings = load(
        containers(
            agent="command = 'serve --token=s3cret'\nenv.API_KEY = 's3cret'\n"
            "liveness.command = 'probe --password s3cret'"
        )
        + program("web", "readiness.command = 'probe --password s3cret'")
    )

    shown = json.dumps(masked_settings(settings))
    assert "s3cret" not in shown
    assert '"--token=***"' in shown
