"""Queries to several stores at the same time, of which some may not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from longwatch.host.background_thread import BackgroundThread
from longwatch.page.data import PageData
from longwatch.page.stores import StoreEntry, StoreUnavailableError
from longwatch.page.view import NotFoundError
from longwatch.store.database import Database

T = TypeVar("T")

MAX_STORES = 50
"""Stores that are queried for one page."""


@dataclass(slots=True)
class StoreAnswer(Generic[T]):
    """What a store answered; `problem` says why it did not."""

    entry: StoreEntry
    result: T | None = None
    problem: str = ""
    error: Exception | None = None


def ask_all(page: PageData, query: Callable[[Any], T]) -> list[StoreAnswer[T]]:
    """Ask every store a query that takes nothing from a person. A store that does not answer delays
    the others by its timeout at most.
    """
    answers: list[StoreAnswer[T]] = [
        StoreAnswer(entry) for entry in page.stores.entries()[:MAX_STORES]
    ]
    threads = [
        BackgroundThread(_asking(page, answer, query), name=f"page-ask-{answer.entry.key}")
        for answer in answers[1:]
    ]
    for thread in threads:
        thread.start()
    for answer in answers[:1]:
        _asking(page, answer, query)()
    for thread in threads:
        thread.done.block(None)
    for answer in answers:
        if answer.error is not None:
            raise answer.error
    return answers


def _asking(
    page: PageData, answer: StoreAnswer[T], query: Callable[[Any], T]
) -> Callable[[], None]:
    def ask() -> None:
        try:
            answer.result = page.stores.ask(answer.entry.key, query, has_input=False)
        except StoreUnavailableError as error:
            answer.problem = _shortened(str(error), answer.entry.shown)
        except Exception as error:  # noqa: BLE001 - raised again by the caller
            answer.error = error

    return ask


def _shortened(problem: str, shown: str) -> str:
    """A problem that names the store once: errors of stores name it too."""
    _, _, reason = problem.partition(f"{shown} does not answer: ")
    return reason if shown in reason else problem


def ask_database(
    page: PageData, key: str, query: Callable[[Database], T], *, timeout: float | None = None
) -> T:
    """Ask one store. Raises NotFoundError if it is no SQL store, and what `StoreCatalog.ask`
    raises.
    """
    found = page.stores.ask(key, lambda store: _on_sql(store, query), timeout=timeout)
    if found is None:
        raise NotFoundError(f"{page.stores.entry(key).shown} has mailboxes alone")
    return found.result


class _Result(NamedTuple, Generic[T]):
    result: T


def _on_sql(store: Any, query: Callable[[Database], T]) -> _Result[T] | None:
    return _Result(query(store)) if isinstance(store, Database) else None


def on_database(query: Callable[[Database], T]) -> Callable[[Any], T | None]:
    """A query for SQL stores; other stores answer with None."""
    return lambda store: query(store) if isinstance(store, Database) else None


def problems_of(answers: Iterable[StoreAnswer[Any]]) -> list[str]:
    """What to say of the stores that did not answer."""
    return [answer.problem for answer in answers if answer.problem]
