"""The schema and its versions: numbered files, each applied once, whoever comes first.

`schema/NNNN_name.DIALECT.sql` leads from version NNNN - 1 to NNNN. A migration runs in one
transaction with the note that it was made, so a process that dies in it leaves the version before,
and several that start at once make each step once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from longwatch.errors import SchemaTooNewError
from longwatch.store.database import Transaction

_FILE = re.compile(r"(\d{4})_(\w+)\.(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    statements: tuple[str, ...]


def migrations(dialect: str) -> list[Migration]:
    """Every step there is, in order."""
    found = []
    for file in files("longwatch.store.schema").iterdir():
        match = _FILE.fullmatch(file.name)
        if match and match[3] == dialect:
            found.append(
                Migration(int(match[1]), match[2], _statements(file.read_text(encoding="utf-8")))
            )
    return sorted(found, key=lambda migration: migration.version)


def present_version(transaction: Transaction) -> int:
    """The version the store is at; 0 for one without a schema."""
    transaction.execute(
        "CREATE TABLE IF NOT EXISTS longwatch_schema (version INTEGER PRIMARY KEY, name TEXT "
        "NOT NULL, applied_at TEXT NOT NULL)"
    )
    [(version,)] = transaction.rows("SELECT coalesce(max(version), 0) FROM longwatch_schema")
    return int(version)


def pending(transaction: Transaction, known: list[Migration]) -> list[Migration]:
    """The steps that are still to be made; SchemaTooNewError when the store is ahead of this
    code.
    """
    at = present_version(transaction)
    require_known(at, known)
    return [migration for migration in known if migration.version > at]


def require_known(version: int, known: list[Migration], *, store: str = "the store") -> None:
    """SchemaTooNewError for a version that no step here leads to."""
    newest = known[-1].version if known else 0
    if version > newest:
        made = f"was made by a newer Longwatch (schema {version}, this one knows {newest})"
        raise SchemaTooNewError(f"{store} {made}; upgrade Longwatch")


def migrate(transaction: Transaction, known: list[Migration]) -> list[Migration]:
    """Make the steps that are pending, within this transaction; returns them."""
    steps = pending(transaction, known)
    for step in steps:
        for statement in step.statements:
            transaction.execute(statement)
        transaction.execute(
            "INSERT INTO longwatch_schema (version, name, applied_at) VALUES (:version, "
            ":name, CURRENT_TIMESTAMP)",
            {"version": step.version, "name": step.name},
        )
    return steps


def _statements(text: str) -> tuple[str, ...]:
    bare = "\n".join(line.split("--", 1)[0].rstrip() for line in text.splitlines())
    return tuple(statement.strip() for statement in bare.split(";\n") if statement.strip(" \n;"))
