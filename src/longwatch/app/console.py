"""Our own stdout, stderr and log files, opened for one supervising process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from longwatch.app.output import Tee
from longwatch.config.settings import LogSettings
from longwatch.core.clock import Clock
from longwatch.core.events import Level
from longwatch.observe.logfile import LogFile, Notice
from longwatch.observe.logs import EventLog, Form, Sink, dropped_notice
from longwatch.observe.outlet import Outlet
from longwatch.observe.render import to_json, to_pretty, wants_colour

OWN_LOG = "watchdog"
_PATIENCE = 5.0
"""As for a program that writes while nobody reads."""
_LAST_WORDS = 1.0


class Console:
    """The places where lines leave this process.

    `logs/watchdog.log` gets the supervisor's JSON lines and `logs/NAME.log` the program's output, both below the state directory
    and absent without one; stdout and stderr get what a person or a container runtime reads.
    """

    def __init__(self, log: LogSettings, *, program: str, state: Path | None, clock: Clock, environ: Mapping[str, str]) -> None:
        self.out = Outlet(1, name="longwatch-stdout")
        self.err = Outlet(2, name="longwatch-stderr")
        self._own = _log_file(log, state, OWN_LOG, dropped_notice(clock=clock))
        self._programs = _log_file(log, state, program)
        self.stdout = Tee(self._programs, self.out)
        self.stderr = Tee(self._programs, self.err)
        sinks = [Sink(writer=self.err, form=_console_form(log, environ), level=log.level)]
        if self._own is not None:
            sinks.append(Sink(writer=self._own, form=to_json, level=Level.DEBUG))
        self.log = EventLog(sinks, clock=clock)

    @property
    def dropped(self) -> int:
        """Lines of the program that were dropped so far, by whichever place dropped more."""
        return max(self.out.dropped + self.err.dropped, self._programs.dropped if self._programs else 0)

    def flush(self) -> None:
        """Write out what is waiting, for as long as somebody reads it; what nobody takes counts as dropped."""
        for outlet in (self.out, self.err):
            if not outlet.flush_patiently(_PATIENCE):
                outlet.close(0.0)

    def close(self) -> None:
        self.out.close(_LAST_WORDS)
        self.err.close(_LAST_WORDS)
        for file in (self._own, self._programs):
            if file is not None:
                file.close()


def fill_standard_streams() -> None:
    """Open /dev/null for a standard stream that was closed, lest a file of ours gets its number and the lines meant for it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def make_state_directory(state: Path) -> None:
    """Make it for its owner alone, and keep it out of version control."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    ignore = state / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")


def _log_file(log: LogSettings, state: Path | None, name: str, notice: Notice | None = None) -> LogFile | None:
    if state is None:
        return None
    return LogFile(state / "logs" / f"{name}.log", max_bytes=log.max_bytes, keep=log.keep, notice=notice)


def _console_form(log: LogSettings, environ: Mapping[str, str]) -> Form:
    pretty = log.format == "pretty" or (log.format == "auto" and os.isatty(2))
    return partial(to_pretty, colour=wants_colour(2, environ)) if pretty else to_json
