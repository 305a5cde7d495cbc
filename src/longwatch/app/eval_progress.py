"""Shows the progress of an evaluation: a bar in the foreground of a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ShowProgress = Callable[[int], None]
_PROGRESS_STEPS = 10


@contextmanager
def progress_display(total: int) -> Iterator[ShowProgress]:
    """Yields a function to call with the number of finished samples."""
    if sys.stderr.isatty() and not _is_in_background():
        with _progress_bar(total) as show:
            yield show
    else:
        yield _ProgressLines(total)


def _is_in_background() -> bool:
    """Whether another process group, such as a shell's, owns the terminal of stderr."""
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) != os.getpgrp()
    except OSError:  # not the terminal that controls this process: it has no foreground
        return False


@contextmanager
def _progress_bar(total: int) -> Iterator[ShowProgress]:
    """A bar that pauses while the process is in the background and never hides the cursor."""
    from rich.console import Console  # noqa: PLC0415 - needed only for a bar
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    class CursorKeepingConsole(Console):
        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002, FBT001, FBT002 - as rich calls it
            """Leave the cursor visible: a killed process could not show it again."""
            return False

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = CursorKeepingConsole(stderr=True)
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done, refresh=not _is_in_background())


class _ProgressLines:
    """Prints a line for every tenth of the samples."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._last_shown = -1

    def __call__(self, done: int) -> None:
        part = done * _PROGRESS_STEPS // self._total if self._total else _PROGRESS_STEPS
        if part > self._last_shown:
            self._last_shown = part
            print(f"{done} of {self._total} samples done", file=sys.stderr, flush=True)  # noqa: T201 - progress for the user
