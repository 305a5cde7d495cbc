"""Our own stdout, stderr and log files, opened for one supervising process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from longwatch.app.output import Tee
from longwatch.config.settings import LogSettings
from longwatch.config.tables import LogFileSettings
from longwatch.core.clock import Clock
from longwatch.core.events import Level
from longwatch.errors import UsageError
from longwatch.observe.logfile import OWN_LOG, LogFile, Notice
from longwatch.observe.logs import EventLog, Form, Sink, dropped_notice
from longwatch.observe.outlet import Outlet, flush_patiently
from longwatch.observe.render import to_json, to_pretty, wants_colour
from longwatch.supervisor.plan import Output
from longwatch.supervisor.program import Streams

_PATIENCE = 5.0
"""As for a program that writes while nobody reads."""
_LAST_WORDS = 1.0


class Console:
    """The places where lines leave this process.

    `logs/watchdog.log` gets the supervisor's JSON lines and `logs/NAME.log` a program's output,
    both below the state directory and absent without one; stdout and stderr get what a person or a
    container runtime reads.
    """

    def __init__(
        self, log: LogSettings, *, state: Path | None, clock: Clock, environ: Mapping[str, str]
    ) -> None:
        self.out = Outlet(1, name="longwatch-stdout")
        self.err = Outlet(2, name="longwatch-stderr")
        self._state = state
        self._own = _log_file(log, state, OWN_LOG, dropped_notice(clock=clock))
        self._programs: dict[str, LogFile] = {}
        sinks = [Sink(writer=self.err, form=_console_form(log, environ), level=log.level)]
        if self._own is not None:
            sinks.append(Sink(writer=self._own, form=to_json, level=Level.DEBUG))
        self.log = EventLog(sinks, clock=clock)

    def alone(self, name: str, log: LogFileSettings) -> Streams:
        """Streams of the only program: our own input, and its output as if it were ours."""
        file = self._file(name, Output(max_bytes=log.max_bytes, keep=log.keep))
        return Streams(0, Tee(file, self.out), Tee(file, self.err))

    def among_others(self, name: str, output: Output, *, tag: str) -> Streams:
        """Streams of one program among several: no input, and one way out for all it says, in
        its order.
        """
        tee = Tee(self._file(name, output), self.out if output.console else None, tag=tag)
        return Streams(None, tee, tee)

    @property
    def dropped(self) -> int:
        """Lines of programs that were dropped so far, by whichever place dropped more."""
        return max(
            self.out.dropped + self.err.dropped,
            sum(file.dropped for file in self._programs.values()),
        )

    def flush(self) -> None:
        """Write out what is waiting, for as long as somebody reads it; what nobody takes counts
        as dropped.
        """
        for outlet in flush_patiently((self.out, self.err), _PATIENCE):
            outlet.close(0.0)

    def close(self) -> None:
        self.out.close(_LAST_WORDS)
        self.err.close(_LAST_WORDS)
        for file in (self._own, *self._programs.values()):
            if file is not None:
                file.close()

    def _file(self, name: str, output: Output) -> LogFile | None:
        """The program's log file; a later call has it follow other wishes."""
        known = self._programs.get(name) or _log_file(output, self._state, name)
        if known is not None:
            known.max_bytes, known.keep = output.max_bytes, output.keep
            self._programs[name] = known
        return known


def fill_standard_streams() -> None:
    """Open /dev/null for a standard stream that was closed, lest a file of ours gets its number
    and the lines meant for it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def make_state_directory(state: Path) -> None:
    """Make it for its owner alone, and keep it out of version control; UsageError if that cannot
    be.
    """
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore = state / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise UsageError(
            f"cannot write to the state directory {str(state)!r} "
            f"({(error.strerror or '').lower()});"
            " choose another with --state-dir DIR, or keep no files with --state-dir off"
        ) from None


def _log_file(
    log: LogFileSettings | Output, state: Path | None, name: str, notice: Notice | None = None
) -> LogFile | None:
    if state is None:
        return None
    return LogFile(
        state / "logs" / f"{name}.log", max_bytes=log.max_bytes, keep=log.keep, notice=notice
    )


def _console_form(log: LogSettings, environ: Mapping[str, str]) -> Form:
    return partial(to_pretty, colour=wants_colour(2, environ)) if is_pretty(log) else to_json


def is_pretty(log: LogSettings) -> bool:
    """Whether the console has the form for people."""
    return log.format == "pretty" or (log.format == "auto" and os.isatty(2))
