"""Is this a command that can be run? Asked before anything is started, so that a slip of the pen is one line and not a restart."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from longwatch.errors import UsageError


def check_command(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
    """Raise UsageError with the cure unless the command names an executable file, by its path or on the PATH."""
    program = command[0]
    if "/" in program:
        _check_path(cwd / program, program)
        return
    found = [Path(folder or ".") / program for folder in _search_path(env)]
    runnable = (candidate for candidate in found if (cwd / candidate).is_file() and os.access(cwd / candidate, os.X_OK))
    if next(runnable, None) is None:
        _refuse(program, cwd, env)


def check_directory(cwd: Path) -> None:
    """Raise UsageError unless this is a directory a program can start in."""
    if not cwd.is_dir():
        problem = "is not a directory" if cwd.exists() else "does not exist"
        raise UsageError(f"the working directory {str(cwd)!r} {problem}; correct --cwd")


def _check_path(path: Path, program: str) -> None:
    if path.is_dir():
        raise UsageError(f"{program!r} is a directory, not a command; name the program inside it")
    if not path.exists():
        raise UsageError(f"{program!r} does not exist; check the path")
    if not os.access(path, os.X_OK):
        raise UsageError(f"{program!r} is not executable; make it so with chmod +x, or run it through its interpreter")


def _refuse(program: str, cwd: Path, env: Mapping[str, str]) -> None:
    """Say which of the ways to miss a command this one was."""
    here = cwd / program
    if not program:
        raise UsageError("the command is empty; write the program first, then its arguments")
    if here.is_dir():
        raise UsageError(f"{program!r} is a directory, not a command; name the program inside it")
    if here.is_file():
        raise UsageError(f"{program!r} is not on the PATH; for the file in this directory write ./{program}")
    near = difflib.get_close_matches(program, _commands(env), n=1, cutoff=0.75)
    hint = f"did you mean {near[0]!r}?" if near else "check the spelling or give its full path"
    raise UsageError(f"command {program!r} was not found on the PATH; {hint}")


def _commands(env: Mapping[str, str]) -> Iterator[str]:
    for folder in _search_path(env):
        try:
            yield from (entry.name for entry in Path(folder).iterdir())
        except OSError:
            continue


def _search_path(env: Mapping[str, str]) -> list[str]:
    return env.get("PATH", os.defpath).split(os.pathsep)
