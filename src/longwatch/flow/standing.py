"""How an execution stands, and what becomes of it: pure decisions over what one transaction has
read, and what it will write.

    put, unset      an input changes: one revision for all that change together
    succeed         an attempt has a result: the same as before stops the wave, another is a new
                    revision
    end             an attempt came to nothing: it is spent, and there is another unless there were
                    enough of them; the one way for what raised, and for what was abandoned by a
                    sweep, at its deadline or by hand
    `advancing.advance` then opens, clears and calls off what follows from it.

Attempts are compared by what they are computed with: the revisions of everything that their node
depends on, as a text. So one that was begun with other inputs is known as such, and so are the
attempts that were spent on other inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from longwatch.core.storable import storable

LONGEST_ERROR = 4000
ENDED = 3
"""What `held` says of an attempt that is over; below that as of every claimable row."""
LEASED = 2
_PLAIN = msgspec.json.Encoder(order="deterministic")


class State(StrEnum):
    """Of one attempt. The first two are open."""

    NOT_SET = "not_set"
    COMPUTING = "computing"
    SUCCESS = "success"
    FAILED = "failed"
    ABANDONED = "abandoned"
    CANCELLED = "cancelled"


class Cause(StrEnum):
    """Why an attempt is over, where its state does not say it all."""

    DONE = "done"
    RAISED = "raised"
    PERMANENT = "permanent"
    DEADLINE = "deadline"
    HEARTBEAT = "heartbeat"
    CRASH = "crash"
    STALLED = "stalled"
    MEMORY = "memory"
    KILLED = "killed"
    ASKED = "asked"
    SUPERSEDED = "superseded"
    GATE = "gate"
    EXECUTION = "execution"


ABANDONING = frozenset(
    {
        Cause.DEADLINE,
        Cause.HEARTBEAT,
        Cause.CRASH,
        Cause.STALLED,
        Cause.MEMORY,
        Cause.KILLED,
        Cause.ASKED,
    }
)
"""Causes that make an attempt abandoned rather than failed: nobody knows how far it came."""


@dataclass(slots=True)
class Stored:
    """What is kept of a node: its value, as JSON, and the attempts that were spent on its
    present inputs.
    """

    is_set: bool = False
    value: str | None = None
    revision: int = 0
    computed_with: str | None = None
    tried_with: str | None = None
    spent: int = 0
    crashes: int = 0
    failed: bool = False
    error: str | None = None
    term: int = 0
    """The highest of its attempts that are over."""

    def start_over(self, inputs: str | None) -> None:
        """Attempts are counted anew."""
        self.tried_with, self.spent, self.crashes, self.failed, self.error = (
            inputs,
            0,
            0,
            False,
            None,
        )


class Terms(NamedTuple):
    """How an attempt is made: where it waits in line, and its limits."""

    lane: int
    heartbeat_timeout: float | None
    abandon_after: float
    max_attempts: int


class Attempt(NamedTuple):
    """An attempt that is open."""

    seq: int
    node: str
    held: int
    computed_with: str
    number: int
    terms: Terms
    term: int = 0
    owner: int | None = None


class Opening(NamedTuple):
    """An attempt to be made."""

    node: str
    computed_with: str
    number: int
    crashes: int
    delay: float
    terms: Terms


class Closing(NamedTuple):
    """How an open attempt is over."""

    seq: int
    state: State
    cause: Cause
    error: str | None = None


class Standing:
    """One execution, for the length of a transaction that has it to itself. It is a `gates.View`.

    `changes`: how often it was written; None for one that is new. Two with the same number of
    changes are the same, but for who is at the open attempts.
    """

    def __init__(
        self,
        number: int,
        name: str,
        *,
        revision: int = 0,
        cancelled: bool = False,
        changes: int | None = None,
    ) -> None:
        self.number = number
        self.id = name
        self.revision = revision
        self.cancelled = cancelled
        self.changes = changes
        self.nodes: dict[str, Stored] = {}
        self.open: dict[str, Attempt] = {}
        self.changed: set[str] = set()
        self.openings: dict[str, Opening] = {}
        self.closings: list[Closing] = []
        self._closed: list[Attempt] = []
        self._confirmed = False
        self._seen = revision

    # --- asked ---

    def node(self, name: str) -> Stored:
        return self.nodes.setdefault(name, Stored())

    def is_set(self, node: str) -> bool:
        found = self.nodes.get(node)
        return found is not None and found.is_set

    def value(self, node: str) -> Any:
        return msgspec.json.decode(self.nodes[node].value or "null")

    def revision_of(self, node: str) -> int:
        """0 for one that is not set."""
        found = self.nodes.get(node)
        return found.revision if found is not None and found.is_set else 0

    @property
    def is_touched(self) -> bool:
        return bool(self.changed or self.openings or self.closings or self.revision != self._seen)

    @property
    def concerns_all(self) -> bool:
        """Whether it changes something for nodes that have not changed: one was given up, or
        turned out to be as it was.
        """
        return (
            self.cancelled
            or self._confirmed
            or any(self.nodes[node].failed for node in self.changed)
        )

    @property
    def calls_off_running(self) -> bool:
        """Whether a worker somewhere is at something that is over now."""
        over = {
            closing.seq
            for closing in self.closings
            if closing.state is State.CANCELLED or closing.cause is Cause.ASKED
        }
        return any(attempt.held == LEASED and attempt.seq in over for attempt in self._closed)

    # --- told ---

    def put(self, node: str, value: str) -> None:
        """Set a node; nothing if that is its value already."""
        stored = self.node(node)
        if stored.is_set and _same(stored.value, value):
            return
        stored.is_set, stored.value, stored.revision = True, value, self._next_revision()
        self.changed.add(node)

    def unset(self, node: str) -> None:
        """Take its value from a node; nothing if it has none."""
        stored = self.node(node)
        if stored.is_set:
            stored.is_set, stored.value, stored.computed_with, stored.revision = (
                False,
                None,
                None,
                self._next_revision(),
            )
            self.changed.add(node)

    def succeed(self, attempt: Attempt, value: str) -> None:
        """It has a result."""
        self._close(attempt, State.SUCCESS, Cause.DONE)
        stored = self.node(attempt.node)
        before = stored.revision
        self.put(attempt.node, value)
        self._confirmed = self._confirmed or stored.revision == before
        stored.computed_with = attempt.computed_with
        stored.start_over(None)
        self.changed.add(attempt.node)

    def end(
        self, attempt: Attempt, cause: Cause, *, error: str | None = None, delay: float = 0.0
    ) -> None:
        """It came to nothing: counted, and tried again after the delay, unless that was the last
        time.
        """
        error = None if error is None else storable(error, longest=LONGEST_ERROR)
        self._close(attempt, State.ABANDONED if cause in ABANDONING else State.FAILED, cause, error)
        stored = self.node(attempt.node)
        if stored.tried_with != attempt.computed_with:
            stored.start_over(attempt.computed_with)
        stored.spent += 1
        stored.crashes += cause is Cause.CRASH
        stored.error = error or str(cause)
        stored.failed = cause is Cause.PERMANENT or stored.spent >= attempt.terms.max_attempts
        self.changed.add(attempt.node)
        if not (stored.failed or self.cancelled):
            self.begin(attempt.node, attempt.computed_with, attempt.terms, delay=delay)

    def call_off(self, attempt: Attempt, cause: Cause) -> None:
        """It is not wanted any more."""
        self._close(attempt, State.CANCELLED, cause)

    def begin(self, node: str, inputs: str, terms: Terms, *, delay: float = 0.0) -> None:
        """Have a node computed from these inputs."""
        stored = self.nodes.get(node)
        spent, crashes = (
            (stored.spent, stored.crashes)
            if stored is not None and stored.tried_with == inputs
            else (0, 0)
        )
        self.openings[node] = Opening(node, inputs, spent + 1, crashes, delay, terms)

    def forget_others(self, node: str, inputs: str) -> None:
        """What was to be tried, or was given up, with other inputs than these is not any more."""
        opening, stored = self.openings.get(node), self.nodes.get(node)
        if opening is not None and opening.computed_with != inputs:
            del self.openings[node]
        if stored is not None and stored.failed and stored.tried_with != inputs:
            stored.start_over(None)
            self.changed.add(node)

    def written(self, begun: Mapping[str, Attempt]) -> None:
        """What was decided stands in the store: it is as if it had been read from there.
        `begun`: what became of the openings.
        """
        self.open.update(begun)
        self.changes = 0 if self.changes is None else self.changes + 1
        self._seen, self._confirmed = self.revision, False
        for decided in (self.changed, self.openings, self.closings, self._closed):
            decided.clear()

    def _close(
        self, attempt: Attempt, state: State, cause: Cause, error: str | None = None
    ) -> None:
        if self.open.get(attempt.node) == attempt:
            del self.open[attempt.node]
        stored = self.node(attempt.node)
        stored.term = max(stored.term, attempt.term)
        self.changed.add(attempt.node)
        self._closed.append(attempt)
        self.closings.append(Closing(attempt.seq, state, cause, error))

    def _next_revision(self) -> int:
        """One for everything that changes in this transaction."""
        self.revision = self._seen + 1
        return self.revision


def _same(old: str | None, new: str) -> bool:
    """Whether two texts are the same value: equal, or the same keys in another order."""
    if old == new or old is None or len(old) != len(new):
        return old == new
    try:
        return _PLAIN.encode(msgspec.json.decode(old)) == _PLAIN.encode(msgspec.json.decode(new))
    except RecursionError:  # too deep to be compared; that it may be the same costs a computation
        return False
