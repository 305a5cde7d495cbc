"""From a URL to a mailbox."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, overload

from longwatch.core.clock import Clock
from longwatch.core.masking import mask_text
from longwatch.errors import UsageError
from longwatch.mailbox.backend import KIND, Backend, Limits
from longwatch.mailbox.bounds import LARGEST_BODY, check_whole
from longwatch.mailbox.mailbox import Mailbox
from longwatch.store.database import Database
from longwatch.store.json_codec import Codec
from longwatch.store.opening import SQL_SCHEMES, extra, open_database, split_url, url_hint

if TYPE_CHECKING:
    from longwatch.mailbox.memory import MemoryStore

BodyT = TypeVar("BodyT")

_ROUTES = 256
"""Mailboxes for replies that one mailbox remembers."""
SCHEMES = tuple(sorted((*SQL_SCHEMES, "memory", "redis", "rediss")))


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
    url: str | Database | MemoryStore,
    name: str,
    *,
    limits: Limits | None = ...,
    largest_body: int = ...,
    clock: Clock | None = ...,
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

    `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://host/database`,
    `redis://host/0`.
    """
    store = _found(url)
    check_whole("largest_body", largest_body)

    @lru_cache(maxsize=_ROUTES)
    def routed(called: str) -> Mailbox[Any]:
        """Where a reply goes: a mailbox of which only the name is known, so none of this one's
        limits hold there.
        """
        return Mailbox(
            called,
            _backend(store, called, None),
            codec=Codec(largest=largest_body),
            clock=clock,
            router=routed,
        )

    codec: Codec[Any] = Codec(body_type, largest=largest_body)
    return Mailbox(name, _backend(store, name, limits), codec=codec, clock=clock, router=routed)


def open_store(url: str, *, auto_migrate: bool = False) -> Any:
    """The store a URL names; UsageError with the cure for one that cannot be.

    A SQLite file brings its schema up to date by itself; PostgreSQL does with `auto_migrate`, else
    `longwatch db migrate` does it.
    """
    database = open_database(url, auto_migrate=auto_migrate)
    if database is not None:
        return database
    scheme, place = split_url(url)
    match scheme:
        case "memory":
            from longwatch.mailbox.memory import shared_memory  # noqa: PLC0415 - only who uses it pays

            return shared_memory(place)
        case "redis" | "rediss":
            with extra("redis", url):
                from longwatch.mailbox.redis import RedisStore  # noqa: PLC0415

                return RedisStore(url)
        case _:
            raise UsageError(f"no store is known for {mask_text(url)!r}; {url_hint(url, SCHEMES)}")


def _found(given: Any) -> Any:
    """The store itself, or that of a URL."""
    if isinstance(given, Database) or hasattr(given, "lane"):
        return given
    return open_store(given)


def found_source(whereabouts: Mapping[str, str], stores: MutableMapping[str, Any]) -> Backend:
    """The lane that `Source.whereabouts` of another process speaks of; `stores` are those that
    are open, by URL.
    """
    if whereabouts.get("kind") != KIND:
        raise UsageError(
            f"leases of kind {whereabouts.get('kind')!r} are not known here; update this process"
        )
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


def _backend(store: Any, name: str, limits: Limits | None) -> Backend:
    if isinstance(store, Database):
        from longwatch.mailbox.sql import SqlBackend  # noqa: PLC0415

        return SqlBackend(store, name, limits=limits)
    backend: Backend = store.lane(name, limits=limits)
    return backend
