"""How a program's health is asked for, and how often: plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpProbe:
    """`GET http://127.0.0.1:PORT/PATH`: healthy is 200 and JSON with `"status": "healthy"`."""

    port: int
    path: str = "/health"


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpProbe:
    """Healthy is a connection that is accepted on 127.0.0.1."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecProbe:
    """Healthy is a command that exits with 0, in the program's directory and environment."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatProbe:
    """Healthy is one `WATCHDOG=1` on the notify socket since it was last looked at."""


Probe = HttpProbe | TcpProbe | ExecProbe | HeartbeatProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """When a program is asked, and when it has to go.

    The first question comes `start_grace` seconds after the start, then one every `interval`; each
    has `timeout` seconds for the whole answer; `failures` in a row end the run. With `startup`
    there is no grace: it is asked every `startup_interval` from the start, failures do not count
    until it was healthy once, and one that was not after `startup` seconds has to go.
    """

    probe: Probe
    interval: float = 30.0
    timeout: float = 5.0
    failures: int = 3
    start_grace: float = 10.0
    startup: float | None = None
    startup_interval: float = 1.0
