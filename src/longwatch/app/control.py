"""The commands about a running supervisor: find it, send a request, judge the response.

Kept light, so that `longwatch status` is fast: it needs no event loop, and only one setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longwatch.errors import ConfigError, Fault, LongwatchError, UsageError
from longwatch.supervisor.client import ControlResponse, send_request
from longwatch.supervisor.supervisor_lock import find_supervisor

JsonObject = dict[str, Any]

CONFIG_FILE = "longwatch.toml"
STATE_DIRECTORY = ".longwatch"
QUERY_TIMEOUT = 10.0
"""Seconds to wait for the answer to a query."""
COMMAND_TIMEOUT = 3600.0
"""Seconds that a command may take that waits for programs to stop."""
_CLEAN_ENDS = frozenset({"clean_exit", "intentional_signal", "stopped", "shutdown_complete"})


class RefusedError(LongwatchError):
    """The supervisor refused a request. It has the exit code of the response, and the whole
    response.
    """

    def __init__(self, response: ControlResponse) -> None:
        super().__init__(str(response.get("error", "the supervisor refused without a reason")))
        self.response = response
        self.exit_code = int(response.get("exit_code", LongwatchError.exit_code))


def state_directory(flag: str | None, config: Path | None, environ: Mapping[str, str]) -> Path:
    """The state directory of the supervisor, found as `longwatch up` finds it.

    In this order: the flag, LONGWATCH_STATE_DIR, the settings (relative to their file),
    `.longwatch` beside the settings.
    """
    chosen = flag or environ.get("LONGWATCH_STATE_DIR") or _configured_state_dir(config, environ)
    if chosen == "off":
        raise UsageError(
            "the state directory is off, so no supervisor can be found; name one with --state-dir"
        )
    return Path(chosen)


def request(  # noqa: PLR0913 - one argument a field of the request, and how long to wait
    state: Path,
    command: str,
    programs: Sequence[str] = (),
    *,
    everything: bool = False,
    ready: bool = False,
    timeout: float | None = None,
    response_timeout: float = QUERY_TIMEOUT,
) -> ControlResponse:
    """Request an action on these programs, or on all if `everything` is True.

    Raises RefusedError if the supervisor refuses.
    """
    fields: JsonObject = {"do": command}
    if programs:
        fields["programs"] = list(programs)
    if everything:
        fields["all"] = True
    if ready:
        fields["ready"] = True
    if timeout is not None:
        fields["timeout"] = timeout
    response = send_request(find_supervisor(state).socket, fields, timeout=response_timeout)
    if not response.get("ok"):
        raise RefusedError(response)
    return response


def is_as_desired(program: JsonObject) -> bool:
    """Whether a program is in its desired state: up, stopped on purpose, or ended without a
    failure.
    """
    ended = program["last_end"] or {}
    ended_well = program["state"] == "ended" and ended.get("verdict") in _CLEAN_ENDS
    return program["desired"] == "stopped" or bool(program["up"]) or ended_well


def _configured_state_dir(config: Path | None, environ: Mapping[str, str]) -> str:
    """The state directory of the settings, even if other settings are faulty; the default without
    settings.
    """
    named = config or environ.get("LONGWATCH_CONFIG")
    path = Path(named or CONFIG_FILE)
    if not named and not path.exists():
        return STATE_DIRECTORY
    from longwatch.config.tomlfile import read_toml  # noqa: PLC0415 - needed only with a file

    table, faults = read_toml(path)
    value = table.get("state_dir", STATE_DIRECTORY)
    if not isinstance(value, str) or not value:
        faults.append(Fault(f"{path}: state_dir", "must be text that is not empty"))
    if faults:
        raise ConfigError(*faults)
    return "off" if value == "off" else str(path.parent / str(value))
