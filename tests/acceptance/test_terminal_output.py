"""What a person sees on a terminal of programs that write control characters."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from run_process import TIMEOUT, clean_environment

WRITTEN = b" 10%\r100%\n\x1b[2Jcleared\n\x1b[32mgreen\n"
SHOWN = [b"100%", b"\\x1b[2Jcleared", b"\x1b[32mgreen\x1b[0m"]
PRINTS = r"printf ' 10%%\r100%%\n\033[2Jcleared\n\033[32mgreen\n'"


def on_terminal(longwatch: Path, cwd: Path, *words: str) -> list[bytes]:
    """The lines of `longwatch WORDS` on a terminal of its own, which ends them with CR LF."""
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        [longwatch, *words],
        cwd=cwd,
        env=clean_environment(None),
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
    )
    os.close(terminal)
    shown = b""
    try:
        while chunk := _read(ours):
            shown += chunk
        assert 0 == process.wait(TIMEOUT)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown.split(b"\r\n")[:-1]


def on_pipe(longwatch: Path, cwd: Path, *words: str) -> bytes:
    return subprocess.run(
        [longwatch, *words],
        check=True,
        cwd=cwd,
        env=clean_environment(None),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT,
    ).stdout


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


@pytest.fixture
def logged(longwatch_bin: Path, tmp_path: Path) -> Path:
    """A directory with the log of a program that has run."""
    words = ("run", "--name", "web", "--", "sh", "-c", PRINTS)
    assert WRITTEN == on_pipe(longwatch_bin, tmp_path, *words)
    assert WRITTEN == (tmp_path / ".longwatch/logs/web.log").read_bytes()
    return tmp_path


def test_logs_escapes_control_characters_on_a_terminal_alone(
    longwatch_bin: Path, logged: Path
) -> None:
    assert SHOWN == on_terminal(longwatch_bin, logged, "logs")
    assert WRITTEN == on_pipe(longwatch_bin, logged, "logs")


def test_run_escapes_control_characters_on_a_terminal(longwatch_bin: Path, tmp_path: Path) -> None:
    assert SHOWN == on_terminal(
        longwatch_bin, tmp_path, "run", "--name", "web", "--", "sh", "-c", PRINTS
    )
    assert WRITTEN == (tmp_path / ".longwatch/logs/web.log").read_bytes()
