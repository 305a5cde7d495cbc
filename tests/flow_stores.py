"""A store of each kind, for tests of graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longwatch.store.database import Database
from longwatch.store.url import open_database
from postgres_server import shared_server

KINDS = ("sqlite", "postgresql")


@contextmanager
def store_url(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a new store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/flow.db"
    else:
        with shared_server().database() as url:
            yield url


@contextmanager
def opened_database(url: str) -> Iterator[Database]:
    """The store of a URL, with its schema."""
    database = open_database(url, auto_migrate=True)
    assert database is not None
    with database:
        yield database


@contextmanager
def opened_store(kind: str, folder: Path) -> Iterator[Database]:
    """A new store."""
    with store_url(kind, folder) as url, opened_database(url) as database:
        yield database
