from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longwatch.errors import UsageError
from longwatch.host.process import StopPolicy
from longwatch.supervisor.containers.agent_registry import (
    RegistryDefaults,
    RegistryError,
    RegistryReading,
    read_registry,
)
from longwatch.supervisor.containers.container_spec import (
    Bind,
    ContainerSpec,
    PublishedPort,
    PullPolicy,
)
from longwatch.supervisor.containers.manifest import parse_manifest
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.probes import (
    CRASH_LOOP_BACKOFF,
    HttpProbe,
    Probe,
    ProbePolicy,
    ProbeSet,
    ScriptProbe,
    StartupPolicy,
    TcpProbe,
)
from longwatch.supervisor.restart_policy import Restart, RestartPolicy

SECRET = "hunter2-correct-horse"
NO_PROBES = ProbeSet(crash_loop=CRASH_LOOP_BACKOFF)
LIVENESS = {"script": "alive.sh"}
NOT_OBJECTS = [[], [{}], "text", 7, 1.5, True, False]


class Home:
    """A directory with a registry of one agent called `web`, and its manifest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.registry = path / "agents.json"
        self.manifest = path / "manifest.json"
        self.write_manifest({})

    def write_manifest(self, content: object) -> None:
        self.manifest.write_text(json.dumps(content))

    def read(self, document: object, **defaults: Any) -> RegistryReading:
        """What a registry with this content says."""
        self.registry.write_text(json.dumps(document))
        settings = {"bind_roots": (self.path,), **defaults}
        return read_registry(self.registry, defaults=RegistryDefaults(**settings))

    def read_web(self, entry: dict[str, Any], **defaults: Any) -> RegistryReading:
        """What a registry with this entry says, with an image and a manifest unless it says
        otherwise.
        """
        usual = {"type": "agent", "image": "node:20", "manifestPath": "manifest.json"}
        return self.read({"web": {**usual, **entry}}, **defaults)

    def plan(self, **entry: Any) -> ProgramPlan:
        """The plan of an entry that nothing is wrong with."""
        reading = self.read_web(entry)
        assert ((), "") == (reading.warnings, reading.plans["web"].fault)
        return reading.plans["web"]

    def spec(self, **entry: Any) -> ContainerSpec:
        return spec_of(self.plan(**entry))

    def fault(self, **entry: Any) -> str:
        """The fault of an entry, without the file's name."""
        reading = self.read_web(entry)
        assert () == reading.warnings
        found = reading.plans["web"].fault
        assert found.startswith(f"{self.registry}: web")
        return found.removeprefix(f"{self.registry}: ")

    def warning(self, **entry: Any) -> str:
        """The only warning about an entry, without the file's name; it has no fault."""
        reading = self.read_web(entry)
        [warning] = reading.warnings
        assert "" == reading.plans["web"].fault
        assert warning.startswith(f"{self.registry}: ")
        return warning.removeprefix(f"{self.registry}: ")

    def error(self) -> str:
        """Why the registry cannot be read, without the file's name."""
        with pytest.raises(RegistryError) as caught:
            read_registry(self.registry, defaults=RegistryDefaults())
        expected = f"{self.registry}: expected a registry of agents, a JSON object, found "
        assert str(caught.value).startswith(expected)
        return str(caught.value).removeprefix(expected)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path.resolve())


def spec_of(plan: ProgramPlan) -> ContainerSpec:
    assert isinstance(plan.spec, ContainerSpec)
    return plan.spec


def probes(**health: object) -> ProbeSet:
    """The probes of a manifest that nothing is wrong with."""
    reading = parse_manifest({"health": health})
    assert ((), ()) == (reading.faults, reading.warnings)
    return reading.probes


def manifest_fault(document: dict[str, object]) -> str:
    reading = parse_manifest(document)
    assert (NO_PROBES, ()) == (reading.probes, reading.warnings)
    [fault] = reading.faults
    return fault


def messages(reading: RegistryReading) -> Iterator[str]:
    yield from reading.warnings
    yield from (plan.fault for plan in reading.plans.values())


# The file


def test_a_registry_error_is_wrong_use() -> None:
    assert issubclass(RegistryError, UsageError)


def test_a_registry_that_is_missing_is_an_error(home: Home) -> None:
    assert "no such file; create it, or correct its path" == home.error()


def test_a_registry_that_is_a_directory_is_an_error(home: Home) -> None:
    home.registry.mkdir()
    assert "a directory; name a JSON file" == home.error()


def test_a_registry_that_is_a_pipe_is_an_error_and_blocks_nothing(home: Home) -> None:
    os.mkfifo(home.registry)
    assert "something that is not a regular file; name a JSON file" == home.error()


def test_a_registry_that_cannot_be_opened_is_an_error(home: Home) -> None:
    home.registry.symlink_to(home.registry)
    assert home.error().startswith("a file that cannot be read (too many levels of symbolic links")


def test_a_registry_of_an_impossible_name_is_an_error() -> None:
    with pytest.raises(RegistryError, match="a path that no file can have; correct it"):
        read_registry(Path("/a\0b"), defaults=RegistryDefaults())


