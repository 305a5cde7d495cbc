"""Where a program's output goes: to its log file, and on to our own stdout or stderr."""

from __future__ import annotations

from collections.abc import Callable

from longwatch.observe.logfile import LogFile
from longwatch.observe.outlet import Outlet


class Tee:
    """A sink for captured lines that writes each block to a file, if there is one, and to an outlet.

    The outlet sets the pace: a file never waits. Either may drop lines without harm to the other.
    """

    def __init__(self, file: LogFile | None, outlet: Outlet) -> None:
        self._file = file
        self._outlet = outlet

    def write(self, data: bytes) -> bool:
        kept = self._file is None or self._file.write(data)
        return self._outlet.write(data) and kept

    @property
    def congested(self) -> bool:
        return self._outlet.congested

    def on_drained(self, callback: Callable[[], None]) -> None:
        self._outlet.on_drained(callback)
