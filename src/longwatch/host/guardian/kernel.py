"""The three calls of Linux that the standard library does not offer."""

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
"""Without letting go of the interpreter's lock, which a forked copy would have to take anew."""


def become_subreaper(*, on: bool = True) -> None:
    """From now on orphans below this process are given to it instead of to init."""
    _call(_SET_CHILD_SUBREAPER, int(on))


def die_with_parent(signum: int) -> None:
    """Have the kernel send us this signal when the thread that forked us ends; for the children
    of a one-threaded process.
    """
    _call(_SET_PDEATHSIG, signum)


def fork_into(cgroup: int) -> int:
    """`os.fork` with the child in the cgroup of this open directory from the first moment; for a
    one-threaded process.

    To move a process into a cgroup the kernel waits until every processor has been through the
    scheduler, some 10 ms; to fork it there it does not. The interpreter is not told of this fork:
    the child may do nothing but exec or exit.
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
