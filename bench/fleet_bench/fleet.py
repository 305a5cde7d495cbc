"""A fleet of idle workers: real processes, each forked before the first thread of its parent, with
a store, an incarnation and connections of its own.

Eight of them share a runtime directory, as the processes of one host do. The parent only forks,
waits and reads; it has no threads. Its members end by SIGKILL, and the database is dropped after
them.
"""

from __future__ import annotations

import logging
import mmap
import os
import random
import select
import signal
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from longwatch.mailbox import open_mailbox, open_store
from longwatch.mailbox.mailbox import Mailbox
from longwatch.runtime import MainLoop, MainLoopContext

logger = logging.getLogger(__name__)

MAILBOX = "fleet"
PER_HOST = 8
START_TIMEOUT = 90.0
_MAX_MEMBERS = 1024
_COUNTER = struct.Struct("Q")
_MARK = struct.Struct("d")

StartMember = Callable[["Fleet", int], Callable[[], bool]]
"""Starts the member of that number in this process; returns what says whether it works."""


class Fleet:
    """Processes that wait for messages. `per_process` members share a process, each with a store of
    its own.
    """

    def __init__(self, start: StartMember, folder: Path, *, per_process: int = 1) -> None:
        self.size = 0
        self._start = start
        self._folder = folder
        self._per_process = per_process
        self._pids: list[int] = []
        self._claims = mmap.mmap(-1, _MAX_MEMBERS * _COUNTER.size)
        self._ready_read, self._ready_write = os.pipe()
        self._marks_read, self._marks_write = os.pipe()
        self._unread = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)
        for fd in (self._ready_read, self._ready_write, self._marks_read, self._marks_write):
            os.close(fd)

    def grow(self, size: int) -> None:
        """Start members until there are so many, and wait until all of them have their store."""
        added = range(self.size, size)
        for first in range(self.size, size, self._per_process):
            numbers = range(first, min(first + self._per_process, size))
            self._pids.append(fork(lambda numbers=numbers: self._run_members(numbers)))  # type: ignore[misc]
        self._await_ready(len(added))
        self.size = size

    # --- in the parent ---

    def claims(self) -> int:
        """How many times the members have asked for rows so far, apart from exchanges that also
        settled one.
        """
        return sum(
            _COUNTER.unpack_from(self._claims, place * _COUNTER.size)[0]
            for place in range(self.size)
        )

    def read_marks(self, expected: int, *, within: float = 10.0) -> list[float]:
        """The seconds from send to handler of so many messages, or of fewer when time is up."""
        until, size = time.monotonic() + within, expected * _MARK.size
        while len(self._unread) < size:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._marks_read], [], [], left)[0]:
                break
            self._unread += os.read(self._marks_read, 65536)
        data = bytes(self._unread[:size])
        del self._unread[:size]
        return [mark for (mark,) in _MARK.iter_unpack(data)]

    def _await_ready(self, count: int) -> None:
        until = time.monotonic() + START_TIMEOUT
        while count:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._ready_read], [], [], left)[0]:
                raise RuntimeError(f"{count} members did not start; see {self._folder / 'log'}")
            count -= len(os.read(self._ready_read, count))

    # --- in a member ---

    def count_claim(self, number: int) -> None:
        place = number * _COUNTER.size
        (count,) = _COUNTER.unpack_from(self._claims, place)
        _COUNTER.pack_into(self._claims, place, count + 1)

    def mark(self, seconds: float) -> None:
        os.write(self._marks_write, _MARK.pack(seconds))

    def _run_members(self, numbers: range) -> NoReturn:
        host = self._folder / f"host{numbers[0] // PER_HOST}"
        host.mkdir(mode=0o700, exist_ok=True)
        os.environ["XDG_RUNTIME_DIR"] = str(host)
        logging.basicConfig(filename=self._folder / "log", level=logging.WARNING)
        has_started = [self._start(self, number) for number in numbers]
        while not all(check() for check in has_started):
            time.sleep(0.05)
        os.write(self._ready_write, b"+" * len(numbers))
        while True:
            signal.pause()


def fork(run: Callable[[], object]) -> int:
    """Run something in a child process that ends without any cleanup of this one's objects."""
    pid = os.fork()
    if pid:
        return pid
    try:
        run()
    except BaseException:
        logger.exception("a process of the benchmark ended")
        os._exit(1)
    os._exit(0)


def run_in_fork(run: Callable[[], object]) -> None:
    """Run something in a child process, and wait for its end."""
    _, status = os.waitpid(fork(run), 0)
    if status:
        raise RuntimeError(f"a process of the benchmark ended with status {status}")


# --- members ---


class MarkingLoop(MainLoop[float, None]):
    """Reports how long ago a message was sent."""

    def __init__(self, fleet: Fleet, **options: Any) -> None:
        super().__init__(**options)
        self._fleet = fleet

    def handle(self, request: float, context: MainLoopContext) -> None:
        del context
        self._fleet.mark(time.monotonic() - request)


def mailbox_member(url: str, *, name: str = MAILBOX, concurrency: int = 1) -> StartMember:
    """A worker with one loop over a mailbox."""

    def start(fleet: Fleet, number: int) -> Callable[[], bool]:
        mailbox = open_mailbox(url, name, float)
        _count_claims(mailbox, fleet, number)
        loop = MarkingLoop(fleet, requests=mailbox, concurrency=concurrency, name=f"w{number}")
        return run_in_thread(loop)

    return start


def many_mailboxes_member(url: str, count: int) -> StartMember:
    """A worker process with a loop over each of so many mailboxes."""

    def start(fleet: Fleet, number: int) -> Callable[[], bool]:
        starts = [mailbox_member(url, name=f"{MAILBOX}-{each}") for each in range(count)]
        checks = [each(fleet, number) for each in starts]
        return lambda: all(check() for check in checks)

    return start


def run_in_thread(loop: Any) -> Callable[[], bool]:
    threading.Thread(target=loop.run, daemon=True).start()
    return lambda: bool(loop.has_reached_store)


def _count_claims(mailbox: Mailbox[Any], fleet: Fleet, number: int) -> None:
    backend: Any = mailbox.backend
    exchange, lock = backend.exchange, threading.Lock()

    def counting(settlements: Any, *, limit: int, **rest: Any) -> Any:
        if limit and not settlements:
            with lock:
                fleet.count_claim(number)
        return exchange(settlements, limit=limit, **rest)

    backend.exchange = counting


def send_steadily(url: str, rate: float, count: int, *, name: str = MAILBOX) -> None:
    """Send so many messages a second, one by one, from a process of its own."""

    def send() -> None:
        mailbox, chance = open_mailbox(url, name, float), random.Random(1)  # noqa: S311 - pauses
        mailbox.approximate_count()  # connects
        for _ in range(count):
            time.sleep(chance.uniform(0.5, 1.5) / rate)
            mailbox.send(time.monotonic())
        with suppress(AttributeError):
            time.sleep(0.2)  # what is deferred leaves

    run_in_fork(send)


def migrate(url: str) -> None:
    """Create the tables, from a process of its own."""

    def make() -> None:
        with open_store(url, auto_migrate=True) as store:
            store.write(lambda _: None)
        open_mailbox(url, MAILBOX).approximate_count()

    run_in_fork(make)
