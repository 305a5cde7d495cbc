"""Calls `on_save` functions after the commit that saved a computed value.

One background thread makes the calls, in the order of the commits of this process. It starts with
the first call and ends when the queue is empty. The process that committed a value makes its call,
at most once: it is lost if the process dies first, if the reply to the commit is lost, or if the
queue is full. A call that raises is emitted as an event; the value stays.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.flow import SaveCallbackDropped, SaveCallbackFailed
from longwatch.core.traceback_text import describe_traceback
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.graph import Graph
from longwatch.flow.saved_value import OnSave, SavedValue
from longwatch.host.background_thread import BackgroundThread
from longwatch.store.database import Transaction
from longwatch.store.forks import register_fork_hooks

MAX_QUEUED = 1000
"""Calls that wait; further ones are dropped."""
FLUSH_TIMEOUT = 5.0
"""Seconds that the end of a worker, or `Flow.close`, waits for queued calls."""


class _Call(NamedTuple):
    function: OnSave
    saved: SavedValue
    """Its value is JSON."""
    events: Events


class SaveCallbacks:
    """The queue of calls of one Flow. Thread-safe.

    `flush` waits in real time: functions of users run in a real thread, under a fake clock too.
    """

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._reset()
        register_fork_hooks(self)

    def _reset(self) -> None:
        self._queue: deque[_Call] = deque()
        self._lock = threading.Lock()
        self._thread: BackgroundThread | None = None

    def call_on_commit(
        self, tx: Transaction, graph: Graph, state: ExecutionState, events: Events
    ) -> None:
        """Queue the calls for the computed values that this transaction saves, after its commit."""
        for call in _calls(graph, state, events):
            tx.after_commit(partial(self._submit, call))

    def flush(self, timeout: float = FLUSH_TIMEOUT) -> bool:
        """Wait until all queued calls were made; False on timeout, and in a call itself."""
        with self._lock:
            thread = self._thread
        return thread is None or thread.wait(self._clock, Deadline.after(timeout, self._clock))

    # --- forks ---

    def before_fork(self) -> None:
        """Nothing to do before a fork."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do in the parent."""

    def after_fork_in_child(self) -> None:
        """Forget the calls: the thread of the parent makes them."""
        self._reset()

    # --- the thread ---

    def _submit(self, call: _Call) -> None:
        with self._lock:
            is_full = len(self._queue) >= MAX_QUEUED
            if not is_full:
                self._queue.append(call)
            if self._thread is None:
                thread = BackgroundThread(self._run, name="longwatch-on-save")
                with suppress(RuntimeError):  # no thread is left now: the next call tries again
                    self._thread = thread
                    thread.start()
                if thread.error is not None:
                    self._thread = None
        if is_full:
            graph, node, execution = call.saved.graph, call.saved.node, call.saved.execution
            call.events.emit(SaveCallbackDropped(graph=graph, node=node, execution=execution))

    def _run(self) -> None:
        while (call := self._next()) is not None:
            _make(call)

    def _next(self) -> _Call | None:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            self._thread = None
            return None


def _calls(graph: Graph, state: ExecutionState, events: Events) -> Iterator[_Call]:
    for name in sorted(state.new_values()):
        node = graph.nodes.get(name)
        if node is None or node.is_input:
            continue
        functions = [each for each in (node.options.on_save, graph.on_save) if each is not None]
        for function in functions:
            value, revision = state.nodes[name].value, state.nodes[name].revision
            saved = SavedValue(state.id, *state.graph_id, name, value, revision)
            yield _Call(function, saved, events)


def _make(call: _Call) -> None:
    saved = call.saved._replace(value=msgspec.json.decode(call.saved.value or "null"))
    try:
        call.function(saved)
    except BaseException as error:  # noqa: BLE001 - the thread and the worker must go on
        call.events.emit(
            SaveCallbackFailed(
                graph=saved.graph,
                node=saved.node,
                execution=saved.execution,
                error=describe_error(error),
                traceback=describe_traceback(error),
            )
        )
