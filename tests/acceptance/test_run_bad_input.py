"""What a slip of the pen gets: one line with the cure, exit 2, nothing started, nothing left behind."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervised import NOBODY, longwatch_says

AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
CHILD = ("touch", "started")
"""A command that would show that it was started."""


def one_line(done: subprocess.CompletedProcess[str], cwd: Path, *, started: Sequence[str] = ()) -> str:
    """The one line of a refusal, after making sure that it is one and that nothing happened."""
    [line] = done.stderr.removesuffix("\n").split("\n")
    assert (2, "", "longwatch: ") == (done.returncode, done.stdout, line[:11]), line
    assert list(started) == [name for name in ("started", ".longwatch") if (cwd / name).exists()]
    return line.removeprefix("longwatch: ")


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def executable(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


@pytest.fixture
def refusal(longwatch_bin: Path, tmp_path: Path) -> Iterator[Refusal]:
    return Refusal(longwatch_bin, tmp_path)


class Refusal:
    """Calls `longwatch run` wrongly and returns the one line it says."""

    def __init__(self, longwatch: Path, cwd: Path) -> None:
        self.longwatch = longwatch
        self.cwd = cwd

    def __call__(self, *arguments: str | Path, **env: str) -> str:
        return one_line(longwatch_says(self.longwatch, self.cwd, "run", *arguments, env=env), self.cwd)

    def of_file(self, content: str | bytes) -> str:
        (self.cwd / "longwatch.toml").write_bytes(content.encode() if isinstance(content, str) else content)
        return self("--config", "longwatch.toml", "--", *CHILD)
