"""Translates SQLite's errors into store errors that name the cure."""

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
        "is locked by another program; nothing was written, end that program, or try again",
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
        "is damaged; restore it from a backup, or move it aside to start with a new file",
    ),
    sqlite3.SQLITE_NOTADB: (
        StoreCorruptError,
        "is not a SQLite database; name another file, or move this one aside",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreUnreachableError,
        "cannot be opened; check that its directory exists and is writable",
    ),
    sqlite3.SQLITE_IOERR: (
        StoreUnreachableError,
        (
            "could not be read or written (I/O error), and the result of the last write is "
            "unknown; check the disk"
        ),
    ),
    sqlite3.SQLITE_PERM: (
        StoreReadOnlyError,
        "denies this user access; check its permissions",
    ),
}


def store_error_spec(error: BaseException) -> StoreErrorSpec | None:
    """Return the error type and text for an error that concerns the whole store. None for an error
    in the SQL, or an error that is not SQLite's.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    return _SPECS.get(code) or _SPECS.get(code & _PRIMARY)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn an error of SQLite into a store error that names the cure. An error in the SQL itself is
    raised unchanged.
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
    """Return whether missing permission is why a file cannot be opened. SQLite gives no reason when
    it cannot create its other files.
    """
    could_not_open = error.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_CANTOPEN
    return (
        could_not_open
        and path.exists()
        and not (is_writable(path) and os.access(path.parent, os.W_OK))
    )
