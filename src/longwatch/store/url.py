"""From a URL to a SQL store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from longwatch.core.masking import mask_text
from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError
from longwatch.store.database import Database
from longwatch.store.sqlite.database import SqliteDatabase

SQL_SCHEMES = ("postgresql", "sqlite")


def split_url(url: Any) -> tuple[str, str]:
    """The scheme of a store's URL, in small letters and empty if there is none, and the rest."""
    if not isinstance(url, str):
        raise UsageError(
            f"a store is named by a URL, text such as sqlite:///jobs.db, not by "
            f"{type(url).__name__}"
        )
    scheme, slashes, rest = url.partition("://")
    return (scheme.lower(), rest) if slashes else ("", rest)


def open_database(url: str, *, auto_migrate: bool = False) -> Database | None:
    """The SQL store that a URL names; None for a URL of another kind. Opens nothing yet.

    A SQLite file brings its schema up to date by itself; PostgreSQL does with `auto_migrate`, else
    `longwatch db migrate` does it.
    """
    match split_url(url):
        case "sqlite", rest:
            return SqliteDatabase(_sqlite_path(url, rest))
        case "postgresql" | "postgres", _:
            with require_extra("postgres", url):
                from longwatch.store.postgres.database import PostgresDatabase  # noqa: PLC0415 - only who uses it pays

                return PostgresDatabase(url, auto_migrate=auto_migrate)
    return None


@contextmanager
def require_extra(name: str, url: str) -> Iterator[None]:
    """What a URL needs that is not installed is named by the command that installs it."""
    try:
        yield
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        what = (
            f"needs {error.name}, which is not installed"
            if missing
            else f"cannot be used ({error})"
        )
        raise UsageError(f"{mask_text(url)} {what}; run: pip install 'longwatch[{name}]'") from None


def suggest_url(url: str, schemes: tuple[str, ...]) -> str:
    """What may have been meant by a URL of no known kind."""
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
                f"{mask_text(url)!r} has a {sign}, and a file takes no options; if its name "
                f"has one, write {written}"
            )
    try:
        name = unquote_to_bytes(path).decode()
    except UnicodeError:
        raise UsageError(
            f"{mask_text(url)!r} names a file that is not UTF-8; give it another name"
        ) from None
    if "\0" in name:
        raise UsageError(
            f"{mask_text(url)!r} has a zero byte in its name, which no file can have; leave it out"
        )
    return Path(name)
