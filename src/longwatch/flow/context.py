"""`FlowContext`: the attempt as the function of a node sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.engine.context import IdentifiedLogger, RowContext, UserContext

_LOGGER = logging.getLogger("longwatch.flow")


class FlowContext(UserContext):
    """One attempt. `execution` and `node` name what it computes, `deadline` is its time limit.

    Long-running code should check `cancelled`. It is true once the deadline has passed, the inputs
    have changed, or the worker shuts down. Once `lease_lost` is true, the store refuses the result.
    `beat` reports progress; only a node with `progress_timeout_seconds` has to call it.
    """

    __slots__ = ("_clock", "deadline", "diagnostics", "execution", "node", "progressed_at")

    def __init__(self, row_context: RowContext, *, deadline: Deadline, clock: Clock) -> None:
        super().__init__(row_context)
        self.execution: str = row_context.claimed.item.id
        self.node: str = row_context.claimed.item.node
        self.deadline = deadline
        self.progressed_at = clock.monotonic()
        """When `beat` was called last; before the first call, when the attempt began."""
        self.diagnostics: Callable[[], str] = str
        """Returns, within a second, the stacks and the output of the code if they are known; for
        the error of an attempt that timed out.
        """
        self._clock = clock

    def beat(self, progress: object = None) -> None:
        """Report that the work makes progress; `progress` says how far it is."""
        self.progressed_at = self._clock.monotonic()
        self._row_context.beat(progress)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records have execution, node and attempt."""
        return IdentifiedLogger(
            _LOGGER, {"execution": self.execution, "node": self.node, "attempt": self.attempt}
        )
