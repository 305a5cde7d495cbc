"""Parses the usual forms of `longwatch up` without the command line library.

The library would stay loaded as long as the supervisor runs: it takes a tenth of its memory and
delays the start of programs by a tenth. The library handles help, mistakes and rare forms.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

SETTING_PATHS = {
    "state_dir": "state_dir",
    "log_level": "supervisor.log.level",
    "log_format": "supervisor.log.format",
}
"""The options of `up` beside `--config`, and the settings that they set."""
OPTION_NAMES = ("config", *SETTING_PATHS)


def parse_up_options(words: Sequence[str]) -> dict[str, str] | None:
    """The options of `up` by their names; None if the words are for another command or need the
    library.
    """
    if words[:1] != ["up"]:
        return None
    options: dict[str, str] = {}
    rest = iter(words[1:])
    for word in rest:
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        value = value if equals else next(rest, "")
        if (
            option != f"--{name.replace('_', '-')}"
            or name not in OPTION_NAMES
            or not value
            or value.startswith("-")
        ):
            return None
        options[name] = value
    return options


def run_up(*, config: Path | str | None = None, **given: str | None) -> int:
    """Run `longwatch up` with these options; returns the exit code."""
    from longwatch.app.up import up  # noqa: PLC0415 - help must not wait for what only running needs

    environ = dict(os.environ)  # os.environ decodes a value at each access
    return up(
        None if config is None else Path(config),
        environ,
        {SETTING_PATHS[name]: value for name, value in given.items()},
    )
