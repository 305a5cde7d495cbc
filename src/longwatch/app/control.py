"""What the commands about a running supervisor do: find it, ask it, judge what it says.

Kept light, so that `longwatch status` is quick: no event loop, no settings but the one that says
where to look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longwatch.errors import ConfigError, Fault, LongwatchError, UsageError
from longwatch.supervisor.client import Answer, ask
from longwatch.supervisor.presence import find

Facts = dict[str, Any]

CONFIG_FILE = "longwatch.toml"
STATE_DIRECTORY = ".longwatch"
QUICK = 10.0
"""Seconds in which a question is answered."""
PATIENT = 3600.0
"""Seconds that a command may take which lasts as long as programs take to stop."""
_ENDED_WELL = frozenset({"clean_exit", "intentional_signal", "stopped", "shutdown_complete"})


class RefusedError(LongwatchError):
    """The supervisor said no; its exit code is the one to end with, `answer` is all it said."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(answer.get("error", "the supervisor refused and did not say why")))
        self.answer = answer
        self.exit_code = int(answer.get("exit_code", LongwatchError.exit_code))


def state_directory(flag: str | None, config: Path | None, environ: Mapping[str, str]) -> Path:
    """Where the supervisor keeps its state, found as `longwatch up` finds it.

    As the flag says, else LONGWATCH_STATE_DIR; else as the settings say, seen from where they are,
    else `.longwatch` beside them.
    """
    said = flag or environ.get("LONGWATCH_STATE_DIR") or _configured(config, environ)
    if said == "off":
        raise UsageError(
            "the state directory is off, so there is nothing to look at; name one with --state-dir"
        )
    return Path(said)


def request(  # noqa: PLR0913 - one argument a field of the request, and how long to wait
    state: Path,
    do: str,
    programs: Sequence[str] = (),
    *,
    ready: bool = False,
    timeout: float | None = None,
    patience: float = QUICK,
) -> Answer:
    """Have the supervisor do something to these programs, or to all; RefusedError if it says no."""
    wanted = {"do": do, "programs": list(programs), "ready": ready, "timeout": timeout}
    answer = ask(find(state).socket, wanted, timeout=patience)
    if not answer.get("ok"):
        raise RefusedError(answer)
    return answer


def as_wanted(program: Facts) -> bool:
    """Whether a program is as somebody wants it: up, or stopped on purpose, or at an end that is
    no failure.
    """
    ended = program["last_end"] or {}
    ended_well = program["state"] == "ended" and ended.get("verdict") in _ENDED_WELL
    return program["desired"] == "stopped" or bool(program["up"]) or ended_well


def _configured(config: Path | None, environ: Mapping[str, str]) -> str:
    """As the settings say, whatever else is wrong with them; without any as they would say if
    they said nothing.
    """
    named = config or environ.get("LONGWATCH_CONFIG")
    path = Path(named or CONFIG_FILE)
    if not named and not path.exists():
        return STATE_DIRECTORY
    from longwatch.config.tomlfile import read_toml  # noqa: PLC0415 - only who has such a file waits for it

    table, faults = read_toml(path)
    said = table.get("state_dir", STATE_DIRECTORY)
    if not isinstance(said, str) or not said:
        faults.append(Fault(f"{path}: state_dir", "must be text that is not empty"))
    if faults:
        raise ConfigError(*faults)
    return "off" if said == "off" else str(path.parent / str(said))
