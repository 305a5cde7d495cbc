"""Group commit: one thread writes for everybody, and everything that waits shares one transaction
and one fsync.

Each job runs in a savepoint of its own, so one that fails takes nobody with it. If the transaction
itself fails (disk full, I/O error), nothing happened and every job in it is told.

Where nobody shares, a thread that may wait as long as it takes writes its job itself: there is one
pen, and who has it writes.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from longwatch.errors import StoreBusyError, StoreClosedError, UsageError
from longwatch.host.errand import Errand
from longwatch.store.database import CALL_TIMEOUT

T = TypeVar("T")
Job = tuple[Callable[[Any], Any], "Future[Any]"]
MOST_JOBS = 512
"""Jobs in one transaction: enough to share an fsync, few enough that nobody waits long."""


_QUIET = 8
"""Commits in a row that nobody wanted to share, after which a thread may write for itself."""


class GroupCommit:
    """A queue of jobs and the thread that commits them.

    `commit(jobs)` runs a batch: it settles every job's future, whatever happens. The thread starts
    with the first job, and nothing that `commit` raises ends it. `at_end` is called once, after the
    last job.
    """

    def __init__(
        self,
        commit: Callable[[list[Job]], None],
        *,
        name: str,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._commit = commit
        self._name = name
        self._at_end = at_end
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._errand: Errand | None = None
        self._pen = threading.Lock()
        self._writer = 0
        self._quiet = 0

    def submit(self, work: Callable[[Any], T], *, here: bool = False) -> Future[T]:
        """Queue a job; its future is settled when it is on disk, or is not. `here`: written by
        this thread, if nobody else does.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._writer == threading.get_ident():
                raise UsageError(
                    "a write inside a write would wait for itself; pass the transaction on with tx="
                )
            if self._closed:
                raise StoreClosedError("the store was closed; open it again")
            if self._errand is None:
                self._errand = self._started()
            if not (
                here
                and self._quiet >= _QUIET
                and not self._jobs
                and self._pen.acquire(blocking=False)
            ):
                self._jobs.append((work, future))
                self._changed.notify()
                return future
        self._write_here((work, future))
        return future

    def _write_here(self, job: Job) -> None:
        try:
            if job[1].set_running_or_notify_cancel():
                self._write([job])
        finally:
            self._pen.release()
            if self._jobs:  # somebody came meanwhile: it is better to share commits again
                self._quiet = 0

    def _write(self, jobs: list[Job]) -> None:
        """With the pen in hand. Nothing comes out of it: the thread may be everybody's, and goes
        on; the error is shown.
        """
        self._writer = threading.get_ident()
        try:
            self._commit(jobs)
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            for _, future in jobs:
                if not future.done():
                    future.set_exception(error)
            threading.excepthook(
                threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            )
        finally:
            self._writer = 0

    def close(self, *, patience: float = CALL_TIMEOUT) -> None:
        """Take no more jobs, finish those that wait, end the thread; one that does not end in
        time is left to it.
        """
        with self._changed:
            first, self._closed = not self._closed, True
            self._changed.notify()
            errand = self._errand
        if errand is None:
            if first:
                self._at_end()
        elif self._writer != threading.get_ident():
            errand.over.block(patience)

    def _started(self) -> Errand:
        errand = Errand(self._work, name=self._name, loud=True)
        try:
            errand.start()
        except RuntimeError as error:
            raise StoreBusyError(
                f"no thread to write with ({error}); nothing was written, try again"
            ) from error
        return errand

    def _work(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            with self._pen:
                self._at_end()

    def _turn(self) -> bool:
        """One batch; False when there will be no more. Keeps nothing of it while it waits for
        the next.
        """
        jobs = self._take()
        if jobs:
            with self._pen:
                self._write(jobs)
        self._quiet = 0 if len(jobs) > 1 else self._quiet + 1
        if len(jobs) > 1:
            # let those who were just told queue their next: it nearly halves the commits of eight
            # busy threads
            time.sleep(0)
        return bool(jobs)

    def _take(self) -> list[Job]:
        """Everything that waits, up to the most; empty when closed and done. A job whose caller
        has given up is left out.
        """
        with self._changed:
            while True:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if not self._jobs:
                    return []
                taken = [self._jobs.popleft() for _ in range(min(len(self._jobs), MOST_JOBS))]
                if wanted := [job for job in taken if job[1].set_running_or_notify_cancel()]:
                    return wanted
