"""From a URL to a mailbox."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload
from urllib.parse import unquote, urlsplit

from longwatch.core.clock import Clock
from longwatch.core.masking import mask_text
from longwatch.errors import UsageError
from longwatch.mailbox.backend import Backend, Limits
from longwatch.mailbox.bodies import Codec
from longwatch.mailbox.bounds import LARGEST_BODY
from longwatch.mailbox.mailbox import Mailbox
from longwatch.store.database import Database
from longwatch.store.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from longwatch.mailbox.memory import MemoryStore

BodyT = TypeVar("BodyT")

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
    store = open_store(url) if isinstance(url, str) else url

    def routed(called: str) -> Mailbox[Any]:
        """Where a reply goes: a mailbox of which only the name is known, so none of this one's limits hold there."""
        return Mailbox(called, _backend(store, called, None), codec=Codec(largest=largest_body), clock=clock, router=routed)

    codec: Codec[Any] = Codec(body_type, largest=largest_body)
    return Mailbox(name, _backend(store, name, limits), codec=codec, clock=clock, router=routed)


def open_store(url: str) -> Any:
    """The store a URL names; UsageError with the cure for one that cannot be."""
    parts = urlsplit(url)
    match parts.scheme:
        case "sqlite":
            return SqliteDatabase(_sqlite_path(url, parts.netloc, parts.path))
        case "memory":
            from longwatch.mailbox.memory import shared_memory  # noqa: PLC0415 - only who uses it pays

            return shared_memory(parts.netloc + parts.path)
        case "postgresql" | "postgres":
            with extra("postgres", url):
                from longwatch.store.postgres import PostgresDatabase  # noqa: PLC0415

                return PostgresDatabase(url)
        case "redis" | "rediss":
            with extra("redis", url):
                from longwatch.mailbox.redis import RedisStore  # noqa: PLC0415

                return RedisStore(url)
        case scheme:
            raise UsageError(f"no store is known for {mask_text(url)!r}; {_hint(url, scheme)}")


@contextmanager
def extra(name: str, url: str) -> Iterator[None]:
    """What a URL needs that is not installed is named by the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        cure = f"run: pip install 'longwatch[{name}]'"
        raise UsageError(f"{mask_text(url)} needs {error.name}, which is not installed; {cure}") from None


def _hint(url: str, scheme: str) -> str:
    if url and not scheme:
        return f"did you mean sqlite:///{url}?"
    near = difflib.get_close_matches(scheme, SCHEMES, n=1)
    return f"did you mean {near[0]}://?" if near else f"use one of {', '.join(f'{known}://' for known in SCHEMES)}"


def mailbox_names(store: Any) -> list[str]:
    """Every mailbox of a store, by name; a read."""
    if isinstance(store, Database):
        from longwatch.mailbox.sql import names_in  # noqa: PLC0415

        return names_in(store)
    names: list[str] = store.mailbox_names()
    return names


def _sqlite_path(url: str, host: str, path: str) -> Path:
    if host or len(path) < 2:  # noqa: PLR2004 - a slash and at least one letter
        raise UsageError(f"{url!r} names no file; write sqlite:///relative.db or sqlite:////absolute/path.db")
    return Path(unquote(path[1:]))


def _backend(store: Any, name: str, limits: Limits | None) -> Backend:
    if isinstance(store, Database):
        from longwatch.mailbox.sql import SqlBackend  # noqa: PLC0415

        return SqlBackend(store, name, limits=limits)
    backend: Backend = store.lane(name, limits=limits)
    return backend
