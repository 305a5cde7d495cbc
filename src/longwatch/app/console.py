"""The outputs of one supervising process: its stdout, stderr and log files.

The output of a program goes to its log file and to our stdout or stderr.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from longwatch.config.settings import LogSettings, is_pretty
from longwatch.config.tables import LogFileSettings
from longwatch.core.clock import Clock
from longwatch.core.error_text import os_reason
from longwatch.core.events.base import Level
from longwatch.errors import UsageError
from longwatch.observe.event_log import EventLog, LogSink, RecordFormat, dropped_lines_record
from longwatch.observe.log_format import to_json, to_pretty, wants_colour
from longwatch.observe.logfile import SUPERVISOR_LOG, DroppedLine, LogFile
from longwatch.observe.nonblocking_writer import NonblockingWriter, flush_all
from longwatch.supervisor.plan import OutputPolicy
from longwatch.supervisor.program import Streams


class Tee:
    """A sink for captured lines that writes each block to a file, if there is one, and to a
    writer, if there is one.

    The writer sets the pace: a file never waits. Either may drop lines without harm to the other.
    With a `tag` every line of the writer begins with it, so that the lines of several programs can
    be told apart.
    """

    def __init__(
        self, file: LogFile | None, writer: NonblockingWriter | None, *, tag: str = ""
    ) -> None:
        self._file = file
        self._writer = writer
        self._tag = tag.encode()

    def write(self, data: bytes) -> bool:
        kept = self._file is None or self._file.write(data)
        return (self._writer is None or self._writer.write(self._tagged(data))) and kept

    @property
    def congested(self) -> bool:
        return self._writer is not None and self._writer.congested

    def on_drained(self, callback: Callable[[], None]) -> None:
        if self._writer is None:
            callback()
        else:
            self._writer.on_drained(callback)

    def _tagged(self, data: bytes) -> bytes:
        return (
            b"".join(self._tag + line for line in data.splitlines(keepends=True))
            if self._tag
            else data
        )


_FLUSH_TIMEOUT = 5.0
"""As for a program that writes while nobody reads."""
_CLOSE_TIMEOUT = 1.0


class Console:
    """The places where lines leave this process.

    `logs/watchdog.log` gets the supervisor's JSON lines and `logs/NAME.log` a program's output,
    both below the state directory and absent without one; stdout and stderr get what a person or a
    container runtime reads.
    """

    def __init__(
        self, log: LogSettings, *, state: Path | None, clock: Clock, environ: Mapping[str, str]
    ) -> None:
        self.out = NonblockingWriter(1, name="longwatch-stdout")
        self.err = NonblockingWriter(2, name="longwatch-stderr")
        self._state = state
        self._own_log = _log_file(log, state, SUPERVISOR_LOG, dropped_lines_record(clock=clock))
        self._program_logs: dict[str, LogFile] = {}
        sinks = [
            LogSink(writer=self.err, format_record=_console_format(log, environ), level=log.level)
        ]
        if self._own_log is not None:
            sinks.append(LogSink(writer=self._own_log, format_record=to_json, level=Level.DEBUG))
        self.log = EventLog(sinks, clock=clock)

    def passthrough_streams(self, name: str, log: LogFileSettings) -> Streams:
        """Streams of the only program: our own input, and its output as if it were ours."""
        file = self._program_log(name, OutputPolicy(max_bytes=log.max_bytes, keep=log.keep))
        return Streams(0, Tee(file, self.out), Tee(file, self.err))

    def tagged_streams(self, name: str, output: OutputPolicy, *, tag: str) -> Streams:
        """Streams of one program among several: no input, and one way out for all it says, in
        its order.
        """
        tee = Tee(self._program_log(name, output), self.out if output.console else None, tag=tag)
        return Streams(None, tee, tee)

    @property
    def dropped_lines(self) -> int:
        """Lines of programs that were dropped so far, by whichever place dropped more."""
        return max(
            self.out.dropped + self.err.dropped,
            sum(file.dropped for file in self._program_logs.values()),
        )

    def flush(self) -> None:
        """Write out what is waiting, for as long as somebody reads it; what nobody takes counts
        as dropped.
        """
        for writer in flush_all((self.out, self.err), _FLUSH_TIMEOUT):
            writer.close(0.0)

    def close(self) -> None:
        self.out.close(_CLOSE_TIMEOUT)
        self.err.close(_CLOSE_TIMEOUT)
        for file in (self._own_log, *self._program_logs.values()):
            if file is not None:
                file.close()

    def _program_log(self, name: str, output: OutputPolicy) -> LogFile | None:
        """The program's log file; a later call has it follow other wishes."""
        known = self._program_logs.get(name) or _log_file(output, self._state, name)
        if known is not None:
            known.max_bytes, known.keep = output.max_bytes, output.keep
            self._program_logs[name] = known
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
            f"({os_reason(error)});"
            " choose another with --state-dir DIR, or keep no files with --state-dir off"
        ) from None


def _log_file(
    log: LogFileSettings | OutputPolicy,
    state: Path | None,
    name: str,
    notice: DroppedLine | None = None,
) -> LogFile | None:
    if state is None:
        return None
    return LogFile(
        state / "logs" / f"{name}.log", max_bytes=log.max_bytes, keep=log.keep, dropped_line=notice
    )


def _console_format(log: LogSettings, environ: Mapping[str, str]) -> RecordFormat:
    return partial(to_pretty, colour=wants_colour(2, environ)) if is_pretty(log) else to_json
