"""Schema migrations: numbered files, each applied once.

The first process that opens a SQLite file brings it up to date. On PostgreSQL `longwatch db
migrate` does it, or a store that was opened with `auto_migrate=True`.

`schema/NNNN_name.DIALECT.sql` migrates from version NNNN - 1 to NNNN. A migration and the record of
it are one transaction. So a process that dies in it leaves the version before, and processes that
start together apply each migration once. The first version is 4. Older stores have other names for
tables and columns, and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from longwatch.errors import SchemaTooNewError, SchemaTooOldError
from longwatch.store.database import Database, Transaction

TOO_OLD = (
    "which cannot be migrated; empty its mailboxes with the old version, then name a new file or "
    "an empty database"
)
"""The cure for a store that no migration starts from."""
_FILE = re.compile(r"(\d{4})_(\w+)\.(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration of the schema."""

    version: int
    name: str
    statements: tuple[str, ...]


def load_migrations(dialect: str) -> list[Migration]:
    """Return every known migration, in order."""
    found = []
    for file in files("longwatch.store.schema").iterdir():
        match = _FILE.fullmatch(file.name)
        if match and match[3] == dialect:
            found.append(
                Migration(int(match[1]), match[2], _statements(file.read_text(encoding="utf-8")))
            )
    return sorted(found, key=lambda migration: migration.version)


def current_version(transaction: Transaction) -> int:
    """Return the version of the store's schema, 0 if it has none. Creates the table of versions."""
    transaction.execute(
        "CREATE TABLE IF NOT EXISTS longwatch_schema (version INTEGER PRIMARY KEY, name TEXT "
        "NOT NULL, applied_at TEXT NOT NULL)"
    )
    [(version,)] = transaction.rows("SELECT coalesce(max(version), 0) FROM longwatch_schema")
    return int(version)


def pending_migrations(
    transaction: Transaction, known: list[Migration], *, store: str = "the store"
) -> list[Migration]:
    """Return the migrations that are still to be applied. Raises for a store of an unknown
    version.
    """
    version = current_version(transaction)
    require_known_version(version, known, store=store)
    return [migration for migration in known if migration.version > version]


def require_known_version(
    version: int, known: Sequence[Migration], *, store: str = "the store"
) -> None:
    """Raise SchemaTooNewError or SchemaTooOldError for a version that no migration starts from."""
    oldest, newest = (known[0].version, known[-1].version) if known else (0, 0)
    if 0 < version < oldest:
        raise SchemaTooOldError(
            f"{store} was made by an older Longwatch (schema {version}), {TOO_OLD}"
        )
    if version > newest:
        made = f"was made by a newer Longwatch (schema {version}, this one knows {newest})"
        raise SchemaTooNewError(f"{store} {made}; upgrade Longwatch")


def migrate(
    transaction: Transaction, known: list[Migration], *, store: str = "the store"
) -> list[Migration]:
    """Apply the pending migrations in this transaction, and return them."""
    pending = pending_migrations(transaction, known, store=store)
    for step in pending:
        for statement in step.statements:
            transaction.execute(statement)
        transaction.execute(
            "INSERT INTO longwatch_schema (version, name, applied_at) VALUES (:version, "
            ":name, CURRENT_TIMESTAMP)",
            {"version": step.version, "name": step.name},
        )
    return pending


def _statements(text: str) -> tuple[str, ...]:
    bare = "\n".join(line.split("--", 1)[0].rstrip() for line in text.splitlines())
    return tuple(statement.strip() for statement in bare.split(";\n") if statement.strip(" \n;"))


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The schema version of a store (0: no schema), and the migrations that this code knows."""

    version: int
    steps: tuple[Migration, ...]

    @property
    def latest(self) -> int:
        """The version that this code works with."""
        return self.steps[-1].version

    @property
    def is_too_old(self) -> bool:
        """Whether no migration starts from the version of the store."""
        return 0 < self.version < self.steps[0].version

    @property
    def pending(self) -> list[str]:
        """The names of the migrations that are still to be applied."""
        return [] if self.is_too_old else self.steps_between(self.version, self.latest)

    def steps_between(self, start: int, end: int) -> list[str]:
        """Return the names of the migrations from one version to another."""
        return [
            f"{step.version:04}_{step.name}" for step in self.steps if start < step.version <= end
        ]


def schema_status(database: Database) -> SchemaStatus | None:
    """Return the status of a store's schema, or None if there is no store. Only reads."""
    version = database.schema_version()
    return (
        None if version is None else SchemaStatus(version, tuple(load_migrations(database.dialect)))
    )
