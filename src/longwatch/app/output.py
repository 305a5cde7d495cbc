"""Where a program's output goes: to its log file, and on to our own stdout or stderr."""

from __future__ import annotations

from collections.abc import Callable

from longwatch.observe.logfile import LogFile
from longwatch.observe.outlet import Outlet


class Tee:
    """A sink for captured lines that writes each block to a file, if there is one, and to an
    outlet, if there is one.

    The outlet sets the pace: a file never waits. Either may drop lines without harm to the other.
    With a `tag` every line in the outlet begins with it, so that the lines of several programs can
    be told apart.
    """

    def __init__(self, file: LogFile | None, outlet: Outlet | None, *, tag: str = "") -> None:
        self._file = file
        self._outlet = outlet
        self._tag = tag.encode()

    def write(self, data: bytes) -> bool:
        kept = self._file is None or self._file.write(data)
        return (self._outlet is None or self._outlet.write(self._tagged(data))) and kept

    @property
    def congested(self) -> bool:
        return self._outlet is not None and self._outlet.congested

    def on_drained(self, callback: Callable[[], None]) -> None:
        if self._outlet is None:
            callback()
        else:
            self._outlet.on_drained(callback)

    def _tagged(self, data: bytes) -> bytes:
        return (
            b"".join(self._tag + line for line in data.splitlines(keepends=True))
            if self._tag
            else data
        )
