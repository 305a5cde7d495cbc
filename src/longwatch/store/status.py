"""At which version of the schema a store is, found out without opening it for work: that would
make or migrate it.
"""

from __future__ import annotations

from dataclasses import dataclass

from longwatch.store.database import Database
from longwatch.store.migrations import Migration, migrations


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
        return [
            f"{step.version:04}_{step.name}" for step in self.steps if start < step.version <= end
        ]


def schema_status(database: Database) -> SchemaStatus | None:
    """How the schema of a store stands; None if there is no store. Makes nothing and changes
    nothing.
    """
    version = database.schema_version()
    return None if version is None else SchemaStatus(version, tuple(migrations(database.dialect)))
