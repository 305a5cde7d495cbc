"""The stores that the page shows: which there are, and queries to them that cannot hold up others.

Each store has a thread of its own for its queries. A store that does not answer in time is marked
as not answering since then; until its query returns, further queries fail at once. If that query
fails in the end, its error is the reason from then on. After an error the store is closed and
opened again at the next query.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from longwatch.core.error_text import describe_error
from longwatch.core.masking import mask_text
from longwatch.errors import LongwatchError, StoreUnreachableError, TryAgainError, UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.page.view import NotFoundError
from longwatch.store.sqlite.database import SqliteDatabase

T = TypeVar("T")

QUERY_TIMEOUT = 3.0
"""Seconds that a view waits for one query."""
_KEY_CHARS = 8


class StoreUnavailableError(TryAgainError):
    """A store did not answer a query, or answered with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry:
    """A store. `key` names it in paths of the page, `shown` is its URL without secrets. `kinds`:
    what is known to be in it (`mailbox`, `flow`, `runner`); empty if that is not known.
    """

    key: str
    url: str = field(repr=False)
    shown: str
    kinds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProblem:
    """Why a store does not answer, and since when (wall time)."""

    entry: StoreEntry
    reason: str
    since: float


class StoreCatalog:
    """The stores by key. Thread-safe.

    `opener` returns an open store for a URL: a `Database` for SQL, else the store of the mailboxes.
    """

    def __init__(
        self,
        urls: Iterable[str] = (),
        *,
        opener: Callable[[str], Any] | None = None,
        timeout: float = QUERY_TIMEOUT,
    ) -> None:
        self._opener = opener or _open_store
        self._timeout = timeout
        self._lock = threading.Lock()
        self._stores: dict[str, _Store] = {}
        self.discover: Callable[[], Iterable[Mapping[str, Any]]] = list
        """Returns the stores that the workers use now, as `update` takes them."""
        self.update({"url": url} for url in urls)

    def update(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Add stores that workers report, as `{"url": …, "kind": …}`. A known one gets the kind."""
        for each in found:
            url, kind = str(each.get("url", "")), str(each.get("kind", ""))
            if not url or url.startswith("memory:"):
                continue
            with self._lock:
                key = store_key(url)
                known = self._stores.get(key)
                kinds = (known.entry.kinds if known else frozenset()) | ({kind} - {""})
                entry = StoreEntry(key=key, url=url, shown=mask_text(url), kinds=kinds)
                if known is None:
                    self._stores[key] = _Store(entry, self._opener)
                else:
                    known.entry = entry

    def entries(self, kind: str = "") -> list[StoreEntry]:
        """All stores, or those that may have this kind."""
        self.update(self.discover())
        with self._lock:
            found = [store.entry for store in self._stores.values()]
        return [entry for entry in found if not kind or not entry.kinds or kind in entry.kinds]

    def entry(self, key: str) -> StoreEntry:
        """The store of a key. Raises NotFoundError if there is none."""
        return self._store(key).entry

    def ask(
        self,
        key: str,
        query: Callable[[Any], T],
        *,
        timeout: float | None = None,
        has_input: bool = True,
    ) -> T:
        """The result of `query(store)`, made in the thread of the store. Raises
        StoreUnavailableError if the store cannot be opened, does not answer in time or fails,
        NotFoundError for an unknown key. If the query `has_input` of a person, an error that names
        a mistake of that person (UsageError) passes unchanged.
        """
        chosen = self._timeout if timeout is None else timeout
        return self._store(key).ask(query, chosen, has_input=has_input)

    def open(self, key: str) -> Any:
        """The open store of a key, for callers that bound their own queries. It stays open."""
        return self.ask(key, lambda store: store)

    def problems(self) -> list[StoreProblem]:
        """The stores whose last query failed or has not returned."""
        with self._lock:
            stores = list(self._stores.values())
        return [store.problem for store in stores if store.problem is not None]

    def close(self) -> None:
        """Close all stores whose thread is idle. Does not wait for others."""
        with self._lock:
            stores = list(self._stores.values())
        for store in stores:
            store.close()

    def _store(self, key: str) -> _Store:
        if key not in self._stores:
            self.update(self.discover())
        with self._lock:
            found = self._stores.get(key)
        if found is None:
            raise NotFoundError(f"there is no store {key}")
        return found


def store_key(url: str) -> str:
    """The short name of a store in paths. It does not show the URL."""
    return hashlib.sha256(url.encode(errors="replace")).hexdigest()[:_KEY_CHARS]


class _Query:
    """A query in the thread of its store."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_late = False
        """Whether its caller no longer waits."""


class _Store:
    """One store, its thread, and what is known about its answers. One query runs at a time."""

    def __init__(self, entry: StoreEntry, opener: Callable[[str], Any]) -> None:
        self.entry = entry
        self._opener = opener
        self._turn = threading.Lock()
        self._running: _Query | None = None
        self._store: Any = None
        self._had_file = False
        self._reason = ""
        self._since = 0.0

    @property
    def problem(self) -> StoreProblem | None:
        reason = self._reason
        return StoreProblem(entry=self.entry, reason=reason, since=self._since) if reason else None

    def ask(self, call: Callable[[Any], T], timeout: float, *, has_input: bool) -> T:
        if not self._turn.acquire(timeout=timeout):
            raise self._unavailable(f"no answer within {timeout:g} s")
        try:
            return self._ask(call, timeout, has_input=has_input)
        finally:
            self._turn.release()

    def _ask(self, call: Callable[[Any], T], timeout: float, *, has_input: bool) -> T:
        if self._running is not None and not self._running.done.is_set():
            raise self._unavailable(self._reason)
        query = self._running = _Query(call)
        BackgroundThread(
            lambda: self._run(query), name=f"page-store-{self.entry.key}", report_errors=True
        ).start()
        if not query.done.wait(timeout):
            unavailable = self._unavailable(self._reason or f"no answer within {timeout:g} s")
            query.is_late = True
            raise unavailable
        if query.error is None:
            self._reason = ""
            result: T = query.result
            return result
        passes = (UsageError, NotFoundError) if has_input else (NotFoundError,)
        if self._store is not None and isinstance(query.error, passes):
            raise query.error
        raise self._unavailable(_reason(query.error))

    def _run(self, query: _Query) -> None:
        try:
            if self._store is None:
                self._store = self._opener(self.entry.url)
            try:
                query.result = query.call(self._store)
            finally:  # in a file that is gone nothing is found
                self._require_file(self._store)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            query.error = error
            if query.is_late:
                self._reason = _reason(error)
            if not isinstance(error, UsageError | NotFoundError):
                self._close_store()
        finally:
            query.done.set()

    def _require_file(self, store: Any) -> None:
        """Raise StoreUnreachableError if the store was a file that is gone. A file that was never
        there is an empty store: the first write makes it.
        """
        if not isinstance(store, SqliteDatabase):
            return
        has_file = store.path.exists()
        if self._had_file and not has_file:
            raise StoreUnreachableError(
                f"{store.path} was removed or renamed; put it back, or restart the page if "
                "nothing uses it"
            )
        self._had_file = has_file

    def _unavailable(self, reason: str) -> StoreUnavailableError:
        if not self._reason:
            self._since = time.time()
        self._reason = reason
        return StoreUnavailableError(f"{self.entry.shown} does not answer: {reason}")

    def close(self) -> None:
        if self._running is None or self._running.done.is_set():
            self._close_store()

    def _close_store(self) -> None:
        closing, self._store = self._store, None
        if closing is not None:
            with suppress(Exception):
                closing.close()


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, LongwatchError) else describe_error(error)


def _open_store(url: str) -> Any:
    from longwatch.mailbox.url import open_store  # noqa: PLC0415 - only a page with stores needs it

    return open_store(url)
