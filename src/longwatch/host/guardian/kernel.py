"""Three Linux system calls that the standard library does not offer."""

from __future__ import annotations

import ctypes
import os
import signal

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_CLONE3 = 435
_CLONE_INTO_CGROUP = 0x200000000

_prctl = ctypes.CDLL(None, use_errno=True).prctl
_syscall = ctypes.PyDLL(None, use_errno=True).syscall
"""PyDLL keeps the GIL during the call; otherwise a forked child would have to acquire it again."""


def become_subreaper(*, on: bool = True) -> None:
    """Make this process the parent of orphans below it, instead of init."""
    _call(_SET_CHILD_SUBREAPER, int(on))


def die_with_parent(signum: int) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends.

    Only for children of a single-threaded process.
    """
    _call(_SET_PDEATHSIG, signum)


def fork_into(cgroup: int) -> int:
    """Fork a child that starts inside the cgroup of this open directory.

    Only for a single-threaded process. The interpreter does not know of this fork: the child may
    only exec or exit. Moving a process into a cgroup takes about 10 ms, because the kernel waits
    until every processor has passed through the scheduler. Forking into it avoids that.
    Raises OSError.
    """
    # flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
    # set_tid_size, cgroup
    size = 11
    arguments = (ctypes.c_uint64 * size)(
        _CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup
    )
    pid: int = _syscall(_CLONE3, arguments, ctypes.c_size_t(ctypes.sizeof(arguments)))
    if pid < 0:
        raise _error()
    return pid


def _call(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
