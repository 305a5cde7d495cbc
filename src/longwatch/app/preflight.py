"""A look at a group before anything is started: in a process of its own, because importing it is running somebody's code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from longwatch.errors import UsageError

MODULE = "longwatch.app.worker_process"
"""What a worker process runs."""
LOG_FORMAT, LOG_LEVEL = "LONGWATCH_LOG_FORMAT", "LONGWATCH_LOG_LEVEL"
"""The variables that tell it how to log."""
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
        raise UsageError(f"{target!r} names no group; write it as module:name, such as shop.workers:group")
    return module, name


def look_at(target: str, *, cwd: Path, env: Mapping[str, str]) -> GroupFacts:
    """The facts of the group; UsageError if it cannot be imported, or is none."""
    split(target)
    command = [sys.executable, "-m", MODULE, "check", target]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module, no shell
            command, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=_WITHIN, check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{target!r}: importing it takes longer than {_WITHIN:g} s; start nothing at import") from None
    if done.returncode:
        raise UsageError(_told(target, done.stderr.decode(errors="replace")))
    told = json.loads(done.stdout.decode().splitlines()[-1])
    return GroupFacts(**{**told, "loops": tuple(told["loops"])})


def _told(target: str, said: str) -> str:
    """Its own words; of a traceback the last line, which is the error."""
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    return f"{target!r} cannot be imported: {last}" if "Traceback (most recent call last)" in said else last
