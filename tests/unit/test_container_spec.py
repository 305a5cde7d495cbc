from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.supervisor.containers.container_spec import (
    Bind,
    ContainerSpec,
    PublishedPort,
    PullPolicy,
    container_faults,
    make_port,
    moved_binds,
    parse_bind,
    parse_port,
)

SPEC = ContainerSpec(name="web", image="node:20")
SECRET = "hunter2-correct-horse"

MAKING: dict[str, Any] = {
    "image": "node:22",
    "command": ("serve",),
    "env": {"A": "1"},
    "binds": (Bind(source="/srv/a", target="/a"),),
    "ports": (PublishedPort(host_port=80, container_port=80),),
    "workdir": "/code",
    "user": "1000",
    "network": "none",
    "memory": 1 << 30,
    "log_max_bytes": 1,
    "log_files": 1,
}
NOT_MAKING: dict[str, Any] = {
    "name": "other",
    "pull": PullPolicy.ALWAYS,
    "stop_on_exit": True,
    "script_dir": "/probes",
    "agent": "coder",
    "repo": "shop",
    "manifest_path": "/srv/manifest.json",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A bind root with a directory `data` and a file `file` in it."""
    root = tmp_path / "root"
    (root / "data").mkdir(parents=True)
    (root / "file").touch()
    return root.resolve()


def bind(text: str, root: Path) -> Bind:
    return parse_bind(text, base=root, roots=[root])


def bind_fault(text: str, base: Path, *roots: Path) -> str:
    with pytest.raises(ValueError, match=r"^expected .*, found .*; ") as caught:
        parse_bind(text, base=base, roots=roots)
    return str(caught.value)


def fault(**parts: Any) -> str:
    [found] = container_faults(replace(SPEC, **parts))
    return found


# The digest


def test_every_field_of_a_spec_is_known_to_change_the_digest_or_not() -> None:
    assert {*MAKING, *NOT_MAKING} == {field.name for field in fields(ContainerSpec)}


@pytest.mark.parametrize("name", MAKING)
def test_a_field_that_makes_the_container_changes_its_digest(name: str) -> None:
    assert SPEC.digest() != replace(SPEC, **{name: MAKING[name]}).digest()


@pytest.mark.parametrize("name", NOT_MAKING)
def test_a_field_that_does_not_make_the_container_leaves_its_digest(name: str) -> None:
    assert SPEC.digest() == replace(SPEC, **{name: NOT_MAKING[name]}).digest()


def test_a_digest_stays_the_same_from_release_to_release() -> None:
    assert "e2c3cf5e98da6471" == replace(SPEC, **MAKING).digest()


@given(st.permutations(range(3)))
def test_the_order_of_variables_binds_and_ports_does_not_change_a_digest(order: list[int]) -> None:
    def spec(numbers: list[int]) -> ContainerSpec:
        return replace(
            SPEC,
            env={f"V{number}": "x" for number in numbers},
            binds=tuple(Bind(source=f"/s{number}", target=f"/t{number}") for number in numbers),
            ports=tuple(make_port(host_port=n + 80, container_port=80) for n in numbers),
        )

    assert spec([0, 1, 2]).digest() == spec(order).digest()


def test_a_digest_exists_for_text_that_cannot_be_encoded() -> None:
    assert 16 == len(replace(SPEC, env={"A": "\ud800"}).digest())


# Binds


@pytest.mark.parametrize(
    ("text", "target", "read_only"),
    [
        ("data:/data", "/data", False),
        ("data:/data:rw", "/data", False),
        ("data:/data:ro", "/data", True),
        ("./data/../data:/data", "/data", False),
        ("data://a/./b/", "/a/b", False),
        ("data:/a..b", "/a..b", False),
    ],
)
def test_a_bind_has_a_source_a_target_and_a_mode(
    root: Path, text: str, target: str, *, read_only: bool
) -> None:
    expected = Bind(source=str(root / "data"), target=target, read_only=read_only)
    assert expected == bind(text, root)


def test_an_absolute_source_a_file_and_the_root_itself_can_be_bound(root: Path) -> None:
    sources = [root / "data", root / "file", root]
    assert [str(path) for path in sources] == [bind(f"{p}:/x", root).source for p in sources]


def test_a_source_and_a_root_that_are_symlinks_are_resolved(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    (root / "link").symlink_to("data")
    found = parse_bind("alias/link:/x", base=tmp_path, roots=[Path("alias")])
    assert str(root / "data") == found.source


@pytest.mark.parametrize("text", ["", "data", "data:/a:ro:rw", "data:/a:z", "data:/a:", "a:b:c:d"])
def test_a_text_of_another_form_is_no_bind(root: Path, text: str) -> None:
    assert "expected SOURCE:TARGET, SOURCE:TARGET:ro or" in bind_fault(text, root, root)


@pytest.mark.parametrize(
    "target", ["", "data", "./data", "/", "//", "/.", "/..", "/a/../b", "/a\0b", "/a\ud800"]
)
def test_a_target_is_absolute_and_below_the_top(root: Path, target: str) -> None:
    assert "expected an absolute path other than '/'" in bind_fault(f"data:{target}", root, root)


@pytest.mark.parametrize("source", ["", "a\0b", "a\ud800"])
def test_a_source_that_no_file_can_have_is_refused(root: Path, source: str) -> None:
    assert "expected the path of a file or dir" in bind_fault(f"{source}:/data", root, root)


def test_a_source_with_a_colon_behind_a_symlink_is_refused(root: Path) -> None:
    (root / "a:b").mkdir()
    (root / "link").symlink_to("a:b")
    assert "without ':' in its path" in bind_fault("link:/data", root, root)


@pytest.mark.parametrize("source", ["missing", "data/missing", "file/below", "x" * 300])
def test_a_source_that_does_not_exist_is_refused(root: Path, source: str) -> None:
    assert "expected a source that exists" in bind_fault(f"{source}:/data", root, root)


def test_a_loop_of_symlinks_is_refused(root: Path) -> None:
    (root / "loop").symlink_to("loop")
    assert "expected a source that exists" in bind_fault("loop:/data", root, root)


@pytest.mark.parametrize("source", ["..", "../root2", "/etc", "data/../../root2", "link"])
def test_a_source_outside_the_roots_is_refused(root: Path, source: str) -> None:
    root.with_name("root2").mkdir()
    (root / "link").symlink_to("../root2")
    message = bind_fault(f"{source}:/data", root, root)
    assert f"under one of the bind roots ('{root}')" in message
    assert "add its directory to bind_roots" in message


def test_without_roots_nothing_can_be_bound(root: Path) -> None:
    assert "bind roots (there are none)" in bind_fault("data:/data", root)


@pytest.mark.parametrize(
    "source",
    [
        "/",
        "/run",
        "/var",
        "/var/run",
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/podman",
        "/run/podman/podman.sock",
        "/run/containerd/containerd.sock",
        "/run/user",
        "/run/user/1000",
        "/run/user/1000/docker.sock",
        "/run/user/7/podman/podman.sock",
        "/run/../run",
        "/proc/self/root/run",
    ],
)
def test_the_socket_of_a_runtime_is_never_bound(source: str) -> None:
    message = bind_fault(f"{source}:/data", Path("/"), Path("/"))
    assert "without the socket of the container runtime" in message


def test_a_symlink_to_the_socket_of_a_runtime_is_refused(root: Path) -> None:
    (root / "link").symlink_to("/run")
    message = bind_fault("link:/data", root, Path("/"))
    assert "without the socket of the container runtime, found '/run'" in message


@pytest.mark.parametrize("variable", ["DOCKER_HOST", "CONTAINER_HOST"])
@pytest.mark.parametrize("scheme", ["unix://", "unix:", ""])
@pytest.mark.parametrize("source", ["data/my.sock", "data", "."])
def test_the_socket_of_the_environment_is_never_bound(
    root: Path, monkeypatch: pytest.MonkeyPatch, variable: str, scheme: str, source: str
) -> None:
    (root / "data" / "my.sock").touch()
    monkeypatch.setenv(variable, f"{scheme}{root}/data/my.sock")
    assert "socket of the container runtime" in bind_fault(f"{source}:/data", root, root)
    assert str(root / "file") == bind("file:/data", root).source


def test_the_sockets_of_a_rootless_runtime_are_never_bound(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root / "data"))
    assert "socket of the container runtime" in bind_fault("data:/data", root, root)


def test_a_socket_behind_a_symlink_is_never_bound_by_its_other_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "link.sock").symlink_to("data/real.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{root}/link.sock")
    assert "socket of the container runtime" in bind_fault("data:/data", root, root)


def test_a_caller_can_name_more_sockets(root: Path) -> None:
    with pytest.raises(ValueError, match="socket of the container runtime"):
        parse_bind("data:/x", base=root, roots=[root], sockets=[root / "data" / "own.sock"])


@pytest.mark.parametrize("host", ["", "tcp://127.0.0.1:2375", "ssh://user@host", "unix://"])
def test_a_runtime_without_a_socket_here_forbids_no_bind(
    root: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert str(root / "data") == bind("data:/data", root).source


def test_a_bind_that_stays_what_it_was_has_not_moved(root: Path) -> None:
    assert [] == moved_binds(replace(SPEC, binds=(bind("data:/data", root),)))


def test_a_bind_has_moved_when_its_source_became_a_symlink_or_is_gone(root: Path) -> None:
    spec = replace(SPEC, binds=(bind("data:/data", root),))
    (root / "data").rmdir()
    [gone] = moved_binds(spec)
    (root / "data").symlink_to("/etc")
    [moved] = moved_binds(spec)
    assert "found nothing there" in gone
    assert "found that it leads elsewhere" in moved


def test_a_bind_of_a_socket_that_was_made_by_hand_has_moved() -> None:
    source = os.path.realpath("/run")
    assert 1 == len(moved_binds(replace(SPEC, binds=(Bind(source=source, target="/x"),))))


# Ports


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80", (80, 80, "127.0.0.1", "tcp")),
        ("80/udp", (80, 80, "127.0.0.1", "udp")),
        ("8080:80", (8080, 80, "127.0.0.1", "tcp")),
        ("8080:80/udp", (8080, 80, "127.0.0.1", "udp")),
        ("8080:80/tcp", (8080, 80, "127.0.0.1", "tcp")),
        ("127.0.0.1:8080:80", (8080, 80, "127.0.0.1", "tcp")),
        ("0.0.0.0:1:65535", (1, 65535, "0.0.0.0", "tcp")),
        ("[::1]:8080:80", (8080, 80, "::1", "tcp")),
        ("[0:0::1]:8080:80/udp", (8080, 80, "::1", "udp")),
    ],
)
def test_a_port_has_a_number_on_both_sides_an_address_and_a_protocol(
    text: str, expected: tuple[int, int, str, str]
) -> None:
    port = parse_port(text)
    assert expected == (port.host_port, port.container_port, port.host, port.protocol)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http",
        ":80",
        "80:",
        "8080::80",
        "-1",
        "+80",
        " 80",
        "80\n",
        "８０",
        "100000",
        "80-90",
        "80/",
        "80/TCP",
        "80/udp/udp",
        "::1:8080:80",
        "127.0.0.1::80",
        "1:2:3:4",
        "[::1]:80",
        "[::1:80:80",
    ],
)
def test_a_text_of_another_form_is_no_port(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected PORT, .* found .*; write it as"):
        parse_port(text)


@pytest.mark.parametrize("text", ["0", "65536", "0:80", "80:0", "99999:80"])
def test_a_port_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected a port from 1 to 65535, found .*; choose"):
        parse_port(text)


@pytest.mark.parametrize(
    "text", ["localhost:1:1", "1.2.3:1:1", "1.2.3.256:1:1", "[x]:1:1", "*:1:1"]
)
def test_a_port_is_published_on_an_address_only(text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected an IP address of this host, found .*; write"):
        parse_port(text)


def test_a_protocol_that_cannot_be_published_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^expected the protocol tcp or udp, found 'sctp'; "):
        parse_port("80/sctp")


@given(st.text(st.sampled_from("0189:./[]tcpud "), max_size=20))
def test_any_text_is_a_port_or_refused(text: str) -> None:
    with suppress(ValueError):
        port = parse_port(text)
        assert {True} == {1 <= number <= 65535 for number in (port.host_port, port.container_port)}


# The whole spec


def test_a_whole_spec_without_faults_has_none() -> None:
    assert [] == container_faults(replace(SPEC, **MAKING))


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "_a", "a b", "a/b", "a\n", "ä", "a" * 65, "a\0", "../a"]
)
def test_a_name_that_no_runtime_takes_is_a_fault(name: str) -> None:
    assert "expected a container name of up to 64" in fault(name=name)


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-d", "a" * 64])
def test_a_name_that_runtimes_take_is_none(name: str) -> None:
    assert [] == container_faults(replace(SPEC, name=name))


def test_a_container_needs_an_image() -> None:
    assert "expected the name of an image, found none; set image" == fault(image="")


@pytest.mark.parametrize("image", ["-v", "--privileged", "a b", "a\tb", "a\n", "a\0", "a\ud800"])
def test_an_image_that_is_no_name_is_a_fault(image: str) -> None:
    assert "expected an image name without spaces" in fault(image=image)


@pytest.mark.parametrize("image", ["a", "localhost:5000/a/b:1", f"a@sha256:{'0' * 64}"])
def test_an_image_of_any_registry_is_none(image: str) -> None:
    assert [] == container_faults(replace(SPEC, image=image))


@pytest.mark.parametrize(
    "network",
    [
        "host",
        "HOST",
        "container:web",
        "ns:/proc/1/ns/net",
        "slirp4netns:allow_host_loopback=true",
        "bridge,host",
        "",
        "-a",
        "a b",
    ],
)
def test_the_network_of_the_host_or_of_another_container_is_a_fault(network: str) -> None:
    assert "never the host's or another container's" in fault(network=network)


@pytest.mark.parametrize("network", [None, "none", "bridge", "my_net.1", "hosts"])
def test_a_network_of_the_runtime_is_none(network: str | None) -> None:
    assert [] == container_faults(replace(SPEC, network=network))


@pytest.mark.parametrize("memory", [-1, 0, 1, (6 << 20) - 1, 1 << 63])
def test_memory_with_which_nothing_can_start_is_a_fault(memory: int) -> None:
    assert "expected a memory limit of at least 6291456 bytes (6 MiB)" in fault(memory=memory)


def test_the_least_memory_is_none() -> None:
    assert [] == container_faults(replace(SPEC, memory=6 << 20))


@pytest.mark.parametrize("workdir", ["", "code", "../code", "/co\0de"])
def test_a_relative_workdir_is_a_fault(workdir: str) -> None:
    assert "expected an absolute path as workdir" in fault(workdir=workdir)


@pytest.mark.parametrize("name", ["", "=", "A=B", "A\0", "A\ud800"])
def test_a_variable_needs_a_name(name: str) -> None:
    assert "expected a variable name without '=' and null bytes" in fault(env={name: SECRET})


@pytest.mark.parametrize("text", [f"{SECRET}\0", f"\0{SECRET}", f"{SECRET}\ud800"])
def test_text_that_no_runtime_can_pass_on_is_a_fault_that_does_not_show_it(text: str) -> None:
    in_env, in_command = fault(env={"A": text}), fault(command=("serve", text))
    assert "found something else in the variable 'A'" in in_env
    assert "found something else in argument 1 of command" in in_command
    assert SECRET not in in_env + in_command


def test_no_fault_shows_what_stands_after_the_name_of_a_variable() -> None:
    assert SECRET not in fault(env={f"A={SECRET}": "x"})


def test_two_binds_of_one_target_are_a_fault() -> None:
    twice = (Bind(source="/a", target="/data"), Bind(source="/b", target="/data"))
    assert "expected one bind for '/data', found 2; keep one of them" == fault(binds=twice)


@pytest.mark.parametrize(
    "ports",
    [
        ("80", "80:81"),
        ("80", "0.0.0.0:80:81"),
        ("0.0.0.0:80:80", "10.0.0.1:80:80"),
        ("[::1]:80:80", "[::]:80:81"),
        ("80/udp", "80:81/udp"),
    ],
)
def test_a_host_port_that_is_published_twice_is_a_fault(ports: tuple[str, str]) -> None:
    assert "expected every host port once, found 80/" in fault(ports=tuple(map(parse_port, ports)))


@pytest.mark.parametrize(
    "ports",
    [
        ("80", "81:80"),
        ("80", "80/udp"),
        ("127.0.0.1:80:80", "10.0.0.1:80:80"),
        ("80", "[::1]:80:80"),
        ("0.0.0.0:80:80", "[::]:80:80"),
    ],
)
def test_ports_that_do_not_meet_are_none(ports: tuple[str, str]) -> None:
    assert [] == container_faults(replace(SPEC, ports=tuple(map(parse_port, ports))))


def test_every_fault_is_reported_at_once() -> None:
    assert 4 == len(container_faults(replace(SPEC, name="", image="", network="host", memory=1)))


def test_a_message_masks_secrets_and_stays_one_short_line(root: Path) -> None:
    message = bind_fault(f"https://user:{SECRET}@host/\n{'x' * 100_000}", root, root)
    assert SECRET not in message
    assert message.isprintable()
    assert len(message) < 500