def test_a_registry_of_more_than_4_mib_is_an_error(home: Home) -> None:
    home.registry.write_text("{}" + " " * ((4 << 20) - 2))
    assert {} == read_registry(home.registry, defaults=RegistryDefaults()).plans
    home.registry.write_text("{}" + " " * ((4 << 20) - 1))
    assert "more than 4 MiB; name the right file, or shorten it" == home.error()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a": "\xff"}', "text that is not UTF-8; save the file as UTF-8"),
        (b"", "text that is not valid JSON at line 1, column 1 (expecting value)"),
        (b'{\n"a": ', "text that is not valid JSON at line 2, column 6 (expecting value)"),
        (b'{"a": 1} x', "text that is not valid JSON at line 1, column 10 (extra data)"),
        (b"[]", "a list at the top; write an object"),
        (b'[{"a": 1}]', "a list at the top; write an object"),
        (b"7", "a number at the top; write an object"),
        (b'"text"', "text at the top; write an object"),
        (b"true", "true or false at the top; write an object"),
        (b"null", "null at the top; write an object"),
        (b'{"a": ' * 100_000, "a number too long or objects nested too deep to read"),
        (b"[" * 100_000 + b"]" * 100_000, "a number too long or objects nested too deep to read"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number too long or objects nested too deep to read"),
    ],
)
def test_a_registry_that_holds_no_object_is_an_error(
    home: Home, content: bytes, expected: str
) -> None:
    home.registry.write_bytes(content)
    assert home.error().startswith(expected)


def test_a_registry_can_start_with_a_byte_order_mark(home: Home) -> None:
    home.registry.write_bytes(b"\xef\xbb\xbf{}")
    assert {} == read_registry(home.registry, defaults=RegistryDefaults()).plans


def test_a_key_that_is_there_twice_is_a_warning(home: Home) -> None:
    home.registry.write_text('{"_a": 1, "_a": 2, "_b": 1}')
    reading = read_registry(home.registry, defaults=RegistryDefaults())
    [warning] = reading.warnings
    assert f"{home.registry}: expected the key '_a' once in its object, found it again" in warning


def test_the_files_are_the_registry_and_every_manifest_that_was_looked_for(home: Home) -> None:
    reading = home.read(
        {
            "a": {"type": "agent", "agentName": "coder", "repoName": "shop"},
            "b": {"type": "agent", "manifestPath": "b/m.json"},
            "c": {"type": "agent", "manifestPath": "b/m.json"},
            "d": {"type": "agent", "manifestPath": "a\0b"},
            "e": {"type": "agent"},
            "f": {"type": "tool", "manifestPath": "tool.json"},
        }
    )
    expected = (
        home.registry,
        home.path / "repos/shop/coder/manifest.json",
        home.path / "b/m.json",
    )
    assert expected == reading.files


def test_a_relative_path_is_read_from_here(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.read({})
    monkeypatch.chdir(home.path)
    reading = read_registry(Path("agents.json"), defaults=RegistryDefaults())
    assert (home.registry,) == reading.files


# Which entries are monitored


@pytest.mark.parametrize("other", [{}, {"type": "tool"}, {"type": None}, {"type": ["agent"]}])
def test_only_entries_of_the_type_agent_are_monitored(home: Home, other: object) -> None:
    reading = home.read({"web": other, "no name!": other})
    assert ({}, ()) == (reading.plans, reading.warnings)


@pytest.mark.parametrize("value", [*NOT_OBJECTS, None, {"type": "agent"}])
def test_a_key_that_starts_with_an_underscore_is_skipped(home: Home, value: object) -> None:
    reading = home.read({"_settings": value, "_": value})
    assert ({}, ()) == (reading.plans, reading.warnings)


@pytest.mark.parametrize("value", [*NOT_OBJECTS, None])
def test_an_entry_that_is_no_object_is_skipped_with_a_warning(home: Home, value: object) -> None:
    reading = home.read({"web": value})
    [warning] = reading.warnings
    assert warning.startswith(f"{home.registry}: web: expected an object, found ")
    assert {} == reading.plans


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "../a", "a/b", "a\n", "ä", "x" * 65])
def test_a_key_that_no_container_can_have_is_skipped_with_a_warning(home: Home, name: str) -> None:
    reading = home.read({name: {"type": "agent", "image": "a"}})
    [warning] = reading.warnings
    assert warning.startswith(f"{home.registry}: ")
    assert "expected a container name of up to 64 letters" in warning
    assert {} == reading.plans


# A plan


def test_an_agent_needs_no_more_than_an_image_and_a_manifest(home: Home) -> None:
    expected = ProgramPlan(
        name="web",
        spec=ContainerSpec(name="web", image="node:20", manifest_path=str(home.manifest)),
        kind=ProgramKind.CONTAINER,
        restart=RestartPolicy(restart=Restart.ALWAYS),
        stop=StopPolicy(grace=15.0),
        probes=NO_PROBES,
        fault="",
    )
    assert expected == home.plan()


