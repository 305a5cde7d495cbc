"""What is asked on the control socket, as commands; and what they give, as answers. On the loop."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.events.supervisor import ConfigReloaded
from longwatch.errors import UsageError
from longwatch.host.guardian_client import GuardianClient
from longwatch.supervisor.commands import START_TIMEOUT, ProgramCommands
from longwatch.supervisor.managed_program import ProgramStatus

ControlResponse = dict[str, Any]

MAX_TIMEOUT = 86_400.0


class ControlRequests:
    """Answers requests; UsageError for one that cannot be understood. `extra_status` is
    added to the status of the supervisor.
    """

    def __init__(  # noqa: PLR0913 - what can be asked about
        self,
        commands: ProgramCommands,
        reload: Callable[[], Awaitable[ConfigReloaded]],
        state_dir: Path,
        guardian: GuardianClient,
        *,
        clock: Clock,
        extra_status: Mapping[str, str],
    ) -> None:
        self._commands = commands
        self._reload = reload
        self._state_dir = state_dir
        self._guardian = guardian
        self._started_at = clock.wall()
        self._extra_status = extra_status

    async def handle(self, request: Mapping[str, Any]) -> ControlResponse:
        """What was asked for, done."""
        names, command = _names(request), request.get("do")
        options: dict[str, Any] = {
            "ready": request.get("ready") is True,
            "timeout": _timeout(request),
        }
        if command == "reload":
            return _reload_response(await self._reload())
        if command == "status":
            programs = self._program_response(await self._commands.status(*names))
            return {**self._supervisor_status(), **programs}
        acts: dict[str, Callable[[], Awaitable[list[ProgramStatus]]]] = {
            "start": lambda: self._commands.start(*names, **options),
            "stop": lambda: self._commands.stop(*names),
            "restart": lambda: self._commands.restart(*names, **options),
            "reset": lambda: self._commands.reset(*names),
            "clear-liveness": lambda: self._commands.clear_liveness(*names),
        }
        if not isinstance(command, str) or command not in acts:
            listed = ", ".join(["status", *acts, "reload"])
            raise UsageError(f"unknown command {command!r}; there are: {listed}")
        return self._program_response(await acts[command]())

    def _supervisor_status(self) -> ProgramStatus:
        return {
            **self._extra_status,
            "pid": os.getpid(),
            "guardian_pid": self._guardian.pid,
            "started_at": self._started_at,
            "state_dir": str(self._state_dir),
        }

    def _program_response(self, programs: list[ProgramStatus]) -> ControlResponse:
        """The facts, and where each program's output is kept."""
        return {
            "programs": [
                {**facts, "log": str(self._state_dir / "logs" / f"{facts['name']}.log")}
                for facts in programs
            ]
        }


def _names(request: Mapping[str, Any]) -> list[str]:
    names = request.get("programs") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError('"programs" must be a list of names')
    return names


def _timeout(request: Mapping[str, Any]) -> float:
    seconds = request.get("timeout")
    if seconds is None:
        return START_TIMEOUT
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds <= MAX_TIMEOUT
    ):
        raise UsageError('"timeout" must be a number of seconds, more than 0 and a day at most')
    return float(seconds)


def _reload_response(changes: ConfigReloaded) -> ControlResponse:
    lists = {
        "added": changes.added,
        "changed": changes.changed,
        "updated": changes.updated,
        "removed": changes.removed,
    }
    return {"programs": [], **{name: list(names) for name, names in lists.items()}}
