"""Flows for one command: by `module:name`, or by the URL of a store alone; opened for it and closed
after it.

A command that only looks makes nothing: no file, no tables. Errors of the store come out as they
are, with their own exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, NamedTuple

from longwatch.app.target import load_object, require_flow, telling
from longwatch.core.masking import mask_text
from longwatch.errors import SerializationError, UnknownExecutionError, UsageError
from longwatch.flow.calling import VALUES
from longwatch.flow.execution import Computation, Summary
from longwatch.flow.flow import Flow
from longwatch.flow.graph import Graph
from longwatch.flow.records import Kind
from longwatch.flow.standing import Standing
from longwatch.store.sqlite import SqliteDatabase
from longwatch.store.sqlite_file import require_place
from longwatch.store.status import schema_status

_LIKE_JSON = '{["-0123456789'
_LIKE_PYTHON = frozenset({"True", "False", "None", "NaN", "nan", "Infinity", "inf"})


class Seen(NamedTuple):
    """An execution, as its store alone shows it: no code is needed."""

    summary: Summary
    standing: Standing
    attempts: list[Computation]


# --- ways in ---


@contextmanager
def loaded_flow(target: str) -> Iterator[Flow]:
    """The Flow that `module:name` names, or that the function of that name returns. What its
    module prints goes to stderr.
    """
    with telling(target), redirect_stdout(sys.stderr):
        found = load_object(target)
        flow: Flow = require_flow(found() if callable(found) else found, target)
    try:
        yield flow
    finally:
        flow.database.close()


@contextmanager
def existing_flow(target: str) -> Iterator[Flow]:
    """The same; UsageError if nothing was ever started in its store."""
    with loaded_flow(target) as flow:
        _require_executions(flow, "start an execution first, as in: flow.start(…)")
        yield flow


@contextmanager
def existing_store(url: str, *, given: bool) -> Iterator[Flow]:
    """A store without the code of its graphs; UsageError if it is not there, or has no
    executions. `given`: somebody named it.
    """
    cure = (
        "check the URL; the first flow.start(…) makes it"
        if given
        else "name the flow first, as module:name, or give --store"
    )
    with Flow(url) as flow:
        _require_executions(flow, cure)
        yield flow


def _require_executions(flow: Flow, cure: str) -> None:
    database = flow.database
    if isinstance(database, SqliteDatabase):
        require_place(database.path)
    status = schema_status(database)
    if status is None:
        raise UsageError(f"no store at {shown_url(flow)}; {cure}")
    if not status.version:
        more = "`longwatch db migrate` makes its tables, or " if database.is_shared else ""
        raise UsageError(f"{shown_url(flow)} holds no executions; {more}{cure}")


def shown_url(flow: Flow) -> str:
    return mask_text(flow.database.url)


# --- executions without code ---


def seen(flow: Flow, name: str) -> Seen:
    """Everything that is stored of an execution; UnknownExecutionError if there is none of that
    id.
    """
    number, _ = _found(flow, name)
    [summary] = flow.executions(limit=1, before=number + 1)
    attempts = flow.database.read(
        lambda tx: tx.rows(flow.records.sql["attempts"], {"execution": number})
    )
    return Seen(summary, _standing(flow, number, name), [Computation.read(row) for row in attempts])


def drawn(flow: Flow, name: str) -> tuple[Graph, Standing]:
    """An execution and its graph, which has to be known here."""
    number, kind = _found(flow, name)
    return flow.registry.graphs[flow.registry.find(*kind)], _standing(flow, number, name)


def graph_named(flow: Flow, name: str | None, version: str | None) -> Graph:
    """The graph of that name; without one the only one there is. Without a version, the one that
    was given last.
    """
    names = list(dict.fromkeys(kind.graph for kind in flow.registry.graphs))
    if name is None and len(names) != 1:
        raise UsageError(
            f"this flow has several graphs; name one of {', '.join(names)}"
            if names
            else "this flow has no graphs"
        )
    return flow.registry.graphs[flow.registry.find(name or names[0], version)]


def _found(flow: Flow, name: str) -> tuple[int, Kind]:
    rows = flow.database.read(lambda tx: tx.rows(flow.records.sql["find"], {"id": name}))
    if not rows:
        raise UnknownExecutionError(
            f"there is no execution {name!r} in {shown_url(flow)}; `longwatch flow ls` lists them"
        )
    return rows[0][0], Kind(*rows[0][1:3])


def _standing(flow: Flow, number: int, name: str) -> Standing:
    loaded = flow.database.read(lambda tx: flow.records.load(tx, [number], to_change=False))
    if number not in loaded:
        raise UnknownExecutionError(f"there is no execution {name!r} any more in {shown_url(flow)}")
    return loaded[number][0]


# --- values ---


def read_value(node: str, word: str) -> Any:
    """A value from the command line: JSON, or text if it cannot have been meant as JSON;
    SerializationError for what is neither.
    """
    try:
        return VALUES.decode(word.encode())
    except SerializationError as error:
        if word and word[0] not in _LIKE_JSON and word not in _LIKE_PYTHON:
            return word
        if not word:
            raise UsageError(
                f"the value of {node!r} is empty; --text sets empty text, `unset` is for code"
            ) from None
        if word in _LIKE_PYTHON:
            raise UsageError(
                f"the value of {node!r} is not JSON: {word} is Python; write null, true, "
                f"false, or use --text"
            ) from None
        detail = str(error).removeprefix("a value cannot be read: ")
        raise UsageError(
            f"the value of {node!r} is not JSON: {detail}; quote it for the shell, or use --text"
        ) from None
