"""docs/quickstart.md, followed from top to bottom in two shells: `make release` runs it.

It installs Longwatch as the page says, where `pip install longwatch` is the built wheel. It waits
for the real backoff of a command that always fails, so it takes a minute, and `make test` does not
collect it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import wheel_env
from markdown_files import ROOT, Page, section
from polling import eventually
from run_process import RunProcess, clean_environment, start_process
from up_process import unused_port

PAGE = Page.read(ROOT / "docs" / "quickstart.md")
BREAKER_SECONDS = 120.0
INSTALL_SECONDS = 300.0


def commands(title: str) -> list[str]:
    """The lines that a reader types below this heading."""
    text = section(PAGE, title)
    assert text is not None, f"the quickstart has no section {title!r}"
    typed = re.findall(r"```(?:console|sh)\n(.*?)```", text, flags=re.DOTALL)
    return [
        line.removeprefix("$ ") for block in typed for line in block.splitlines() if line.strip()
    ]


class Shell:
    """A shell of the reader: a directory, and the environment once it was made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = unused_port()
        activated = directory / ".venv" / "bin"
        self.env = {"PATH": f"{activated}:{os.environ['PATH']}", "HOME": str(directory)}

    def here(self, line: str) -> str:
        """The line with a free port in place of the page's."""
        return line.replace("8000", str(self.port))

    def run(self, line: str, *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", self.here(line)],
            check=False,
            cwd=self.directory,
            env=clean_environment(self.env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    @contextmanager
    def running(self, line: str) -> Iterator[RunProcess]:
        """`longwatch …` in the first shell, while the reader uses the second one."""
        words = shlex.split(self.here(line))
        with start_process(words, self.directory, env=self.env) as (process, out, err):
            yield RunProcess(process, out, err, self.directory / ".longwatch" / "logs")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A directory in which the page's own commands have installed Longwatch."""
    shell = Shell(tmp_path_factory.mktemp("quickstart"))
    constraints = ROOT / "constraints.txt"
    script = "\n".join(commands("Install it"))
    assert "\npip install longwatch" in script
    wanted = shlex.join(["pip", "install", "--constraint", str(constraints)])
    script = script.replace("pip install longwatch", f"{wanted} {wheel_env.built_wheel()}")
    done = shell.run(f"set -e\n{script}", timeout=INSTALL_SECONDS)
    assert 0 == done.returncode, done.stdout + done.stderr
    return shell


def test_a_killed_command_comes_back_and_ctrl_c_ends_it(shell: Shell) -> None:
    start, kill = commands("Keep a command up")
    with shell.running(start) as run:
        pid = run.next_event("program_started")["pid"]
        assert re.fullmatch(r"kill -9 \d+", kill)
        os.kill(pid, signal.SIGKILL)
        assert "signal 9" == run.next_event("unexpected_exit")["cause"]
        run.wait_for_event("program_started", times=2)
        run.signal(signal.SIGINT)
        run.wait()
    assert 1 == len(run.events("shutdown_complete"))


def test_another_shell_sees_it_and_stops_it(shell: Shell) -> None:
    [start, _] = commands("Keep a command up")
    status, logs, down = commands("Look at it from another shell")
    with shell.running(start) as run:
        run.next_event("program_started")
        assert ["python", "up"] == shell.run(status).stdout.splitlines()[1].split()[:2]
        with subprocess.Popen(
            ["sh", "-c", f"exec {logs}"],
            cwd=shell.directory,
            env=clean_environment(shell.env),
            stdout=subprocess.PIPE,
        ) as follower:
            assert follower.stdout is not None
            try:
                assert b"Serving HTTP" in follower.stdout.readline()
            finally:
                follower.send_signal(signal.SIGINT)
        assert 0 == shell.run(down).returncode
        run.wait()


def test_a_command_that_always_fails_is_given_up(shell: Shell) -> None:
    start, code = commands("See it give up")
    done = shell.run(f"{start}\n{code}", timeout=BREAKER_SECONDS)
    assert ["trying"] * 6 + ["100"] == done.stdout.splitlines()


def test_the_log_has_what_the_page_shows(shell: Shell) -> None:
    run, tail, cat = commands("Read the log")
    assert 0 == shell.run(run).returncode
    records = [json.loads(line) for line in shell.run(tail).stdout.splitlines()]
    assert "clean_exit" in {record["event"] for record in records}
    assert "working\n" == shell.run(cat).stdout


def test_a_program_that_hangs_is_restarted(shell: Shell) -> None:
    [app] = [block.text for block in PAGE.blocks if block.info[:1] == ("python",)]
    (shell.directory / "app.py").write_text(shell.here(app), encoding="utf-8")
    start, hang = commands("Restart a program that hangs")
    with shell.running(start) as run:
        run.next_event("program_ready")
        assert eventually(lambda: shell.run(hang).returncode == 28)
        run.wait_for_event("health_check_restart")
        run.wait_for_event("program_started", times=2)
        run.signal(signal.SIGTERM)
        run.wait()