def test_a_whole_entry_is_read(home: Home) -> None:
    home.write_manifest({"image": "other", "health": {"liveness": LIVENESS}})
    (home.path / "data").mkdir()
    plan = home.plan(
        agentName="coder",
        repoName="shop",
        image="node:22",
        command=["serve", "--fast"],
        env={"A": "x", "B": 1, "C": 1.5, "D": True, "E": False, "F": ""},
        binds=["data:/data:ro", {"source": "data", "target": "/b"}],
        ports=["8080:80", 90],
        restart="on-failure",
        workdir="/code",
        user="node",
        network="backend",
        memory="512MiB",
        stopGrace=3,
        stopOnExit=True,
        pull="always",
    )
    data = str(home.path / "data")
    expected = ProgramPlan(
        name="web",
        spec=ContainerSpec(
            name="web",
            image="node:22",
            command=("serve", "--fast"),
            env={"A": "x", "B": "1", "C": "1.5", "D": "true", "E": "false", "F": ""},
            binds=(
                Bind(source=data, target="/data", read_only=True),
                Bind(source=data, target="/b"),
            ),
            ports=(
                PublishedPort(host_port=8080, container_port=80),
                PublishedPort(host_port=90, container_port=90),
            ),
            workdir="/code",
            user="node",
            network="backend",
            memory=512 << 20,
            pull=PullPolicy.ALWAYS,
            stop_on_exit=True,
            agent="coder",
            repo="shop",
            manifest_path=str(home.manifest),
        ),
        kind=ProgramKind.CONTAINER,
        restart=RestartPolicy(restart=Restart.ON_FAILURE),
        stop=StopPolicy(grace=3.0),
        probes=probes(liveness=LIVENESS),
    )
    assert expected == plan


def test_null_counts_as_not_set(home: Home) -> None:
    keys = ("agentName", "repoName", "command", "env", "binds", "ports", "restart", "workdir")
    more = ("user", "network", "memory", "stopGrace", "stopOnExit", "pull")
    assert home.plan() == home.plan(**dict.fromkeys((*keys, *more)))


def test_the_defaults_hold_for_what_an_entry_does_not_say(home: Home) -> None:
    reading = home.read_web({}, pull=PullPolicy.NEVER, stop_on_exit=True)
    spec = spec_of(reading.plans["web"])
    assert (PullPolicy.NEVER, True) == (spec.pull, spec.stop_on_exit)
    reading = home.read_web(
        {"pull": "missing", "stopOnExit": False}, pull=PullPolicy.NEVER, stop_on_exit=True
    )
    spec = spec_of(reading.plans["web"])
    assert (PullPolicy.MISSING, False) == (spec.pull, spec.stop_on_exit)


@pytest.mark.parametrize("restart", Restart)
def test_an_entry_says_when_its_agent_is_restarted(home: Home, restart: Restart) -> None:
    assert restart is home.plan(restart=restart.value).restart.restart


@pytest.mark.parametrize(
    ("size", "expected"),
    [(6 << 20, 6 << 20), ("512MB", 512_000_000), ("512 mib", 512 << 20), ("2GiB", 2 << 30)],
)
def test_memory_is_bytes_or_a_size(home: Home, size: object, expected: int) -> None:
    assert expected == home.spec(memory=size).memory


def test_a_command_is_a_list_or_a_text_that_is_split(home: Home) -> None:
    assert ("a", "b c") == home.spec(command="a 'b c'").command
    assert ("a", "b c") == home.spec(command=["a", "b c"]).command
    assert () == home.spec(command=[]).command


def test_variables_can_be_a_list(home: Home) -> None:
    expected = {"A": "b", "C": "d=e", "F": ""}
    assert expected == home.spec(env=["A=b", "C=d=e", "F="]).env


