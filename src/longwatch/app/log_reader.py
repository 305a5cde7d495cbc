"""Reads the log files of a state directory: their last lines, and lines that are appended later.

It reads the files themselves, so it works without a supervisor. A follower keeps up with rotations,
and reads every rotated file to its end before the next. After a truncation it starts at the
beginning.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError
from longwatch.observe.logfile import SUPERVISOR_LOG

POLL_INTERVAL = 0.25
"""Seconds between two checks for new lines."""
_BLOCK = 64 * 1024
_MAX_LINE_BLOCKS = 16
"""A longer line is cut, so that a file without line ends costs a bounded amount of memory."""

TaggedLine = tuple[str, bytes]
"""The name of a program, and a line of its log without the line end."""
EventRecord = dict[str, Any]


class LogTail:
    """The lines of one log file: present lines, last first, and new ones. The file may appear
    later.
    """

    def __init__(self, path: Path, *, from_beginning: bool = False) -> None:
        self.path = path
        self._descriptor = -1 if from_beginning else _open_log(path)
        self._end = _end_of_lines(self._descriptor) if self._descriptor >= 0 else 0
        """The offset behind the last line that was read."""

    def read_last(self) -> Iterator[bytes]:
        """Yield the present lines, last first, including those of rotated files."""
        if self._descriptor < 0:
            return
        yield from _lines_backward(self._descriptor, self._end)
        for path in _rotated_files(self.path)[1:]:
            if (descriptor := _open_log(path)) >= 0:
                try:
                    yield from _lines_backward(descriptor, _end_of_lines(descriptor))
                finally:
                    os.close(descriptor)

    def read_new(self) -> Iterator[bytes]:
        """Yield the lines that were appended since the last read; of a line of more than a megabyte
        its parts.
        """
        if self._descriptor < 0:
            self._descriptor = _open_log(self.path)
        while self._descriptor >= 0:
            yield from self._appended()
            if not self._follow_rotation():
                return

    def close(self) -> None:
        """Close the file. A later read starts at the beginning of the file. Idempotent."""
        self._descriptor, self._end, closing = -1, 0, self._descriptor
        if closing >= 0:
            os.close(closing)

    def _appended(self) -> Iterator[bytes]:
        if os.fstat(self._descriptor).st_size < self._end:  # it was truncated
            self._end = 0
        size = _BLOCK
        while block := os.pread(self._descriptor, size, self._end):
            whole = block.rfind(b"\n") + 1
            if not whole and len(block) < size:
                return  # the beginning of a line
            if not whole and size < _BLOCK * _MAX_LINE_BLOCKS:
                size *= 2
                continue
            self._end += whole or len(block)
            yield from block[:whole].split(b"\n")[:-1] if whole else [block]
            size = _BLOCK

    def _follow_rotation(self) -> bool:
        """Switch to the file that followed ours; to the present file if ours was deleted. Whether
        there is one.
        """
        files = _rotated_files(self.path)
        place = next(
            (number for number, path in enumerate(files) if self._is_open_file(path)), None
        )
        if place == 0:
            return False
        successor = _open_log(files[0 if place is None else place - 1])
        if successor < 0:
            return False
        if place is not None and not self._is_open_file(
            files[place]
        ):  # they were moved on while we looked
            os.close(successor)
            return False
        self.close()
        self._descriptor = successor
        return True

    def _is_open_file(self, path: Path) -> bool:
        try:
            return os.path.samestat(path.stat(), os.fstat(self._descriptor))
        except OSError:
            return False


class ProgramLogs:
    """The logs of the named programs, or of all programs, also future ones."""

    def __init__(self, state: Path, names: Sequence[str]) -> None:
        self._state = state
        self._all = not names
        self._tails = {name: LogTail(path) for name, path in _select_logs(state, names).items()}
        if not self._tails:
            raise _no_logs_error(state)

    @property
    def names(self) -> list[str]:
        return list(self._tails)

    def read_last(self, count: int) -> Iterator[TaggedLine]:
        """Yield the last `count` lines of each log."""
        for name, tail in self._tails.items():
            yield from ((name, line) for line in reversed(list(islice(tail.read_last(), count))))

    def read_new(self) -> Iterator[TaggedLine]:
        """Yield the lines that were appended since the last read, also from new logs."""
        if self._all:
            for name, path in program_logs(self._state).items():
                self._tails.setdefault(name, LogTail(path, from_beginning=True))
        for name, tail in self._tails.items():
            yield from ((name, line) for line in tail.read_new())

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()


class EventLogReader:
    """The records of the supervisor's log, all or those about some programs. Records of level debug
    only on request.
    """

    def __init__(self, state: Path, names: Sequence[str], *, include_debug: bool = False) -> None:
        self._includes_debug = include_debug
        self._names = frozenset(_select_logs(state, names) if names else ())
        self._tail = LogTail(_log_path(state, SUPERVISOR_LOG))
        if not os.path.exists(self._tail.path):  # noqa: PTH110 - never raises
            raise _no_logs_error(state)

    def read_last(self, count: int) -> list[EventRecord]:
        """The last `count` records."""
        return list(islice(self._matching(self._tail.read_last()), count))[::-1]

    def read_new(self) -> Iterator[EventRecord]:
        """Yield the records that were appended since the last read."""
        return self._matching(self._tail.read_new())

    def close(self) -> None:
        self._tail.close()

    def _matching(self, lines: Iterator[bytes]) -> Iterator[EventRecord]:
        records = (record for line in lines if (record := _parse_record(line)) is not None)
        return (record for record in records if self._is_wanted(record))

    def _is_wanted(self, record: EventRecord) -> bool:
        """Whether a record is about one of the programs."""
        if record.get("level") == "debug" and not self._includes_debug:
            return False
        programs = record.get("programs")
        about = (
            [*programs, record.get("program")]
            if isinstance(programs, list)
            else [record.get("program")]
        )
        return not self._names or any(name in about for name in self._names)


def _no_logs_error(state: Path) -> UsageError:
    return UsageError(
        f"no logs are kept in {state}; start something with `longwatch up`, or give --state-dir"
    )


def follow(write_new: Callable[[], object], *, is_over: Callable[[], bool], clock: Clock) -> None:
    """Write new lines at intervals until `is_over` returns true."""
    never = Wakeup()
    while not is_over():
        write_new()
        clock.wait(never, POLL_INTERVAL)


def program_logs(state: Path) -> dict[str, Path]:
    """The log files of all programs, by name."""
    logs = state / "logs"
    if not os.path.isdir(logs):  # noqa: PTH112 - never raises, however long the name is
        return {}
    return {path.stem: path for path in sorted(logs.glob("*.log")) if path.stem != SUPERVISOR_LOG}


def _select_logs(state: Path, names: Collection[str]) -> dict[str, Path]:
    known = program_logs(state)
    for name in names:
        if not _matching_names(name, known):
            raise UsageError(
                f"there is no log of program {name!r} in {state / 'logs'}; {_hint(name, known)}"
            )
    return (
        {each: known[each] for name in names for each in _matching_names(name, known)}
        if names
        else known
    )


def _matching_names(name: str, known: Collection[str]) -> list[str]:
    """The program of this name, else the processes of the worker of this name."""
    return (
        [name]
        if name in known
        else [each for each in known if re.fullmatch(rf"{re.escape(name)}-\d+", each)]
    )


def _hint(name: str, known: Collection[str]) -> str:
    listed = (
        f"there are {', '.join(known)}"
        if known
        else "start something with `longwatch up`, or give --state-dir"
    )
    return did_you_mean(name, known, default=listed)


def _log_path(state: Path, name: str) -> Path:
    return state / "logs" / f"{name}.log"


def _open_log(path: Path) -> int:
    """Open a log file for reading; -1 if that fails, or if it is a symbolic link."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return -1


def _rotated_files(path: Path) -> list[Path]:
    """The file and its rotated predecessors, newest first."""
    files = [path]
    while (older := path.with_name(f"{path.name}.{len(files)}")).exists():
        files.append(older)
    return files


def _end_of_lines(descriptor: int) -> int:
    """The offset behind the last whole line."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        begin = max(end - _BLOCK, 0)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _lines_backward(descriptor: int, end: int) -> Iterator[bytes]:
    """Yield the lines before the offset `end`, last first; of a line of more than a megabyte its
    beginning. `end` is the end of a line.
    """
    if end == 0:
        return
    end -= 1
    # the blocks of a line whose beginning was not read yet, last first
    partial: deque[bytes] = deque(maxlen=_MAX_LINE_BLOCKS)
    while end > 0:
        begin = max(end - _BLOCK, 0)
        first, *lines = os.pread(descriptor, end - begin, begin).split(b"\n")
        if lines:
            lines[-1] = b"".join([lines[-1], *reversed(partial)])
            yield from reversed(lines)
            partial.clear()
        partial.append(first)
        end = begin
    yield b"".join(reversed(partial))


def _parse_record(line: bytes) -> EventRecord | None:
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    return None
