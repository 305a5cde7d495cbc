"""What is asked on the control socket, as commands; and what they give, as answers. On the loop."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.events import PlanReloaded
from longwatch.errors import UsageError
from longwatch.host.children import Guardian
from longwatch.supervisor.commands import START_TIMEOUT, Commands
from longwatch.supervisor.post import Facts

Answer = dict[str, Any]

LONGEST_WAIT = 86_400.0


class Requests:
    """Answers requests; UsageError for one that cannot be understood. `about` is what more a
    status says of the supervisor.
    """

    def __init__(  # noqa: PLR0913 - what can be asked about
        self,
        commands: Commands,
        reload: Callable[[], Awaitable[PlanReloaded]],
        state: Path,
        guardian: Guardian,
        *,
        clock: Clock,
        about: Mapping[str, str],
    ) -> None:
        self._commands = commands
        self._reload = reload
        self._state = state
        self._guardian = guardian
        self._started_at = clock.wall()
        self._facts = about

    async def answer(self, request: Mapping[str, Any]) -> Answer:
        """What was asked for, done."""
        names, ready, within = _names(request), request.get("ready") is True, _seconds(request)
        match request.get("do"):
            case "status":
                return {**self._about(), **self._told(await self._commands.status(*names))}
            case "start":
                return self._told(await self._commands.start(*names, ready=ready, within=within))
            case "stop":
                return self._told(await self._commands.stop(*names))
            case "restart":
                return self._told(await self._commands.restart(*names, ready=ready, within=within))
            case "reset":
                return self._told(await self._commands.reset(*names))
            case "reload":
                return _reloaded(await self._reload())
            case unknown:
                raise UsageError(
                    f"unknown command {unknown!r}; there are: status, start, stop, restart, "
                    f"reset, reload"
                )

    def _about(self) -> Facts:
        return {
            **self._facts,
            "pid": os.getpid(),
            "guardian_pid": self._guardian.pid,
            "started_at": self._started_at,
            "state_dir": str(self._state),
        }

    def _told(self, programs: list[Facts]) -> Answer:
        """The facts, and where each program's output is kept."""
        return {
            "programs": [
                {**facts, "log": str(self._state / "logs" / f"{facts['name']}.log")}
                for facts in programs
            ]
        }


def _names(request: Mapping[str, Any]) -> list[str]:
    names = request.get("programs") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError('"programs" must be a list of names')
    return names


def _seconds(request: Mapping[str, Any]) -> float:
    seconds = request.get("timeout")
    if seconds is None:
        return START_TIMEOUT
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds <= LONGEST_WAIT
    ):
        raise UsageError('"timeout" must be a number of seconds, more than 0 and a day at most')
    return float(seconds)


def _reloaded(told: PlanReloaded) -> Answer:
    lists = {
        "added": told.added,
        "changed": told.changed,
        "updated": told.updated,
        "removed": told.removed,
    }
    return {"programs": [], **{name: list(names) for name, names in lists.items()}}
