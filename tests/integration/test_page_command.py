"""`longwatch page` as a process: beside `longwatch up`, alone, and where it cannot run."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shlex
import signal
import socket
import time
from pathlib import Path
from typing import Any, cast

import pytest

from longwatch.app.page_plan import publish_address
from longwatch.errors import TryAgainError
from longwatch.page.command import PageOptions, _listen
from longwatch.page.server import PageServer
from page_process import PageClient, client_of, served_page
from polling import complete_lines, eventually
from run_process import TIMEOUT, RunProcess, run_longwatch, start_process
from up_process import FROM_SOURCE, SLEEPER, UpProcess, sh, start_up, unused_port


def up_with_page(cwd: Path, port: str = "", **top: Any) -> Any:
    env = {"LONGWATCH_PAGE_PORT": port or str(unused_port())}
    return start_up(cwd=cwd, programs={"api": SLEEPER}, env=env, **top, **FROM_SOURCE)


def records(up: UpProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in complete_lines(up.logs / "page.log")]


def run_page(cwd: Path, *words: str) -> tuple[int, str, str]:
    """`longwatch page` to its end: exit code, stdout, stderr."""
    done = run_longwatch(Path("longwatch"), cwd, "page", *words, within=FROM_SOURCE["within"])
    return done.returncode, done.stdout, done.stderr


def test_up_keeps_the_page_up_as_a_program_of_its_own(tmp_path: Path) -> None:
    with up_with_page(tmp_path) as up:
        first = up.wait_for_status("page", ready=True)
        client = client_of(up.state_dir)
        assert 200 == client.get("/").status
        os.kill(first["pid"], signal.SIGKILL)
        up.wait_for_status("page", ready=True, total_restarts=1)
        assert eventually(lambda: 200 == client_of(up.state_dir).get("/").status)
        assert up.status("api")["total_restarts"] == 0
        up.stop_cleanly()
    started = [each for each in records(up) if each["event"] == "page_started"]
    assert [f"{client.base}/"] * 2 == [each["address"] for each in started]
    assert client.token not in (up.logs / "page.log").read_text()
    assert client.token not in up.err.text.decode()


def test_a_stop_signal_ends_the_page_at_once_with_open_streams(tmp_path: Path) -> None:
    with up_with_page(tmp_path) as up:
        up.wait_for_status("page", ready=True)
        client = client_of(up.state_dir)
        streams = []
        for _ in range(3):
            stream = socket.create_connection(("127.0.0.1", client.port), timeout=TIMEOUT)
            stream.sendall(
                f"GET /live?path=/ HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {client.token}\r\n\r\n".encode()
            )
            assert b"200 OK" in stream.recv(4096)
            streams.append(stream)
        up.stop_cleanly()
        for stream in streams:
            stream.close()
    [end] = [each for each in up.events() if each.get("program") == "page" and "cause" in each]
    assert ("exit 0", 0) == (end["cause"], end["killed"])


def test_a_page_that_is_not_ready_or_ends_does_not_matter_for_the_rest(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with up_with_page(tmp_path, str(taken.getsockname()[1])) as up:
            ended = up.wait_for_event("unexpected_exit", program="page")
            assert ("exit 75", True) == (ended["cause"], ended["restart"])
            up.wait_for_status("api", ready=True)
            up.stop_cleanly()
        said = (up.logs / "page.log").read_text()
    assert "is in use on 127.0.0.1; give the status page another with --port" in said


def test_a_program_of_the_file_that_is_called_page_takes_its_place(tmp_path: Path) -> None:
    env = {"LONGWATCH_PAGE_PORT": str(unused_port())}
    programs = {"page": {"command": ["sleep", "1000"]}}
    with start_up(cwd=tmp_path, programs=programs, env=env, **FROM_SOURCE) as up:
        told = up.next_event("page_not_planned")
        assert "command" == up.wait_for_status("page", up=True)["kind"]
        up.stop_cleanly()
    assert "declares 'page' itself; set port = \"off\" in [page]" in told["reason"]


def test_a_page_that_is_off_or_has_no_state_directory_is_not_started(tmp_path: Path) -> None:
    with up_with_page(tmp_path, "off") as up:
        up.wait_for_status("api", up=True)
        assert ["api"] == list(up.pids())
        up.stop_cleanly()


def test_the_link_leads_to_the_page_that_runs(tmp_path: Path) -> None:
    assert 75 == run_page(tmp_path, "--link")[0]
    with up_with_page(tmp_path) as up:
        up.wait_for_status("page", ready=True)
        code, link, _ = run_page(tmp_path, "--link")
        client = client_of(up.state_dir)
        assert (0, f"{client.link}\n") == (code, link)
        up.stop_cleanly()
    code, _, said = run_page(tmp_path, "--link")
    assert 75 == code
    assert "no status page runs on .longwatch; start it with `longwatch up`" in said


@pytest.mark.parametrize("state", ["a state", "off"])
def test_a_page_alone_that_has_no_terminal_says_how_to_get_its_link(
    tmp_path: Path, state: str
) -> None:
    (tmp_path / "a state").mkdir()
    port = str(unused_port())
    words = [*FROM_SOURCE["within"], "longwatch", "page", "--state-dir", state, "--port", port]
    with start_process([*words, "--store", "sqlite:///jobs.db"], tmp_path) as (process, out, err):
        page = RunProcess(process, out, err, tmp_path)
        if command := page.next_event("page_started")["link_command"]:
            link = run_page(Path("/"), *shlex.split(command)[2:])[1]
        else:
            while b"status page: " not in err.text:
                assert err.next_line(time.monotonic() + TIMEOUT) is not None
            link = re.findall(r"^status page: (.*\n)", err.text.decode(), re.MULTILINE)[0]
        client = PageClient(int(port), link.rstrip("\n").rpartition("=")[2])
        assert f"{client.link}\n" == link
        assert 200 == client.get("/").status


class TakenPorts:
    """A server whose ports up to one are in use."""

    def __init__(self, last: int) -> None:
        self.last = last

    async def start(self, _: str, port: int) -> int:
        if port <= self.last:
            raise OSError(errno.EADDRINUSE, "in use")
        return port


def listen(last_taken: int, port: int | None = None, state: Path | None = None) -> int:
    options = PageOptions(state=state, port=port)
    return asyncio.run(_listen(cast("PageServer", TakenPorts(last_taken)), options))


def test_of_the_default_ports_the_next_free_one_is_taken() -> None:
    assert 8087 == listen(8086)
    assert 8090 == listen(8089)
    with pytest.raises(TryAgainError, match="ports 8087 to 8097 are in use"):
        listen(8097)
    with pytest.raises(TryAgainError, match="port 8087 is in use"):
        listen(8087, port=8087)


def test_a_page_that_starts_again_keeps_its_port_while_that_is_free(tmp_path: Path) -> None:
    for address, expected in [
        ("http://127.0.0.1:8089/", 8089),
        ("http://[::1]:8089/", 8089),
        ("http://127.0.0.1:38089/", 8087),  # is none of the default ports
        ("nonsense", 8087),
    ]:
        held = publish_address(tmp_path, address)
        assert held is not None
        os.close(held)
        assert expected == listen(8086, state=tmp_path)
    held = publish_address(tmp_path, "http://127.0.0.1:8089/")
    assert held is not None
    os.close(held)
    assert 8090 == listen(8089, state=tmp_path)
    assert 8091 == listen(8090, port=8091, state=tmp_path)


@pytest.mark.parametrize(
    ("code", "words", "said"),
    [
        (2, ["--port", "none"], "takes a whole number"),
        (2, [], "there is no state directory"),
        (2, ["--state-dir", "nothing"], "there is no state directory 'nothing' to show"),
        (2, ["--state-dir", "off"], "the state directory is off"),
        (2, ["--host", "192.0.2.1", "--state-dir", "state"], "cannot listen on 192.0.2.1"),
        (2, ["--state-dir", "open"], "can be used by other users"),
        (2, ["--state-dir", "empty"], "holds no token"),
        (2, ["--config", "faulty.toml"], "allowed_hosts[0]"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_cure(
    tmp_path: Path, code: int, words: list[str], said: str
) -> None:
    for name in ("state", "open", "empty"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "open" / "page.token").write_text("a-token-of-some-length")
    (tmp_path / "open" / "page.token").chmod(0o644)
    (tmp_path / "empty" / "page.token").touch(0o600)
    (tmp_path / "faulty.toml").write_text('[page]\nallowed_hosts = ["http://x/"]\n')

    found, _, message = run_page(tmp_path, *words)
    assert code == found
    assert said in message


def test_a_missing_extra_is_answered_with_the_command_that_installs_it(tmp_path: Path) -> None:
    hidden = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'jinja2' else find(name, *a)\n"
        "from longwatch.cli.main import main; main(['page', '--state-dir', '.'])"
    )
    with start_process([FROM_SOURCE["within"][0], "-c", hidden], tmp_path) as (process, _, err):
        assert 2 == process.wait(TIMEOUT)
        err.read_to_end(time.monotonic() + TIMEOUT)
    assert b"needs jinja2, which is not installed; run: pip install " in err.text


def test_several_supervisors_of_one_directory_are_told_apart(tmp_path: Path) -> None:
    """`longwatch run` shares the directory of `longwatch up`, and has a program of that name."""
    failing = sh("exit 3", backoff={"initial": 60, "cap": 60})
    with start_up(cwd=tmp_path, programs={"api": failing}, **FROM_SOURCE) as up:
        up.wait_for_event("restart_scheduled", program="api")
        words = [*FROM_SOURCE["within"], "longwatch", "run", "--name", "api", "--", "sleep", "1000"]
        with start_process(words, tmp_path) as (other, _, _), served_page(up.state_dir) as page:
            assert eventually(lambda: 2 == len(page.data.control.status().supervisors))
            overview, restarts = page.get("/").body, page.get("/restarts").body
            programs, worst = page.get("/programs").body, page.get("/programs/api").body
            other_api = page.get(f"/programs/api?supervisor={other.pid}").body
            other.send_signal(signal.SIGTERM)
            other.wait(TIMEOUT)
        up.stop_cleanly()

    assert f"longwatch up 0.1.0, pid {up.pid}" in overview
    assert f"longwatch run 0.1.0, pid {other.pid}" in overview
    assert 1 == overview.count('class="problem problem-bad"')
    assert f"up, pid {up.pid}</td>" in restarts
    assert f"run, pid {other.pid}</td>" not in restarts
    assert f"<strong>pid {up.pid}</strong>" in worst
    assert "exit 3 (unexpected exit)" in worst
    assert f"<strong>pid {other.pid}</strong>" in other_api
    assert 2 == programs.count('<th scope="row"><a href="/programs/api">')
