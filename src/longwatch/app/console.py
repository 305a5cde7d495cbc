"""The outputs of one supervising process: its stdout, stderr and log files.

The output of a program goes to its log file and to our stdout or stderr. None of them is ever
written on the loop, and no event waits for one: stdout and stderr have a writer thread each, all
log files share one. A disk that does not answer holds up that thread alone. Log files are opened
where blocking is allowed: before the supervisor starts, and by the thread that reads new settings.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from longwatch.config.settings import LogSettings, is_pretty
from longwatch.config.tables import LogFileSettings
from longwatch.core.clock import Clock, Wakeup
from longwatch.core.error_text import os_reason
from longwatch.core.events.base import Level
from longwatch.core.events.supervisor import StateDirectoryUnavailable
from longwatch.errors import UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.nonblocking_writer import NonblockingWriter, flush_all
from longwatch.host.writer_thread import WriterThread
from longwatch.observe.event_log import (
    EventLog,
    LogSink,
    Record,
    RecordFormat,
    dropped_lines_record,
    redirect_logging,
)
from longwatch.observe.log_format import to_json, to_pretty, wants_colour
from longwatch.observe.logfile import SUPERVISOR_LOG, DroppedLine, LogFile
from longwatch.observe.output_lines import FormatLines, OutputRecords, tag_lines
from longwatch.observe.repeats import RepeatFilter
from longwatch.supervisor.plan import OutputPolicy
from longwatch.supervisor.state_directory import require_trusted
from longwatch.supervisor.target_factory import Streams


class Tee:
    """A sink for captured lines that writes each block to a log file and to the console, as far as
    it has them.

    It is congested while one of the two is. Either may give up and drop lines without harm to the
    other. `format_lines` formats the lines for the console. With `repeats` the console does not
    show faults that repeat. The file has the bytes as they were written.
    """

    def __init__(
        self,
        file: NonblockingWriter | None,
        console: NonblockingWriter | None,
        *,
        format_lines: FormatLines | None = None,
        repeats: RepeatFilter | None = None,
    ) -> None:
        self._file = file
        self._console = console
        self._repeats = None if repeats is None else repeats.stream(self._write_console)
        self._writers = [writer for writer in (file, console) if writer is not None]
        self._format_lines = format_lines or tag_lines("")

    def write(self, data: bytes) -> bool:
        kept = self._file is None or self._file.write(data)
        shown = data if self._repeats is None else self._repeats.reduce(data)
        return self._write_console(shown) and kept

    @property
    def congested(self) -> bool:
        return any(writer.congested for writer in self._writers)

    def on_drained(self, callback: Callable[[], None]) -> None:
        for writer in self._writers:
            if writer.congested:  # the other one may be, too: look again when this one is not
                writer.on_drained(lambda: self.on_drained(callback))
                return
        callback()

    def give_up(self) -> None:
        for writer in self._writers:
            writer.give_up()

    def _write_console(self, data: bytes) -> bool:
        return self._console is None or not data or self._console.write(self._format_lines(data))


class _OpenLog(NamedTuple):
    """A log file, and the buffer in front of it."""

    file: LogFile
    writer: NonblockingWriter


_FLUSH_TIMEOUT = 5.0
"""Seconds to wait for the reader of standard output or standard error."""
_CLOSE_TIMEOUT = 1.0


class Console:
    """The outputs of this process.

    `logs/watchdog.log` gets the supervisor's JSON lines and `logs/NAME.log` the output of a
    program. Both are below the state directory, and absent without one. Stdout and stderr are for
    people and container runtimes. With `program`, this process is itself a program of that name:
    what it logs at its level is its output as well.
    """

    def __init__(
        self,
        log: LogSettings,
        *,
        state: Path | None,
        clock: Clock,
        environ: Mapping[str, str],
        program: str = "",
    ) -> None:
        self.out = NonblockingWriter(1, name="longwatch-stdout")
        self.err = NonblockingWriter(2, name="longwatch-stderr")
        self.on_log_stalled: Callable[[Path, int], None] = lambda _path, _bytes: None
        """Called with the path of a log file and the capacity of its buffer, each time that the
        buffer begins to drop lines because the disk does not answer.
        """
        self.on_log_failed: Callable[[Path, str], None] = lambda _path, _reason: None
        """Called with the path of a log file and the reason, when the file can no longer be written
        or opened.
        """
        self._state = state
        self._clock = clock
        self._tags_output = is_pretty(log, 1)
        self._restore_logging: Callable[[], None] = lambda: None
        self._file_thread = WriterThread("longwatch-logfiles")
        self._own_log = self._open_log(log, SUPERVISOR_LOG, dropped_lines_record(clock=clock))
        self._program_logs: dict[str, _OpenLog] = {}
        self._closed = Wakeup()
        self._repeats = (
            RepeatFilter(clock=clock, on_counting=self._start_summaries)
            if is_pretty(log, 2)
            else None
        )
        self._failed_logs: set[str] = set()
        """Programs whose log file could not be opened while the supervisor ran."""
        sinks = [
            LogSink(
                writer=self.err if self._repeats is None else self._repeats.stream(self.err.write),
                format_record=_console_format(log, environ),
                level=log.level,
            )
        ]
        self._event_file: LogSink | None = None
        if self._own_log is not None:
            self._event_file = LogSink(writer=self._own_log.writer, level=Level.DEBUG)
            sinks.append(self._event_file)
        policy = OutputPolicy(max_bytes=log.max_bytes, keep=log.keep)
        if program and (output := self._program_log(program, policy)) is not None:
            sinks.append(LogSink(writer=output, format_record=to_json, level=log.level))
        self.log = EventLog(sinks, clock=clock)

    def redirect_logging(self) -> None:
        """Log the warnings and errors that other code in this process reports through `logging`
        or `warnings`, until `close`.
        """
        self._restore_logging = redirect_logging(self.log, level=Level.WARNING)

    def log_relayed(self, records: Iterable[Record]) -> None:
        """Write records of events of Longwatch programs to `logs/watchdog.log`. The console has
        them as output of the programs. Neither blocks nor raises.
        """
        if self._event_file is None:
            return
        for record in records:
            with suppress(ValueError):  # a number that JSON does not have
                self._event_file.write(record)

    def passthrough_streams(self, name: str, log: LogFileSettings) -> Streams:
        """Streams of the only program: it inherits our stdin, and its output is passed on.

        Only control characters are escaped, and only on a terminal.
        """
        output = OutputPolicy(max_bytes=log.max_bytes, keep=log.keep)
        self.open_program_log(name, output)
        file = self._program_log(name, output)
        return Streams(
            0,
            Tee(file, self.out, format_lines=tag_lines("", is_terminal=os.isatty(1))),
            Tee(file, self.err, format_lines=tag_lines("", is_terminal=os.isatty(2))),
        )

    def tagged_streams(
        self, name: str, output: OutputPolicy, *, tag: str, is_worker: bool = False
    ) -> Streams:
        """Streams of one program among several: no input, and one pipe for its stdout and stderr,
        which keeps the order of its lines.

        On a terminal each line begins with the tag, elsewhere it is a JSON record. Faults that a
        worker process repeats are counted on the console. Blocks on the disk unless
        `open_program_log` has opened its file before. Without a file, after a call of
        `on_log_failed`, if that cannot be opened.
        """
        file = self._program_log(name, output)
        format_lines = (
            tag_lines(tag, is_terminal=os.isatty(1))
            if self._tags_output
            else OutputRecords(name, clock=self._clock)
        )
        repeats = self._repeats if is_worker and self._tags_output else None
        console = self.out if output.console else None
        tee = Tee(file, console, format_lines=format_lines, repeats=repeats)
        return Streams(None, tee, tee)

    def open_program_log(self, name: str, output: OutputPolicy) -> None:
        """Open the program's log file, unless it is open or there is no state directory. Blocks on
        the disk. Raises UsageError if the file cannot be opened.
        """
        if name not in self._program_logs and (opened := self._open_log(output, name)):
            self._program_logs[name] = opened

    def _program_log(self, name: str, output: OutputPolicy) -> NonblockingWriter | None:
        """The log file of a program. A later call changes its size and its number of old files.

        None, after a call of `on_log_failed`, if it cannot be opened.
        """
        try:
            self.open_program_log(name, output)
        except UsageError as error:
            if name not in self._failed_logs:
                self._failed_logs.add(name)
                self.on_log_failed(self._log_path(name), str(error))
        if (known := self._program_logs.get(name)) is None:
            return None
        known.file.max_bytes, known.file.keep = output.max_bytes, output.keep
        return known.writer

    @property
    def dropped_lines(self) -> int:
        """The number of dropped lines of programs: those of the console or those of the files,
        whichever is larger.
        """
        return max(
            self.out.dropped + self.err.dropped,
            sum(log.writer.dropped for log in tuple(self._program_logs.values())),
        )

    def flush(self) -> None:
        """Write out waiting lines for as long as the reader takes them. The rest counts
        as dropped.
        """
        if self._repeats is not None:
            self._repeats.write_summaries(everything=True)
        for writer in flush_all((self.out, self.err, *self._log_writers), _FLUSH_TIMEOUT):
            writer.close(0.0)

    def close(self) -> None:
        self._closed.set()
        if self._repeats is not None:
            self._repeats.write_summaries(everything=True)
        self._restore_logging()
        self._restore_logging = lambda: None
        for writer in (self.out, self.err, *self._log_writers):
            writer.close(_CLOSE_TIMEOUT)

    def _start_summaries(self) -> None:
        """Start a thread that writes summaries while faults repeat. If no thread can start, `close`
        writes them.
        """
        with suppress(RuntimeError):
            BackgroundThread(self._write_summaries, name="longwatch-repeats").start()

    def _write_summaries(self) -> None:
        assert self._repeats is not None
        while (delay := self._repeats.next_delay()) is not None:
            if self._clock.wait(self._closed, delay):
                return
            self._repeats.write_summaries()

    @property
    def _log_writers(self) -> list[NonblockingWriter]:
        logs = (self._own_log, *self._program_logs.values())
        return [log.writer for log in logs if log is not None]

    def _open_log(
        self,
        log: LogFileSettings | OutputPolicy,
        name: str,
        dropped_line: DroppedLine | None = None,
    ) -> _OpenLog | None:
        if self._state is None:
            return None
        path = self._log_path(name)
        file = LogFile(
            path,
            max_bytes=log.max_bytes,
            keep=log.keep,
            dropped_line=dropped_line,
            on_failed=lambda reason: self.on_log_failed(path, reason),
        )
        writer = NonblockingWriter(
            file,
            thread=self._file_thread,
            on_full=lambda: self.on_log_stalled(path, writer.capacity),
        )
        return _OpenLog(file, writer)

    def _log_path(self, name: str) -> Path:
        assert self._state is not None
        return self._state / "logs" / f"{name}.log"


def fill_standard_streams() -> None:
    """Open /dev/null for closed standard streams. Otherwise one of our files could get their
    number, and the lines meant for them.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


