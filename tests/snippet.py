"""A small Python program in a real child process, spoken to line by line."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import dedent

TIMEOUT = 30.0


class Snippet:
    """The program while it runs. It prints lines and may read lines; a test never guesses how
    far it has come.
    """

    def __init__(self, code: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-u", "-c", dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._in, self._out, self._err = self._child.stdin, self._child.stdout, self._child.stderr

    def read_line(self) -> str:
        """The next line it prints; empty when it prints no more."""
        return self._out.readline().rstrip("\n")

    def send_line(self, line: str = "") -> None:
        self._in.write(line + "\n")
        self._in.flush()

    def signal(self, signum: signal.Signals) -> None:
        self._child.send_signal(signum)

    def wait(self) -> tuple[int, str]:
        """Wait for its end: the exit code, or minus the signal that ended it, and what it
        complained about.
        """
        code = self._child.wait(TIMEOUT)
        return code, self._err.read()

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        for stream in (self._in, self._out, self._err):
            stream.close()


@contextmanager
def run_snippet(code: str) -> Iterator[Snippet]:
    """Run the program within the block; it is killed at the end if it still runs."""
    snippet = Snippet(code)
    try:
        yield snippet
    finally:
        snippet.close()
