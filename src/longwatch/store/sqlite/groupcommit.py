"""Group commit: one thread writes for all callers, and all waiting jobs share one transaction and
one fsync.

Each job runs in its own savepoint, so a job that fails does not undo the others. If the transaction
itself fails (disk full, I/O error), it is rolled back and every job in it gets the error.

While no other caller writes, a thread without a time limit writes its job itself, under the same
write lock.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from longwatch.errors import StoreBusyError, StoreClosedError, UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.store.database import CALL_TIMEOUT
from longwatch.store.sqlite.connection import SqliteTransaction
from longwatch.store.sqlite.errors import store_error_spec

T = TypeVar("T")
Job = tuple[Callable[[Any], Any], "Future[Any]"]
MAX_BATCH_JOBS = 512
"""Jobs in one transaction: enough to share an fsync, few enough that no caller waits long."""


_INLINE_AFTER = 8
"""Commits of a single job in a row after which a calling thread may write its own job."""


class GroupCommit:
    """A queue of jobs and the thread that commits them. Thread-safe.

    `commit(jobs)` runs a batch and resolves every job's future, also after an error. The thread
    starts with the first job, and an error of `commit` does not end it. `on_close` is called once,
    after the last job.
    """

    def __init__(
        self,
        commit: Callable[[list[Job]], None],
        *,
        name: str,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._commit = commit
        self._name = name
        self._on_close = on_close
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: BackgroundThread | None = None
        self._write_lock = threading.Lock()
        self._writing_thread = 0
        self._solo_commits = 0

    @property
    def is_writing(self) -> bool:
        """Whether the calling thread is running a job."""
        return self._writing_thread == threading.get_ident()

    def submit(self, work: Callable[[Any], T], *, inline: bool = False) -> Future[T]:
        """Queue a job. Its future is resolved when the job is on disk, or has failed. `inline`: the
        calling thread may write it if no other thread is writing.
        """
        future: Future[T] = Future()
        with self._changed:
            if self.is_writing:
                raise UsageError(
                    "a write inside a write would wait for itself; pass the transaction on with tx="
                )
            if self._closed:
                raise StoreClosedError("the store was closed; open it again")
            if self._thread is None:
                self._thread = self._start_thread()
            if not (
                inline
                and self._solo_commits >= _INLINE_AFTER
                and not self._jobs
                and self._write_lock.acquire(blocking=False)
            ):
                self._jobs.append((work, future))
                self._changed.notify()
                return future
        self._write_inline((work, future))
        return future

    def _write_inline(self, job: Job) -> None:
        try:
            if job[1].set_running_or_notify_cancel():
                self._write([job])
        finally:
            self._write_lock.release()
            if self._jobs:  # other jobs came meanwhile: share commits again
                self._solo_commits = 0

    def _write(self, jobs: list[Job]) -> None:
        """Run a batch under the write lock. Raises nothing, because the thread serves all callers.
        The futures and `threading.excepthook` get the error.
        """
        self._writing_thread = threading.get_ident()
        try:
            self._commit(jobs)
        except BaseException as error:  # noqa: BLE001 - the callers get it
            for _, future in jobs:
                if not future.done():
                    future.set_exception(error)
            threading.excepthook(
                threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            )
        finally:
            self._writing_thread = 0

    def close(self, *, timeout: float = CALL_TIMEOUT) -> None:
        """Refuse new jobs, finish the queued ones and end the thread. Returns after the timeout
        even if a job still runs.
        """
        with self._changed:
            first, self._closed = not self._closed, True
            self._changed.notify()
            thread = self._thread
        if thread is None:
            if first:
                self._on_close()
        elif not self.is_writing:
            thread.done.block(timeout)

    def _start_thread(self) -> BackgroundThread:
        thread = BackgroundThread(self._run, name=self._name, report_errors=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreBusyError(
                f"the writer thread cannot start ({error}); nothing was written, try again"
            ) from error
        return thread

    def _run(self) -> None:
        try:
            while self._run_batch():
                pass
        finally:
            with self._write_lock:
                self._on_close()

    def _run_batch(self) -> bool:
        """Run one batch. Returns False when there will be no more. A separate function, so that no
        job is referenced while the thread waits.
        """
        jobs = self._next_batch()
        if jobs:
            with self._write_lock:
                self._write(jobs)
        self._solo_commits = 0 if len(jobs) > 1 else self._solo_commits + 1
        if len(jobs) > 1:
            # let the callers that just got their results queue their next jobs: it nearly halves
            # the commits of eight busy threads
            time.sleep(0)
        return bool(jobs)

    def _next_batch(self) -> list[Job]:
        """Wait for jobs and return them, up to the maximum. Empty when closed and done. Leaves out
        jobs whose caller has given up.
        """
        with self._changed:
            while True:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if not self._jobs:
                    return []
                taken = [self._jobs.popleft() for _ in range(min(len(self._jobs), MAX_BATCH_JOBS))]
                if wanted := [job for job in taken if job[1].set_running_or_notify_cancel()]:
                    return wanted


BeginTransaction = Callable[[], AbstractContextManager[sqlite3.Connection]]
WrapTransaction = Callable[[sqlite3.Connection], SqliteTransaction]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result or error of a job, and its notifications and callbacks for after the commit."""

    result: Any = None
    error: BaseException | None = None
    channels: Collection[str] = ()
    callbacks: Sequence[Callable[[], None]] = ()

    def resolve(self, future: Future[Any]) -> None:
        if self.error is None:
            future.set_result(self.result)
        else:
            future.set_exception(self.error)


