"""One execution of a graph, as its users hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from longwatch.core.deadline import Deadline
from longwatch.errors import (
    ComputationFailedError,
    DeadlineExceededError,
    NotSetError,
    UnknownExecutionError,
    UsageError,
)
from longwatch.flow.advancing import Next, advance
from longwatch.flow.explaining import Explanation, explained, lost, survey
from longwatch.flow.graph import Graph
from longwatch.flow.records import Kind, Lessee, changes_of
from longwatch.flow.standing import LEASED, Cause, Standing
from longwatch.store.database import Row, Transaction

if TYPE_CHECKING:
    from longwatch.flow.flow import Flow


_SOON = 0.9
"""Seconds within which somebody who is woken was told; later it may be that stores wake
everybody now and then.
"""


class Value(NamedTuple):
    """The value of a node. `fresh`: it is that of the present inputs, no other is being
    computed.
    """

    value: Any
    revision: int
    fresh: bool


class Computation(NamedTuple):
    """One attempt. Times are wall time; `heartbeat_in` and `deadline_in` are seconds left, of one
    that runs; `ready_in` of one that waits for its time.
    """

    number: int
    node: str
    state: str
    attempt: int
    computed_with: dict[str, int]
    created_at: float
    started_at: float | None
    ended_at: float | None
    owner: int | None
    term: int
    end_cause: str | None
    error: str | None
    last_heartbeat_at: float | None
    heartbeat_in: float | None
    deadline_in: float | None
    ready_in: float | None
    crashes: int
    releases: int

    @classmethod
    def read(cls, row: Row) -> Self:
        return cls(*row)._replace(computed_with=msgspec.json.decode(row[4]))


@dataclass(frozen=True, slots=True)
class Summary:
    """An execution in a list. `number` is its place in the order of their making."""

    id: str
    graph: str
    version: str
    revision: int
    cancelled: bool
    created_at: float
    updated_at: float
    number: int
    waiting: int
    running: int
    failed: int
    values: int

    @classmethod
    def read(cls, row: Row) -> Self:
        return replace(cls(*row), cancelled=bool(row[4]))

    @property
    def state(self) -> str:
        """cancelled, running, waiting, failed (a node was given up and nothing is at work), or
        idle.
        """
        if self.cancelled:
            return "cancelled"
        if self.running or self.waiting:
            return "running" if self.running else "waiting"
        return "failed" if self.failed else "idle"


class Execution:
    """Sets inputs, waits for values, says how it stands. Every method may be called from any
    thread; nothing is kept here.
    """

    def __init__(self, flow: Flow, name: str, number: int, kind: Kind) -> None:
        self.id = name
        self.graph = kind.graph
        self.version = kind.version
        self._flow = flow
        self._number = number
        self._kind = kind

    # --- inputs ---

    def set(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> int:
        """Set inputs, all in one revision, and have computed what follows; the revision it is at
        then.

        Values that are the same as before change nothing.
        """
        texts = self._flow.texts(self._kind, {**(values or {}), **named})

        def work(standing: Standing) -> None:
            for node, text in texts.items():
                standing.put(node, text)

        return self._change(work)

    def unset(self, *nodes: str) -> int:
        """Take their values from inputs, and with them whatever cannot be without; the revision
        it is at then.
        """
        for node in nodes:
            self._definition.require_input(node)

        def work(standing: Standing) -> None:
            for node in nodes:
                standing.unset(node)

        return self._change(work)

    # --- values ---

    def get(
        self,
        node: str,
        *,
        wait: bool = True,
        newer_than: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """The value of a node; with `wait`, once it is that of the present inputs, and newer than a
        revision if one is said.

        DeadlineExceededError after `timeout` seconds; ComputationFailedError once it will not come;
        NotSetError without `wait`.
        """
        self._definition.node(node)
        if not wait:
            return self._present(node, newer_than)
        return self._wait(node, newer_than, timeout)

    def value(self, node: str) -> Value | None:
        """Its value with its revision, whether it is that of the present inputs or not; None if
        it is not set.
        """
        self._definition.node(node)
        return self._value(self._standing(), node)

    def values(self) -> dict[str, Any]:
        """Everything that is set, by node."""
        standing = self._standing()
        return {
            node: standing.value(node) for node in self._definition.nodes if standing.is_set(node)
        }

    @property
    def revision(self) -> int:
        return self._standing().revision

    # --- what it is at ---

    def computations(self) -> list[Computation]:
        """Every attempt, oldest first."""
        query = self._flow.records.sql["attempts"]
        rows = self._flow.database.read(lambda tx: tx.rows(query, {"execution": self._number}))
        return [Computation.read(row) for row in rows]

    def explain(self) -> Explanation:
        """For every node, what it waits for, met and unmet."""
        return explained(self._definition, self._standing())

    # --- by hand ---

    def retry(self, node: str) -> int:
        """Have a node that was given up, or waits for its next attempt, tried again now, with
        all its attempts; the revision.
        """
        self._require_computed(node)

        def work(standing: Standing) -> None:
            if standing.cancelled:
                raise self._is_over()
            attempt, stored = standing.open.get(node), standing.nodes.get(node)
            if attempt is not None and attempt.held == LEASED:
                raise UsageError(
                    f"node {node!r} of {self.id} is being computed; abandon it first, or wait"
                )
            if attempt is None and not (stored is not None and stored.failed):
                raise UsageError(
                    f"node {node!r} of {self.id} was not given up, so there is nothing to "
                    f"retry; explain() says how it stands"
                )
            if attempt is not None:
                standing.call_off(attempt, Cause.ASKED)
            if stored is not None:
                stored.start_over(None)
                standing.changed.add(node)

        return self._change(work)

    def abandon(self, node: str) -> int:
        """Give up the attempt at a node that is under way, and have it tried again if it may be;
        the revision.
        """
        self._require_computed(node)

        def work(standing: Standing) -> None:
            if standing.cancelled:
                raise self._is_over()
            attempt = standing.open.get(node)
            if attempt is None:
                raise UsageError(
                    f"node {node!r} of {self.id} has no open attempt to abandon; explain() "
                    f"says how it stands"
                )
            if attempt.held != LEASED:
                raise UsageError(
                    f"node {node!r} of {self.id} waits for a worker, nobody is at it; "
                    f"explain() says how it stands"
                )
            standing.end(attempt, Cause.ASKED, error="abandoned by hand")

        return self._change(work)

    def cancel(self) -> int:
        """Call off everything that is open, for good; values stay. The revision."""

        def work(standing: Standing) -> None:
            standing.cancelled = True

        def cancel(tx: Transaction) -> None:
            tx.execute(self._flow.records.sql["cancel"], {"execution": self._number})
            tx.announce(changes_of(self.id))

        return self._change(work, beside=cancel)

    def __repr__(self) -> str:
        return f"<Execution {self.id} of {self.graph} {self.version}>"

    # --- inside ---

    @property
    def _definition(self) -> Graph:
        return self._flow.registry.graphs[self._kind]

    def _is_over(self) -> UsageError:
        return UsageError(f"execution {self.id} was cancelled and changes no more; start another")

    def _require_computed(self, node: str) -> None:
        if self._definition.node(node).is_input:
            raise UsageError(
                f"node {node!r} of graph {self.graph!r} is an input, nobody computes it; set it"
            )

    def _change(
        self,
        work: Callable[[Standing], None],
        *,
        beside: Callable[[Transaction], None] = lambda _: None,
    ) -> int:
        """Change it and bring it up to date, in one transaction; the revision it is at then."""
        registered = self._flow.registry.registered()[self._kind]
        records = self._flow.records

        def transaction(tx: Transaction, lessee: Lessee | None) -> tuple[int, Standing]:
            standing = self._loaded(records.load(tx, [self._number]))
            was_cancelled = standing.cancelled
            work(standing)
            beside(tx)
            if was_cancelled and standing.is_touched:
                raise self._is_over()
            advance(registered.graph, standing, registered.lanes)
            records.save(tx, [standing], {standing.number: self._kind}, lessee)
            return standing.revision, standing

        return self._flow.hands.write(self._flow.database, self._kind, transaction)

    def _standing(self) -> Standing:
        loaded = self._flow.database.read(
            lambda tx: self._flow.records.load(tx, [self._number], to_change=False)
        )
        return self._loaded(loaded)

    def _loaded(self, loaded: Mapping[int, tuple[Standing, Kind]]) -> Standing:
        if self._number not in loaded:
            raise UnknownExecutionError(
                f"there is no execution {self.id!r} any more; its store was restored or emptied"
            )
        return loaded[self._number][0]

    def _value(self, standing: Standing, node: str) -> Value | None:
        if not standing.is_set(node):
            return None
        is_input = self._definition.nodes[node].is_input
        fresh = is_input or survey(self._definition, standing)[node] is Next.FRESH
        return Value(standing.value(node), standing.revision_of(node), fresh)

    def _present(self, node: str, newer_than: int | None) -> Any:
        found = self.value(node)
        if found is None or (newer_than is not None and found.revision <= newer_than):
            raise NotSetError(
                f"node {node!r} of {self.id} has no value"
                + ("" if found is None else f" newer than {newer_than}")
            )
        return found.value

    def _awaited(self, node: str, newer_than: int | None, *, is_told: bool) -> Value | None:
        """What is waited for, if it is there; ComputationFailedError if it will not come."""
        standing = self._flow.database.read(lambda tx: self._looked_at(tx, node, is_told=is_told))
        if standing is None:
            return None
        found = self._value(standing, node)
        if (
            found is not None
            and found.fresh
            and (newer_than is None or found.revision > newer_than)
        ):
            return found
        self._require_hope(standing, node)
        return None

    def _looked_at(self, tx: Transaction, node: str, *, is_told: bool) -> Standing | None:
        """Unless somebody has told, with a glance first, which costs a fraction of a look: most
        end there, nothing to be seen.
        """
        if not is_told:
            rows = tx.rows(
                self._flow.records.sql["glance"], {"execution": self._number, "node": node}
            )
            if rows and not rows[0][0]:
                return None
        return self._loaded(self._flow.records.load(tx, [self._number], to_change=False))

    def _require_hope(self, standing: Standing, node: str) -> None:
        if standing.cancelled:
            raise ComputationFailedError(
                f"node {node!r} of {self.id} will get no value: the execution was cancelled"
            )
        culprit = lost(self._definition, standing).get(node)
        if culprit is not None:
            stored = standing.nodes[culprit]
            who = "it" if culprit == node else f"{culprit!r}, which it waits for,"
            raise ComputationFailedError(
                f"node {node!r} of {self.id} will get no value: {who} failed {stored.spent} "
                f"times: {stored.error};"
                f" `retry` has it tried again"
            )

    def _wait(self, node: str, newer_than: int | None, timeout: float | None) -> Any:
        clock, deadline, is_told = (
            self._flow.clock,
            Deadline.after(timeout, self._flow.clock),
            False,
        )
        with self._flow.waiting(self.id, node) as news:
            while True:
                news.clear()
                if (told := news.take()) is not None and (
                    newer_than is None or told.revision > newer_than
                ):
                    return msgspec.json.decode(told.text)
                found = self._awaited(node, newer_than, is_told=is_told)
                if found is not None:
                    return found.value
                if deadline.expired:
                    waits = self.explain().line(node)
                    raise DeadlineExceededError(
                        f"node {node!r} of {self.id} has no value after {timeout:g} s; {waits}"
                    )
                began = clock.monotonic()
                is_told = (
                    clock.wait(news, deadline.remaining()) and clock.monotonic() - began < _SOON
                )
