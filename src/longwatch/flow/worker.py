"""A worker: computes what is ready, of some graphs, on the slots of the work engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Self

from longwatch.core.clock import Wakeup
from longwatch.core.events import Events
from longwatch.core.lease import LeasePolicy
from longwatch.errors import UsageError
from longwatch.flow.apart import ProcessRunner
from longwatch.flow.graph import Graph
from longwatch.flow.options import is_number, is_whole
from longwatch.flow.overtime import Overtime
from longwatch.flow.records import endings_of
from longwatch.flow.running import AttemptRunner
from longwatch.flow.source import FlowSource
from longwatch.flow.sweeping import SWEEP_EVERY
from longwatch.host.errand import Errand
from longwatch.work.engine import Engine
from longwatch.work.engine_loop import EngineLoop
from longwatch.work.place import Place
from longwatch.work.policy import MOST_SLOTS, EnginePolicy, Surroundings

if TYPE_CHECKING:
    from longwatch.flow.flow import Flow

_A_THIRD = 1 / 3
_AHEAD = 4
"""Attempts for each slot that wait here at the most."""
_PATIENCE = 30.0
"""Seconds that the end of a `with` waits for what runs, unless a worker has its own."""
_CHILDREN_END_WITHIN = 10.0
"""Seconds; they are killed at once, and are gone before that unless the machine hangs."""


class FlowWorker(EngineLoop):
    """Computes nodes, `concurrency` at a time, until it is shut down; made by `Flow.worker`.

    `with worker:` has it run in a thread of its own for the length of the block; `run` blocks; in a
    LoopGroup it is a loop like any other. It renews the heartbeats of all it has in one statement,
    and sweeps every `sweep_interval_seconds`.
    """

    def __init__(  # noqa: PLR0913 - what a worker can be told
        self,
        flow: Flow,
        *,
        concurrency: int = 8,
        name: str | None = None,
        sweep_interval_seconds: float = SWEEP_EVERY,
        shutdown_timeout: float | None = None,
        events: Events | None = None,
    ) -> None:
        super().__init__(
            name=name, shutdown_timeout=shutdown_timeout, clock=flow.clock, events=events
        )
        if not is_whole(concurrency, most=MOST_SLOTS):
            raise UsageError(
                f"concurrency must be a whole number from 1 to {MOST_SLOTS}, not {concurrency!r}"
            )
        if not (is_number(sweep_interval_seconds) and sweep_interval_seconds > 0):
            raise UsageError(
                f"sweep_interval_seconds must be a number above 0, not {sweep_interval_seconds!r}"
            )
        if not flow.registry.graphs:
            raise UsageError(
                "this Flow was given no graphs, so a worker would have nothing to do; write "
                "Flow(store, graphs=[...])"
            )
        self.flow = flow
        self.concurrency = concurrency
        self._flow_source = FlowSource(
            flow.database,
            flow.registry,
            waiters=flow.waiters,
            sweep_every=sweep_interval_seconds,
            clock=self.clock,
        )
        self._overtime: Overtime | None = None
        self._apart: ProcessRunner | None = None
        self._errand: Errand | None = None

    def __enter__(self) -> Self:
        self._errand = Errand(self.run, name=self._called, loud=True)
        self._errand.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        errand, self._errand = self._errand, None
        self.shutdown(timeout=_PATIENCE if self.shutdown_timeout is None else self.shutdown_timeout)
        if errand is not None:
            errand.over.block(None)

    def __repr__(self) -> str:
        return f"<FlowWorker {self._called} of {self.flow!r}>"

    # --- what the engine is given ---

    @property
    def _source(self) -> FlowSource:
        return self._flow_source

    @property
    def home(self) -> object:
        return self.flow.database.identity

    def _runner(self, place: Place) -> AttemptRunner:
        policy = EnginePolicy()
        around = Surroundings(place.name, policy, self.clock, place.events, self.heartbeat)
        self._flow_source.sweeping.events = place.events
        overtime = self._overtime = Overtime(self._flow_source.settle, around)
        self._apart = ProcessRunner(clock=self.clock, events=place.events, left=self._time_left)
        return AttemptRunner(self._graph_of, overtime, self._apart, clock=self.clock)

    def _policy(self, polls: int | None, visibility: float, wait: float) -> EnginePolicy:  # noqa: ARG002 - nodes have their own
        """Little is claimed ahead: the deadline of an attempt counts from its claim."""
        return EnginePolicy(
            slots=self.concurrency,
            lease=self._lease(),
            polls=polls,
            poll_wait=wait,
            most_ahead=_AHEAD * self.concurrency,
        )

    def _lease(self) -> LeasePolicy:
        """By the node that has to be renewed most often, and the one that dies soonest."""
        options = [
            node.options
            for node in chain.from_iterable(
                graph.order for graph in self.flow.registry.graphs.values()
            )
        ]
        if not options:
            return LeasePolicy(240.0)
        shortest = min(each.heartbeat_timeout_seconds for each in options)
        interval = min(each.heartbeat_interval_seconds for each in options)
        return LeasePolicy(shortest, renew_at=min(interval / shortest, _A_THIRD))

    @contextmanager
    def _alongside(self, engine: Engine, place: Place) -> Iterator[None]:  # noqa: ARG002 - the contract
        """Deadlines are watched, attempts that are called off elsewhere are noticed, and
        children end after all else.
        """
        assert self._overtime is not None
        assert self._apart is not None
        over = Wakeup()
        over.listen(engine.doubt)
        with ExitStack() as undo:
            undo.callback(self._apart.stop, timeout=_CHILDREN_END_WITHIN)
            undo.callback(
                self.flow.database.listen(map(endings_of, self.flow.registry.graphs), over)
            )
            undo.enter_context(self._overtime.watching())
            undo.enter_context(self.flow.hands.lent(engine, self._flow_source))
            yield

    def _graph_of(self, lane: int) -> Graph:
        for registered in self.flow.registry.registered().values():
            if any(line.lane == lane for line in registered.lines):
                return registered.graph
        raise LookupError(f"line {lane} is of no graph that is known here")

    def _time_left(self) -> float | None:
        turn = self._turns.present
        return None if turn is None else turn.deadline.remaining()
