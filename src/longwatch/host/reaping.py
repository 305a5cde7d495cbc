"""Children that nobody waits for: orphans that init or a subreaper inherits."""

from __future__ import annotations

import os
from collections.abc import Collection


def reap_strangers(known: Collection[int]) -> int:
    """Reap every ended child of this process but those in `known`, whose owners wait for them; how many there were."""
    reaped = 0
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in known:
                return reaped
            os.waitpid(ended.si_pid, os.WNOHANG)
        except ChildProcessError:
            return reaped
        reaped += 1
