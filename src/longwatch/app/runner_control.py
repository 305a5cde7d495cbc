"""The control socket of `longwatch runner`, for `longwatch status`, `stop` and `down`.

The runner appears as the only program of a supervisor. It stops with its process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from longwatch import __version__
from longwatch.app.worker_report import RUNNER_STORE, WORKERS_COMMAND, worker_report
from longwatch.config.settings import RUNNER_PROGRAM
from longwatch.core.clock import Clock
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import ControlCommandReceived, ControlUnavailable
from longwatch.errors import TryAgainError, UsageError
from longwatch.host.blocking_call import BlockingCall
from longwatch.host.loop import EventLoopThread
from longwatch.host.tree_usage import own_usage, usage_facts
from longwatch.runner.runner import Runner
from longwatch.supervisor.control import ControlServer
from longwatch.supervisor.socket_directory import SocketDirectory
from longwatch.supervisor.supervisor_lock import SupervisorLock

JsonObject = dict[str, Any]

_OPEN_TIMEOUT = 10.0
_USAGE_TIMEOUT = 5.0
_KEYS: Mapping[str, frozenset[str]] = {
    "status": frozenset({"programs", "all"}),
    "usage": frozenset({"programs", "all"}),
    "stop": frozenset({"programs", "all"}),
    "down": frozenset(),
    WORKERS_COMMAND: frozenset(),
}
"""The commands, and the keys that each accepts beside `do`."""


class RunnerControl:
    """Answers control requests of a runner. `status_text` returns its status, `stop` begins to
    drain it. `store_url` is the complete URL of its store. The main thread opens and closes it
    once.
    """

    def __init__(  # noqa: PLR0913 - a runner and its surroundings, each by name
        self,
        runner: Runner,
        state: Path,
        *,
        status_text: Callable[[], str],
        stop: Callable[[], None],
        store_url: str,
        clock: Clock,
        events: Events,
    ) -> None:
        self._runner = runner
        self._store_url = store_url
        self._state = state
        self._status_text = status_text
        self._stop = stop
        self._clock = clock
        self._events = events
        self._loop = EventLoopThread(name="longwatch-control", clock=clock)
        self._started_at = clock.wall()
        self._began = clock.monotonic()
        self._stop_requested = False
        self._ended = asyncio.Event()
        self._undo = ExitStack()

    def open(self) -> None:
        """Listen on the control socket. If that fails, emit an event and continue without the
        socket.
        """
        try:
            with ExitStack() as undo:
                self._open(undo)
                self._undo = undo.pop_all()
        except (OSError, UsageError, TryAgainError) as error:
            self._events.emit(ControlUnavailable(reason=describe_error(error)))

    def _open(self, undo: ExitStack) -> None:
        lock = SupervisorLock.share(self._state, "runner", clock=self._clock)
        undo.callback(lock.release)
        sockets = SocketDirectory.create()
        undo.callback(sockets.close)
        server = ControlServer(
            sockets.path / "control", self.handle, clock=self._clock, events=self._events
        )
        undo.callback(self._loop.stop)
        self._loop.call(server.open(), timeout=_OPEN_TIMEOUT)
        undo.callback(lambda: self._loop.call(self._close(server), timeout=_OPEN_TIMEOUT))
        lock.publish_socket(server.path)

    def close(self) -> None:
        """Answer the requests that wait for the end, and close the socket. Idempotent."""
        self._undo.close()

    async def _close(self, server: ControlServer) -> None:
        self._ended.set()
        await asyncio.sleep(0)  # those that waited send their responses
        await server.close()

    async def handle(self, request: JsonObject) -> JsonObject:
        """Run one request. Raises UsageError if a runner does not accept it."""
        command = _command(request)
        if command == WORKERS_COMMAND:
            return worker_report(stores=[(self._store_url, RUNNER_STORE)])
        if command == "usage":
            return {"programs": [await self._usage()]}
        if command in {"stop", "down"}:
            program = (RUNNER_PROGRAM,)
            self._events.emit(ControlCommandReceived(command=command, programs=program))
            self._stop_once()
        if command == "down":
            return {"programs": []}
        if command == "stop":
            await self._ended.wait()
        return {**self._process_status(), "programs": [self._program_status()]}

    def _stop_once(self) -> None:
        """Begin to drain, unless the drain has begun: a second stop would end the runs at once."""
        if not (self._stop_requested or self._runner.is_draining):
            self._stop_requested = True
            self._stop()

    async def _usage(self) -> JsonObject:
        call = BlockingCall(own_usage, name="longwatch-usage", timeout=_USAGE_TIMEOUT)
        try:
            usage = await call.run()
        finally:
            call.close()
        measured_at = self._clock.monotonic()
        facts = {"name": RUNNER_PROGRAM, "pid": os.getpid(), "measured_at": measured_at}
        return {**facts, **usage_facts(usage)}

    def _process_status(self) -> JsonObject:
        return {
            "command": "runner",
            "version": __version__,
            "pid": os.getpid(),
            "guardian_pid": self._runner.guardian.pid,
            "started_at": self._started_at,
            "state_dir": str(self._state.absolute()),
        }

    def _program_status(self) -> JsonObject:
        """The state of the runner in the form of a supervisor's program."""
        state = "stopped" if self._ended.is_set() else self._state_now()
        is_up = state != "stopped"
        reason = self._runner.health.unready_reason() if is_up else ""
        return {
            "name": RUNNER_PROGRAM,
            "kind": "runner",
            "group": None,
            "state": state,
            "desired": "up" if state in {"starting", "up"} else "stopped",
            "up": is_up,
            "ready": is_up and not reason,
            "unready_reason": reason,
            "pid": os.getpid() if is_up else None,
            "last_start": self._started_at,
            "uptime": self._clock.monotonic() - self._began if is_up else None,
            "consecutive_failures": 0,
            "restart_history": [],
            "total_restarts": 0,
            "current_backoff": 0.0,
            "next_start": None,
            "health_failures": 0,
            "probes": {},
            "breaker": {"phase": "closed", "reason": "", "cooldown_left": None},
            "last_end": None,
            "last_error": "",
            "waiting_for": [],
            "status_text": self._status_text() if is_up else "",
            "critical": False,
            "log": str(self._state.absolute() / "logs" / f"{RUNNER_PROGRAM}.log"),
        }

    def _state_now(self) -> str:
        if self._runner.is_draining:
            return "stopping"
        return "up" if self._runner.started else "starting"


def _command(request: JsonObject) -> str:
    """The command of a request. Raises UsageError for an unknown command, key or program name."""
    command = request.get("do")
    if not isinstance(command, str) or command not in _KEYS:
        raise UsageError(
            f"`longwatch runner` cannot do {command!r}; it takes status, stop and down, and starts "
            f"with its process"
        )
    if unknown := sorted(set(request) - {"do", *_KEYS[command]}):
        raise UsageError(f"unknown key {unknown[0]!r} in a {command} request")
    names = request.get("programs", [])
    if not isinstance(names, list):
        raise UsageError('"programs" must be a list of names')
    for name in names:
        if name != RUNNER_PROGRAM:
            raise UsageError(f"no program {name!r}; there are: {RUNNER_PROGRAM}")
    if command == "stop" and not names and request.get("all") is not True:
        raise UsageError('a stop request names "programs", or says "all": true')
    return command
