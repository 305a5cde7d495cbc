"""Runs clients of `fault_client.py`, or of another queue, applies faults to their server, and
reports what each fault cost.

Every client is a process and keeps a journal. A message that was sent is lost if no worker ever
settled it, and duplicated if it was settled twice. It counts for the last fault that began before
its send. When an older state of the server is restored, what happened since that state does not
count: the server has lost it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import psutil

import fault_client
from fault_client import MAILBOX
from longwatch.errors import MailboxConnectionError
from longwatch.mailbox import Mailbox, open_mailbox

PROGRESS_WORDS = {"produce": "sent", "work": "traded"}
"""The word that a client writes when a call to the server succeeded."""


class ClientProcess:
    """One client in a process of its own."""

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
        self._stderr_file = journal.with_suffix(".err")
        self.discarded: list[tuple[int, int]] = []
        self._command = [*command, role, environment["FAULT_URL"], str(journal), str(number)]
        self._environment = {**os.environ, **environment}
        self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._stderr_file.open("ab") as errors:
            return subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stderr=errors, env=self._environment
            )

    def restart(self) -> None:
        """Start it again, as a supervisor would."""
        self.process = self._spawn()

    def __str__(self) -> str:
        return f"{self.role} {self.number} ({self.process.poll()})"

    @property
    def position(self) -> int:
        """How far its journal has come."""
        return self.journal.stat().st_size if self.journal.exists() else 0

    def entries(self, since: int = 0, until: int | None = None) -> Iterator[list[str]]:
        """The entries of a part of its journal, without those that a restore discarded."""
        for begin, end in self._kept_ranges(since, self.position if until is None else until):
            for line in self._read_range(begin, end).split("\n")[:-1]:
                yield line.split(" ")

    def _read_range(self, begin: int, end: int) -> str:
        if begin >= end:
            return ""
        with self.journal.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin).decode()

    def _kept_ranges(self, since: int, until: int) -> Iterator[tuple[int, int]]:
        for begin, end in self.discarded:
            yield since, min(begin, until)
            since = max(since, end)
        yield since, until

    def numbers(self, word: str, since: int = 0, until: int | None = None) -> list[int]:
        return [int(words[1]) for words in self.entries(since, until) if words[0] == word]

    def is_connected(self, since: int) -> bool:
        return any(words[0] == PROGRESS_WORDS[self.role] for words in self.entries(since))

    @property
    def has_ended(self) -> bool:
        """Whether it ended by itself; the harness kills clients by a signal."""
        return self.process.poll() not in {None, -signal.SIGKILL}

    def stderr_text(self) -> str:
        """What it wrote to its standard error."""
        return self._stderr_file.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


_HEAD = (
    "| fault | recovered after (s) | sent | lost | doubled | failed calls | cores used "
    "|\n|---|---:|---:|---:|---:|---:|---:|"
)


@dataclass(frozen=True)
class FaultReport:
    """One line of the table."""

    fault: str
    recovered_after: float
    sent: int
    lost: int
    duplicated: int
    failed_calls: int
    failures_in_a_row: dict[str, int]
    """By the name of a call, the most times that it failed in a row in one engine."""
    duration: float
    """How many seconds it lasted."""
    cpu: float
    """How much of a core all clients used while it lasted."""


class MailboxWatcher:
    """The mailbox, over a connection of its own."""

    def __init__(self, url: str) -> None:
        self.mailbox: Mailbox[Any] = open_mailbox(url, MAILBOX)

    def is_empty(self) -> bool:
        with suppress(MailboxConnectionError):
            return self.mailbox.approximate_count() == 0
        return False

    def dead_letters(self) -> list[str]:
        return [
            f"{letter.reason}: {letter.body!r} {letter.error}"
            for letter in self.mailbox.dead_letters
        ]

    def close(self) -> None:
        backend: Any = self.mailbox.backend
        (backend.database if hasattr(backend, "database") else backend.store).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def report_table(reports: Iterable[FaultReport]) -> str:
    return "\n".join([_HEAD, *(_report_row(report) for report in reports)])


def _report_row(report: FaultReport) -> str:
    numbers = (report.sent, report.lost, report.duplicated, report.failed_calls)
    return (
        f"| {report.fault} | {report.recovered_after:.1f} | {' | '.join(map(str, numbers))} | "
        f"{report.cpu:.2f} |"
    )


TIMEOUT = 90.0
_PAUSE_BETWEEN_FAULTS = 0.3
"""Seconds of work between two faults."""


@dataclass(frozen=True)
class Fault:
    """A fault of a server: entering `inject()` starts it, leaving ends it.

    `seconds`: how long it lasts. `fails_calls`: whether calls have to fail meanwhile.
    `saves_state`, `restores_state`: the server is down meanwhile, and a copy of its state is taken
    or put back. `followed_by`: the fault that always comes next.
    """

    name: str
    inject: Callable[[], AbstractContextManager[None]]
    seconds: float = 1.0
    fails_calls: bool = False
    saves_state: bool = False
    restores_state: bool = False
    followed_by: Fault | None = None


@dataclass
class FaultResult:
    """What happened to the clients under one fault."""

    fault: Fault
    start_positions: dict[ClientProcess, int]
    duration: float = 0.0
    recovered_after: float = inf
    cpu: float = 0.0
    end_positions: dict[ClientProcess, int] = field(default_factory=dict)


class FaultHarness:
    """Runs the clients, applies faults to their server, and reports the results.

    `roles` names the role of each client. `environments` are added to theirs; `FAULT_URL` in them
    is the URL of the server. `command` runs a client, also of another queue. `allows_exits`:
    clients that ended are not waited for.
    """

    def __init__(
        self,
        folder: Path,
        roles: Iterable[str],
        environments: Iterable[dict[str, str]],
        command: Sequence[str] | None = None,
    ) -> None:
        self.results: list[FaultResult] = []
        self.timeout = TIMEOUT
        self.allows_exits = False
        self.drained_after = 0.0
        self._saved: dict[ClientProcess, int] = {}
        chosen = command or [sys.executable, fault_client.__file__]
        self.clients = [
            ClientProcess(role, chosen, folder / f"journal-{number}", number, environment)
            for number, (role, environment) in enumerate(zip(roles, environments, strict=True), 1)
        ]

    def wait_until_working(self) -> None:
        """Wait until every client has reached the server."""
        self._await(
            self._all_connected(dict.fromkeys(self.clients, 0)),
            "every client has reached the server",
        )

    def apply(self, fault: Fault) -> None:
        """Start and end a fault, and wait until every client reaches the server again."""
        result = FaultResult(fault, self._positions())
        busy, began = self._cpu_seconds(), time.monotonic()
        with fault.inject():
            pause(fault.seconds)
            self._note_state(fault)
        result.duration, result.cpu = (
            time.monotonic() - began,
            (self._cpu_seconds() - busy) / (time.monotonic() - began),
        )
        self.results.append(result)
        self._recover(result)
        pause(_PAUSE_BETWEEN_FAULTS)
        if fault.followed_by is not None:
            self.apply(fault.followed_by)

    def _recover(self, result: FaultResult) -> None:
        lifted = time.monotonic()
        try:
            self._await(
                self._all_connected(self._positions()),
                f"every client reaches the server after: {result.fault.name}",
            )
            result.recovered_after = time.monotonic() - lifted
        finally:
            result.end_positions = self._positions()

    def _note_state(self, fault: Fault) -> None:
        if fault.saves_state:
            self._saved = self._positions()
        if fault.restores_state:
            for client, position in self._positions().items():
                client.discarded.append((self._saved[client], position))

    def stop_producers(self) -> None:
        for client in self.clients:
            if client.role == "produce":
                client.kill()

    def drain(self, is_empty: Callable[[], bool]) -> None:
        """Stop the producers and wait until the workers have finished."""
        self.stop_producers()
        began = time.monotonic()
        self._await(is_empty, "everything is settled")
        self.drained_after = time.monotonic() - began

    def close(self) -> None:
        for client in self.clients:
            client.kill()

    def exited_clients(self) -> list[str]:
        """Clients that ended by themselves, with their standard error."""
        return [f"{client}: {client.stderr_text()}" for client in self.clients if client.has_ended]

    def stderr_texts(self) -> list[str]:
        """The standard error of every client that wrote to it; ours are silent."""
        return [f"{client}: {said}" for client in self.clients if (said := client.stderr_text())]

    # --- reports ---

    def reports(self, *, settled: str = "acked") -> list[FaultReport]:
        """One report for each fault; call it when everything is settled."""
        done = Counter(n for client in self.clients for n in client.numbers(settled))
        ran = {n for client in self.clients for n in client.numbers("ran")}
        following = [result.start_positions for result in self.results[1:]] + [self._positions()]
        return [
            self._report(result, end, done, ran)
            for result, end in zip(self.results, following, strict=True)
        ]

    def _report(
        self, result: FaultResult, end: dict[ClientProcess, int], done: Counter[int], ran: set[int]
    ) -> FaultReport:
        begins = result.start_positions
        meant = {
            n
            for client in self.clients
            for n in client.numbers("intend", begins[client], end[client])
        }
        sent = {
            n
            for client in self.clients
            for n in client.numbers("sent", begins[client])
            if n in meant
        }
        return FaultReport(
            fault=result.fault.name,
            recovered_after=result.recovered_after,
            sent=len(sent),
            lost=len(sent - done.keys() - ran),
            duplicated=sum(done[n] > 1 for n in meant),
            failed_calls=self._count("failed", result) + self._count("lost", result),
            failures_in_a_row=self._most_failures(result),
            duration=result.duration,
            cpu=result.cpu,
        )

    def _count(self, word: str, result: FaultResult) -> int:
        begins, ends = result.start_positions, result.end_positions
        return sum(
            words[0] == word
            for client in self.clients
            for words in client.entries(begins[client], ends[client])
        )

    def _most_failures(self, result: FaultResult) -> dict[str, int]:
        found: dict[str, int] = {}
        for client in self.clients:
            begin, end = result.start_positions[client], result.end_positions[client]
            for words in client.entries(begin, end):
                if words[0] in {"lost", "found"}:
                    found[words[1]] = max(int(words[2]), found.get(words[1], 0))
        return found

    # --- small words ---

    def _positions(self) -> dict[ClientProcess, int]:
        return {client: client.position for client in self.clients}

    def _cpu_seconds(self) -> float:
        """Seconds of a core that all clients have used so far."""
        times = [
            psutil.Process(client.process.pid).cpu_times()
            for client in self.clients
            if client.process.poll() is None
        ]
        return sum(each.user + each.system for each in times)

    def _all_connected(self, positions: dict[ClientProcess, int]) -> Callable[[], bool]:
        missing = set(self.clients)

        def look() -> bool:
            gone = {client for client in missing if self.allows_exits and client.has_ended}
            missing.difference_update(
                gone, [client for client in missing if client.is_connected(positions[client])]
            )
            return not missing

        return look

    def _await(self, condition: Callable[[], bool], description: str) -> None:
        until = time.monotonic() + self.timeout
        while not condition():
            assert self.allows_exits or [] == self.exited_clients(), description
            assert time.monotonic() < until, (
                f"not so in time: {description}\n{self._last_entries()}"
            )
            pause(0.02)

    def _last_entries(self) -> str:
        """The last entries of every client."""
        return "\n".join(f"{client}: {list(client.entries())[-8:]}" for client in self.clients)


def pause(seconds: float) -> None:
    """Let the clients work."""
    threading.Event().wait(seconds)


@contextmanager
def running_clients(
    folder: Path,
    url: str,
    clients: Sequence[tuple[str, dict[str, str]]],
    command: Sequence[str] | None = None,
) -> Iterator[FaultHarness]:
    """A harness whose clients, each with an environment of its own, have reached the server."""
    with TemporaryDirectory(prefix="lw-") as runtime:
        common = {"FAULT_URL": url, "XDG_RUNTIME_DIR": runtime}
        harness = FaultHarness(
            folder,
            [role for role, _ in clients],
            [{**common, **extra} for _, extra in clients],
            command,
        )
        try:
            harness.wait_until_working()
            yield harness
        finally:
            harness.close()
