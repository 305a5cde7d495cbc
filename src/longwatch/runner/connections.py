"""The connections of a runner: one task for each source that it holds.

`hold` is called with the sources that are held, from any thread, whenever they change. Connections
are made and cancelled on the event loop, in the order of these calls. This module keeps the states
of connections for health checks. A separate thread writes them to the store, because the loop must
not wait for the store. A state is written as soon as it changes. Once a write has failed, the next
one comes at its interval, so that a store that is down is not tried at each change.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.errors import DeadlineExceededError, ServiceStateError
from longwatch.host.loop import EventLoopThread
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.runner.connection import ConnectionPhase, ConnectionState, SourceConnection
from longwatch.runner.event_store import EventStore
from longwatch.runner.policy import RunnerPolicy, SourceSpec
from longwatch.runner.seams import EventIntake

STAGGER = 0.1
"""Seconds between the first dials of two sources."""
MAX_STAGGER = 5.0
"""Seconds within which all sources are dialled for the first time."""
WRITE_INTERVAL = 30.0


class SourceConnections(Service):
    """Keeps the sources connected that the runner holds. Thread-safe.

    `stop` cancels the connections and returns when they are closed. The caller owns `loop`: it
    starts it before and stops it after this.
    """

    def __init__(  # noqa: PLR0913 - the sources and everything that a connection uses
        self,
        sources: Sequence[SourceSpec],
        policy: RunnerPolicy,
        intake: EventIntake,
        store: EventStore,
        *,
        loop: EventLoopThread,
        clock: Clock,
        events: Events,
    ) -> None:
        super().__init__(name="runner-connections", clock=clock)
        self._sources = {spec.name: spec for spec in sources}
        self._policy = policy
        self._intake = intake
        self._store = store
        self._loop = loop
        self._events = events
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._connection_states: dict[str, ConnectionState] = {}
        self._unwritten: dict[str, ConnectionState] = {}
        self._lock = threading.Lock()
        self._is_open = False
        self._is_first = True
        self._is_store_failing = False
        self._writer = Periodic(
            self._write_states,
            Cadence(interval=WRITE_INTERVAL, immediately=False),
            name="runner-connection-states",
            clock=clock,
            events=events,
        )

    def active(self) -> int:
        """How many sources are connected."""
        with self._lock:
            states = list(self._connection_states.values())
        return sum(state.phase is ConnectionPhase.CONNECTED for state in states)

    def states(self) -> Mapping[str, ConnectionState]:
        """The state of each connection."""
        with self._lock:
            return dict(self._connection_states)

    def hold(self, held: Iterable[str]) -> None:
        """Connect these sources and no others. Does not block. Before the start and after the stop
        it connects none.
        """
        names = frozenset(held)
        with suppress(ServiceStateError):  # the loop is stopping, and with it the connections
            if self._is_open:
                self._loop.spawn(self._follow(names))

    # --- the service ---

    def _start(self) -> None:
        self._is_open, self._is_first, self._is_store_failing = True, True, False
        self._writer.start()

    def _stop(self, deadline: Deadline) -> bool:
        self._is_open = False
        try:
            self._loop.call(self._close(), timeout=deadline.remaining())
        except (DeadlineExceededError, ServiceStateError):
            return False
        return self._writer.stop(deadline=deadline)

    # --- on the loop ---

    async def _follow(self, held: frozenset[str]) -> None:
        for name in self._tasks.keys() - held:
            self._cancel(name)
        new = sorted(held & self._sources.keys() - self._tasks.keys()) if self._is_open else []
        gap = min(STAGGER, MAX_STAGGER / max(len(new), 1)) if self._is_first else 0.0
        self._is_first = self._is_first and not new
        for index, name in enumerate(new):
            connection = SourceConnection(
                self._sources[name],
                self._policy,
                self._intake,
                clock=self._clock,
                events=self._events,
                report=partial(self._report, name),
                start_delay=index * gap,
            )
            self._tasks[name] = asyncio.get_running_loop().create_task(connection.run())

    async def _close(self) -> None:
        tasks = list(self._tasks.values())
        for name in list(self._tasks):
            self._cancel(name)
        if tasks:
            await asyncio.wait(tasks)

    def _cancel(self, name: str) -> None:
        self._tasks.pop(name).cancel()
        with self._lock:
            self._connection_states.pop(name, None)

    def _report(self, name: str, state: ConnectionState) -> None:
        if name not in self._tasks:
            return  # it was cancelled, and another runner may hold the source
        with self._lock:
            self._connection_states[name] = self._unwritten[name] = state
        if not self._is_store_failing:
            self._writer.wake()

    # --- in the thread of the writer ---

    def _write_states(self) -> None:
        """Write the changed states. States that could not be written are tried again at the next
        round.
        """
        with self._lock:
            unwritten, self._unwritten = self._unwritten, {}
        for name in list(unwritten):
            state = unwritten[name]
            try:
                self._store.report_connection(
                    name, state=state.phase.value, reconnects=state.reconnects, error=state.error
                )
            except BaseException:
                self._is_store_failing = True
                with self._lock:
                    self._unwritten = {**unwritten, **self._unwritten}
                raise
            del unwritten[name]
            self._is_store_failing = False
