"""The image of deploy/docker, built from the wheel and run by Podman: Longwatch is PID 1 there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import wheel_env
from podman_fixture import PrivatePodman
from polling import eventually
from python_image import IMAGE, podman_with_image
from test_run_pid1 import LEAVES_AN_ORPHAN

MANIFESTS = wheel_env.ROOT / "deploy" / "kubernetes"
STAYS_UP = ("sleep", "1000")
QUICK_STOP = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); "
GROUP = """
import os
from longwatch import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

class Films(MainLoop[str, str]):
    def handle(self, request, context):
        return request.upper()

store = os.environ["STORE_URL"]
jobs, done = (open_mailbox(store, name) for name in ("jobs", "done"))
group = LoopGroup([Films(requests=jobs, responses=done, name="films")])
"""
ASK = (
    "import sys, urllib.request as r; print(r.urlopen('http://127.0.0.1:8080' + sys.argv[1], "
    "timeout=10).status)"
)


@pytest.fixture
def podman(wheel_python: Path) -> Iterator[PrivatePodman]:
    """A Podman with the image; its containers are removed at the end."""
    made = podman_with_image()
    yield made
    made.remove_containers()
    made.check_nothing_left()


def start(podman: PrivatePodman, *words: str, options: tuple[str, ...] = ()) -> str:
    """Start a container of the image with these arguments. No timer of systemd runs its check."""
    name = podman.new_name()
    common = ("--detach", "--network=none", "--health-interval=disable", "--name", name)
    podman.run("run", *common, *options, IMAGE, *words)
    return name


def exit_code(podman: PrivatePodman, name: str) -> int:
    return int(podman.run("wait", name))


def events(podman: PrivatePodman, name: str, event: str) -> list[dict[str, Any]]:
    """The records of this event in the container's log."""
    lines = [json.loads(line) for line in podman.logs(name) if line.startswith("{")]
    return [record for record in lines if record["event"] == event]


def test_longwatch_is_pid_1_and_its_state_is_for_its_own_user_alone(podman: PrivatePodman) -> None:
    name = start(podman, "run", "--", *STAYS_UP)
    assert eventually(lambda: len(events(podman, name, "program_started")) == 1)
    [started] = events(podman, name, "program_started")
    assert 1 == started["managerPid"]
    assert "10001:10001 700" == podman.run(
        "exec", name, "stat", "-c", "%u:%g %a", "/var/lib/longwatch"
    )
    assert "10001" == podman.run("exec", name, "id", "-u")
    shown = json.loads(podman.run("exec", name, "longwatch", "status", "--json"))
    assert [("sleep", True)] == [(each["name"], each["up"]) for each in shown["programs"]]


def test_a_stop_ends_the_program_in_time_with_its_own_exit_code(podman: PrivatePodman) -> None:
    """A container that does not end in time is killed, and its exit code is 137."""
    program = QUICK_STOP + "print('up', flush=True); signal.pause()"
    name = start(podman, "run", "--", "python", "-c", program)
    assert eventually(lambda: "up" in podman.logs(name))
    podman.run("stop", "--time", "20", name)
    assert 3 == exit_code(podman, name)
    [ended] = events(podman, name, "shutdown_complete")
    assert "exit 3" == ended["cause"]


def test_an_orphan_is_reaped(podman: PrivatePodman) -> None:
    name = start(podman, "run", "--", "python", "-u", "-c", LEAVES_AN_ORPHAN)
    assert 101 == exit_code(podman, name)
    assert "the orphan was reaped" in podman.logs(name)


def test_the_health_check_passes_while_the_program_is_up_and_fails_while_it_is_not(
    podman: PrivatePodman,
) -> None:
    good = start(podman, "run", "--", *STAYS_UP)
    bad = start(
        podman, "run", "--backoff-initial=1000", "--backoff-cap=1000", "--", "sh", "-c", "exit 1"
    )
    assert eventually(lambda: len(events(podman, good, "program_started")) == 1)
    assert eventually(lambda: len(events(podman, bad, "restart_scheduled")) == 1)
    assert podman.succeeds("healthcheck", "run", good)
    assert not podman.succeeds("healthcheck", "run", bad)


def only_container(manifest: str) -> dict[str, Any]:
    """The container of the first pod in this manifest."""
    deployment, _ = yaml.safe_load_all((MANIFESTS / manifest).read_text())
    [found] = deployment["spec"]["template"]["spec"]["containers"]
    container: dict[str, Any] = found
    return container


def pod_options(container: dict[str, Any]) -> tuple[str, ...]:
    """What the kubelet would do: a read-only root, no capabilities, volumes open to every user."""
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = [
        f"--mount=type=tmpfs,destination={mount['mountPath']},tmpfs-mode=0777"
        for mount in container["volumeMounts"]
        if not mount.get("readOnly")
    ]
    given = [
        f"--env={each['name']}={each['value']}" for each in container["env"] if "value" in each
    ]
    hardened = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all")
    return (*hardened, "--security-opt=no-new-privileges", *mounts, *given)


def passes(podman: PrivatePodman, name: str, probe: dict[str, Any]) -> bool:
    return podman.succeeds("exec", name, "python", "-c", ASK, probe["httpGet"]["path"])


def test_the_container_of_the_manifest_works_on_messages_with_a_read_only_root(
    podman: PrivatePodman, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(GROUP)
    tmp_path.chmod(0o755)
    container = only_container("workers.yaml")
    options = (
        *pod_options(container),
        f"--volume={tmp_path}:/app:ro",
        "--env=STORE_URL=sqlite:////tmp/jobs.db",
        "--env=LONGWATCH_STORE=sqlite:////tmp/jobs.db",
    )
    name = start(podman, *container["args"], options=options)
    longwatch = ("exec", name, "longwatch")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert eventually(partial(passes, podman, name, container[probe])), podman.logs(name)
    podman.run(*longwatch, "mailbox", "send", "jobs", '"sunset"')
    assert eventually(lambda: "SUNSET" in podman.run(*longwatch, "mailbox", "peek", "done"))
    podman.run("stop", "--time", "40", name)
    assert 0 == exit_code(podman, name)


def test_the_runner_of_the_manifest_lives_with_a_read_only_root_and_keeps_its_state(
    podman: PrivatePodman, tmp_path: Path
) -> None:
    """It is not ready: nothing here has the name of its source."""
    tmp_path.chmod(0o755)
    (tmp_path / "agent.py").touch()
    (tmp_path / "token").write_text("secret")
    container = only_container("runner.yaml")
    options = (
        *pod_options(container),
        f"--volume={MANIFESTS}:/etc/longwatch:ro",
        f"--volume={tmp_path}:/app:ro",
        f"--volume={tmp_path}:/var/run/secrets/longwatch:ro",
        "--env=LONGWATCH_RUNNER_STORE_URL=sqlite:////tmp/runner.db",
    )
    name = start(podman, *container["args"], options=options)
    for probe in ("startupProbe", "livenessProbe"):
        assert eventually(partial(passes, podman, name, container[probe])), podman.logs(name)
    assert not passes(podman, name, container["readinessProbe"])
    assert "10001 700" == podman.run("exec", name, "stat", "-c", "%u %a", "/data/state")
    podman.run("stop", "--time", "40", name)
    assert 0 == exit_code(podman, name)
