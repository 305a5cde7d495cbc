"""What a child may use, set between fork and exec, and how its end tells that it wanted more
memory than that.
"""

from __future__ import annotations

import errno
import os
import resource
import signal

_NEAR_LIMIT = 0.8
_CRASH_SIGNALS = frozenset(
    {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGTRAP, signal.SIGILL}
)
"""How programs end by themselves that do not see, or do not bear, that they got no memory."""


def limit_open_files(count: int) -> None:
    """So many descriptors; PermissionError if that is more than we may give."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    except ValueError:
        raise PermissionError(errno.EPERM, f"no more than {most} are allowed here") from None


def limit_data(amount: int) -> None:
    """So many bytes of data for each process; not of address space, of which some runtimes
    reserve gigabytes they never touch.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (amount, amount))


def likely_out_of_memory(status: int, max_rss: int, limit: int) -> bool:
    """Whether a process whose data is limited probably ended for it: a failure or a crash of its
    own, its memory nearly used up.
    """
    code = os.waitstatus_to_exitcode(status)
    return (code > 0 or -code in _CRASH_SIGNALS) and max_rss >= _NEAR_LIMIT * limit
