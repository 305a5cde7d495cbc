"""Opens a store or a mailbox by its URL."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, overload

from longwatch.core.clock import Clock
from longwatch.core.masking import mask_text
from longwatch.errors import UsageError
from longwatch.mailbox.backend import MAILBOX_KIND, Backend
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.records import MailboxStats
from longwatch.mailbox.validation import MAX_BODY_BYTES, validate_positive_int
from longwatch.store.database import Database
from longwatch.store.json_codec import Codec
from longwatch.store.url import SQL_SCHEMES, open_database, require_extra, split_url, suggest_url

if TYPE_CHECKING:
    from longwatch.mailbox.memory import MemoryStore

BodyT = TypeVar("BodyT")

_MAX_REPLY_MAILBOXES = 256
"""How many reply mailboxes one mailbox caches."""
_REDIS_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
SCHEMES = tuple(sorted((*SQL_SCHEMES, *_REDIS_SCHEMES, "memory")))


@overload
def open_mailbox(
    url: str | Database | MemoryStore,
    name: str,
    body_type: type[BodyT],
    *,
    limits: MailboxLimits | None = ...,
    max_body_bytes: int = ...,
    clock: Clock | None = ...,
) -> Mailbox[BodyT]: ...


@overload
def open_mailbox(
    url: str | Database | MemoryStore,
    name: str,
    *,
    limits: MailboxLimits | None = ...,
    max_body_bytes: int = ...,
    clock: Clock | None = ...,
) -> Mailbox[Any]: ...


def open_mailbox(  # noqa: PLR0913 - a store, a name, a type, and options
    url: str | Database | MemoryStore,
    name: str,
    body_type: Any = Any,
    *,
    limits: MailboxLimits | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    clock: Clock | None = None,
) -> Mailbox[Any]:
    """Return a mailbox by the URL of its store. Connects only when the mailbox is first used.

    `memory://`, `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://host/database`,
    `redis://host/0`.
    """
    store = _store_of(url)
    validate_positive_int("max_body_bytes", max_body_bytes)

    @lru_cache(maxsize=_MAX_REPLY_MAILBOXES)
    def reply_mailbox(reply_name: str) -> Mailbox[Any]:
        """Return a mailbox for replies. Only its name is known, so it has default limits."""
        return Mailbox(
            reply_name,
            _backend(store, reply_name, None),
            codec=Codec(max_bytes=max_body_bytes),
            clock=clock,
            router=reply_mailbox,
        )

    codec: Codec[Any] = Codec(body_type, max_bytes=max_body_bytes)
    return Mailbox(
        name, _backend(store, name, limits), codec=codec, clock=clock, router=reply_mailbox
    )


def open_store(url: str, *, auto_migrate: bool = False) -> Any:
    """Return the store that a URL names. Raises UsageError for a URL that names none.

    A SQLite store migrates its schema when it is opened. PostgreSQL does so only with
    `auto_migrate`; without it, run `longwatch db migrate`.
    """
    database = open_database(url, auto_migrate=auto_migrate)
    if database is not None:
        return database
    scheme, rest = split_url(url)
    match scheme:
        case "memory":
            from longwatch.mailbox.memory import shared_store  # noqa: PLC0415 - imported only when it is used

            return shared_store(rest)
        case scheme if scheme in _REDIS_SCHEMES:
            with require_extra("redis", url):
                from longwatch.mailbox.redis.store import RedisStore  # noqa: PLC0415

                return RedisStore(url)
        case _:
            raise UsageError(
                f"no store is known for {mask_text(url)!r}; {suggest_url(url, SCHEMES)}"
            )


def _store_of(given: Any) -> Any:
    """Return the given store, or open the store of a URL."""
    if isinstance(given, Database) or hasattr(given, "backend"):
        return given
    return open_store(given)


def open_source(locator: Mapping[str, str], stores: MutableMapping[str, Any]) -> Backend:
    """Return the backend for the `ClaimSource.locator` of another process. `stores` caches the open
    stores by URL.
    """
    if locator.get("kind") != MAILBOX_KIND:
        raise UsageError(
            f"expected leases of a mailbox, got kind {locator.get('kind')!r}; run the same version "
            f"of Longwatch in every process"
        )
    url = locator["url"]
    if url not in stores:
        stores[url] = open_store(url)
    return _backend(stores[url], locator["name"], None)


def mailbox_names(store: Any) -> list[str]:
    """Return the names of all mailboxes of a store. Writes nothing."""
    if isinstance(store, Database):
        from longwatch.mailbox.sql import list_mailbox_names  # noqa: PLC0415

        return list_mailbox_names(store)
    names: list[str] = store.mailbox_names()
    return names


def mailbox_stats(store: Any, *, limit: int = 1_000_000) -> list[tuple[str, MailboxStats]]:
    """Return the statistics of the first mailboxes of a store by name. Writes nothing."""
    if isinstance(store, Database):
        from longwatch.mailbox.sql import list_mailbox_stats  # noqa: PLC0415

        return list_mailbox_stats(store, limit=limit)
    names = mailbox_names(store)[:limit]
    return [(name, store.backend(name, limits=None).stats()) for name in names]


def _backend(store: Any, name: str, limits: MailboxLimits | None) -> Backend:
    if isinstance(store, Database):
        from longwatch.mailbox.sql import SqlBackend  # noqa: PLC0415

        return SqlBackend(store, name, limits=limits)
    backend: Backend = store.backend(name, limits=limits)
    return backend
