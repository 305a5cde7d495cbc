"""The stacks of the tasks of an event loop, as text for people.

`faulthandler` shows the stack of the loop's thread, which says nothing about tasks that wait. Each
stack is shown once, with the names of the tasks that have it. The rarest come first, because a task
that hangs usually waits at another place than the others.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import defaultdict
from collections.abc import Iterator
from types import FrameType
from typing import Any

MAX_STACKS = 100
MAX_NAMES = 5
_DEPTH = 50

_Position = tuple[FrameType, int]


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Return the stacks of all tasks of the loop; empty without tasks. Thread-safe. Reads source
    files.
    """
    by_stack: dict[tuple[object, ...], list[asyncio.Task[Any]]] = defaultdict(list)
    for task in asyncio.all_tasks(loop):
        by_stack[tuple((frame.f_code, line) for frame, line in _stack(task))].append(task)
    groups = sorted(by_stack.values(), key=len)
    parts = [_describe_group(tasks) for tasks in groups[:MAX_STACKS]]
    if len(groups) > MAX_STACKS:
        parts.append(f"… and {len(groups) - MAX_STACKS} other stacks\n")
    return "\n".join(parts)


def _describe_group(tasks: list[asyncio.Task[Any]]) -> str:
    names = ", ".join(sorted(task.get_name() for task in tasks)[:MAX_NAMES])
    more = f", … ({len(tasks)} tasks)" if len(tasks) > MAX_NAMES else ""
    stack = traceback.StackSummary.extract(iter(_stack(tasks[0])))
    return f"Task {names}{more} (most recent call last):\n{''.join(stack.format())}"


def _stack(task: asyncio.Task[Any]) -> list[_Position]:
    """The frames of the coroutines of a task, from the outermost to where it waits."""
    return list(_frames(task.get_coro()))


def _frames(awaited: object) -> Iterator[_Position]:
    for _ in range(_DEPTH):
        frame = _first(awaited, "cr_frame", "gi_frame", "ag_frame")
        if isinstance(frame, FrameType):
            yield frame, frame.f_lineno
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")
        if awaited is None:
            return


def _first(thing: object, *names: str) -> object:
    found = (getattr(thing, name, None) for name in names)
    return next((each for each in found if each is not None), None)
