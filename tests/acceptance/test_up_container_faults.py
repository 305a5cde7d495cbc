"""`longwatch up` when the runtime, an image, a probe or the settings of a container fail it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import psutil
import pytest

from container_process import (
    LONGWATCH,
    NO_BACKOFF,
    STAYS_UP,
    ContainerProject,
    ProjectFiles,
    container,
    container_project,
    facts_of,
    no_conmon_left,
    require_no_machine_socket,
    script_probe,
    wait_for_container,
)
from podman_fixture import IMAGE, IMAGE_WITHOUT_TIMEOUT, PodmanServer
from polling import eventually
from up_process import SLEEPER, Facts, start_up

NO_PROGRAMS = "/nonexistent"
"""A PATH without podman."""
OFTEN = {"interval": 0.1, "failure_threshold": 1000}
SHORT_TIMEOUTS = (0.12, 0.16, 0.25, 0.4)
"""They end about when the runtime has started the command: before, within and after that."""
BAD_SCRIPTS = {
    "separator": "probes/live.sh",
    "parent": "../live.sh",
    "dots": "..",
    "substitution": "$(touch pwned)",
    "backquotes": "`touch pwned`",
    "quotes": "'live.sh'",
    "space": "live sh",
    "separate-command": "live.sh;touch pwned",
    "dash": "-c",
    "newline": "live.sh\ntouch pwned",
}


@pytest.fixture(scope="module")
def checked_store() -> Iterator[None]:
    with no_conmon_left():
        yield


@pytest.fixture
def project(checked_store: None, tmp_path: Path) -> Iterator[ContainerProject]:
    with container_project(tmp_path) as made:
        yield made


# --- the runtime ---


def test_a_service_of_our_own_that_dies_is_started_again_and_no_container_notices(
    project: ContainerProject,
) -> None:
    """One failed probe would restart the container: those that the runtime did not answer are no
    failures.
    """
    project.write("code/live.sh", "exit 0")
    probe = {"script": "live.sh", "interval": 0.1, "timeout": 20, "failure_threshold": 1}
    project.write_settings({"a": container(binds=["code:/code:ro"], liveness=probe)})
    with project.up() as run:
        run.wait_for_status("a", ready=True)
        before, service = project.life("a"), project.own_service(run)
        service.kill()
        unknown = wait_for_container(run, "a", status="unknown")
        run.wait_for_event("container_runtime_connected", times=2)
        wait_for_container(run, "a", status="running")
        assert (True, 0) == facts_of(run, "a", "up", "total_restarts")
        assert service.pid != project.own_service(run).pid
        run.stop_cleanly()
    assert unknown["reason"]
    assert before == project.life("a")
    assert 1 == len(run.events("container_runtime_unavailable"))
    assert [] == [event["reason"] for event in run.events("health_check_failed")]
    assert [] == project.services()


def test_while_the_runtime_is_away_nothing_counts_as_ended_and_then_each_end_is_seen(
    project: ContainerProject,
) -> None:
    project.write_settings({"dies": container(**NO_BACKOFF), "lives": container()})
    with (
        project.podman.serving() as server,
        project.up(CONTAINER_HOST=f"unix://{server.socket_path}", PATH=NO_PROGRAMS) as run,
    ):
        pid = run.wait_for_status("dies", up=True)["pid"]
        run.wait_for_status("lives", up=True)
        before = project.life("lives")
        server.kill()
        run.wait_for_event("container_runtime_unavailable")
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: ["lives"] == project.running())
        table = run.run_command("status")
        unknown = {name: facts_of(run, name, "up", "desired") for name in ("dies", "lives")}
        server.start()
        run.wait_for_event("container_runtime_connected", times=2)
        ended = run.wait_for_event("unexpected_exit", program="dies", restart=True)
        run.wait_for_event("program_started", program="dies", times=2)
        assert (True, 0) == facts_of(run, "lives", "up", "total_restarts")
        run.stop_cleanly()
    assert {"dies": (True, "up"), "lives": (True, "up")} == unknown
    assert 2 == table.stdout.count("runtime does not answer: ")
    assert ("signal 9", before) == (ended["cause"], project.life("lives"))
    assert 1 == len(run.events("container_runtime_unavailable"))


def test_a_stop_that_the_runtime_does_not_carry_out_is_an_error_and_is_repeated(
    project: ContainerProject,
) -> None:
    project.write_settings({"a": container(stop_grace=0.1)})
    with (
        project.podman.serving() as server,
        project.up(CONTAINER_HOST=f"unix://{server.socket_path}", PATH=NO_PROGRAMS) as run,
    ):
        pid = run.wait_for_status("a", up=True)["pid"]
        server.freeze()
        stopped = run.run_command("stop", "a")
        still_runs = psutil.pid_exists(pid)
        server.kill()
        server.start()
        assert eventually(lambda: [] == project.running())
        run.stop_cleanly()
    assert (75, True) == (stopped.returncode, still_runs)
    assert "a: it may still run: " in stopped.stderr


def test_a_runtime_that_is_named_is_waited_for_and_no_other_is_taken(
    project: ContainerProject,
) -> None:
    """Another runtime has other containers: all of ours would count as removed."""
    project.write_settings({"a": container()})
    with (
        project.podman.serving() as server,
        project.up(CONTAINER_HOST=f"unix://{server.socket_path}") as run,
    ):
        run.wait_for_status("a", up=True)
        server.kill()
        run.wait_for_event("container_runtime_unavailable")
        wait_for_container(run, "a", status="unknown")
        server.start()
        run.wait_for_event("container_runtime_connected", times=2)
        assert [server.pid] == [service.pid for service in project.services()]
        run.stop_cleanly()


def test_containers_and_their_conmon_outlive_kill_9_of_the_guardian(
    project: ContainerProject,
) -> None:
    project.write_settings({"a": container()}, programs={"p": SLEEPER})
    with project.up() as run:
        run.wait_for_status("a", up=True)
        pid = run.wait_for_status("p", up=True)["pid"]
        before, conmon = project.life("a"), project.podman.conmon("a")
        os.kill(run.guardian_pid, signal.SIGKILL)
        assert 75 == run.wait()
    assert not psutil.pid_exists(pid)
    assert (True, before) == (conmon.is_running(), project.life("a"))
    with project.up() as run:
        run.wait_for_event("program_adopted", program="a")
        run.stop_cleanly()


def test_without_a_runtime_programs_run_and_containers_start_as_soon_as_there_is_one(
    project: ContainerProject,
) -> None:
    server = PodmanServer(project.podman.folder / "late.sock", project.podman.env)
    env = {"CONTAINER_HOST": f"unix://{server.socket_path}", "PATH": NO_PROGRAMS}
    program = {"command": ["/bin/sleep", "1000"]}
    project.write_settings({"a": container()}, programs={"p": program}, poll_interval=0.1)
    try:
        with project.up(**env) as run:
            run.wait_for_status("p", up=True)
            missing = run.wait_for_event("container_runtime_unavailable")
            assert (False, "starting") == facts_of(run, "a", "up", "state")
            server.start()
            run.wait_for_status("a", up=True)
            run.stop_cleanly()
    finally:
        server.kill()
    assert "there is no container runtime (CONTAINER_HOST=unix://" in missing["reason"]
    assert "podman is not in PATH); install Podman, or start Docker" in missing["reason"]
    assert [missing] == run.events("container_runtime_unavailable")
    assert [] == run.events("spawn_error")


def test_without_a_runtime_a_stop_is_a_clean_one(tmp_path: Path) -> None:
    require_no_machine_socket()
    program = {"command": ["/bin/sleep", "1000"]}
    ProjectFiles(tmp_path).write_settings({"a": container()}, programs={"p": program})
    with start_up(LONGWATCH, tmp_path, env={"PATH": NO_PROGRAMS}) as run:
        run.wait_for_event("container_runtime_unavailable")
        run.wait_for_status("p", up=True)
        run.stop_cleanly()
    assert 1 == len(run.events("container_runtime_unavailable"))


# --- the container ---


def test_a_container_that_exceeds_its_memory_is_started_again(project: ContainerProject) -> None:
    """Where cgroups are of version 1, Podman 4.3 reports it as any other SIGKILL."""
    grows = container(
        "x=0123456789abcdef; while :; do x=$x$x; done", limits={"memory": "16MiB"}, **NO_BACKOFF
    )
    project.write_settings({"grows": grows, "other": container()})
    with project.up() as run:
        ended = run.wait_for_event("unexpected_exit", program="grows", restart=True)
        run.wait_for_event("program_started", program="grows", times=2)
        assert (True, 0) == facts_of(run, "other", "up", "total_restarts")
        run.stop_cleanly()
    assert ended["cause"] in {"memory", "signal 9"}


def test_an_image_that_is_missing_is_named_and_the_others_run(project: ContainerProject) -> None:
    project.write_settings({"missing": container(image="localhost/none:1"), "other": container()})
    with project.up() as run:
        failed = run.wait_for_event("spawn_error", program="missing", restart=True)
        run.wait_for_status("other", up=True)
        run.wait_for_status("missing", state="waiting")
        table = run.run_command("status", "missing")
        run.stop_cleanly()
    assert 'has no image localhost/none:1, and pull = "never"; run `podman pull' in failed["detail"]
    assert "starts again in" in table.stdout
    assert "has no image localhost/none:1" in table.stdout
    assert ["other"] == project.names()


def test_a_name_that_a_foreign_container_has_breaks_ours_and_leaves_the_foreign_one_alone(
    project: ContainerProject,
) -> None:
    foreign = (
        "run",
        "--detach",
        "--network",
        "none",
        "--name",
        "taken",
        IMAGE,
        "sh",
        "-c",
        STAYS_UP,
    )
    project.podman.run(*foreign)
    before = project.life("taken")
    project.write_settings({"taken": container()})
    with project.up() as run:
        tripped = run.wait_for_event("circuit_breaker_tripped", program="taken")
        broken = run.wait_for_status("taken", state="broken")
        stopped = run.run_command("stop", "taken")
        untouched = before == project.life("taken")
        run.run_command("start", "taken")
        run.wait_for_event("circuit_breaker_tripped", program="taken", times=2)
        project.podman.run("rm", "--force", "--time", "0", "taken")
        run.run_command("reset", "taken")
        run.wait_for_event("program_started", program="taken")
        assert before[0] != run.wait_for_status("taken", up=True)["container"]["id"]
        run.stop_cleanly()
    assert "a container called 'taken' exists and is not ours" in tripped["reason"]
    assert (None, 0, True) == (broken["breaker"]["cooldown_left"], stopped.returncode, untouched)


# --- probes ---


def test_probes_that_hang_leave_no_process_in_the_container_and_no_helper_on_the_host(
    project: ContainerProject,
) -> None:
    """With and without `timeout` in the image; a script that sleeps, and one whose children run in
    the background. The runtime's own setting would keep two processes of each probe for 5 minutes.
    """
    project.write("code/hangs.sh", "sleep 1000")
    project.write("code/forks.sh", "sleep 1000 & sh -c 'sleep 1000 & sleep 1000' & wait")
    conf = project.write("containers.conf", default_exit_delay(project))
    pairs = product(("hangs", "forks"), (IMAGE, IMAGE_WITHOUT_TIMEOUT))
    kinds = {
        f"{script}-{number}": (image, {"script": f"{script}.sh", "timeout": timeout, **OFTEN})
        for number, ((script, image), timeout) in enumerate(zip(pairs, SHORT_TIMEOUTS, strict=True))
    }
    code = {"binds": ["code:/code:ro"]}
    unprobed = {name: container(image=image, **code) for name, (image, _) in kinds.items()}
    probed = {name: {**unprobed[name], "readiness": probe} for name, (_, probe) in kinds.items()}
    project.write_settings(unprobed)
    with project.up(CONTAINERS_CONF=str(conf)) as run:
        for name in kinds:
            run.wait_for_status(name, up=True)
        base = {name: project.processes(name) for name in kinds}
        project.write_settings(probed)
        assert 0 == run.run_command("reload").returncode
        for name in kinds:
            run.wait_for_event("health_check_failed", program=name, times=8)
        project.write_settings(unprobed)
        assert 0 == run.run_command("reload").returncode
        for name in kinds:
            wait_for_processes(project, name, base[name])
        assert eventually(lambda: [4, 1, 0] == helper_counts(project)), helper_counts(project)
        run.stop_cleanly()
    reasons = {failed["reason"] for failed in run.events("health_check_failed")}
    assert {f"not done in {timeout:g} s and killed" for timeout in SHORT_TIMEOUTS} == reasons
    assert [] == run.events("probe_process_leaked")


def test_a_probe_script_that_is_missing_breaks_its_agent_once_and_a_reset_adopts_it(
    project: ContainerProject,
) -> None:
    project.write("code/readme", "")
    project.write_settings({}, registry="agents.json")
    manifest = {"health": {"liveness": script_probe("live.sh")}}
    project.write_agents({"a": container(binds=["code:/code:ro"])}, {"a": manifest})
    with project.up() as run:
        tripped = run.wait_for_event("circuit_breaker_tripped", program="a")
        left = run.wait_for_event("program_left_running", program="a")
        broken = run.wait_for_status("a", state="broken")
        before = project.life("a")
        still_missing = run.run_command("reset", "a")
        run.wait_for_event("circuit_breaker_tripped", program="a", times=2)
        project.write("code/live.sh", "exit 0")
        assert 0 == run.run_command("reset", "a").returncode == still_missing.returncode
        run.wait_for_event("health_check_passed", program="a")
        assert (True, True) == facts_of(run, "a", "up", "ready")
        run.stop_cleanly()
    assert "there is no probe script /code/live.sh in the container" == tripped["reason"]
    assert (tripped["reason"], None) == (left["reason"], broken["breaker"]["cooldown_left"])
    assert before == project.life("a")
    assert (1, 2, 2) == tuple(
        len(run.events(name))
        for name in ("program_started", "program_adopted", "circuit_breaker_tripped")
    )


# --- settings ---


def test_networks_and_scripts_that_lead_out_of_a_container_are_refused_all_at_once(
    tmp_path: Path,
) -> None:
    files = ProjectFiles(tmp_path)
    networks = {"host": container(network="host"), "shared": container(network="container:db")}
    scripts = {name: container(liveness={"script": text}) for name, text in BAD_SCRIPTS.items()}
    files.write_settings({**networks, **scripts}, programs={"p": SLEEPER})
    refused = files.run_command("up")
    assert (2, "") == (refused.returncode, refused.stdout)
    places = fault_places(refused.stderr)
    assert [*networks, *scripts] == [*places]
    assert {
        "network: must be the name of a network of the runtime",
        "liveness.script: must be a file name of up to 128 letters",
    } == {re.split(r", (?:not|digits)", text)[0] for text in places.values()}
    assert ["longwatch.toml"] == [path.name for path in tmp_path.iterdir()], "nothing has run"


def test_binds_that_lead_out_of_their_roots_are_refused_all_at_once(tmp_path: Path) -> None:
    files = ProjectFiles(tmp_path / "project")
    (tmp_path / "outside").mkdir()
    files.write("code/live.sh", "exit 0")
    (files.directory / "code/link").symlink_to(tmp_path / "outside")
    files.write("code/runtime.sock", "")
    binds = {
        "outside": "../outside:/data",
        "link": "code/link:/data",
        "root": "/:/host",
        "missing": "code/missing:/data",
        "socket": "code/runtime.sock:/data",
        "holds-socket": "code:/data",
    }
    files.write_settings({name: container(binds=[text]) for name, text in binds.items()})
    socket = f"unix://{files.directory}/code/runtime.sock"
    refused = files.run_command("up", DOCKER_HOST=socket, CONTAINER_RUNTIME="nonsense")
    assert (2, "") == (refused.returncode, refused.stdout)
    places = fault_places(refused.stderr)
    assert [*binds] == [*places]
    assert {
        **dict.fromkeys(("outside", "link"), "under one of the bind roots"),
        **dict.fromkeys(("root", "socket", "holds-socket"), "socket of the container runtime"),
        "missing": "that exists",
    } == {name: wanted_source(text) for name, text in places.items()}
    assert 'CONTAINER_RUNTIME: must be "auto", "docker" or "podman", not \'nonsense\'' in (
        refused.stderr
    )
    assert not (files.directory / ".longwatch").exists(), "nothing has run"


def test_agents_that_would_get_out_of_their_containers_are_broken_and_nothing_of_them_runs(
    project: ContainerProject,
) -> None:
    (project.directory / "link").symlink_to("/etc")
    entries: dict[str, Facts] = {
        "outside": {"binds": ["/etc:/data"]},
        "link": {"binds": ["link:/data"]},
        "network": {"network": "host"},
        "privileged": {"privileged": True},
    }
    places = {
        "outside": "agents.json: outside.binds[0]: expected a source under one of the bind roots",
        "link": "agents.json: link.binds[0]: expected a source under one of the bind roots",
        "network": "agents.json: network: expected the name of a network of the runtime",
        "privileged": "agents.json: privileged.privileged: expected no privileges",
        **{
            name: f"{name}.json: health.liveness.script: expected a file name of up to"
            for name in BAD_SCRIPTS
        },
    }
    bad = {name: container(**entries.get(name, {})) for name in places}
    manifests = {
        name: {"health": {"liveness": {"script": text}}} for name, text in BAD_SCRIPTS.items()
    }
    project.write_settings({}, programs={"p": SLEEPER}, registry="agents.json")
    project.write_agents({**bad, "good": container()}, manifests)
    with project.up() as run:
        for name in ("good", "p"):
            run.wait_for_status(name, up=True)
        for name, place in places.items():
            breaker = run.wait_for_status(name, state="broken")["breaker"]
            assert (f"{project.directory}/{place}", None) == (
                breaker["reason"][: len(f"{project.directory}/{place}")],
                breaker["cooldown_left"],
            )
        run.stop_cleanly()
    assert ["good"] == project.names()
    assert [] == [*project.directory.rglob("pwned")]


def test_the_socket_of_our_own_service_is_bound_into_no_container(
    project: ContainerProject,
) -> None:
    """A container that reaches it can do everything on the host. It is in the runtime directory."""
    directory = Path(project.env["XDG_RUNTIME_DIR"]) / f"longwatch-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    project.write_settings({}, registry="agents.json", bind_roots=[str(directory)])
    project.write_agents({"nosy": container(binds=[f"{directory}:/data"]), "good": container()})
    with project.up() as run:
        run.wait_for_status("good", up=True)
        assert eventually(lambda: run.status("nosy")["state"] in {"up", "broken"})
        assert "broken" == run.status("nosy")["state"]
        run.stop_cleanly()


def default_exit_delay(project: ContainerProject) -> str:
    """The settings of the private Podman without the key that ends the helpers of a command."""
    text = Path(project.podman.env["CONTAINERS_CONF"]).read_text()
    kept = [line for line in text.splitlines() if not line.startswith("exit_command_delay")]
    assert len(kept) < len(text.splitlines())
    return "\n".join(kept)


def helper_counts(project: ContainerProject) -> list[int]:
    """How many processes of each kind work on the store."""
    return [len(project.podman.helpers(name)) for name in ("conmon", "podman", "runc")]


def wait_for_processes(project: ContainerProject, name: str, wanted: list[str]) -> None:
    assert eventually(lambda: wanted == project.processes(name)), (name, project.processes(name))


def fault_places(stderr: str) -> dict[str, str]:
    """What is wrong, by container: the key and the problem."""
    found = re.findall(
        r"^longwatch: longwatch.toml: container\.([^.]+)\.(.*)$", stderr, re.MULTILINE
    )
    return dict(found)


def wanted_source(text: str) -> str:
    """What was expected of the source of a bind."""
    known = ("under one of the bind roots", "socket of the container runtime", "that exists")
    return next(each for each in known if each in text)
