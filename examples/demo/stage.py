"""A directory in which the demo runs: a copy of these files with free ports, one `longwatch up`,
and the count of what was sent, done and lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longwatch import open_mailbox
from longwatch.flow import Flow

HERE = Path(__file__).parent
FILES = ("longwatch.toml", "shop.py", "pages.py", "reports.py", "orders.py")
PORTS = {"shop": 8091, "clusters": 8090, "metrics": 9464}
STORE = "demo.db"
STOP_TIMEOUT = 60.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Totals:
    """What was sent, what is done, and what still waits. `unknown` were being sent when their
    sender was killed.
    """

    sent: int
    done: int
    queued: int
    dead: int
    unknown: int
    lost: tuple[int, ...]
    reports: int
    reports_done: int


class Stage:
    """A `longwatch up` on the files of the demo, in its own directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.state = place / ".longwatch"
        self.ports = dict(PORTS)
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Copy the files. If one of the ports is in use, free ones replace all of them: the shop of
        another demo closes its port whenever it crashes.
        """
        for name in FILES:
            shutil.copy(HERE / name, self.place / name)
        settings = self.place / "longwatch.toml"
        text = settings.read_text(encoding="utf-8")
        if not all(_is_free(port) for port in PORTS.values()):
            self.ports = _free_ports()
        wanted = {str(port): str(self.ports[name]) for name, port in PORTS.items()}
        text = re.sub(r"\d+", lambda number: wanted.get(number[0], number[0]), text)
        settings.write_text(text, encoding="utf-8")

    def start(self, *, log: Path | None = None) -> None:
        """Start `longwatch up`, in a session of its own: Ctrl-C reaches only this process."""
        scripts = str(Path(sys.executable).parent)
        environ = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"}
        with (log or self.place / "up.log").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "longwatch", "up", "--log-format=json"],
                cwd=self.place,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def stop(self) -> int:
        """Stop everything and return the exit code of `longwatch up`. Idempotent."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def status(self) -> dict[str, Any]:
        """What `longwatch status --json` shows; no programs if nothing answers."""
        text = self.command("status", "--json")
        found: dict[str, Any] = json.loads(text) if text else {"programs": []}
        return found

    def command(self, *arguments: str) -> str:
        """Run `longwatch` in the directory; returns its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", "longwatch", *arguments],
            check=False,
            cwd=self.place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
        return done.stdout.strip()

    # --- what was lost ---

    def totals(self) -> Totals:
        """Compare what was sent with what is done and what is in the store."""
        asked, sent = self._numbers("pages-asked.txt"), self._numbers("pages-sent.txt")
        queued, dead = self._stored()  # before `done`: what is not done by then was in the store
        done = self._numbers("pages-done.txt")
        unfinished = sorted(sent - done)
        reports = self._lines("reports-started.txt")
        return Totals(
            sent=len(sent),
            done=len(done),
            queued=queued,
            dead=dead,
            unknown=len(asked - sent),
            lost=tuple(unfinished) if len(unfinished) > queued + dead else (),
            reports=len(reports),
            reports_done=self._finished(reports),
        )

    def wait_until_done(self, timeout: float) -> Totals:
        """Wait until everything that was sent is done, or the timeout is over."""
        deadline = time.monotonic() + timeout
        while True:
            totals = self.totals()
            is_done = not totals.queued and totals.reports == totals.reports_done
            if is_done or time.monotonic() > deadline:
                return totals
            time.sleep(_POLL_SECONDS)

    def _stored(self) -> tuple[int, int]:
        """The numbers of messages that wait or run, and of dead letters."""
        if not (self.place / STORE).exists():
            return 0, 0
        with open_mailbox(f"sqlite:///{self.place / STORE}", "pages") as pages:
            stats = pages.stats()
        return stats.ready + stats.delayed + stats.leased, stats.dead

    def _finished(self, executions: list[str]) -> int:
        if not executions:
            return 0
        with Flow(f"sqlite:///{self.place / STORE}") as flow:
            done = flow.executions(state="done", limit=len(executions))
        return sum(execution.id in executions for execution in done)

    def _numbers(self, file: str) -> set[int]:
        return {int(line) for line in self._lines(file)}

    def _lines(self, file: str) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.place / file).read_text(encoding="utf-8").split()
        return []


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _free_ports() -> dict[str, int]:
    """A different free port for each name."""
    with ExitStack() as probes:
        found = {name: probes.enter_context(socket.socket()) for name in PORTS}
        for probe in found.values():
            probe.bind(("127.0.0.1", 0))
        return {name: int(probe.getsockname()[1]) for name, probe in found.items()}
