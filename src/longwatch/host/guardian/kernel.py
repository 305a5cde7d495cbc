"""The two calls of Linux that the standard library does not offer."""

from __future__ import annotations

import ctypes
import os

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def become_subreaper(*, on: bool = True) -> None:
    """From now on orphans below this process are given to it instead of to init."""
    _call(_SET_CHILD_SUBREAPER, int(on))


def die_with_parent(signum: int) -> None:
    """Have the kernel send us this signal when the thread that forked us ends; for the children of a one-threaded process."""
    _call(_SET_PDEATHSIG, signum)


def _call(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
