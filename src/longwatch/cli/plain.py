"""`longwatch up` as it is called nearly always, read without the library that reads every other
command.

What that library loads would stay for as long as we do, a tenth of all our memory, and programs
would start a tenth later. Whatever is not plain, be it help, a mistake or a rarer way to say it, is
left to it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

SETTINGS = {
    "state_dir": "state_dir",
    "log_level": "supervisor.log.level",
    "log_format": "supervisor.log.format",
}
"""The options of `up` beside `--config`, and the settings that they set."""
OPTIONS = ("config", *SETTINGS)


def options_of_up(words: Sequence[str]) -> dict[str, str] | None:
    """What these words say to `up`, by the names of its options; None if they are for another
    command, or not plain.
    """
    if words[:1] != ["up"]:
        return None
    found: dict[str, str] = {}
    rest = iter(words[1:])
    for word in rest:
        option, written_together, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        value = value if written_together else next(rest, "")
        if (
            option != f"--{name.replace('_', '-')}"
            or name not in OPTIONS
            or not value
            or value.startswith("-")
        ):
            return None
        found[name] = value
    return found


def keep_up(*, config: Path | str | None = None, **given: str | None) -> int:
    """`longwatch up` with these options; the exit code."""
    from longwatch.app.up import up  # noqa: PLC0415 - help must not wait for what only running needs

    environ = dict(os.environ)  # which makes a new text of everything each time it is asked
    return up(
        None if config is None else Path(config),
        environ,
        {SETTINGS[name]: value for name, value in given.items()},
    )
