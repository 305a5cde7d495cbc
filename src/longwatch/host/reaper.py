"""Children that nobody waits for: orphans that init or a subreaper inherits."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path


def reap_orphans(known: Collection[int]) -> int:
    """Reap every ended child of this process but those in `known`, whose owners wait for them;
    how many there were.
    """
    reaped = 0
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in known:  # the kernel names only the first: ask for each other one
                return reaped + sum(_reap(pid) for pid in set(_children()) - set(known))
            reaped += _reap(ended.si_pid)
    return reaped


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return False


def _children() -> Iterator[int]:
    """Our children, thread by thread; in a PID namespace that sees an outer /proc, numbers that
    are nobody's.
    """
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            yield from map(int, (task / "children").read_text().split())
