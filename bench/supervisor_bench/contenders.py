"""Who runs: each writes its own configuration for so many programs, and has a command that shows
their status.

All programs are the same script. Nobody waits before a restart, nobody checks health. Ours keeps
what programs say in files, as it always does; the others throw it away.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from queue_bench.environments import BUILD

PEERS = BUILD / "bench-supervisors"
PACKAGES = ("supervisor==4.3.0", "circus==0.19.0")

Command = list[str | Path]


class SupervisorContender(Protocol):
    """A supervisor: `command` runs it in the foreground, with its files in `place`.
    `poll_interval`: so many seconds, if it does.
    """

    @property
    def name(self) -> str: ...

    @property
    def poll_interval(self) -> float: ...

    def command(self, place: Path, program: Path, count: int) -> Command: ...

    def status(self, place: Path) -> Command: ...


@dataclass(frozen=True)
class Longwatch:
    name: str = "longwatch"
    poll_interval: float = 0.2
    longwatch: Path = Path(sys.executable).parent / "longwatch"

    def command(self, place: Path, program: Path, count: int) -> Command:
        """A file has to declare a program: one that is not started, for none. The breaker counts
        no longer than a moment.
        """
        table = (
            '[program.p{0}]\ncommand = ["{1}"]\nbackoff.initial = 0\nbreaker = {{ restarts = '
            "1000, window = 1 }}\n"
        )
        idle = f'[program.idle]\ncommand = ["{program}"]\nautostart = false\n'
        _write(
            place / "longwatch.toml",
            [table.format(number, program) for number in range(count)] or [idle],
        )
        return [self.longwatch, "up", "--config", place / "longwatch.toml"]

    def status(self, place: Path) -> Command:
        return [self.longwatch, "status", "--config", place / "longwatch.toml"]


@dataclass(frozen=True)
class Supervisord:
    name: str = "supervisord"
    poll_interval: float = 1.0

    def command(self, place: Path, program: Path, count: int) -> Command:
        own = (
            "[supervisord]\nnodaemon=true\nlogfile=/dev/null\nlogfile_maxbytes=0\n"
            f"pidfile={place}/supervisord.pid\n"
        )
        rpc = (
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n"
        )
        ways = f"[unix_http_server]\nfile={place}/socket\n[supervisorctl]\nserverurl=unix://{place}/socket\n"
        table = (
            "[program:p{0}]\ncommand={1}\nstartsecs=0\nautorestart=true\n"
            "stdout_logfile=NONE\nstderr_logfile=NONE\n"
        )
        programs = [table.format(number, program) for number in range(count)]
        _write(place / "supervisord.conf", [own, rpc, ways, *programs])
        return [PEERS / "bin" / "supervisord", "-c", place / "supervisord.conf"]

    def status(self, place: Path) -> Command:
        return [PEERS / "bin" / "supervisorctl", "-c", place / "supervisord.conf", "status"]


@dataclass(frozen=True)
class Circus:
    name: str = "circus"
    poll_interval: float = 5.0

    def command(self, place: Path, program: Path, count: int) -> Command:
        own = f"[circus]\nendpoint=ipc://{place}/endpoint\npubsub_endpoint=ipc://{place}/pubsub\n"
        table = "[watcher:p{0}]\ncmd={1}\nmax_retry=-1\n"
        _write(
            place / "circus.ini", [own, *(table.format(number, program) for number in range(count))]
        )
        return [PEERS / "bin" / "circusd", "--log-level", "error", place / "circus.ini"]

    def status(self, place: Path) -> Command:
        return [PEERS / "bin" / "circusctl", "--endpoint", f"ipc://{place}/endpoint", "status"]


CONTENDERS: tuple[SupervisorContender, ...] = (Longwatch(), Supervisord(), Circus())


def _write(path: Path, parts: list[str]) -> None:
    path.write_text("\n".join(parts), encoding="utf-8")
