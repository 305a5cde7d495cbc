"""Checks before anything is started: can the command run, and is the health port free?

A mistake is then one line and not a restart. A foreign process on the health port would answer
in place of the program.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from longwatch.config.discovery import FILE_NAME
from longwatch.config.settings import Settings
from longwatch.config.settings_reader import toml_key
from longwatch.core.error_text import os_reason
from longwatch.core.suggest import did_you_mean
from longwatch.errors import Fault, UsageError

_INTERPRETER = re.compile(rb"#![ \t]*([^ \t\n\0]+)")
_SHELL_BUILTINS = frozenset(
    {"cd", "export", "source", ".", "alias", "set", "ulimit", "umask", "exec", "eval"}
)
_SHELL_SYNTAX = re.compile(r"[\s;|&<>$`*()]")
_MAX_FIRST_LINE = 256


def program_name(command: Sequence[str]) -> str:
    """The default name of a program: the base name of its command, in characters that suit a file
    name.
    """
    return (
        re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(command[0]))[:64].lstrip(".") or "program"  # noqa: PTH119 - text only
    )


def check_command(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    shell_example: str = "longwatch run -- sh -c '…'",
) -> None:
    """Raise UsageError with the cure unless the command names an executable file, by its path or on
    the PATH.

    `shell_example` shows how to use a shell instead.
    """
    program = command[0]
    if "/" in program:
        _check_path(cwd / program, program)
        found = [cwd / program]
    else:
        found = [
            path
            for path in (cwd / folder / program for folder in _search_path(env))
            if _is_executable(path)
        ]
    if not found:
        _raise_not_found(program, cwd, env, shell_example)
    missing = [_missing_interpreter(path, cwd) for path in found]
    if all(missing):
        raise UsageError(
            f"{program!r} needs the interpreter {missing[0]!r}, which does not exist; correct "
            f"its first line"
        )


def working_directory(requested: str | None) -> Path:
    """The working directory of the program as an absolute path. Raises UsageError unless it can be
    entered.
    """
    try:
        cwd = Path.cwd() / (requested or "")
    except FileNotFoundError:
        raise UsageError(
            "the current directory no longer exists; change to one that does"
        ) from None
    if problem := directory_problem(cwd):
        cure = "correct --cwd, or cwd in the settings" if requested else "choose one with --cwd"
        raise UsageError(f"the working directory {str(cwd)!r} {problem}; {cure}")
    return cwd


def directory_problem(path: Path) -> str:
    """Why no program can be started in this directory; empty if one can."""
    problem = path_problem(path) or ("" if path.is_dir() else "is not a directory")
    return problem or ("" if os.access(path, os.X_OK) else "cannot be entered (permission denied)")


def path_problem(path: Path) -> str:
    """Why the path does not exist or cannot be reached; empty if it exists."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as error:
        return f"cannot be reached ({os_reason(error)})"
    return ""


def script_problem(path: Path) -> str:
    """Why a probe script cannot be run; empty if it can."""
    if problem := path_problem(path):
        return problem
    if not path.is_file():
        return "is not a file"
    return "" if os.access(path, os.R_OK) else "cannot be read (permission denied)"


def _check_path(path: Path, program: str) -> None:
    if problem := path_problem(path):
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


def _is_executable(path: Path) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113 - never raises, whatever is on the PATH


def _missing_interpreter(path: Path, cwd: Path) -> str | None:
    """The interpreter in the first line of a script, if it does not exist."""
    try:
        with path.open("rb") as file:
            match = _INTERPRETER.match(file.readline(_MAX_FIRST_LINE))
    except OSError:
        return None
    interpreter = os.fsdecode(match[1]) if match else ""
    return interpreter if match and path_problem(cwd / interpreter) else None


def _raise_not_found(
    program: str, cwd: Path, env: Mapping[str, str], shell_example: str
) -> NoReturn:
    """Raise UsageError with the reason why the command was not found."""
    if not program:
        raise UsageError("the command is empty; write the program first, then its arguments")
    here = cwd / program
    if os.path.isdir(here):  # noqa: PTH112 - never raises, however long the name is
        raise UsageError(f"{program!r} is a directory, not a command; name the program inside it")
    if os.path.isfile(here):  # noqa: PTH113 - as above
        spelled = f"./{program}" if program.isprintable() else repr(f"./{program}")
        raise UsageError(
            f"{program!r} is not on the PATH; for the file in this directory write {spelled}"
        )
    hint = did_you_mean(
        program,
        _commands_on_path(env),
        default="check the spelling or give its full path",
        cutoff=0.75,
    )
    if program in _SHELL_BUILTINS or _SHELL_SYNTAX.search(program):
        hint = f"it runs without a shell; for what a shell does write: {shell_example}"
    raise UsageError(f"command {program!r} was not found on the PATH; {hint}")


def _commands_on_path(env: Mapping[str, str]) -> Iterator[str]:
    for folder in _search_path(env):
        try:
            yield from (entry.name for entry in Path(folder).iterdir())
        except OSError:
            continue


def _search_path(env: Mapping[str, str]) -> list[str]:
    return env.get("PATH", os.defpath).split(os.pathsep)


_PORT_TAKEN = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})


def port_problem(port: int) -> str:
    """Why a program could not listen on this port of 127.0.0.1; empty if it could. A port that only
    the program may open, one below 1024, counts as free.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return os.strerror(error.errno).lower() if error.errno in _PORT_TAKEN else ""
    return ""


def busy_port_faults(settings: Settings, *, source: str = FILE_NAME) -> list[Fault]:
    """The health ports that other processes occupy, for programs that start by themselves. Call it
    while no program runs.
    """
    faults = []
    for name, program in settings.program.items():
        keys_by_port = {port: key for key, port in reversed(settings.probe_ports(name).items())}
        for port, key in keys_by_port.items() if program.autostart else ():
            if problem := port_problem(port):
                faults.append(
                    Fault(
                        f"{source}: program.{toml_key(name)}.{key}",
                        f"{port} is not free ({problem}), so health checks would ask another "
                        f"server",
                        "stop that one, or choose another port",
                    )
                )
    return faults