def test_a_user_can_be_a_number(home: Home) -> None:
    assert ("1000", "0") == (home.spec(user=1000).user, home.spec(user=0).user)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (80, (80, 80, "127.0.0.1", "tcp")),
        ("80", (80, 80, "127.0.0.1", "tcp")),
        ({"containerPort": 80}, (80, 80, "127.0.0.1", "tcp")),
        ({"hostPort": 90, "containerPort": 80, "protocol": "udp"}, (90, 80, "127.0.0.1", "udp")),
        ({"containerPort": 80, "host": "::"}, (80, 80, "::", "tcp")),
    ],
)
def test_a_port_can_be_written_in_three_ways(home: Home, item: object, expected: object) -> None:
    [port] = home.spec(ports=[item]).ports
    assert expected == (port.host_port, port.container_port, port.host, port.protocol)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_bind_can_be_an_object(home: Home, read_only: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    item = {"source": "manifest.json", "target": "/m", "readOnly": read_only}
    expected = Bind(source=str(home.manifest), target="/m", read_only=read_only)
    assert (expected,) == home.spec(binds=[item]).binds


def test_a_bind_is_relative_to_the_registry(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert str(home.path) == home.spec(binds=[".:/all"]).binds[0].source


# The manifest is found


def test_a_manifest_is_beside_the_registry_by_repository_and_agent(home: Home) -> None:
    path = home.path / "repos/shop/coder/manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"image": "found"}')
    reading = home.read({"web": {"type": "agent", "agentName": "coder", "repoName": "shop"}})
    spec = spec_of(reading.plans["web"])
    assert ("", "found", str(path)) == (
        reading.plans["web"].fault,
        spec.image,
        spec.manifest_path,
    )


@pytest.mark.parametrize("parts", [("manifest.json",), ("x", "..", "manifest.json")])
def test_a_manifest_path_is_relative_to_the_registry(home: Home, parts: tuple[str, ...]) -> None:
    (home.path / "x").mkdir()
    path = Path(*parts)
    assert str(home.path / path) == home.spec(manifestPath=str(path)).manifest_path


def test_a_manifest_path_can_be_absolute(home: Home, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("elsewhere") / "m.json"
    path.write_text("{}")
    assert str(path) == home.spec(manifestPath=str(path)).manifest_path


@pytest.mark.parametrize("manifest", [{"image": "a"}, {"container": "a"}, {"image": "a", "x": []}])
def test_the_image_can_stand_in_the_manifest(home: Home, manifest: object) -> None:
    home.write_manifest(manifest)
    assert "a" == home.spec(image=None).image


@pytest.mark.parametrize("manifest", [{}, {"image": ""}, {"image": 7}, {"container": {"a": "b"}}])
def test_an_agent_without_an_image_has_a_fault(home: Home, manifest: object) -> None:
    home.write_manifest(manifest)
    assert "web: expected the name of an image, found none; set image" == home.fault(image=None)


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "/a", "../a", "a\\b", "a\0b", "a\nb", "", 7, []]
)
@pytest.mark.parametrize("key", ["agentName", "repoName"])
def test_a_name_that_is_no_single_part_of_a_path_is_a_fault(
    home: Home, key: str, name: object
) -> None:
    names = {"agentName": "coder", "repoName": "shop", key: name}
    reading = home.read({"web": {"type": "agent", "image": "a", **names}})
    assert f"{home.registry}: web.{key}: expected " in reading.plans["web"].fault
    assert (home.registry,) == reading.files


@pytest.mark.parametrize("names", [{}, {"agentName": "coder"}, {"repoName": "shop"}])
def test_an_agent_that_leads_to_no_manifest_has_a_fault(home: Home, names: dict[str, str]) -> None:
    fault = home.fault(manifestPath=None, **names)
    assert fault.startswith("web.manifestPath: expected the path of a manifest, found neither")


@pytest.mark.parametrize("path", ["", 7, [], {}, "a\0b", "\ud800"])
def test_a_manifest_path_that_is_no_path_is_a_fault(home: Home, path: object) -> None:
    assert "web.manifestPath: expected text that is not empty" in home.fault(manifestPath=path)


def manifest_file_fault(home: Home) -> str:
    plan = home.read_web({}).plans["web"]
    assert NO_PROBES == plan.probes
    return plan.fault.removeprefix(f"{home.manifest}: expected a manifest, found ")


def test_a_manifest_that_is_missing_is_a_fault(home: Home) -> None:
    home.manifest.unlink()
    assert "no such file; create it, or correct its path" == manifest_file_fault(home)


def test_a_manifest_below_a_file_is_a_fault(home: Home) -> None:
    plan = home.read_web({"manifestPath": "manifest.json/manifest.json"}).plans["web"]
    assert "a file that cannot be read (not a directory)" in plan.fault


def test_a_manifest_that_is_a_directory_is_a_fault(home: Home) -> None:
    home.manifest.unlink()
    home.manifest.mkdir()
    assert "a directory; name a JSON file" == manifest_file_fault(home)


def test_a_manifest_that_is_a_pipe_is_a_fault_and_blocks_nothing(home: Home) -> None:
    home.manifest.unlink()
    os.mkfifo(home.manifest)
    assert manifest_file_fault(home).startswith("something that is not a regular file")


def test_a_manifest_of_more_than_1_mib_is_a_fault(home: Home) -> None:
    home.manifest.write_text("{}" + " " * ((1 << 20) - 2))
    assert "" == home.plan().fault
    home.manifest.write_text("{}" + " " * ((1 << 20) - 1))
    assert manifest_file_fault(home).startswith("more than 1 MiB")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "text that is not valid JSON"),
        (b'{"health": {', "text that is not valid JSON"),
        (b"\xff", "text that is not UTF-8"),
        (b"[]", "a list at the top"),
        (b"null", "null at the top"),
        (b'{"a": ' * 100_000, "a number too long or objects nested too deep"),
    ],
)
def test_a_manifest_that_holds_no_object_is_a_fault(
    home: Home, content: bytes, expected: str
) -> None:
    home.manifest.write_bytes(content)
    assert manifest_file_fault(home).startswith(expected)


def test_the_faults_and_warnings_of_a_manifest_name_its_file(home: Home) -> None:
    home.write_manifest({"health": {"livenes": {}, "readiness": {"script": "../x"}}})
    reading = home.read_web({})
    [warning] = reading.warnings
    assert warning.startswith(f"{home.manifest}: health.livenes: ")
    assert reading.plans["web"].fault.startswith(f"{home.manifest}: health.readiness.script: ")


# What is wrong with an entry


@pytest.mark.parametrize(
    "key",
    [
        "privileged",
        "Privileged",
        "pid",
        "pidMode",
        "pid_mode",
        "ipcMode",
        "utsMode",
        "usernsMode",
        "cgroupnsMode",
        "cgroupParent",
        "networkMode",
        "devices",
        "deviceRequests",
        "capAdd",
        "cap_add",
        "cap-add",
        "securityOpt",
        "volumesFrom",
        "hostConfig",
    ],
)
@pytest.mark.parametrize("value", [True, "host", ["a"], {"a": 1}])
def test_privileges_of_the_host_are_a_fault(home: Home, key: str, value: object) -> None:
    assert f"web.{key}: expected no privileges" in home.fault(**{key: value})


