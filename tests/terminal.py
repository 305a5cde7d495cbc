"""A program on a terminal of its own: keys go in, and what it drew can be waited for."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from run_process import TIMEOUT, clean_environment

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """The terminal and the process on it. `shown` has everything that was written."""

    def __init__(self, ours: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.shown = ""
        self._ours = ours

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, text: str) -> str:
        """Read on until this text comes; returns what came before it. Later calls look only at what
        comes later.
        """
        deadline = time.monotonic() + TIMEOUT
        while text not in (plain := _COLOUR.sub("", self.shown)):
            if not self._read(deadline):
                pytest.fail(f"{text!r} did not come: {plain[-3000:]!r}")
        before, _, self.shown = plain.partition(text)
        return before

    def wait(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + TIMEOUT
        while self._read(deadline):
            pass
        return self.process.wait(TIMEOUT)

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._ours)

    def _read(self, deadline: float) -> bool:
        poller = select.poll()
        poller.register(self._ours, select.POLLIN)
        if not poller.poll(max(deadline - time.monotonic(), 0) * 1000):
            pytest.fail(f"nothing more came: {self.shown[-3000:]!r}")
        data = b""
        with suppress(OSError):  # the other end is closed
            data = os.read(self._ours, 65536)
        self.shown += data.decode(errors="replace")
        return bool(data)


@contextmanager
def on_terminal(
    words: Sequence[str | Path],
    cwd: Path,
    *,
    env: Mapping[str, str] | None = None,
    columns: int = 100,
    lines: int = 24,
) -> Iterator[Terminal]:
    """A process whose three standard streams are a terminal; killed at the end of the block."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env=clean_environment({"TERM": "xterm-256color", **(env or {})}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - its keys and its size then send signals
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
