"""Delivers signals to an ordinary thread: the handler only queues the number of a signal.

A Python signal handler runs on the main thread between any two instructions. A handler that takes a
lock, logs or waits can deadlock with the frame it interrupted. This one appends to a deque, writes
one byte and takes no lock.

It runs when the main thread next executes Python. That may be never: the kernel may deliver the
signal to another thread while the main thread waits for a lock. So the first stream of a process
also takes Python's wake-up descriptor. Python writes the number of each signal there at once, in
whichever thread it came, so its reader needs no handler. If other code has the descriptor (an event
loop on the main thread), only the handler is left.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.errors import ServiceStateError, UsageError

if TYPE_CHECKING:
    from ctypes import Array, c_char
    from types import FrameType

MAX_PENDING_PER_SIGNAL = 2
"""Unread entries of one signal. The first requests a stop and the second escalates. More would
carry no information and could fill the memory.
"""

SIGACTION_SIZE = 256
"""Bytes; more than the C library's `struct sigaction` has on any platform."""


@contextmanager
def catch_signals(signals: Iterable[int]) -> Iterator[SignalStream]:
    """Catch these signals within the block, and restore their handlers afterwards.

    For the main thread only.
    """
    stream = SignalStream(signals)
    stream.open()
    try:
        yield stream
    finally:
        stream.close()


class SignalStream:
    """The received signals in their order, for one reader at a time.

    Call `open` and `close` on the main thread; elsewhere they raise ServiceStateError and change
    nothing. `read` is for any thread, not for a handler. A forked child has no reader: there a
    caught signal takes its default action.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self.signals = tuple(dict.fromkeys(signals))
        self._pending: deque[int] = deque()
        self._previous: list[_Disposition] = []
        self._pid = 0
        self._read_lock = threading.Lock()
        self._reader = self._writer = -1
        self._owns_wakeup_fd = False

    def open(self) -> None:
        """Install the handlers, all or none."""
        _require_main_thread()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._pid = os.getpid()
        self._owns_wakeup_fd = self._acquire_wakeup_fd()
        try:
            for signum in self.signals:
                self._previous.append(_Disposition.install(signum, self._handle))
        except (OSError, ValueError) as error:
            self.close()
            raise UsageError(f"signal {signum} cannot be caught: {error}") from error

    def close(self) -> None:
        """Restore the former handlers, end the reader and drop unread signals.

        Idempotent; does nothing in a forked child.
        """
        if not self._is_open():
            return
        _require_main_thread()
        while self._previous:
            self._previous.pop().restore()
        if self._check_wakeup_fd():
            signal.set_wakeup_fd(-1)
        self._pid = 0
        self._wake_reader()
        with self._read_lock:
            os.close(self._reader)
            os.close(self._writer)

    def read(self, timeout: float | None = None) -> int | None:
        """Return the next signal; None on timeout or if the stream is closed. Blocks."""
        deadline = Deadline.after(timeout, SystemClock())
        if not self._is_open():
            return None
        with self._read_lock:
            while self._is_open():
                if self._pending:
                    return self._pending.popleft()
                if not self._wait_readable(deadline.remaining()):
                    return None
        return None

    def __iter__(self) -> Iterator[int]:
        """Yield every signal until the stream is closed."""
        while (signum := self.read()) is not None:
            yield signum

    def _is_open(self) -> bool:
        return self._pid == os.getpid()

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        """Queue the signal, unless the wake-up descriptor has delivered it; in a forked child, take
        the default action.
        """
        if not self._is_open():
            _take_default_action(signum)
        elif not (
            self._check_wakeup_fd() and self._wake_reader()
        ):  # a pipe that is full now was also full for the number
            self._enqueue(signum)
            self._wake_reader()

    def _enqueue(self, signum: int) -> None:
        if self._pending.count(signum) < MAX_PENDING_PER_SIGNAL:
            self._pending.append(signum)

    def _acquire_wakeup_fd(self) -> bool:
        """Set the wake-up descriptor to our pipe, unless other code uses it; True if it is ours."""
        former = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if former == -1:
            _reset_wakeup_fd_after_fork()
            return True
        signal.set_wakeup_fd(former)
        return False

    def _check_wakeup_fd(self) -> bool:
        """Whether the wake-up descriptor is still ours, so that the reader has the number already.

        For the main thread only.
        """
        if not self._owns_wakeup_fd:
            return False
        present = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if present != self._writer:
            signal.set_wakeup_fd(present)
            self._owns_wakeup_fd = False
        return self._owns_wakeup_fd

    def _wake_reader(self) -> bool:
        """Wake the reader; False if the pipe is full, and so is readable already."""
        try:
            return bool(os.write(self._writer, b"\0"))
        except BlockingIOError:
            return False

    def _wait_readable(self, timeout: float | None) -> bool:
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        readable = bool(poller.poll(None if timeout is None else timeout * 1000))
        if readable:
            for number in os.read(self._reader, 1 << 16):
                if number in self.signals:
                    self._enqueue(number)
        return readable


@cache
def _reset_wakeup_fd_after_fork() -> None:
    """Clear the wake-up descriptor in forked children, whose signals must not be taken for ours.

    They share our pipe. Registered once a process.
    """
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


class _Disposition:
    """The handler of a signal, as Python and as the kernel know it.

    The two differ where C code has installed a handler.
    """

    def __init__(self, signum: int) -> None:
        self._signum = signum
        self._python = signal.getsignal(signum)
        self._kernel = _sigaction(signum, None)

    @classmethod
    def install(cls, signum: int, handler: signal.Handlers | object) -> _Disposition:
        """Install a handler; return the former one."""
        former = cls(signum)
        signal.signal(signum, handler)  # type: ignore[arg-type]
        return former

    def restore(self) -> None:
        signal.signal(self._signum, signal.SIG_DFL if self._python is None else self._python)
        _sigaction(self._signum, self._kernel)


def _sigaction(signum: int, action: Array[c_char] | None) -> Array[c_char]:
    """Call sigaction(2): sets the action if one is given, returns the former one."""
    import ctypes  # noqa: PLC0415 - takes 5 ms, needed only in a process that catches signals

    former = ctypes.create_string_buffer(SIGACTION_SIZE)
    ctypes.CDLL(None).sigaction(signum, action, former)
    return former


def _require_main_thread() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise ServiceStateError(
            "signal handlers can be installed and restored only from the main thread"
        )


def _take_default_action(signum: int) -> None:
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
