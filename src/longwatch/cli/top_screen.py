"""The terminal of `longwatch top`: alternate screen, keys, resize, and the way back.

Whatever ends the command, the terminal is as before: a key, Ctrl-C, SIGTERM, a closed terminal, an
error. Ctrl-Z leaves the screen before the process stops, and `fg` draws it again.
"""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from shutil import get_terminal_size
from types import FrameType
from typing import Any

from longwatch.cli.entry import BLOCKED_SIGNALS

ENTER_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Alternate screen, no cursor, no automatic line breaks."""
LEAVE_SCREEN = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
_KEY = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[A-Za-z])|.", re.DOTALL)
_KEY_NAMES = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x04": "q",
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
}
_MAX_KEY_BYTES = 1024
_Handler = Callable[[int, FrameType | None], object]


class SignalledError(BaseException):
    """A signal that ends the command; its number is `signum`. Not an Exception, so that no handler
    of errors takes it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class TerminalClosedError(Exception):
    """The terminal is gone."""


class Screen:
    """The terminal on standard input and output, in use within `opened`. For the main thread;
    `wake` is for any thread.
    """

    def __init__(self) -> None:
        self._before: list[Any] = []
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._last_lines: list[str] = []

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Screen]:
        """Take over the terminal, and give it back at the end of the block."""
        screen = cls()
        try:
            with _handlers(screen._signal_handlers()):
                try:
                    screen._enter()
                    yield screen
                finally:  # a second signal must not interrupt this
                    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
                    screen._leave()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_SIGNALS)
            os.close(screen._reader)
            writer, screen._writer = screen._writer, -1
            os.close(writer)

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines."""
        return get_terminal_size()

    def wake(self) -> None:
        """Let `wait` return."""
        with suppress(OSError):
            os.write(self._writer, b"x")

    def wait(self, timeout: float) -> list[str]:
        """Wait for keys, a call of `wake`, a resize, or the timeout; returns the keys. Raises
        TerminalClosedError.
        """
        poller = select.poll()
        poller.register(0, select.POLLIN)
        poller.register(self._reader, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(timeout * 1000)}
        if self._reader in ready:
            with suppress(BlockingIOError):
                os.read(self._reader, _MAX_KEY_BYTES)
        return _key_names(self._read_keys()) if 0 in ready else []

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines. Writes nothing if they are shown already."""
        if list(lines) == self._last_lines:
            return
        self._last_lines = list(lines)
        self._write(_HOME + "\r\n".join(f"{_CLEAR_LINE}{line}" for line in lines) + _CLEAR_REST)

    def _read_keys(self) -> bytes:
        try:
            found = os.read(0, _MAX_KEY_BYTES)
        except OSError:
            found = b""
        if not found:
            raise TerminalClosedError
        return found

    def _write(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            raise TerminalClosedError from None

    def _enter(self) -> None:
        self._before = termios.tcgetattr(0)
        _read_single_keys()
        self._last_lines = []
        self._write(ENTER_SCREEN)

    def _leave(self) -> None:
        """Give the terminal back."""
        with suppress(TerminalClosedError):
            self._write(LEAVE_SCREEN)
        with suppress(OSError, termios.error):
            if self._before:
                termios.tcsetattr(0, termios.TCSANOW, self._before)

    # --- signals ---

    def _signal_handlers(self) -> dict[int, _Handler]:
        ends: dict[int, _Handler] = dict.fromkeys(BLOCKED_SIGNALS, _raise_signalled)
        return {
            **ends,
            signal.SIGWINCH: lambda *_: self._redraw(),
            signal.SIGTSTP: lambda *_: self._suspend(),
            signal.SIGCONT: lambda *_: self._resume(),
        }

    def _redraw(self) -> None:
        self._last_lines = []
        self.wake()

    def _suspend(self) -> None:
        """Leave the screen and stop; SIGCONT takes it again."""
        self._leave()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _resume(self) -> None:
        with suppress(OSError, termios.error, TerminalClosedError):
            _read_single_keys()
            self._write(ENTER_SCREEN)
        self._redraw()


def _read_single_keys() -> None:
    """Deliver each key at once and without an echo. Ctrl-S does not pause the output, because a
    process that waits for a paused terminal cannot give it back.
    """
    tty.setcbreak(0, termios.TCSANOW)
    modes = termios.tcgetattr(0)
    modes[0] &= ~termios.IXON
    termios.tcsetattr(0, termios.TCSANOW, modes)


def _raise_signalled(signum: int, _: FrameType | None) -> None:
    raise SignalledError(signum)


@contextmanager
def _handlers(wanted: dict[int, _Handler]) -> Iterator[None]:
    """Install these handlers within the block."""
    before = {signum: signal.getsignal(signum) for signum in wanted}
    try:
        for signum, handler in wanted.items():
            signal.signal(signum, handler)
        yield
    finally:
        for signum, previous in before.items():
            signal.signal(signum, previous)


def _key_names(data: bytes) -> list[str]:
    """The keys in what the terminal sent: characters, and names of special keys."""
    names = [_KEY_NAMES.get(key, key) for key in _KEY.findall(data.decode(errors="replace"))]
    return [name for name in names if not name.startswith("\x1b")]