@pytest.mark.parametrize("value", [False, None, [], {}, "", 0])
def test_a_privilege_that_is_turned_off_is_fine(home: Home, value: object) -> None:
    assert home.plan() == home.plan(privileged=value, capAdd=value)


@pytest.mark.parametrize("network", ["host", "container:db", "ns:/proc/1/ns/net"])
def test_a_refused_network_is_a_fault_and_not_in_the_spec(home: Home, network: str) -> None:
    plan = home.read_web({"network": network}).plans["web"]
    assert "never the host's or another container's" in plan.fault
    assert spec_of(plan).network is None


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("/etc:/data", "expected a source under one of the bind roots"),
        ("../..:/data", "expected a source under one of the bind roots"),
        ("/run:/data", "socket of the container runtime"),
        ("missing:/data", "expected a source that exists"),
        (".:data", "expected an absolute path other than '/'"),
        ("data", "expected SOURCE:TARGET"),
        (7, 'expected "SOURCE:TARGET"'),
        (None, 'expected "SOURCE:TARGET"'),
        ([".", "/data"], 'expected "SOURCE:TARGET"'),
        ({}, 'expected "SOURCE:TARGET"'),
        ({"source": "."}, 'expected "SOURCE:TARGET"'),
        ({"source": ".", "target": 7}, 'expected "SOURCE:TARGET"'),
        ({"source": ".", "target": "/d", "readOnly": "yes"}, 'expected "SOURCE:TARGET"'),
        ({"source": ".", "target": "/d", "readonly": True}, "did you mean readOnly?"),
        ({"source": "/etc", "target": "/d"}, "expected a source under one of the bind roots"),
        ({"source": "/run", "target": "/d"}, "socket of the container runtime"),
    ],
)
def test_a_refused_bind_is_a_fault_and_not_in_the_spec(
    home: Home, item: object, expected: str
) -> None:
    reading = home.read_web({"binds": [".:/fine", item]})
    plan = reading.plans["web"]
    assert plan.fault.startswith(f"{home.registry}: web.binds[1]: ")
    assert expected in plan.fault
    assert ["/fine"] == [bind.target for bind in spec_of(plan).binds]


def test_the_runtime_sockets_of_the_defaults_are_never_bound(home: Home) -> None:
    sockets = (home.path / "own.sock",)
    binds = [".:/a", {"source": ".", "target": "/b"}]
    plan = home.read_web({"binds": binds}, runtime_sockets=sockets).plans["web"]
    assert 2 == plan.fault.count("socket of the container runtime")
    assert () == spec_of(plan).binds


@pytest.mark.parametrize(
    "item",
    [
        0,
        -1,
        65536,
        10**400,
        80.0,
        True,
        None,
        "http",
        "80:0",
        "::1:80:80",
        [],
        {},
        {"hostPort": 80},
        {"containerPort": "80"},
        {"containerPort": True},
        {"containerPort": 80, "hostPort": 0},
        {"containerPort": 80, "hostPort": None},
        {"containerPort": 80, "host": "localhost"},
        {"containerPort": 80, "host": 7},
        {"containerPort": 80, "protocol": "icmp"},
        {"containerPort": 80, "protocol": None},
        {"containerPort": 80, "hostport": 81},
    ],
)
def test_a_bad_port_is_a_fault(home: Home, item: object) -> None:
    assert home.fault(ports=["81", item]).startswith("web.ports[1]: expected ")


@pytest.mark.parametrize("value", [{}, {"a": 1}, "x", 7, True])
@pytest.mark.parametrize("key", ["binds", "ports"])
def test_a_list_is_expected_for_binds_and_ports(home: Home, key: str, value: object) -> None:
    assert home.fault(**{key: value}).startswith(f"web.{key}: expected a list, found ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image", 7),
        ("image", []),
        ("image", ""),
        ("image", "a b"),
        ("image", "--rm"),
        ("command", 7),
        ("command", {}),
        ("command", ["a", 1]),
        ("command", "an 'open quote"),
        ("command", ["a\0b"]),
        ("restart", "sometimes"),
        ("restart", "Always"),
        ("restart", True),
        ("restart", [[]]),
        ("pull", "often"),
        ("pull", 1),
        ("stopOnExit", "true"),
        ("stopOnExit", 1),
        ("workdir", "code"),
        ("workdir", 7),
        ("user", ""),
        ("user", -1),
        ("user", True),
        ("user", []),
        ("network", 7),
        ("network", ""),
        ("memory", 1),
        ("memory", 0),
        ("memory", True),
        ("memory", 1e9),
        ("memory", "512m"),
        ("memory", "lots"),
        ("memory", []),
        ("memory", "1kb"),
    ],
)
def test_a_bad_value_is_a_fault(home: Home, key: str, value: object) -> None:
    fault = home.fault(**{key: value})
    assert ", found " in fault
    assert "; " in fault


def test_a_word_that_is_nearly_right_gets_a_suggestion(home: Home) -> None:
    expected = (
        "web.restart: expected one of on-failure, always, never, found 'allways'; did you mean "
        "always?"
    )
    assert expected == home.fault(restart="allways")


