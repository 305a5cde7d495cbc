"""What a supervisor has in its state directory: the claim to it, the ledger, and the way to
reach it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events import Events
from longwatch.supervisor.control import ControlServer
from longwatch.supervisor.ledger import Ledger
from longwatch.supervisor.memory import Memory
from longwatch.supervisor.presence import Presence

LEDGER = "supervisor.db"

Answerer = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class StateFiles:
    """Opened when the supervisor starts, closed when it stops. `open` and `close` block; the
    rest is for the loop.
    """

    def __init__(self, state: Path, *, clock: Clock, events: Events) -> None:
        self.state = state
        self._clock = clock
        self._events = events
        self._presence: Presence | None = None
        self._ledger: Ledger | None = None
        self._control: ControlServer | None = None

    def open(self, known: Collection[str], *, forget_after: float) -> dict[str, Memory]:
        """Claim the directory, made if it is new, and read what is remembered."""
        with suppress(OSError):  # the claim tells
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._presence = Presence.claim(self.state)
        ledger = Ledger(self.state / LEDGER, clock=self._clock, events=self._events)
        memories = ledger.read(forget_after=forget_after, known=known)
        ledger.start()
        self._ledger = ledger
        return memories

    async def listen(self, path: Path, answer: Answerer) -> None:
        """Open the control socket and say where it is."""
        assert self._presence is not None
        self._control = ControlServer(path, answer, clock=self._clock, events=self._events)
        await self._control.open()
        self._presence.announce(path)

    def note(self, name: str, memory: Memory) -> None:
        if self._ledger is not None:
            self._ledger.note(name, memory)

    async def saved(self) -> None:
        if self._ledger is not None:
            await self._ledger.settled()

    async def hang_up(self) -> None:
        if self._control is not None:
            await self._control.close()
            self._control = None

    def close(self, deadline: Deadline) -> None:
        if self._ledger is not None:
            self._ledger.stop(deadline=deadline)
            self._ledger = None
        if self._presence is not None:
            self._presence.release()
            self._presence = None
