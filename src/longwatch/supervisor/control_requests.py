"""Runs the requests of the control socket as commands, and forms their responses. Used on the loop.

A request is validated before anything is done: an unknown key, a wrong type or a command that names
no programs is refused. A misspelled key therefore never widens a command to all programs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.events.supervisor import ConfigReloaded
from longwatch.core.sanitize import printable
from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError
from longwatch.host.guardian_client import GuardianClient
from longwatch.supervisor.client import READING_COMMANDS
from longwatch.supervisor.commands import START_TIMEOUT, ProgramCommands
from longwatch.supervisor.managed_program import ProgramStatus

ControlResponse = dict[str, Any]
ExtraRequest = Callable[[], ControlResponse | Awaitable[ControlResponse]]
"""Answers a request of the code around the supervisor, on the loop: it must not block."""

MAX_TIMEOUT = 86_400.0

_SELECTION_KEYS = ("programs", "all")
_START_KEYS = (*_SELECTION_KEYS, "ready", "timeout")
_COMMAND_KEYS: Mapping[str, tuple[str, ...]] = {
    "status": _SELECTION_KEYS,
    "start": _START_KEYS,
    "stop": _SELECTION_KEYS,
    "restart": _START_KEYS,
    "reset": _SELECTION_KEYS,
    "clear-liveness": _SELECTION_KEYS,
    "usage": _SELECTION_KEYS,
    "down": (),
    "reload": (),
}
"""The keys that each command takes besides `do`."""


class ControlRequests:
    """Answers requests. Raises UsageError for an invalid one. `extra_status` is added to the status
    of the supervisor. `extra_requests` are further commands by name; they take no keys.
    """

    def __init__(  # noqa: PLR0913 - the parts that requests are about
        self,
        commands: ProgramCommands,
        reload: Callable[[], Awaitable[ConfigReloaded]],
        state_dir: Path,
        guardian: GuardianClient,
        *,
        clock: Clock,
        extra_status: Mapping[str, str],
        extra_requests: Mapping[str, ExtraRequest] | None = None,
    ) -> None:
        self._extra_requests = extra_requests or {}
        self._known_keys = {**_COMMAND_KEYS, **dict.fromkeys(self._extra_requests, ())}
        self._commands = commands
        self._reload = reload
        self._state_dir = state_dir
        self._guardian = guardian
        self._started_at = clock.wall()
        self._extra_status = extra_status

    async def handle(self, request: Mapping[str, Any]) -> ControlResponse:
        """Run one request and return its response. Raises UsageError if the request is invalid."""
        command = _command(request, self._known_keys)
        _require_known_keys(request, command, self._known_keys[command])
        if command in self._extra_requests:
            found = self._extra_requests[command]()
            return found if isinstance(found, dict) else await found
        if command == "reload":
            return _reload_response(await self._reload())
        if command == "down":
            return {"programs": await self._commands.shut_down()}
        names = _names(request, command)
        if command == "status":
            programs = self._program_response(await self._commands.status(*names))
            return {**self._supervisor_status(), **programs}
        if command == "usage":
            return {"programs": await self._commands.usage(*names)}
        return self._program_response(await self._change(command, names, request))

    async def _change(
        self, command: str, names: list[str], request: Mapping[str, Any]
    ) -> list[ProgramStatus]:
        if command in {"start", "restart"}:
            act = self._commands.start if command == "start" else self._commands.restart
            return await act(*names, ready=_flag(request, "ready"), timeout=_timeout(request))
        acts: dict[str, Callable[..., Awaitable[list[ProgramStatus]]]] = {
            "stop": self._commands.stop,
            "reset": self._commands.reset,
            "clear-liveness": self._commands.clear_liveness,
        }
        return await acts[command](*names)

    def _supervisor_status(self) -> ProgramStatus:
        return {
            **self._extra_status,
            "pid": os.getpid(),
            "guardian_pid": self._guardian.pid,
            "started_at": self._started_at,
            "state_dir": str(self._state_dir),
        }

    def _program_response(self, programs: list[ProgramStatus]) -> ControlResponse:
        """Return the statuses, each with the path of the program's log."""
        return {
            "programs": [
                {**facts, "log": str(self._state_dir / "logs" / f"{facts['name']}.log")}
                for facts in programs
            ]
        }


def _command(request: Mapping[str, Any], known: Collection[str]) -> str:
    command = request.get("do")
    if isinstance(command, str) and command in known:
        return command
    listed = f"there are: {', '.join(known)}"
    if "do" not in request:
        raise UsageError(f'a request names its command with "do"; {listed}')
    hint = did_you_mean(str(command), known, default=listed)
    raise UsageError(f"unknown command {_shown(command)}; {hint}")


def _require_known_keys(request: Mapping[str, Any], command: str, keys: Iterable[str]) -> None:
    known = ("do", *keys)
    for key in request:
        if key not in known:
            listed = ", ".join(f'"{each}"' for each in known)
            hint = did_you_mean(key, known, default=f"it takes {listed}")
            raise UsageError(f"unknown key {_shown(key)} in a {command} request; {hint}")


def _names(request: Mapping[str, Any], command: str) -> list[str]:
    """Return the programs that a request names; empty if it selects all."""
    everything = _flag(request, "all")
    names = request.get("programs", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f'"programs" must be a list of names, not {_shown(names)}')
    if names and everything:
        raise UsageError('expected "programs" or "all": true, got both; remove one')
    if not names and not everything and command not in READING_COMMANDS:
        raise UsageError(f'a {command} request needs "programs" or "all": true, got neither')
    return names


def _flag(request: Mapping[str, Any], key: str) -> bool:
    value = request.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(f'"{key}" must be true or false, not {_shown(value)}')
    return value


def _timeout(request: Mapping[str, Any]) -> float:
    seconds = request.get("timeout", START_TIMEOUT)
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds <= MAX_TIMEOUT
    ):
        raise UsageError(
            f'"timeout" must be a number of seconds, more than 0 and a day at most, '
            f"not {_shown(seconds)}"
        )
    return float(seconds)


def _shown(value: object) -> str:
    """Format a value of a request as JSON, in one short line."""
    return printable(json.dumps(value), max_chars=60)


def _reload_response(changes: ConfigReloaded) -> ControlResponse:
    lists = {
        "added": changes.added,
        "changed": changes.changed,
        "updated": changes.updated,
        "removed": changes.removed,
    }
    return {"programs": [], **{name: list(names) for name, names in lists.items()}}
