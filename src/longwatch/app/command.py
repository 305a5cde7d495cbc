"""Is this a command that can be run? Asked before anything is started, so that a slip of the pen
is one line and not a restart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from longwatch.core.nearest import did_you_mean
from longwatch.errors import UsageError

_INTERPRETER = re.compile(rb"#![ \t]*([^ \t\n\0]+)")
_BUILT_IN = frozenset(
    {"cd", "export", "source", ".", "alias", "set", "ulimit", "umask", "exec", "eval"}
)
_SHELL_WORDS = re.compile(r"[\s;|&<>$`*()]")
_LONGEST_FIRST_LINE = 256


def program_name(command: Sequence[str]) -> str:
    """What to call a program that was given no name: the command's base name, in letters that
    suit a file name.
    """
    return (
        re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(command[0]))[:64].lstrip(".") or "program"  # noqa: PTH119 - text only
    )


def check_command(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    with_shell: str = "longwatch run -- sh -c '…'",
) -> None:
    """Raise UsageError with the cure unless the command names an executable file, by its path or on
    the PATH.

    `with_shell` is what to write for what a shell does.
    """
    program = command[0]
    if "/" in program:
        _check_path(cwd / program, program)
        found = [cwd / program]
    else:
        found = [
            path
            for path in (cwd / folder / program for folder in _search_path(env))
            if _runnable(path)
        ]
    if not found:
        _refuse(program, cwd, env, with_shell)
    missing = [_missing_interpreter(path, cwd) for path in found]
    if all(missing):
        raise UsageError(
            f"{program!r} needs the interpreter {missing[0]!r}, which does not exist; correct "
            f"its first line"
        )


def working_directory(asked: str | None) -> Path:
    """Where the program is to start, as an absolute path; UsageError unless it can be entered."""
    try:
        cwd = Path.cwd() / (asked or "")
    except FileNotFoundError:
        raise UsageError(
            "the current directory no longer exists; change to one that does"
        ) from None
    if problem := directory_problem(cwd):
        cure = "correct --cwd, or cwd in the settings" if asked else "choose one with --cwd"
        raise UsageError(f"the working directory {str(cwd)!r} {problem}; {cure}")
    return cwd


def directory_problem(path: Path) -> str:
    """Why nothing can be started in this directory; empty if something can."""
    problem = _reason_against(path) or ("" if path.is_dir() else "is not a directory")
    return problem or ("" if os.access(path, os.X_OK) else "cannot be entered (permission denied)")


def _reason_against(path: Path) -> str:
    """Why there is nothing at this path; empty if there is something."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as error:
        return f"cannot be reached ({(error.strerror or 'unknown reason').lower()})"
    return ""


def _check_path(path: Path, program: str) -> None:
    if problem := _reason_against(path):
        raise UsageError(f"{program!r} {problem}; check the path")
    if path.is_dir():
        raise UsageError(f"{program!r} is a directory, not a command; name the program inside it")
    if not path.is_file():
        raise UsageError(f"{program!r} is not a file that can be executed; check the path")
    if not os.access(path, os.X_OK):
        raise UsageError(
            f"{program!r} is not executable; make it so with chmod +x, or run it through its "
            f"interpreter"
        )


def _runnable(path: Path) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113 - never raises, whatever stands on the PATH


def _missing_interpreter(path: Path, cwd: Path) -> str | None:
    """The interpreter that a script asks for in its first line, if it is not there."""
    try:
        with path.open("rb") as file:
            asked = _INTERPRETER.match(file.readline(_LONGEST_FIRST_LINE))
    except OSError:
        return None
    interpreter = os.fsdecode(asked[1]) if asked else ""
    return interpreter if asked and _reason_against(cwd / interpreter) else None


def _refuse(program: str, cwd: Path, env: Mapping[str, str], with_shell: str) -> NoReturn:
    """Say which of the ways to miss a command this one was."""
    if not program:
        raise UsageError("the command is empty; write the program first, then its arguments")
    here = cwd / program
    if here.is_dir():
        raise UsageError(f"{program!r} is a directory, not a command; name the program inside it")
    if here.is_file():
        spelled = f"./{program}" if program.isprintable() else repr(f"./{program}")
        raise UsageError(
            f"{program!r} is not on the PATH; for the file in this directory write {spelled}"
        )
    hint = did_you_mean(
        program, _commands(env), otherwise="check the spelling or give its full path", likeness=0.75
    )
    if program in _BUILT_IN or _SHELL_WORDS.search(program):
        hint = f"it runs without a shell; for what a shell does write: {with_shell}"
    raise UsageError(f"command {program!r} was not found on the PATH; {hint}")


def _commands(env: Mapping[str, str]) -> Iterator[str]:
    for folder in _search_path(env):
        try:
            yield from (entry.name for entry in Path(folder).iterdir())
        except OSError:
            continue


def _search_path(env: Mapping[str, str]) -> list[str]:
    return env.get("PATH", os.defpath).split(os.pathsep)
