"""A file that cannot be followed: one clear line for each fault, exit code 2, and nothing was
started.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from run_process import run_longwatch

SLEEPS = 'command = ["sleep", "1000"]'
MARKS = '[program.mark]\ncommand = ["touch", "started"]\n'

FAULTS = {
    "two programs of one name": (
        f"[program.a]\n{SLEEPS}\n[program.a]\n{SLEEPS}\n",
        [":5:", "two programs of the name a"],
    ),
    "a circle": (
        f'[program.a]\n{SLEEPS}\ndepends_on = ["b"]\n[program.b]\n{SLEEPS}\ndepends_on = ["a"]\n',
        ["program.a.depends_on", "waits for itself: a → b → a"],
    ),
    "an unknown dependency": (
        f'[program.web]\n{SLEEPS}\n[program.a]\n{SLEEPS}\ndepends_on = ["wbe"]\n',
        ["program.a.depends_on", "'wbe', which is not a program", "did you mean web?"],
    ),
    "an unknown user": (f'[program.a]\n{SLEEPS}\nuser = "nobdy"\n', ["program.a.user", "nobdy"]),
    "a missing directory": (
        f'[program.a]\n{SLEEPS}\ncwd = "missing"\n',
        ["program.a.cwd", "missing", "make it, or correct cwd"],
    ),
    "a missing command": (
        '[program.a]\ncommand = ["no-such-program"]\n',
        ["program.a.command", "no-such-program"],
    ),
    "no command": ("[program.a]\n", ["program.a", "command"]),
    "an unknown key": (
        f"[program.a]\n{SLEEPS}\nautostrat = true\n",
        ["program.a.autostrat", "did you mean autostart?"],
    ),
    "a wrong value": (f'[program.a]\n{SLEEPS}\nstop_grace = "long"\n', ["program.a.stop_grace"]),
    "our own name": (f"[program.watchdog]\n{SLEEPS}\n", ["program.watchdog", "our own log"]),
    "a name that is no file name": (f'[program."../up"]\n{SLEEPS}\n', ["../up"]),
    "no TOML": ("[program.a\n", [":3:", "is not valid TOML"]),
}


def refused(longwatch: Path, cwd: Path, *options: str) -> list[str]:
    """The lines of the refusal."""
    done = run_longwatch(longwatch, cwd, "up", *options)
    assert (2, "") == (done.returncode, done.stdout), done.stderr
    assert not (cwd / "started").exists()
    return done.stderr.splitlines()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_file_is_told_in_one_line_and_nothing_is_started(
    longwatch_bin: Path, tmp_path: Path, fault: str
) -> None:
    text, words = FAULTS[fault]
    (tmp_path / "longwatch.toml").write_text(MARKS + text)
    [line] = refused(longwatch_bin, tmp_path)
    assert line.startswith("longwatch: longwatch.toml")
    assert [] == [word for word in words if word not in line], line


def test_all_faults_are_told_at_once(longwatch_bin: Path, tmp_path: Path) -> None:
    text = (
        f'{MARKS}[program.a]\n{SLEEPS}\ncwd = "missing"\nuser = "nobdy"\n[program.b]\ncommand = '
        f'["no-such-program"]\n'
    )
    (tmp_path / "longwatch.toml").write_text(text)
    lines = refused(longwatch_bin, tmp_path)
    assert 3 == len([line for line in lines if "program." in line]), lines


def test_a_port_that_somebody_else_has_is_told(longwatch_bin: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = somebody.getsockname()[1]
        (tmp_path / "longwatch.toml").write_text(
            f"{MARKS}[program.a]\n{SLEEPS}\nhealth.port = {port}\n"
        )
        [line] = refused(longwatch_bin, tmp_path)
    assert f"program.a.health.port: {port} is not free (address already in use)" in line


def test_without_a_file_and_with_one_that_cannot_be_read_it_says_what_to_do(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    [line] = refused(longwatch_bin, tmp_path)
    assert (
        "longwatch: no longwatch.toml here; write one with `longwatch init`, or name it with "
        "--config" == line
    )
    [line] = refused(longwatch_bin, tmp_path, "--config", "other.toml")
    assert "other.toml" in line
    (tmp_path / "longwatch.toml").write_text("")
    [line] = refused(longwatch_bin, tmp_path)
    assert "declares no program" in line


def test_a_state_directory_that_cannot_be_written_is_told(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    (tmp_path / "longwatch.toml").write_text(f"[program.a]\n{SLEEPS}\n")
    (tmp_path / "file").touch()
    [line] = refused(longwatch_bin, tmp_path, "--state-dir", "file/state")
    assert "file/state" in line
    assert "--state-dir" in line
