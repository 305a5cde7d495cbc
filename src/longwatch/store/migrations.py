"""Schema migrations: numbered files, each applied once.

The first process that opens a SQLite file brings it up to date. On PostgreSQL `longwatch db
migrate` does it, or a store that was opened with `auto_migrate=True`.

`schema/NNNN_name.DIALECT.sql` migrates from version NNNN - 1 to NNNN. A migration and the record of
it are one transaction. So a process that dies in it leaves the version before, and processes that
start together apply each migration once. The first version is 4. Older stores have other names for
tables and columns, and are refused.

A store has a `version` and a `min_reader`, the lowest version of a process that may use it. A
process opens a store of a newer version as long as its own version is not below `min_reader`. So
processes of two releases work on one store during a rolling upgrade. Each migration says in its
first line how it changes `min_reader`:

    -- min_reader: unchanged   it expands: processes of the version before go on working
    -- min_reader: 12          it contracts: processes below version 12 are refused

Expand first, contract a release later:

1. A release *expands*: it adds tables, indexes, and columns that are nullable or have a default. It
   writes rows that processes down to `min_reader` can read, claim and settle: no new value in an
   old column, no statement that fails without the new one. Its code no longer needs what is to go.
2. A later release *contracts*: it removes what no process from its `min_reader` on uses. This
   number is the version of the first release that did without, never that of the migration itself.

The rule begins with version 10, which added `min_reader`. Processes below 10 do not know it and
refuse every newer store; stores below 10 have their version as `min_reader`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from longwatch.errors import SchemaTooNewError, SchemaTooOldError
from longwatch.store.database import Database, Row, StoredSchema, Transaction

TOO_OLD = (
    "which cannot be migrated; empty its mailboxes with the old version, then name a new file or "
    "an empty database"
)
"""The cure for a store that no migration starts from."""
FIRST_WITH_MIN_READER = 10
"""The version from which on stores have a `min_reader`, and processes heed it."""
_FILE = re.compile(r"(\d{4})_(\w+)\.(\w+)\.sql")
_MIN_READER = re.compile(r"-- min_reader: (unchanged|\d+)\n")


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration of the schema. It contracts if it raises `min_reader`; None: unchanged."""

    version: int
    name: str
    statements: tuple[str, ...]
    min_reader: int | None = None


def load_migrations(dialect: str) -> list[Migration]:
    """Return every known migration, in order."""
    found = []
    for file in files("longwatch.store.schema").iterdir():
        match = _FILE.fullmatch(file.name)
        if match and match[3] == dialect:
            found.append(parse_migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.version)


def parse_migration(version: int, name: str, text: str) -> Migration:
    """Read a migration from the text of its file. Raises ValueError if its first line does not say
    how it changes `min_reader`.
    """
    declared = _MIN_READER.match(text)
    if declared is None and version >= FIRST_WITH_MIN_READER:
        raise ValueError(f"the first line of {version:04}_{name} must declare min_reader")
    is_raised = declared is not None and declared[1] != "unchanged"
    min_reader = int(declared[1]) if declared and is_raised else None
    return Migration(version, name, _statements(text), min_reader)


def read_schema(rows: Callable[[str], Sequence[Row]]) -> StoredSchema:
    """Read the schema from the table of versions, which exists. `rows` runs a query."""
    [(version,)] = rows("SELECT coalesce(max(version), 0) FROM longwatch_schema")
    if version < FIRST_WITH_MIN_READER:
        return StoredSchema(int(version), int(version))
    [(least,)] = rows("SELECT max(coalesce(min_reader, version)) FROM longwatch_schema")
    return StoredSchema(int(version), int(least))


def current_schema(transaction: Transaction) -> StoredSchema:
    """Return the store's schema; its version is 0 if it has none. Creates the table of versions."""
    transaction.execute(
        "CREATE TABLE IF NOT EXISTS longwatch_schema (version INTEGER PRIMARY KEY, name TEXT "
        "NOT NULL, applied_at TEXT NOT NULL)"
    )
    return read_schema(transaction.rows)


def pending_migrations(
    transaction: Transaction, known: list[Migration], *, store: str = "the store"
) -> list[Migration]:
    """Return the migrations that are still to be applied. Raises for a store that this version
    cannot use.
    """
    found = current_schema(transaction)
    require_usable_schema(found, known, store=store)
    return [migration for migration in known if migration.version > found.version]


def is_up_to_date(found: StoredSchema, known: Sequence[Migration]) -> bool:
    """Whether a process can use the store as it is. A newer process may have expanded it."""
    newest = known[-1].version
    return found.min_reader <= newest <= found.version


def require_usable_schema(
    found: StoredSchema, known: Sequence[Migration], *, store: str = "the store"
) -> None:
    """Raise SchemaTooNewError for a schema whose `min_reader` is above the newest known version,
    and SchemaTooOldError for a version that no migration starts from.
    """
    oldest, newest = (known[0].version, known[-1].version) if known else (0, 0)
    if 0 < found.version < oldest:
        raise SchemaTooOldError(
            f"{store} was made by an older Longwatch (schema {found.version}), {TOO_OLD}"
        )
    if found.min_reader > newest:
        made = f"was made by a newer Longwatch (schema {found.version}, for versions from "
        raise SchemaTooNewError(
            f"{store} {made}{found.min_reader} on; this one knows {newest}); upgrade Longwatch"
        )


def migrate(
    transaction: Transaction, known: list[Migration], *, store: str = "the store"
) -> list[Migration]:
    """Apply the pending migrations in this transaction, and return them."""
    pending = pending_migrations(transaction, known, store=store)
    for step in pending:
        for statement in step.statements:
            transaction.execute(statement)
        _record(transaction, step)
    return pending


def _record(transaction: Transaction, step: Migration) -> None:
    """Note a migration that was applied. Tables before version 10 have no `min_reader`."""
    before = read_schema(transaction.rows).min_reader
    transaction.execute(
        "INSERT INTO longwatch_schema (version, name, applied_at) VALUES (:version, "
        ":name, CURRENT_TIMESTAMP)",
        {"version": step.version, "name": step.name},
    )
    if step.version >= FIRST_WITH_MIN_READER:
        transaction.execute(
            "UPDATE longwatch_schema SET min_reader = :min_reader WHERE version = :version",
            {"version": step.version, "min_reader": max(before, step.min_reader or 0)},
        )


def _statements(text: str) -> tuple[str, ...]:
    bare = "\n".join(line.split("--", 1)[0].rstrip() for line in text.splitlines())
    return tuple(statement.strip() for statement in bare.split(";\n") if statement.strip(" \n;"))


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The schema of a store (version 0: none), and the migrations that this code knows."""

    stored: StoredSchema
    steps: tuple[Migration, ...]

    @property
    def version(self) -> int:
        return self.stored.version

    @property
    def min_reader(self) -> int:
        """The lowest version of a process that may use the store."""
        return self.stored.min_reader

    @property
    def min_reader_after(self) -> int:
        """The same, once the pending migrations are applied."""
        pending = (step.min_reader or 0 for step in self.steps if step.version > self.version)
        return max(self.min_reader, *pending, 0)

    @property
    def latest(self) -> int:
        """The version that this code works with."""
        return self.steps[-1].version

    @property
    def is_too_new(self) -> bool:
        """Whether only newer versions may use the store."""
        return self.min_reader > self.latest

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
    stored = database.stored_schema()
    if stored is None:
        return None
    return SchemaStatus(stored, tuple(load_migrations(database.dialect)))
