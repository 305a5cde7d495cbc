"""How far something is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[int], None]
_PARTS = 10


@contextmanager
def shown_progress(total: int) -> Iterator[Show]:
    """Gives what is to be called with how much is done."""
    if sys.stderr.isatty():
        with _bar(total) as show:
            yield show
    else:
        yield _Lines(total)


@contextmanager
def _bar(total: int) -> Iterator[Show]:
    from rich.console import Console  # noqa: PLC0415 - only who sees a bar pays
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)


class _Lines:
    """A line for every tenth."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._told = -1

    def __call__(self, done: int) -> None:
        part = done * _PARTS // self._total if self._total else _PARTS
        if part > self._told:
            self._told = part
            print(f"{done} of {self._total} samples done", file=sys.stderr, flush=True)  # noqa: T201 - for whoever waits
