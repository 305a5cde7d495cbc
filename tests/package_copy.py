"""Copies of the package that stand for other releases of it in one test."""

from __future__ import annotations

import shutil
from pathlib import Path

import longwatch
from longwatch.store.migrations import load_migrations

PACKAGE = Path(longwatch.__file__).parent
NEXT = load_migrations("sqlite")[-1].version + 1
"""The version of the migration that a newer release adds."""


def copy_package(folder: Path, migration: str | None = None) -> Path:
    """Copy the package, and return the folder to import it from. A newer release has one more
    migration: its text is the same for both databases.
    """
    copied = folder / "longwatch"
    shutil.copytree(PACKAGE, copied)
    if migration is not None:
        for dialect in ("sqlite", "postgresql"):
            path = copied / "store" / "schema" / f"{NEXT:04}_tomorrow.{dialect}.sql"
            path.write_text(migration)
    return folder


def program(package: Path, code: str) -> str:
    """Code that imports the package of a folder, and fails if it got another one."""
    return (
        f"import sys\nsys.path.insert(0, {str(package)!r})\nimport longwatch\n"
        f"assert longwatch.__file__.startswith({str(package)!r}), longwatch.__file__\n{code}"
    )
