"""One batch of jobs in one SQLite transaction: each in a savepoint of its own, so that one that
fails takes nobody with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from longwatch.errors import UsageError
from longwatch.store.groupcommit import Job
from longwatch.store.sqlite_connection import SqliteTransaction
from longwatch.store.sqlite_errors import meaning

Begin = Callable[[], AbstractContextManager[sqlite3.Connection]]
Open = Callable[[sqlite3.Connection], SqliteTransaction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job went, and what is to be done about it once it is committed."""

    result: Any = None
    error: BaseException | None = None
    channels: Collection[str] = ()
    callbacks: Sequence[Callable[[], None]] = ()

    def tell(self, future: Future[Any]) -> None:
        if self.error is None:
            future.set_result(self.result)
        else:
            future.set_exception(self.error)


class _EndedError(Exception):
    """A job ended the transaction that it shared with others, which were undone with it."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def run_batch(jobs: Sequence[Job], begin: Begin, opened: Open) -> list[Outcome]:
    """Run and commit them; for each its result or what went wrong. Whatever that was, of the job
    itself nothing happened then.
    """
    try:
        return _committed(jobs, begin, opened)
    except _EndedError as ended:
        others = [job for index, job in enumerate(jobs) if index != ended.index]
        outcomes = run_batch(others, begin, opened) if others else []
        outcomes.insert(ended.index, Outcome(error=ended.__cause__))
        return outcomes
    except BaseException as error:  # noqa: BLE001 - nothing happened, and everybody is told
        return [Outcome(error=error)] * len(jobs)


def _committed(jobs: Sequence[Job], begin: Begin, opened: Open) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with begin() as raw:
        for index, (work, _) in enumerate(jobs):
            outcomes.append(_attempt(raw, work, opened, index=None if len(jobs) == 1 else index))
    return outcomes


def _attempt(
    raw: sqlite3.Connection, work: Callable[[Any], Any], opened: Open, *, index: int | None
) -> Outcome:
    """One job, in a savepoint unless it is alone (without an index); a failure that is the
    store's, not the job's, comes out.
    """
    if index is None:
        return _run(opened(raw), work)
    raw.execute("SAVEPOINT longwatch_job")
    try:
        outcome = _run(opened(raw), work)
    except BaseException as error:
        if meaning(error):
            raise
        if not raw.in_transaction:
            raise _EndedError(index) from error
        raw.execute("ROLLBACK TO longwatch_job")
        outcome = Outcome(error=error)
    raw.execute("RELEASE longwatch_job")
    return outcome


def _run(transaction: SqliteTransaction, work: Callable[[Any], Any]) -> Outcome:
    try:
        result = work(transaction)
        if not transaction.is_open:
            raise UsageError(
                "the work ended its own transaction; leave COMMIT and ROLLBACK to the store, "
                "raise to roll back"
            )
        return Outcome(
            result=result, channels=transaction.channels, callbacks=transaction.callbacks
        )
    finally:
        transaction.end()
