"""What views know: the supervisors of a state directory, their events and logs, and the stores."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from longwatch.app import control
from longwatch.app.log_reader import program_logs
from longwatch.core.error_text import os_reason
from longwatch.core.sanitize import terminal_line
from longwatch.errors import LongwatchError
from longwatch.page.history import EventHistory
from longwatch.page.stores import StoreCatalog
from longwatch.page.view import NotFoundError

T = TypeVar("T")
JsonObject = dict[str, Any]

STATUS_TIMEOUT = 3.0
"""Seconds to wait for the answer of a supervisor."""
FRESH_SECONDS = 0.2
"""Seconds for which an answer of a supervisor serves all views."""
WORKERS_FRESH_SECONDS = 1.0
USAGE_FRESH_SECONDS = 4.0
MAX_USAGE_SAMPLES = 5000
RETRY_SECONDS = 1.0
"""Seconds between two attempts to reach a supervisor that does not answer."""
MAX_TAIL_BYTES = 512 * 1024
"""How much of a log is read, however large it is."""
MAX_LINE_BYTES = 4096
MAX_STACK_LINES = 4000
_FILE_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,254}", re.ASCII)
_PID_IN_NAME = re.compile(r"-\d{8}T\d{6}-(\d{1,10})-")
_ANSI = re.compile(r"\x1b\[[0-9;:]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlView:
    """What the supervisors answered last. With `error` they do not answer: the rest is what they
    answered before, at `at`, and `failed_since` is when that ended.
    """

    supervisors: list[JsonObject] = field(default_factory=list)
    programs: list[JsonObject] = field(default_factory=list)
    at: float = 0.0
    error: str = ""
    failed_since: float = 0.0

    def program(self, name: str) -> JsonObject:
        """The program of this name. Raises NotFoundError if there is none."""
        for program in self.programs:
            if program["name"] == name:
                return program
        raise NotFoundError(f"there is no program {name}")


class ControlSource:
    """Asks the supervisors of a state directory. Thread-safe; callers at the same time share one
    request.
    """

    def __init__(self, state: Path | None) -> None:
        self.state = state
        self._status = _Cached(self._ask_status, ControlView(), FRESH_SECONDS)
        self._workers = _Cached(self._ask_workers, WorkersView(), WORKERS_FRESH_SECONDS)
        self._usage = UsageSamples(self._ask_usage)

    def status(self) -> ControlView:
        """The supervisors and their programs. Blocks for `STATUS_TIMEOUT` at most, and not while
        another caller asks again a supervisor that did not answer.
        """
        return self._status.get()

    def workers(self) -> list[JsonObject]:
        """The worker processes, as the control command `workers` answers."""
        return self._workers.get().workers

    def stores(self) -> list[JsonObject]:
        """The stores of workers, flows and the runner, as the same command answers."""
        return self._workers.get().stores

    def usage(self, names: Sequence[str]) -> Mapping[str, ProgramUsage]:
        """What these programs use, from samples that are a few seconds old at most."""
        return self._usage.of(names)

    def request(self, command: str, program: str, *, timeout: float) -> JsonObject:
        """Request an action on one program. Raises the LongwatchError of a refusal."""
        if self.state is None:
            raise NotFoundError("this page has no state directory")
        return control.request(self.state, command, [program], response_timeout=timeout)

    def forget(self) -> None:
        """Ask again at the next call, because something was changed."""
        self._status.expire()

    def _ask_status(self, last: ControlView) -> ControlView:
        if self.state is None:
            return last
        try:
            answer = control.request(self.state, "status", response_timeout=STATUS_TIMEOUT)
        except LongwatchError as error:
            since = last.failed_since or time.time()
            return replace(last, error=str(error), failed_since=since)
        return ControlView(
            supervisors=answer.get("supervisors", []),
            programs=answer.get("programs", []),
            at=time.time(),
        )

    def _ask_workers(self, last: WorkersView) -> WorkersView:
        if self.state is None:
            return last
        if self.status().error:
            return WorkersView(stores=last.stores)
        try:
            answer = control.workers(self.state, response_timeout=STATUS_TIMEOUT)
        except LongwatchError:
            return WorkersView(stores=last.stores)
        return WorkersView(answer["workers"], answer["stores"])

    def _ask_usage(self, names: Sequence[str]) -> list[JsonObject]:
        if self.state is None or self.status().error:
            return []
        try:
            answer = control.request(self.state, "usage", names, response_timeout=STATUS_TIMEOUT)
        except LongwatchError:
            return []
        found: list[JsonObject] = answer["programs"]
        return found


@dataclass(frozen=True, slots=True)
class WorkersView:
    """What the supervisors answered about their workers."""

    workers: list[JsonObject] = field(default_factory=list)
    stores: list[JsonObject] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProgramUsage:
    """CPU in percent of one core since the sample before, None for the first; memory in bytes."""

    cpu: float | None
    memory: int | None
    processes: int | None


class UsageSamples:
    """The CPU and memory of programs, each asked for again after `USAGE_FRESH_SECONDS`."""

    def __init__(self, ask: Callable[[Sequence[str]], list[JsonObject]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._samples: dict[str, tuple[float, JsonObject, ProgramUsage]] = {}

    def of(self, names: Sequence[str]) -> Mapping[str, ProgramUsage]:
        with self._lock:
            now = time.monotonic()
            stale = [name for name in names if self._is_stale(name, now)]
            for sample in self._ask(stale) if stale else ():
                self._add(sample, now)
            return {name: self._samples[name][2] for name in names if name in self._samples}

    def _is_stale(self, name: str, now: float) -> bool:
        return name not in self._samples or now - self._samples[name][0] > USAGE_FRESH_SECONDS

    def _add(self, sample: JsonObject, now: float) -> None:
        before = self._samples.get(sample["name"])
        cpu = None if before is None else _cpu_percent(before[1], sample)
        usage = ProgramUsage(cpu, sample.get("memory_bytes"), sample.get("processes"))
        if len(self._samples) >= MAX_USAGE_SAMPLES:
            self._samples.clear()
        self._samples[sample["name"]] = (now, sample, usage)


def _cpu_percent(before: JsonObject, after: JsonObject) -> float | None:
    earlier, later = before.get("cpu_seconds"), after.get("cpu_seconds")
    if earlier is None or later is None or before["pid"] != after["pid"]:
        return None
    passed: float = after["measured_at"] - before["measured_at"]
    return max(100 * float(later - earlier) / passed, 0.0) if passed > 0 else None


class _Cached(Generic[T]):
    """A value that one caller at a time renews when it is older than `fresh` seconds. While a value
    with an error is renewed, other callers get it at once.
    """

    def __init__(self, renew: Callable[[T], T], initial: T, fresh: float) -> None:
        self._renew = renew
        self._value = initial
        self._fresh = fresh
        self._lock = threading.Lock()
        self._expires = 0.0

    def get(self) -> T:
        if not self._lock.acquire(blocking=not self._has_failed):
            return self._value
        try:
            if time.monotonic() >= self._expires:
                self._value = self._renew(self._value)
                fresh = RETRY_SECONDS if self._has_failed else self._fresh
                self._expires = time.monotonic() + fresh
            return self._value
        finally:
            self._lock.release()

    @property
    def _has_failed(self) -> bool:
        return bool(getattr(self._value, "error", ""))

    def expire(self) -> None:
        self._expires = 0.0


class LogSource:
    """The ends of the logs of programs, and the saved stacks. Reads a bounded part of each file."""

    def __init__(self, state: Path | None) -> None:
        self._state = state

    def names(self) -> list[str]:
        """The programs that have a log."""
        return [] if self._state is None else list(program_logs(self._state))

    def tail(self, name: str, lines: int) -> LogEnd:
        """The last lines of the log of a program. Raises NotFoundError if it has none."""
        path = {} if self._state is None else program_logs(self._state)
        if name not in path:
            raise NotFoundError(f"there is no log of program {name}")
        return read_end(path[name], lines)

    def stacks(self, name: str) -> LogEnd:
        """The end of a file of saved stacks. Raises NotFoundError if there is none."""
        path = self._stacks_path(name)
        if path is None:
            raise NotFoundError(f"there is no file of stacks {name}")
        return read_end(path, MAX_STACK_LINES)

    def stack_files(self) -> list[SavedStacks]:
        """The files of saved stacks that are not empty, newest first."""
        if self._state is None:
            return []
        found = []
        with suppress(OSError), os.scandir(self._state / "crashes") as entries:
            for entry in entries:
                with suppress(OSError):
                    facts = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(facts.st_mode) and facts.st_size:
                        found.append(SavedStacks(entry.name, facts.st_mtime, facts.st_size))
        return sorted(found, key=lambda each: each.moment, reverse=True)

    def _stacks_path(self, name: str) -> Path | None:
        """The path of a file in the directory of stacks; None for any other name."""
        if self._state is None or not _FILE_NAME.fullmatch(name):
            return None
        path = self._state / "crashes" / name
        with suppress(OSError):
            if stat.S_ISREG(path.lstat().st_mode):
                return path
        return None


@dataclass(frozen=True, slots=True)
class SavedStacks:
    """A file of saved stacks, with the pid of its process in its name."""

    name: str
    moment: float
    size: int

    @property
    def pid(self) -> int:
        """The pid in the name; 0 for a file that a person put there."""
        found = _PID_IN_NAME.search(self.name)
        return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The last lines of a file, without control sequences. `size`: bytes of the whole file."""

    lines: list[str]
    size: int
    cut: bool
    """Whether the file has more before them."""


