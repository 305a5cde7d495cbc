"""`longwatch up` keeps containers of a real Podman up: agents of a registry and containers of its
file, over its own end, an operator's commands and changes of its files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from container_process import (
    NO_BACKOFF,
    STAYS_UP,
    ContainerProject,
    ProjectFiles,
    container,
    container_project,
    facts_of,
    kill_supervisor,
    no_conmon_left,
    require_published_ports,
    script_probe,
    wait_for_container,
)
from podman_fixture import IMAGE_WITHOUT_TIMEOUT
from polling import complete_lines, eventually
from requires import skip_without_program
from run_process import run_longwatch
from up_process import SLEEPER, sh, unused_port

SAYS_LINES = "trap 'exit 0' TERM; busybox tail -n 99 -f /shared/lines & wait"
"""Repeats the lines of a file that the test appends to."""


@pytest.fixture(scope="module")
def checked_store() -> Iterator[None]:
    with no_conmon_left():
        yield


@pytest.fixture
def project(checked_store: None, tmp_path: Path) -> Iterator[ContainerProject]:
    with container_project(tmp_path) as made:
        yield made


# --- how each stands, and what can be done to it ---


def test_status_distinguishes_a_crash_loop_from_failed_liveness_and_failed_readiness(
    project: ContainerProject,
) -> None:
    project.write("code/live.sh", "test -e /code/alive")
    project.write("code/ready.sh", "echo not yet; exit 1")
    alive = project.write("code/alive", "")
    code = {"binds": ["code:/code:ro"]}
    project.write_settings({"crash": container("exit 3", **NO_BACKOFF)}, registry="agents.json")
    project.write_agents(
        {
            "live": container(agentName="watcher", repoName="tools", **code),
            "slow": container(**code),
        },
        {
            "live": {"health": {"liveness": script_probe("live.sh")}},
            "slow": {"health": {"readiness": script_probe("ready.sh")}},
        },
    )
    with project.up() as run:
        run.wait_for_event("health_check_passed", program="live", probe="liveness")
        alive.unlink()
        ended = run.wait_for_event("health_check_restart", program="live", restart=True)
        held = run.wait_for_event("probing_held", program="live")
        run.wait_for_event("program_not_ready", program="slow", reason="exit 1: not yet")
        run.wait_for_status("crash", state="broken")
        as_json = run.run_command("status", "--json")
        as_table = run.run_command("status")
        run.stop_cleanly()
    status = {facts["name"]: facts for facts in json.loads(as_json.stdout)["programs"]}
    assert {"container"} == {facts["kind"] for facts in status.values()}
    assert [True] * 5 + [False] == [end["restart"] for end in run.events("unexpected_exit")]
    assert ("open", 5, "exit 3", False) == (
        status["crash"]["breaker"]["phase"],
        status["crash"]["total_restarts"],
        status["crash"]["last_end"]["cause"],
        status["crash"]["up"],
    )
    assert ("2 failed health checks in a row: exit 1", 1) == (ended["detail"], held["restarts"])
    assert (True, False, 1, "watcher", "tools", "pending") == (
        status["live"]["up"],
        status["live"]["ready"],
        status["live"]["crash_loop_restarts"],
        status["live"]["agent"],
        status["live"]["repo"],
        status["live"]["probes"]["liveness"]["state"],
    )
    assert 9 < held["seconds"] <= 10
    assert (True, False, 0, "failed") == (
        status["slow"]["up"],
        status["slow"]["ready"],
        status["slow"]["total_restarts"],
        status["slow"]["probes"]["readiness"]["state"],
    )
    assert 1 == as_json.returncode == as_table.returncode, "crash is not as it is wanted"
    _, *rows = as_table.stdout.splitlines()
    states = [row.split()[:2] for row in rows if not row.startswith("  ")]
    assert [["crash", "broken"], ["live", "up"], ["slow", "up"]] == states
    for note in (
        "`longwatch reset crash` starts it now",
        "crash loop: probes on hold after 1 restart",
        "not ready: exit 1: not yet",
    ):
        assert note in as_table.stdout


def test_every_crash_loop_of_several_at_once_ends_broken(project: ContainerProject) -> None:
    """Ends of one container and starts of others overlap, and no end is taken for an operator's
    stop.
    """
    names = [f"crash-{number}" for number in range(8)]
    project.write_settings({name: container("exit 3", **NO_BACKOFF) for name in names})
    with project.up() as run:
        for name in names:
            run.wait_for_event("circuit_breaker_tripped", program=name)
            assert ("broken", "up", 5) == facts_of(run, name, "state", "desired", "total_restarts")
        run.stop_cleanly()
    assert [] == run.events("stopped")


def test_commands_do_to_a_container_what_they_do_to_a_program(project: ContainerProject) -> None:
    project.write_settings(
        {"a": container(), "crash": container("exit 3", breaker={"restarts": 1})}
    )
    with project.up() as run:
        run.wait_for_status("a", up=True)
        first = project.life("a")
        stopped = run.run_command("stop", "a")
        assert (0, "a is stopped\n") == (stopped.returncode, stopped.stdout)
        assert ("stopped", "stopped", None) == facts_of(run, "a", "state", "desired", "pid")
        assert "a" not in project.running()
        started = run.run_command("start", "a")
        second = project.life("a")
        pid = run.status("a")["pid"]
        assert (0, f"a is up, pid {pid}, ready\n") == (started.returncode, started.stdout)
        restarted = run.run_command("restart", "a", "--json")
        [facts] = json.loads(restarted.stdout)["programs"]
        third = project.life("a")
        assert pid != facts["pid"]
        run.wait_for_event("circuit_breaker_tripped", program="crash")
        reset = run.run_command("reset", "crash")
        assert 0 == reset.returncode
        run.wait_for_event("program_started", program="crash", start_number=3)
        run.wait_for_event("circuit_breaker_tripped", program="crash", times=2)
        shown = run.run_command("events", "a", "--json", "-n", "99")
        run.stop_cleanly()
    assert 1 == len({container_id for container_id, _ in (first, second, third)}), "made once"
    assert 3 == len({first, second, third})
    happened = [json.loads(line)["event"] for line in shown.stdout.splitlines()]
    assert 3 == happened.count("program_started")
    assert 2 == happened.count("stopped") == happened.count("program_stopping")
    assert ["stop", "start", "restart", "reset"] == [
        received["command"] for received in run.logged_events("control_command_received")
    ]


def test_every_line_of_a_container_comes_to_its_log_and_to_stdout_with_its_tag(
    project: ContainerProject,
) -> None:
    """Including the first line after a start, and the last one of a container that ends at once."""
    talkers = [f"talker-{number}" for number in range(4)]
    says = container(f"echo first; echo second >&2; {STAYS_UP}")
    last_words = container("echo last words; exit 3", breaker={"restarts": 1}, **NO_BACKOFF)
    project.write_settings({**dict.fromkeys(talkers, says), "short": last_words})
    with project.up() as run:
        for name in talkers:
            run.wait_for_output(f"{name} | first")
            run.wait_for_output(f"{name} | second")
        run.wait_for_event("circuit_breaker_tripped", program="short")
        assert eventually(lambda: 2 <= len(complete_lines(run.logs / "short.log")))
        shown = run.run_command("logs", "talker-0")
        tagged = run.run_command("logs", "talker-0", "short")
        run.stop_cleanly()
    for name in talkers:
        assert ["first", "second"] == complete_lines(run.logs / f"{name}.log")
    assert ["last words", "last words"] == complete_lines(run.logs / "short.log")
    assert ["first", "second"] == shown.stdout.splitlines()
    assert {"talker-0 | first", "short    | last words"} <= {*tagged.stdout.splitlines()}


# --- it outlives the supervisor ---


def test_containers_outlive_the_supervisor_and_the_next_one_adopts_them(
    project: ContainerProject,
) -> None:
    """After kill -9 and after SIGTERM. What is known of them is remembered, none is made twice, and
    their output goes on where it ended.
    """
    lines = project.write("shared/lines", "")
    containers = {
        "a": container(**NO_BACKOFF),
        "says": container(SAYS_LINES, binds=["shared:/shared"]),
    }
    project.write_settings(containers)
    with project.up() as run:
        run.wait_for_status("a", up=True)
        project.podman.run("kill", "a")
        run.wait_for_event("program_started", program="a", times=2)
        append(lines, "one")
        run.wait_for_output("says | one")
        lives = {name: project.life(name) for name in containers}
        kill_supervisor(run)
    append(lines, "two")
    assert lives == {name: project.life(name) for name in containers}
    with project.up() as run:
        run.wait_for_event("program_adopted", program="a")
        run.wait_for_event("program_adopted", program="says")
        assert (True, 1, 1) == facts_of(run, "a", "up", "total_restarts", "consecutive_failures")
        assert lives["a"][0] == run.status("a")["container"]["id"]
        append(lines, "three")
        run.wait_for_output("says | three")
        run.stop_cleanly()
    assert {*containers} == {left["program"] for left in run.events("program_left_running")}
    assert lives == {name: project.life(name) for name in containers}
    assert ["one", "two", "three"] == complete_lines(run.logs / "says.log")
    assert [*containers] == project.names()


def test_containers_stop_with_the_supervisor_where_that_is_asked_for(
    project: ContainerProject,
) -> None:
    project.write_settings({"stays": container(stop_on_exit=False)}, registry="agents.json")
    project.write_agents({"agent": container(stopOnExit=True)})
    with project.up() as run:
        for name in ("stays", "agent"):
            run.wait_for_status(name, up=True)
        run.stop_cleanly()
    assert ["agent", "stays"] == project.names()
    assert ["stays"] == project.running()
    assert ["agent"] == [ended["program"] for ended in run.events("shutdown_complete")]


# --- an operator at the runtime ---


def test_a_container_that_an_operator_stops_stays_so_until_an_operator_starts_it(
    project: ContainerProject,
) -> None:
    project.write_settings({"a": container(), "b": container()})
    with project.up() as run:
        for name in ("a", "b"):
            run.wait_for_status(name, up=True)
        project.podman.run("stop", "a")
        run.wait_for_status("a", state="stopped", desired="stopped")
        table = run.run_command("status")
        run.stop_cleanly()
    assert 0 == table.returncode, "it is as it is wanted"
    with project.up() as run:
        run.wait_for_event("program_adopted", program="b")
        assert ("stopped", "stopped") == facts_of(run, "a", "state", "desired")
        assert ["b"] == project.running()
        project.podman.run("start", "a")
        run.wait_for_event("program_adopted", program="a")
        assert ("up", "up", 0) == facts_of(run, "a", "state", "desired", "total_restarts")
        run.stop_cleanly()
    assert [] == run.events("program_started")


def test_a_stop_by_the_docker_client_is_an_operators_stop(project: ContainerProject) -> None:
    skip_without_program("docker", "a stop through the Docker API by another client")
    project.write_settings({"a": container()})
    with (
        project.podman.serving() as server,
        project.up(CONTAINER_HOST=f"unix://{server.socket_path}") as run,
    ):
        run.wait_for_status("a", up=True)
        project.podman.docker(server.socket_path, "stop", "a")
        run.wait_for_status("a", state="stopped", desired="stopped")
        project.podman.docker(server.socket_path, "start", "a")
        run.wait_for_event("program_adopted", program="a")
        run.stop_cleanly()


def test_what_an_operator_kills_removes_or_restarts_goes_on(project: ContainerProject) -> None:
    names = ("killed", "removed", "restarted")
    project.write_settings({name: container(**NO_BACKOFF) for name in names})
    with project.up() as run:
        for name in names:
            run.wait_for_status(name, up=True)
        before = {name: project.life(name) for name in names}
        project.podman.run("kill", "killed")
        project.podman.run("rm", "--force", "--time", "0", "removed")
        project.podman.run("restart", "restarted")
        killed = run.wait_for_event("unexpected_exit", program="killed", restart=True)
        for name in ("killed", "removed"):
            run.wait_for_event("program_started", program=name, times=2)
        run.wait_for_event("program_adopted", program="restarted")
        after = {name: project.life(name) for name in names}
        standing = {name: facts_of(run, name, "up", "desired") for name in names}
        run.stop_cleanly()
    assert "signal 9" == killed["cause"]
    assert dict.fromkeys(names, (True, "up")) == standing
    assert [True, False, True] == [before[name][0] == after[name][0] for name in names], (
        "only what was removed is made anew"
    )
    assert all(before[name][1] != after[name][1] for name in names)
    assert (
        [] == [each for each in run.events("program_started") if each["program"] == "restarted"][1:]
    )
    assert [*sorted(names)] == project.names()


def test_a_paused_container_is_up_and_not_ready_and_goes_on_when_it_is_unpaused(
    project: ContainerProject,
) -> None:
    project.write("code/live.sh", "exit 0")
    probe = {"script": "live.sh", "interval": 0.1}
    project.write_settings({"a": container(binds=["code:/code:ro"], liveness=probe)})
    with project.up() as run:
        pid = run.wait_for_status("a", ready=True)["pid"]
        project.podman.run("pause", "a")
        wait_for_container(run, "a", status="paused")
        assert (True, False) == facts_of(run, "a", "up", "ready")
        assert "  paused" in run.run_command("status").stdout.splitlines()[2]
        project.podman.run("unpause", "a")
        assert (pid, 0) == (
            run.wait_for_status("a", ready=True)["pid"],
            run.status("a")["total_restarts"],
        )
        run.stop_cleanly()
    assert [] == run.events("health_check_restart")


def test_a_probe_that_was_under_way_when_its_container_was_paused_is_no_failure(
    project: ContainerProject,
) -> None:
    """A single failure would restart the container, which unpauses it. The timer ends later than
    the probe has to.
    """
    project.write("code/live.sh", "! test -e /code/hold || { touch /code/held; sleep 1000; }")
    probe = {"script": "live.sh", "interval": 0.1, "timeout": 3, "failure_threshold": 1}
    timer = sh("sleep 4; exit 101", autostart=False)
    project.write_settings(
        {"a": container(binds=["code:/code"], liveness=probe)}, programs={"timer": timer}
    )
    with project.up() as run:
        run.wait_for_status("a", ready=True)
        project.write("code/hold", "")
        assert eventually((project.directory / "code/held").exists)
        project.podman.run("pause", "a")
        run.request("start", "timer")
        run.wait_for_event("fatal_error_no_restart", program="timer")
        assert (True, 0) == facts_of(run, "a", "up", "total_restarts")
        assert "paused" == run.status("a")["container"]["status"]
        run.stop_cleanly()
    assert [] == run.events("health_check_failed")


# --- its files change while it runs ---


def test_agents_that_come_and_go_are_followed_and_those_that_go_run_on(
    project: ContainerProject,
) -> None:
    project.write_settings({}, registry="agents.json")
    project.write_agents({"old": container(), "stays": container()})
    with project.up() as run:
        for name in ("old", "stays"):
            run.wait_for_status(name, up=True)
        stays = project.life("stays")
        project.write_agents({"stays": container(), "new": container()})
        run.wait_for_event("program_started", program="new")
        run.wait_for_event("program_left_running", program="old")
        unknown = run.run_command("status", "old")
        project.podman.run("kill", "old")
        changed = project.life("stays") != stays
        run.stop_cleanly()
    assert (2, False) == (unknown.returncode, changed)
    assert ["new", "stays"] == project.running(), "an agent that left the registry is not restarted"


def test_a_corrupt_registry_keeps_the_former_agents_and_is_reported_once(
    project: ContainerProject,
) -> None:
    project.write_settings({}, registry="agents.json")
    project.write_agents({"a": container()})
    with project.up() as run:
        run.wait_for_status("a", up=True)
        before = project.life("a")
        project.write("agents.json", '{"a": {"type": "agent", ')
        rejected = run.wait_for_event("container_registry_rejected")
        project.write("agents.json", '{"a": {"type": "agent", ')
        project.podman.run("kill", "a")
        run.wait_for_event("program_started", program="a", times=2)
        assert before[0] == project.life("a")[0]
        project.write_agents({"a": container(), "b": container()})
        run.wait_for_event("program_started", program="b")
        run.stop_cleanly()
    assert "not valid JSON" in rejected["reason"]
    assert 1 == len(run.events("container_registry_rejected"))


def test_a_corrupt_manifest_breaks_its_agent_alone_and_the_container_runs_on(
    project: ContainerProject,
) -> None:
    project.write_settings({}, registry="agents.json")
    project.write_agents({"a": container(), "b": container()})
    with project.up() as run:
        for name in ("a", "b"):
            run.wait_for_status(name, up=True)
        lives = {name: project.life(name) for name in ("a", "b")}
        project.write("a.json", "{")
        tripped = run.wait_for_event("circuit_breaker_tripped", program="a")
        broken = run.wait_for_status("a", state="broken")
        project.write_manifest("a", {})
        reset = run.run_command("reset", "a")
        run.wait_for_event("program_adopted", program="a")
        assert ("up", "up") == tuple(
            run.wait_for_status(name, up=True)["state"] for name in ("a", "b")
        )
        run.stop_cleanly()
    assert "a.json: expected a manifest, found text that is not valid JSON" in tripped["reason"]
    assert (None, 0) == (broken["breaker"]["cooldown_left"], reset.returncode)
    assert lives == {name: project.life(name) for name in ("a", "b")}


def test_a_reload_makes_anew_what_another_image_or_environment_asks_for_and_nothing_else(
    project: ContainerProject,
) -> None:
    project.write("code/live.sh", "exit 0")
    code = {"binds": ["code:/code:ro"]}
    project.write_settings({name: container(**code) for name in ("image", "env", "probes", "same")})
    with project.up() as run:
        names = ("image", "env", "probes", "same")
        for name in names:
            run.wait_for_status(name, up=True)
        before = {name: project.life(name) for name in names}
        project.write_settings(
            {
                "image": container(image=IMAGE_WITHOUT_TIMEOUT, **code),
                "env": container(env={"MODE": "new"}, **code),
                "probes": container(liveness={"script": "live.sh", "interval": 0.1}, **code),
                "same": container(**code),
            }
        )
        reloaded = run.run_command("reload")
        assert (0, "changed: image, env\nupdated: probes\n") == (
            reloaded.returncode,
            reloaded.stdout,
        )
        for name in ("image", "env"):
            run.wait_for_event("program_started", program=name, times=2)
        run.wait_for_event("health_check_passed", program="probes")
        after = {name: project.life(name) for name in names}
        shown = project.podman.run("inspect", "--format", "{{.Config.Env}}", "env")
        image = project.podman.run("inspect", "--format", "{{.ImageName}}", "image")
        run.stop_cleanly()
    assert [False, False, True, True] == [before[name] == after[name] for name in names]
    assert (True, IMAGE_WITHOUT_TIMEOUT) == ("MODE=new" in shown, image)


# --- many, and what others wait for ---


def test_thirty_containers_come_up_and_the_supervisor_leaves_them_within_seconds(
    project: ContainerProject,
) -> None:
    names = [f"many-{number:02}" for number in range(30)]
    project.write_settings({name: container() for name in names})
    with project.up() as run:
        for name in names:
            run.wait_for_event("program_started", program=name)
        assert {"up"} == {facts["state"] for facts in run.request("status")["programs"]}
        began = time.monotonic()
        run.stop_cleanly()
        took = time.monotonic() - began
    assert names == project.running()
    assert took < 10


def test_http_and_tcp_probes_ask_at_the_published_port_and_a_program_waits_for_readiness(
    project: ContainerProject,
) -> None:
    require_published_ports(project.podman)
    port = unused_port()
    health = project.write("www/health", '{"status": "starting"}')
    often = {"port": 80, "interval": 0.1, "timeout": 2, "failure_threshold": 100}
    server = {
        "image": container()["image"],
        "command": "httpd -f -p 80 -h /www",
        "binds": ["www:/www:ro"],
        "ports": [f"{port}:80"],
    }
    project.write_settings(
        {
            "web": {
                **server,
                "liveness": {"kind": "tcp", **often},
                "readiness": {"kind": "http", **often},
            }
        },
        programs={"client": {**SLEEPER, "depends_on": ["web"]}},
    )
    with project.up() as run:
        run.wait_for_event("health_check_passed", program="web", probe="liveness")
        failed = run.wait_for_event("health_check_failed", program="web", probe="readiness")
        assert ("pending", ["web: ready"]) == facts_of(run, "client", "state", "waiting_for")
        health.write_text('{"status": "healthy"}')
        run.wait_for_event("program_ready", program="web")
        run.wait_for_event("program_started", program="client")
        run.stop_cleanly()
    assert "starting" in failed["reason"]


# --- check ---


def test_check_lists_agents_with_what_is_wrong_with_them(tmp_path: Path) -> None:
    """Warnings leave the exit code alone; a fault of an agent, or of the registry, does not."""
    files = ProjectFiles(tmp_path)
    files.write_settings({"db": container()}, programs={"job": SLEEPER}, registry="agents.json")
    files.write_agents(
        {"watcher": container(), "db": container()},
        {"watcher": {"health": {"liveness": {"script": "live.sh", "interval": -1}}}},
    )
    listed = files.run_command("check", "--json")
    files.write_agents({"watcher": container(), "bad": container(network="host")})
    table = files.run_command("check")
    files.write("agents.json", "[]")
    refused = files.run_command("check")
    found = json.loads(listed.stdout)
    assert (0, {"job": "command", "db": "container", "watcher": "container"}) == (
        listed.returncode,
        {facts["name"]: facts["kind"] for facts in found["programs"]},
    )
    interval, name = found["warnings"]
    assert "watcher.json: health.liveness.interval: expected a number of seconds" in interval
    assert "agents.json: db: expected a name that nothing else has" in name
    first, *rows = table.stdout.splitlines()
    [bad] = [row for row in rows if row.split()[1] == "bad"]
    assert (2, "longwatch.toml: 1 of 4 programs cannot start; the notes say why") == (
        table.returncode,
        first,
    )
    assert "bad: expected the name of a network of the runtime" in bad
    assert (2, "") == (refused.returncode, refused.stdout)
    [line] = refused.stderr.splitlines()
    assert "longwatch.toml: containers.registry: " in line
    assert "expected a registry of agents, a JSON object, found a list at the top" in line


def test_without_its_library_a_file_with_containers_is_refused_with_the_cure(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    ProjectFiles(tmp_path).write_settings({"a": container()})
    for command in ("check", "up"):
        refused = run_longwatch(longwatch_bin, tmp_path, command)
        assert (2, "") == (refused.returncode, refused.stdout)
        assert (
            "longwatch: longwatch.toml: container: needs aiodocker, which is not installed; run: "
            "pip install 'aiodocker>=0.24'\n"
        ) == refused.stderr


def append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


def test_status_shows_what_a_container_uses_where_its_processes_can_be_seen(
    project: ContainerProject,
) -> None:
    """The shell of the container and the process that it waits for; None in a cgroup that is shared
    with this test.
    """
    project.write_settings({"a": container("sleep 1000 & wait")})
    with project.up() as run:
        run.wait_for_status("a", up=True)
        found: list[tuple[int | None, int | None]] = []

        def is_measured() -> bool:
            [facts] = json.loads(run.run_command("status", "--json").stdout)["programs"]
            found.append((facts["processes"], facts["memory_bytes"]))
            return facts["processes"] in {2, None}

        assert eventually(is_measured), found
        processes, memory = found[-1]
        assert memory is None if processes is None else memory
        run.stop_cleanly()
