"""What SQLite's errors mean to somebody who has to do something about them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longwatch.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from longwatch.store.sqlite.file import READ_ONLY_TEXT, is_writable

StoreErrorSpec = tuple[type[StoreError], str]
_PRIMARY = 0xFF
_FULL: StoreErrorSpec = (
    StoreFullError,
    "cannot grow: the disk is full; nothing was written, free some space",
)
_READ_ONLY: StoreErrorSpec = (StoreReadOnlyError, READ_ONLY_TEXT)
_SPECS: dict[int, StoreErrorSpec] = {
    sqlite3.SQLITE_BUSY: (
        StoreBusyError,
        "is locked by another program; nothing was written, end that one, or try again",
    ),
    sqlite3.SQLITE_LOCKED: (
        StoreBusyError,
        "is locked by another connection; nothing was written, try again",
    ),
    sqlite3.SQLITE_PROTOCOL: (
        StoreBusyError,
        "is being recovered by another program; nothing was written, try again",
    ),
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_CORRUPT: (
        StoreCorruptError,
        "is damaged; restore it from a backup, or move it aside to start afresh",
    ),
    sqlite3.SQLITE_NOTADB: (
        StoreCorruptError,
        "is not a SQLite database; name another file, or move this one aside",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreUnreachableError,
        "cannot be opened; check that its directory exists and may be written to",
    ),
    sqlite3.SQLITE_IOERR: (
        StoreUnreachableError,
        (
            "could not be read or written (I/O error), whether the last write is there is "
            "unknown; check the disk"
        ),
    ),
    sqlite3.SQLITE_PERM: (
        StoreReadOnlyError,
        "may not be used by this user; check its permissions",
    ),
}


def store_error_spec(error: BaseException) -> StoreErrorSpec | None:
    """What an error says about the store as a whole; None for one that is about the SQL itself,
    or not the engine's.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    return _SPECS.get(code) or _SPECS.get(code & _PRIMARY)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn an error of the engine into one of ours that says the cure; an error in the SQL
    itself stays what it is.
    """
    try:
        yield
    except sqlite3.Error as error:
        spec = store_error_spec(error)
        if spec is None:
            raise
        error_type, text = _READ_ONLY if _may_not_write(path, error) else spec
        raise error_type(f"{path} {text}") from error


def _may_not_write(path: Path, error: sqlite3.Error) -> bool:
    """Whether that is why a file cannot be opened: of the files beside it that it cannot make,
    SQLite says no more.
    """
    could_not_open = error.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_CANTOPEN
    return (
        could_not_open
        and path.exists()
        and not (is_writable(path) and os.access(path.parent, os.W_OK))
    )
