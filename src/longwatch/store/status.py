"""At which version of the schema a store is, found out without opening it for work: that would make or migrate it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from longwatch.errors import UnsupportedError
from longwatch.store.database import Database
from longwatch.store.migrations import Migration, migrations
from longwatch.store.sqlite import SqliteDatabase
from longwatch.store.sqlite_errors import translated
from longwatch.store.sqlite_opened import schema_version


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The version a store is at, 0 if it has no schema, and the steps this code knows."""

    version: int
    steps: tuple[Migration, ...]

    @property
    def known(self) -> int:
        """The version this code works with."""
        return self.steps[-1].version

    @property
    def pending(self) -> list[str]:
        """The steps that are still to be made."""
        return self.leading(self.version, self.known)

    def leading(self, start: int, end: int) -> list[str]:
        """The names of the steps that lead from one version to another."""
        return [f"{step.version:04}_{step.name}" for step in self.steps if start < step.version <= end]


def schema_status(database: Database) -> SchemaStatus | None:
    """How the schema of a store stands; None if there is no store. Makes nothing and changes nothing."""
    if not isinstance(database, SqliteDatabase):
        raise UnsupportedError(f"the schema of {database.url} cannot be looked at; only that of SQLite can")
    if not database.path.exists():
        return None
    return SchemaStatus(_sqlite_version(database.path), tuple(migrations(database.dialect)))


def _sqlite_version(path: Path) -> int:
    with translated(path), closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True)) as connection:
        return schema_version(connection)
