"""A supervisor that answers on a real control socket with what a test wants."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.errors import LongwatchError
from longwatch.host.loop import EventLoopThread
from longwatch.supervisor.control import ControlServer
from longwatch.supervisor.supervisor_lock import SupervisorLock
from run_process import TIMEOUT

Facts = dict[str, Any]


def program(name: str = "web", **facts: Any) -> Facts:
    """A program that is up, unless told otherwise."""
    return {
        "name": name,
        "state": "up",
        "desired": "up",
        "up": True,
        "ready": True,
        "pid": 4711,
        "last_start": time.time() - 90.2,
        "uptime": 90.2,
        "consecutive_failures": 0,
        "restart_history": [],
        "total_restarts": 0,
        "current_backoff": 0.0,
        "next_start": None,
        "health_failures": 0,
        "breaker": {"phase": "closed", "reason": "", "cooldown_left": None},
        "last_end": None,
        "waiting_for": [],
        "status_text": "",
        "critical": False,
        "log": None,
        **facts,
    }


def down(name: str, state: str, **facts: Any) -> Facts:
    return program(
        name, state=state, **{"up": False, "ready": False, "pid": None, "uptime": None, **facts}
    )


def end(cause: str, verdict: str, *, ago: float = 300.0) -> Facts:
    return {"cause": cause, "verdict": verdict, "at": time.time() - ago, "lasted": 5.0}


NOT_MEASURED = {
    "supervisor": os.getpid(),
    "cpu_percent": None,
    "cpu_seconds": None,
    "memory_bytes": None,
    "processes": None,
}
"""What `status` adds to the facts of a program about which a supervisor cannot say more."""


class FakeSupervisor:
    """Answers with what the test wants, and keeps what it was asked."""

    def __init__(self, *programs: Facts) -> None:
        self.answer: Facts | LongwatchError = {
            "programs": list(programs),
            "pid": os.getpid(),
            "version": "1",
            "state_dir": "/s",
            "workers": [],
            "stores": [],
        }
        self.requests: list[Facts] = []

    async def __call__(self, request: Facts) -> Facts:
        self.requests.append(request)
        if isinstance(self.answer, LongwatchError):
            raise self.answer
        return self.answer


@contextmanager
def fake_supervisor(state: Path, *programs: Facts, command: str = "") -> Iterator[FakeSupervisor]:
    supervisor = FakeSupervisor(*programs)
    state.mkdir(exist_ok=True)
    server = ControlServer(state / "control", supervisor, clock=SystemClock(), events=Events())
    presence = SupervisorLock.share(state, command) if command else SupervisorLock.acquire(state)
    with EventLoopThread() as loop:
        loop.call(server.open(), timeout=TIMEOUT)
        presence.publish_socket(server.path)
        try:
            yield supervisor
        finally:
            loop.call(server.close(), timeout=TIMEOUT)
            presence.release()
