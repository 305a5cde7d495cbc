"""Inspects a group before anything is started. It runs in a separate process, because importing a
group runs user code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longwatch.core.error_text import os_reason
from longwatch.core.traceback_text import bound_traceback
from longwatch.errors import UsageError
from longwatch.host.identity import Identity

WORKER_MODULE = "longwatch.workers.worker_process"
"""The module that a worker process runs."""
LOG_FORMAT, LOG_LEVEL = "LONGWATCH_LOG_FORMAT", "LONGWATCH_LOG_LEVEL"
"""The variables with the log settings of a worker process."""
GROUP_INFO_PREFIX = "longwatch-group "
"""The prefix of the line with the facts of the group. It distinguishes that line from other output
of the imported code.
"""
_IMPORT_TIMEOUT = 60.0
"""Seconds that the import may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """The facts about a group that its parent needs."""

    loops: tuple[str, ...]
    health_host: str
    health_port: int | None
    shutdown_timeout: float
    watchdog_threshold: float | None
    timeout_problems: tuple[tuple[str, str], ...] = ()
    """Settings of the group that do not fit together, each with the reason and a value."""


def split_import_path(import_path: str) -> tuple[str, str]:
    """Split an import path into module and name. Raises UsageError if it is none."""
    module, colon, name = import_path.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise UsageError(
            f"{import_path!r} is no import path; write it as module:name, such as "
            f"shop.workers:group"
        )
    return module, name


def inspect_group(
    import_path: str,
    *,
    cwd: Path,
    env: Mapping[str, str],
    identity: Identity | None = None,
    timeout: float | None = None,
) -> GroupInfo:
    """Import the group as the user that will run it, and return its facts. Raises UsageError if
    that fails. The traceback of user code is a note of the error, which `--debug` shows.
    """
    split_import_path(import_path)
    timeout = _IMPORT_TIMEOUT if timeout is None else timeout
    command = [sys.executable, "-m", WORKER_MODULE, "check", import_path]
    credentials = (
        {}
        if identity is None
        else {"user": identity.uid, "group": identity.gid, "extra_groups": identity.groups}
    )
    options: dict[str, Any] = {
        "cwd": cwd,
        "env": dict(env),
        "stdin": subprocess.DEVNULL,
        **credentials,
    }
    try:
        completed = subprocess.run(  # noqa: S603 - no shell
            command, capture_output=True, timeout=timeout, check=False, **options
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{import_path!r}: importing it takes longer than {timeout:g} s; start "
            f"nothing at import"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{import_path!r} cannot be inspected: {os_reason(error)}: {error.filename}"
        ) from None
    info = _parse_group_info(completed.stdout)
    if info is None:
        raise _import_error(
            f"{import_path!r} cannot be imported: {_last_line(completed.stderr)}",
            completed.stderr.decode(errors="replace"),
        )
    if problem := info.get("problem"):
        raise _import_error(str(problem), str(info.get("traceback", "")))
    problems = tuple((setting, text) for setting, text in info.pop("timeout_problems", ()))
    return GroupInfo(**{**info, "loops": tuple(info["loops"])}, timeout_problems=problems)


def _parse_group_info(output: bytes) -> dict[str, Any] | None:
    """Parse the facts of the group from the output; None without them."""
    lines = output.decode(errors="replace").splitlines()
    found = next((line for line in reversed(lines) if line.startswith(GROUP_INFO_PREFIX)), None)
    return None if found is None else dict(json.loads(found.removeprefix(GROUP_INFO_PREFIX)))


def _import_error(problem: str, traceback: str) -> UsageError:
    error = UsageError(problem)
    if shown := bound_traceback(traceback):
        error.add_note(shown)
    return error


def _last_line(output: bytes) -> str:
    lines = (line.strip() for line in reversed(output.decode(errors="replace").splitlines()))
    return next(filter(None, lines), "the importing process ended without output")
