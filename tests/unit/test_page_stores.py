"""A store that hangs or fails holds up its own queries alone, and says since when."""

from __future__ import annotations

import threading

import pytest

from longwatch.errors import StoreError, UsageError
from longwatch.page.stores import StoreCatalog, StoreUnavailableError, store_key
from longwatch.page.view import NotFoundError
from polling import eventually

GOOD, BAD = "sqlite:///good.db", "postgresql://me:secret@db/jobs"


class Store:
    def __init__(self, url: str) -> None:
        self.url = url
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_a_store_that_hangs_fails_at_once_from_then_on_and_others_answer() -> None:
    release = threading.Event()
    catalog = StoreCatalog([GOOD, BAD], opener=Store, timeout=0.05)
    bad, good = store_key(BAD), store_key(GOOD)
    with pytest.raises(StoreUnavailableError, match="no answer within"):
        catalog.ask(bad, lambda _: release.wait())

    with pytest.raises(StoreUnavailableError, match=r"postgresql://.*db/jobs does not answer"):
        catalog.ask(bad, lambda store: store.url, timeout=1000.0)
    assert GOOD == catalog.ask(good, lambda store: store.url)
    [problem] = catalog.problems()
    assert (bad, True) == (problem.entry.key, problem.since > 0)

    release.set()
    assert eventually(lambda: _answers(catalog, bad))
    assert [] == catalog.problems()


def _answers(catalog: StoreCatalog, key: str) -> bool:
    try:
        return bool(catalog.ask(key, lambda store: store.url))
    except StoreUnavailableError:
        return False


def test_the_error_of_a_query_that_fails_late_is_the_reason_from_then_on() -> None:
    hang = threading.Event()

    def fail(_: Store) -> None:
        hang.wait(10)
        raise StoreError("connection refused")

    catalog = StoreCatalog([GOOD], opener=Store, timeout=0.01)
    with pytest.raises(StoreUnavailableError, match="no answer within"):
        catalog.ask(store_key(GOOD), fail)
    hang.set()
    assert eventually(lambda: "connection refused" == catalog.problems()[0].reason)
    hang.clear()
    with pytest.raises(StoreUnavailableError, match="connection refused"):
        catalog.ask(store_key(GOOD), fail)
    hang.set()


def test_a_store_that_fails_is_closed_and_opened_again() -> None:
    opened: list[Store] = []

    def opener(url: str) -> Store:
        opened.append(Store(url))
        return opened[-1]

    def fail(_: Store) -> None:
        raise StoreError("the server is gone")

    catalog = StoreCatalog([GOOD], opener=opener)
    key = store_key(GOOD)
    with pytest.raises(StoreUnavailableError, match="the server is gone"):
        catalog.ask(key, fail)
    assert ["the server is gone"] == [each.reason for each in catalog.problems()]

    assert catalog.open(key) is opened[1]
    assert [True, False] == [each.closed for each in opened]
    assert [] == catalog.problems()
    catalog.close()
    assert opened[1].closed


def test_a_mistake_of_the_caller_is_no_fault_of_the_store() -> None:
    def refuse(_: Store) -> None:
        raise UsageError("there is no mailbox 'x'")

    catalog = StoreCatalog([GOOD], opener=Store)
    with pytest.raises(UsageError, match="no mailbox"):
        catalog.ask(store_key(GOOD), refuse)
    assert [] == catalog.problems()


def test_without_input_there_is_no_mistake_of_the_caller() -> None:
    def refuse(_: Store) -> None:
        raise UsageError("the file is no database")

    catalog = StoreCatalog([GOOD], opener=Store)
    with pytest.raises(StoreUnavailableError, match="is no database"):
        catalog.ask(store_key(GOOD), refuse, has_input=False)
    assert ["the file is no database"] == [each.reason for each in catalog.problems()]


def test_a_store_that_cannot_be_opened_is_a_fault_of_the_store() -> None:
    def refuse(_: str) -> Store:
        raise UsageError("there is no such kind of store")

    catalog = StoreCatalog([GOOD], opener=refuse)
    with pytest.raises(StoreUnavailableError, match="no such kind"):
        catalog.ask(store_key(GOOD), lambda _: None)


def test_stores_of_workers_are_found_and_no_url_shows_its_password() -> None:
    catalog = StoreCatalog([BAD], opener=Store)
    catalog.discover = lambda: [
        {"url": GOOD, "kind": "mailbox"},
        {"url": GOOD, "kind": "flow"},
        {"url": "memory://", "kind": "mailbox"},
        {},
    ]

    bad, good = catalog.entries()
    assert frozenset({"mailbox", "flow"}) == good.kinds
    assert [BAD, GOOD] == [each.url for each in catalog.entries("flow")]
    assert [BAD] == [each.url for each in catalog.entries("runner")]
    assert "secret" not in f"{bad}{bad.shown}"
    assert GOOD == catalog.entry(store_key(GOOD)).url


def test_an_unknown_key_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        StoreCatalog().ask("1234abcd", lambda store: store)
