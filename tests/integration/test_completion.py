"""The completion scripts in real shells on a terminal: what a Tab key makes of a line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longwatch.cli.completion import SHELLS, completion_script
from longwatch.cli.main import root
from requires import require_tool
from run_process import TIMEOUT, clean_environment
from terminal import Terminal, on_terminal

START = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "--no-rcs", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
PREPARE = {
    "bash": "PS1='$ '; bind 'set bell-style none'; . ./script",
    "zsh": "PS1='$ '; autoload -U compinit; compinit -D; . ./script",
    "fish": "function fish_prompt; echo '$ '; end; source ./script",
}
CONFIG = """
state_dir = "state"
[program.frontend]
command = ["true"]
[program.frontend.env]
A = "1"
[worker.jobs]
target = "a:b"
"""
PRINTER = '#!/bin/sh\necho "<$*>"\n'
"""Stands in for `longwatch`, and shows what the shell made of the line."""


@contextmanager
def shell(name: str, cwd: Path) -> Iterator[Terminal]:
    if name != "bash":
        require_tool(name)
    (cwd / "script").write_text(completion_script(name, root))
    command = cwd / "bin" / "longwatch"
    command.parent.mkdir()
    command.write_text(PRINTER)
    command.chmod(0o755)
    env = {"HOME": str(cwd), "PATH": f"{command.parent}:{clean_environment()['PATH']}"}
    with on_terminal(START[name], cwd, env={**env, "TERM": "dumb"}) as terminal:
        terminal.press(f"{PREPARE[name]}; echo read''y\n")
        terminal.wait_for("ready")
        yield terminal


@pytest.fixture(params=SHELLS)
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    """A shell in a directory with programs, files and a state directory."""
    (tmp_path / "longwatch.toml").write_text(CONFIG)
    for name in ("state/logs/watchdog.log", "state/logs/webserver.log", "other/logs/solver.log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with shell(request.param, tmp_path) as opened:
        yield opened


def test_a_tab_completes_commands_options_values_and_programs(terminal: Terminal) -> None:
    lines = {
        "longwatch mailb\tdea\tdro\tjobs": "mailbox dead drop jobs",
        "longwatch mailbox send --del\t5": "mailbox send --delay 5",
        "longwatch --deb\tup --log-level warn\t": "--debug up --log-level warning",
        "longwatch run --restart=nev\t": "run --restart=never",
        "longwatch runner --log-level runs sourc\t": "runner --log-level runs sources",
        "longwatch logs webs\t": "logs webserver",
        "longwatch restart fron\t": "restart frontend",
        "longwatch stop --state-dir oth\t sol\t": "stop --state-dir other solver",
        "longwatch check --config longw\t": "check --config longwatch.toml",
        "longwatch completion fi\t": "completion fish",
        "longwatch run -- printen\tA": "run -- printenv A",
    }
    for typed, expected in lines.items():
        terminal.press(f"{typed}\n")
        before = terminal.wait_for("\n<")
        got = " ".join(terminal.wait_for(">").split())
        assert expected == got.replace("/ ", " "), before


def test_words_that_do_not_exist_are_left_as_they_are(terminal: Terminal) -> None:
    for line in ("longwatch logs watchd", "longwatch mailbox nothing", "longwatch stop A"):
        terminal.press(f"{line}\t\n")
        terminal.wait_for("\n<")
        assert line.removeprefix("longwatch ") == terminal.wait_for(">").strip()


@pytest.mark.parametrize("shell_name", SHELLS)
def test_the_command_prints_the_script_with_every_command(shell_name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "longwatch", "completion", shell_name],
        check=True,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert completion_script(shell_name, root) == done.stdout
    assert "longwatch mailbox dead replay" in done.stdout
    assert "@" not in done.stdout.replace('"$@"', "").replace("'@'", "")


def test_names_of_log_files_are_never_run(tmp_path: Path) -> None:
    """A directory that came from elsewhere may have any files."""
    logs = tmp_path / ".longwatch" / "logs"
    logs.mkdir(parents=True)
    for name in ("$(touch ran)", "`touch ran`", "web-1"):
        (logs / f"{name}.log").touch()
    (tmp_path / "script").write_text(completion_script("bash", root))
    complete = (
        '. ./script; COMP_WORDS=(longwatch status ""); COMP_CWORD=2; _longwatch; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    found = subprocess.run(
        ["bash", "--norc", "-c", complete],
        cwd=tmp_path,
        env=clean_environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )

    assert ["web-1"] == found.stdout.split()
    assert not (tmp_path / "ran").exists()