@pytest.mark.parametrize(
    "env",
    [
        SECRET,
        f"TOKEN={SECRET}",
        True,
        [SECRET],
        [[SECRET]],
        [{"A": SECRET}],
        [f"={SECRET}"],
        {"A": [SECRET]},
        {"A": {"B": SECRET}},
        {"A": None, "B": SECRET},
        {"A": float("nan"), "B": SECRET},
        {"A": float("inf"), "B": SECRET},
        {"": SECRET},
        {f"A={SECRET}": "x"},
        {f"A={SECRET}": None},
        {"A": f"{SECRET}\0"},
        {"A": f"{SECRET}\ud800"},
    ],
)
def test_bad_variables_are_a_fault_that_shows_no_value(home: Home, env: object) -> None:
    fault = home.fault(env=env)
    assert fault.startswith("web")
    assert "expected " in fault
    assert SECRET not in fault


def test_no_message_shows_the_command(home: Home) -> None:
    for command in (f"run '{SECRET}", ["run", f"{SECRET}\0"], ["run", SECRET, 7]):
        assert SECRET not in home.fault(command=command)


def test_all_faults_of_an_agent_are_listed_at_once(home: Home) -> None:
    home.manifest.unlink()
    reading = home.read_web({"privileged": True, "binds": ["/etc:/etc"], "pull": "x", "image": []})
    fault = reading.plans["web"].fault
    expected = ("web.privileged:", "manifest.json:", "web.binds[0]:", "web.pull:", "web.image:")
    assert [] == [part for part in expected if part not in fault]
    assert 6 == fault.count("expected ")


def test_very_many_faults_are_counted(home: Home) -> None:
    fault = home.fault(ports=["x"] * 1000)
    assert 20 == fault.count("web.ports[")
    assert fault.endswith("; and 980 more faults")


def test_the_fault_of_one_agent_leaves_the_others(home: Home) -> None:
    fine = {"type": "agent", "image": "a", "manifestPath": "manifest.json"}
    reading = home.read({"a": fine, "b": {**fine, "privileged": True}, "c": fine, "d": 7})
    assert {"a": False, "b": True, "c": False} == {
        name: bool(plan.fault) for name, plan in reading.plans.items()
    }


@pytest.mark.parametrize(
    ("key", "cure"),
    [
        ("imgae", "did you mean image?"),
        ("agentname", "did you mean agentName?"),
        ("manifest", "did you mean manifestPath?"),
        ("dependsOn", "take it out"),
    ],
)
def test_an_unknown_key_of_an_entry_is_a_warning(home: Home, key: str, cure: str) -> None:
    expected = f"web.{key}: expected a known key, found this one, which is ignored; {cure}"
    assert expected == home.warning(**{key: "x"})


def test_very_many_unknown_keys_are_counted(home: Home) -> None:
    reading = home.read_web({f"{'x' * 1000}{number}\n": 1 for number in range(1000)})
    assert 11 == len(reading.warnings)
    assert "web: expected known keys, found 990 more" in reading.warnings[-1]
    assert max(map(len, reading.warnings)) < 500


@pytest.mark.parametrize(
    "grace", [0, -1, "5", True, [], 31_536_001, 10**400, float("nan"), float("inf")]
)
def test_a_bad_stop_grace_is_a_warning_and_the_default_holds(home: Home, grace: object) -> None:
    warning = home.warning(stopGrace=grace)
    assert warning.startswith("web.stopGrace: expected a number of seconds from 0.01 to a year")
    assert ", so 15 is used" in warning
    assert 15.0 == home.read_web({"stopGrace": grace}).plans["web"].stop.grace


# Probes


@pytest.mark.parametrize(
    "document", [{}, {"health": None}, {"health": {}}, {"health": {"liveness": None}}, {"x": [1]}]
)
def test_a_manifest_without_health_has_no_probes(document: dict[str, object]) -> None:
    reading = parse_manifest(document)
    assert (NO_PROBES, (), ()) == (reading.probes, reading.faults, reading.warnings)
    assert not reading.probes


def test_a_probe_has_the_defaults_of_the_design() -> None:
    policy = ProbePolicy(
        probe=ScriptProbe(script="alive.sh"),
        interval=1.0,
        settled_interval=10.0,
        timeout=5.0,
        failures=5,
        successes=1,
        start_grace=0.0,
    )
    expected = ProbeSet(liveness=policy, readiness=policy, crash_loop=CRASH_LOOP_BACKOFF)
    assert expected == probes(liveness=LIVENESS, readiness=LIVENESS)


@pytest.mark.parametrize("kind", ["liveness", "readiness"])
def test_a_probe_can_set_every_number(kind: str) -> None:
    found = probes(
        **{
            kind: {
                "script": "a",
                "interval": 2,
                "timeout": 0.5,
                "failureThreshold": 3.0,
                "successThreshold": 2,
            }
        }
    )
    expected = ProbePolicy(
        probe=ScriptProbe(script="a"),
        interval=2.0,
        settled_interval=None,
        timeout=0.5,
        failures=3,
        successes=2,
        start_grace=0.0,
    )
    assert expected == getattr(found, kind)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, (30.0, 1.0, 5.0)),
        ({"interval": 2}, (60.0, 2.0, 5.0)),
        ({"failureThreshold": 10, "timeout": 1}, (10.0, 1.0, 1.0)),
        ({"interval": 0.5, "failureThreshold": 4, "successThreshold": 1}, (2.0, 0.5, 5.0)),
    ],
)
def test_a_startup_probe_has_as_long_as_its_failures_take(
    keys: dict[str, object], expected: tuple[float, float, float]
) -> None:
    within, interval, timeout = expected
    policy = StartupPolicy(
        probe=ScriptProbe(script="a"), within=within, interval=interval, timeout=timeout
    )
    assert policy == probes(startup={"script": "a", **keys}).startup


