"""`FlowWorker`: claims ready attempts of some graphs and runs them in the slots of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Self

from longwatch.core.clock import Wakeup
from longwatch.core.events.base import Events
from longwatch.core.lease import LeasePolicy
from longwatch.engine.engine import Engine
from longwatch.engine.engine_loop import EngineLoop, Gauge
from longwatch.engine.policy import (
    MAX_SLOTS,
    EngineContext,
    EngineEnvironment,
    EnginePolicy,
    RowKind,
)
from longwatch.errors import UsageError
from longwatch.flow.attempt_runner import AttemptRunner, is_async_node
from longwatch.flow.attempt_watchdog import AttemptWatchdog
from longwatch.flow.backlog import backlog_gauges, read_backlog
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.flow.graph import Graph
from longwatch.flow.isolated.process_runner import ProcessRunner
from longwatch.flow.node_options import is_finite_number, is_positive_int
from longwatch.flow.nodes import Node
from longwatch.flow.records import cancel_channel
from longwatch.flow.save_callbacks import FLUSH_TIMEOUT
from longwatch.flow.spans import read_trace
from longwatch.flow.sweeper import SWEEP_INTERVAL
from longwatch.host.background_thread import BackgroundThread

if TYPE_CHECKING:
    from longwatch.flow.flow import Flow

_RENEW_AT = 1 / 3
_MAX_PREFETCH_PER_SLOT = 4
"""The most attempts that are prefetched for each slot."""
_EXIT_TIMEOUT = 30.0
"""Seconds that the end of a `with` waits for running attempts, unless `shutdown_timeout` is set."""
_CHILD_STOP_TIMEOUT = 10.0
"""Seconds to wait for killed child processes; they take as long only if the machine hangs."""


class FlowWorker(EngineLoop):
    """Computes nodes, `concurrency` at a time, until it is shut down; made by `Flow.worker`.

    `with worker:` runs it in a thread of its own during the block. `run` blocks. A LoopGroup runs
    it like any other loop. It renews the heartbeats of all its attempts in one statement, and
    sweeps every `sweep_interval_seconds`.
    """

    def __init__(  # noqa: PLR0913 - the settings of a worker
        self,
        flow: Flow,
        *,
        concurrency: int = 8,
        name: str | None = None,
        sweep_interval_seconds: float = SWEEP_INTERVAL,
        shutdown_timeout: float | None = None,
        events: Events | None = None,
    ) -> None:
        super().__init__(
            name=name, shutdown_timeout=shutdown_timeout, clock=flow.clock, events=events
        )
        if not is_positive_int(concurrency, maximum=MAX_SLOTS):
            raise UsageError(
                f"concurrency must be a whole number from 1 to {MAX_SLOTS}, not {concurrency!r}"
            )
        if not (is_finite_number(sweep_interval_seconds) and sweep_interval_seconds > 0):
            raise UsageError(
                f"sweep_interval_seconds must be a number above 0, not {sweep_interval_seconds!r}"
            )
        if not flow.registry.graphs:
            raise UsageError(
                "this Flow has no graphs, so a worker would have nothing to do; write "
                "Flow(store, graphs=[...])"
            )
        self.flow = flow
        self.concurrency = concurrency
        self._claim_source = FlowClaimSource(
            flow.database,
            flow.registry,
            waiters=flow.waiters,
            save_callbacks=flow.save_callbacks,
            sweep_interval=sweep_interval_seconds,
            clock=self.clock,
        )
        self._watchdog: AttemptWatchdog | None = None
        self._process_runner: ProcessRunner | None = None
        self._thread: BackgroundThread | None = None

    def __enter__(self) -> Self:
        self._thread = BackgroundThread(self.run, name=self._display_name, report_errors=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread, self._thread = self._thread, None
        self.shutdown(
            timeout=_EXIT_TIMEOUT if self.shutdown_timeout is None else self.shutdown_timeout
        )
        if thread is not None:
            thread.done.block(None)

    def __repr__(self) -> str:
        return f"<FlowWorker {self._display_name} of {self.flow!r}>"

    # --- for the engine ---

    @property
    def _source(self) -> FlowClaimSource:
        return self._claim_source

    @property
    def store_identity(self) -> object:
        return self.flow.database.identity

    def store_place(self) -> dict[str, str]:
        return self._claim_source.place()

    def store_gauges(self) -> list[Gauge]:
        """Read the backlog of all graphs of the store, in one query. Blocks on the store."""
        found = read_backlog(self.flow.database, self.flow.records)
        return list(chain.from_iterable(map(backlog_gauges, found)))

    def _make_runner(self, environment: EngineEnvironment) -> AttemptRunner:
        policy = EnginePolicy()
        engine_context = EngineContext(
            environment.name, policy, self.clock, environment.events, self.heartbeat
        )
        self._claim_source.emit_to(environment.events)
        watchdog = self._watchdog = AttemptWatchdog(self._claim_source.settle, engine_context)
        self._process_runner = ProcessRunner(
            clock=self.clock, events=environment.events, time_left=self._time_left
        )
        return AttemptRunner(
            self._graph_of,
            watchdog,
            self._process_runner,
            clock=self.clock,
            read_trace=partial(read_trace, self.flow.database, self.flow.records),
            runs_coroutines=any(map(is_async_node, self._nodes())),
        )

    def _policy_for(self, max_polls: int | None, visibility: float, wait: float) -> EnginePolicy:  # noqa: ARG002 - nodes have their own
        """The policy of the engine. It prefetches little, because the deadline of an attempt counts
        from its claim.
        """
        return EnginePolicy(
            slots=self.concurrency,
            lease=self._lease(),
            max_polls=max_polls,
            poll_wait=wait,
            max_prefetch=_MAX_PREFETCH_PER_SLOT * self.concurrency,
            row_kind=RowKind.COMPUTATION,
        )

    def _lease(self) -> LeasePolicy:
        """The lease of the engine: the shortest timeout and the shortest interval of all nodes."""
        options = [node.options for node in self._nodes()]
        if not options:
            return LeasePolicy(240.0)
        shortest = min(each.heartbeat_timeout_seconds for each in options)
        interval = min(each.heartbeat_interval_seconds for each in options)
        return LeasePolicy(shortest, renew_at=min(interval / shortest, _RENEW_AT))

    def _nodes(self) -> Iterator[Node]:
        """All nodes that compute."""
        return chain.from_iterable(
            graph.computed_nodes for graph in self.flow.registry.graphs.values()
        )

    @contextmanager
    def _while_running(self, engine: Engine, environment: EngineEnvironment) -> Iterator[None]:  # noqa: ARG002 - the contract
        """Run the watchdog, listen for cancelled attempts, and offer free slots to this process.
        Child processes stop last, then the calls of `on_save` are made.
        """
        assert self._watchdog is not None
        assert self._process_runner is not None
        cancelled = Wakeup()
        cancelled.subscribe(engine.check_revoked)
        with ExitStack() as undo:
            undo.callback(self._flush_save_callbacks)
            undo.callback(self._process_runner.stop, timeout=_CHILD_STOP_TIMEOUT)
            undo.callback(
                self.flow.database.listen(map(cancel_channel, self.flow.registry.graphs), cancelled)
            )
            undo.enter_context(self._watchdog.watching())
            undo.enter_context(
                self.flow.local_workers.registered(engine, self._claim_source.eager_leaser)
            )
            yield

    def _graph_of(self, number: int) -> Graph:
        for registered in self.flow.registry.registered().values():
            if any(queue.number == number for queue in registered.queues):
                return registered.graph
        raise LookupError(f"queue {number} belongs to no registered graph")

    def _flush_save_callbacks(self) -> None:
        left = self._time_left()
        self.flow.save_callbacks.flush(FLUSH_TIMEOUT if left is None else min(left, FLUSH_TIMEOUT))

    def _time_left(self) -> float | None:
        run = self._run_guard.current
        return None if run is None else run.deadline.remaining()
