"""Functions for nodes that run in processes of their own: they have to be importable."""

# ruff: noqa: T201 - that what they print is kept is what some of them are for

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any

from longwatch.errors import PermanentError, Release

MAX_BYTES = 300 << 20


class Never(PermanentError):  # noqa: N818 - a name that a user would choose
    """Permanent, under a name of its own."""


def noop(x: Any) -> Any:
    return x


def total(x: int, y: int = 5, **more: int) -> dict[str, int]:
    return {"sum": x + y, **more}


def seen(x: int, context: Any) -> dict[str, Any]:
    return {
        "x": x,
        "execution": context.execution,
        "node": context.node,
        "attempt": context.attempt,
        "token": context.fencing_token > 0,
        "remaining": 0 < context.deadline.remaining() <= 3600,
        "cancelled": context.cancelled or context.cancel.cancelled,
        "lease_lost": context.lease_lost,
        "logger": context.logger.extra["node"],
        "pid": os.getpid(),
        "cwd": str(Path.cwd()),
        "env": os.environ.get("LONGWATCH_TEST_ISOLATED"),
    }


async def later(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


def raises(x: int) -> int:
    print("on its way")
    print("in trouble", file=sys.stderr)
    raise ValueError(f"not {x}")


def gives_up(x: int) -> int:
    raise Never(f"never {x}")


def releases_once(x: str) -> str:
    """Gives its first run back, which leaves a mark in the directory `x`."""
    mark = Path(x) / "released"
    if not mark.exists():
        mark.touch()
        raise Release(delay=0.01, reason="not yet")
    return "done"


def exits(x: int) -> None:
    print("last words")
    print("last complaint", file=sys.stderr)
    os._exit(x)


def is_killed(x: int) -> None:
    print("before the end", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def answers_and_lingers(x: int) -> int:
    """A thread that is no daemon keeps an interpreter from ending."""
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return x


def too_large(x: int) -> str:
    return "x" * x


def eats(x: int) -> int:
    """Up to 300 MiB, used."""
    eaten = [b"x" * (1 << 20) for _ in range(MAX_BYTES >> 20)]
    return len(eaten) + x


def second_try(x: str) -> int:
    """Deaf and busy at its first attempt, which leaves a mark in the directory `x`."""
    mark = Path(x) / "tried"
    if mark.exists():
        return 2
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark.write_text(str(os.getpid()))
    while True:
        pass


def holds_the_gil(x: str) -> int:
    """At its first attempt a loop in C that gives nobody else a turn."""
    mark = Path(x) / "tried"
    if mark.exists():
        return 2
    mark.write_text(str(os.getpid()))
    return sum(itertools.repeat(1))


def waits(x: str) -> int:
    """Until somebody ends it; at the second attempt not at all."""
    mark = Path(x) / "tried"
    if mark.exists():
        return 2
    mark.write_text(str(os.getpid()))
    try:
        time.sleep(3600)
    finally:
        (Path(x) / "unwound").touch()
    return 1


def obeys(x: str, context: Any) -> str:
    """Until it is told to stop; says why in a file."""
    mark = Path(x) / "tried"
    if mark.exists():
        return "again"
    mark.write_text(str(os.getpid()))
    context.cancel.wakeup.block(60)
    (Path(x) / "reason").write_text(context.cancel.reason)
    return "stopped"


async def obeys_async(x: str) -> str:
    mark = Path(x) / "tried"
    if mark.exists():
        return "again"
    mark.write_text(str(os.getpid()))
    try:
        await asyncio.sleep(3600)
    finally:
        (Path(x) / "unwound").touch()
    return "slept"


def beats(x: float, context: Any) -> int:
    """Longer than its progress timeout, beating all the while."""
    count = 0
    until = time.monotonic() + x
    while time.monotonic() < until:
        count += 1
        context.beat(count)
        time.sleep(0.02)
    return count


def silent_after_one(x: str, context: Any) -> int:
    """One beat, and then none, at the first attempt."""
    context.beat("begun")
    return waits(x)


def forks_and_returns(x: int) -> int:
    """A copy of this process returns as well, and first."""
    pid = os.fork()
    if pid == 0:
        return x + 2
    os.waitpid(pid, 0)
    return x + 1


def ends_a_copy(x: int, context: Any) -> tuple[int, bool]:
    """SIGTERM to a copy of this process; how it ended, and whether that has cancelled anything
    here.
    """
    told, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(tells, b"!")  # what comes before that is cleared by the interpreter
        for _ in range(6000):
            time.sleep(0.01)
        os._exit(x)
    os.read(told, 1)
    os.kill(pid, signal.SIGTERM)
    status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status), context.cancel.wakeup.block(0.2)


def speaks_on_standard_input_and_output(x: int) -> int:
    """What a user may do to the standard streams does not disturb the answer."""
    os.write(1, b"\x00\xff garbage R\n")
    assert b"" == os.read(0, 100)
    os.close(0)
    return x


def louder(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def loud(**values: Any) -> Any:
        return -function(**values)

    return loud


@louder
def decorated(x: int) -> int:
    return x


def shadowed(x: int) -> int:
    return x


first_shadowed = shadowed


def shadowed(x: int) -> int:  # type: ignore[no-redef]
    return x + 1


def in_an_hour(kind: tuple[str, float]) -> Any:
    return _at_offset(kind, 3600.0)


def an_hour_ago(kind: tuple[str, float]) -> Any:
    return _at_offset(kind, -3600.0)


def naive_time(kind: tuple[str, float]) -> Any:
    return datetime.fromtimestamp(kind[1])  # noqa: DTZ006 - refused by ticks


def _at_offset(kind: tuple[str, float], seconds: float) -> Any:
    """This many seconds from the given time, or from now, as what a schedule may return."""
    name, now = kind
    if name == "datetime":
        return datetime.fromtimestamp(now + seconds, UTC)
    return timedelta(seconds=seconds) if name == "timedelta" else seconds


def current_trace(x: int, context: Any) -> dict[str, str | None]:
    """The trace that this process continues: of the current span, the variable, the context."""
    from opentelemetry import propagate  # noqa: PLC0415 - only a traced attempt imports it

    current: dict[str, str] = {}
    propagate.inject(current)
    return {
        "current": current.get("traceparent"),
        "variable": os.environ.get("TRACEPARENT"),
        "context": context.trace_headers.get("traceparent"),
    }