class _TransactionEndedError(Exception):
    """A job ended the transaction that it shared with other jobs, which were rolled back with
    it.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def run_batch(
    jobs: Sequence[Job], begin: BeginTransaction, wrap: WrapTransaction
) -> list[JobResult]:
    """Run and commit the jobs. Returns for each its result or its error. Nothing of a job with an
    error was written.
    """
    try:
        return _commit_batch(jobs, begin, wrap)
    except _TransactionEndedError as ended:
        others = [job for index, job in enumerate(jobs) if index != ended.index]
        results = run_batch(others, begin, wrap) if others else []
        results.insert(ended.index, JobResult(error=ended.__cause__))
        return results
    except BaseException as error:  # noqa: BLE001 - nothing was written, and every caller gets the error
        return [JobResult(error=error)] * len(jobs)


def _commit_batch(
    jobs: Sequence[Job], begin: BeginTransaction, wrap: WrapTransaction
) -> list[JobResult]:
    results: list[JobResult] = []
    with begin() as raw:
        for index, (work, _) in enumerate(jobs):
            results.append(
                _run_in_savepoint(raw, work, wrap, index=None if len(jobs) == 1 else index)
            )
    return results


def _run_in_savepoint(
    raw: sqlite3.Connection, work: Callable[[Any], Any], wrap: WrapTransaction, *, index: int | None
) -> JobResult:
    """Run one job, in a savepoint unless it is the only one (`index` None). Raises errors of the
    store; errors of the job become its result.
    """
    if index is None:
        return _run_job(wrap(raw), work)
    raw.execute("SAVEPOINT longwatch_job")
    try:
        result = _run_job(wrap(raw), work)
    except BaseException as error:
        if store_error_spec(error):
            raise
        if not raw.in_transaction:
            raise _TransactionEndedError(index) from error
        raw.execute("ROLLBACK TO longwatch_job")
        result = JobResult(error=error)
    raw.execute("RELEASE longwatch_job")
    return result


def _run_job(transaction: SqliteTransaction, work: Callable[[Any], Any]) -> JobResult:
    try:
        result = work(transaction)
        if not transaction.is_open:
            raise UsageError(
                "the work ended its own transaction; return to commit, raise to roll back, and "
                "run no COMMIT or ROLLBACK"
            )
        return JobResult(
            result=result, channels=transaction.channels, callbacks=transaction.callbacks
        )
    finally:
        transaction.end()