def test_a_startup_probe_passes_once_whatever_its_manifest_says() -> None:
    reading = parse_manifest({"health": {"startup": {"script": "a", "successThreshold": 2}}})
    [warning] = reading.warnings
    expected = "manifest: health.startup.successThreshold: expected 1, found more, so 1 is used"
    assert warning.startswith(expected)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"http": {"port": 80}}, HttpProbe(port=80)),
        ({"http": {"port": 80, "path": None}}, HttpProbe(port=80)),
        ({"http": {"port": 80, "path": "/ok?a=b"}}, HttpProbe(port=80, path="/ok?a=b")),
        ({"tcp": {"port": 65535}}, TcpProbe(port=65535)),
        ({"tcp": {"port": 1}, "script": None}, TcpProbe(port=1)),
        ({"script": "a.B_c-9"}, ScriptProbe(script="a.B_c-9")),
        ({"script": ".hidden"}, ScriptProbe(script=".hidden")),
        ({"script": "x" * 128}, ScriptProbe(script="x" * 128)),
    ],
)
def test_there_are_three_kinds_of_probes(keys: dict[str, object], expected: Probe) -> None:
    found = probes(liveness=keys).liveness
    assert found is not None
    assert expected == found.probe


BAD_NUMBERS = [-1, 0, "5", "", True, False, [], {}, float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("interval", value) for value in [*BAD_NUMBERS, 31_536_001, 10**400, 1e-9]),
        *(("timeout", value) for value in [*BAD_NUMBERS, 31_536_001, 10**400, 1e-9]),
        *(("failureThreshold", value) for value in [*BAD_NUMBERS, 1_000_001, 10**400, 1.5]),
        *(("successThreshold", value) for value in [*BAD_NUMBERS, 1_000_001, 10**400, 1.5]),
    ],
)
@pytest.mark.parametrize("kind", ["liveness", "readiness", "startup"])
def test_a_bad_number_is_a_warning_and_the_default_holds(
    kind: str, key: str, value: object
) -> None:
    reading = parse_manifest({"health": {kind: {"script": "a", key: value}}}, file="m.json")
    [warning] = reading.warnings
    assert warning.startswith(f"m.json: health.{kind}.{key}: expected a ")
    assert " is used; correct it" in warning
    assert () == reading.faults
    assert probes(**{kind: {"script": "a"}}) == reading.probes


@pytest.mark.parametrize(
    "script",
    [
        "",
        ".",
        "..",
        "a..b",
        "-x",
        "--help",
        "a/b",
        "/bin/sh",
        "../alive.sh",
        "a\\b",
        "$(reboot)",
        "`reboot`",
        "a;b",
        "a b",
        "a'b",
        'a"b',
        "a\n",
        "a\0",
        "ä",
        "x" * 129,
        7,
        True,
        [],
        ["alive.sh"],
        {},
    ],
)
@pytest.mark.parametrize("kind", ["liveness", "readiness", "startup"])
def test_a_bad_script_name_is_a_fault(kind: str, script: object) -> None:
    fault = manifest_fault({"health": {kind: {"script": script}}})
    assert fault.startswith(f"manifest: health.{kind}.script: expected a file name of up to 128")
    assert fault.isprintable()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "expected one of script, http and tcp, found none of them"),
        ({"script": None}, "expected one of script, http and tcp, found none of them"),
        ({"script": "a", "tcp": {"port": 1}}, "and tcp, found script and tcp; keep one"),
        ({"http": {"port": 1}, "tcp": {"port": 1}}, "and tcp, found http and tcp; keep one"),
        ({"http": 80}, "health.liveness.http: expected an object, found a number"),
        ({"http": []}, "health.liveness.http: expected an object, found a list"),
        ({"http": {}}, "health.liveness.http.port: expected a port from 1 to 65535, found null"),
        ({"http": {"port": 0}}, "health.liveness.http.port: expected a port"),
        ({"http": {"port": 65536}}, "health.liveness.http.port: expected a port"),
        ({"http": {"port": "80"}}, "health.liveness.http.port: expected a port"),
        ({"http": {"port": True}}, "health.liveness.http.port: expected a port"),
        ({"http": {"port": 80.0}}, "health.liveness.http.port: expected a port"),
        ({"http": {"port": 80, "path": "ok"}}, "health.liveness.http.path: expected a URL path"),
        ({"http": {"port": 80, "path": "/a b"}}, "health.liveness.http.path: expected a URL"),
        ({"http": {"port": 80, "path": "/a\r\nX: y"}}, "health.liveness.http.path: expected a"),
        ({"http": {"port": 80, "path": 7}}, "health.liveness.http.path: expected a URL path"),
        ({"tcp": "80"}, "health.liveness.tcp: expected an object, found text"),
        ({"tcp": {}}, "health.liveness.tcp.port: expected a port"),
        ({"tcp": {"port": -1}}, "health.liveness.tcp.port: expected a port"),
    ],
)
def test_a_probe_that_cannot_be_made_is_a_fault(keys: dict[str, object], expected: str) -> None:
    assert expected in manifest_fault({"health": {"liveness": keys}})


