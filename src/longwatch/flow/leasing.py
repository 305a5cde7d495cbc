"""Attempts that a worker has from the first moment on: leased in the statement that makes them.

Whoever makes an attempt ready, and has or knows a worker with room, leases it to that at once,
where nobody waits in line before it. That saves the claim: a statement, a change of the row, and
where the store is a server, a round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from math import inf

from longwatch.core.clock import Clock, Wakeup
from longwatch.flow.records import Kind
from longwatch.flow.standing import LEASED, Attempt, Opening, Standing
from longwatch.store.claims import Claim
from longwatch.store.database import Row
from longwatch.work.source import Leased

_BELIEVED_FOR = 0.05
"""Seconds for which it is believed that nobody waits in line: as long somebody may be overtaken
whose coming was not heard of.
"""
_DUE_FOR = 1.0
"""The same for when a delayed attempt is due."""
_MOST_RECALLED = 1000
_LARGEST_RECALLED = 64 << 10

Made = Callable[[Standing, Opening, Claim], Leased]


class FromBirth:
    """A worker with room for some attempts, for one transaction: those that were born its own. A
    `records.Lessee`.

    `lanes` are the lines from which as many may be taken as there are.
    """

    def __init__(self, owner: int, room: int, lanes: Container[int], made: Made) -> None:
        self.owner = owner
        self.leased: list[Leased] = []
        self.attempts: dict[int, dict[str, Attempt]] = {}
        self.is_entered = True
        self._room = room
        self._lanes = lanes
        self._made = made
        self.promised = 0

    @property
    def is_whole(self) -> bool:
        """Whether it was told of all that it has."""
        return len(self.leased) == self.promised

    def takes(self, opening: Opening) -> bool:
        """One that has crashed before waits in line: it has to run alone."""
        if (
            self.promised >= self._room
            or opening.delay
            or opening.crashes
            or opening.terms.lane not in self._lanes
        ):
            return False
        self.promised += 1
        return True

    def bear(self, standing: Standing, opening: Opening, rows: Sequence[Row]) -> None:
        [(seq, owner, term, execution, node, is_entered)] = rows
        attempt = Attempt(
            seq, node, LEASED, opening.computed_with, opening.number, opening.terms, term, owner
        )
        self.attempts.setdefault(execution, {})[node] = attempt
        self.leased.append(self._made(standing, opening, Claim(seq, owner, term)))
        self.is_entered = self.is_entered and bool(is_entered)


class Lookout:
    """What is known of the lines without asking: from the last look, until somebody tells of more,
    and for a while only.

    As long as nobody listens, nothing is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told = Wakeup()
        self._listening = 0
        self._nobody_until = -inf
        self._due: float | None = None
        self._due_until = -inf

    def listen(self, wakeup: Wakeup) -> tuple[Wakeup, Callable[[], None]]:
        """What is to be set when there is more; it sets the wakeup. With what ends that."""
        forget = self._told.listen(wakeup.set)
        self._listening += 1

        def leave() -> None:
            self._listening -= 1
            forget()

        return self._told, leave

    def looks(self) -> None:
        """Before a look: what is told from now on is news."""
        self._told.clear()
        self._nobody_until = self._due_until = -inf

    def saw(self, *, anybody: bool) -> None:
        """In line."""
        self._nobody_until = -inf if anybody else self._clock.monotonic() + _BELIEVED_FOR
        if anybody:
            self._due_until = -inf

    @property
    def sees_nobody(self) -> bool:
        """In line."""
        return self._knows(self._nobody_until)

    def due(self, ask: Callable[[], float | None]) -> float | None:
        """Seconds until something that is delayed is due; None if nothing is."""
        now = self._clock.monotonic()
        if not self._knows(self._due_until):
            wait = ask()
            self._due, self._due_until = None if wait is None else now + wait, now + _DUE_FOR
        return None if self._due is None else max(self._due - now, 0.0)

    def _knows(self, until: float) -> bool:
        return self._listening > 0 and not self._told.is_set() and self._clock.monotonic() < until


class Recall:
    """Executions as this worker has left them, those that nobody else is at: what it does next to
    one need not read it again.

    They are taken out to be used, once; `Records.require` makes sure that nobody has changed them.
    Every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Standing, Kind]] = {}

    def take(self, numbers: Iterable[int]) -> dict[int, tuple[Standing, Kind]] | None:
        """All of these; None if one is not known."""
        found = {number: self._known.pop(number, None) for number in set(numbers)}
        whole = {number: each for number, each in found.items() if each is not None}
        return whole if len(whole) == len(found) else None

    def keep(self, written: Iterable[tuple[Standing, Kind]], lessee: FromBirth) -> None:
        """These were just written, and the lessee was given some of their attempts."""
        for standing, kind in written:
            begun = lessee.attempts.get(standing.number, {})
            if len(begun) == len(standing.openings) and lessee.is_whole:
                standing.written(begun)
                if _is_for(standing, lessee.owner):
                    self._known[standing.number] = standing, kind
        for number in list(self._known)[:-_MOST_RECALLED]:
            self._known.pop(number, None)


def _is_for(standing: Standing, owner: int) -> bool:
    """Whether all that is open is this worker's, and it is small enough to be kept."""
    if (
        standing.cancelled
        or not standing.open
        or any(attempt.owner != owner for attempt in standing.open.values())
    ):
        return False
    return sum(len(stored.value or "") for stored in standing.nodes.values()) <= _LARGEST_RECALLED
