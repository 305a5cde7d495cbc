"""One actor of `fault_actors.py`, or of another queue, in a process of its own, and the journal
that it keeps.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ALIVE = {"produce": "sent", "work": "traded"}
"""What an actor says when it gets through to the server."""


class Player:
    """One actor in a process of its own."""

    def __init__(
        self,
        role: str,
        command: Sequence[str],
        journal: Path,
        number: int,
        environment: dict[str, str],
    ) -> None:
        self.role = role
        self.number = number
        self.journal = journal
        self._complaints = journal.with_suffix(".err")
        self.forgotten: list[tuple[int, int]] = []
        self._command = [*command, role, environment["FAULT_URL"], str(journal), str(number)]
        self._environment = {**os.environ, **environment}
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._complaints.open("ab") as errors:
            return subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stderr=errors, env=self._environment
            )

    def revive(self) -> None:
        """Start it again, as a supervisor would."""
        self.process = self._started()

    def __str__(self) -> str:
        return f"{self.role} {self.number} ({self.process.poll()})"

    @property
    def place(self) -> int:
        """How far its journal has come."""
        return self.journal.stat().st_size if self.journal.exists() else 0

    def words(self, since: int = 0, until: int | None = None) -> Iterator[list[str]]:
        """What it wrote down in a part of its journal, without what was forgotten."""
        for begin, end in self._remembered(since, self.place if until is None else until):
            for line in self._part(begin, end).split("\n")[:-1]:
                yield line.split(" ")

    def _part(self, begin: int, end: int) -> str:
        if begin >= end:
            return ""
        with self.journal.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin).decode()

    def _remembered(self, since: int, until: int) -> Iterator[tuple[int, int]]:
        for begin, end in self.forgotten:
            yield since, min(begin, until)
            since = max(since, end)
        yield since, until

    def said(self, word: str, since: int = 0, until: int | None = None) -> list[int]:
        return [int(words[1]) for words in self.words(since, until) if words[0] == word]

    def gets_through(self, since: int) -> bool:
        return any(words[0] == ALIVE[self.role] for words in self.words(since))

    @property
    def has_ended(self) -> bool:
        """Whether it ended by itself; who is killed here ends by a signal."""
        return self.process.poll() not in {None, -signal.SIGKILL}

    def complained(self) -> str:
        """What it wrote to its standard error."""
        return self._complaints.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