@pytest.mark.parametrize("value", NOT_OBJECTS)
@pytest.mark.parametrize("kind", ["liveness", "readiness", "startup"])
def test_a_probe_that_is_no_object_is_a_fault(kind: str, value: object) -> None:
    assert "expected an object, found " in manifest_fault({"health": {kind: value}})


@pytest.mark.parametrize("value", NOT_OBJECTS)
def test_health_that_is_no_object_is_a_fault(value: object) -> None:
    assert "manifest: health: expected an object, found " in manifest_fault({"health": value})


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        ({"livenes": LIVENESS}, "health.livenes: expected a known key, found this one"),
        ({"livenes": LIVENESS}, "did you mean liveness?"),
        ({"liveness": {**LIVENESS, "intervall": 2}}, "did you mean interval?"),
        ({"liveness": {**LIVENESS, "failurethreshold": 2}}, "did you mean failureThreshold?"),
        ({"startup": {**LIVENESS, "zzz": 2}}, "health.startup.zzz: expected a known key"),
        ({"readiness": {"http": {"port": 1, "pth": "/"}}}, "did you mean path?"),
        ({"readiness": {"tcp": {"port": 1, "host": "x"}}}, "health.readiness.tcp.host: expected"),
    ],
)
def test_an_unknown_key_of_health_is_a_warning(health: dict[str, object], expected: str) -> None:
    reading = parse_manifest({"health": health})
    [warning] = reading.warnings
    assert expected in warning
    assert () == reading.faults


def test_a_bad_probe_leaves_the_others() -> None:
    reading = parse_manifest({"health": {"liveness": {"script": "a/b"}, "readiness": LIVENESS}})
    assert (None, True) == (reading.probes.liveness, reading.probes.readiness is not None)
    assert 1 == len(reading.faults)


# Anything at all

ENTRY_KEYS = (
    "agentName", "repoName", "type", "manifestPath", "image", "command", "env", "binds", "ports",
    "restart", "workdir", "user", "network", "memory", "stopGrace", "stopOnExit", "pull",
    "privileged", "devices",
)  # fmt: skip
MANIFEST_KEYS = (
    "image", "container", "health", "liveness", "readiness", "startup", "script", "http", "tcp",
    "port", "path", "interval", "timeout", "failureThreshold", "successThreshold",
)  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["agent", "always", ".:/a", "80:80", "host", "m.json", "..", "/", "a\0"])
)
keys = st.sampled_from([*MANIFEST_KEYS, "source", "target", "readOnly", "containerPort", "host"])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(keys | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
entries = st.dictionaries(st.sampled_from(ENTRY_KEYS), values).map(
    lambda entry: {"manifestPath": "m.json", **entry, "type": "agent"}
)
registries = st.dictionaries(st.text(max_size=3) | st.just("web"), entries | values, max_size=4)
manifests = st.fixed_dictionaries(
    {"health": st.dictionaries(st.sampled_from(MANIFEST_KEYS[3:6]), values) | values}
)


def read_bytes(registry: bytes, manifest: bytes = b"{}") -> RegistryReading | None:
    """What this registry says; None if it is refused."""
    with tempfile.TemporaryDirectory() as name, suppress(RegistryError):
        path = Path(name)
        (path / "agents.json").write_bytes(registry)
        (path / "m.json").write_bytes(manifest)
        return read_registry(path / "agents.json", defaults=RegistryDefaults(bind_roots=(path,)))
    return None


@given(registry=registries | values, manifest=manifests | values)
@settings(max_examples=300)
def test_any_json_is_read_or_refused(registry: object, manifest: object) -> None:
    reading = read_bytes(json.dumps(registry).encode(), json.dumps(manifest).encode())
    assert isinstance(registry, dict) == (reading is not None)
    for message in messages(reading) if reading else ():
        assert message.isprintable()


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(registry: bytes, manifest: bytes) -> None:
    read_bytes(registry, manifest)
    read_bytes(b'{"web": {"type": "agent", "manifestPath": "m.json"}}', manifest)


secret_values = st.recursive(
    st.sampled_from([SECRET, f"{SECRET}\0", f"A={SECRET}", f"={SECRET}", f"\n{SECRET}\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["A", "", "B=", "C\0", "TOKEN"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(env=secret_values, entry=entries)
def test_no_message_shows_a_value_of_the_environment(env: object, entry: dict[str, Any]) -> None:
    reading = read_bytes(json.dumps({"web": {**entry, "env": env}}).encode())
    assert reading is not None
    assert [] == [message for message in messages(reading) if SECRET in message]


@given(registries)
def test_a_registry_that_is_cut_off_is_refused(registry: dict[str, object]) -> None:
    whole = json.dumps(registry).encode()
    assert read_bytes(whole[: len(whole) // 2]) is None
