"""The life of an attempt in its slot, on one screen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import PendingResult
from longwatch.errors import PermanentError
from longwatch.flow.attempt_watchdog import AttemptWatchdog, RunningAttempt
from longwatch.flow.context import FlowContext
from longwatch.flow.graph import Graph
from longwatch.flow.invocation import arguments, encode_result
from longwatch.flow.isolated.process_runner import ChildEndedError
from longwatch.flow.nodes import Isolation, Node

_UNKNOWN_NODE_DELAY = 30.0
"""Seconds for which an attempt is left to others that this worker has no node for."""

IsolatedCall = Callable[[Node, str, FlowContext], bytes]
"""Runs a node in a process of its own: its inputs in, its result out, both as JSON."""


class AttemptRunner:
    """Computes one node: values in, function called, result out. What is raised is the engine's to
    judge.

    `graph_of(queue)` is the graph of an attempt; `call_isolated` runs nodes with process isolation.
    """

    def __init__(
        self,
        graph_of: Callable[[int], Graph],
        watchdog: AttemptWatchdog,
        call_isolated: IsolatedCall,
        *,
        clock: Clock,
    ) -> None:
        self._graph_of = graph_of
        self._watchdog = watchdog
        self._call_isolated = call_isolated
        self._clock = clock

    def __call__(self, claimed: ClaimedRow, context: RowContext) -> PendingResult | Settlement:
        node = self._graph_of(claimed.item.queue).nodes.get(claimed.item.node)
        if (
            node is None or node.function is None
        ):  # of a newer release of this graph: another worker has it
            return Settlement(claimed.claim, RowOutcome.RELEASED, delay=_UNKNOWN_NODE_DELAY)
        running = self._start(node, context)
        try:
            result = self._compute(node, claimed, running.context)
        except ChildEndedError as error:
            self._watchdog.remove(running)
            return error.settlement(claimed.claim)
        except BaseException:
            self._watchdog.remove(running)
            raise
        if inspect.isawaitable(result):
            return PendingResult(
                result,
                lambda awaited: self._succeeded(node, running, awaited),
                on_error=lambda _: self._watchdog.remove(running),
            )
        return self._succeeded(node, running, result)

    def _start(self, node: Node, work: RowContext) -> RunningAttempt:
        item = work.claimed.item
        deadline = Deadline(item.claimed_at + item.abandon_after, self._clock)
        context = FlowContext(work, deadline=deadline, clock=self._clock)
        running = RunningAttempt(work, context, node.options.progress_timeout_seconds)
        self._watchdog.add(running)
        return running

    def _compute(self, node: Node, claimed: ClaimedRow, context: FlowContext) -> Any:
        if claimed.item.inputs is None:
            raise PermanentError(
                f"the inputs of node {node.name!r} are too large together; store them "
                f"elsewhere and pass where"
            )
        if node.options.isolation is Isolation.PROCESS:
            return _EncodedResult(self._call_isolated(node, claimed.item.inputs, context))
        assert node.function is not None
        return node.function(**arguments(node, claimed.item.inputs, context))

    def _succeeded(self, node: Node, running: RunningAttempt, result: Any) -> Settlement:
        self._watchdog.remove(running)
        encoded = result.json if isinstance(result, _EncodedResult) else encode_result(node, result)
        return Settlement(running.work.claimed.claim, RowOutcome.DONE, result=encoded)


class _EncodedResult:
    """A result that is JSON already."""

    __slots__ = ("json",)

    def __init__(self, json: bytes) -> None:
        self.json = json
