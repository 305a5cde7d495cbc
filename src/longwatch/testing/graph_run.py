"""Runs a graph in the test's own thread, on a fake clock, with workers that can be killed at every
step.

    with run_graph(graph) as run:
        execution = run.start(url="https://example.org")
        run.crash_at("computed", node="pages")
        run.run_ready()
        assert 2 == run.runs["pages"]
        assert 12 == execution.get("pages", wait=False)

Nothing sleeps, and no other thread runs: `run_ready` computes ready attempts, `advance` lets time
pass. The store is a real one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from longwatch.core.clock import Wakeup
from longwatch.core.events.base import Events
from longwatch.core.fake_clock import FakeClock
from longwatch.core.suggest import did_you_mean
from longwatch.engine.claim_source import ClaimedRow
from longwatch.errors import UsageError
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.flow.execution import Execution
from longwatch.flow.flow import Flow
from longwatch.flow.graph import Graph
from longwatch.store.database import Database
from longwatch.testing.observer import RecordingObserver
from longwatch.testing.stepped_worker import Crash, KilledError, Step, SteppedWorker

_SMALLEST_STEP = 1e-6
_MAX_STEPS = 10_000
_REMAINING_LIMITS = (
    "SELECT moment - :lease_now FROM (SELECT heartbeat_deadline AS moment FROM "
    "longwatch_computations WHERE lease_state = 2"
    " UNION ALL SELECT deadline FROM longwatch_computations WHERE lease_state = 2) AS limits WHERE "
    "moment IS NOT NULL"
)
"""Seconds until each limit of the leased attempts."""


@contextmanager
def run_graph(graph: Graph, store: str | Database | None = None) -> Iterator[GraphRun]:
    """Run a graph in this thread. `store` is a URL or an open store; without it, the store is a new
    SQLite file that is removed at the end. The clocks of a given store are restored at the end.
    """
    with ExitStack() as undo:
        folder = Path(undo.enter_context(TemporaryDirectory(prefix="longwatch-graph-")))
        flow = Flow(
            store or f"sqlite:///{folder}/flow.db",
            [graph],
            auto_migrate=True,
            clock=_NonBlockingClock(wall=time.time()),
        )
        undo.callback(flow.close)
        run = GraphRun(flow, graph, folder)
        undo.callback(run.close)
        yield run


class GraphRun:
    """Starts executions, computes them, lets time pass and kills workers; `run_graph` yields it.

    `runs`      how often the code of each node was called, by its name
    `crashes`   every worker that was killed, in order
    `observer`  records the events of a worker: attempts that failed or were abandoned
    `on_step`   may be set to a function that is called with (step, node) after every step
    `flow`      for other queries: `flow.execution(id)`, `flow.executions()`
    `clock`     the fake clock; `clock.jump_wall` also sets the wall clock of the store
    """

    def __init__(self, flow: Flow, graph: Graph, folder: Path) -> None:
        assert isinstance(flow.clock, FakeClock)
        self.flow = flow
        self.graph = graph
        self.clock: FakeClock = flow.clock
        self.runs: Counter[str] = Counter()
        self.steps: Counter[tuple[Step, str]] = Counter()
        """How often each step of each node was reached."""
        self.crashes: list[Crash] = []
        self.observer = RecordingObserver()
        self.on_step: Callable[[Step, str], object] = lambda _step, _node: None
        self.workers: list[SteppedWorker] = []
        self._folder = folder
        self._planned_crashes: list[_PlannedCrash] = []
        self._is_running = False
        self._until = inf
        """When `advance` ends."""
        self._source = FlowClaimSource(
            flow.database,
            flow.registry,
            clock=self.clock,
            events=Events(self.observer),
            save_callbacks=flow.save_callbacks,
        )
        self._store_clock = _StoreClock(flow.database, self.clock)

    # --- called by a test ---

    def start(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> Execution:
        """Start an execution with these inputs. Computes nothing yet."""
        with self._store_clock.running():
            return self.flow.start(self.graph.name, inputs, version=self.graph.version, **named)

    def run_ready(self) -> int:
        """Compute ready attempts, and those that they make ready, until none is left. Return how
        often code was called.

        After a worker was killed, another one follows and reclaims its attempt, if it can see that
        the first is dead. Attempts that wait for a time or for a missed heartbeat need `advance`.
        """
        if self._is_running:
            raise UsageError(
                "run_ready() is only for the test; code of a node calls advance() to take time"
            )
        before = self.runs.total()
        with self._store_clock.running():
            self._is_running = True
            try:
                self._run_until_idle()
            finally:
                self._is_running = False
        self.flow.save_callbacks.flush()
        return self.runs.total() - before

    def advance(self, seconds: float) -> None:
        """Compute ready attempts, then let time pass, also on the clocks of the store, from one due
        time to the next.

        At each due time it sweeps and computes ready attempts, as workers do. Called in the code of
        a node, it is the time that the code takes: the heartbeat is renewed, limits apply, and no
        other attempt is computed.

        Calls to the store take real time too: an attempt that is due in 10 s is due after
        `advance(10)`, and maybe after 9.99. Code that itself takes time may make it pass by more
        than `seconds`; no code is called after that.
        """
        with self._store_clock.running(), self._computing_until(seconds):
            self._run_due()
            target = self._until = self.clock.monotonic() + seconds
            while (wait := self._next_due()) is not None and self.clock.monotonic() + wait < target:
                self._advance_by(wait)
            self._advance_by(target - self.clock.monotonic())

    def finish(self) -> None:
        """Compute ready attempts, and let time pass until no attempt waits for it."""
        with self._store_clock.running():
            self.run_ready()
            for _ in range(_MAX_STEPS):
                wait = self._next_due()
                if wait is None:
                    return
                self._advance_by(wait)
        raise AssertionError(
            f"expected nothing due after {_MAX_STEPS} steps of the clock; use advance()"
        )

    def crash_at(
        self, step: str, *, node: str | None = None, times: int = 1, on_other_host: bool = False
    ) -> None:
        """Kill the next worker that reaches this step, of this node or of any node.

        The next worker finds that it is dead, and reads its beat page. `on_other_host`: it was on
        another machine, so only its missing heartbeat shows that. `times`: kill this many workers,
        one after the other.
        """
        if node is not None:
            self.graph.node(node)
        self._planned_crashes += [_PlannedCrash(_parse_step(step), node, on_other_host)] * times

    def settle_late(self) -> list[bool]:
        """Settle the results of the killed workers, as if they had only been delayed. Return for
        each whether the store accepted it.
        """
        late = [
            result for worker in self.workers if worker.is_dead and (result := worker.late_result)
        ]
        return self._source.settle(late)

    def close(self) -> None:
        """Close the last worker and restore the clocks of the store."""
        for worker in self.workers:
            if not worker.is_dead:
                worker.leave()
        self._store_clock.restore()

    # --- computing ---

    @contextmanager
    def _computing_until(self, seconds: float) -> Iterator[None]:
        """Call no more code once so many seconds have passed."""
        before, self._until = self._until, self.clock.monotonic() + seconds
        try:
            yield
        finally:
            self._until = before

    def _run_until_idle(self) -> None:
        for _ in range(_MAX_STEPS):
            if self.clock.monotonic() > self._until + _SMALLEST_STEP or not self._run_one():
                return
        raise AssertionError(
            f"expected no ready attempt after {_MAX_STEPS} of them; a tick that is faster than the "
            f"code behind it never lets the graph rest"
        )

    def _run_one(self) -> bool:
        """Compute one attempt, or handle the death of its worker. Return False if none is ready."""
        try:
            return self._worker().run_one()
        except KilledError:
            self._source.sweeper.reclaim_from_dead_owners()
            return True

    def _worker(self) -> SteppedWorker:
        if not self.workers or self.workers[-1].is_dead:
            self.workers.append(
                SteppedWorker(self.flow, self._folder, self._step_done, self.observer)
            )
        return self.workers[-1]

    def _step_done(self, step: Step, leased: ClaimedRow) -> None:
        self.steps[step, leased.item.node] += 1
        for planned in self._planned_crashes:
            if planned.step is step and planned.node in {None, leased.item.node}:
                self._planned_crashes.remove(planned)
                self._kill(planned, leased)
        self.runs[leased.item.node] += step is Step.BEGUN and leased.item.due_at is None
        self.on_step(step, leased.item.node)

    def _kill(self, planned: _PlannedCrash, leased: ClaimedRow) -> None:
        item = leased.item
        self.crashes.append(
            Crash(
                planned.step,
                item.id,
                item.node,
                item.number,
                leased.claim,
                planned.on_other_host,
                item.element,
                item.due_at is not None,
            )
        )
        self.workers[-1].die(on_other_host=planned.on_other_host)

    # --- time ---

    def _next_due(self) -> float | None:
        """Return the seconds until the next waiting attempt, limit of a leased attempt, or
        heartbeat of a running one.
        """
        waits = [
            self._source.next_due() or 0.0,
            *self._limits(),
            self._running().next_tick() if self._is_running else 0.0,
        ]
        due = [wait for wait in waits if wait > 0]
        return max(min(due), _SMALLEST_STEP) if due else None

    def _advance_by(self, seconds: float) -> None:
        self._store_clock.advance(max(seconds, 0.0))
        self._run_due()

    def _run_due(self) -> None:
        """Do what workers do when something is due."""
        if self._is_running:
            self._running().tick()
        if not self._is_running or any(left < 0 for left in self._limits()):
            self._source.sweeper.sweep_all()
        if not self._is_running:
            self.run_ready()

    def _limits(self) -> list[float]:
        return [left for (left,) in self.flow.database.read(lambda tx: tx.rows(_REMAINING_LIMITS))]

    def _running(self) -> SteppedWorker:
        """Return the worker that runs the code of a node. Raises if the worker was killed, so that
        its code stops.
        """
        if self.workers[-1].is_dead:
            raise KilledError
        return self.workers[-1]


class _PlannedCrash(NamedTuple):
    """A crash that a test has asked for."""

    step: Step
    node: str | None
    on_other_host: bool


class _NonBlockingClock(FakeClock):
    """A fake clock that raises instead of blocking, because no other thread could wake it."""

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        if wakeup.is_set() or timeout == 0:
            return wakeup.is_set()
        raise AssertionError(
            "this wait would never end; call run.run_ready() or run.advance() first, or get with "
            "wait=False"
        )


class _StoreClock:
    """Moves the clocks of a store with a fake clock, and stops them in between, so that nothing
    becomes due by real time.

    Forgets the scan bounds of claims when it sets the wall clock back. Claims could otherwise miss
    due attempts until a full scan, which comes after seconds of real time (`scan_bound`).
    """

    def __init__(self, database: Database, clock: FakeClock) -> None:
        self._scan_bounds = database.scan_bounds
        self._jump = database.jump
        self._before = replace(database.jump)
        self._clock = clock
        self._wall = clock.wall()
        self._stopped = time.monotonic()
        self._depth = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the store's clocks run inside this context, from where they stopped."""
        if self._depth == 0:
            self._move(self._stopped - time.monotonic())
        jumped = self._clock.wall() - self._wall
        self._jump.wall += jumped
        self._wall = self._clock.wall()
        if jumped < 0:
            self._scan_bounds.clear()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._stopped = time.monotonic()

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)
        self._wall = self._clock.wall()
        self._move(seconds)

    def restore(self) -> None:
        self._jump.lease, self._jump.wall = self._before.lease, self._before.wall
        self._scan_bounds.clear()

    def _move(self, seconds: float) -> None:
        self._jump.lease += seconds
        self._jump.wall += seconds


def _parse_step(name: str) -> Step:
    if name in set(Step):
        return Step(name)
    hint = did_you_mean(str(name), list(Step), default=f"use one of {', '.join(Step)}")
    raise UsageError(f"expected a step of an attempt, got {name!r}; {hint}")
