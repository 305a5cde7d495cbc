"""A look at a group before anything is started: in a process of its own, because importing it is
running somebody's code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longwatch.errors import UsageError
from longwatch.host.identity import Identity

MODULE = "longwatch.app.worker_process"
"""What a worker process runs."""
LOG_FORMAT, LOG_LEVEL = "LONGWATCH_LOG_FORMAT", "LONGWATCH_LOG_LEVEL"
"""The variables that tell it how to log."""
ANSWER = "longwatch-group "
"""What the line begins with that says what the group is, whatever else the code says that is
imported.
"""
_WITHIN = 60.0
"""Seconds that importing may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What a parent has to know of a group."""

    loops: tuple[str, ...]
    health_host: str
    health_port: int | None
    shutdown_timeout: float
    watchdog_threshold: float | None


def split(target: str) -> tuple[str, str]:
    """The module and the name in it; UsageError for what is none of both."""
    module, colon, name = target.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise UsageError(
            f"{target!r} names no group; write it as module:name, such as shop.workers:group"
        )
    return module, name


def look_at(
    target: str, *, cwd: Path, env: Mapping[str, str], identity: Identity | None = None
) -> GroupFacts:
    """The facts of the group, imported as the user that will run it; UsageError if it cannot be
    imported, or is none.
    """
    split(target)
    command = [sys.executable, "-m", MODULE, "check", target]
    who = (
        {}
        if identity is None
        else {"user": identity.uid, "group": identity.gid, "extra_groups": identity.groups}
    )
    options: dict[str, Any] = {"cwd": cwd, "env": dict(env), "stdin": subprocess.DEVNULL, **who}
    try:
        done = subprocess.run(command, capture_output=True, timeout=_WITHIN, check=False, **options)  # noqa: S603 - no shell
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{target!r}: importing it takes longer than {_WITHIN:g} s; start nothing at import"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{target!r} cannot be looked at: {(error.strerror or str(error)).lower()}: "
            f"{error.filename}"
        ) from None
    told = _answer(done.stdout)
    if told is None:
        raise UsageError(f"{target!r} cannot be imported: {_last_words(done.stderr)}")
    if problem := told.get("problem"):
        raise UsageError(str(problem))
    return GroupFacts(**{**told, "loops": tuple(told["loops"])})


def _answer(said: bytes) -> dict[str, Any] | None:
    """What it says of the group; None if it did not come so far."""
    lines = said.decode(errors="replace").splitlines()
    found = next((line for line in reversed(lines) if line.startswith(ANSWER)), None)
    return None if found is None else dict(json.loads(found.removeprefix(ANSWER)))


def _last_words(said: bytes) -> str:
    lines = (line.strip() for line in reversed(said.decode(errors="replace").splitlines()))
    return next(filter(None, lines), "the process that did ended without a word")
