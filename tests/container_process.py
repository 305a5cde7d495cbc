"""`longwatch up` with containers in a private Podman: its files, its processes, and what Podman
says of its containers.

The command is the one of this tree: it needs packages that the wheel's environment does not have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from podman_fixture import IMAGE, PrivatePodman, shared_podman
from polling import eventually
from process_facts import command_line
from run_process import TIMEOUT, run_longwatch
from up_process import Facts, UpProcess, start_up, toml

LONGWATCH = Path(sys.executable).with_name("longwatch")
STAYS_UP = "trap 'exit 0' TERM; sleep 1000 & wait"
"""Runs until it is stopped. The first process of a container ignores SIGTERM unless it traps it."""
NO_BACKOFF: Facts = {"backoff": {"initial": 0.05, "cap": 0.05}}
MACHINE_SOCKETS = (Path("/run/podman/podman.sock"), Path("/var/run/docker.sock"))
_POLL_INTERVAL = 0.5


def container(script: str = STAYS_UP, /, **settings: object) -> Facts:
    """A container that runs this shell script, as `[container.NAME]` and as an agent."""
    facts = {"image": IMAGE, "network": "none", "command": ["sh", "-c", script]}
    return {**facts, **settings}


def script_probe(script: str, **settings: object) -> Facts:
    """A probe of a manifest that is made often, and fails at the second failure in a row."""
    return {"script": script, "interval": 0.1, "failureThreshold": 2, **settings}


class ProjectFiles:
    """A directory with `longwatch.toml`, `agents.json` and manifests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_settings(
        self,
        containers: Mapping[str, Facts] | None = None,
        *,
        programs: Mapping[str, Facts] | None = None,
        **shared: object,
    ) -> None:
        """`longwatch.toml` with these containers and programs; `shared` is its `[containers]`."""
        tables = {"containers": {"poll_interval": _POLL_INTERVAL, "pull": "never", **shared}}
        for kind, named in (("container", containers), ("program", programs)):
            tables |= {f"{kind}.{json.dumps(name)}": facts for name, facts in (named or {}).items()}
        lines = [
            line
            for header, facts in tables.items()
            for line in (f"[{header}]", *(f"{key} = {toml(value)}" for key, value in facts.items()))
        ]
        self.write("longwatch.toml", "\n".join(lines) + "\n")

    def write_agents(
        self, agents: Mapping[str, Facts], manifests: Mapping[str, object] | None = None
    ) -> None:
        """`agents.json`, and a manifest for each agent: an empty one unless it is named here."""
        for name in agents:
            self.write_manifest(name, (manifests or {}).get(name, {}))
        entries = {
            name: {"type": "agent", "manifestPath": f"{name}.json", **entry}
            for name, entry in agents.items()
        }
        self.write("agents.json", json.dumps(entries))

    def write_manifest(self, name: str, manifest: object) -> None:
        self.write(f"{name}.json", json.dumps(manifest))

    def write(self, name: str, text: str) -> Path:
        """A file in its directory, replaced as a whole."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        draft.write_text(text, encoding="utf-8")
        return draft.replace(path)

    def run_command(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`longwatch WORDS` there, to its end."""
        return run_longwatch(LONGWATCH, self.directory, *words, env=env)


class ContainerProject(ProjectFiles):
    """The same with a Podman of its own."""

    def __init__(self, directory: Path, podman: PrivatePodman) -> None:
        super().__init__(directory)
        self.podman = podman
        runtime_directory = podman.folder / "xdg"
        runtime_directory.mkdir(exist_ok=True)
        self.env = {
            "CONTAINERS_CONF": podman.env["CONTAINERS_CONF"],
            "CONTAINERS_STORAGE_CONF": podman.env["CONTAINERS_STORAGE_CONF"],
            "CONTAINER_RUNTIME": "podman",
            "XDG_RUNTIME_DIR": str(runtime_directory),
        }

    # --- its processes ---

    @contextmanager
    def up(self, **env: str) -> Iterator[UpProcess]:
        """`longwatch up`, killed at the end of the block if it still runs."""
        with start_up(LONGWATCH, self.directory, env={**self.env, **env}) as run:
            yield run

    def services(self) -> list[psutil.Process]:
        """Every `podman system service` on the store."""
        return [each for each in self.podman.helpers("podman") if "service" in command_line(each)]

    def own_service(self, run: UpProcess) -> psutil.Process:
        """The one that `longwatch up` has started."""
        [service] = [each for each in self.services() if each.ppid() == run.pid]
        return service

    def clean_up(self) -> None:
        """Remove the containers, and end the services of a `longwatch up` that was killed."""
        for service in self.services():
            with suppress(psutil.NoSuchProcess):
                service.kill()
        self.podman.remove_containers()

    # --- what Podman says ---

    def names(self, *filters: str) -> list[str]:
        """The containers, running or not."""
        options = [word for each in filters for word in ("--filter", each)]
        listed = self.podman.run("ps", "--all", "--format", "{{.Names}}", *options)
        return sorted(listed.split())

    def running(self) -> list[str]:
        return self.names("status=running")

    def life(self, name: str) -> tuple[str, str]:
        """The id of a container and when it was started: another pair is another life."""
        shown = self.podman.run("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", name)
        container_id, _, started_at = shown.partition(" ")
        return container_id, started_at

    def processes(self, name: str) -> list[str]:
        """The command lines in a container, that of its first process first."""
        return self.podman.run("top", name, "args").splitlines()[1:]


@contextmanager
def container_project(directory: Path) -> Iterator[ContainerProject]:
    """A project in this directory; its containers are removed at the end."""
    require_no_machine_socket()
    project = ContainerProject(directory, shared_podman())
    try:
        yield project
    finally:
        project.clean_up()


@contextmanager
def no_conmon_left() -> Iterator[None]:
    """Fails when a container of the private Podman outlives the block."""
    podman = shared_podman()
    yield
    assert eventually(lambda: not podman.helpers("conmon", "runc")), [
        " ".join(command_line(each)) for each in podman.helpers()
    ]


def facts_of(run: UpProcess, name: str, *keys: str) -> tuple[Any, ...]:
    """These facts of a program, now."""
    status = run.status(name)
    return tuple(status[key] for key in keys)


def wait_for_container(run: UpProcess, name: str, **wanted: object) -> Facts:
    """What the status says of a container once it holds these facts of the runtime."""
    found: Facts = {}

    def holds() -> bool:
        found.update(run.status(name)["container"])
        return all(found[key] == value for key, value in wanted.items())

    assert eventually(holds), f"{name} has not come to {wanted}: {found}"
    return found


def kill_supervisor(run: UpProcess) -> None:
    """End it as a crash would."""
    run.process.kill()
    run.process.wait(TIMEOUT)


def require_no_machine_socket() -> None:
    """The product prefers a socket of the machine to a service of its own."""
    for path in MACHINE_SOCKETS:
        if os.path.lexists(path):
            pytest.skip(f"{path} is there, so `longwatch up` would use the machine's own runtime")


def require_published_ports(podman: PrivatePodman) -> None:
    """Go on only where Podman can publish a port: that takes netavark and a firewall."""
    try:
        name = podman.new_name()
        podman.run("run", "--detach", "--name", name, "--publish", "127.0.0.1::80", IMAGE, "true")
    except AssertionError as error:
        reason = f"Podman cannot publish ports here: {error}"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