def read_end(path: Path, lines: int) -> LogEnd:
    """The last lines of a regular file, from its last blocks. Raises NotFoundError if it cannot be
    read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise NotFoundError(f"{path.name} cannot be read ({os_reason(error)})") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise NotFoundError(f"{path.name} is no regular file")
        begin = max(facts.st_size - MAX_TAIL_BYTES, 0)
        data = os.pread(descriptor, MAX_TAIL_BYTES, begin)
    finally:
        os.close(descriptor)
    found = data.removesuffix(b"\n").split(b"\n") if data else []
    if begin and len(found) > 1:
        found = found[1:]  # the end of a line that began before
    shown = [plain_line(line) for line in found[-lines:]]
    return LogEnd(shown, facts.st_size, cut=bool(begin) or len(found) > lines)


def plain_line(line: bytes) -> str:
    """A line that a program wrote, as a page may show it: no colours, control characters escaped,
    not too long.
    """
    text = _ANSI.sub("", terminal_line(line[:MAX_LINE_BYTES]).decode(errors="replace"))
    return text + (" …" if len(line) > MAX_LINE_BYTES else "")


class PageData:
    """What views know. Its methods may block for a while, and are called in the pool."""

    def __init__(self, state: Path | None, stores: StoreCatalog) -> None:
        self.state = state
        self.control = ControlSource(state)
        self.events = EventHistory(state)
        self.stores = stores
        self.logs = LogSource(state)
        stores.discover = self.control.stores
        self._cached: dict[str, _Cached[Any]] = {}

    def cached(self, name: str, make: Callable[[], T], *, seconds: float) -> T:
        """What `make` returned last under this name, made again when it is older. For facts that
        several pages show, and that are expensive. Callers at the same time share one call.
        """
        found = self._cached.setdefault(name, _Cached(lambda _: make(), None, seconds))
        value: T = found.get()
        return value

    def close(self) -> None:
        self.events.close()
        self.stores.close()
