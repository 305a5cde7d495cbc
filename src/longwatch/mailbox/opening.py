"""From a URL to a mailbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload
from urllib.parse import unquote_to_bytes

from longwatch.core.clock import Clock
from longwatch.core.masking import mask_text
from longwatch.core.nearest import did_you_mean
from longwatch.errors import UsageError
from longwatch.mailbox.backend import KIND, Backend, Limits
from longwatch.mailbox.bodies import Codec
from longwatch.mailbox.bounds import LARGEST_BODY, check_whole
from longwatch.mailbox.mailbox import Mailbox
from longwatch.store.database import Database
from longwatch.store.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from longwatch.mailbox.memory import MemoryStore

BodyT = TypeVar("BodyT")

_ROUTES = 256
"""Mailboxes for replies that one mailbox remembers."""
SCHEMES = ("memory", "postgresql", "redis", "rediss", "sqlite")


@overload
def open_mailbox(
    url: str | Database | MemoryStore,
    name: str,
    body_type: type[BodyT],
    *,
    limits: Limits | None = ...,
    largest_body: int = ...,
    clock: Clock | None = ...,
) -> Mailbox[BodyT]: ...


@overload
def open_mailbox(
    url: str | Database | MemoryStore, name: str, *, limits: Limits | None = ..., largest_body: int = ..., clock: Clock | None = ...
) -> Mailbox[Any]: ...


def open_mailbox(  # noqa: PLR0913 - a place, a name, a type, and options
    url: str | Database | MemoryStore,
    name: str,
    body_type: Any = Any,
    *,
    limits: Limits | None = None,
    largest_body: int = LARGEST_BODY,
    clock: Clock | None = None,
) -> Mailbox[Any]:
    """A mailbox by the URL of its store. Opens nothing yet.

    `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://host/database`, `redis://host/0`.
    """
    store = _found(url)
    check_whole("largest_body", largest_body)

    @lru_cache(maxsize=_ROUTES)
    def routed(called: str) -> Mailbox[Any]:
        """Where a reply goes: a mailbox of which only the name is known, so none of this one's limits hold there."""
        return Mailbox(called, _backend(store, called, None), codec=Codec(largest=largest_body), clock=clock, router=routed)

    codec: Codec[Any] = Codec(body_type, largest=largest_body)
    return Mailbox(name, _backend(store, name, limits), codec=codec, clock=clock, router=routed)


def open_store(url: str, *, auto_migrate: bool = False) -> Any:
    """The store a URL names; UsageError with the cure for one that cannot be.

    A SQLite file brings its schema up to date by itself; PostgreSQL does with `auto_migrate`, else `longwatch db migrate` does it.
    """
    if not isinstance(url, str):
        raise UsageError(f"a store is named by a URL, text such as sqlite:///jobs.db, not by {type(url).__name__}")
    scheme, slashes, place = url.partition("://")
    match scheme.lower() if slashes else None:
        case "sqlite":
            return SqliteDatabase(_sqlite_path(url, place))
        case "memory":
            from longwatch.mailbox.memory import shared_memory  # noqa: PLC0415 - only who uses it pays

            return shared_memory(place)
        case "postgresql" | "postgres":
            with extra("postgres", url):
                from longwatch.store.postgres import PostgresDatabase  # noqa: PLC0415

                return PostgresDatabase(url, auto_migrate=auto_migrate)
        case "redis" | "rediss":
            with extra("redis", url):
                from longwatch.mailbox.redis import RedisStore  # noqa: PLC0415

                return RedisStore(url)
        case _:
            raise UsageError(f"no store is known for {mask_text(url)!r}; {_hint(url)}")


@contextmanager
def extra(name: str, url: str) -> Iterator[None]:
    """What a URL needs that is not installed is named by the command that installs it."""
    try:
        yield
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        what = f"needs {error.name}, which is not installed" if missing else f"cannot be used ({error})"
        raise UsageError(f"{mask_text(url)} {what}; run: pip install 'longwatch[{name}]'") from None


def _found(given: Any) -> Any:
    """The store itself, or that of a URL."""
    if isinstance(given, Database) or hasattr(given, "lane"):
        return given
    return open_store(given)


def _hint(url: str) -> str:
    scheme, colon, _ = url.partition(":")
    if url and not colon:
        return f"did you mean sqlite:///{mask_text(url)}?"
    schemes = [f"{known}://" for known in SCHEMES]
    return did_you_mean(f"{scheme}://", schemes, otherwise=f"use one of {', '.join(schemes)}", likeness=0.75)


def found_source(whereabouts: Mapping[str, str], stores: MutableMapping[str, Any]) -> Backend:
    """The lane that `Source.whereabouts` of another process speaks of; `stores` are those that are open, by URL."""
    if whereabouts.get("kind") != KIND:
        raise UsageError(f"leases of kind {whereabouts.get('kind')!r} are not known here; update this process")
    url = whereabouts["url"]
    if url not in stores:
        stores[url] = open_store(url)
    return _backend(stores[url], whereabouts["name"], None)


def mailbox_names(store: Any) -> list[str]:
    """Every mailbox of a store, by name; a read."""
    if isinstance(store, Database):
        from longwatch.mailbox.sql import names_in  # noqa: PLC0415

        return names_in(store)
    names: list[str] = store.mailbox_names()
    return names


def _sqlite_path(url: str, place: str) -> Path:
    host, slash, path = place.partition("/")
    if host or not slash or not path:
        raise UsageError(f"{mask_text(url)!r} names no file; write sqlite:///relative.db or sqlite:////absolute/path.db")
    for sign, written in (("?", "%3F"), ("#", "%23")):
        if sign in path:
            raise UsageError(f"{mask_text(url)!r} has a {sign}, and a file takes no options; if its name has one, write {written}")
    try:
        name = unquote_to_bytes(path).decode()
    except UnicodeError:
        raise UsageError(f"{mask_text(url)!r} names a file that is not UTF-8; give it another name") from None
    if "\0" in name:
        raise UsageError(f"{mask_text(url)!r} has a zero byte in its name, which no file can have; leave it out")
    return Path(name)


def _backend(store: Any, name: str, limits: Limits | None) -> Backend:
    if isinstance(store, Database):
        from longwatch.mailbox.sql import SqlBackend  # noqa: PLC0415

        return SqlBackend(store, name, limits=limits)
    backend: Backend = store.lane(name, limits=limits)
    return backend
