"""Opens the SQL store that a URL names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from longwatch.core.extras import install_command
from longwatch.core.masking import mask_text
from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError
from longwatch.store.database import Database
from longwatch.store.sqlite.database import SqliteDatabase

SQL_SCHEMES = ("postgresql", "sqlite")


def split_url(url: Any) -> tuple[str, str]:
    """Split a store's URL into its scheme, lower case and empty if there is none, and the rest."""
    if not isinstance(url, str):
        raise UsageError(
            f"expected the URL of a store, text such as sqlite:///jobs.db, got {type(url).__name__}"
        )
    scheme, slashes, rest = url.partition("://")
    return (scheme.lower(), rest) if slashes else ("", rest)


def open_database(url: str, *, auto_migrate: bool = False) -> Database | None:
    """Return the SQL store that a URL names, or None for a URL of another kind. Opens nothing.

    A SQLite file is migrated when it is first used. So is PostgreSQL with `auto_migrate`; without
    it, run `longwatch db migrate`. All stores of one PostgreSQL URL share this process's
    connections; each is closed by itself.
    """
    match split_url(url):
        case "sqlite", rest:
            return SqliteDatabase(_sqlite_path(url, rest))
        case "postgresql" | "postgres", _:
            with require_extra("postgres", url):
                from longwatch.store.postgres.database import PostgresDatabase  # noqa: PLC0415 - psycopg is optional

                return PostgresDatabase(url, auto_migrate=auto_migrate, shares_connections=True)
    return None


@contextmanager
def require_extra(name: str, url: str) -> Iterator[None]:
    """Turn an ImportError into a UsageError that names the package to install for this URL."""
    try:
        yield
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        what = (
            f"needs {error.name}, which is not installed"
            if missing
            else f"cannot be used ({error})"
        )
        raise UsageError(f"{mask_text(url)} {what}; run: {install_command(name)}") from None


def suggest_url(url: str, schemes: tuple[str, ...]) -> str:
    """Return a suggestion for a URL of an unknown kind."""
    scheme, colon, _ = url.partition(":")
    if url and not colon:
        return f"did you mean sqlite:///{mask_text(url)}?"
    known = [f"{scheme}://" for scheme in schemes]
    return did_you_mean(
        f"{scheme}://", known, default=f"use one of {', '.join(known)}", cutoff=0.75
    )


def _sqlite_path(url: str, rest: str) -> Path:
    host, slash, path = rest.partition("/")
    if host or not slash or not path:
        raise UsageError(
            f"{mask_text(url)!r} names no file; write sqlite:///relative.db or "
            f"sqlite:////absolute/path.db"
        )
    for sign, written in (("?", "%3F"), ("#", "%23")):
        if sign in path:
            raise UsageError(
                f"{mask_text(url)!r} contains {sign}, but a SQLite URL takes no options; in a "
                f"file name write {written}"
            )
    try:
        name = unquote_to_bytes(path).decode()
    except UnicodeError:
        raise UsageError(
            f"{mask_text(url)!r} names a file that is not UTF-8; rename the file"
        ) from None
    if "\0" in name:
        raise UsageError(
            f"{mask_text(url)!r} contains a zero byte, which no file name can have; remove it"
        )
    return Path(name)