class StateDirectoryError(UsageError):
    """The state directory cannot be written."""


def usable_state_directory(
    state: Path | None, *, is_default: bool
) -> tuple[Path | None, StateDirectoryUnavailable | None]:
    """Create and return the state directory. If the default one cannot be written, as in a
    container with a read-only file system, returns None and the event that says why. Raises
    UsageError for a directory that the user named.
    """
    if state is None:
        return None, None
    try:
        make_state_directory(state)
        if is_default:
            (state / "logs").mkdir(mode=0o700, exist_ok=True)
            _require_writable(state, state / "logs")
    except (StateDirectoryError, OSError) as error:
        if not is_default:
            raise
        reason = os_reason(error) if isinstance(error, OSError) else str(error)
        return None, StateDirectoryUnavailable(path=str(state), reason=reason)
    return state, None


def _require_writable(*directories: Path) -> None:
    for directory in directories:
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))


def make_state_directory(state: Path) -> None:
    """Make the state directory, for its owner alone and ignored by git. Raises UsageError if that
    fails, or if any other user can write to it.
    """
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_trusted(state)
        with suppress(FileExistsError), (state / ".gitignore").open("x") as ignore:
            ignore.write("*\n")
    except OSError as error:
        raise StateDirectoryError(
            f"cannot write to the state directory {str(state)!r} "
            f"({os_reason(error)});"
            " choose another with --state-dir DIR, or keep no files with --state-dir off"
        ) from None


def _console_format(log: LogSettings, environ: Mapping[str, str]) -> RecordFormat:
    return partial(to_pretty, colour=wants_colour(2, environ)) if is_pretty(log, 2) else to_json
