"""A process that is stopped with SIGSTOP for longer than its leases last, and then goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longwatch.core.clock import SystemClock
from longwatch.mailbox import open_mailbox
from polling import complete_lines, eventually

VISIBILITY = 8.0
LEASES_END = "SELECT max(lease_until) FROM longwatch_messages WHERE lease_state = 2"
WORKER = """
import sys
from pathlib import Path
from longwatch.mailbox import open_mailbox
from longwatch.runtime import MainLoop

url, journal, may_end = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

def note(what):
    with journal.open("a") as file:
        file.write(what + "\\n")

class Patient(MainLoop):
    def handle(self, request, context):
        note(f"began {context.attempt}")
        while not (may_end.exists() or context.cancelled):
            context.beat()
            context.cancel.wakeup.block(0.05)
        note("cancelled" if context.cancelled else "ended")

Patient(requests=open_mailbox(url, "jobs")).run(
    max_iterations=None, visibility_timeout=float(sys.argv[4])
)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    url = f"sqlite:///{tmp_path / 'm.db'}"
    files = [str(tmp_path / "journal"), str(tmp_path / "may-end")]
    command = [sys.executable, "-c", WORKER, url, *files, str(VISIBILITY)]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_healthy_handler_outlives_stops_of_its_process(
    worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Twice its process is stopped until its lease has ended. It is renewed before anything
    is swept, so the handler goes on, and its result counts.
    """
    mailbox = open_mailbox(f"sqlite:///{tmp_path / 'm.db'}", "jobs")
    mailbox.send("x")
    journal, clock = tmp_path / "journal", SystemClock()

    def leased_until() -> float:
        [[until]] = mailbox.backend.database.read(lambda tx: tx.rows(LEASES_END))  # type: ignore[attr-defined]
        return float(until or 0.0)

    assert eventually(lambda: complete_lines(journal) == ["began 1"])
    for _ in range(2):
        os.kill(worker.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
        end = leased_until()
        assert eventually(lambda end=end: clock.boottime() > end)  # type: ignore[misc]
        os.kill(worker.pid, signal.SIGCONT)
        assert eventually(lambda: leased_until() > clock.boottime())
    (tmp_path / "may-end").touch()
    assert eventually(lambda: mailbox.approximate_count() == 0)
    assert ["began 1", "ended"] == complete_lines(journal)
    assert [] == list(mailbox.dead_letters)
