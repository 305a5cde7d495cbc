"""The life of an attempt in its slot, on one screen: begin, run, settle.

begin     the watchdog of the worker watches the deadline and the progress of the attempt
run       the function of the node is called: in this thread, on the event loop of the engine if
          it is async, or in a process of its own
settle    the watchdog forgets the attempt, and its result becomes a settlement. The engine
          turns an exception into one (`engine/error_policy.py`), and `settler.py` stores it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.tracing import Work
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import PendingResult, is_coroutine_function
from longwatch.errors import PermanentError
from longwatch.flow.attempt_watchdog import AttemptWatchdog, RunningAttempt
from longwatch.flow.context import FlowContext
from longwatch.flow.graph import Graph
from longwatch.flow.invocation import arguments, encode_result
from longwatch.flow.isolated.process_runner import ChildEndedError
from longwatch.flow.node_options import Isolation
from longwatch.flow.nodes import Node
from longwatch.flow.spans import ReadTrace, attempt_work

_UNKNOWN_NODE_DELAY = 30.0
"""Seconds for which an attempt whose node is unknown here is left to other workers."""

IsolatedCall = Callable[[Node, str, FlowContext], bytes]
"""Runs a node in a process of its own: takes its inputs and returns its result, both as JSON."""


class AttemptRunner:
    """Computes the node of a claimed attempt; the runner of a flow worker's engine.

    `graph_of(queue)` returns the graph of an attempt; `call_isolated` runs nodes with
    `isolation="process"`; `read_trace` returns what the span of an attempt continues.
    `runs_coroutines`: some nodes are `async def`. Thread-safe.
    """

    def __init__(  # noqa: PLR0913 - its parts, each by name
        self,
        graph_of: Callable[[int], Graph],
        watchdog: AttemptWatchdog,
        call_isolated: IsolatedCall,
        *,
        clock: Clock,
        read_trace: ReadTrace = lambda _: {},
        runs_coroutines: bool = False,
    ) -> None:
        self.runs_coroutines = runs_coroutines
        self._graph_of = graph_of
        self._read_trace = read_trace
        self._watchdog = watchdog
        self._call_isolated = call_isolated
        self._clock = clock

    def __call__(self, claimed: ClaimedRow, row_context: RowContext) -> PendingResult | Settlement:
        """Compute an attempt; raises what the function of its node raises."""
        node = self._graph_of(claimed.item.queue).nodes.get(claimed.item.node)
        if node is not None and node.is_tick and claimed.item.due_at is not None:
            return Settlement(claimed.claim, RowOutcome.DONE)  # a tick fires without any code
        if node is None or node.function is None:  # a newer release of the graph has it
            return Settlement(claimed.claim, RowOutcome.RELEASED, delay=_UNKNOWN_NODE_DELAY)
        running = self._begin(node, row_context)
        try:
            result = self._run(node, claimed.item.inputs, running.context)
        except ChildEndedError as error:
            self._watchdog.remove(running)
            return error.settlement(claimed.claim)
        except BaseException:
            self._watchdog.remove(running)
            raise
        if inspect.isawaitable(result):
            return PendingResult(
                result,
                lambda awaited: self._settle(node, running, awaited),
                on_error=lambda _: self._watchdog.remove(running),
            )
        return self._settle(node, running, result)

    def is_async_row(self, claimed: ClaimedRow) -> bool:
        """Return whether an attempt blocks no thread while its code runs. Does not raise."""
        try:
            node = self._graph_of(claimed.item.queue).nodes.get(claimed.item.node)
        except Exception:  # noqa: BLE001 - the call of the attempt raises it again
            return True
        return node is None or node.function is None or is_async_node(node)

    def describe_work(self, claimed: ClaimedRow) -> Work | None:
        """Describe the span of an attempt; None for one that calls no function."""
        item = claimed.item
        try:
            graph = self._graph_of(item.queue)
        except LookupError:
            return None
        node = graph.nodes.get(item.node)
        if node is None or node.function is None or (node.is_tick and item.due_at is not None):
            return None
        return attempt_work(graph, item, self._read_trace(item.execution))

    def _begin(self, node: Node, row_context: RowContext) -> RunningAttempt:
        item = row_context.claimed.item
        deadline = Deadline(item.claimed_at + item.abandon_after, self._clock)
        context = FlowContext(row_context, deadline=deadline, clock=self._clock)
        running = RunningAttempt(row_context, context, node.options.progress_timeout_seconds)
        self._watchdog.add(running)
        return running

    def _run(self, node: Node, inputs: str | None, context: FlowContext) -> Any:
        if inputs is None:
            raise PermanentError(
                f"the inputs of node {node.name!r} are too large together; store them "
                f"elsewhere and pass where"
            )
        if node.options.isolation is Isolation.PROCESS:
            return self._call_isolated(node, inputs, context)
        assert node.function is not None
        return node.function(**arguments(node, inputs, context))

    def _settle(self, node: Node, running: RunningAttempt, result: Any) -> Settlement:
        self._watchdog.remove(running)
        is_encoded = node.options.isolation is Isolation.PROCESS
        encoded = result if is_encoded else encode_result(node, result)
        return Settlement(running.work.claimed.claim, RowOutcome.DONE, result=encoded)


def is_async_node(node: Node) -> bool:
    """Return whether the code of a node is `async def` and runs in this process."""
    is_isolated = node.options.isolation is Isolation.PROCESS
    return not is_isolated and is_coroutine_function(node.function)
