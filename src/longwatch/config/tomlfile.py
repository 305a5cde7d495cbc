"""Reads a TOML file, and describes what is wrong with it by line and column."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path

from longwatch.core.error_text import os_reason
from longwatch.core.sanitize import printable
from longwatch.errors import Fault

MAX_BYTES = 1 << 20
_DECLARED_TWICE = re.compile(r"Cannot declare \(([^)]*)\) twice")
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")

TomlTable = dict[str, object]


def read_toml(path: Path) -> tuple[TomlTable, list[Fault]]:
    """The file's content, or the fault that keeps it from being read."""
    shown = printable(str(path))
    try:
        data = _read(path)
        return _parse(data, shown), []
    except _FileFaultError as found:
        return {}, [found.fault]
    except OSError as error:
        problem = f"cannot be read: {os_reason(error)}"
        return {}, [Fault(shown, problem, "name a TOML file that you may read")]


class _FileFaultError(Exception):
    def __init__(self, where: str, problem: str, cure: str = "") -> None:
        super().__init__(problem)
        self.fault = Fault(where, problem, cure)


def _read(path: Path) -> bytes:
    fd = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    )  # a FIFO without a writer would block
    try:
        return _content(fd, printable(str(path)))
    finally:
        os.close(fd)


def _content(fd: int, shown: str) -> bytes:
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        what = "a directory" if stat.S_ISDIR(kind) else "not a regular file"
        raise _FileFaultError(shown, f"is {what}", "name a TOML file")
    with open(fd, "rb", closefd=False) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _FileFaultError(
            shown, "is larger than 1 MiB", "no settings need that much; is it the right file?"
        )
    return data


def _parse(data: bytes, shown: str) -> TomlTable:
    text = _decode(data, shown)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        raise _FileFaultError(
            f"{shown}:{_position(reason, text)}", *_describe_error(reason)
        ) from None
    except (ValueError, RecursionError):
        raise _FileFaultError(
            shown, "is not valid TOML: a number too long or tables nested too deep to read"
        ) from None


def _decode(data: bytes, shown: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _line_and_column(data[: error.start])
        raise _FileFaultError(
            f"{shown}:{line}:{column}", "is not UTF-8 text", "save the file as UTF-8"
        ) from None


def _line_and_column(before: bytes) -> tuple[int, int]:
    """The line and column of the byte after these, counted from 1, in characters."""
    last = before[before.rfind(b"\n") + 1 :].decode("utf-8-sig", "replace")
    return before.count(b"\n") + 1, len(last) + 1


def _position(reason: str, text: str) -> str:
    found = _POSITION.search(reason)
    if found and found[1]:
        return f"{found[1]}:{found[2]}"
    line, column = _line_and_column(text.encode("utf-8", "replace"))
    return f"{line}:{column}"


def _describe_error(reason: str) -> tuple[str, str]:
    """The problem in words, and the cure where one is known."""
    if twice := _DECLARED_TWICE.match(reason):
        return _declared_twice(
            [key.strip(" '") for key in printable(twice[1]).split(",") if key.strip()]
        )
    bare = printable(_POSITION.sub("", reason))
    cure = "text needs quotes" if bare == "Invalid value" else ""
    return f"is not valid TOML: {bare[:1].lower()}{bare[1:]}", cure


def _declared_twice(keys: list[str]) -> tuple[str, str]:
    """Describe a table that is declared twice, most often a copied program that kept its name."""
    match keys:
        case ["program", name]:
            return (
                f"there are two programs of the name {name}",
                "rename one, or put their keys into one table",
            )
        case _:
            return f"the table [{'.'.join(keys)}] is there twice", "put its keys into one"
