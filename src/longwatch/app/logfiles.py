"""The log files of a state directory, read by those who look: their last lines, and what is
appended while they watch.

The files are read as they lie there, so this works without a supervisor, too. Whoever follows one
stays with it when it is rotated, and reads every file in between to its end before the next; after
a truncation it begins anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.nearest import did_you_mean
from longwatch.errors import UsageError
from longwatch.observe.logfile import OWN_LOG

EVERY = 0.25
"""Seconds between two looks of somebody who follows."""
_BLOCK = 64 * 1024

Tagged = tuple[str, bytes]
"""A program's name and a line of its log, without its end."""
Record = dict[str, Any]


class Tail:
    """One log file: the whole lines in it, last first, and those that come. The file may come
    later, too.
    """

    def __init__(self, path: Path, *, from_beginning: bool = False) -> None:
        self.path = path
        self._descriptor = -1 if from_beginning else _opened(path)
        self._end = _end_of_lines(self._descriptor) if self._descriptor >= 0 else 0
        """Where the lines end that have been read."""

    def last(self) -> Iterator[bytes]:
        """The lines before the present end, the last one first, on into the files it was rotated
        to.
        """
        if self._descriptor < 0:
            return
        yield from _backward(self._descriptor, self._end)
        for path in _generations(self.path)[1:]:
            with suppress(OSError), path.open("rb", buffering=0) as file:
                yield from _backward(file.fileno(), _end_of_lines(file.fileno()))

    def fresh(self) -> Iterator[bytes]:
        """The lines that were appended since."""
        if self._descriptor < 0:
            self._descriptor = _opened(self.path)
        while self._descriptor >= 0:
            yield from self._appended()
            if not self._turn_over():
                return

    def close(self) -> None:
        """Let go of the file; what comes later is read from its beginning. Idempotent."""
        self._descriptor, self._end, closing = -1, 0, self._descriptor
        if closing >= 0:
            os.close(closing)

    def _appended(self) -> Iterator[bytes]:
        if os.fstat(self._descriptor).st_size < self._end:  # it was truncated
            self._end = 0
        size = _BLOCK
        while block := os.pread(self._descriptor, size, self._end):
            whole = block.rfind(b"\n") + 1
            self._end += whole
            yield from block[:whole].split(b"\n")[:-1]
            if not whole and len(block) < size:
                return  # the beginning of a line
            size = _BLOCK if whole else 2 * size

    def _turn_over(self) -> bool:
        """Go on to the file that came after ours, if one did: the present one if ours is gone
        altogether.
        """
        files = _generations(self.path)
        place = next((number for number, path in enumerate(files) if self._is_ours(path)), None)
        if place == 0:
            return False
        successor = _opened(files[0 if place is None else place - 1])
        if successor < 0:
            return False
        if place is not None and not self._is_ours(
            files[place]
        ):  # they were moved on while we looked
            os.close(successor)
            return False
        self.close()
        self._descriptor = successor
        return True

    def _is_ours(self, path: Path) -> bool:
        try:
            return os.path.samestat(path.stat(), os.fstat(self._descriptor))
        except OSError:
            return False


class ProgramLogs:
    """The logs of some programs, or of all there are and will be."""

    def __init__(self, state: Path, names: Sequence[str]) -> None:
        self._state = state
        self._all = not names
        self._tails = {name: Tail(path) for name, path in _chosen(state, names).items()}
        if not self._tails:
            raise UsageError(
                f"no logs are kept in {state}; start something with `longwatch up`, or give "
                f"--state-dir"
            )

    @property
    def names(self) -> list[str]:
        return list(self._tails)

    def last(self, count: int) -> Iterator[Tagged]:
        """The last so many lines of each."""
        for name, tail in self._tails.items():
            yield from ((name, line) for line in reversed(list(islice(tail.last(), count))))

    def fresh(self) -> Iterator[Tagged]:
        """The lines that were appended since, in logs that are new as well."""
        if self._all:
            for name, path in program_logs(self._state).items():
                self._tails.setdefault(name, Tail(path, from_beginning=True))
        for name, tail in self._tails.items():
            yield from ((name, line) for line in tail.fresh())

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()


class KeptEvents:
    """The records in the supervisor's own log, all or those about some programs; those of level
    debug only if asked for.
    """

    def __init__(self, state: Path, names: Sequence[str], *, debug: bool = False) -> None:
        self._debug = debug
        self._names = frozenset(_chosen(state, names) if names else ())
        self._tail = Tail(_log_path(state, OWN_LOG))
        if not self._tail.path.exists():
            raise UsageError(
                f"no events are kept in {state}; start something with `longwatch up`, or give "
                f"--state-dir"
            )

    def last(self, count: int) -> list[Record]:
        """The last so many."""
        return list(islice(self._about(self._tail.last()), count))[::-1]

    def fresh(self) -> Iterator[Record]:
        """Those that were appended since."""
        return self._about(self._tail.fresh())

    def close(self) -> None:
        self._tail.close()

    def _about(self, lines: Iterator[bytes]) -> Iterator[Record]:
        records = (record for line in lines if (record := _record(line)) is not None)
        return (record for record in records if self._is_wanted(record))

    def _is_wanted(self, record: Record) -> bool:
        """A record names its program, or several that it is about."""
        if record.get("level") == "debug" and not self._debug:
            return False
        programs = record.get("programs")
        about = (
            [*programs, record.get("program")]
            if isinstance(programs, list)
            else [record.get("program")]
        )
        return not self._names or any(name in about for name in self._names)


def follow(pour: Callable[[], object], *, over: Callable[[], bool], clock: Clock) -> None:
    """Pour out what is fresh, every so often, until it is over."""
    never = Wakeup()
    while not over():
        pour()
        clock.wait(never, EVERY)


def program_logs(state: Path) -> dict[str, Path]:
    """Every program that has a log, by name."""
    return {
        path.stem: path for path in sorted((state / "logs").glob("*.log")) if path.stem != OWN_LOG
    }


def _chosen(state: Path, names: Collection[str]) -> dict[str, Path]:
    known = program_logs(state)
    for name in names:
        if not _called(name, known):
            raise UsageError(
                f"there is no log of program {name!r} in {state / 'logs'}; {_hint(name, known)}"
            )
    return (
        {each: known[each] for name in names for each in _called(name, known)} if names else known
    )


def _called(name: str, known: Collection[str]) -> list[str]:
    """The program of that name; else the processes of the worker of that name."""
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
    return did_you_mean(name, known, otherwise=listed)


def _log_path(state: Path, name: str) -> Path:
    return state / "logs" / f"{name}.log"


def _opened(path: Path) -> int:
    """A descriptor to read it with; -1 if it cannot be read."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return -1


def _generations(path: Path) -> list[Path]:
    """The file and those it was rotated to, newest first."""
    files = [path]
    while (older := path.with_name(f"{path.name}.{len(files)}")).exists():
        files.append(older)
    return files


def _end_of_lines(descriptor: int) -> int:
    """Where the last whole line ends."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        begin = max(end - _BLOCK, 0)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _backward(descriptor: int, end: int) -> Iterator[bytes]:
    """The lines before `end`, which is the end of one, the last one first."""
    if end == 0:
        return
    end -= 1
    begun = b""
    while end > 0:
        begin = max(end - _BLOCK, 0)
        begun, *lines = (os.pread(descriptor, end - begin, begin) + begun).split(b"\n")
        yield from reversed(lines)
        end = begin
    yield begun


def _record(line: bytes) -> Record | None:
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    return None
