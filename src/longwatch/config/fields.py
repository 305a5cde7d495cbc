"""The types of the fields of the settings, with their bounds and descriptions. Durations are
seconds, or texts such as "5m".
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from longwatch.core.duration import UNITS_NOTE, YEAR_SECONDS
from longwatch.errors import Fault

SIGNALS = {
    spelled: number
    for name, number in signal.Signals.__members__.items()
    for spelled in (name.removeprefix("SIG"), name)
}
"""Every signal under both spellings: `TERM` and `SIGTERM`."""


def duration_words(range_words: str) -> str:
    """The description of a duration: a number of seconds, or a text such as "5m"."""
    return f'a duration ({range_words}), for example 300, "90s" or "5m" {UNITS_NOTE}'


DURATION = {"duration": True}
"""Marks a number of seconds that may be a text with units, too."""
Seconds = Annotated[
    float,
    Meta(ge=0, le=YEAR_SECONDS, description=duration_words("0 to a year"), extra=DURATION),
]
Period = Annotated[
    float,
    Meta(
        gt=0,
        le=YEAR_SECONDS,
        description=duration_words("more than 0, a year at most"),
        extra=DURATION,
    ),
]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Port = Annotated[int, Meta(ge=1, le=65535)]
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Text = Annotated[
    str, Meta(min_length=1, pattern=r"^[^\x00]*\Z", description="text that is not empty")
]
Name = Annotated[
    str,
    Meta(
        pattern=r"^(?!\.)[A-Za-z0-9._-]{1,64}\Z",
        description="letters, digits, '.', '_' and '-', 64 at most, no '.' first",
    ),
]
Argument = Annotated[str, Meta(pattern=r"^[^\x00]*\Z", description="text")]
Command = Annotated[
    list[Argument] | str,
    Meta(description='a list such as ["python3", "worker.py"], or a text that is split'),
]
# Not `| Argument`: in msgspec 0.22 a union of a list or table and a text with a pattern corrupts
# memory (its issue 717).
VariableName = Annotated[
    str, Meta(pattern=r"^[^=\x00]+\Z", description="named without '=', and not empty")
]
SignalName = Annotated[
    str, Meta(description='the name of a signal, such as "TERM"', extra={"choices": tuple(SIGNALS)})
]
UrlPath = Annotated[
    str,
    Meta(pattern=r"^/[!-~]*\Z", description='a URL path that begins with "/" and has no spaces'),
]
ScriptName = Annotated[
    str,
    Meta(
        pattern=r"^(?!-)(?!\.\Z)(?!.*\.\.)[A-Za-z0-9._-]{1,128}\Z",
        description="a file name of up to 128 letters, digits, '.', '_' and '-', without '..' "
        "and a dash in front",
    ),
]
ContainerName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z",
        description="letters, digits, '.', '_' and '-', 64 at most, a letter or digit first",
    ),
]
ImageName = Annotated[
    str,
    Meta(
        pattern=r"^(?!-)[!-~]+\Z",
        description='the name of an image, such as "python:3.12", without spaces',
    ),
]
ContainerPath = Annotated[
    str, Meta(pattern=r"^/[^\x00]*\Z", description='an absolute path, such as "/srv/app"')
]
PortToPublish = Annotated[
    Port | Annotated[str, Meta(min_length=1)],
    Meta(description='a port such as 80, or a text such as "8080:80"'),
]
Umask = Annotated[
    str, Meta(pattern=r"^0?[0-7]{3}\Z", description='three octal digits in quotes, such as "022"')
]
Size = Annotated[
    Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern=r"(?i)^[0-9]{1,12} ?[kmgt]i?b\Z")],
    Meta(description='a number of bytes, or a size such as "512MB" or "2GiB"'),
]

_SIZE = re.compile(r"([0-9]+) ?([kmgt])(i?)b", re.IGNORECASE)
_SHELL_SYNTAX = re.compile(r"^[|&;<>]+$|^[0-9]?>|\$[A-Za-z_{(]|`")


class SettingsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


def argv(command: list[str] | str | None) -> list[str]:
    """A command as the words it is run with. A text is split as a shell does, quotes and
    backslashes included.
    """
    return shlex.split(command) if isinstance(command, str) else list(command or ())


def command_faults(command: list[str] | str | None, *, where: str = "command") -> Iterator[Fault]:
    """Faults of a command that no type shows: a text that cannot be split, shell syntax, no
    program.
    """
    try:
        words = argv(command)
    except ValueError as error:
        yield Fault(
            where,
            f"cannot be split into words ({str(error).lower()})",
            "close the quotes, or write it as a list",
        )
        return
    if any("\0" in word for word in words):
        yield Fault(where, "has a null byte, which no command can", "take it out")
    if command is not None and not any(words[:1]):
        yield Fault(where, "names no program", "write the program first, then its arguments")
    shell_word = (
        next((word for word in words if _SHELL_SYNTAX.search(word)), None)
        if isinstance(command, str)
        else None
    )
    if shell_word is not None:
        problem = f"has {shell_word!r}, which only a shell understands"
        yield Fault(where, problem, 'write ["sh", "-c", "…"], or a list if it is meant as it is')


def byte_count(size: int | str) -> int:
    """A size as bytes: `KB`, `MB`, `GB`, `TB` are powers of 1000, `KiB`, `MiB`, `GiB`, `TiB` of
    1024.
    """
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None:
        return int(size)
    power = "kmgt".index(found[2].lower()) + 1
    return int(found[1]) * int((1024 if found[3] else 1000) ** power)
