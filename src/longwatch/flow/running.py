"""The life of an attempt in its slot, on one screen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.errors import PermanentError
from longwatch.flow.apart import ApartEndedError
from longwatch.flow.calling import arguments, written
from longwatch.flow.context import FlowContext
from longwatch.flow.graph import Graph
from longwatch.flow.nodes import Node
from longwatch.flow.options import Isolation
from longwatch.flow.overtime import Overtime, Running
from longwatch.work.context import WorkContext
from longwatch.work.pending import Pending
from longwatch.work.source import Leased, Outcome, Settlement

_UNKNOWN_FOR = 30.0
"""Seconds for which an attempt is left to others that this worker has no node for."""

Apart = Callable[[Node, str, FlowContext], bytes]
"""Runs a node in a process of its own: its inputs in, its result out, both as JSON."""


class AttemptRunner:
    """Computes one node: values in, function called, result out. What is raised is the engine's to
    judge.

    `graph_of(lane)` says whose attempt it is; `apart` runs what is not to run in this process.
    """

    def __init__(
        self, graph_of: Callable[[int], Graph], overtime: Overtime, apart: Apart, *, clock: Clock
    ) -> None:
        self._graph_of = graph_of
        self._overtime = overtime
        self._apart = apart
        self._clock = clock

    def __call__(self, leased: Leased, context: WorkContext) -> Pending | Settlement:
        node = self._graph_of(leased.item.lane).nodes.get(leased.item.node)
        if (
            node is None or node.function is None
        ):  # of a newer release of this graph: another worker has it
            return Settlement(leased.claim, Outcome.BACK, delay=_UNKNOWN_FOR)
        running = self._begun(node, context)
        try:
            result = self._computed(node, leased, running.context)
        except ApartEndedError as error:
            self._overtime.end(running)
            return error.settlement(leased.claim)
        except BaseException:
            self._overtime.end(running)
            raise
        if inspect.isawaitable(result):
            return Pending(
                result,
                lambda awaited: self._done(node, running, awaited),
                failed=lambda _: self._overtime.end(running),
            )
        return self._done(node, running, result)

    def _begun(self, node: Node, work: WorkContext) -> Running:
        item = work.leased.item
        deadline = Deadline(item.claimed_at + item.abandon_after, self._clock)
        context = FlowContext(work, deadline=deadline, clock=self._clock)
        running = Running(work, context, node.options.progress_timeout_seconds)
        self._overtime.begin(running)
        return running

    def _computed(self, node: Node, leased: Leased, context: FlowContext) -> Any:
        if leased.item.inputs is None:
            raise PermanentError(
                f"the inputs of node {node.name!r} are too large together; store them "
                f"elsewhere and pass where"
            )
        if node.options.isolation is Isolation.PROCESS:
            return _Written(self._apart(node, leased.item.inputs, context))
        assert node.function is not None
        return node.function(**arguments(node, leased.item.inputs, context))

    def _done(self, node: Node, running: Running, result: Any) -> Settlement:
        self._overtime.end(running)
        text = result.text if isinstance(result, _Written) else written(node, result)
        return Settlement(running.work.leased.claim, Outcome.DONE, result=text)


class _Written:
    """A result that is JSON already."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text
